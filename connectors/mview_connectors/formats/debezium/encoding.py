"""Debezium's messages as JsonConverter writes them, with or without the schema envelope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from mview.changelog import UNCHANGED
from mview.connector import Message
from mview_connectors.formats.debezium.envelope import Reader, read, readers
from mview_connectors.formats.messages import (
    holds_reals,
    parse_object,
    refuse_repeated,
    undecodable,
    with_digits,
)

_HINT = "the connector must use JsonConverter for keys and values"

_AVRO_HINT = (
    "if it is Avro with a schema registry, set format.encoding: avro and format.registry.url under "
    "options, and run again; else " + _HINT
)


#: What a schema says: by image (`before`, `after`; "": the record itself), how columns are read.
Columns = Callable[[str], Mapping[str, Reader]]


class Opened(NamedTuple):
    """The value of a message, however it was written.

    Attributes:
        body: its fields; None: it is null.
        columns: of the schema that came with it; None: none came.
        text: the bytes that have the rows.
    """

    body: dict[str, Any] | None
    columns: Columns | None
    text: bytes


class JsonEncoding:
    """Reads values and keys."""

    def value(self, message: Message) -> Opened:
        """The value of a message that has one.

        Raises:
            DecodeError: it cannot be read.
        """
        raw = message.value or b""
        told = after_envelope(raw)
        if told is None:
            whole = parse_object(message, _AVRO_HINT if raw.startswith(b"\0") else _HINT)
            body, columns = _of_whole(whole)
        else:
            body, raw, columns = told
            refuse_repeated(message, raw, body)
        if body is None:
            return Opened(None, None, raw)
        if type(body) is not dict:
            raise undecodable(message, "'payload' is not a JSON object", _HINT)
        if holds_reals(raw, body.get("before"), body.get("after")):
            body = with_digits(raw) if told else payload(with_digits(raw))
        return Opened(body, columns, raw)

    def key(self, message: Message) -> dict[str, Any] | None:
        """The key columns; None when there are none, or another converter has written the key."""
        key = message.key
        if key is None:
            return None
        told = after_envelope(key)
        if told is None:
            try:
                whole = orjson.loads(key)
            except orjson.JSONDecodeError:
                return None
            if type(whole) is not dict:
                return None
            refuse_repeated(message, key, whole)
            body, columns = _of_whole(whole)
        else:
            body, key, columns = told
            refuse_repeated(message, key, body)
        if type(body) is not dict:
            return None
        if holds_reals(key, body):
            body = with_digits(key) if told else payload(with_digits(key))
        return body if columns is None else read(body, columns(""), UNCHANGED)

    def marks(self, forms: Sequence[Any]) -> list[bytes]:
        """What a message has in it that has one of some values."""
        return [orjson.dumps(form).strip(b'"[]') for form in forms if type(form) is not bytes]


def payload(body: dict[str, Any]) -> Any:
    """The message without its schema envelope; usually an object, or null."""
    if "payload" in body and len(body) == 2 and "schema" in body:
        schema = body["schema"]
        if schema is None or (type(schema) is dict and "type" in schema):
            return body["payload"]
    return body


def _of_whole(whole: dict[str, Any]) -> tuple[Any, Columns | None]:
    """What is in an envelope, if there is one, and what that says."""
    body = payload(whole)
    schema = None if body is whole else whole["schema"]
    return body, None if schema is None else lambda image: readers(schema, image)


#: What stands in front of the schema, between it and the payload, and at the end.
OPEN, BETWEEN, CLOSE = b'{"schema":', b',"payload":', b"}"


def after_envelope(raw: bytes) -> tuple[Any, bytes, Columns] | None:
    """The payload of a message, its text, and what the schema in front of it says.

    JsonConverter writes the same schema, ten times as long as the row, in front of every row: it is
    read once. None where the message is not written so: it is to be read whole.
    """
    if not raw.startswith(OPEN) or not raw.endswith(CLOSE):
        return None
    end = raw.find(BETWEEN) + len(BETWEEN)
    columns = schema_of(raw[:end])
    if columns is None:
        return None
    text = raw[end:-1]
    try:
        return orjson.loads(text), text, columns
    except orjson.JSONDecodeError:
        return None


@lru_cache(maxsize=256)
def schema_of(head: bytes) -> Columns | None:
    """What the schema says that all of a message is up to its payload.

    None where it is not: what is not written as it would be here may have a field twice.
    """
    text = head + b"null" + CLOSE
    try:
        whole = orjson.loads(text)
        is_plain = orjson.dumps(whole) == text
    except (orjson.JSONDecodeError, TypeError):  # TypeError: nested too deeply
        return None
    if not is_plain or payload(whole) is whole or whole["schema"] is None:
        return None
    schema = whole["schema"]
    return lru_cache(maxsize=4)(lambda image: readers(schema, image))
