"""Columns of a view whose type no table can have, found without Spark.

Spark tells all types when a view is opened; this tells those that are sure from the text, so that
`mview check` says what `mview run` would.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from sqlglot import exp

from mview.errors import UserError
from mview.ivm.facts.exact import base_type
from mview.plan.definition import ViewDefinition
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref
from mview.relation import RelationId
from mview.schema import TableSchema

#: What may be written instead, by what a type's name begins with.
_INSTEAD = {
    "void": "give it a type: CAST(NULL AS <type>)",
    "interval": "take a number: timestampdiff(SECOND, a, b), datediff(a, b); or CAST it AS STRING",
    "map": "take its parts: map_keys(m), map_values(m), m['key']",
    "struct": "take its fields, or a text: to_json(s)",
    "variant": "take a field of it, as v:field::<type>, or a text: to_json(v)",
    "array": "take a text: to_json(xs); or make a row of each with LATERAL VIEW explode(xs)",
}

#: Functions by what they give, whatever their arguments are.
_GIVES: dict[type[exp.Expr] | str, str] = {
    exp.Interval: "interval",
    exp.MakeInterval: "interval",
    exp.Null: "void",
    exp.Map: "map",
    exp.VarMap: "map",
    exp.MapFromEntries: "map",
    exp.StrToMap: "map",
    exp.Struct: "struct",
    exp.ParseJSON: "variant",
    exp.ArraysZip: "array<struct>",
    "ARRAYS_ZIP": "array<struct>",
    "ASSERT_TRUE": "void",
    "FROM_CSV": "struct",
    "MAP_ENTRIES": "array<struct>",
    "MAP_FROM_ARRAYS": "map",
    "MAP_FROM_ENTRIES": "map",
    "MAP_ZIP_WITH": "map",
    "RAISE_ERROR": "void",
    "TO_VARIANT_OBJECT": "variant",
    "TRY_MAKE_INTERVAL": "interval",
    "MAP_CONCAT": "map",
    "MAP_FILTER": "map",
    "TRANSFORM_KEYS": "map",
    "TRANSFORM_VALUES": "map",
    "TRY_PARSE_JSON": "variant",
    "MAKE_DT_INTERVAL": "interval",
    "MAKE_YM_INTERVAL": "interval",
}

#: Calls whose result has the type of their first argument.
_SAME = (
    exp.Paren, exp.Alias, exp.Neg, exp.Abs, exp.Min, exp.Max, exp.First, exp.Last, exp.AnyValue,
    exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.Window, exp.Filter, exp.ArgMax,
    exp.ArgMin, exp.ArrayFilter, exp.ArrayDistinct, exp.IgnoreNulls, exp.RespectNulls,
)  # fmt: skip

_TIMES = (exp.CurrentTimestamp, exp.TimestampTrunc, exp.StrToTime, exp.UnixToTime)
_DATES = (exp.CurrentDate, exp.TsOrDsToDate, exp.DateAdd, exp.DateSub, exp.LastDay)


def check_result_types(
    definition: ViewDefinition, root: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> None:
    """Refuse a view with a column of a type that no table can have, where that is sure.

    Raises:
        UserError: with the column and its type.
    """
    for ref in root.columns:
        kind = _refused(ir.column(ref), root, schemas)
        if kind is not None:
            raise no_such_type(definition, ref.column, kind)


def no_such_type(definition: ViewDefinition, column: str, kind: str) -> UserError:
    """The error for a column of a view whose type no table can have.

    Args:
        column: its name.
        kind: the type, as Spark calls it.
    """
    hints = (hint for begin, hint in _INSTEAD.items() if kind.startswith(begin))
    return UserError(
        f"column {column!r} of view {definition.name!r} has a type that no table can have",
        where=f"{definition.file}:{definition.line}",
        got=kind,
        allowed="boolean, numbers, string, binary, date, timestamp, timestamp_ntz, arrays of these",
        hint=next(hints, "cast it to one of these"),
    )


def _refused(
    expression: exp.Expr, node: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> str | None:
    """The type of an expression over a node's rows, if it is surely one that no table can have."""
    if (ref := ir.as_ref(expression)) is not None:
        return _of_column(ref, node, schemas)
    name = expression.name.upper() if isinstance(expression, exp.Anonymous) else type(expression)
    if name in _GIVES:
        return _GIVES[name]
    if isinstance(expression, _SAME):
        return _refused(expression.this, node, schemas)
    if isinstance(expression, exp.Cast):
        return _of_cast(expression.to)
    if isinstance(expression, exp.Sub):
        sides = [_temporal(side, node, schemas) for side in (expression.left, expression.right)]
        return "interval" if all(sides) else None
    if isinstance(expression, exp.Coalesce | exp.Greatest | exp.Least):
        return _one_of(
            {_refused(value, node, schemas) for value in (expression.this, *expression.expressions)}
        )
    if isinstance(expression, exp.Array):
        return _array_of(
            _one_of({_refused(value, node, schemas) for value in expression.expressions})
        )
    if isinstance(expression, exp.ArrayAgg | exp.ArrayUniqueAgg):
        return _array_of(_refused(expression.this, node, schemas))
    if isinstance(expression, exp.FromJson):
        return _parsed(expression)
    if isinstance(expression, exp.Mul | exp.Div | exp.Add | exp.Sum | exp.Avg):
        return _scaled([_refused(side, node, schemas) for side in expression.iter_expressions()])
    if isinstance(expression, exp.Case | exp.If):
        ifs = expression.args["ifs"] if isinstance(expression, exp.Case) else [expression]
        default = expression.args.get("default") or expression.args.get("false") or exp.Null()
        values = [*(branch.args["true"] for branch in ifs), default]
        return _one_of({_refused(value, node, schemas) for value in values})
    return None


