"""The key of a view, when the user did not declare one.

A join tells rows apart by its columns only where these are equal as their values are: a number
equals the texts '1' and '01', so a row with it may have two partners of different keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch

from sqlglot import exp

from mview.ivm.facts.exact import pairs_by_value
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref
from mview.relation import RelationId
from mview.schema import TableSchema

#: Of the tables that a plan reads.
Schemas = Mapping[RelationId, TableSchema]


@singledispatch
def unique_columns(node: ir.Node, schemas: Schemas) -> tuple[Ref, ...] | None:
    """Columns whose values are different in all output rows; None when nothing is known.

    Args:
        schemas: of the tables and views that it reads.
    """
    raise TypeError(f"no key of {type(node).__name__}")


@unique_columns.register(ir.Values)
@unique_columns.register(ir.Generate)
def _(node: ir.Values | ir.Generate, schemas: Schemas) -> tuple[Ref, ...] | None:
    return None


@unique_columns.register
def _(node: ir.Scan, schemas: Schemas) -> tuple[Ref, ...] | None:
    return tuple(Ref(node.relation, name) for name in node.key) or None


@unique_columns.register
def _(node: ir.Limit, schemas: Schemas) -> tuple[Ref, ...] | None:
    return unique_columns(node.child, schemas)


@unique_columns.register
def _(node: ir.Window, schemas: Schemas) -> tuple[Ref, ...] | None:
    return unique_columns(node.child, schemas) or _numbered(node)


def _numbered(node: ir.Window) -> tuple[Ref, ...] | None:
    """The partition keys and the number of each row in its partition."""
    numbers = (name for name, call in node.functions if isinstance(call.this, exp.RowNumber))
    number, refs = next(numbers, None), [ir.as_ref(value) for value in node.partition]
    if number is None or None in refs:
        return None
    return (*(ref for ref in refs if ref is not None), Ref(node.relation, number))


@unique_columns.register
def _(node: ir.Filter, schemas: Schemas) -> tuple[Ref, ...] | None:
    return _first_of_partition(node, schemas) or unique_columns(node.child, schemas)


def _first_of_partition(node: ir.Filter, schemas: Schemas) -> tuple[Ref, ...] | None:
    """The partition keys, for `row_number() OVER (PARTITION BY …) = 1`."""
    window, test = node.child, node.condition.unnest()
    if isinstance(window, ir.Projection):
        items = dict(window.items)
        ref = ir.as_ref(test.left) if isinstance(test, exp.EQ) else None
        inner = ir.as_ref(items[ref.column]) if ref is not None and ref.column in items else None
        if inner is None or not isinstance(window.child, ir.Window):
            return None
        below = _first_of_partition(
            ir.Filter(window.child, exp.EQ(this=ir.column(inner), expression=test.expression)),
            schemas,
        )
        return _renamed(window, below, schemas) if below else None
    if not isinstance(window, ir.Window) or not isinstance(test, exp.EQ) or test.right.name != "1":
        return None
    ref, calls = ir.as_ref(test.left), dict(window.functions)
    if ref is None or ref.relation != window.relation:
        return None
    call = calls[ref.column]
    refs = [ir.as_ref(value) for value in window.partition]
    plain = tuple(value for value in refs if value is not None)
    is_first = isinstance(call, exp.Window) and isinstance(call.this, exp.RowNumber)
    return plain if is_first and len(plain) == len(refs) else None


@unique_columns.register
def _(node: ir.Projection, schemas: Schemas) -> tuple[Ref, ...] | None:
    inner = unique_columns(node.child, schemas)
    return None if inner is None else _renamed(node, inner, schemas)


def _renamed(
    node: ir.Projection, inner: tuple[Ref, ...], schemas: Schemas
) -> tuple[Ref, ...] | None:
    names = {ref: name for name, value in node.items if (ref := ir.as_ref(value)) is not None}
    same = equal_columns(node.child, schemas)
    renamed = []
    for ref in inner:
        name = next((names[value] for value in (ref, *same.get(ref, ())) if value in names), None)
        if name is None:
            return None
        renamed.append(Ref(node.relation, name))
    return tuple(dict.fromkeys(renamed))


@singledispatch
def equal_columns(node: ir.Node, schemas: Schemas) -> dict[Ref, set[Ref]]:
    """Columns that inner joins make equal."""
    raise TypeError(f"no equal columns of {type(node).__name__}")


@equal_columns.register(ir.Scan)
@equal_columns.register(ir.Values)
@equal_columns.register(ir.Projection)
@equal_columns.register(ir.Aggregate)
@equal_columns.register(ir.Distinct)
@equal_columns.register(ir.SetOp)
def _(node: ir.Node, schemas: Schemas) -> dict[Ref, set[Ref]]:
    return {}


@equal_columns.register(ir.Filter)
@equal_columns.register(ir.Window)
@equal_columns.register(ir.Generate)
@equal_columns.register(ir.Limit)
def _(
    node: ir.Filter | ir.Window | ir.Generate | ir.Limit, schemas: Schemas
) -> dict[Ref, set[Ref]]:
    return equal_columns(node.child, schemas)


@equal_columns.register
def _(node: ir.Join, schemas: Schemas) -> dict[Ref, set[Ref]]:
    same = equal_columns(node.left, schemas)
    if node.kind == "inner":
        same |= equal_columns(node.right, schemas)
        for pair in pairs_by_value(node, schemas):
            group = {pair.left, pair.right, *same.get(pair.left, ()), *same.get(pair.right, ())}
            for ref in group:
                same[ref] = group
    return same


@unique_columns.register
def _(node: ir.Join, schemas: Schemas) -> tuple[Ref, ...] | None:
    left, right = unique_columns(node.left, schemas), unique_columns(node.right, schemas)
    if node.kind in ("semi", "anti", "mark"):
        return left
    if left and right and node.kind in ("inner", "left"):
        pairs = pairs_by_value(node, schemas)
        if set(right) <= {pair.right for pair in pairs}:
            return left
        if node.kind == "inner":
            if set(left) <= {pair.left for pair in pairs}:
                return right
            return (*left, *right)
    return None


@unique_columns.register
def _(node: ir.Aggregate, schemas: Schemas) -> tuple[Ref, ...] | None:
    names = [name for name, _ in node.group]
    if node.sets is not None:
        # Which set a row belongs to: NULL alone does not tell.
        sets = [name for name, call in node.aggregates if is_grouping_id(call)]
        if not sets or node.repeats:
            return None
        names.append(sets[0])
    return tuple(Ref(node.relation, name) for name in names) or None


def is_grouping_id(call: exp.Expr) -> bool:
    """Whether a call is `grouping_id()`, a number for each of the sets of ROLLUP and such."""
    named = isinstance(call, exp.GroupingId) or call.name.lower() == "grouping_id"
    return named and not call.expressions


@unique_columns.register
def _(node: ir.Distinct, schemas: Schemas) -> tuple[Ref, ...] | None:
    return node.columns


@unique_columns.register
def _(node: ir.SetOp, schemas: Schemas) -> tuple[Ref, ...] | None:
    return None if node.all else node.columns
