"""What one message says about the log before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mview.changelog import ChangeEvent
from mview.clock import SourceMs, SystemClock
from mview.connector import AHEAD_MS, Format, Message, events_of
from mview.errors import DecodeError


def lower_bound(decoder: Format, message: Message) -> SourceMs | None:
    """A time such that all changes up to it stand before the end of this message, or None.

    A heartbeat vouches for its own time. After a change more changes of the same millisecond may
    follow, so it vouches for the millisecond before. What cannot be decoded says nothing here: its
    reader raises the error.
    """
    try:
        return vouched(events_of(decoder, message, latest()))
    except DecodeError:
        return None


class Beat(NamedTuple):
    """A heartbeat: its time, and the name of the connector that sent it, where it says so."""

    at: SourceMs
    origin: str | None


def heartbeat(decoder: Format, message: Message) -> Beat | None:
    """What a message that nobody else reads vouches for, and who sent it.

    Raises:
        DecodeError: it cannot be decoded, or has a time to come.
    """
    events = events_of(decoder, message, latest())
    at = vouched(events)
    return None if at is None else Beat(at, events[-1].origin)


def sender(decoder: Format, message: Message) -> str | None:
    """The name of the connector that sent a change; "" where it has none, None: no change."""
    try:
        events = events_of(decoder, message)
    except DecodeError:
        return None
    return next((event.origin or "" for event in events if event.kind != "heartbeat"), None)


def latest() -> SourceMs:
    """The newest time that a message may have."""
    return SourceMs(SystemClock().now() + AHEAD_MS)


def vouched(events: Sequence[ChangeEvent]) -> SourceMs | None:
    """What the events of a message vouch for."""
    for event in reversed(events):
        if event.source_ms is not None and event.kind != "ddl":
            return SourceMs(event.source_ms - (0 if event.kind == "heartbeat" else 1))
    return None


def last_position(decoder: Format, message: Message, table: str) -> tuple[int, ...] | None:
    """The position of the last change of a table in a message, or None."""
    try:
        events = events_of(decoder, message)
    except DecodeError:
        return None
    positions = [event.position for event in events if event.table == table and event.position]
    return positions[-1] if positions else None
