"""Types of numeric expressions, as far as needed to know that sums of them are exact."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch

import pyarrow as pa
from sqlglot import exp

from mview.ivm.facts.lineage import origins
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref
from mview.relation import RelationId
from mview.schema import TableSchema, parse_type

#: Functions of dates and texts that give whole numbers.
_WHOLE = (
    exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfMonth, exp.DayOfWeek, exp.DayOfYear,
    exp.Hour, exp.Minute, exp.Length,
)  # fmt: skip


def number_type(
    expression: exp.Expr, node: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> str | None:
    """`int` or `decimal` when a sum of the expression is exact; else None."""
    while isinstance(expression, exp.Paren | exp.Filter):
        expression = expression.this
    if (ref := ir.as_ref(expression)) is not None:
        return _column(ref, node, schemas)
    if isinstance(expression, exp.Literal):
        return _literal(expression)
    if isinstance(expression, exp.Neg | exp.Abs):
        return number_type(expression.this, node, schemas)
    if isinstance(expression, exp.Add | exp.Sub | exp.Mul | exp.Mod):
        return _wider([expression.left, expression.right], node, schemas)
    if isinstance(expression, exp.Div):
        # Whole numbers divide to DOUBLE in Spark.
        kind = _wider([expression.left, expression.right], node, schemas)
        return kind if kind == "decimal" else None
    if isinstance(expression, exp.Coalesce):
        return _wider([expression.this, *expression.expressions], node, schemas)
    if isinstance(expression, exp.Case):
        values = [branch.args["true"] for branch in expression.args["ifs"]]
        default = expression.args.get("default")
        return _wider([*values, *([default] if default is not None else [])], node, schemas)
    if isinstance(expression, exp.If):
        default = expression.args.get("false")
        return _wider([expression.args["true"], *([default] if default else [])], node, schemas)
    if isinstance(expression, exp.Cast):
        return _cast(expression)
    if isinstance(expression, (exp.Count, exp.CountIf, *_WHOLE)):
        return "int"
    if (returned := _returned(expression)) is not None:
        return _exact(returned)
    if isinstance(expression, exp.Sum | exp.Min | exp.Max):
        return number_type(expression.this, node, schemas)
    return None


def is_ordered(
    expression: exp.Expr, node: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> bool:
    """Whether values of the expression have one order, and equal ones are the same value.

    Floats do not count: 0.0 and -0.0 are equal, and which of the two min gives is chance.
    """
    if number_type(expression, node, schemas) is not None:
        return True
    ref = ir.as_ref(expression)
    kind = _returned(expression) if ref is None else base_type(ref, node, schemas)
    return kind is not None and not (pa.types.is_floating(kind) or pa.types.is_nested(kind))


def base_type(
    ref: Ref, node: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> pa.DataType | None:
    """The type of a column that is an unchanged column of a table."""
    if ref not in node.columns:
        return None
    kinds = {
        None if origin is None else schemas[origin.scan.table].column(origin.column).type
        for (origin,) in origins(node, [ref])
    }
    return kinds.pop() if len(kinds) == 1 else None


def _returned(expression: exp.Expr) -> pa.DataType | None:
    """The type of a call of a declared function."""
    name = expression.meta.get("returns") if isinstance(expression, exp.Anonymous) else None
    return None if name is None else parse_type(name)


def _exact(arrow: pa.DataType) -> str | None:
    if pa.types.is_integer(arrow):
        return "int"
    return "decimal" if pa.types.is_decimal(arrow) else None


def _literal(literal: exp.Literal) -> str | None:
    if literal.is_string or "e" in literal.name.lower():
        return None
    return "decimal" if "." in literal.name else "int"


def _wider(
    parts: list[exp.Expr], node: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> str | None:
    known = [number_type(part, node, schemas) for part in parts if not isinstance(part, exp.Null)]
    if not known or None in known:
        return None
    return "decimal" if "decimal" in known else "int"


def _cast(cast: exp.Cast) -> str | None:
    kind = cast.to.this
    if kind in (exp.DataType.Type.DECIMAL,):
        return "decimal"
    ints = (
        exp.DataType.Type.TINYINT,
        exp.DataType.Type.SMALLINT,
        exp.DataType.Type.INT,
        exp.DataType.Type.BIGINT,
    )
    return "int" if kind in ints else None


@singledispatch
def _made(node: ir.Node, ref: Ref, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    """The type of a column of an operator, by how it makes it."""
    raise TypeError(f"no types of {type(node).__name__}")


@_made.register
def _(node: ir.Scan, ref: Ref, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    return _exact(schemas[node.table].column(ref.column).type)


@_made.register
def _(node: ir.Projection, ref: Ref, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    return number_type(dict(node.items)[ref.column], node.child, schemas)


@_made.register
def _(node: ir.Aggregate, ref: Ref, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    made = dict((*node.group, *node.aggregates))[ref.column]
    return number_type(made, node.child, schemas)


@_made.register
def _(node: ir.SetOp, ref: Ref, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    position = node.names.index(ref.column)
    kinds = {_column(b.columns[position], b, schemas) for b in node.branches}
    return None if None in kinds else ("decimal" if "decimal" in kinds else "int")


@_made.register(ir.Filter)
@_made.register(ir.Distinct)
@_made.register(ir.Limit)
@_made.register(ir.Window)
@_made.register(ir.Generate)
@_made.register(ir.Join)
def _(node: ir.Node, ref: Ref, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    below = (child for child in node.children if ref in child.columns)
    child = next(below, None)
    return None if child is None else _made(child, ref, schemas)


@_made.register
def _(node: ir.Values, ref: Ref, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    return None


def _column(ref: Ref, node: ir.Node, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    """The type of a column, by the operator that makes it."""
    return _made(node, ref, schemas) if ref in node.columns else None


def comparable(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether equality of the two types is equality of values, without rounding or parsing."""
    if pa.types.is_integer(kind) and pa.types.is_integer(other):
        return True
    if pa.types.is_floating(kind) or pa.types.is_floating(other):
        return False
    if pa.types.is_decimal(kind) and pa.types.is_decimal(other):
        return bool(kind.scale == other.scale)
    return bool(kind == other) and not pa.types.is_nested(kind)


