"""The `canal` format: Canal's flat messages (`canal.mq.flatMessage = true`).

A message has the rows of one statement in one table, all values as texts. Of an update `old` has
the columns that changed. What a message does not have:

- A position in the binlog: partition and offset order the changes, and one that is sent again is
  applied again.
- Heartbeats: a table that is written every second, named by `format.heartbeat.table`, tells the
  time of a topic, or the heartbeat topic has one.
- The zone of TIMESTAMP columns: Canal writes them in the zone of its JVM, see `format.time.zone`.
- What ENUM and SET columns hold: numbers of labels, which are taken from the column's type. Where a
  label looks like a number, `format.enum` must say which of the two is written.
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
    format_options,
    milliseconds,
    name_of,
    parse_object,
    too_deep,
    undecodable,
)

#: Option: a table that is written at least every second, whose changes tell the time.
HEARTBEAT_TABLE = "heartbeat.table"

_ENUM = "enum"

#: Options of all formats whose values are Canal's.
VALUE_OPTIONS: dict[str, tuple[str, ...]] = {m.ZONE: (), _ENUM: ("number", "label")}

_KINDS: dict[str, Kind] = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}
_FLAT_HINT = "set canal.mq.flatMessage = true"

#: Position, time, partition and offset of an event.
_Place = tuple[tuple[int, ...], SourceMs | None, str, int]


class CanalFormat:
    """Decodes Canal's flat messages; see the module."""

    def __init__(self, options: Mapping[str, str]) -> None:
        own = format_options(options, {**VALUE_OPTIONS, HEARTBEAT_TABLE: ()})
        self.in_band_heartbeats = HEARTBEAT_TABLE in own
        self._values = CanalValues(own)

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """An event per row of the message."""
        try:
            if message.value is None:
                return ()
            body = parse_object(message, _FLAT_HINT)
            return flat_events(message, body, (), milliseconds(message, body.get("es"), "es"))
        except RecursionError:
            raise too_deep(message) from None

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type; UNCHANGED becomes null, as its caller notes it."""
        return self._values.convert(values, column)


def flat_events(
    message: Message, body: dict[str, Any], position: tuple[int, ...], at: SourceMs | None
) -> list[ChangeEvent]:
    """The events of a flat message: one per row, or one of a statement.

    Args:
        message: where it stands.
        body: the message.
        position: that of all its rows.
        at: its commit time.
    """
    word = body.get("type")
    place: _Place = (position, at, message.partition, message.offset)
    database = name_of(message, body.get("database"), "database")
    if is_statement(message, body):
        return [_statement(message, body, database, place)]
    kind = _KINDS.get(word) if type(word) is str else None
    if kind is None:
        raise undecodable(
            message,
            f"a change has an unknown type {shown(word, 80)}",
            _FLAT_HINT,
            allowed=", ".join(_KINDS),
        )
    table = name_of(message, body.get("table"), "table")
    try:
        return _changes(message, body, kind, database, table, place)
    except DecodeError as error:
        error.table = database, table
        raise


def _changes(
    message: Message, body: dict[str, Any], kind: Kind, database: str, table: str, place: _Place
) -> list[ChangeEvent]:
    rows = _rows(message, body, "data")
    if not rows:
        raise undecodable(message, "a change has no rows in 'data'")
    olds = _rows(message, body, "old") or [None] * len(rows)
    if len(olds) != len(rows):
        raise undecodable(message, "'old' has not as many rows as 'data'")
    events = []
    for row, old in zip(rows, olds, strict=True):
        if row is None:
            raise undecodable(message, "a row in 'data' is null")
        before = row if kind == "d" else None
        if kind == "u" and old is not None:
            before = {**row, **old}
        after = None if kind == "d" else row
        events.append(ChangeEvent(table, kind, None, before, after, *place, namespace=database))
    return events


def is_statement(message: Message, body: dict[str, Any]) -> bool:
    """Whether the message is a DDL statement."""
    is_ddl = body.get("isDdl", False)
    if type(is_ddl) is not bool:
        raise undecodable(message, f"'isDdl' is neither true nor false: {shown(is_ddl, 80)}")
    return is_ddl


def _statement(message: Message, body: dict[str, Any], database: str, place: _Place) -> ChangeEvent:
    word, table, sql = body.get("type"), body.get("table") or "", body.get("sql") or ""
    if type(word) is not str or type(table) is not str or type(sql) is not str:
        raise undecodable(message, "the type, table or text of a statement is no text")
    if word == "TRUNCATE":
        name_of(message, table, "table")
        return ChangeEvent(table, "truncate", None, None, None, *place, namespace=database)
    return ChangeEvent(table, "ddl", None, None, None, *place, detail=sql, namespace=database)


def _rows(message: Message, body: dict[str, Any], name: str) -> list[dict[str, Any] | None]:
    rows = body.get(name)
    if rows is None:
        return []
    if type(rows) is not list or not {dict, type(None)}.issuperset(map(type, rows)):
        raise undecodable(message, f"{name!r} is not a list of JSON objects")
    return rows


class CanalValues:
    """Converts the texts that Canal, and TiCDC as Canal does, write for values.

    Args:
        options: those of VALUE_OPTIONS.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._zone = m.zone_of(options)
        self._enum = options.get(_ENUM)
        self._converters: Mapping[v.Family, v.Converter] = {
            "boolean": _booleans,
            "integer": _integers,
            "float": _floats,
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
            return v.texts(m.times(values))
        if kind.name in ("enum", "set"):
            return v.texts(m.each(values, lambda value: self._label(value, kind)))
        return v.texts(values)

    def _label(self, value: Any, kind: m.MysqlType) -> str:
        """The label, or labels, that a number or a text stands for."""
        if type(value) is not str:
            raise v.misfit(value, f"is not a value of {kind.name}")
        is_number = value.isascii() and value.isdigit()
        if self._enum is None and any(x.isascii() and x.isdigit() for x in kind.labels):
            raise v.misfit(value, "may be a number or a label: set format.enum")
        if is_number and self._enum != "label":
            read = m.label_of if kind.name == "enum" else m.labels_of
            return read(m.integer_of(value), kind)
        if self._enum == "number":
            raise v.misfit(value, "is not the number of a label")
        parts = value.split(",") if kind.name == "set" and value else [value]
        if value and not set(parts) <= set(kind.labels):
            raise v.misfit(value, "is not a label of its column")
        return value


def _booleans(values: Sequence[Any], column: Column) -> pa.Array:
    return v.booleans(m.each(values, m.integer_of))


def _integers(values: Sequence[Any], column: Column) -> pa.Array:
    return m.within_sign(v.integers(m.each(values, m.integer_of), column.type), column)


def _decimals(values: Sequence[Any], column: Column) -> pa.Array:
    return m.within_sign(v.decimals(m.each(values, m.number_of), column.type), column)


def _floats(values: Sequence[Any], column: Column) -> pa.Array:
    return v.floats(m.each(values, lambda value: Decimal(m.number_of(value))), column.type)


def _binaries(values: Sequence[Any], column: Column) -> pa.Array:
    kind = m.mysql_type(column.source_type)
    if kind.name == "bit":
        return v.binaries(values, lambda value: m.bits_of(m.integer_of(value), kind))
    return m.binaries(values, column, _latin1)


def _latin1(value: Any) -> bytes:
    """Each character is a byte."""
    try:
        return str.encode(value, "latin-1")
    except (TypeError, UnicodeEncodeError):
        raise v.misfit(value, "is not a text of bytes (ISO 8859-1)") from None
