"""Which columns of its tables a view may read, told from its text alone.

No schema is asked, so a column counts as used wherever its name may stand for it. Names of other
tables' columns are told apart by what stands before them only: a column that is thought to be used
costs a little, and one that is used and missing would be another column of that name in a query
around it, or an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from mview.errors import UserError
from mview.plan.definition import ViewDefinition, name_of, tables_of
from mview.plan.text.lexemes import tokens
from mview.relation import RelationId


@dataclass(frozen=True)
class Uses:
    """Columns that views may read of a table.

    Attributes:
        names: names, in lower case, that may be those of its columns.
        everything: all columns are read: `SELECT *`.
    """

    names: frozenset[str] = frozenset()
    everything: bool = False

    def __call__(self, column: str) -> bool:
        """Whether a column is used."""
        return self.everything or column.lower() in self.names

    def __or__(self, other: Uses) -> Uses:
        return Uses(self.names | other.names, self.everything or other.everything)


def uses_of(views: Iterable[ViewDefinition], table: RelationId) -> Uses:
    """The columns of a table that views may read."""
    used = Uses()
    for view in views:
        if table in view.table_names:
            used |= _uses(view, table)
    return used


def _uses(view: ViewDefinition, table: RelationId) -> Uses:
    tree = view.tree
    read = [node for node in tables_of(tree) if name_of(node) == table]
    ours = {_qualifier(node) for node in read}
    others = _qualifiers(tree) - ours
    foreign = {
        part.meta.get("start")
        for column in tree.find_all(exp.Column)
        if len(column.parts) > 1 and column.parts[-2].name.lower() in others
        for part in column.parts
    }
    try:
        words = [token for token in tokens(view.text) if token.start not in foreign]
    except UserError:
        return Uses(everything=True)  # the view is refused, and alone, when it is opened
    names = frozenset(token.text.lower() for token in words)
    return Uses(names, _reads_all(tree, read, ours))


def _qualifier(table: exp.Table) -> str:
    """What stands before columns of a table; empty: it is not known."""
    around = table.parent
    while isinstance(around, exp.Paren | exp.Subquery):
        if around.alias:
            return ""
        around = around.parent
    return str(table.alias_or_name).lower()


def _qualifiers(tree: exp.Query) -> set[str]:
    """What may stand before columns, of anything that is in reach somewhere in the query."""
    named = tree.find_all(exp.Table, exp.Subquery, exp.CTE, exp.Lateral, exp.Values)
    names = {str(node.alias_or_name).lower() for node in named}
    # What stands around a table without being a query of its own may rename it.
    renaming = {
        node.alias.lower()
        for node in tree.find_all(exp.Subquery)
        if not isinstance(node.this, exp.Query) or isinstance(node.this, exp.Subquery)
    }
    return names - renaming


def _reads_all(tree: exp.Query, read: list[exp.Table], ours: set[str]) -> bool:
    """Whether a table's columns are read without being named."""
    if next(tree.find_all(exp.Pivot), None) or any(
        "NATURAL" in (join.args.get("method") or "") for join in tree.find_all(exp.Join)
    ):
        return True
    if any(alias.args.get("columns") for node in read for alias in _aliases(node)):
        return True  # columns that are renamed by their order
    queries = [node.find_ancestor(exp.Select) for node in read]
    for star in tree.find_all(exp.Star):
        around = star.parent
        if isinstance(around, exp.Count) and around.this is star:
            continue
        if isinstance(around, exp.Column) and around.table:
            if around.table.lower() in ours or "" in ours:
                return True
        elif (query := star.find_ancestor(exp.Select)) is None or any(q is query for q in queries):
            return True
    return False


def _aliases(table: exp.Table) -> Iterator[exp.TableAlias]:
    """The aliases of a table and of the parentheses around it."""
    node: exp.Expr | None = table
    while node is not None and not isinstance(node, exp.From | exp.Join | exp.Select):
        if isinstance(alias := node.args.get("alias"), exp.TableAlias):
            yield alias
        node = node.parent
