"""Which operand types an operator is admitted for, and what Spark makes of them.

Each function takes the operands of one operator and gives its signature, or None: not admitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from mview.execute.local.admitted.spark_types import (
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
    is_list,
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
_MAX_DIGITS = 38
#: Digits to which Spark rounds what it negates.
_UNROUNDED = 34
#: Digits of a decimal whose sums, with four digits more, are within 38.
_MAX_AVERAGED = 23
#: Digits behind the point that doubles are rounded to.
_MAX_PLACES = 10
#: Days that may be added to a date: far from where either engine leaves its range.
_MAX_DAYS = 100_000
_MAX_MONTHS = 1_200

#: Places of a quotient that Spark keeps at least.
_LEAST_SCALE = 6

DATES = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_WEEK = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SMALL_NUMBERS = (TINYINT, SMALLINT, INT)
ORDERED = (BOOLEAN, STRING, BINARY, *INTEGERS, *DATES)


def one_of(kinds: Types, result: pa.DataType | None = None) -> Sign:
    """One operand of one of these types; the result has its type unless given."""

    def sign(values: list[Typed]) -> Signature | None:
        (value,) = values
        return Signature((value.type,), result or value.type) if value.type in kinds else None

    return sign


def as_times(kind: pa.DataType, result: pa.DataType) -> Sign:
    """Dates and times, brought to one type of them."""

    def sign(values: list[Typed]) -> Signature | None:
        fits = all(value.type in DATES for value in values)
        return Signature((kind,) * len(values), result) if fits else None

    return sign


def exactly(kinds: Types, result: pa.DataType) -> Sign:
    """Operands of exactly these types."""

    def sign(values: list[Typed]) -> Signature | None:
        return Signature(kinds, result) if tuple(v.type for v in values) == kinds else None

    return sign


def as_texts(sign: Sign, most: int = 1) -> Sign:
    """The same, but the first operands, up to so many, need not be strings: Spark makes them so."""

    def signed(values: list[Typed]) -> Signature | None:
        texts = [
            Typed(value.sql, STRING) if value.type != STRING and castable(value.type, STRING)
            else value
            for value in values[:most]
        ]  # fmt: skip
        return sign(values) or sign([*texts, *values[most:]])

    return signed


def all_of(kind: pa.DataType, result: pa.DataType) -> Sign:
    """Any number of operands of one type."""

    def sign(values: list[Typed]) -> Signature | None:
        same = all(value.type == kind for value in values)
        return Signature((kind,) * len(values), result) if same else None

    return sign


def _common(values: list[Typed], *, shrink: bool) -> pa.DataType | None:
    kind = common_type(values, shrink=shrink)
    return None if kind is None or kind == NULL or is_list(kind) else kind


def _handed_on(values: list[Typed]) -> pa.DataType | None:
    """The type of values that are not compared: lists of one type, too."""
    kind = common_type(values)
    return None if kind == NULL else kind


def compared(values: list[Typed]) -> Signature | None:
    """Operands of a comparison: brought to one type, as Spark does."""
    kind = _common(values, shrink=True) or _beside_text(values)
    return None if kind is None else Signature((kind,) * len(values), BOOLEAN)


def listed(values: list[Typed]) -> Signature | None:
    """Operands of IN: brought to one type."""
    kind = _common(values, shrink=False) or _beside_text(values)
    return None if kind is None else Signature((kind,) * len(values), BOOLEAN)


def _beside_text(values: list[Typed]) -> pa.DataType | None:
    """The type to which strings and numbers, or strings and truths, are brought to be compared."""
    kinds = {value.type for value in values} - {NULL}
    if STRING not in kinds:
        return None
    kinds.remove(STRING)
    if kinds and kinds <= set(INTEGERS):
        return BIGINT
    if kinds and all(kind == DOUBLE or is_exact_number(kind) for kind in kinds):
        return DOUBLE
    return BOOLEAN if kinds == {BOOLEAN} else None


def merged(values: list[Typed]) -> Signature | None:
    """Operands of COALESCE: brought to one type, which is the result's."""
    kind = _handed_on(values)
    return None if kind is None else Signature((kind,) * len(values), kind)


