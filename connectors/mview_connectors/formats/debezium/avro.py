"""Debezium's messages as converters for Avro write them: a zero, the id of a schema, the values.

Confluent's converter writes so, and Apicurio's where it is told to (docs/sources.md). The
schema, which a registry has, says of columns what the envelope of JSON says: it is read as one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from mview.changelog import UNCHANGED
from mview.connector import Message, place_of
from mview.errors import ConfigError
from mview_connectors.formats.debezium.encoding import Columns, JsonEncoding, Opened
from mview_connectors.formats.debezium.envelope import read, readers
from mview_connectors.formats.messages import undecodable
from mview_connectors.registry import SchemaRegistry, UnknownSchemaError

#: A zero and the id, an integer of 4 bytes.
_MAGIC, _HEAD = b"\0", 5

_HINT = (
    "keys and values need a converter for Avro that writes schema ids of 4 bytes (Apicurio: "
    "apicurio.registry.as-confluent=true and apicurio.registry.headers.enabled=false)"
)

_JSON_HINT = (
    "if the connector has JsonConverter, remove format.encoding from options, and run again; else "
)

#: Connect's types that a schema names in Avro's way where it has no `connect.name`.
_LOGICAL = {
    "decimal": "org.apache.kafka.connect.data.Decimal",
    "timestamp-millis": "org.apache.kafka.connect.data.Timestamp",
    "time-millis": "org.apache.kafka.connect.data.Time",
}


class AvroEncoding:
    """Reads values and keys.

    Args:
        registry: has the schemas.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def value(self, message: Message) -> Opened:
        """The value of a message that has one.

        Raises:
            DecodeError: it cannot be read.
            AwayError: the registry does not answer.
            ConfigError: the registry does not let us in.
        """
        raw = message.value or b""
        if not _is_avro(raw):
            raise undecodable(
                message,
                "a change message is not Avro with the id of a schema",
                (_JSON_HINT if raw.startswith(b"{") else "") + _HINT,
            )
        body, schema = self._read(message, raw)
        if type(body) is not dict:
            raise undecodable(message, "a change message is no record of Avro", _HINT)
        return Opened(body, schema.columns, raw)

    def key(self, message: Message) -> dict[str, Any] | None:
        """The key columns; None when there are none, or another converter has written the key."""
        if message.key is None or not _is_avro(message.key):
            # Keys and values have a converter each: that of the keys may be JsonConverter.
            return JsonEncoding().key(message)
        columns, schema = self._read(message, message.key)
        return read(columns, schema.columns(""), UNCHANGED) if type(columns) is dict else None

    def marks(self, forms: Sequence[Any]) -> list[bytes]:
        """What a message has in it that has one of some values."""
        return [mark for mark in map(_written, forms) if mark]

    def _read(self, message: Message, raw: bytes) -> tuple[Any, _Schema]:
        schema = self._schema(message, int.from_bytes(raw[1:_HEAD], "big"))
        content = io.BytesIO(raw)
        content.seek(_HEAD)
        try:
            value = schema.read(content)
        except Exception as error:
            raise undecodable(
                message,
                f"a message is not of the schema that it names: {type(error).__name__}: {error}",
                _HINT,
            ) from None
        if content.tell() != len(raw):
            left = len(raw) - content.tell()
            raise undecodable(message, f"a message has {left} bytes after its record", _HINT)
        return value, schema

    def _schema(self, message: Message, number: int) -> _Schema:
        place = (self._registry.name, number)
        known = _SCHEMAS.get(place)
        if known is not None:
            return known
        where = f"schema {number} in the registry at {self._registry.name}"
        try:
            kind, texts = self._registry.schema(number, place_of(message))
        except UnknownSchemaError as error:
            raise undecodable(
                message,
                f"there is no {where}: {error}",
                "restore the schema there, or set format.registry.url to the registry of the "
                "connector (Apicurio: apicurio.registry.use-id=contentId), and run again: reading "
                "goes on at this message, unless its table has halted. Where the schema is lost, "
                "let the connector register it anew",
            ) from None
        if kind != "AVRO":
            raise undecodable(message, f"{where} is none of Avro", _HINT, allowed="AVRO")
        try:
            known = _SCHEMAS[place] = _Schema(texts)
        except ConfigError:
            raise
        except Exception as error:
            raise undecodable(
                message, f"{where} cannot be read: {type(error).__name__}: {error}"
            ) from None
        return known


