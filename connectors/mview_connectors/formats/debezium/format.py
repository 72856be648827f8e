"""The `debezium` format: Debezium's change messages, as JSON or as Avro with a schema registry.

MariaDB, MySQL, PostgreSQL and SQL Server connectors are known; messages of others decode too, but
have no position. Tombstones, transaction markers and logical messages carry no change.

Positions grow within a Kafka partition and are equal for a message that is sent again:

| connector | position |
|---|---|
| mariadb, mysql | binlog file number, pos, row, sub |
| postgresql | end of the commit before, LSN of the row, sub |
| sqlserver | commit LSN (3 parts), change LSN (3 parts), event serial number, sub |

`sub` is 0 for a delete and 1 for all else: a change of the primary key comes as a delete and a
create at one place of the log. Snapshot rows all share one place, so they have no position, and no
commit time either.

Options (prefixed with `format.` in the configuration): `encoding`, `json` or `avro`, and for the
latter those of `registry`. Others are as the connector's properties are set. Where a message of
JSON has no schema envelope: `time.precision.mode` (needed for times that are sent as numbers),
`decimal.handling.mode` and `binary.handling.mode` (needed when a text could be of two forms). And
always: `unavailable.value.placeholder`; and `skipped.operations`, which must be `none`, and
`replace.null.with.default`, which must be `false`: what is not sent cannot be noticed, so these are
only stated.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mview.changelog import UNCHANGED, ChangeEvent, EventBlock, Kind
from mview.connector import Message
from mview.errors import DecodeError, shown
from mview.schema import Column
from mview_connectors.formats.debezium import block
from mview_connectors.formats.debezium.avro import AvroEncoding, check_avro
from mview_connectors.formats.debezium.encoding import JsonEncoding, Opened
from mview_connectors.formats.debezium.envelope import read
from mview_connectors.formats.debezium.source import is_first, parts_of, refuse_ticdc
from mview_connectors.formats.debezium.values import MODES, DebeziumValues
from mview_connectors.formats.messages import (
    format_options,
    milliseconds,
    name_of,
    position_of,
    row_of,
    too_deep,
    transaction_of,
    undecodable,
)
from mview_connectors.registry import REGISTRY_OPTIONS, registry_of

_PLACEHOLDER = "unavailable.value.placeholder"
_SKIPPED = "skipped.operations"
_DEFAULTS = "replace.null.with.default"
_ENCODING = "encoding"
_KINDS: dict[str, Kind] = {"c": "c", "r": "r", "u": "u", "d": "d", "t": "truncate"}

#: What all versions write into a marker of a transaction, and what some add.
MARKER = {"status", "id", "event_count", "data_collections"}
_TIMES = {"ts_ms", "ts_us", "ts_ns"}

#: Logical messages (pg_logical_emit_message) are not changes of a table.
_NO_CHANGE = "m"

_FLAT_HINT = (
    "the messages look flattened: remove the transform (ExtractNewRecordState) from the connector"
)


class DebeziumFormat:
    """Decodes Debezium's messages; see the module."""

    in_band_heartbeats = False

    def __init__(self, options: Mapping[str, str]) -> None:
        own = format_options(options, _OPTIONS)
        self._values = DebeziumValues(own)
        self._encoding = _encoding(options)
        text = own.get(_PLACEHOLDER, "__debezium_unavailable_value")
        self._unavailable = _unavailable_forms(text)
        marks = set(self._encoding.marks(self._unavailable))
        #: Without those that have another one in them.
        self._marks = [mark for mark in marks if not any(m in mark for m in marks - {mark})]

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """The events of a message: none or one, or one per table of a DDL statement."""
        try:
            return self._decode(message)
        except RecursionError:
            raise too_deep(message) from None

    def _decode(self, message: Message) -> Iterable[ChangeEvent]:
        if message.value is None:
            return ()
        opened = self._encoding.value(message)
        body = opened.body
        if body is None:
            return ()
        op = body.get("op")
        if op is None or op == _NO_CHANGE:
            refuse_ticdc(message, body.get("source"))
        if op is None:
            return _other(message, body, self._encoding)
        if op == _NO_CHANGE:
            return ()
        kind = _KINDS.get(op) if type(op) is str else None
        if kind is None:
            raise undecodable(message, f"a change has an unknown op {shown(op, 80)}")
        try:
            return (self._change(message, body, kind, opened),)
        except DecodeError as error:
            error.table = _table(body)
            raise

    def decode_block(self, messages: Sequence[Message]) -> EventBlock | None:
        """The events of many messages: see `Format`."""
        is_json = isinstance(self._encoding, JsonEncoding)
        return block.decode_block(messages, self._marks) if is_json else None

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type; UNCHANGED becomes null, as its caller notes it."""
        return self._values.convert(values, column)

    def _change(
        self,
        message: Message,
        body: dict[str, Any],
        kind: Kind,
        opened: Opened,
    ) -> ChangeEvent:
        source = body.get("source")
        if type(source) is not dict or not source.get("table"):
            raise undecodable(message, "a change has no 'source' with its table")
        before, after = row_of(message, body, "before"), row_of(message, body, "after")
        key = self._encoding.key(message)
        is_row = kind != "truncate"  # which has no key
        if is_row and message.key is None and not is_first(message.partition):
            raise undecodable(
                message,
                "a change without a key in a topic of several partitions: those of a row are in "
                "several, in no order",
                "a table without a primary key needs message.key.columns in the connector, or a "
                "topic of one partition",
            )
        if kind in ("c", "r", "u") and after is None:
            raise undecodable(message, "a create or update has no 'after'")
        if kind == "d" and before is None and key is None:
            raise undecodable(message, "a delete has neither 'before' nor a key")
        for mark in self._marks:
            if mark in opened.text:
                before, after = self._mark_unchanged(before), self._mark_unchanged(after)
                break
        columns = opened.columns
        if columns is not None:
            before = before and read(before, columns("before"), UNCHANGED)
            after = after and read(after, columns("after"), UNCHANGED)
        snapshot = kind == "r" or source.get("snapshot") not in (None, "false", False)
        ts = milliseconds(message, source.get("ts_ms"), "source.ts_ms")
        transaction = row_of(message, body, "transaction") or {}
        return ChangeEvent(
            name_of(message, source["table"], "source.table"),
            "r" if snapshot and kind in ("c", "u") else kind,
            key,
            before,
            after,
            () if snapshot else _position(message, source, kind),
            None if snapshot else ts,
            message.partition,
            message.offset,
            transaction_of(message, transaction.get("id")),
            namespace=_schema(message, source),
            origin=_name(source.get("name")),
        )

    def _mark_unchanged(self, row: Any) -> Any:
        if row is None:
            return None
        forms = self._unavailable
        return {name: UNCHANGED if value in forms else value for name, value in row.items()}


_OPTIONS: Mapping[str, tuple[str, ...]] = {
    **MODES,
    _PLACEHOLDER: (),
    _SKIPPED: ("none",),
    _DEFAULTS: ("false",),
    _ENCODING: ("json", "avro"),
    **dict.fromkeys(REGISTRY_OPTIONS, ()),
}


def _encoding(options: Mapping[str, str]) -> JsonEncoding | AvroEncoding:
    if registry := registry_of(options):
        check_avro()
        return AvroEncoding(registry)
    return JsonEncoding()


def _unavailable_forms(text: str) -> list[Any]:
    """The placeholder as Debezium writes it into columns of different types."""
    raw = text.encode()
    return [
        text,
        raw,
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
        raw.hex(),
        [text],
        list(raw),
        {text: text},
    ]


def _table(body: Mapping[str, Any]) -> tuple[str | None, str] | None:
    """The schema and the name of a change's table; None where it does not say them."""
    source = body.get("source")
    if type(source) is not dict or not (name := _name(source.get("table"))):
        return None
    schema = source.get("schema") or source.get("db")
    return (_name(schema), name) if schema is None or type(schema) is str else None


