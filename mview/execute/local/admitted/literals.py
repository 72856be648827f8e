"""Literals: numbers, strings, and strings that stand for dates, as Spark types them."""

from __future__ import annotations

import re

import pyarrow as pa
from sqlglot import exp

from mview.execute.local.admitted.spark_types import (
    BIGINT,
    DATE,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Typed,
    duckdb_type,
    name_of,
)
from mview.execute.refusal import NotAdmittedError

#: So small that no date leaves the range of either engine.
_SMALL = re.compile(r"-?\d{1,6}")
_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
#: Months of what is counted in months, which end with the month where it is shorter.
_MONTHS = {"MONTH": 1, "YEAR": 12}
_MOST_MONTHS = 1_200
_DATE_TEXT = re.compile(r"\d{4}-\d\d-\d\d")
_TIME_TEXT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?")


def number_literal(text: str) -> Typed:
    """A number as Spark reads it: the smallest of int, bigint and decimal that holds it."""
    digits = text.lstrip("-")
    if digits.isdigit():
        value = int(text)
        bits = 32 if -(1 << 31) <= value < 1 << 31 else 64
        if -(1 << 63) <= value < 1 << 63:
            kind = INT if bits == 32 else BIGINT
            return Typed(f"CAST({value} AS {duckdb_type(kind)})", kind, str(value))
    whole, _, fraction = digits.partition(".")
    if not fraction.isdigit() or not (whole.isdigit() or not whole):
        raise NotAdmittedError("type", f"number {text}")
    precision = max(len((whole + fraction).lstrip("0")), len(fraction))
    if precision > 38:
        raise NotAdmittedError("type", f"number {text}")
    kind = pa.decimal128(precision, len(fraction))
    return Typed(f"CAST('{text}' AS {duckdb_type(kind)})", kind, text)


def text_literal(text: str) -> Typed:
    """A string without characters that one of the two engines could read as an escape."""
    if not text.isprintable():
        raise NotAdmittedError("type", "a string with a control character")
    return Typed("'" + text.replace("'", "''") + "'", STRING, text)


def fixed_interval(node: exp.Interval) -> tuple[int, str]:
    """Number and unit of an interval: MONTH, or of always the same length, with days of UTC.

    Raises:
        NotAdmittedError: it is long, a mixture, or no plain literal.
    """
    number, unit = node.this, node.args.get("unit")
    plain = isinstance(number, exp.Literal) and _SMALL.fullmatch(number.name)
    name = unit.name.upper().removesuffix("S") if isinstance(unit, exp.Var) else ""
    if plain and abs(months := int(number.name) * _MONTHS.get(name, 0)) <= _MOST_MONTHS:
        if name in _MONTHS:
            return months, "MONTH"
        if name in _UNITS:
            return int(number.name), name
    raise NotAdmittedError("type", node.sql(dialect="spark"))


def fold_dates(values: list[Typed]) -> list[Typed]:
    """Spark reads a string beside a date as a date; here only plainly written literals."""
    kinds = {value.type for value in values} & {DATE, TIMESTAMP, TIMESTAMP_NTZ}
    if len(kinds) != 1:
        return values
    (kind,) = kinds
    return [as_date(v, kind) if v.type == STRING and v.literal is not None else v for v in values]


def as_date(value: Typed, kind: pa.DataType) -> Typed:
    """A plainly written string literal as a date or time.

    Raises:
        NotAdmittedError: it is written otherwise, or `kind` is another type.
    """
    text = value.literal or ""
    plain = _DATE_TEXT.fullmatch(text) or (kind != DATE and _TIME_TEXT.fullmatch(text))
    if kind not in (DATE, TIMESTAMP, TIMESTAMP_NTZ) or not plain:
        raise NotAdmittedError("type", f"string '{text}' read as a {name_of(kind)}")
    return Typed(f"CAST('{text}' AS {duckdb_type(kind)})", kind)
