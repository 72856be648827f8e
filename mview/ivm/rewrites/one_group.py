"""Aggregates over all rows, written as values of subqueries.

`SELECT count(DISTINCT x) FROM t` has one group, so any change would need all rows. Written as
`(SELECT count(__x0) FROM (SELECT DISTINCT x AS __x0 FROM t))` the DISTINCT touches the changed
values of x only, and the count over it is added up. Of several columns count takes the rows in
which none is NULL: `(SELECT count(*) FROM (SELECT DISTINCT …) WHERE __x0 IS NOT NULL AND …)`.

An expression that cannot be computed from a state table is left as the user wrote it, over values
that can: `datediff((SELECT max(d) FROM t), (SELECT min(d) FROM t))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from mview.plan.definition import ViewDefinition
from mview.plan.functions.effects import aggregate_calls, windows
from mview.plan.functions.faithful import is_faithful
from mview.plan.operators.build import if_accepted
from mview.plan.text.dialect import fragment
from mview.plan.text.query import named, select_from, select_over
from mview.relation import RelationId
from mview.schema import TableSchema

#: What is added up, or kept, without reading rows again.
_KEPT = (
    exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.ArgMin, exp.ArgMax, exp.CountIf,
    exp.LogicalOr, exp.LogicalAnd,
)  # fmt: skip


def without_calls_of_all_rows(
    definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]
) -> ViewDefinition:
    """The query with aggregates over all rows as subqueries, where that is better.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    query = definition.tree
    if not isinstance(query, exp.Select) or not _is_one_group(query):
        return definition
    tree = query.copy()
    calls = [call for item in tree.expressions for call in aggregate_calls(item)]
    every = all(map(_is_kept, calls)) and not all(map(_is_over_state, tree.expressions))
    chosen = [call for call in calls if every or _is_distinct(call)]
    values = [_value(call, query) for call in chosen]
    if not chosen or None in values:
        return definition
    for call, value in zip(chosen, values, strict=True):
        call.replace(value)
    if len(chosen) == len(calls):
        # Nothing is left to aggregate: the values are a row without FROM.
        for clause in ("from_", "joins", "laterals", "where"):
            tree.set(clause, None)
    return if_accepted(definition.with_tree(tree), definition, schemas)


def _is_one_group(tree: exp.Select) -> bool:
    clauses = ("group", "having", "qualify", "order", "limit", "offset", "distinct", "windows")
    return tree.args.get("from_") is not None and not (
        any(tree.args.get(name) for name in clauses)
        or any(windows(item) for item in tree.expressions)
    )


def _is_distinct(call: exp.Expr) -> bool:
    core = call.this if isinstance(call, exp.Filter) else call
    kinds = (exp.Count, exp.Sum, exp.Avg)
    return isinstance(core, kinds) and isinstance(core.this, exp.Distinct)


def _is_kept(call: exp.Expr) -> bool:
    return isinstance(call.this if isinstance(call, exp.Filter) else call, _KEPT)


def _is_over_state(item: exp.Expr) -> bool:
    """Whether what stands around the calls of an item can be written again over a state table."""
    around = exp.paren(item.copy())
    for node in list(around.find_all(exp.Subquery, *_KEPT)):
        whole = node.parent if isinstance(node.parent, exp.Filter) else node
        whole.replace(exp.null())
    bare = around.this.unalias()
    return is_faithful(bare) and bare.find(exp.Anonymous) is None


def _value(call: exp.Expr, query: exp.Select) -> exp.Expr | None:
    """The subquery that has the value of a call; None where there is none."""
    if not _is_distinct(call):
        return _subquery(select_over(query, [named(call.copy(), "value")]))
    is_filtered = isinstance(call, exp.Filter)
    core = (call.this if is_filtered else call).copy()
    rows = _different_rows(
        core.this.expressions, call.expression.this if is_filtered else None, query
    )
    names = [item.alias for item in rows.expressions]
    if len(names) == 1:
        core.set("this", exp.column(names[0]))
        return _subquery(select_from(rows, [named(core, "value")]))
    if not isinstance(core, exp.Count):
        return None
    outer = select_from(rows, [fragment("count(*) AS value")])
    complete = (fragment("x IS NOT NULL", x=exp.column(name)) for name in names)
    return _subquery(outer.where(*complete, copy=False))


def _subquery(query: exp.Query) -> exp.Subquery:
    return exp.Subquery(this=query)


def _different_rows(
    values: Sequence[exp.Expr], condition: exp.Expr | None, query: exp.Select
) -> exp.Select:
    """The query of the different rows of what stands after DISTINCT in a call.

    To the call a row that FILTER leaves out is one of NULLs, which it leaves out, too.
    """
    if condition is not None:
        values = [fragment("CASE WHEN c THEN (v) END", c=condition, v=value) for value in values]
    items = [named(value.copy(), f"__x{number}") for number, value in enumerate(values)]
    rows = select_over(query, items)
    rows.set("distinct", exp.Distinct())
    return rows
