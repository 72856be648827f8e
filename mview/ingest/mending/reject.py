"""Changes that cannot be taken, on their way to the quarantine: through tasks, into an epoch."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from mview.connector import Message, TableHalt
from mview.errors import DecodeError
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

    def to_body(self) -> bytes:
        """A form that goes through tasks; see `from_body`."""
        form = {
            "table": str(self.table),
            "message": message_form(self.message),
            "why": plain(self.why),
            "event": self.event,
            "position": self.position,
            "source_ms": self.source_ms,
            "keys": b64encode(self.keys).decode(),
        }
        return orjson.dumps(form)

    @classmethod
    def from_body(cls, body: bytes) -> Reject:
        """The reject of `to_body`."""
        form = orjson.loads(body)
        return cls(
            RelationId.of(form["table"]),
            message_of(form["message"]),
            record(TableHalt, form["why"]),
            form["event"],
            form["position"],
            form["source_ms"],
            b64decode(form["keys"]),
        )


@dataclass
class Rejects:
    """Takes the changes of a split that cannot be taken.

    Attributes:
        suspects: tables of which a partition may have changes: any of them may be meant by a
            message of it that cannot be read. Where there is none, nobody can go on after it.
        taken: what was rejected.
    """

    suspects: Callable[[str], Sequence[TableSpec]]
    taken: list[Reject] = field(default_factory=list)

    def take_unread(self, message: Message, error: DecodeError) -> bool:
        """Take a message that cannot be read; returns whether any table is known to be meant."""
        tables = self.suspects(message.partition)
        self.taken += [
            Reject(table.name, message, TableHalt.of(error))
            for table in tables
            if message.offset >= table.since.get(message.partition, 0)
        ]
        return bool(tables)


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
