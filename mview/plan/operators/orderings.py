"""Where the order of rows decides a result, and what is known of it: found while the IR is built.

Rows that are equal in an ORDER BY come in any order. Spark may give another result each time then,
so each such place is kept with what its rows can be told apart by (ivm/rewrites/total_order.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING

from sqlglot import exp

from mview.plan.functions.effects import function_name
from mview.plan.functions.faithful import is_faithful
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref
from mview.plan.text.dialect import fragment

if TYPE_CHECKING:
    from mview.plan.operators.scope import Scope

#: Functions of a window that see where a row stands, and have no frame.
_BY_PLACE = frozenset(["row_number", "ntile", "lag", "lead"])
_FIRST = frozenset(["first", "first_value", "any_value"])
_LAST = frozenset(["last", "last_value"])
#: Functions that see the order of the rows in their frame.
_IN_ORDER = _FIRST | _LAST | {"nth_value", "collect_list", "array_agg"}
#: Functions that see no order at all but that of equal rows.
_RANKS = frozenset(["rank", "dense_rank", "percent_rank", "cume_dist"])
_AROUND = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls)


@dataclass(frozen=True)
class Ordering:
    """A place of the text whose result the order of rows decides.

    Attributes:
        where: what is ordered: a call of a window function, a call of max_by or min_by, or a query
            with a LIMIT.
        start: the first character of the function, where the user has written it.
        node: the rows.
        by: what they are told apart by: ORDER BY and PARTITION BY, or the group.
        names: columns of the rows, as they may be written there.
        complete: `names` has all that the rows are made of.
        may_add: more columns in ORDER BY change nothing but the order of equal rows.
    """

    where: exp.Expr
    start: int | None
    node: ir.Node
    by: frozenset[Ref | None]
    names: Mapping[Ref, exp.Expr]
    complete: bool = True
    may_add: bool = True


def window_ordering(window: exp.Window, node: ir.Node, scope: Scope) -> Ordering | None:
    """What a window function sees of the order of equal rows; None: nothing.

    Args:
        window: the call, bound to columns of the node.
        node: its rows.
        scope: the names that the call may use.
    """
    order, call = window.args.get("order"), window.this
    while isinstance(call, _AROUND):
        call = call.this
    name = function_name(call) or ""
    if order is None or name in _RANKS:
        return None
    may_add = _may_add(window, name)
    if may_add is None:
        return None
    parts = [*(window.args.get("partition_by") or ()), *(expr.this for expr in order.expressions)]
    names, complete = _names(node, scope)
    by = frozenset(ir.as_ref(expr) for expr in parts)
    return Ordering(window, call.meta.get("start"), node, by, names, complete, may_add)


def _may_add(window: exp.Window, name: str) -> bool | None:
    """Whether ORDER BY may have more columns; None when the order of equal rows is no matter."""
    if name in _BY_PLACE:
        return True
    spec = window.args.get("spec")
    given = spec.args if spec is not None else {}
    from_start = str(given.get("start", "UNBOUNDED")).upper() == "UNBOUNDED"
    to_end = str(given.get("end")).upper() == "UNBOUNDED"
    if str(given.get("kind", "RANGE")).upper() == "ROWS":
        return None if from_start and to_end and name not in _IN_ORDER else True
    if name not in _IN_ORDER:
        return None
    # With RANGE equal rows are in a frame together: its ends move when they are told apart.
    if from_start and to_end:
        return True
    skips = window.find(exp.IgnoreNulls) is not None
    return not skips and ((from_start and name in _FIRST) or (to_end and name in _LAST))


def extreme_ordering(call: exp.Expr, node: ir.Node, group: Sequence[exp.Expr]) -> Ordering | None:
    """What `max_by(x, y)` and `min_by(x, y)` see of rows that are equal in y."""
    while isinstance(call, _AROUND):
        call = call.this
    if not isinstance(call, exp.ArgMax | exp.ArgMin):
        return None
    by = call.args.get("expression")
    parts = [by] if isinstance(by, exp.Expr) else []
    if isinstance(by, exp.Struct):
        parts = [expr.expression or expr.unalias() for expr in by.expressions]
    refs = frozenset(ir.as_ref(expr) for expr in (*parts, *group))
    return Ordering(call, call.meta.get("start"), node, refs, {})


def limit_ordering(
    query: exp.Expr, node: ir.Node, columns: Sequence[tuple[str, Ref]], scope: Scope | None
) -> Ordering | None:
    """What ORDER BY … LIMIT sees of equal rows; None for a query without.

    Args:
        node: all of its rows.
        columns: its columns.
        scope: names in reach of its ORDER BY beside those.
    """
    order = query.args.get("order")
    if order is None or not (query.args.get("limit") or query.args.get("offset")):
        return None
    by = frozenset(_ordered_by(expr.this, columns, scope) for expr in order.expressions)
    if len(order.expressions) == 1 and by == {None} and order.expressions[0].name.upper() == "ALL":
        by = frozenset(ref for _, ref in columns)
    names: dict[Ref, exp.Expr] = {
        ref: exp.Literal.number(position) for position, (_, ref) in enumerate(columns, 1)
    }
    return Ordering(query, None, node, by, names)


def _ordered_by(
    expr: exp.Expr, columns: Sequence[tuple[str, Ref]], scope: Scope | None
) -> Ref | None:
    if isinstance(expr, exp.Literal) and expr.is_int and 0 < int(expr.name) <= len(columns):
        return columns[int(expr.name) - 1][1]
    if not isinstance(expr, exp.Column) or not isinstance(expr.this, exp.Identifier):
        return None
    same = [ref for name, ref in columns if name.lower() == expr.name.lower()]
    if len(expr.parts) == 1 and same:
        return same[0] if len(same) == 1 else None
    read = scope.find(expr) if scope is not None else None
    return read.ref if read is not None and not read.fields else None


def _names(node: ir.Node, scope: Scope) -> tuple[dict[Ref, exp.Expr], bool]:
    """The columns of a window's rows as the text may write them, and whether these are all."""
    known = scope.names()
    below = node
    while (inner := _passed_on(below)) is not None:
        below = inner
    if not isinstance(below, ir.Aggregate):
        complete = len(known) == sum(len(relation.columns) for relation in scope.relations)
        # What explode() in the select list makes has no name that a window may use.
        if isinstance(below, ir.Generate):
            complete &= all(Ref(below.relation, name) in known for name in below.names)
        return known, complete
    names: dict[Ref, exp.Expr] = {}
    for name, expr in below.group:
        written = _written(expr, known)
        if written is not None:
            names[Ref(below.relation, name)] = written
    complete = len(names) == len(below.group)
    if below.sets is not None:
        names[Ref(below.relation, "grouping_id()")] = fragment("grouping_id()")
    return names, complete


