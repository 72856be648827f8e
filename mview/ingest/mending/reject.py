"""Changes that cannot be taken, on their way to the quarantine: through tasks, into an epoch."""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from mview.connector import Message, TableHalt
from mview.errors import DecodeError, counted
from mview.files.records import plain, record
from mview.ingest.spec import TableSpec
from mview.relation import RelationId


@dataclass(frozen=True)
class Reject:
    """A change of a table that cannot be taken.

    Attributes:
        table: the table.
        message: what it came in.
        why: the error.
        event: which event of the message, counted from 0; None: the message itself cannot be read,
            so it may have any changes of the table.
        position: the change's (`changelog.encode_position`); empty: unknown.
        source_ms: its commit time on the source's clock; None: unknown.
        keys: the keys whose rows it changes, as Arrow IPC of the key columns; empty: unknown.
    """

    table: RelationId
    message: Message
    why: TableHalt
    event: int | None = None
    position: str = ""
    source_ms: int | None = None
    keys: bytes = b""


def to_bodies(rejects: Sequence[Reject]) -> Iterator[tuple[RelationId, bytes]]:
    """Rejects in a form that goes through tasks; see `of_body`. A message is in it once per table.

    Yields:
        The table, and what was rejected of a message.
    """
    some: dict[tuple[RelationId, Message], list[Reject]] = defaultdict(list)
    for reject in rejects:
        some[reject.table, reject.message].append(reject)
    for (table, message), changes in some.items():
        told = [
            {
                "why": plain(reject.why),
                "event": reject.event,
                "position": reject.position,
                "source_ms": reject.source_ms,
                "keys": b64encode(reject.keys).decode(),
            }
            for reject in changes
        ]
        form = {"table": str(table), "message": message_form(message), "rejects": told}
        yield table, orjson.dumps(form)


def of_body(body: bytes) -> list[Reject]:
    """The rejects of one of `to_bodies`."""
    form = orjson.loads(body)
    table, message = RelationId.of(form["table"]), message_of(form["message"])
    return [
        Reject(
            table,
            message,
            record(TableHalt, told["why"]),
            told["event"],
            told["position"],
            told["source_ms"],
            b64decode(told["keys"]),
        )
        for told in form["rejects"]
    ]


class QuarantineRoom(NamedTuple):
    """What a connection may have in quarantine.

    Attributes:
        changes: how many.
        bytes: of their messages.
    """

    changes: int = sys.maxsize
    bytes: int = sys.maxsize

    def is_enough(self, changes: int, size: int) -> bool:
        """Whether so many changes, in messages of so many bytes, may be there."""
        return changes <= self.changes and size <= self.bytes

    def full(self, table: RelationId, why: TableHalt, changes: int, size: int) -> DecodeError:
        """The error of a table with a change for which there is no room."""
        return DecodeError(
            f"the quarantine of connection {table.connection} is full: {why.what}",
            where=why.where,
            # What halts a table has no room for what is allowed.
            got=f"{counted(changes, 'change')} of {size:,} bytes; allowed are "
            f"{self.changes:,} (quarantine_changes) of {self.bytes:,} bytes (quarantine_bytes)",
            hint="correct what writes such changes, or allow more of them under "
            f"changes.{table.connection}",
        )


@dataclass
class Rejects:
    """Takes the changes of a split that cannot be taken.

    Attributes:
        suspects: tables of which a partition may have changes: any of them may be meant by a
            message of it that cannot be read. Where there is none, nobody can go on after it.
        room: what there is, whatever is there already: more would halt in any case.
        taken: what was rejected.
    """

    suspects: Callable[[str], Sequence[TableSpec]]
    room: QuarantineRoom = field(default_factory=QuarantineRoom)
    taken: list[Reject] = field(default_factory=list)
    _messages: dict[RelationId, set[Message]] = field(default_factory=lambda: defaultdict(set))
    _bytes: dict[RelationId, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def left(self) -> int:
        """How many changes more there is room for."""
        return self.room.changes - len(self.taken)

    def take(self, reject: Reject) -> None:
        """Take a change.

        Raises:
            DecodeError: there is no room for it. Nothing of its table is kept then.
        """
        table = reject.table
        self.taken.append(reject)
        if reject.message not in self._messages[table]:
            self._messages[table].add(reject.message)
            self._bytes[table] += message_bytes(reject.message)
        changes, size = len(self.taken), sum(self._bytes.values())
        if not self.room.is_enough(changes, size):
            self.taken = [taken for taken in self.taken if taken.table != table]
            del self._messages[table], self._bytes[table]
            raise self.room.full(table, reject.why, changes, size)

    def meant(self, message: Message) -> list[TableSpec]:
        """The tables that a message may be of which cannot be read."""
        return [
            table
            for table in self.suspects(message.partition)
            if message.offset >= table.since.get(message.partition, 0)
        ]


def message_form(message: Message) -> dict[str, Any]:
    """A message as JSON has it; see `message_of`."""
    return {
        "partition": message.partition,
        "offset": message.offset,
        "key": _text(message.key),
        "value": _text(message.value),
        "headers": [[name, _text(value)] for name, value in message.headers],
    }


def message_of(form: Any) -> Message:
    """The message of `message_form`.

    Raises:
        ValueError: it is another form.
    """
    try:
        return Message(
            str(form["partition"]),
            int(form["offset"]),
            _bytes(form["key"]),
            _bytes(form["value"]),
            tuple((str(name), _bytes(value) or b"") for name, value in form["headers"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no message: {error}") from None


def message_bytes(message: Message) -> int:
    """The bytes of a message."""
    parts = [message.key, message.value, *(value for _, value in message.headers)]
    return sum(len(part) for part in parts if part is not None)


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
