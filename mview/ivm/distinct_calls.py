"""Aggregates over DISTINCT values of all rows, written as values of a derived table.

`SELECT count(DISTINCT x) FROM t` has one group, so any change would need all rows. Written as
`(SELECT count(__x) FROM (SELECT DISTINCT x AS __x FROM t))` the DISTINCT touches the changed values
of x only, and the count over it is added up.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from mview.errors import UserError
from mview.plan.build import build
from mview.plan.definition import ViewDefinition
from mview.plan.functions import aggregate_calls, windows
from mview.plan.ir import Unsupported
from mview.plan.pieces import Pieces
from mview.plan.place import Edit, edited
from mview.plan.syntax import parse_select
from mview.schema import TableSchema


def without_distinct_calls(
    definition: ViewDefinition, schemas: Mapping[str, TableSchema]
) -> ViewDefinition:
    """The query with its DISTINCT aggregates over all rows as subqueries, where it has some.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    tree = parse_select(definition.text)
    if not isinstance(tree, exp.Select) or not _is_one_group(tree):
        return definition
    pieces = Pieces.of(definition.sql, tree)
    calls = aggregate_calls(tree.expressions[0], definition.sql)
    calls += [c for one in tree.expressions[1:] for c in aggregate_calls(one, definition.sql)]
    edits = [_edit(call, pieces) for call in calls if _is_distinct(call)]
    if not edits or None in edits:
        return definition
    if len(edits) == len(calls):
        # Nothing is left to aggregate: the values are a row without FROM.
        edits.append((pieces.from_start, pieces.body_end, ""))
    changed = definition.with_sql(edited(definition.sql, filter(None, edits)))
    try:
        build(changed, schemas)
    except (UserError, Unsupported):
        return definition
    return changed


def _is_one_group(tree: exp.Select) -> bool:
    clauses = ("group", "having", "qualify", "order", "limit", "offset", "distinct", "windows")
    return tree.args.get("from_") is not None and not (
        any(tree.args.get(name) for name in clauses)
        or any(windows(one) for one in tree.expressions)
    )


def _is_distinct(call: exp.Expr) -> bool:
    kinds = (exp.Count, exp.Sum, exp.Avg)
    return isinstance(call, kinds) and isinstance(call.this, exp.Distinct)


def _edit(call: exp.Expr, pieces: Pieces) -> Edit | None:
    """The place of a call, and the subquery that has its value."""
    inside = pieces.argument(call)
    if inside is None or len(call.this.expressions) != 1:
        return None
    start = call.meta["start"]
    first = pieces.sql.index(inside, start)
    name, after = pieces.sql[start:first], first + len(inside)
    rows = f"SELECT {inside} AS __x {pieces.body}"
    return start, pieces.sql.index(")", after) + 1, f"(SELECT {name}__x) AS value FROM ({rows}\n))"
