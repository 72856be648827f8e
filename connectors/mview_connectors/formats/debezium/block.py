"""Many of Debezium's JSON messages at once, where they are usual: a third of the time of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from mview.changelog import EventBlock, Kind
from mview.connector import Message
from mview_connectors.formats.debezium.encoding import BETWEEN, CLOSE, OPEN, Columns, schema_of
from mview_connectors.formats.debezium.envelope import Reader
from mview_connectors.formats.debezium.source import is_first, parts_of
from mview_connectors.formats.messages import (
    LAST_MS,
    POSITION_LIMIT,
    all_with_digits,
    fields_of,
    hold_reals,
    parse_objects,
    within,
)

_KINDS: Mapping[str, Kind] = {"c": "c", "u": "u", "d": "d"}

_NONE = type(None)

#: Stands for the event of a tombstone, which tells nothing.
_SILENT = ("", "", None, None, None, (), None, None)


def decode_block(messages: Sequence[Message], marks: Sequence[bytes]) -> EventBlock | None:
    """The events of many messages: see `Format`.

    Args:
        messages: with values of JSON, in log order.
        marks: what is in a message that has a value which was not sent.
    """
    there = [message for message in messages if message.value is not None]
    opened = _open([message.value or b"" for message in there])
    keys = _keys(there)
    if opened is None or keys is None or opened.holds(marks):
        return None
    bodies = all_with_digits(opened.texts, opened.bodies, "before", "after")
    befores, afters, sources, ops, transactions = fields_of(
        bodies, "before", "after", "source", "op", "transaction"
    )
    ids = [told.get("id") for told in transactions if told is not None]
    tables, snapshots, times = fields_of(sources, "table", "snapshot", "ts_ms")
    schemas = [source.get("schema") or source.get("db") or None for source in sources]
    is_usual = (
        set(ops) <= _KINDS.keys()
        and set(map(type, chain(befores, afters))) <= {dict, _NONE}
        and set(map(type, tables)) == {str}
        and "" not in tables
        and set(snapshots) <= {None, "false", False}
        and set(map(type, schemas)) <= {str, _NONE}
        and set(map(type, ids)) <= {str, int, _NONE}
        and set(map(type, times)) <= {int, _NONE}
        and within(times, LAST_MS)
    )
    if not is_usual:
        return None
    kinds = [_KINDS[op] for op in ops]
    positions = [*map(parts_of, there, sources, kinds)]
    places = [*chain.from_iterable(positions)]
    if not (set(map(type, places)) <= {int} and within(places, POSITION_LIMIT - 1)):
        return None
    for kind, key, before, after in zip(kinds, keys, befores, afters, strict=True):
        if (before is None and key is None) if kind == "d" else after is None:
            return None
    opened.read("before", befores)
    opened.read("after", afters)
    events = (tables, kinds, keys, befores, afters, positions, times, schemas)
    if len(there) == len(messages):
        return EventBlock(*events)
    rows = zip(*events, strict=True)
    every = [_SILENT if message.value is None else next(rows) for message in messages]
    return EventBlock(*map(list, zip(*every, strict=True)))


class _Bodies(NamedTuple):
    """Objects of JSON, their texts, and what the schema says that each came with, if one did."""

    bodies: list[dict[str, Any]]
    texts: Sequence[bytes]
    columns: Sequence[Columns] | None

    def holds(self, marks: Sequence[bytes]) -> bool:
        """Whether one of some texts is in any."""
        whole = b"\n".join(self.texts)
        return any(mark in whole for mark in marks)

    def read(self, image: str, rows: Sequence[dict[str, Any] | None]) -> None:
        """Have rows say what they are, as `envelope.read` does."""
        if self.columns is None:
            return
        for row, columns in zip(rows, self.columns, strict=True):
            if row:
                _read(row, columns(image))


def _read(row: dict[str, Any], readers: Mapping[str, Reader]) -> None:
    for name, reader in readers.items():
        if name in row:
            row[name] = reader(row[name])


def _open(texts: Sequence[bytes]) -> _Bodies | None:
    """What is in the texts, where either all have the schema in front as it is known, or none."""
    if not texts or not texts[0].startswith(OPEN):
        bodies = parse_objects(texts)
        is_known = bodies is not None and not any("payload" in body for body in bodies)
        return _Bodies(bodies, texts, None) if bodies is not None and is_known else None
    payloads, schemas = [], []
    head, columns = b"", None
    for text in texts:
        if columns is None or not text.startswith(head):
            head = text[: text.find(BETWEEN) + len(BETWEEN)]
            columns = schema_of(head) if head.startswith(OPEN) else None
        if columns is None or not text.endswith(CLOSE):
            return None
        payloads.append(text[len(head) : -len(CLOSE)])
        schemas.append(columns)
    bodies = parse_objects(payloads)
    return None if bodies is None else _Bodies(bodies, payloads, schemas)


def _keys(messages: Sequence[Message]) -> list[dict[str, Any] | None] | None:
    """The keys of messages; None: they take a closer look."""
    if any(message.key is None and not is_first(message.partition) for message in messages):
        return None  # several partitions have changes of a row, in no order
    texts = [message.key for message in messages if message.key is not None]
    if not texts:
        return [None] * len(messages)
    opened = _open(texts)
    if opened is None or hold_reals(texts, opened.bodies):
        return None
    opened.read("", opened.bodies)
    keys = iter(opened.bodies)
    return [None if message.key is None else next(keys) for message in messages]
