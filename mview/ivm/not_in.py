"""NOT IN with NULLs, written so that a NULL on either side concerns few rows.

`x NOT IN (S)` is true when S is empty; else when x is not NULL, S has no NULL, and no row of S is
x. Whether S is empty and whether it has a NULL are values of all of S, which seldom change: they
are cut out as parts like any other value. What is left is NOT EXISTS with an equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from mview.errors import UserError
from mview.plan import ir
from mview.plan.build import build
from mview.plan.definition import ViewDefinition
from mview.plan.ir import Unsupported
from mview.plan.pieces import Pieces
from mview.plan.place import Edit, edited, span
from mview.plan.subquery import is_condition
from mview.schema import TableSchema


def without_not_in(
    definition: ViewDefinition, schemas: Mapping[str, TableSchema]
) -> ViewDefinition:
    """The query with every NOT IN that may meet a NULL rewritten, where that can be done.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    while _meets_null(build(definition, schemas).root):
        sql = _rewritten(definition)
        if sql == definition.sql:
            return definition
        changed = definition.with_sql(sql)
        try:
            build(changed, schemas)
        except (UserError, Unsupported):
            return definition  # S is correlated: it is no table
        definition = changed
    return definition


def _meets_null(node: ir.Node) -> bool:
    own = isinstance(node, ir.Join) and node.null_aware
    return own or any(_meets_null(child) for child in node.children)


def _rewritten(definition: ViewDefinition) -> str:
    """The text with the outermost NOT INs rewritten."""
    sql, tree = definition.sql, definition.tree
    edits: list[Edit] = []
    for one in _candidates(tree):
        start, end = Pieces.of(sql, tree).subquery_around(*span(one.args["query"]))
        first, last = span(one.this)
        if any(a <= first < b for a, b, _ in edits):
            continue
        text = _condition(sql[first:last], sql[start + 1 : end - 1])
        negated = "NOT" in sql[last:start].upper().split()
        edits.append((first, end, text if negated else f"NOT {text}"))
    return edited(sql, edits)


def _candidates(tree: exp.Query) -> Iterator[exp.In]:
    """Negated INs of a plain column where false and NULL come to the same."""
    for one in tree.find_all(exp.In):
        plain = isinstance(one.this, exp.Column) and isinstance(one.this.this, exp.Identifier)
        if one.args.get("query") is None or not plain:
            continue
        above = one.parent
        while isinstance(above, exp.Paren):
            above = above.parent
        if isinstance(above, exp.Not) and is_condition(above):
            yield one


def _condition(x: str, query: str) -> str:
    # A line break: the subquery may end in a comment.
    rows = f"FROM ({query}\n) AS __in(__x)"
    empty = f"(SELECT count(*) = 0 AS none {rows})"
    has_null = f"(SELECT count(*) > count(__x) AS some {rows})"
    return (
        f"(({empty} OR ({x} IS NOT NULL AND NOT {has_null}))"
        f" AND NOT EXISTS (SELECT 1 {rows} WHERE __x = {x}))"
    )
