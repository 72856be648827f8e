"""Values of MySQL, MariaDB and TiDB as the tools around their binlog write them.

What the types are is read from `Column.source_type` (information_schema's COLUMN_TYPE). What a tool
loses must not be taken for the value:

- TIMESTAMP is written as local time of the tool; its zone is not in the messages, so it is stated.
- ENUM and SET are numbers of labels, or labels.
- BINARY(n) comes without its last zero bytes.
- A fraction of a second that is declared and not sent was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from mview.errors import ConfigError
from mview.schema import Column
from mview_connectors.formats import values as v
from mview_connectors.formats.messages import OPTION_PREFIX

#: Option: the time zone in which the tool writes TIMESTAMP, e.g. UTC, +08:00, Asia/Shanghai.
ZONE = "time.zone"

_TYPE = re.compile(r"\s*([a-z]+\d?)\s*(?:\((.*)\))?", re.DOTALL | re.IGNORECASE)
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")
_TIME = re.compile(r"-?\d{2,3}:[0-5]\d:[0-5]\d(\.\d{1,6})?")
_INTEGER = re.compile(r"-?[0-9]{1,40}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")

#: Bits of a SET, and the longest BIT.
_MOST_BITS = 64


class MysqlType(NamedTuple):
    """A type of MySQL: its name, its length or digits (0: not declared), labels of ENUM and SET."""

    name: str
    size: int
    labels: tuple[str, ...]


@lru_cache(maxsize=4096)
def mysql_type(source_type: str) -> MysqlType:
    """A type as information_schema writes it, e.g. `enum('a','it''s')`, `datetime(3)`."""
    match = _TYPE.match(source_type)
    if match is None:
        return MysqlType("", 0, ())
    name, inner = match[1].lower(), match[2] or ""
    if name in ("enum", "set"):
        return MysqlType(name, 0, tuple(x.replace("''", "'") for x in _LABEL.findall(inner)))
    size = inner.partition(",")[0].strip()
    return MysqlType(name, int(size) if size.isdecimal() else 0, ())


def zone_of(options: Mapping[str, str]) -> str | timedelta | None:
    """The stated time zone: its name, its distance from UTC, or None.

    Raises:
        ConfigError: there is no such zone.
    """
    text = options.get(ZONE)
    if text is None:
        return None
    if match := _OFFSET.fullmatch(text):
        sign, hours, minutes = match.groups()
        if int(hours) <= 14 and int(minutes) < 60:
            return (-1 if sign == "-" else 1) * timedelta(hours=int(hours), minutes=int(minutes))
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"format option {OPTION_PREFIX + ZONE!r} is no time zone",
            got=text,
            allowed="UTC, an offset as +08:00, or a name as Asia/Shanghai",
        ) from None
    return text


def timestamps(values: Sequence[Any], column: Column, zone: str | timedelta | None) -> pa.Array:
    """`2024-02-29 23:59:59.123`, with the declared digits: DATETIME, or TIMESTAMP in a zone.

    Raises:
        ValueError: a value is no time, has other digits than declared, or is a time that the zone
            has twice or never.
    """
    v.only(values, {str, type(None)}, "is not a timestamp")
    kind = mysql_type(column.source_type)
    if kind.name in ("datetime", "timestamp"):
        for value in values:
            if value is not None and len(value.partition(".")[2]) != kind.size:
                raise v.misfit(value, f"has not the {kind.size} decimal places of its column")
    local = v.iso_timestamps(values, pa.timestamp("us"))
    if column.type.tz is None:
        return local
    if zone is None:
        known = next((value for value in values if value is not None), None)
        if known is not None:
            raise v.misfit(
                known, f"has no time zone: set {OPTION_PREFIX}{ZONE} to that of what writes it"
            )
        return local.cast(column.type)
    if isinstance(zone, timedelta):
        return v.in_years(pc.subtract(local, pa.scalar(zone, pa.duration("us")))).cast(column.type)
    for value, text in zip(local, values, strict=True):
        _check_once(value, text, zone)
    return v.in_years(pc.assume_timezone(local, zone).cast(column.type))


def _check_once(value: pa.Scalar, text: Any, zone: str) -> None:
    try:
        pc.assume_timezone(value, zone, ambiguous="raise", nonexistent="raise")
    except pa.ArrowInvalid:
        raise v.misfit(text, f"is twice or never in {zone}: let what writes it use UTC") from None


def times(values: Sequence[Any]) -> list[str | None]:
    """TIME without zeros at the end of its fraction, as the database is read."""
    v.only(values, {str, type(None)}, "is not a time")
    trimmed: list[str | None] = []
    for value in values:
        if value is not None and not _TIME.fullmatch(value):
            raise v.misfit(value, "is not a time")
        fraction = value is not None and "." in value
        trimmed.append(value.rstrip("0").rstrip(".") if fraction else value)
    return trimmed


def integer_of(value: Any) -> int:
    """A text of decimal digits as an integer."""
    if type(value) is not str or not _INTEGER.fullmatch(value):
        raise v.misfit(value, "is not an integer")
    return int(value)


def number_of(value: Any) -> str:
    """A text that is a number as C, Java and Go print it."""
    if type(value) is not str or not _NUMBER.fullmatch(value):
        raise v.misfit(value, "is not a number")
    return value


def within_sign(numbers: pa.Array, column: Column) -> pa.Array:
    """The numbers; none of an UNSIGNED column is negative, unless what wrote it has overflowed."""
    if "unsigned" in column.source_type.lower():
        lowest = pc.min(numbers).as_py()
        if lowest is not None and lowest < 0:
            raise v.misfit(
                lowest, "is negative, and the column is unsigned: what writes it is wrong"
            )
    return numbers


def label_of(number: int, kind: MysqlType) -> str:
    """The label of an ENUM's number; 0 stands for a value that was refused, which reads as ''."""
    if not 0 <= number <= len(kind.labels):
        raise v.misfit(number, f"is not one of the {len(kind.labels)} labels of its column")
    return kind.labels[number - 1] if number else ""


def labels_of(number: int, kind: MysqlType) -> str:
    """The labels of a SET's bits, as the database prints them."""
    if not 0 <= number < 1 << min(len(kind.labels), _MOST_BITS):
        raise v.misfit(number, f"is no set of the {len(kind.labels)} labels of its column")
    return ",".join(label for bit, label in enumerate(kind.labels) if number >> bit & 1)


def bits_of(number: int, kind: MysqlType) -> bytes:
    """The bytes of a BIT(n), the highest first."""
    size = kind.size or 1
    if not 0 <= number < 1 << size:
        raise v.misfit(number, f"does not fit bit({size})")
    return number.to_bytes((size + 7) // 8, "big")


def binaries(values: Sequence[Any], column: Column, decode: Callable[[Any], bytes]) -> pa.Array:
    """Bytes; those of BINARY(n) get back the zeros that the binlog leaves out."""
    kind = mysql_type(column.source_type)
    size = kind.size if kind.name == "binary" else 0
    return v.binaries(values, lambda value: decode(value).ljust(size, b"\0"))


def each(values: Sequence[Any], read: Callable[[Any], Any]) -> list[Any]:
    """`read` of every value that is not NULL."""
    return [None if value is None else read(value) for value in values]