class _Schema:
    """A schema, ready to read with.

    Args:
        texts: those that it refers to, each before who needs it, and then its own.

    Attributes:
        read: reads a value from a file.
        columns: what it says of them.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        fastavro = _library()
        types: dict[str, Any] = {}
        told: dict[str, Any] = {}
        for text in texts:
            written = orjson.loads(text)
            plain = fastavro.parse_schema(_as_written(written), types)
            connect = _connect(written, "", told)
        self.read: Callable[[io.BytesIO], Any] = lambda file: fastavro.schemaless_reader(
            file, plain, None
        )
        self.columns: Columns = lru_cache(lambda image: readers(connect, image))


#: By registry and id. A schema of an id never changes; decoders are made anew for each epoch.
_SCHEMAS: dict[tuple[str, int], _Schema] = {}


def _library() -> Any:
    """fastavro, which only who needs it has.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import fastavro
    except ImportError:
        raise ConfigError(
            "format.encoding: avro needs fastavro",
            where="options.format.encoding",
            hint="pip install 'mview-engine[avro]' --find-links DIR, where mview's wheel is",
        ) from None
    return fastavro


def check_avro() -> None:
    """Raise where messages in Avro cannot be read for want of a library."""
    _library()


def _is_avro(raw: bytes) -> bool:
    return raw.startswith(_MAGIC) and len(raw) >= _HEAD


def _as_written(schema: Any) -> Any:
    """A schema without what makes other values of those that are written.

    So numbers, texts and bytes come, as they come by JSON: a decimal as bytes, a date as days.
    """
    if type(schema) is list:
        return [_as_written(part) for part in schema]
    if type(schema) is not dict:
        return schema
    return {
        name: _as_written(part) if name in _NESTED else part
        for name, part in schema.items()
        if name not in ("logicalType", "default")
    }


#: Where schemas hold schemas.
_NESTED = ("type", "fields", "items", "values")


def _connect(schema: Any, namespace: str, told: dict[str, Any]) -> dict[str, Any]:
    """The schema of Kafka Connect that a converter made a schema of, as JSON's envelope has it.

    Args:
        schema: of Avro, parsed from JSON.
        namespace: in which names without one are.
        told: those with names that were met; more are added.
    """
    if type(schema) is list:
        others = [part for part in schema if part != "null"]
        return _connect(others[0], namespace, told) if len(others) == 1 else {}
    if type(schema) is str:
        known = told.get(schema) or told.get(f"{namespace}.{schema}")
        return {"type": schema} if known is None else known
    kind = schema["type"]
    if type(kind) is not str:
        return {**_connect(kind, namespace, told), **_named(schema)}
    connect: dict[str, Any] = {"type": "struct" if kind == "record" else kind, **_named(schema)}
    if kind in ("record", "enum", "fixed"):
        head, _, own = str(schema["name"]).rpartition(".")
        namespace = head or schema.get("namespace", namespace)
        told[f"{namespace}.{own}" if namespace else own] = connect
    if kind == "record":
        connect["fields"] = [
            {**_connect(field["type"], namespace, told), "field": field["name"]}
            for field in schema["fields"]
        ]
    if kind == "array":
        connect["items"] = _connect(schema["items"], namespace, told)
    return connect


def _named(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a schema says of the meaning of its values."""
    said: dict[str, Any] = {}
    name = schema.get("connect.name", _LOGICAL.get(schema.get("logicalType", "")))
    if name is not None:
        said["name"] = name
    parameters = dict(schema.get("connect.parameters") or {})
    if "scale" in schema or schema.get("logicalType") == "decimal":
        parameters.setdefault("scale", str(schema.get("scale", 0)))
    if parameters:
        said["parameters"] = parameters
    return said


def _written(form: Any) -> bytes:
    """A value as Avro has it, without its length; nothing where others stand for it."""
    if type(form) is str:
        return form.encode()
    if type(form) is list and form and type(form[0]) is int:
        # An integer is twice itself, in groups of 7 bits from the lowest up.
        return b"".join(_number(2 * item) for item in form)
    return form if type(form) is bytes else b""


def _number(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])
