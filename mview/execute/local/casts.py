"""Casts between types as Spark makes them, in DuckDB's SQL."""

from __future__ import annotations

import pyarrow as pa

from mview.execute.local.entries import SPARK_DECIDES
from mview.execute.local.spark_types import (
    DATE,
    DOUBLE,
    INTEGERS,
    STRING,
    TIMESTAMP,
    Typed,
    duckdb_type,
    is_decimal,
)

_DAY = r"\d{4}-\d\d-\d\d"
#: How a string is written that both engines read alike; Spark decides on every other one.
_PLAIN: dict[pa.DataType, str] = {
    **dict.fromkeys(INTEGERS, r"[+-]?\d{1,19}"),
    DOUBLE: r"-?\d{1,15}(\.\d{1,15})?",
    DATE: _DAY,
    TIMESTAMP: _DAY + r"( ([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?)?",
}


def cast(value: Typed, kind: pa.DataType) -> str:
    """The DuckDB text of a value in another type; raises there where Spark may."""
    name = duckdb_type(kind)
    if value.type == kind:
        return value.sql
    if value.literal is not None and kind == DOUBLE and value.type != STRING:
        return f"CAST('{value.literal}' AS DOUBLE)"
    if is_decimal(value.type) and kind == DOUBLE:
        # By its digits: DuckDB's own cast divides, and rounds twice.
        return f"CAST(CAST({value.sql} AS VARCHAR) AS DOUBLE)"
    if kind in INTEGERS and (is_decimal(value.type) or value.type == DOUBLE):
        return f"CAST(trunc({value.sql}) AS {name})"
    if value.type == STRING and kind in _PLAIN:
        plain = f"regexp_full_match({value.sql}, '{_PLAIN[kind]}')"
        return (
            f"(CASE WHEN {plain} THEN CAST({value.sql} AS {name}) "
            f"WHEN {value.sql} IS NOT NULL THEN CAST({SPARK_DECIDES} AS {name}) END)"
        )
    return f"CAST({value.sql} AS {name})"