def not_float(values: list[Typed]) -> Signature | None:
    """As `merged`, but not float or double."""
    # 0.0 and -0.0 are equal: which of the two comes back is chance.
    signed = merged(values)
    unfit = signed is None or is_float(signed.result) or is_list(signed.result)
    return None if unfit else signed


def two_doubles(values: list[Typed]) -> Signature | None:
    """Two numbers, brought to a double."""
    fits = len(values) == 2 and common_type(values) == DOUBLE
    return Signature((DOUBLE, DOUBLE), DOUBLE) if fits else None


def chosen(values: list[Typed]) -> Signature | None:
    """Condition, value, condition, value, …, and the value of ELSE."""
    conditions, results = values[0:-1:2], [*values[1:-1:2], values[-1]]
    kind = _handed_on(results)
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
    decimals = is_decimal(left.type) or is_decimal(right.type)
    if not decimals or DOUBLE in (left.type, right.type):
        return _numbers(values)
    if not (is_exact_number(left.type) and is_exact_number(right.type)):
        return None
    result = _sum_type(as_decimal(left, shrink=True), as_decimal(right, shrink=True))
    return None if result is None else Signature((result, result), result)


def long_plus(values: list[Typed]) -> Signature | None:
    """Operands of + and - whose result Spark rounds to the places that 38 digits leave.

    What has no place in these types raises: Spark decides.
    """
    if (sides := _decimals(values)) is None or plus(values) is not None:
        return None
    scale = max(side.scale for side in sides)
    whole = max(side.precision - side.scale for side in sides) + 1
    wide = pa.decimal128(_MAX_DIGITS, scale)
    return Signature((wide, wide), _cut(whole, scale))


def long_times(values: list[Typed]) -> Signature | None:
    """Operands of * as in `long_plus`."""
    if (sides := _decimals(values)) is None or times(values) is not None:
        return None
    left, right = sides
    scale = left.scale + right.scale
    whole = left.precision + right.precision + 1 - scale
    if scale > _MAX_DIGITS:
        return None
    wide = pa.decimal128(_MAX_DIGITS, left.scale)
    return Signature((wide, right), _cut(whole, scale))


def _cut(whole: int, scale: int) -> pa.DataType:
    """The decimal of 38 digits that Spark makes of a longer one: places go first, but for six."""
    places = max(_MAX_DIGITS - whole, min(scale, _LEAST_SCALE))
    return pa.decimal128(_MAX_DIGITS, places)


def times(values: list[Typed]) -> Signature | None:
    """Operands of *."""
    left, right = values
    decimals = is_decimal(left.type) or is_decimal(right.type)
    if not decimals or DOUBLE in (left.type, right.type):
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
    kinds = {value.type for value in values}
    # Decimals among themselves are divided as decimals.
    plain = any(map(is_float, kinds)) or not any(is_decimal(kind) for kind in kinds)
    if plain and all(is_float(kind) or is_exact_number(kind) for kind in kinds):
        return Signature((DOUBLE, DOUBLE), DOUBLE)
    return None


def decimal_quotient(values: list[Typed]) -> Signature | None:
    """Operands of /: exact numbers, one of them a decimal at least."""
    if (sides := _decimals(values)) is None:
        return None
    left, right = sides
    scale = max(_LEAST_SCALE, left.scale + right.precision + 1)
    precision = left.precision - left.scale + right.scale + scale
    # Spark cuts scales where 38 digits do not hold all, and rounds to 38 places first.
    if precision >= _MAX_DIGITS or scale + right.precision >= _MAX_DIGITS:
        return None
    shifted = pa.decimal128(precision, scale + right.scale)
    return Signature((shifted, right), pa.decimal128(precision, scale))


