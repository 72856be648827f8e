"""Casts between types as Spark makes them, in DuckDB's SQL."""

from __future__ import annotations

import pyarrow as pa

from mview.execute.local.admitted.entries import SPARK_DECIDES, years_alike
from mview.execute.local.admitted.signatures import DATES
from mview.execute.local.admitted.spark_types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGERS,
    STRING,
    TIMESTAMP,
    Typed,
    duckdb_type,
    is_decimal,
    is_exact_number,
)
from mview.execute.local.admitted.times import time_of, units_of

_DAY = r"\d{4}-\d\d-\d\d"
#: How a string is written that both engines read alike; Spark decides on every other one.
_PLAIN: dict[pa.DataType, str] = {
    **dict.fromkeys(INTEGERS, r"[+-]?\d{1,19}"),
    DOUBLE: r"-?\d{1,15}(\.\d{1,15})?",
    DATE: _DAY,
    TIMESTAMP: _DAY + r"( ([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?)?",
}


_NUMBER = r"[+-]?\d{1,30}(\.\d{1,30})?"
#: What is none of a type, whatever Spark may read beside the plain form: its TRY_CAST gives NULL.
_WORDS = "[A-Za-z0-9]*[%s][A-Za-z0-9]*"
_NO_INTEGER = _WORDS % "A-Za-z"
_NO: dict[pa.DataType, str] = {
    **dict.fromkeys(INTEGERS, _NO_INTEGER),
    # Neither 1e3, 1d and 1f, nor NaN, Infinity and 0x1p3.
    DOUBLE: _WORDS % "BCGHJKLMOQRSUVWZbcghjklmoqrsuvwz",
    # A day may have anything behind it, and a time begins with T.
    DATE: "[A-Za-z][A-Za-z0-9]*",
    TIMESTAMP: "[A-SU-Za-su-z][A-Za-z0-9]*",
}
#: What Spark reads as true and as false, in any case; any other word is none of the two.
_TRUE, _FALSE = ("'t', 'true', 'y', 'yes', '1'", "'f', 'false', 'n', 'no', '0'")
_TRUTH = f"WHEN lower({{0}}) IN ({_TRUE}) THEN TRUE WHEN lower({{0}}) IN ({_FALSE}) THEN FALSE "
_UNKNOWN = f"WHEN {{0}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS BOOLEAN) END)"
_NO_DECIMAL = _WORDS % "A-DF-Za-df-z"


#: From half way between the largest float and what would be the next.
_TOO_LARGE = "3.4028235677973366e38::DOUBLE"

# By its decimal digits, of which those of small values stand far behind the point.
_DECIMAL = (
    "(CASE WHEN abs({0}) < 1 THEN {3}(round(CAST(CAST({0} AS VARCHAR) AS DECIMAL(38,37)), {1}) "
    "AS {2}) WHEN abs({0}) < 1e17 "
    "THEN {3}(round(CAST(CAST({0} AS VARCHAR) AS DECIMAL(38,20)), {1}) AS {2}) "
    f"WHEN isfinite({{0}}) THEN CAST({SPARK_DECIDES} AS {{2}}) END)"
)


def cast(value: Typed, kind: pa.DataType, word: str = "CAST") -> str:
    """The DuckDB text of a value in another type; raises there where Spark may.

    Args:
        word: DuckDB's for what may not fit into the type.
    """
    name = duckdb_type(kind)
    if value.type == kind:
        return value.sql
    if value.literal is not None and kind == DOUBLE and value.type != STRING:
        return f"CAST('{value.literal}' AS DOUBLE)"
    if is_decimal(value.type) and kind == DOUBLE:
        # By its digits: DuckDB's own cast divides, and rounds twice.
        return f"CAST(CAST({value.sql} AS VARCHAR) AS DOUBLE)"
    if kind == TIMESTAMP and value.type in INTEGERS:
        return time_of(1_000_000).format(value.sql)
    if kind in INTEGERS and value.type == TIMESTAMP:
        return f"{word}({units_of(1_000_000).format(value.sql)} AS {name})"
    if kind == BOOLEAN and value.type == STRING:
        return f"(CASE {_TRUTH}{_UNKNOWN}".format(value.sql)
    if kind == FLOAT and value.type == DOUBLE:
        # What is too large is infinite.
        infinite = f"CASE WHEN {value.sql} > 0 THEN 'inf' ELSE '-inf' END"
        far = f"abs({value.sql}) >= {_TOO_LARGE} AND NOT isnan({value.sql})"
        return f"(CASE WHEN {far} THEN ({infinite})::FLOAT ELSE ({value.sql})::FLOAT END)"
    if kind == FLOAT and is_decimal(value.type):
        return f"CAST(CAST({value.sql} AS VARCHAR) AS FLOAT)"
    if kind == BOOLEAN and is_exact_number(value.type):
        return f"({value.sql} <> 0)"
    if is_decimal(kind) and value.type == DOUBLE:
        return _DECIMAL.format(value.sql, kind.scale, name, word)
    if kind in INTEGERS and (is_decimal(value.type) or value.type == DOUBLE):
        return f"{word}(trunc({value.sql}) AS {name})"
    form = _NUMBER if is_decimal(kind) else _PLAIN.get(kind)
    if value.type == STRING and form is not None:
        plain = f"regexp_full_match({value.sql}, '{form}')"
        return (
            f"(CASE WHEN {plain} THEN CAST({value.sql} AS {name}) "
            f"WHEN {value.sql} IS NOT NULL THEN CAST({SPARK_DECIDES} AS {name}) END)"
        )
    if kind == STRING and is_decimal(value.type) and value.type.precision == value.type.scale:
        # DuckDB leaves out the zero before the point where no digit can stand there.
        digits = value.type.scale
        return f"CAST(CAST({value.sql} AS DECIMAL({digits + 1},{digits})) AS VARCHAR)"
    if kind == STRING and value.type in DATES:
        return years_alike(value.sql, f"CAST({value.sql} AS VARCHAR)")
    return f"{word}({value.sql} AS {name})"


def try_cast(value: Typed, kind: pa.DataType) -> str:
    """The DuckDB text of a value in another type, or NULL; raises where only Spark knows."""
    if kind == STRING or value.type != STRING:
        return cast(value, kind, "TRY_CAST")
    name, text = duckdb_type(kind), value.sql
    if kind == BOOLEAN:
        word = "WHEN regexp_full_match({0}, '[A-Za-z0-9]*') THEN NULL "
        return f"(CASE {_TRUTH}{word}{_UNKNOWN}".format(text)
    form, no = (_NUMBER, _NO_DECIMAL) if is_decimal(kind) else (_PLAIN[kind], _NO[kind])
    return (
        f"(CASE WHEN regexp_full_match({text}, '{form}') THEN TRY_CAST({text} AS {name}) "
        f"WHEN regexp_full_match({text}, '|{no}') THEN NULL "
        f"WHEN {text} IS NOT NULL THEN CAST({SPARK_DECIDES} AS {name}) END)"
    )
