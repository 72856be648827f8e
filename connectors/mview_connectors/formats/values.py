"""From values of messages to Arrow arrays, strictly: what does not fit raises, nothing is rounded.

Every function takes the values of one column, None for NULL, and raises ValueError with the first
value that does not fit. How a format writes a type is the format's business: this module holds what
is alike in all of them.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from itertools import chain
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import UNCHANGED
from mview.errors import shown
from mview.schema import Column

_NONE = type(None)

#: A double holds any decimal number of up to 15 digits and gives it back; see IEEE 754.
_DOUBLE_DIGITS = 15

#: Wider than any decimal(38,s); what has more digits, or an exponent beyond, is refused unread.
_EXACT = Context(prec=100, Emin=-100, Emax=100, traps=[Inexact, InvalidOperation])

_MOST_DIGITS = 38

#: Beyond this a double does not have all integers.
_DOUBLE_WHOLE = 2**53

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

# The range that Spark, Delta and DuckDB all hold: years 1 to 9999.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_US = 86_400_000_000
_FIRST_US, _LAST_US = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1


#: Converts the values of one column.
Converter = Callable[[Sequence[Any], Column], pa.Array]

Family = Literal[
    "boolean", "integer", "float", "decimal", "text", "date", "timestamp", "binary", "list"
]

_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], Family], ...] = (
    (pa.types.is_string, "text"),
    (pa.types.is_integer, "integer"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_floating, "float"),
    (pa.types.is_decimal, "decimal"),
    (pa.types.is_date, "date"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_list, "list"),
)


def convert(
    values: Sequence[Any], column: Column, converters: Mapping[Family, Converter]
) -> pa.Array:
    """An Arrow array of the column's type; UNCHANGED becomes null, as its caller notes it.

    Args:
        values: raw values.
        column: its type chooses the converter.
        converters: those of the format, where it writes a family of types in a way of its own.

    Raises:
        ValueError: a value does not fit; the message names it.
    """
    if UNCHANGED in values:
        values = [None if value is UNCHANGED else value for value in values]
    family = next((family for belongs, family in _FAMILIES if belongs(column.type)), None)
    if family is None:
        raise ValueError(f"values of type {column.type} cannot be read")
    if family == "list":
        return lists(values, column, lambda items, element: convert(items, element, converters))
    return {**_CONVERTERS, **converters}[family](values, column)


def misfit(value: Any, reason: str) -> ValueError:
    """The error of one value; long values are cut."""
    return ValueError(f"{shown(value, 80)} {reason}")


def only(values: Sequence[Any], allowed: set[type], reason: str) -> set[type]:
    """The JSON types that occur; raises when one is not allowed."""
    kinds = set(map(type, values))
    if not kinds <= allowed:
        raise misfit(next(v for v in values if type(v) not in allowed), reason)
    return kinds


def _built(
    build: Callable[[Sequence[Any]], pa.Array], values: Sequence[Any], what: str
) -> pa.Array:
    """`build(values)`; when Arrow refuses them, the error names the first value it refuses."""
    try:
        return build(values)
    except (pa.ArrowException, OverflowError):
        for value in values:
            try:
                build([value])
            except (pa.ArrowException, OverflowError):
                raise misfit(value, f"does not fit {what}") from None
        raise ValueError(f"the values do not fit {what} together") from None


def booleans(values: Sequence[Any]) -> pa.Array:
    """true, false, and 0 and 1 as databases without booleans write them."""
    kinds = only(values, {bool, int, _NONE}, "is not a boolean")
    if int in kinds:
        bad = [v for v in values if type(v) is int and v not in (0, 1)]
        if bad:
            raise misfit(bad[0], "is not a boolean")
        values = [None if v is None else bool(v) for v in values]
    return pa.array(values, pa.bool_())


def integers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """JSON integers, -0 too; any other JSON number is refused, as it may have lost digits.

    So is true: a program that makes it of tinyint(1) has done so of 2, too.
    """
    kinds = only(values, {int, Decimal, _NONE}, "is not an integer")
    if Decimal in kinds:
        only([v for v in values if type(v) is not Decimal or v], {int, _NONE}, "is not an integer")
        values = [None if v is None else int(v) for v in values]
    return _built(lambda part: pa.array(part, kind), values, str(kind))


def floats(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """JSON numbers, and the texts NaN, Infinity and -Infinity.

    A number becomes the nearest of the type. What is none there is refused: beyond its range, too
    small to be told from zero, or a whole number that the type does not give back.
    """
    kinds = only(values, {float, int, Decimal, str, _NONE}, "is not a number")
    if str in kinds:
        bad = [v for v in values if type(v) is str and v not in _NOT_FINITE]
        if bad:
            raise misfit(bad[0], "is not a number")
        values = [_NOT_FINITE[v] if type(v) is str else v for v in values]
    doubles = pa.array(
        [_double(v, kind) if type(v) in _ROUNDED else v for v in values], pa.float64()
    )
    if kind != pa.float32():
        return doubles
    narrow = doubles.cast(kind)
    lost = pc.or_(
        pc.and_(pc.is_inf(narrow), pc.invert(pc.is_inf(doubles))),
        pc.and_(pc.equal(narrow, 0), pc.not_equal(doubles, 0)),
    )
    if pc.any(lost).as_py():
        raise misfit(values[pc.index(lost, True).as_py()], f"does not fit {kind}")
    return narrow


#: Types of numbers of which a double may not have all digits.
_ROUNDED = (int, Decimal)


def _double(value: int | Decimal, kind: pa.DataType) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise misfit(value, f"does not fit {kind}") from None
    lost = math.isinf(number) or (value and not number)
    if type(value) is int and abs(value) > _DOUBLE_WHOLE:
        # Writers print a large double exactly, or the shortest digits that stand for it.
        lost = value not in (int(number), Decimal(repr(number)))
    if lost:
        raise misfit(value, f"does not fit {kind}")
    return number


def texts(values: Sequence[Any]) -> pa.Array:
    """JSON strings, unchanged."""
    only(values, {str, _NONE}, "is not a text")
    return pa.array(values, pa.string())


def decode_base64(value: Any) -> bytes:
    """The bytes of a base64 text; where they came as bytes, as by Avro, these."""
    if type(value) is bytes:
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise misfit(value, "is not base64") from None


def binaries(values: Sequence[Any], decode: Callable[[Any], bytes] = decode_base64) -> pa.Array:
    """Texts that stand for bytes."""
    return pa.array([None if v is None else decode(v) for v in values], pa.binary())


def iso_dates(values: Sequence[Any]) -> pa.Array:
    """ISO dates, e.g. 2024-02-29."""
    only(values, {str, _NONE}, "is not a date")
    return _built(
        lambda part: in_years(pa.array(part, pa.string()).cast(pa.date32())), values, "date"
    )


def iso_timestamps(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """ISO timestamps: with `Z` or an offset for `timestamp`, without one for `timestamp_ntz`."""
    only(values, {str, _NONE}, "is not a timestamp")
    name = "timestamp" if kind.tz else "timestamp_ntz (no zone)"
    return _built(lambda part: in_years(pa.array(part, pa.string()).cast(kind)), values, name)


def in_years(times: pa.Array) -> pa.Array:
    """The dates or timestamps (us), all within the years 1 to 9999.

    Raises:
        pa.ArrowInvalid: one is not.
    """
    is_date = pa.types.is_date(times.type)
    ends = pc.min_max(times.cast(pa.int32() if is_date else pa.int64())).as_py()
    low, high = (_FIRST_DAY, _LAST_DAY) if is_date else (_FIRST_US, _LAST_US)
    if ends["min"] is not None and not low <= ends["min"] <= ends["max"] <= high:
        raise pa.ArrowInvalid("a time is outside the years 1 to 9999")
    return times


def days(values: Sequence[Any]) -> pa.Array:
    """Days since 1970-01-01."""
    only(values, {int, _NONE}, "is not a day number")
    _in_range(values, _FIRST_DAY, _LAST_DAY, "is outside the years 1 to 9999")
    return pa.array(values, pa.int32()).cast(pa.date32())


def instants(values: Sequence[Any], unit: str, kind: pa.DataType) -> pa.Array:
    """Numbers of `unit` (ms, us or ns) since 1970-01-01T00:00; ns must be whole microseconds."""
    only(values, {int, _NONE}, "is not a timestamp number")
    per_us = {"ms": 1000, "us": 1, "ns": 0}[unit]
    if unit == "ns":
        if bad := [v for v in values if v is not None and v % 1000]:
            raise misfit(bad[0], "has nanoseconds, which microseconds cannot hold")
        values = [None if v is None else v // 1000 for v in values]
    elif per_us != 1:
        values = [None if v is None else v * per_us for v in values]
    _in_range(values, _FIRST_US, _LAST_US, "is outside the years 1 to 9999")
    return pa.array(values, pa.int64()).cast(kind)


def _in_range(values: Iterable[Any], low: int, high: int, reason: str) -> None:
    known = [v for v in values if v is not None]
    if known and (min(known) < low or max(known) > high):
        raise misfit(next(v for v in known if not low <= v <= high), reason)


def clock_text(micros: int) -> str:
    """A time of day, or MySQL's signed span of hours, as PostgreSQL prints it.

    >>> clock_text(45_296_780_000), clock_text(-90_000_000_000)
    ('12:34:56.78', '-25:00:00')
    """
    seconds, fraction = divmod(abs(micros), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    sign = "-" if micros < 0 else ""
    tail = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{sign}{hour:02d}:{minute:02d}:{second:02d}{tail}"


def unscaled(value: Any, scale: int) -> int:
    """A number as an integer of 10^-scale: text or a JSON number, exactly.

    >>> unscaled("12.5", 2), unscaled(7, 2)
    (1250, 700)
    """
    if type(value) is int:
        return value * int(10**scale)
    if type(value) is str:
        exact = _of_text(value)
    elif type(value) in (float, Decimal):
        exact = Decimal(repr(value)) if type(value) is float else value
        if exact.is_finite() and _digits(exact) > _DOUBLE_DIGITS:
            raise misfit(value, "may have lost digits as a JSON number: send decimals as text")
    else:
        exact = None
    if exact is None or not exact.is_finite():
        raise misfit(value, "is not a decimal number")
    try:
        shifted = exact.scaleb(scale, _EXACT)
        fits = shifted == shifted.to_integral_value()
    except (Inexact, InvalidOperation):
        fits = False
    if not fits:
        many = exact.adjusted() > _MOST_DIGITS
        raise misfit(
            value,
            f"has more than {_MOST_DIGITS if many else scale} "
            f"{'digits' if many else 'decimal places'}",
        )
    return int(shifted)


def _digits(number: Decimal) -> int:
    """Digits that count: without zeros at the end."""
    return len("".join(map(str, number.as_tuple().digits)).rstrip("0"))


def _of_text(text: str) -> Decimal | None:
    """The number of a text; None for what only Python reads: 1_000, and digits of other scripts."""
    try:
        return Decimal(text) if text.isascii() and "_" not in text else None
    except InvalidOperation:
        return None


def decimals(
    values: Sequence[Any],
    kind: pa.DataType,
    to_unscaled: Callable[[Any, int], int] = unscaled,
) -> pa.Array:
    """Decimals of `kind`; `to_unscaled(value, scale)` reads one value that is not None."""
    if to_unscaled is unscaled and (plain := _plain_decimals(values, kind)) is not None:
        return plain
    scale = kind.scale
    units = [None if v is None else to_unscaled(v, scale) for v in values]
    limit = 10**kind.precision
    for value, unit in zip(values, units, strict=True):
        if unit is not None and not -limit < unit < limit:
            raise misfit(value, f"does not fit decimal({kind.precision},{scale})")
    try:
        whole = pa.array(units, pa.int64()).cast(pa.decimal128(19, 0))
    except OverflowError:
        wide = [None if unit is None else Decimal(unit) for unit in units]
        whole = pa.array(wide, pa.decimal128(38, 0))
    # The same 128-bit integers, read with the scale: no arithmetic, no rounding.
    return pa.Array.from_buffers(kind, len(units), whole.buffers(), whole.null_count)


#: Values that pay for the calls of a handful of functions of Arrow.
_WORTH_AN_ARRAY = 50


def _plain_decimals(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Decimals of texts, all at once; None: one of them is none, or may not fit.

    Arrow wraps around where a text has too many digits, so it is given none of these.
    """
    if len(values) < _WORTH_AN_ARRAY or not set(map(type, values)) <= {str, _NONE}:
        return None
    texts = pa.array(values, pa.string())
    fraction = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
    number = rf"^-?[0-9]{{1,{max(1, kind.precision - kind.scale)}}}{fraction}$"
    if not pc.all(pc.match_substring_regex(texts, number), min_count=0).as_py():
        return None
    try:
        return texts.cast(kind)
    except pa.ArrowException:
        return None


def lists(values: Sequence[Any], column: Column, convert_items: Converter) -> pa.Array:
    """JSON lists of one dimension."""
    only(values, {list, _NONE}, "is not a list")
    source_type = column.source_type.removesuffix("[]")
    element = Column(column.name, column.type.value_type, True, source_type)
    items = convert_items(list(chain.from_iterable(v for v in values if v is not None)), element)
    offsets, end = [], 0
    for value in values:
        offsets.append(None if value is None else end)
        end += 0 if value is None else len(value)
    return pa.ListArray.from_arrays(pa.array([*offsets, end], pa.int32()), items, column.type)


#: How values are written where a format says nothing else.
_CONVERTERS: Mapping[Family, Converter] = {
    "boolean": lambda values, column: booleans(values),
    "integer": lambda values, column: integers(values, column.type),
    "float": lambda values, column: floats(values, column.type),
    "decimal": lambda values, column: decimals(values, column.type),
    "text": lambda values, column: texts(values),
    "date": lambda values, column: iso_dates(values),
    "timestamp": lambda values, column: iso_timestamps(values, column.type),
    "binary": lambda values, column: binaries(values),
}
