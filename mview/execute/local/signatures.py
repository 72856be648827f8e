"""Which operand types an operator is admitted for, and what Spark makes of them.

Each function takes the operands of one operator and gives its signature, or None: not admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from mview.execute.local.spark_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    INTEGERS,
    NULL,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    Typed,
    as_decimal,
    common_type,
    decimal,
    is_decimal,
    is_exact_number,
    is_float,
)

Types = tuple[pa.DataType, ...]


@dataclass(frozen=True)
class Signature:
    """Types that the operands are cast to, and the type of the result."""

    operands: Types
    result: pa.DataType


Sign = Callable[[list[Typed]], Signature | None]

#: Digits of the decimals that DuckDB keeps in 64 bits.
_SHORT = 18
#: Days that may be added to a date: far from where either engine leaves its range.
_MAX_DAYS = 100_000

DATES = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
ORDERED = (BOOLEAN, STRING, BINARY, *INTEGERS, *DATES)


def one_of(kinds: Types, result: pa.DataType | None = None) -> Sign:
    """One operand of one of these types; the result has its type unless given."""

    def sign(values: list[Typed]) -> Signature | None:
        (value,) = values
        return Signature((value.type,), result or value.type) if value.type in kinds else None

    return sign


def exactly(kinds: Types, result: pa.DataType) -> Sign:
    """Operands of exactly these types."""

    def sign(values: list[Typed]) -> Signature | None:
        return Signature(kinds, result) if tuple(v.type for v in values) == kinds else None

    return sign


def all_of(kind: pa.DataType, result: pa.DataType) -> Sign:
    """Any number of operands of one type."""

    def sign(values: list[Typed]) -> Signature | None:
        same = all(value.type == kind for value in values)
        return Signature((kind,) * len(values), result) if same else None

    return sign


def _common(values: list[Typed], *, shrink: bool) -> pa.DataType | None:
    kind = common_type(values, shrink=shrink)
    return None if kind == NULL else kind


def compared(values: list[Typed]) -> Signature | None:
    """Operands of a comparison: brought to one type, as Spark does."""
    kind = _common(values, shrink=True)
    return None if kind is None else Signature((kind,) * len(values), BOOLEAN)


def listed(values: list[Typed]) -> Signature | None:
    """Operands of IN: brought to one type."""
    kind = _common(values, shrink=False)
    return None if kind is None else Signature((kind,) * len(values), BOOLEAN)


def merged(values: list[Typed]) -> Signature | None:
    """Operands of COALESCE: brought to one type, which is the result's."""
    kind = _common(values, shrink=False)
    return None if kind is None else Signature((kind,) * len(values), kind)


def not_float(values: list[Typed]) -> Signature | None:
    """As `merged`, but not float or double."""
    # 0.0 and -0.0 are equal: which of the two comes back is chance.
    signed = merged(values)
    return None if signed is None or is_float(signed.result) else signed


def chosen(values: list[Typed]) -> Signature | None:
    """Condition, value, condition, value, …, and the value of ELSE."""
    conditions, results = values[0:-1:2], [*values[1:-1:2], values[-1]]
    kind = _common(results, shrink=False)
    if kind is None or any(c.type != BOOLEAN for c in conditions):
        return None
    return Signature((BOOLEAN, kind) * len(conditions) + (kind,), kind)


def _sum_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return decimal(whole + scale + 1, scale)


def _product_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    return decimal(left.precision + right.precision + 1, left.scale + right.scale)


def plus(values: list[Typed]) -> Signature | None:
    """Operands of + and -."""
    left, right = values
    if not (is_decimal(left.type) or is_decimal(right.type)):
        return _numbers(values)
    if not (is_exact_number(left.type) and is_exact_number(right.type)):
        return None
    result = _sum_type(as_decimal(left, shrink=True), as_decimal(right, shrink=True))
    return None if result is None else Signature((result, result), result)


def times(values: list[Typed]) -> Signature | None:
    """Operands of *."""
    left, right = values
    if not (is_decimal(left.type) or is_decimal(right.type)):
        return _numbers(values)
    if not (is_exact_number(left.type) and is_exact_number(right.type)):
        return None
    operands = (as_decimal(left, shrink=True), as_decimal(right, shrink=True))
    result = _product_type(*operands)
    if result is None:
        return None
    if max(kind.precision for kind in operands) <= _SHORT < result.precision - 1:
        # DuckDB multiplies two 64-bit decimals in 64 bits: make one of them wider first.
        operands = (pa.decimal128(_SHORT + 1, operands[0].scale), operands[1])
    return Signature(operands, result)


