"""Debezium's encodings of column values, by the column's Arrow type and its type at the source.

How a value is written says the schema envelope, where there is one. Without it, the connector's
modes say it, as the configuration has them: `adaptive` encodes by the declared precision, which is
in `Column.source_type`. A value that could be of two modes, of which none is stated, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from mview.schema import Column
from mview_connectors.databases.postgresql_types import utc_clock
from mview_connectors.formats import values as v
from mview_connectors.formats.debezium.envelope import Form, by_form

#: Connector properties that change how values are written, and the modes that can be read.
MODES: dict[str, tuple[str, ...]] = {
    "decimal.handling.mode": ("precise", "string", "double"),
    "time.precision.mode": (
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
    ),
    "binary.handling.mode": ("bytes", "base64", "base64-url-safe", "hex"),
}

#: Converts values of one form, None where only the modes tell it.
_Formed = Callable[[Form | None, Sequence[Any], Column], pa.Array]

#: Fractional digits that milliseconds hold, and microseconds.
_CONNECT_DIGITS, _MICRO_DIGITS = 3, 6

_YEAR_0000 = 1900

#: Decimal places of money that is sent without saying how many (`money.fraction.digits`).
_MONEY_DIGITS = 2

#: PostgreSQL's numeric has no more decimal places.
_MOST_SCALE = 16_383

_TYPE = re.compile(
    r"\s*([a-z][a-z0-9_ ]*?)\s*(?:\(\s*(\d+)[^)]*\))?\s*(with(?:out)? time zone)?\s*$"
)

#: Fractional digits of a type that is declared without them.
_DEFAULT_PRECISION = {"timestamp": 6, "time": 6, "datetime": 0, "smalldatetime": 0, "datetime2": 7}


class DebeziumValues:
    """Converts raw JSON values of one connector.

    Args:
        modes: the connector's properties of MODES; of a missing one nothing is known.
    """

    def __init__(self, modes: Mapping[str, str]) -> None:
        self._decimal = modes.get("decimal.handling.mode")
        self._time = modes.get("time.precision.mode")
        self._decode_bytes = _BYTES[modes.get("binary.handling.mode")]
        converters: Mapping[v.Family, _Formed] = {
            "integer": _integers,
            "decimal": self._decimals,
            "text": self._texts,
            "date": _dates,
            "timestamp": self._timestamps,
            "binary": self._binaries,
        }
        self._converters = {family: partial(_told, formed) for family, formed in converters.items()}

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type.

        Raises:
            ValueError: a value does not fit; the message names it.
        """
        return v.convert(values, column, self._converters)

    def _texts(self, form: Form | None, values: Sequence[Any], column: Column) -> pa.Array:
        own, said = column.read_as
        if said:
            return v.texts(_as_printed(values, own))
        name, digits, local = _parse(own)
        if name == "time" and not local:
            digits = digits if "(" in column.source_type else 0
            self._check_within_a_day(form, values)
        if name == "time" and _are_numbers(values):
            # MySQL's time is in microseconds always, PostgreSQL's only in that mode.
            adaptive = local and self._time != "adaptive_time_microseconds"
            to_us = _TO_US[self._unit(form, values, digits, adaptive)]
            values = [None if x is None else v.clock_text(to_us(x)) for x in values]
        elif name == "time":
            values = [_clock(x) for x in values]
        elif name in ("uuid", "uniqueidentifier"):
            values = [x.lower() if type(x) is str else x for x in values]
        return v.texts(values)

    def _check_within_a_day(self, form: Form | None, values: Sequence[Any]) -> None:
        """Raise where NULL may be a time of MySQL that was not sent: they go to 838 hours."""
        by_mode = form is None and self._time in (None, "connect", "isostring")
        if form == "lost" or (by_mode and None in values):
            raise ValueError(
                "NULL may be a time below zero or of more than a day, for which "
                "time.precision.mode=connect and isostring send NULL: let the connector use "
                "adaptive, and state it as format.time.precision.mode under options"
            )

    def _timestamps(self, form: Form | None, values: Sequence[Any], column: Column) -> pa.Array:
        if not _are_numbers(values):
            naive = not column.type.tz
            return v.iso_timestamps(_without_zone(values) if naive else values, column.type)
        _, digits, _ = _parse(column.source_type)
        return v.instants(values, self._unit(form, values, digits, adaptive=True), column.type)

    def _decimals(self, form: Form | None, values: Sequence[Any], column: Column) -> pa.Array:
        return v.decimals(values, column.type, self._unscaled(form, column))

    def _binaries(self, form: Form | None, values: Sequence[Any], column: Column) -> pa.Array:
        return v.binaries(values, self._bytes(form, column))

    def _unit(
        self, form: Form | None, values: Sequence[Any], digits: int, adaptive: bool
    ) -> Literal["ms", "us", "ns"]:
        """The unit of numbers that stand for times.

        Args:
            form: what the envelope says.
            values: the numbers, for messages.
            digits: of the column's fractions of seconds.
            adaptive: whether it goes by these; else it is microseconds.

        Raises:
            ValueError: it is not known, or smaller parts were cut off.
        """
        if form is None and self._time in (None, "isostring"):
            stated = "" if self._time is None else f", and it is not {self._time}"
            raise v.misfit(
                _first(values),
                "is a time as a number, and nothing says of which unit: state the connector's "
                f"time.precision.mode as format.time.precision.mode under options{stated} "
                "(a connector that does not set it has adaptive)",
            )
        if form == "cut" or (form is None and self._time == "connect"):
            if digits > _CONNECT_DIGITS:
                raise v.misfit(
                    _first(values),
                    f"has {digits} decimal places of a second in the database, of which "
                    "time.precision.mode=connect sends 3: let the connector use adaptive",
                )
            return "ms"
        if form in ("ms", "us", "ns"):
            return form
        if self._time == "nanoseconds":
            return "ns"
        if self._time == "microseconds" or not adaptive:
            return "us"
        return "ms" if digits <= _CONNECT_DIGITS else "us" if digits <= _MICRO_DIGITS else "ns"

    def _bytes(self, form: Form | None, column: Column) -> Any:
        name, digits, _ = _parse(column.source_type)
        if name == "bit varying":
            return _refuse_bits
        if name != "bit":
            return v.decode_base64 if form == "bytes" else self._decode_bytes
        size = (digits + 7) // 8

        def from_bits(value: Any) -> bytes:
            # Debezium writes bits from the lowest byte up; databases print the highest first.
            return v.decode_base64(value)[::-1].rjust(size, b"\0")

        return from_bits

    def _unscaled(self, form: Form | None, column: Column) -> Any:
        source_type, said = column.read_as
        mode = "string" if form == "text" else self._decimal
        unsigned = "unsigned" in source_type
        bounded = "(" in source_type or not source_type.startswith(("numeric", "decimal"))

        def unscaled(value: Any, scale: int) -> int:
            if unsigned and type(value) is int and value < 0:
                raise v.misfit(value, "overflowed: set bigint.unsigned.handling.mode=precise")
            if type(value) is dict:
                return _variable_scale(value, scale)
            if type(value) is not str or mode in ("string", "double"):
                return v.unscaled(value, scale)
            if mode is None and (not bounded or _is_decimal_text(value, scale)):
                return v.unscaled(value, scale)
            if said and source_type == "money" and scale != _MONEY_DIGITS:
                raise v.misfit(
                    value, "is of type money: let the connector send its schema (schemas.enable)"
                )
            raw = v.decode_base64(value)
            if not raw:
                raise v.misfit(value, "is not a decimal number")
            return int.from_bytes(raw, "big", signed=True)

        return unscaled


