"""Debezium's encodings of column values, by the column's Arrow type and its type at the source.

Debezium encodes by the declared precision: `datetime(3)` as milliseconds, `datetime(6)` as
microseconds. Without the schema envelope a message does not say so; `Column.source_type` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mview.schema import Column
from mview_connectors.formats import values as v

#: Connector properties that change how values are written, and the modes that can be read.
MODES: dict[str, tuple[str, ...]] = {
    "decimal.handling.mode": ("precise", "string", "double"),
    "time.precision.mode": ("adaptive", "adaptive_time_microseconds", "connect", "isostring"),
    "binary.handling.mode": ("bytes", "base64", "base64-url-safe", "hex"),
}

#: PostgreSQL's numeric has no more decimal places.
_MOST_SCALE = 16_383

_TYPE = re.compile(r"\s*([a-z][a-z0-9_ ]*?)\s*(?:\(\s*(\d+)[^)]*\))?\s*(without time zone)?\s*$")

#: Fractional digits of a type that is declared without them.
_DEFAULT_PRECISION = {"timestamp": 6, "time": 6, "datetime": 0, "smalldatetime": 0, "datetime2": 7}


class DebeziumValues:
    """Converts raw JSON values of one connector.

    Args:
        modes: the connector's properties of MODES; a missing one has Debezium's default.
    """

    def __init__(self, modes: Mapping[str, str]) -> None:
        self._decimal = modes.get("decimal.handling.mode")
        self._time = modes.get("time.precision.mode", "adaptive")
        self._decode_bytes = {
            "base64-url-safe": _decode_url_safe,
            "hex": _decode_hex,
        }.get(modes.get("binary.handling.mode", "bytes"), v.decode_base64)
        self._converters: Mapping[v.Family, v.Converter] = {
            "decimal": self._decimals,
            "text": self._texts,
            "date": _dates,
            "timestamp": self._timestamps,
            "binary": self._binaries,
        }

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type.

        Raises:
            ValueError: a value does not fit; the message names it.
        """
        return v.convert(values, column, self._converters)

    def _texts(self, values: Sequence[Any], column: Column) -> pa.Array:
        name, digits, local = _parse(column.source_type)
        if name == "time" and _are_numbers(values):
            # MySQL's time is always in microseconds, but for `connect`.
            unit = self._unit(digits) if local or self._time == "connect" else "us"
            per_us = {"ms": 1000, "us": 1}[unit]
            values = [None if x is None else v.clock_text(x * per_us) for x in values]
        elif name == "uuid":
            values = [x.lower() if type(x) is str else x for x in values]
        return v.texts(values)

    def _timestamps(self, values: Sequence[Any], column: Column) -> pa.Array:
        if not _are_numbers(values):
            naive = not column.type.tz
            return v.iso_timestamps(_without_zone(values) if naive else values, column.type)
        _, digits, _ = _parse(column.source_type)
        return v.instants(values, self._unit(digits), column.type)

    def _decimals(self, values: Sequence[Any], column: Column) -> pa.Array:
        return v.decimals(values, column.type, self._unscaled(column))

    def _binaries(self, values: Sequence[Any], column: Column) -> pa.Array:
        return v.binaries(values, self._bytes(column))

    def _unit(self, digits: int) -> str:
        if self._time == "connect" or digits <= 3:
            return "ms"
        return "us" if digits <= 6 else "ns"

    def _bytes(self, column: Column) -> Any:
        name, digits, _ = _parse(column.source_type)
        if name == "bit varying":
            return _refuse_bits
        if name != "bit":
            return self._decode_bytes
        size = (digits + 7) // 8

        def from_bits(value: Any) -> bytes:
            # Debezium writes bits from the lowest byte up; databases print the highest first.
            return v.decode_base64(value)[::-1].rjust(size, b"\0")

        return from_bits

    def _unscaled(self, column: Column) -> Any:
        mode, source_type = self._decimal, column.source_type
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
            raw = v.decode_base64(value)
            if not raw:
                raise v.misfit(value, "is not a decimal number")
            return int.from_bytes(raw, "big", signed=True)

        return unscaled


def _dates(values: Sequence[Any], column: Column) -> pa.Array:
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
    return name, int(digits or _DEFAULT_PRECISION.get(name, 0)), local is not None


def _refuse_bits(value: Any) -> bytes:
    raise v.misfit(value, "is of type bit varying, whose length the changelog does not send")


def _are_numbers(values: Sequence[Any]) -> bool:
    return next((type(x) is not str for x in values if x is not None), True)


def _without_zone(values: Sequence[Any]) -> Sequence[Any]:
    """`isostring` writes dates and local timestamps with a Z that means nothing."""
    return [x[:-1] if type(x) is str and x.endswith("Z") else x for x in values]


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