def _numbers(values: list[Typed]) -> Signature | None:
    kind = _common(values, shrink=False)
    if kind is None or not (kind in INTEGERS or is_float(kind)):
        return None
    return Signature((kind, kind), kind)


def integers(values: list[Typed]) -> Signature | None:
    """Two integers, brought to the wider type."""
    signed = _numbers(values)
    return signed if signed is not None and signed.result in INTEGERS else None


def quotient(values: list[Typed]) -> Signature | None:
    """Operands of /: numbers that Spark divides as doubles."""
    kinds = (*INTEGERS, DOUBLE)
    if all(value.type in kinds for value in values):
        return Signature((DOUBLE, DOUBLE), DOUBLE)
    return None


def whole_quotient(values: list[Typed]) -> Signature | None:
    """Operands of DIV."""
    return Signature((BIGINT, BIGINT), BIGINT) if integers(values) else None


def number(values: list[Typed]) -> Signature | None:
    """One number; Spark rounds long decimals to 34 digits here."""
    (value,) = values
    short = is_decimal(value.type) and value.type.precision <= _SHORT
    fits = value.type in INTEGERS or is_float(value.type) or short
    return Signature((value.type,), value.type) if fits else None


def any_to(result: pa.DataType) -> Sign:
    """Operands of any type; the result has one type."""

    def sign(values: list[Typed]) -> Signature | None:
        return Signature(tuple(value.type for value in values), result)

    return sign


def total(values: list[Typed]) -> Signature | None:
    """The operand of sum."""
    (value,) = values
    if value.type in INTEGERS:
        return Signature((value.type,), BIGINT)
    if is_decimal(value.type):
        result = pa.decimal128(min(38, value.type.precision + 10), value.type.scale)
        return Signature((value.type,), result)
    return None


def sliced(values: list[Typed]) -> Signature | None:
    """A string with a literal start and length."""
    text, start, _ = values
    # Zero and negative positions count from elsewhere in DuckDB.
    plain = [v.type == INT and v.literal is not None and v.literal.isdigit() for v in values[1:]]
    if text.type != STRING or not all(plain) or int(start.literal or 0) < 1:
        return None
    return Signature((STRING, INT, INT), STRING)


def pattern(values: list[Typed]) -> Signature | None:
    """A string and a literal LIKE pattern."""
    text, pattern = values
    # A backslash escapes in Spark only, and what it may escape differs.
    if text.type != STRING or pattern.type != STRING or pattern.literal is None:
        return None
    return None if "\\" in pattern.literal else Signature((STRING, STRING), BOOLEAN)


def extreme(values: list[Typed]) -> Signature | None:
    """The operand of min and max: a type of total order."""
    (value,) = values
    fits = value.type in ORDERED or is_decimal(value.type)
    return Signature((value.type,), value.type) if fits else None


def averaged(values: list[Typed]) -> Signature | None:
    """The operand of avg: Spark adds up doubles, which is exact for integers below 2^53."""
    (value,) = values
    fits = value.type in (TINYINT, SMALLINT, INT)
    return Signature((DOUBLE,), DOUBLE) if fits else None


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether CAST is admitted between two types."""
    if source in (target, NULL):
        return True
    if source in INTEGERS:
        return bool(is_exact_number(target) or target in (DOUBLE, STRING))
    if is_decimal(source):
        return bool(is_decimal(target) or target == STRING)
    if source == BOOLEAN:
        return target in (*INTEGERS, STRING)
    if source == FLOAT:
        return bool(target == DOUBLE)
    return bool(source in DATES and target in DATES)


def moved_date(values: list[Typed]) -> Signature | None:
    """A date and a literal number of days."""
    day, days = values
    plain = day.type == DATE and days.type == INT and days.literal is not None
    fits = plain and abs(int(days.literal or 0)) <= _MAX_DAYS
    return Signature((DATE, INT), DATE) if fits else None
