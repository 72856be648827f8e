"""The admitted functions of lists.

Elements are compared as values of columns are; lists of floats are handed on, not looked into.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from mview.execute.local.admitted.entries import SPARK_DECIDES, Admitted, binary, unary
from mview.execute.local.admitted.signatures import (
    any_list,
    element_of,
    joined,
    list_and_element,
    list_of,
    ordered_list,
)
from mview.execute.local.admitted.spark_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    INT,
    Typed,
    duckdb_type,
)

_NOTHING = "{0} IS NULL OR {1} IS NULL"
_CONTAINED = (
    f"CASE WHEN {_NOTHING} THEN NULL WHEN list_contains({{0}}, {{1}}) THEN TRUE "
    "WHEN len({0}) > list_count({0}) THEN NULL ELSE FALSE END"
)
_PLACE = f"CASE WHEN {_NOTHING} THEN NULL ELSE coalesce(list_position({{0}}, {{1}}), 0) END"
_OTHERS = (
    f"CASE WHEN {_NOTHING} THEN NULL ELSE list_filter({{0}}, lambda x: x IS NULL OR x <> {{1}}) END"
)
_FIRSTS = "list_filter({0}, lambda x, i: list_position({0}, x) = i)"
_JOINED = "CASE WHEN {0} IS NOT NULL THEN coalesce(array_to_string({0}, {1}), '') END"


def _sorted(name: str, spark: str, asc: str, nulls_first: str) -> Admitted:
    """One of the ways in which a list is sorted."""
    direction = "DESC" if asc == "false" else "ASC"
    nulls = "FIRST" if nulls_first == "true" else "LAST"
    text = f"list_sort({{0}}, '{direction}', 'NULLS {nulls}')"
    rule = unary(name, exp.ArraySort, spark, ordered_list, text)
    return replace(rule, form={"asc": asc, "nulls_first": nulls_first})


LISTS: tuple[Admitted, ...] = (
    replace(
        unary("array", exp.Array, "array({all})", list_of, "[{all}]"),
        parts=("expressions",),
        arity=(1, 2),
    ),
    unary("size", exp.ArraySize, "size({0})", any_list(INT), "len({0})"),
    replace(
        unary("cardinality", exp.Anonymous, "cardinality({0})", any_list(INT), "len({0})"),
        parts=("expressions",),
        form={"this": "cardinality"},
    ),
    binary(
        "array_contains",
        exp.ArrayContains,
        "array_contains({0}, {1})",
        list_and_element(BOOLEAN),
        _CONTAINED,
    ),
    binary(
        "array_position",
        exp.ArrayPosition,
        "array_position({0}, {1})",
        list_and_element(BIGINT),
        _PLACE,
    ),
    replace(
        binary(
            "array_remove",
            exp.ArrayRemove,
            "array_remove({0}, {1})",
            list_and_element(None),
            _OTHERS,
        ),
        fixed={"null_propagation": (True,)},
    ),
    unary("array_distinct", exp.ArrayDistinct, "array_distinct({0})", ordered_list, _FIRSTS),
    unary("array_min", exp.ArrayMin, "array_min({0})", element_of, "list_min({0})"),
    unary("array_max", exp.ArrayMax, "array_max({0})", element_of, "list_max({0})"),
    binary("array_join", exp.ArrayToString, "array_join({0}, {1})", joined, _JOINED),
    _sorted("sort_array", "sort_array({0})", "", "true"),
    _sorted("sort_array_up", "sort_array({0}, true)", "true", "true"),
    _sorted("sort_array_down", "sort_array({0}, false)", "false", "false"),
    _sorted("array_sort", "array_sort({0})", "", "false"),
)


#: Elements of a series that is made in process.
_MOST = 10_000
_ELSE = f"WHEN {{0}} IS NOT NULL AND {{1}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS %s) END)"


def series(first: Typed, last: Typed, step: int | None, unit: str) -> Typed:
    """`sequence(first, last, step)` of integers, or of dates by days or months.

    Without a step it goes by one, down where the last one is less.

    Args:
        first: an integer or a date.
        last: of the same type.
        step: more than 0; None: not given.
        unit: of the step of dates: `DAY` or `MONTH`.
    """
    kind = first.type
    made = f"{duckdb_type(kind)}[]"
    far = "CAST({1} AS HUGEINT) - {0}" if kind != DATE else "{1} - {0}"
    number = f"CAST({far} AS BIGINT)"
    if unit == "MONTH":
        number = "datediff('month', {0}, {1})"
    element = {
        "": f"CAST({{0}} + %si AS {duckdb_type(kind)})",
        "DAY": "{0} + CAST(%si AS INTEGER)",
        "MONTH": "CAST({0} + to_months(CAST(%si AS INTEGER)) AS DATE)",
    }[unit]
    up = f"list_transform(range(0, {number} + 1, {step or 1}), lambda i: {element % ''})"
    if unit == "MONTH":
        up = f"list_filter({up}, lambda x: x <= {{1}})"
    text = f"(CASE WHEN {{0}} <= {{1}} AND {far} < {_MOST} THEN {up} "
    if step is None:
        down = f"list_transform(range(0, 1 - {number}, 1), lambda i: {element % '-'})"
        text += f"WHEN {{0}} > {{1}} AND {far} > -{_MOST} THEN {down} "
    return Typed((text + _ELSE % made).format(first.sql, last.sql), pa.list_(kind))