def _schema(message: Message, source: Mapping[str, Any]) -> str | None:
    """Where the table is: the schema, or the database of a server that has no schemas."""
    for part in ("schema", "db"):
        if source.get(part):
            return name_of(message, source[part], f"source.{part}")
    return None


def _name(value: Any) -> str | None:
    return value if type(value) is str else None


def _other(
    message: Message, body: dict[str, Any], encoding: JsonEncoding | AvroEncoding
) -> Iterable[ChangeEvent]:
    """Messages without an op: heartbeats, DDL, transaction markers."""
    if "ddl" in body:
        return _ddl(message, body)
    if body.keys() >= MARKER and body.keys() <= MARKER | _TIMES:
        return ()
    if "ts_ms" in body and body.keys() <= _TIMES:
        return (_heartbeat(message, body, encoding.key(message)),)
    raise undecodable(message, "a change has no 'op'", _FLAT_HINT)


def _heartbeat(message: Message, body: dict[str, Any], key: dict[str, Any] | None) -> ChangeEvent:
    if key is not None and "serverName" not in key:
        # The only column of a table may be called so, too.
        raise undecodable(message, "a change has no 'op'", _FLAT_HINT)
    at = milliseconds(message, body["ts_ms"], "ts_ms")
    if at is None:
        raise undecodable(message, "a heartbeat has no time")
    origin = None if key is None else _name(key["serverName"])
    place = (message.partition, message.offset)
    return ChangeEvent("", "heartbeat", None, None, None, (), at, *place, origin=origin)


def _ddl(message: Message, body: dict[str, Any]) -> Iterable[ChangeEvent]:
    source = row_of(message, body, "source") or {}
    try:
        # Each is `"database"."table"`, or `"database"."schema"."table"`.
        ids = [change["id"].split('"')[1::2] for change in body.get("tableChanges") or ()]
        tables = [(parts[-1], parts[-2] if len(parts) > 1 else None) for parts in ids]
    except (TypeError, KeyError, IndexError, AttributeError):
        raise undecodable(message, "'tableChanges' of a statement names no tables") from None
    if type(body["ddl"]) is not str or type(source.get("table") or "") is not str:
        raise undecodable(message, "a statement, or its table, is no text")
    ts = milliseconds(message, source.get("ts_ms"), "source.ts_ms")
    return [
        ChangeEvent(
            table,
            "ddl",
            None,
            None,
            None,
            (),
            ts,
            message.partition,
            message.offset,
            detail=body["ddl"],
            namespace=schema,
        )
        for table, schema in tables or [(source.get("table") or "", _schema(message, source))]
    ]


def _position(message: Message, source: dict[str, Any], kind: Kind) -> tuple[int, ...]:
    return position_of(message, parts_of(message, source, kind))
