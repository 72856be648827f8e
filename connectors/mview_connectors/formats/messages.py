"""What all formats share about messages: JSON parsing and errors that name the place."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import orjson

from mview.connector import Message
from mview.errors import ConfigError, DecodeError

#: Options of a connection's changes that start so belong to its format, the others to its client.
OPTION_PREFIX = "format."

#: Header in which the file reader notes file and byte of a line, for error messages.
PLACE_HEADER = "mview.place"

_EXCERPT = 200


def undecodable(message: Message, what: str, hint: str | None = None) -> DecodeError:
    """The error of a message: its place, the start of its text, and that nothing is lost."""
    value = message.value or b""
    excerpt = value[:_EXCERPT].decode("utf-8", "backslashreplace")[:_EXCERPT]
    place = next((text.decode() for name, text in message.headers if name == PLACE_HEADER), None)
    partition, _, _ = message.partition.rpartition("/")
    return DecodeError(
        what,
        where=place or f"{message.partition}, offset {message.offset}",
        got=excerpt if excerpt else "an empty message",
        safe="nothing after it was taken; published epochs are untouched",
        hint=hint or f"look at what writes {partition or message.partition}",
    )


def parse_object(message: Message, hint: str | None = None) -> dict[str, Any]:
    """The message's value as a JSON object.

    Raises:
        DecodeError: it is not JSON, or not an object.
    """
    try:
        value = orjson.loads(message.value or b"")
    except orjson.JSONDecodeError as error:
        raise undecodable(message, f"a change message is not JSON: {error}", hint) from None
    if type(value) is not dict:
        raise undecodable(message, "a change message is not a JSON object", hint)
    return value


def format_options(
    options: Mapping[str, str], allowed: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """The format's own options, without their prefix.

    Args:
        options: all options of a connection's changes; those without the prefix are passed over.
        allowed: names, each with the values it may have; no values: any text.

    Raises:
        ConfigError: an unknown name or value.
    """
    found = {}
    for name, value in options.items():
        if not name.startswith(OPTION_PREFIX):
            continue
        short = name.removeprefix(OPTION_PREFIX)
        if short not in allowed:
            close = get_close_matches(short, allowed, n=1)
            raise ConfigError(
                f"unknown format option {name!r}",
                allowed=", ".join(OPTION_PREFIX + known for known in allowed) or "none",
                hint=f"did you mean {OPTION_PREFIX + close[0]!r}?" if close else None,
            )
        if allowed[short] and value not in allowed[short]:
            raise ConfigError(
                f"format option {name!r} has an unknown value",
                got=value,
                allowed=", ".join(allowed[short]),
            )
        found[short] = value
    return found