def _told(formed: _Formed, values: Sequence[Any], column: Column) -> pa.Array:
    """The conversion of values, some of which may say of what form they are."""
    return by_form(values, lambda form, plain: formed(form, plain, column))


def _integers(form: Form | None, values: Sequence[Any], column: Column) -> pa.Array:
    if column.source_type.startswith("year"):
        # MySQL's years are 1901 to 2155, and 0000, of which the connector makes the first before.
        values = [0 if value == _YEAR_0000 else value for value in values]
    return v.integers(values, column.type)


def _dates(form: Form | None, values: Sequence[Any], column: Column) -> pa.Array:
    return v.days(values) if _are_numbers(values) else v.iso_dates(_without_zone(values))


def _is_decimal_text(value: str, scale: int) -> bool:
    """Whether a text is a number as people write it, and not base64 of its bytes."""
    if "." in value or value[:1] == "-":
        return True
    if scale or not value.isdigit():
        # With decimal places the text form always has a point.
        return False
    if len(value) % 4:
        return True
    raise v.misfit(value, "may be digits or base64: set format.decimal.handling.mode")


def _variable_scale(value: dict[str, Any], scale: int) -> int:
    """PostgreSQL's numeric without precision: `{"scale": 2, "value": base64}`."""
    try:
        own_scale, raw = value["scale"], v.decode_base64(value["value"])
    except KeyError:
        raise v.misfit(value, "is not a decimal number") from None
    if type(own_scale) is not int or abs(own_scale) > _MOST_SCALE:
        raise v.misfit(value, "is not a decimal number")
    number = int.from_bytes(raw, "big", signed=True)
    if own_scale <= scale:
        return number * int(10 ** (scale - own_scale))
    whole, rest = divmod(number, int(10 ** (own_scale - scale)))
    if rest:
        raise v.misfit(value, f"has more than {scale} decimal places")
    return whole


