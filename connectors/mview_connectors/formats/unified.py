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

Values: booleans true/false or 0/1; integers as JSON numbers; decimals as text ("12.50"), JSON
numbers of at most 15 digits are taken too; floats as numbers, or "NaN", "Infinity", "-Infinity";
dates "2024-02-29"; `timestamp` "2024-02-29T23:59:59.123456Z" or with an offset; `timestamp_ntz` the
same without; bytes as base64; lists as lists; all else is text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from mview.changelog import ChangeEvent, Kind
from mview.clock import SourceMs
from mview.connector import Message
from mview.schema import Column
from mview_connectors.formats import values as v
from mview_connectors.formats.messages import format_options, parse_object, undecodable

_FIELDS = dict.fromkeys(("table", "op", "before", "after", "key", "ts", "position", "transaction"))
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

#: Positions are stored as text of 20 digits per part.
_POSITION_LIMIT = 10**20


class UnifiedFormat:
    """Decodes the `unified` format; see the module."""

    in_band_heartbeats = True

    def __init__(self, options: Mapping[str, str]) -> None:
        format_options(options, {})

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """The one event of a message; none for a Kafka tombstone."""
        if message.value is None:
            return ()
        body = parse_object(message)
        kind = _KINDS.get(body.get("op", ""))
        if kind is None:
            raise _bad_op(message, body)
        if not body.keys() <= _FIELDS.keys():
            raise undecodable(
                message,
                f"a change has an unknown field {next(n for n in body if n not in _FIELDS)!r}",
                f"fields are {', '.join(_FIELDS)}",
            )
        ts = body.get("ts")
        if ts is not None and type(ts) is not int:
            raise undecodable(message, "'ts' is not an integer of milliseconds")
        before = _row(message, body, "before")
        after = _row(message, body, "after")
        key = _row(message, body, "key")
        table = body.get("table", "")
        _complete(message, kind, table, before or key, after, ts)
        return (
            ChangeEvent(
                table,
                kind,
                key,
                before,
                after,
                _position(message, body.get("position")),
                None if ts is None else SourceMs(ts),
                message.partition,
                message.offset,
                body.get("transaction"),
            ),
        )

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type; UNCHANGED becomes null, as its caller notes it."""
        return v.convert(values, column, {})


def _bad_op(message: Message, body: dict[str, Any]) -> Exception:
    op = body.get("op")
    close = get_close_matches(str(op), _KINDS, n=1)
    return undecodable(
        message,
        "a change has no 'op'" if op is None else f"a change has an unknown op {op!r}",
        f"did you mean {close[0]!r}?" if close else f"one of {', '.join(_KINDS)}",
    )


def _row(message: Message, body: dict[str, Any], name: str) -> dict[str, Any] | None:
    row = body.get(name)
    if row is not None and type(row) is not dict:
        raise undecodable(message, f"{name!r} is not a JSON object")
    return row


def _complete(
    message: Message,
    kind: Kind,
    table: Any,
    old: dict[str, Any] | None,
    after: dict[str, Any] | None,
    ts: int | None,
) -> None:
    """Raise unless the message has what its kind needs."""
    if kind == "heartbeat":
        if ts is None:
            raise undecodable(message, "a heartbeat has no 'ts'")
        return
    if not table or type(table) is not str:
        raise undecodable(message, "a change has no 'table'")
    if kind in ("c", "u") and after is None:
        raise undecodable(message, "an insert or update has no 'after'")
    if kind == "d" and old is None:
        raise undecodable(message, "a delete has neither 'before' nor 'key'")


def _position(message: Message, position: Any) -> tuple[int, ...]:
    if type(position) is int and 0 <= position < _POSITION_LIMIT:
        return (position,)
    if position is None:
        return ()
    parts = position if type(position) is list else [position]
    if type(position) is str and position.isdecimal():
        parts = [int(position)]
    if not parts or any(type(p) is not int or not 0 <= p < _POSITION_LIMIT for p in parts):
        raise undecodable(
            message,
            f"'position' is {str(position)[:60]!r}",
            "an integer >= 0, a list of them, or a text of digits",
        )
    return tuple(parts)
