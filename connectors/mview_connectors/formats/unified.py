"""The `unified` format: one JSON object per message or line, easy to write from any program.

    {"table": "orders", "op": "insert", "after": {"id": 7, "amount": "12.50"},
     "ts": 1700000000000, "position": 42}

| field | meaning |
|---|---|
| table | table name as the database has it; not needed for a heartbeat |
| op | insert, update, delete, truncate (or c, u, d, t), heartbeat |
| before | the row before, or at least its key columns: for a delete and a change of the key |
| after | the whole row after: needed for insert and update |
| key | the key columns; only needed for a delete without `before` |
| ts | commit time on the database's clock, in milliseconds; needed for a heartbeat |
| position | integer, list of integers, or digits: grows in commit order, equal when sent again |
| transaction | transaction id, if there is one |

A heartbeat says: every change committed up to `ts` stands before this message *in this partition*;
it lets views stay fresh while nothing changes. A writer to Kafka sends it to every partition of
every topic, or to a heartbeat topic that the configuration names.

Values: booleans true/false or 0/1; integers as JSON numbers; decimals as text ("12.50"), integers
and JSON numbers of at most 15 digits are taken too; floats as numbers, or "NaN", "Infinity",
"-Infinity"; dates "2024-02-29"; `timestamp` "2024-02-29T23:59:59.123456Z" or with an offset;
`timestamp_ntz` the same without; bytes as base64; lists as lists; all else is text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any

import pyarrow as pa

from mview.changelog import ChangeEvent, EventBlock, Kind
from mview.clock import SourceMs
from mview.connector import Message
from mview.errors import shown
from mview.schema import Column
from mview_connectors.formats import values as v
from mview_connectors.formats.messages import (
    LAST_MS,
    POSITION_LIMIT,
    all_with_digits,
    fields_of,
    format_options,
    holds_reals,
    milliseconds,
    name_of,
    parse_object,
    parse_objects,
    position_of,
    row_of,
    too_deep,
    transaction_of,
    undecodable,
    with_digits,
    within,
)

_FIELDS = dict.fromkeys(
    ("table", "schema", "op", "before", "after", "key", "ts", "position", "transaction")
)
_KINDS: dict[str, Kind] = {
    "insert": "c",
    "update": "u",
    "delete": "d",
    "truncate": "truncate",
    "heartbeat": "heartbeat",
    "c": "c",
    "u": "u",
    "d": "d",
    "t": "truncate",
}

#: Types of fields, as they are in a block of messages.
_ROW, _TEXT, _WHOLE = {dict, type(None)}, {str, type(None)}, {int, type(None)}


class UnifiedFormat:
    """Decodes the `unified` format; see the module."""

    in_band_heartbeats = True

    def __init__(self, options: Mapping[str, str]) -> None:
        format_options(options, {})

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """The one event of a message; none for a Kafka tombstone."""
        try:
            return self._decode(message)
        except RecursionError:
            raise too_deep(message) from None

    def _decode(self, message: Message) -> Iterable[ChangeEvent]:
        if message.value is None:
            return ()
        body = parse_object(message)
        if holds_reals(message.value, body.get("before"), body.get("after"), body.get("key")):
            body = with_digits(message.value)
        op = body.get("op")
        kind = _KINDS.get(op) if type(op) is str else None
        if kind is None:
            raise _bad_op(message, body)
        if not body.keys() <= _FIELDS.keys():
            raise undecodable(
                message,
                f"a change has an unknown field "
                f"{shown(next(n for n in body if n not in _FIELDS), 80)}",
                allowed=", ".join(_FIELDS),
            )
        ts = milliseconds(message, body.get("ts"), "ts")
        before = row_of(message, body, "before")
        after = row_of(message, body, "after")
        key = row_of(message, body, "key")
        table = "" if kind == "heartbeat" else name_of(message, body.get("table"), "table")
        schema = body.get("schema")
        if schema is not None:
            schema = name_of(message, schema, "schema")
        _complete(message, kind, before or key, after, ts)
        return (
            ChangeEvent(
                table,
                kind,
                key,
                before,
                after,
                _position(message, body.get("position")),
                ts,
                message.partition,
                message.offset,
                transaction_of(message, body.get("transaction")),
                namespace=schema,
            ),
        )

    def decode_block(self, messages: Sequence[Message]) -> EventBlock | None:
        """The events of many messages: see `Format`."""
        texts = [message.value for message in messages if message.value is not None]
        if len(texts) < len(messages) or (bodies := parse_objects(texts)) is None:
            return None
        if not set().union(*bodies) <= _FIELDS.keys():
            return None
        images = "before", "after", "key"
        if not set(map(type, chain(*fields_of(bodies, *images)))) <= _ROW:
            return None
        bodies = all_with_digits(texts, bodies, *images)
        befores, afters, keys = fields_of(bodies, *images)
        tables, ops, times = fields_of(bodies, "table", "op", "ts")
        schemas, places, transactions = fields_of(bodies, "schema", "position", "transaction")
        is_usual = (
            set(map(type, ops)) == {str}
            and set(map(type, times)) <= _WHOLE
            and set(map(type, schemas)) <= _TEXT
            and set(map(type, places)) <= _WHOLE
            and set(map(type, transactions)) <= _WHOLE | _TEXT
            and "" not in schemas
            and within(times, LAST_MS)
            and within(places, POSITION_LIMIT - 1)
        )
        if not is_usual:
            return None
        kinds = [_KINDS.get(op, "") for op in ops]
        for place, kind in enumerate(kinds):
            if kind in ("c", "u"):
                is_whole = afters[place] is not None
            elif kind == "d":
                is_whole = (befores[place] or keys[place]) is not None
            else:
                is_whole = kind == "heartbeat" and times[place] is not None
                tables[place] = ""
            if not is_whole:
                return None
        if set(map(type, tables)) != {str} or tables.count("") != kinds.count("heartbeat"):
            return None
        positions = [() if place is None else (place,) for place in places]
        return EventBlock(tables, kinds, keys, befores, afters, positions, times, schemas)

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type; UNCHANGED becomes null, as its caller notes it."""
        return v.convert(values, column, {})


def _bad_op(message: Message, body: dict[str, Any]) -> Exception:
    op = body.get("op")
    close = get_close_matches(op, _KINDS, n=1) if type(op) is str and len(op) < 40 else []
    return undecodable(
        message,
        "a change has no 'op'" if op is None else f"a change has an unknown op {shown(op, 80)}",
        f"write {close[0]!r}, if that is meant" if close else None,
        allowed=", ".join(_KINDS),
    )


def _complete(
    message: Message,
    kind: Kind,
    old: dict[str, Any] | None,
    after: dict[str, Any] | None,
    ts: SourceMs | None,
) -> None:
    """Raise unless the message has what its kind needs."""
    if kind == "heartbeat":
        if ts is None:
            raise undecodable(message, "a heartbeat has no 'ts'")
        return
    if kind in ("c", "u") and after is None:
        raise undecodable(message, "an insert or update has no 'after'")
    if kind == "d" and old is None:
        raise undecodable(message, "a delete has neither 'before' nor 'key'")


def _position(message: Message, position: Any) -> tuple[int, ...]:
    if position is None:
        return ()
    if type(position) is int:
        return position_of(message, (position,))
    if type(position) is str and len(position) <= 20 and position.isascii() and position.isdigit():
        position = int(position)
    parts = position if type(position) is list else [position]
    if not parts:
        raise undecodable(message, "'position' is an empty list")
    return position_of(message, parts)