@singledispatch
def _passed_on(node: ir.Node) -> ir.Node | None:
    """The input of which a node has all columns, under their names; None for all others."""
    raise TypeError(f"nobody knows which columns {type(node).__name__} passes on")


@_passed_on.register(ir.Filter)
@_passed_on.register(ir.Window)
def _(node: ir.Filter | ir.Window) -> ir.Node | None:
    return node.child


@_passed_on.register
def _(node: ir.Join) -> ir.Node | None:
    return node.left if node.kind == "mark" else None


@_passed_on.register(ir.Scan)
@_passed_on.register(ir.Values)
@_passed_on.register(ir.Projection)
@_passed_on.register(ir.Aggregate)
@_passed_on.register(ir.Distinct)
@_passed_on.register(ir.Limit)
@_passed_on.register(ir.Generate)
@_passed_on.register(ir.SetOp)
def _(node: ir.Node) -> ir.Node | None:
    return None


def _written(expr: exp.Expr, names: Mapping[Ref, exp.Expr]) -> exp.Expr | None:
    """A group's expression in the text's own names; None when that cannot be said."""
    ref = ir.as_ref(expr)
    if ref is not None:
        return names.get(ref)
    columns = [ir.as_ref(column) for column in expr.find_all(exp.Column)]
    if not is_faithful(expr) or any(ref not in names for ref in columns):
        return None

    def named(node: exp.Expr) -> exp.Expr:
        ref = ir.as_ref(node) if isinstance(node, exp.Column) else None
        return node if ref is None else names[ref].copy()

    return expr.copy().transform(named)


# -- max_by and min_by: of the rows that tie, the one with the greatest or least value ------------


def with_value(order: exp.Expr, value: exp.Expr) -> exp.Expr:
    """What max_by(value, order) is to compare, so that no two values are equal in it.

    A row whose order is NULL takes no part, as in the user's text. A value that is NULL is the
    least one, in every engine.
    """
    some = fragment("(v) IS NOT NULL", v=value)
    parts = [order.copy(), some, value.copy()]
    names = [
        expr.name if isinstance(expr, exp.Column) else f"col{i}" for i, expr in enumerate(parts, 1)
    ]
    fields = (
        exp.PropertyEQ(this=exp.to_identifier(n), expression=expr)
        for n, expr in zip(names, parts, strict=True)
    )
    both = exp.Struct(expressions=list(fields))
    return fragment("CASE WHEN (o) IS NOT NULL THEN both END", o=order, both=both)


def order_in(compared: exp.Expr) -> exp.Expr | None:
    """The order in an expression that `with_value` made; None for another."""
    branches = compared.args["ifs"] if isinstance(compared, exp.Case) else []
    made = branches[0].args["true"] if len(branches) == 1 else None
    if not isinstance(made, exp.Struct) or len(made.expressions) != 3:
        return None
    order: exp.Expr = made.expressions[0]
    return order.expression if isinstance(order, exp.PropertyEQ) else order
