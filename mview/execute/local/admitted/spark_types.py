"""Spark's type rules (ANSI mode) for the types that may run in process, and their DuckDB names."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mview.schema import parse_type, type_name

BOOLEAN, STRING, BINARY = pa.bool_(), pa.string(), pa.binary()
TINYINT, SMALLINT, INT, BIGINT = pa.int8(), pa.int16(), pa.int32(), pa.int64()
FLOAT, DOUBLE = pa.float32(), pa.float64()
DATE, TIMESTAMP, TIMESTAMP_NTZ = (parse_type(t) for t in ("date", "timestamp", "timestamp_ntz"))
#: The type of a bare NULL.
NULL = pa.null()

INTEGERS = (TINYINT, SMALLINT, INT, BIGINT)
#: Digits that hold every value of an integer type.
_DIGITS = {TINYINT: 3, SMALLINT: 5, INT: 10, BIGINT: 20}
_MAX_DIGITS = 38

_DUCKDB = {
    BOOLEAN: "BOOLEAN",
    STRING: "VARCHAR",
    BINARY: "BLOB",
    TINYINT: "TINYINT",
    SMALLINT: "SMALLINT",
    INT: "INTEGER",
    BIGINT: "BIGINT",
    FLOAT: "FLOAT",
    DOUBLE: "DOUBLE",
    DATE: "DATE",
    # Both read in UTC: an instant goes to DuckDB without its zone, which needs no extension.
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP",
    NULL: "INTEGER",
}


@dataclass(frozen=True)
class Typed:
    """DuckDB text with the type that Spark gives it.

    Attributes:
        sql: an expression, in parentheses where needed.
        type: its type in Spark.
        literal: the value as the user wrote it, for number and string literals.
    """

    sql: str
    type: pa.DataType
    literal: str | None = None


def duckdb_type(kind: pa.DataType) -> str | None:
    """DuckDB's name of a type; None when values of the type may not run in process."""
    if is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if is_list(kind):
        # Lists of lists run on Spark.
        element = None if is_list(kind.value_type) else duckdb_type(kind.value_type)
        return None if element is None else f"{element}[]"
    return _DUCKDB.get(kind)


def without_zone(kind: pa.DataType) -> pa.DataType:
    """The type in which values go to DuckDB: an instant without its zone, also within a list."""
    if is_list(kind):
        return pa.list_(TIMESTAMP_NTZ) if kind.value_type == TIMESTAMP else kind
    return TIMESTAMP_NTZ if kind == TIMESTAMP else kind


def name_of(kind: pa.DataType) -> str:
    """Spark's name of a type, for messages."""
    return "void" if kind == NULL else type_name(kind)


def is_decimal(kind: pa.DataType) -> bool:
    """Whether the type is a decimal."""
    return bool(pa.types.is_decimal128(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is an array."""
    return bool(pa.types.is_list(kind))


def is_exact_number(kind: pa.DataType) -> bool:
    """Whether the type is an integer or a decimal."""
    return kind in INTEGERS or is_decimal(kind)


def is_float(kind: pa.DataType) -> bool:
    """Whether the type is float or double."""
    return kind in (FLOAT, DOUBLE)


def decimal(precision: int, scale: int) -> pa.DataType | None:
    """A decimal type; None where Spark would cut digits off to stay within 38."""
    return pa.decimal128(precision, scale) if precision <= _MAX_DIGITS else None


def as_decimal(value: Typed, *, shrink: bool) -> pa.DataType:
    """The decimal type that Spark gives an exact number beside a decimal.

    Args:
        value: an integer or decimal.
        shrink: arithmetic and comparisons give an integer literal only the digits it has.
    """
    if is_decimal(value.type):
        return value.type
    if shrink and value.literal is not None:
        return pa.decimal128(len(value.literal.lstrip("-")), 0)
    return pa.decimal128(_DIGITS[value.type], 0)


def common_type(values: list[Typed], *, shrink: bool = False) -> pa.DataType | None:
    """The type to which Spark brings operands of a comparison, CASE, COALESCE or IN.

    Returns:
        The type; None when Spark refuses, or widens in a way that is not admitted.
    """
    kind: pa.DataType | None = NULL
    exact = [value for value in values if is_exact_number(value.type)]
    if any(is_decimal(value.type) for value in exact):
        others = {value.type for value in values if not is_exact_number(value.type)} - {NULL}
        if others == {DOUBLE}:
            return DOUBLE
        if any(value.type != NULL and not is_exact_number(value.type) for value in values):
            return None
        return _widest_decimal([as_decimal(value, shrink=shrink) for value in exact])
    for value in values:
        kind = _wider(kind, value.type)
        if kind is None:
            return None
    return kind


def _widest_decimal(kinds: list[pa.DataType]) -> pa.DataType | None:
    scale = max(kind.scale for kind in kinds)
    return decimal(max(kind.precision - kind.scale for kind in kinds) + scale, scale)


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if left in (right, NULL) or right == NULL:
        return right if left == NULL else left
    pair = {left, right}
    if left in INTEGERS and right in INTEGERS:
        return max(left, right, key=INTEGERS.index)
    if pair == {FLOAT, DOUBLE} or (DOUBLE in pair and pair & set(INTEGERS)):
        return DOUBLE
    if DATE in pair and pair & {TIMESTAMP, TIMESTAMP_NTZ}:
        return (pair - {DATE}).pop()
    if pair == {TIMESTAMP, TIMESTAMP_NTZ}:
        return TIMESTAMP  # the zone is UTC
    return None