def long_quotient(values: list[Typed]) -> Signature | None:
    """Operands of / as for `decimal_quotient`, but of digits that Spark cuts or rounds twice.

    To round to 38 places first changes nothing where the divisor has no more digits than are left
    behind the last place then. What has no place in these types raises: Spark decides.
    """
    if (sides := _decimals(values)) is None or decimal_quotient(values) is not None:
        return None
    left, right = sides
    scale = max(_LEAST_SCALE, left.scale + right.precision + 1)
    whole = left.precision - left.scale + right.scale
    if whole + scale > _MAX_DIGITS:
        scale = max(_MAX_DIGITS - whole, _LEAST_SCALE)
    digits = min(right.precision, _MAX_DIGITS - scale)
    if digits < max(right.scale, 1) or scale + right.scale > _MAX_DIGITS:
        return None
    precision = min(whole + scale, _MAX_DIGITS)
    shifted = pa.decimal128(precision, scale + right.scale)
    divisor = pa.decimal128(digits, right.scale)
    return Signature((shifted, divisor), pa.decimal128(precision, scale))


def _decimals(values: list[Typed]) -> list[pa.DataType] | None:
    """Both operands of / as decimals; None where it is not one of decimals."""
    kinds = [value.type for value in values]
    if not any(map(is_decimal, kinds)) or not all(map(is_exact_number, kinds)):
        return None
    return [as_decimal(value, shrink=True) for value in values]


def decimal_rest(values: list[Typed]) -> Signature | None:
    """Operands of %: exact numbers, one of them a decimal at least."""
    if (sides := _decimals(values)) is None:
        return None
    whole = [side.precision - side.scale for side in sides]
    scale = max(side.scale for side in sides)
    wide, result = decimal(max(whole) + scale, scale), decimal(min(whole) + scale, scale)
    return None if wide is None or result is None else Signature((wide, wide), result)


def with_double(values: list[Typed]) -> Signature | None:
    """Two numbers, one of them a double."""
    return spread(values) if DOUBLE in {value.type for value in values} else None


def as_wide(kind: pa.DataType) -> Sign:
    """Two integers of which the wider type is this one."""

    def sign(values: list[Typed]) -> Signature | None:
        signed = integers(values)
        return signed if signed is not None and signed.result == kind else None

    return sign


def shifted(values: list[Typed]) -> Signature | None:
    """An integer, and a literal number of bits within it."""
    value, bits = values
    if value.type not in INTEGERS or not is_count(bits):
        return None
    kind = BIGINT if value.type == BIGINT else INT
    fits = int(bits.literal or 0) < (64 if kind == BIGINT else 32)
    return Signature((kind, INT), kind) if fits else None


def averaged_decimals(values: list[Typed]) -> Signature | None:
    """The operand of avg: a decimal whose sum has room for four digits more."""
    (value,) = values
    if not is_decimal(value.type) or value.type.precision > _MAX_AVERAGED:
        return None
    result = pa.decimal128(value.type.precision + 4, value.type.scale + 4)
    return Signature((value.type,), result)


def signed(values: list[Typed]) -> Signature | None:
    """The operand of sign, which is a double."""
    (value,) = values
    fits = is_exact_number(value.type) or value.type == DOUBLE
    return Signature((DOUBLE,), DOUBLE) if fits else None


def whole_quotient(values: list[Typed]) -> Signature | None:
    """Operands of DIV."""
    return Signature((BIGINT, BIGINT), BIGINT) if integers(values) else None


def number(values: list[Typed]) -> Signature | None:
    """One number; Spark rounds long decimals to 34 digits here."""
    (value,) = values
    short = is_decimal(value.type) and value.type.precision <= _UNROUNDED
    fits = value.type in INTEGERS or is_float(value.type) or short
    return Signature((value.type,), value.type) if fits else None


def any_to(result: pa.DataType) -> Sign:
    """One operand of any type; the result has one type."""

    def sign(values: list[Typed]) -> Signature | None:
        return Signature((values[0].type,), result) if len(values) == 1 else None

    return sign


def several(values: list[Typed]) -> Signature | None:
    """Two operands or more of types that can be told apart alike in both engines."""
    fits = len(values) > 1 and all(_is_discrete(value.type) for value in values)
    return Signature(tuple(value.type for value in values), BIGINT) if fits else None


