"""What all formats share about messages: JSON parsing and errors that name the place.

orjson makes a double of every number that is no 64-bit integer, whatever its digits. So a message
whose rows hold a double is parsed once more, into numbers that keep their digits: three times as
slow, for such messages only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from itertools import chain
from typing import Any

import orjson

from mview.clock import SourceMs
from mview.connector import Message, passed_by, place_of, reload_hint
from mview.errors import ConfigError, DecodeError, shown

#: Options of a connection's changes that start so belong to its format, the others to its client.
OPTION_PREFIX = "format."

_EXCERPT = 200

#: JSON's integer -0, which stands for a double where Go writes one; in a text it does no harm.
_NEGATIVE_ZERO = re.compile(rb"-0(?=[\s,}\]])")

#: The last millisecond of the year 9999.
LAST_MS = 253_402_300_799_999

#: Positions are stored as texts of 20 digits per part.
POSITION_LIMIT = 10**20

#: Digits of an integer that are read as one.
_LONGEST = 1000

#: Characters of a number that a double gives back as it was, as far as it has no exponent.
_SHORT = 16


def undecodable(
    message: Message, what: str, hint: str | None = None, *, allowed: str | None = None
) -> DecodeError:
    """The error of a message: its place, the start of its text, and that nothing is lost.

    Args:
        message: the message.
        what: what is wrong with it.
        hint: what to correct; else, what writes the messages.
        allowed: what would be right.
    """
    value = message.value or b""
    excerpt = value[:_EXCERPT].decode("utf-8", "backslashreplace")[:_EXCERPT]
    topic, _, _ = message.partition.rpartition("/")
    error = DecodeError(
        what,
        where=place_of(message),
        got=excerpt if excerpt else "an empty message",
        allowed=allowed,
        safe="nothing after it was taken; published epochs are untouched",
        hint=hint or f"correct what writes {topic or message.partition}",
    )
    return passed_by(error, reload_hint())


def parse_object(message: Message, hint: str | None = None) -> dict[str, Any]:
    """The message's value as a JSON object.

    Raises:
        DecodeError: it is not JSON, or not an object.
    """
    raw = message.value or b""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise undecodable(message, f"a change message is not JSON: {error}", hint) from None
    if type(value) is not dict:
        raise undecodable(message, "a change message is not a JSON object", hint)
    refuse_repeated(message, raw, value)
    return value


def parse_objects(texts: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """JSON objects of many messages, as `parse_object` gives them.

    None: one of them is none, or it takes a closer look at each to know whether it is.
    """
    try:
        parsed = [*map(orjson.loads, texts)]
    except orjson.JSONDecodeError:
        return None
    if set(map(type, parsed)) != {dict}:
        return None
    # As in `refuse_repeated`: none has fewer colons than keys, so the sums tell as much.
    colons = b"".join(texts).count(b":")
    fields = chain.from_iterable(map(dict.values, parsed))
    keys = sum(map(len, parsed)) + sum([len(field) for field in fields if type(field) is dict])
    if colons != keys:
        if any(b"\\u003" in text for text in texts):
            return None
        try:
            again = orjson.dumps(parsed)
        except TypeError:
            return None
        if colons != again.count(b":"):
            return None
    return parsed


def too_deep(message: Message) -> DecodeError:
    """The error of a message whose values lie in each other too often to be read."""
    return undecodable(message, "a change message is nested too deeply")


def refuse_repeated(message: Message, raw: bytes, parsed: Any) -> None:
    """Raise where an object of a JSON text has a key twice: orjson keeps the last.

    None was lost where there is no colon more than keys. Else texts have some, too: written again,
    the whole has as many as before, unless a key was lost. Not so where a colon may be written as a
    number: then it is parsed once more.
    """
    colons = raw.count(b":")
    if type(parsed) is dict and colons == len(parsed) + sum(
        [len(value) for value in parsed.values() if type(value) is dict]
    ):
        return
    try:
        again = orjson.dumps(parsed)
    except TypeError:  # it writes 254 levels, and reads 1,024
        raise too_deep(message) from None
    if colons != again.count(b":") or b"\\u003" in raw:
        _find_repeated(message, raw)


def _find_repeated(message: Message, raw: bytes) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> None:
        names = {name for name, _ in pairs}
        if len(names) < len(pairs):
            listed = [name for name, _ in pairs]
            twice = next(name for name in listed if listed.count(name) > 1)
            raise undecodable(message, f"a change message has the field {shown(twice, 80)} twice")

    # Numbers are not looked at: some have more digits than Python reads.
    json.loads(raw, object_pairs_hook=unique, parse_int=str, parse_float=str)


def row_of(message: Message, body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """A field that is a JSON object, or null, or not there."""
    row = body.get(name)
    if row is not None and type(row) is not dict:
        raise undecodable(message, f"{name!r} is not a JSON object")
    return row


def milliseconds(message: Message, value: Any, name: str) -> SourceMs | None:
    """A field that is a time in milliseconds, or null."""
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= LAST_MS:
        raise undecodable(
            message,
            f"{name!r} is no time in milliseconds: {shown(value, 80)}",
            allowed="milliseconds since 1970, up to the year 9999: not seconds, not microseconds",
        )
    return SourceMs(value)


def position_of(message: Message, parts: Sequence[Any]) -> tuple[int, ...]:
    """The parts of a position, each of which is kept as a text of 20 digits."""
    for part in parts:
        if type(part) is not int or not 0 <= part < POSITION_LIMIT:
            raise undecodable(
                message,
                f"the position of a change is {shown(parts, 80)}",
                allowed="integers from 0 to 10^20 - 1",
            )
    return tuple(parts)


def within(numbers: Sequence[int | None], last: int) -> bool:
    """Whether numbers are from 0 to `last`, as far as they are there."""
    known = [number for number in numbers if number is not None]
    return not known or (min(known) >= 0 and max(known) <= last)


def name_of(message: Message, value: Any, name: str) -> str:
    """A field that names something."""
    if value is None or value == "":
        raise undecodable(message, f"a change has no {name!r}")
    if type(value) is not str:
        raise undecodable(message, f"{name!r} is not a name: {shown(value, 80)}")
    return value


def transaction_of(message: Message, value: Any) -> str | None:
    """A transaction id, as text."""
    if value is None or type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    raise undecodable(message, f"the transaction's id is no text: {shown(value, 80)}")


def holds_reals(message: bytes, *rows: Any) -> bool:
    """Whether rows of a parsed message may hold numbers that have lost digits, or their sign."""
    kinds: set[type] = set()
    for row in rows:
        kinds.update(map(type, row.values()) if type(row) is dict else (type(row),))
    plain = kinds <= _PLAIN or not any(map(_holds_double, rows))
    return not plain or (b"-0" in message and _NEGATIVE_ZERO.search(message) is not None)


#: Types of values that are no doubles and hold none.
_PLAIN = frozenset((str, int, bool, type(None)))


def _holds_double(value: Any) -> bool:
    if type(value) is dict:
        value = value.values()
    elif type(value) is not list:
        return type(value) is float
    kinds = set(map(type, value))
    return float in kinds or (bool(kinds & {dict, list}) and any(map(_holds_double, value)))


def hold_reals(texts: Sequence[bytes], rows: Iterable[dict[str, Any] | None]) -> bool:
    """Whether it takes a look at each of many messages to tell whether it `holds_reals`."""
    kinds = set(map(type, chain.from_iterable(map(dict.values, filter(None, rows)))))
    return not kinds <= _PLAIN or _NEGATIVE_ZERO.search(b"\n".join(texts)) is not None


def fields_of(bodies: Sequence[Mapping[str, Any]], *names: str) -> list[list[Any]]:
    """Of some fields the values in each of many objects, None where there is none."""
    return [[body.get(name) for body in bodies] for name in names]


def all_with_digits(
    texts: Sequence[bytes], bodies: list[dict[str, Any]], *images: str
) -> list[dict[str, Any]]:
    """The objects of texts, each with the digits of the numbers in some of its rows.

    Args:
        texts: of the objects.
        bodies: as they were read.
        images: the fields that are rows.
    """
    rows = fields_of(bodies, *images)
    if not hold_reals(texts, chain(*rows)):
        return bodies
    return [
        with_digits(text) if holds_reals(text, *[row[place] for row in rows]) else body
        for place, (text, body) in enumerate(zip(texts, bodies, strict=True))
    ]


def with_digits(message: bytes) -> Any:
    """A message that orjson has read, with the digits of its numbers.

    Integers are `int`, whatever their size. Other numbers, and -0, are `float` only where that has
    all their digits, else `Decimal`.
    """
    return _WITH_DIGITS.decode(message.decode())


def _real(text: str) -> float | Decimal:
    short = len(text) <= _SHORT and "e" not in text and "E" not in text
    return float(text) if short else Decimal(text)


def _whole(text: str) -> int | Decimal:
    # What has so many digits fits no column; Python does not read it as an integer.
    return Decimal(text) if text == "-0" or len(text) > _LONGEST else int(text)


_WITH_DIGITS = json.JSONDecoder(parse_float=_real, parse_int=_whole)


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
    known = {}
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
        known[short] = value
    return known
