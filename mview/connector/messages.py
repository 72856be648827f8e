"""Messages of changelogs: where they stand, and events of them whoever made the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mview.changelog import ChangeEvent, EventBlock
from mview.clock import END_OF_TIME, SourceMs, utc_text
from mview.errors import DecodeError, MviewError, shown

if TYPE_CHECKING:
    from mview.connector import Format


class Message(NamedTuple):
    """One raw message: a Kafka record, or a line of a change file."""

    partition: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


#: Header in which the reader of files notes file and byte of a line, for error messages.
PLACE_HEADER = "mview.place"

#: How far a source's clock may be ahead of the reader's: more than clocks differ that anybody sets,
#: less than the mistake of a time zone.
AHEAD_MS = 600_000


def place_of(message: Message) -> str:
    """Where a message stands, for errors."""
    noted = next((text.decode() for name, text in message.headers if name == PLACE_HEADER), None)
    return noted or f"{message.partition}, offset {message.offset}"


def reload_hint() -> str:
    """What gets a user past a message of which nobody knows the table: it stays in the log."""
    return (
        "`mview drop` the tables that it brings and run again: what is loaded anew begins after "
        "the message"
    )


def passed_by(error: DecodeError, way: str, joint: str = "; then") -> DecodeError:
    """The error, with what gets past its message behind what is to be mended.

    >>> passed_by(DecodeError("no JSON", hint="correct it"), "run again").hint
    'correct it; then run again'
    """
    mends = error.hint if error.mends is None else error.mends
    told = DecodeError(**{**error.parts, "hint": f"{mends}{joint} {way}" if mends else way})
    told.table, told.mends = error.table, mends
    return told


def events_of(
    decoder: Format, message: Message, latest: SourceMs = END_OF_TIME
) -> Sequence[ChangeEvent]:
    """The events of a message, whoever made its format and whatever is in it.

    Args:
        decoder: the format.
        message: what it shall decode.
        latest: no event is newer: a heartbeat or change with a time to come, taken for true, would
            say that all up to then was read.

    Raises:
        DecodeError: with the place, for every message that gives no events.
        AwayError: a server that the format needs does not answer.
        ConfigError: it does not let us in.
    """
    try:
        events = list(decoder.decode(message))
    except MviewError:  # also of a server that it asks, as a registry of schemas
        raise
    except Exception as error:
        told = DecodeError(
            f"the format cannot read a message: {type(error).__name__}",
            where=place_of(message),
            got=shown(error),
            safe=_SAFE,
            hint="correct what writes it",
        )
        raise passed_by(told, reload_hint()) from error
    for event in events:
        if event.source_ms is not None and event.source_ms > latest:
            ahead = DecodeError(
                "a message has a time to come",
                where=place_of(message),
                got=f"{utc_text(event.source_ms)} UTC",
                allowed=f"up to {utc_text(latest)} UTC: {AHEAD_MS // 60_000} minutes more than the "
                "clock of this machine",
                safe=_SAFE,
                hint="if this machine's clock is behind, set it right and run again; else correct "
                "the clock, or the time zone, of what writes it",
            )
            raise passed_by(ahead, reload_hint(), ", then")
    return events


def block_of(decoder: Format, messages: Sequence[Message]) -> EventBlock | None:
    """The events of many messages, where their format reads many at once, and there is no other.

    None: they are to be read one by one, which tells what is wrong with one, too.
    """
    decode = getattr(decoder, "decode_block", None)
    if decode is None:
        return None
    try:
        block: EventBlock | None = decode(messages)
    except Exception:
        return None
    return block


_SAFE = "nothing after it was taken; published epochs are untouched"
