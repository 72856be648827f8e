"""A query as a tree: parsed once from the user's text, and changed without being text again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from sqlglot import exp

from mview.plan.text.dialect import write
from mview.plan.text.place import Text
from mview.plan.text.syntax import parse_select

#: The key in `meta` of a node's number.
_NUMBER = "number"


@dataclass(frozen=True)
class Query:
    """A query and the user's text that it comes from.

    Attributes:
        tree: the query. Nobody changes it: what is made of it is made of a copy.
        text: what the user wrote; places in the tree are places in it.
        user: the tree of that text.
    """

    tree: exp.Query
    text: Text
    user: exp.Query
    #: What is known of the tree already, by who worked it out.
    known: dict[object, object] = field(default_factory=dict, compare=False, repr=False)
    #: Functions with which the text was found to be one that a view may have; all that is made of
    #: one text shares it.
    allowed: set[object] = field(default_factory=set, compare=False, repr=False)

    def __post_init__(self) -> None:
        for number, node in enumerate(self.tree.find_all(exp.Func, exp.Window, exp.Query)):
            node.meta[_NUMBER] = number

    @classmethod
    def of(cls, text: Text) -> Query:
        """The query of a text.

        Raises:
            UserError: it is not one SELECT that can be parsed; with line, column and caret.
        """
        tree = parse_select(text)
        return cls(tree, text, tree)

    def changed(self, tree: exp.Query) -> Query:
        """Another query that was made of this one."""
        return Query(tree, self.text, self.user, allowed=self.allowed)

    @cached_property
    def sql(self) -> str:
        """The query as Spark reads it."""
        return write(self.tree)


def number_of(node: exp.Expr) -> int | None:
    """The number of a call, window or query in its query; its copies and what is bound have it."""
    number: int | None = node.meta_get(_NUMBER)
    return number


def numbered(tree: exp.Expr, number: int | None) -> exp.Expr | None:
    """The node with a number in a query, or in a copy of it."""
    if number is None:
        return None
    nodes = tree.find_all(exp.Func, exp.Window, exp.Query)
    return next((node for node in nodes if number_of(node) == number), None)


# -- what queries are made of ------------------------------------------------------------------


def select_over(body: exp.Select, items: Iterable[exp.Expr], *more: str) -> exp.Select:
    """A SELECT of other items over the same FROM and WHERE.

    Args:
        body: the SELECT whose FROM and WHERE are copied.
        items: the select list.
        more: other clauses of it that are copied as well, by their names in `args`.
    """
    made = exp.Select(expressions=list(items))
    for name in ("from_", "joins", "laterals", "where", *more):
        value = body.args.get(name)
        if value:
            made.set(name, [part.copy() for part in value] if type(value) is list else value.copy())
    return made


def select_from(
    query: exp.Query, items: Iterable[exp.Expr], alias: str | None = None
) -> exp.Select:
    """A SELECT over the rows of a query, which becomes a part of it."""
    name = exp.TableAlias(this=exp.to_identifier(alias)) if alias else None
    from_ = exp.From(this=exp.Subquery(this=query, alias=name))
    return exp.Select(expressions=list(items), from_=from_)


def select_columns(names: Iterable[str], table: str) -> exp.Select:
    """A SELECT of some columns of a table without a connection."""
    from_ = exp.From(this=exp.Table(this=exp.to_identifier(table, quoted=True)))
    return exp.Select(expressions=[column(name) for name in names], from_=from_)


def column(name: str) -> exp.Column:
    """A column, by its name in backticks."""
    return exp.column(exp.to_identifier(name, quoted=True))


def named(expression: exp.Expr, name: str) -> exp.Alias:
    """An item of a select list; the expression becomes a part of it."""
    return exp.Alias(this=expression, alias=exp.to_identifier(name))


def ascending(expression: exp.Expr) -> exp.Ordered:
    """An item of ORDER BY; the expression becomes a part of it."""
    return exp.Ordered(this=expression, nulls_first=True)