def _is_discrete(kind: pa.DataType) -> bool:
    return kind in ORDERED or is_decimal(kind)


def gathered(values: list[Typed]) -> Signature | None:
    """The operand of collect_list and collect_set."""
    (value,) = values
    fits = _is_discrete(value.type) and value.type not in (BINARY, TIMESTAMP, TIMESTAMP_NTZ)
    return Signature((value.type,), pa.list_(value.type)) if fits else None


def any_list(result: pa.DataType) -> Sign:
    """A list; the result has one type."""

    def sign(values: list[Typed]) -> Signature | None:
        (value,) = values
        return Signature((value.type,), result) if is_list(value.type) else None

    return sign


def list_of(values: list[Typed]) -> Signature | None:
    """The elements of a list, brought to one type."""
    kind = _common(values, shrink=False)
    return None if kind is None else Signature((kind,) * len(values), pa.list_(kind))


def ordered_list(values: list[Typed]) -> Signature | None:
    """A list whose elements are told apart and sorted alike in both engines."""
    (value,) = values
    fits = is_list(value.type) and _is_discrete(value.type.value_type)
    return Signature((value.type,), value.type) if fits else None


def element_of(values: list[Typed]) -> Signature | None:
    """The same; the result is one of its elements."""
    fits = ordered_list(values)
    return None if fits is None else Signature(fits.operands, fits.result.value_type)


def list_and_element(result: pa.DataType | None) -> Sign:
    """A list as in `ordered_list` and a value of its elements' type; None: the result is a list."""

    def sign(values: list[Typed]) -> Signature | None:
        many, element = values
        if ordered_list([many]) is None:
            return None
        kind = many.type.value_type
        if element.type == NULL or common_type([Typed("", kind), element]) != kind:
            return None
        return Signature((many.type, kind), result or many.type)

    return sign


def joined(values: list[Typed]) -> Signature | None:
    """A list of strings, and the literal that comes between them."""
    kinds = (pa.list_(STRING), STRING)
    fits = tuple(value.type for value in values) == kinds and values[1].literal is not None
    return Signature(kinds, STRING) if fits else None


def separated(values: list[Typed]) -> Signature | None:
    """The operands of concat_ws: as in `joined`, but the literal first."""
    by, many = values
    fits = joined([many, by])
    return None if fits is None else Signature((STRING, many.type), STRING)


def spread(values: list[Typed]) -> Signature | None:
    """Operands of stddev, median and such: exact numbers, which Spark takes as doubles too."""
    fits = all(value.type == DOUBLE or is_exact_number(value.type) for value in values)
    return Signature((DOUBLE,) * len(values), DOUBLE) if fits else None


def percentile(values: list[Typed]) -> Signature | None:
    """A number, and a literal part of 1."""
    value, part = values
    plain = part.literal is not None and part.type != STRING and 0 <= float(part.literal) <= 1
    return spread([value, part]) if plain else None


def squared(values: list[Typed]) -> Signature | None:
    """A number and the literal 2."""
    value, power = values
    return spread([value, power]) if power.type == INT and power.literal == "2" else None


def rounded_double(values: list[Typed]) -> Signature | None:
    """A double, and a literal number of digits."""
    if [value.type for value in values] != [DOUBLE, INT] or not is_count(values[1]):
        return None
    return Signature((DOUBLE, INT), DOUBLE) if int(values[1].literal or 0) <= _MAX_PLACES else None


def rounded_before(values: list[Typed]) -> Signature | None:
    """An exact number, and a literal number of digits before the point."""
    value, digits = values[0].type, values[1]
    if digits.type != INT or not re.fullmatch(r"-[1-9]", digits.literal or ""):
        return None
    if value in INTEGERS:
        return Signature((value, INT), value)
    if not is_decimal(value):
        return None
    places = max(value.precision - value.scale + 1, 1 - int(digits.literal or 0))
    result = decimal(places, 0)
    return None if result is None else Signature((value, INT), result)


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
    """A string with a literal start, also from its end, and a literal length."""
    if len(values) not in (2, 3):
        return None
    text, start = values[:2]
    begins = start.type == INT and (start.literal or "0") != "0"
    # Zero counts from elsewhere in DuckDB.
    if text.type != STRING or not begins or not all(map(is_count, values[2:])):
        return None
    return Signature((STRING, INT, INT)[: len(values)], STRING)


