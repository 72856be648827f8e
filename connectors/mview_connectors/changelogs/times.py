"""What one message says about the log before it."""

from __future__ import annotations

from mview.clock import SourceMs
from mview.connector import Format, Message
from mview.errors import DecodeError


def lower_bound(decoder: Format, message: Message) -> SourceMs | None:
    """A time such that all changes up to it stand before the end of this message, or None.

    A heartbeat vouches for its own time. After a change more changes of the same millisecond may
    follow, so it vouches for the millisecond before. What cannot be decoded says nothing here: its
    reader raises the error.
    """
    try:
        events = list(decoder.decode(message))
    except DecodeError:
        return None
    for event in reversed(events):
        if event.source_ms is not None and event.kind != "ddl":
            return SourceMs(event.source_ms - (0 if event.kind == "heartbeat" else 1))
    return None


def last_position(decoder: Format, message: Message, table: str) -> tuple[int, ...] | None:
    """The position of the last change of a table in a message, or None."""
    try:
        events = list(decoder.decode(message))
    except DecodeError:
        return None
    found = [event.position for event in events if event.table == table and event.position]
    return found[-1] if found else None
