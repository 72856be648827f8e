"""What a tick changes of rows that are compared with the time.

`at > now() - INTERVAL 1 HOUR` has another outcome after a tick only where `at` lies between what
the right side was and what it is: these rows are a band. Why this holds is part of the claim in
trace.py; here the comparisons are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import singledispatch

import pyarrow as pa
from sqlglot import exp

from mview.ivm.facts.lineage import Origin, origins
from mview.ivm.tracing.fetches import Between
from mview.plan.functions.faithful import is_faithful
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref
from mview.relation import RelationId
from mview.schema import TableSchema

#: Not `<=>`: it tells a NULL that an outer join puts there from a value.
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)


def bands(
    root: ir.Node, join: ir.Join, clock: ir.Scan, schemas: Mapping[RelationId, TableSchema]
) -> tuple[Between, ...] | None:
    """The rows of a join's left side for which a tick of the clock may change something.

    Args:
        root: the whole plan: wherever the clock's value may be used.
        join: attaches the value to every row.
        clock: the scan on its right side.

    Returns:
        Bands of columns of the left side, to be united; None where the value is used in another
        way than in comparisons with such columns.
    """
    value = join.value
    attached = [(Origin(clock, clock.names[0]),)]
    if value is None or origins(join.right, join.right.columns) != attached:
        return None
    ranges: list[Between] = []
    for around, use in _uses(root, value):
        sides = _compared(around, use)
        made = [_band(join.left, *pair, value, clock, schemas) for pair in sides]
        if not made or None in made:
            return None
        ranges += [pair for pair in made if pair is not None]
    return tuple(dict.fromkeys(ranges)) or None


def _uses(node: ir.Node, value: Ref) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """Where a value is used: the whole expression, and the place in it."""
    for used in _expressions(node, value):
        for place in used.find_all(exp.Column):
            if ir.as_ref(place) == value:
                yield used, place
    for child in node.children:
        yield from _uses(child, value)


@singledispatch
def _expressions(node: ir.Node, value: Ref) -> list[exp.Expr]:
    """The expressions of an operator that may use the value."""
    raise TypeError(f"no expressions of {type(node).__name__}")


@_expressions.register(ir.Scan)
@_expressions.register(ir.Values)
@_expressions.register(ir.Distinct)
@_expressions.register(ir.SetOp)
def _(node: ir.Node, value: Ref) -> list[exp.Expr]:
    return []


@_expressions.register
def _(node: ir.Filter, value: Ref) -> list[exp.Expr]:
    return [node.condition]


@_expressions.register
def _(node: ir.Projection, value: Ref) -> list[exp.Expr]:
    return [expression for _, expression in node.items]


@_expressions.register
def _(node: ir.Join, value: Ref) -> list[exp.Expr]:
    refs = [ref for pair in node.pairs for ref in (pair.left, pair.right)]
    return [*node.residual, *map(ir.column, refs)]


@_expressions.register
def _(node: ir.Aggregate, value: Ref) -> list[exp.Expr]:
    return [expression for _, expression in (*node.group, *node.aggregates)]


@_expressions.register
def _(node: ir.Window, value: Ref) -> list[exp.Expr]:
    return [*node.partition, *(expression for _, expression in node.functions)]


@_expressions.register
def _(node: ir.Generate, value: Ref) -> list[exp.Expr]:
    return [ir.column(ref) for ref in node.made_of]


@_expressions.register
def _(node: ir.Limit, value: Ref) -> list[exp.Expr]:
    # Only its text is known.
    return [ir.column(value)] if value.relation in node.text else []


def _compared(around: exp.Expr, use: exp.Expr) -> list[tuple[exp.Expr, exp.Expr]]:
    """The sides (other one, that of the use) of the comparison that a value is used in."""
    side = use
    while side is not around and side.parent is not None:
        above = side.parent
        if isinstance(above, exp.Between):
            if side is not above.this:
                return [(above.this, side)]
            return [(above.args["low"], side), (above.args["high"], side)]
        if isinstance(above, _COMPARISONS):
            return [(above.right if side is above.left else above.left, side)]
        side = above
    return []


def _band(
    below: ir.Node,
    other: exp.Expr,
    side: exp.Expr,
    value: Ref,
    clock: ir.Scan,
    schemas: Mapping[RelationId, TableSchema],
) -> Between | None:
    """The band of a comparison; None when it has no plain column, or more than the time."""
    column = ir.as_ref(other)
    if column is None or column not in below.columns or not _is_bound(side, value):
        return None
    for (origin,) in origins(below, [column]):
        if origin is None or not _has_ranges(schemas[origin.scan.table], origin.column):
            return None
    own = exp.column(clock.names[0])
    bound = side.transform(lambda node: own if ir.as_ref(node) == value else node)
    return Between((column,), clock.table, bound.sql(dialect="spark"))


def _is_bound(side: exp.Expr, value: Ref) -> bool:
    """Whether a side of a comparison is made of the time alone."""
    columns = side.find_all(exp.Column)
    return all(ir.as_ref(column) == value for column in columns) and is_faithful(side)


def _has_ranges(table: TableSchema, column: str) -> bool:
    """Whether SQL compares such values as their integers: days, microseconds, whole numbers."""
    kind = table.column(column).type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    )