def sliced_by(values: list[Typed]) -> Signature | None:
    """A string, and any start and length."""
    fits = values[0].type == STRING and all(v.type in _SMALL_NUMBERS for v in values[1:])
    return Signature((STRING, INT, INT)[: len(values)], STRING) if fits else None


def first_parts(values: list[Typed]) -> Signature | None:
    """A string, a literal separator of one character, and a literal number that is not 0."""
    text, by, number = values
    plain = by.type == STRING and len(by.literal or "") == 1 and number.type == INT
    counts = re.fullmatch(r"-?[1-9]\d{0,3}", number.literal or "")
    fits = text.type == STRING and plain and counts
    return Signature((STRING, STRING, INT), STRING) if fits else None


def is_count(value: Typed) -> bool:
    """Whether it is a literal integer that is not negative."""
    return value.type == INT and value.literal is not None and value.literal.isdigit()


def counted(values: list[Typed]) -> Signature | None:
    """A string and a literal number of characters or times."""
    fits = values[0].type == STRING and is_count(values[1])
    return Signature((STRING, INT), STRING) if fits else None


def padded(values: list[Typed]) -> Signature | None:
    """A string, a literal length, and what fills it up: a literal that is not empty."""
    if len(values) != 3 or values[2].type != STRING or not values[2].literal:
        return None
    fits = values[0].type == STRING and is_count(values[1])
    return Signature((STRING, INT, STRING), STRING) if fits else None


def parted(values: list[Typed]) -> Signature | None:
    """A string, a literal separator that is not empty, and the literal number of a part."""
    text, by, number = values
    plain = by.type == STRING and by.literal and is_count(number) and number.literal != "0"
    return Signature((STRING, STRING, INT), STRING) if text.type == STRING and plain else None


def cut(values: list[Typed]) -> Signature | None:
    """A string, and a literal separator that is no more than that as a regular expression."""
    text, by = values
    plain = by.type == STRING and re.fullmatch(
        r"[\w \-,;:/#=&@%!~<>\"]+", by.literal or "", re.ASCII
    )
    fits = text.type == STRING and plain
    return Signature((STRING, STRING), pa.list_(STRING)) if fits else None


def cut_by_sign(values: list[Typed]) -> Signature | None:
    """A string, and a literal sign that means something else where it is not escaped: `'\\\\|'`."""
    text, by = values
    plain = by.type == STRING and re.fullmatch(r"\\[.|$^*+?()\[\]{}/-]", by.literal or "")
    fits = text.type == STRING and plain
    return Signature((STRING, STRING), pa.list_(STRING)) if fits else None


def small_letters(values: list[Typed]) -> Signature | None:
    """A string and a literal ILIKE pattern of ASCII."""
    return pattern(values) if (values[1].literal or "").isascii() else None


def pattern(values: list[Typed]) -> Signature | None:
    """A string and a literal LIKE pattern."""
    text, pattern = values
    # A backslash escapes in Spark only, and what it may escape differs.
    if text.type != STRING or pattern.type != STRING or pattern.literal is None:
        return None
    return None if "\\" in pattern.literal else Signature((STRING, STRING), BOOLEAN)


def any_pattern(values: list[Typed]) -> Signature | None:
    """A string and a LIKE pattern that is no literal."""
    text, by = values
    fits = text.type == by.type == STRING and by.literal is None
    return Signature((STRING, STRING), BOOLEAN) if fits else None


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


def either(values: list[Typed]) -> Signature | None:
    """Anything, and two operands that are brought to one type."""
    kind = _handed_on(values[1:])
    return None if kind is None else Signature((values[0].type, kind, kind), kind)


