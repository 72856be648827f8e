"""The `debezium` format: Debezium's change messages as JSON, with or without the schema envelope.

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

Options, as the connector's properties are set (prefixed with `format.` in the configuration):
`decimal.handling.mode` (needed when texts of digits could be either form), `time.precision.mode`,
`binary.handling.mode`, `unavailable.value.placeholder`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from mview.changelog import UNCHANGED, ChangeEvent, Kind
from mview.connector import Message
from mview.errors import shown
from mview.schema import Column
from mview_connectors.formats.debezium_values import MODES, DebeziumValues
from mview_connectors.formats.messages import (
    format_options,
    holds_reals,
    milliseconds,
    name_of,
    parse_object,
    position_of,
    refuse_repeated,
    row_of,
    too_deep,
    transaction_of,
    undecodable,
    with_digits,
)

_PLACEHOLDER = "unavailable.value.placeholder"
_KINDS: dict[str, Kind] = {"c": "c", "r": "u", "u": "u", "d": "d", "t": "truncate"}

#: Logical messages (pg_logical_emit_message) are not changes of a table.
_NO_CHANGE = "m"

_JSON_HINT = "the connector must use JsonConverter for keys and values"
_FLAT_HINT = (
    "the messages look flattened: remove the transform (ExtractNewRecordState) from the connector"
)


class DebeziumFormat:
    """Decodes Debezium's JSON messages; see the module."""

    in_band_heartbeats = False

    def __init__(self, options: Mapping[str, str]) -> None:
        own = format_options(options, {**MODES, _PLACEHOLDER: ()})
        self._values = DebeziumValues(own)
        text = own.get(_PLACEHOLDER, "__debezium_unavailable_value")
        self._unavailable = _unavailable_forms(text)
        self._needles = [orjson.dumps(form).strip(b'"[]') for form in self._unavailable]

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """The events of a message: none or one, or one per table of a DDL statement."""
        try:
            return self._decode(message)
        except RecursionError:
            raise too_deep(message) from None

    def _decode(self, message: Message) -> Iterable[ChangeEvent]:
        if message.value is None:
            return ()
        body = _payload(parse_object(message, _JSON_HINT))
        if body is None:
            return ()
        if type(body) is not dict:
            raise undecodable(message, "'payload' is not a JSON object", _JSON_HINT)
        if holds_reals(message.value, body.get("before"), body.get("after")):
            body = _payload(with_digits(message.value))
        op = body.get("op")
        if op is None:
            return _other(message, body)
        if op == _NO_CHANGE:
            return ()
        kind = _KINDS.get(op) if type(op) is str else None
        if kind is None:
            raise undecodable(message, f"a change has an unknown op {shown(op, 80)}")
        return (self._change(message, body, kind),)

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type; UNCHANGED becomes null, as its caller notes it."""
        return self._values.convert(values, column)

    def _change(self, message: Message, body: dict[str, Any], kind: Kind) -> ChangeEvent:
        source = body.get("source")
        if type(source) is not dict or not source.get("table"):
            raise undecodable(message, "a change has no 'source' with its table")
        before, after = row_of(message, body, "before"), row_of(message, body, "after")
        key = _key(message)
        if kind in ("c", "u") and after is None:
            raise undecodable(message, "a create or update has no 'after'")
        if kind == "d" and before is None and key is None:
            raise undecodable(message, "a delete has neither 'before' nor a key")
        value = message.value or b""
        if any(needle in value for needle in self._needles):
            before, after = self._mark_unchanged(before), self._mark_unchanged(after)
        snapshot = body["op"] == "r" or source.get("snapshot") not in (None, "false", False)
        ts = milliseconds(message, source.get("ts_ms"), "source.ts_ms")
        transaction = row_of(message, body, "transaction") or {}
        return ChangeEvent(
            name_of(message, source["table"], "source.table"),
            kind,
            key,
            before,
            after,
            () if snapshot else _position(message, source, kind),
            None if snapshot else ts,
            message.partition,
            message.offset,
            transaction_of(message, transaction.get("id")),
        )

    def _mark_unchanged(self, row: Any) -> Any:
        if row is None:
            return None
        forms = self._unavailable
        return {name: UNCHANGED if value in forms else value for name, value in row.items()}


def _unavailable_forms(text: str) -> list[Any]:
    """The placeholder as Debezium writes it into columns of different types."""
    raw = text.encode()
    return [
        text,
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
        raw.hex(),
        [text],
        list(raw),
        {text: text},
    ]


def _payload(body: dict[str, Any]) -> Any:
    """The message without its schema envelope; usually an object, or null."""
    if "payload" in body and len(body) == 2 and "schema" in body:
        schema = body["schema"]
        if schema is None or (type(schema) is dict and "type" in schema):
            return body["payload"]
    return body


def _key(message: Message) -> dict[str, Any] | None:
    """The key columns; None when there are none, or the key is not JSON (another converter)."""
    key = message.key
    if key is None:
        return None
    try:
        parsed = orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    if type(parsed) is not dict:
        return None
    refuse_repeated(message, key, parsed)
    columns = _payload(parsed)
    if type(columns) is not dict:
        return None
    return _payload(with_digits(key)) if holds_reals(key, columns) else columns


def _other(message: Message, body: dict[str, Any]) -> Iterable[ChangeEvent]:
    """Messages without an op: heartbeats, DDL, transaction markers."""
    if "ddl" in body:
        return _ddl(message, body)
    if "status" in body and "id" in body and "op" not in body:
        return ()
    if "ts_ms" in body and set(body) <= {"ts_ms", "ts_us", "ts_ns"}:
        place = (message.partition, message.offset)
        at = milliseconds(message, body["ts_ms"], "ts_ms")
        if at is None:
            raise undecodable(message, "a heartbeat has no time")
        return (ChangeEvent("", "heartbeat", None, None, None, (), at, *place),)
    raise undecodable(message, "a change has no 'op'", _FLAT_HINT)


def _ddl(message: Message, body: dict[str, Any]) -> Iterable[ChangeEvent]:
    source = row_of(message, body, "source") or {}
    try:
        tables = [change["id"].split('"')[-2] for change in body.get("tableChanges") or ()]
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
        )
        for table in tables or [source.get("table") or ""]
    ]


def _position(message: Message, source: dict[str, Any], kind: Kind) -> tuple[int, ...]:
    return position_of(message, _parts(message, source, kind))


def _parts(message: Message, source: dict[str, Any], kind: Kind) -> tuple[Any, ...]:
    sub = 0 if kind == "d" else 1
    try:
        connector = source.get("connector")
        if connector in ("mariadb", "mysql"):
            # A truncate is no row event: its `row` is what the event before it left there.
            row = 0 if kind == "truncate" else source["row"]
            return (int(source["file"].rpartition(".")[2]), source["pos"], row, sub)
        if connector == "postgresql":
            _, *quoted = source["sequence"].split('"')
            lsn = int(quoted[-2])
            # null: no commit was seen since the connector began, so this row's own LSN is a lower
            # bound of what its commit will be, and above all commits before.
            return (int(quoted[0]) if len(quoted) > 2 else lsn, lsn, sub)
        if connector == "sqlserver":
            commit, change = source["commit_lsn"], source["change_lsn"]
            parts = [int(part, 16) for part in f"{commit}:{change}".split(":")]
            return (*parts, source["event_serial_no"] or 0, sub)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise undecodable(message, "the 'source' of a change has no readable position") from None
    return ()
