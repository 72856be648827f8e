"""Debezium's messages as JsonConverter writes them, with or without the schema envelope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from mview.changelog import UNCHANGED
from mview.connector import Message
from mview_connectors.formats.debezium_envelope import Reader, read, readers
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
    "options; else " + _HINT
)


class Opened(NamedTuple):
    """The value of a message, however it was written.

    Attributes:
        body: its fields; None: it is null.
        columns: by image (`before`, `after`), how the schema that came with it reads columns; None:
            none came.
    """

    body: dict[str, Any] | None
    columns: Callable[[str], Mapping[str, Reader]] | None


class JsonEncoding:
    """Reads values and keys."""

    def value(self, message: Message) -> Opened:
        """The value of a message that has one.

        Raises:
            DecodeError: it cannot be read.
        """
        raw = message.value or b""
        whole = parse_object(message, _AVRO_HINT if raw.startswith(b"\0") else _HINT)
        body = payload(whole)
        if body is None:
            return Opened(None, None)
        if type(body) is not dict:
            raise undecodable(message, "'payload' is not a JSON object", _HINT)
        schema = None if body is whole else whole["schema"]
        if holds_reals(raw, body.get("before"), body.get("after")):
            body = payload(with_digits(raw))
        return Opened(body, None if schema is None else lambda image: readers(schema, image))

    def key(self, message: Message) -> dict[str, Any] | None:
        """The key columns; None when there are none, or another converter has written the key."""
        key = message.key
        if key is None:
            return None
        try:
            parsed = orjson.loads(key)
        except orjson.JSONDecodeError:
            return None
        if type(parsed) is not dict:
            return None
        refuse_repeated(message, key, parsed)
        columns = payload(parsed)
        if type(columns) is not dict:
            return None
        schema = None if columns is parsed else parsed["schema"]
        if holds_reals(key, columns):
            columns = payload(with_digits(key))
        return columns if schema is None else read(columns, readers(schema, ""), UNCHANGED)

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