def _parse(source_type: str) -> tuple[str, int, bool]:
    """Name, declared or default precision, and whether it is PostgreSQL's `without time zone`."""
    match = _TYPE.match(source_type.lower())
    if match is None:
        return source_type.lower(), 6, False
    name, digits, local = match.groups()
    return name, int(digits or _DEFAULT_PRECISION.get(name, 0)), local == "without time zone"


#: Types whose texts Debezium hands on as PostgreSQL prints them.
_HANDED_ON = ("int4range", "int8range", "numrange", "daterange", "tsrange")

#: `P1Y2M3DT4H5M6.7S`: Debezium writes the parts that are 0, too.
_INTERVAL = re.compile(r"P(-?\d+Y)(-?\d+M)(-?\d+D)T(-?\d+H)(-?\d+M)(-?\d+(?:\.\d+)?)S")


def _as_printed(values: Sequence[Any], own: str) -> Sequence[Any]:
    """Texts of a type that a setting has read as text, as PostgreSQL prints them."""
    made: Callable[[str], str] | None = None
    if own.startswith("interval"):
        made = _interval
    elif own.startswith(("time ", "time(")) and own.endswith("with time zone"):
        made = utc_clock
    elif own in _HANDED_ON:
        made = str
    if (first := _first(values)) is not None and (made is None or type(first) is not str):
        raise v.misfit(
            first,
            f"is of type {own}, which Debezium writes otherwise than PostgreSQL prints it: leave "
            "the column out, or follow the server's own log (source: postgresql); an interval "
            "needs interval.handling.mode=string",
        )
    return [x if x is None or made is None else made(x) for x in values]


def _interval(text: str) -> str:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise v.misfit(text, "is no interval")
    *parts, seconds = match.groups()
    if "." in seconds:
        seconds = seconds.rstrip("0").rstrip(".")
    listed = [part if int(part[:-1]) else "" for part in parts]
    clock = "".join(listed[3:]) + (f"{seconds}S" if seconds not in ("0", "-0") else "")
    day = "".join(listed[:3])
    return f"P{day}{'T' if clock else ''}{clock}" if day or clock else "PT0S"


def _refuse_bits(value: Any) -> bytes:
    raise v.misfit(value, "is of type bit varying, whose length the changelog does not send")


def _are_numbers(values: Sequence[Any]) -> bool:
    return type(_first(values)) not in (str, type(None))


def _first(values: Sequence[Any]) -> Any:
    """The first value that is there."""
    return next((x for x in values if x is not None), None)


def _without_zone(values: Sequence[Any]) -> Sequence[Any]:
    """`isostring` writes dates and local timestamps with a Z that means nothing."""
    return [x[:-1] if type(x) is str and x.endswith("Z") else x for x in values]


def _whole_us(nanoseconds: int) -> int:
    if nanoseconds % 1000:
        raise v.misfit(nanoseconds, "has nanoseconds, which microseconds cannot hold")
    return nanoseconds // 1000


_TO_US: Mapping[str, Callable[[int], int]] = {
    "ms": lambda number: number * 1000,
    "us": lambda number: number,
    "ns": _whole_us,
}


def _clock(value: Any) -> Any:
    """`12:34:56.780Z` of `isostring` as databases print it, 12:34:56.78."""
    if type(value) is not str:
        return value
    text = value.removesuffix("Z")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _decode_url_safe(value: Any) -> bytes:
    if type(value) is not str:
        raise v.misfit(value, "is not base64")
    return v.decode_base64(value.translate(_URL_SAFE))


_URL_SAFE = str.maketrans("-_", "+/")


def _decode_hex(value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise v.misfit(value, "is not hexadecimal") from None


def _decode_proven(value: Any) -> bytes:
    """The bytes of a text that can be of one form only, without a mode that says which."""
    if type(value) is str and value and _HEX.fullmatch(value):
        if len(value) % 4 == 0:
            raise v.misfit(
                value,
                "may be hexadecimal or base64: state the connector's binary.handling.mode as "
                "format.binary.handling.mode under options",
            )
        return bytes.fromhex(value)
    return _decode_url_safe(value)


#: Whole bytes, as Debezium writes them.
_HEX = re.compile(r"(?:[0-9a-f]{2})+")

#: By `binary.handling.mode`.
_BYTES: Mapping[str | None, Callable[[Any], bytes]] = {
    None: _decode_proven,
    "bytes": v.decode_base64,
    "base64": v.decode_base64,
    "base64-url-safe": _decode_url_safe,
    "hex": _decode_hex,
}
