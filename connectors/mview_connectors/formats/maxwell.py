"""The `maxwell` format: Maxwell's JSON, one message per row.

Of an update `old` has the columns that changed. `position` (`output_binlog_position=true`) gives a
change its place in the binlog; without it partition and offset order the changes. Rows of a
bootstrap have neither place nor time. `ts` has whole seconds.

Maxwell sends no heartbeats: a table that is written every second, named by
`format.heartbeat.table`, tells the time of a topic, or the heartbeat topic has one.

What Maxwell writes otherwise than the database has it is refused, not guessed:

- TIME: in the zone of its JVM and without whole days, so that 25:00:00 is 01:00:00;
  `format.time.of.day: "true"` says that there are none, and that the JVM runs in UTC.
- TIMESTAMP: without its zone, see `format.time.zone`; 1.22 writes UTC whatever its JVM has.
- BIT(n) of more than 31 bits, which some versions write by 32 bits alone.
- ENUM: a label with an apostrophe, which is written as it is declared, with two.

YEAR 0000 comes as 1900, which no such column can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from mview.changelog import ChangeEvent, Kind
from mview.clock import SourceMs
from mview.connector import Message
from mview.errors import DecodeError, shown
from mview.schema import Column
from mview_connectors.formats import mysql_values as m
from mview_connectors.formats import values as v
from mview_connectors.formats.messages import (
    OPTION_PREFIX,
    format_options,
    holds_reals,
    milliseconds,
    name_of,
    parse_object,
    position_of,
    row_of,
    too_deep,
    transaction_of,
    undecodable,
    with_digits,
)

_HEARTBEAT_TABLE = "heartbeat.table"
_OF_DAY = "time.of.day"

_KINDS: dict[str, Kind] = {"insert": "c", "update": "u", "delete": "d", "bootstrap-insert": "r"}
_MARKERS = ("bootstrap-start", "bootstrap-complete")
_STATEMENTS = ("table-create", "table-alter", "table-drop", "database-create", "database-alter",
               "database-drop")  # fmt: skip

_HINT = "the topic must have Maxwell's own JSON (producer=kafka, no encryption)"

#: How the year 0000 is written; the others begin with 1901.
_YEAR_ZERO = 1900

#: Bits that all versions write right.
_MOST_BITS = 31


class MaxwellFormat:
    """Decodes Maxwell's messages; see the module."""

    def __init__(self, options: Mapping[str, str]) -> None:
        allowed = {m.ZONE: (), _HEARTBEAT_TABLE: (), _OF_DAY: ("true", "false")}
        own = format_options(options, allowed)
        self.in_band_heartbeats = _HEARTBEAT_TABLE in own
        self._values = MaxwellValues(own)

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """The one event of a message; none for the marks of a bootstrap."""
        try:
            return self._decode(message)
        except RecursionError:
            raise too_deep(message) from None

    def _decode(self, message: Message) -> Iterable[ChangeEvent]:
        if message.value is None:
            return ()
        body = parse_object(message, _HINT)
        word = body.get("type")
        if word in _MARKERS:
            return ()
        if word in _STATEMENTS:
            return (_statement(message, body),)
        kind = _KINDS.get(word) if type(word) is str else None
        if kind is None:
            raise undecodable(
                message,
                f"a change has an unknown type {shown(word, 80)}",
                _HINT,
                allowed=", ".join((*_KINDS, *_MARKERS, *_STATEMENTS)),
            )
        if holds_reals(message.value, body.get("data"), body.get("old")):
            body = with_digits(message.value)
        try:
            return (_change(message, body, kind),)
        except DecodeError as error:
            database, table = body.get("database"), body.get("table")
            if type(database) is str and type(table) is str:
                error.table = database, table
            raise

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type; UNCHANGED becomes null, as its caller notes it."""
        return self._values.convert(values, column)


def _change(message: Message, body: dict[str, Any], kind: Kind) -> ChangeEvent:
    row, old = row_of(message, body, "data"), row_of(message, body, "old")
    if row is None:
        raise undecodable(message, "a change has no 'data'", _HINT)
    before = row if kind == "d" else None
    if kind == "u" and old is not None:
        before = {**row, **old}
    loaded = body["type"] == "bootstrap-insert"
    return ChangeEvent(
        name_of(message, body.get("table"), "table"),
        kind,
        None,
        before,
        None if kind == "d" else row,
        () if loaded else _position(message, body),
        None if loaded else _seconds(message, body),
        message.partition,
        message.offset,
        transaction_of(message, body.get("xid")),
        namespace=name_of(message, body.get("database"), "database"),
    )


def _statement(message: Message, body: dict[str, Any]) -> ChangeEvent:
    table, sql = body.get("table") or "", body.get("sql") or ""
    if type(table) is not str or type(sql) is not str:
        raise undecodable(message, "a statement, or its table, is no text")
    database = name_of(message, body.get("database"), "database")
    at = milliseconds(message, body.get("ts"), "ts")
    place = ((), at, message.partition, message.offset)
    return ChangeEvent(table, "ddl", None, None, None, *place, detail=sql, namespace=database)


def _seconds(message: Message, body: dict[str, Any]) -> SourceMs | None:
    ts = body.get("ts")
    if type(ts) is not int:
        raise undecodable(message, f"'ts' is no time in seconds: {shown(ts, 80)}")
    return milliseconds(message, ts * 1000, "ts, times 1000,")


def _position(message: Message, body: dict[str, Any]) -> tuple[int, ...]:
    """Number of the binlog file and place in it, of `master.000006:800911`."""
    text = body.get("position")
    if text is None:
        return ()
    file, _, place = text.rpartition(":") if type(text) is str else ("", "", "")
    number = file.rpartition(".")[2]
    if not all(part.isascii() and part.isdigit() and len(part) <= 20 for part in (number, place)):
        raise undecodable(message, f"'position' is none of a binlog: {shown(text, 80)}")
    return position_of(message, (int(number), int(place)))


class MaxwellValues:
    """Converts the values that Maxwell writes.

    Args:
        options: the format's own.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._zone = m.zone_of(options)
        self._of_day = options.get(_OF_DAY) == "true"
        self._converters: Mapping[v.Family, v.Converter] = {
            "integer": _integers,
            "decimal": _decimals,
            "text": self._texts,
            "timestamp": self._timestamps,
            "binary": _binaries,
        }

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type.

        Raises:
            ValueError: a value does not fit; the message names it.
        """
        return v.convert(values, column, self._converters)

    def _timestamps(self, values: Sequence[Any], column: Column) -> pa.Array:
        return m.timestamps(values, column, self._zone)

    def _texts(self, values: Sequence[Any], column: Column) -> pa.Array:
        kind = m.mysql_type(column.source_type)
        if kind.name == "time":
            if not self._of_day:
                return v.texts(m.each(values, _refuse_time))
            return v.texts(m.times(values))
        if kind.name == "set":
            return v.texts(m.each(values, lambda value: _labels(value, kind)))
        if kind.name == "enum":
            return v.texts(m.each(values, lambda value: _label(value, kind)))
        return v.texts(values)


def _refuse_time(value: Any) -> str:
    raise v.misfit(
        value,
        "may be a longer time, or of another zone: Maxwell leaves out whole days; if there are "
        f'none, and its JVM runs in UTC, set {OPTION_PREFIX}{_OF_DAY}: "true"',
    )


def _label(value: Any, kind: m.MysqlType) -> str:
    if type(value) is not str or value not in kind.labels:
        raise v.misfit(value, f"is not a label of its {kind.name}, as the database prints it")
    return value


def _labels(value: Any, kind: m.MysqlType) -> str:
    if type(value) is not list:
        raise v.misfit(value, "is not a list of labels")
    return ",".join(_label(label, kind) for label in value)


def _integers(values: Sequence[Any], column: Column) -> pa.Array:
    if m.mysql_type(column.source_type).name == "year":
        values = [0 if value == _YEAR_ZERO else value for value in values]
    return m.within_sign(v.integers(values, column.type), column)


def _decimals(values: Sequence[Any], column: Column) -> pa.Array:
    return m.within_sign(v.decimals(values, column.type, _unscaled), column)


def _unscaled(value: Any, scale: int) -> int:
    # Maxwell writes all digits of a decimal, also of one that a double would not hold.
    return v.unscaled(str(value) if type(value) is Decimal else value, scale)


def _binaries(values: Sequence[Any], column: Column) -> pa.Array:
    kind = m.mysql_type(column.source_type)
    if kind.name != "bit":
        return m.binaries(values, column, v.decode_base64)
    if kind.size > _MOST_BITS:
        return v.binaries(values, _refuse_bits)
    return v.binaries(values, lambda value: _bits(value, kind))


def _bits(value: Any, kind: m.MysqlType) -> bytes:
    if type(value) is not int:
        raise v.misfit(value, "is not a number of bits")
    return m.bits_of(value, kind)


def _refuse_bits(value: Any) -> bytes:
    raise v.misfit(value, f"is of more than {_MOST_BITS} bits, which Maxwell may write wrong")