def whole(values: list[Typed]) -> Signature | None:
    """The operand of floor and ceil."""
    (value,) = values
    if is_decimal(value.type) and value.type.scale:
        result = decimal(value.type.precision - value.type.scale + 1, 0)
        # One digit more: 99.9 becomes 100.
        wider = decimal(value.type.precision + 1, value.type.scale)
        return None if result is None or wider is None else Signature((wider,), result)
    return Signature((DOUBLE,), BIGINT) if value.type == DOUBLE else None


def rounded(values: list[Typed]) -> Signature | None:
    """The operands of round: an exact number, and a literal number of digits."""
    value, digits = values[0].type, 0
    if len(values) == 2:
        if not is_count(values[1]):
            return None
        digits = int(values[1].literal or 0)
    rest = (INT,) * (len(values) - 1)
    if value in INTEGERS:
        return Signature((value, *rest), value)
    if not is_decimal(value):
        return None
    # Where places are left out, what is carried has room.
    longer = min(value.precision + 1, _MAX_DIGITS if digits < value.scale else _MAX_DIGITS + 1)
    scale, wider = min(digits, value.scale), decimal(longer, value.scale)
    result = decimal(value.precision - value.scale + 1 + scale, scale)
    return None if result is None or wider is None else Signature((wider, *rest), result)


def dated(values: list[Typed]) -> Signature | None:
    """The operand of to_date."""
    (value,) = values
    return Signature((DATE,), DATE) if castable(value.type, DATE) else None


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether CAST is admitted between two types."""
    if source in (target, NULL):
        return True
    if source == STRING:
        return target in (*INTEGERS, BOOLEAN, DOUBLE, DATE, TIMESTAMP) or is_decimal(target)
    if source in INTEGERS and target == TIMESTAMP:
        return True
    if is_exact_number(source):
        return bool(is_exact_number(target) or target in (DOUBLE, FLOAT, STRING, BOOLEAN))
    if source == DOUBLE:
        return target in (*INTEGERS, FLOAT) or (is_decimal(target) and target.scale <= _MAX_PLACES)
    if source == BOOLEAN:
        return target in (*INTEGERS, STRING)
    if source == FLOAT:
        return bool(target == DOUBLE)
    if source == TIMESTAMP and target in INTEGERS:
        return True
    return source in DATES and target in (*DATES, STRING)


def moved_date(values: list[Typed]) -> Signature | None:
    """A date, or the day of a time, and a literal number of days."""
    day, days = values
    plain = day.type in DATES and days.type == INT and days.literal is not None
    fits = plain and abs(int(days.literal or 0)) <= _MAX_DAYS
    return Signature((DATE, INT), DATE) if fits else None


def day_after(values: list[Typed]) -> Signature | None:
    """A date, or the day of a time, and the literal name of a day of the week."""
    day, name = values
    text = (name.literal or "").lower()
    known = name.type == STRING and any(text in (d, d[:3], d[:2]) for d in _WEEK)
    return Signature((DATE, STRING), DATE) if known and day.type in DATES else None


def moved_by_days(values: list[Typed]) -> Signature | None:
    """A date, or the day of a time, and any number of days."""
    fits = values[0].type in DATES and values[1].type in _SMALL_NUMBERS
    return Signature((DATE, INT), DATE) if fits else None


def moved_day_by(values: list[Typed]) -> Signature | None:
    """Operands of + and -: a date and any number of days."""
    return moved_by_days(values) if values[0].type == DATE else None


def moved_day(values: list[Typed]) -> Signature | None:
    """Operands of + and -: a date and a literal number of days."""
    return moved_date(values) if values[0].type == DATE else None


def moved_months(values: list[Typed]) -> Signature | None:
    """A date, or the day of a time, and a literal number of months."""
    day, months = values
    plain = day.type in DATES and months.type == INT and months.literal is not None
    fits = plain and abs(int(months.literal or 0)) <= _MAX_MONTHS
    return Signature((DATE, INT), DATE) if fits else None