def pairs_by_value(node: ir.Join, schemas: Mapping[RelationId, TableSchema]) -> tuple[ir.Pair, ...]:
    """The pairs of a join that no two values of a side are equal to one of the other in.

    Of others a comparison converts both sides, and values fall together: the texts '1' and '01' as
    a number, large BIGINTs as DOUBLE, decimals that are cut to 38 digits.
    """
    return tuple(
        pair
        for pair in node.pairs
        if all(
            _is_one_to_one(ours, theirs)
            for ours in _types(pair.left, node.left, schemas)
            for theirs in _types(pair.right, node.right, schemas)
        )
    )


def _types(
    ref: Ref, node: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> list[pa.DataType | None]:
    """The types of a column on each way that rows reach the node; None: not known."""
    whole = pa.int64() if _column(ref, node, schemas) == "int" else None
    return [
        whole if origin is None else schemas[origin.scan.table].column(origin.column).type
        for (origin,) in origins(node, [ref])
    ]


#: Digits before the point of a BIGINT beside a decimal, and of decimals at all.
_BIGINT_DIGITS, _MOST_DIGITS = 20, 38


def _is_one_to_one(kind: pa.DataType | None, other: pa.DataType | None) -> bool:
    """Whether a value of one type equals one of the other at the most, and the other way round."""
    if kind is None or other is None:
        return False
    if comparable(kind, other):
        return True
    both = (kind, other)
    if all(map(pa.types.is_floating, both)) or all(map(pa.types.is_temporal, both)):
        return True
    if not all(map(_exact, both)):
        return False
    scales = [number.scale if pa.types.is_decimal(number) else 0 for number in both]
    digits = [
        number.precision if pa.types.is_decimal(number) else _BIGINT_DIGITS for number in both
    ]
    before = max(digits[0] - scales[0], digits[1] - scales[1])
    return bool(before + max(scales) <= _MOST_DIGITS)