def _scaled(kinds: list[str | None]) -> str | None:
    """The type of a product, a sum of two or an aggregated sum, where one of them is an interval.

    A date or timestamp and an interval are no interval.
    """
    return "interval" if kinds and set(kinds) == {"interval"} else None


def _array_of(kind: str | None) -> str | None:
    return None if kind is None else f"array<{kind}>"


def _parsed(call: exp.FromJson) -> str | None:
    """What from_json makes of its type, which is a plain text; `a INT, b STRING` is a struct."""
    made = next(iter(list(call.iter_expressions())[1:2]), None)
    text = made.name.strip().lower() if isinstance(made, exp.Literal) else ""
    if text.startswith(("map<", "struct<")):
        return text.split("<")[0]
    if text.startswith("array<"):
        inner = next((word for word in ("struct<", "map<") if word in text), None)
        return None if inner is None else f"array<{inner[:-1]}>"
    return "struct" if len(text.replace(":", " ").split()) > 1 else None


def _of_cast(kind: exp.DataType) -> str | None:
    name = kind.this.value.lower() if isinstance(kind.this, exp.DataType.Type) else "interval"
    return next((begin for begin in _INSTEAD if name.startswith(begin)), None)


def _temporal(
    expression: exp.Expr, node: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> bool:
    """Whether an expression is surely a date or a timestamp."""
    while isinstance(expression, _SAME):
        expression = expression.this
    if (ref := ir.as_ref(expression)) is not None:
        made = _makers(ref, node)
        if made:
            return all(_temporal(value, below, schemas) for value, below in made)
        kind = base_type(ref, node, schemas)
        return kind is not None and pa.types.is_temporal(kind)
    if isinstance(expression, exp.Cast):
        return expression.is_type(
            "date", "timestamp", "timestampntz", "timestamptz", "timestampltz"
        )
    return isinstance(expression, _TIMES + _DATES)


def _of_column(ref: Ref, node: ir.Node, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    kinds = {_refused(value, below, schemas) for value, below in _makers(ref, node)}
    return _one_of(kinds) if kinds else None


def _one_of(kinds: set[str | None]) -> str | None:
    """The type of what is one of several values: NULL has that of the others."""
    others = kinds - {"void"}
    if not others:
        return "void"
    return others.pop() if len(others) == 1 else None


def _makers(ref: Ref, node: ir.Node) -> list[tuple[exp.Expr, ir.Node]]:
    """The expressions that a column is made by, with the nodes below; none for a table's own."""
    if (made := ir.computed(node).get(ref)) is not None:
        return [(made, node.children[0])]
    if isinstance(node, ir.SetOp) and node.relation == ref.relation:
        position = node.names.index(ref.column)
        return [(ir.column(branch.columns[position]), branch) for branch in node.branches]
    for child in node.children:
        if ref in child.columns:
            return _makers(ref, child)
    return []
