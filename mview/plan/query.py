"""A query as a tree: parsed once from the user's text, and changed without being text again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sqlglot import exp

from mview.plan.dialect import write
from mview.plan.place import Text
from mview.plan.syntax import parse_select

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
        return replace(self, tree=tree)

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
