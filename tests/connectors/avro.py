"""What Debezium writes through a converter for Avro, out of the same as JSON with its envelope; and
a registry that has the schemas.

Schemas are as Confluent's and Apicurio's AvroData make them of Connect's; fastavro writes.
"""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import fastavro

_PRIMITIVES = {
    **{"int8": "int", "int16": "int", "int32": "int", "int64": "long"},
    **{"float32": "float", "float64": "double", "float": "float", "double": "double"},
    **{"boolean": "boolean", "string": "string", "bytes": "bytes"},
}
_LOGICAL = {
    "org.apache.kafka.connect.data.Decimal": "decimal",
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}

#: The status and the body of an answer.
Answer = tuple[int, bytes]


class Registry:
    """A registry of schemas with what tests do to it.

    Attributes:
        url: its address.
        asked: paths that were asked for, with their login.
        answer: gives another answer than the right one; None: it does not.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.answer: Callable[[str], Answer | None] = lambda path: None
        self._schemas: dict[int, dict[str, Any]] = {}
        self._ids: dict[str, int] = {}
        self._subjects: dict[str, dict[str, Any]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append((self.path, self.headers["Authorization"]))
                status, body = registry.answer(self.path) or registry.right(self.path)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self._server = server
        self.url = f"http://127.0.0.1:{server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(self, schema: Any, number: int | None = None, **more: Any) -> int:
        """The id of a schema; `more` is of the answer, as `schemaType`."""
        text = json.dumps(schema)
        known = self._ids.setdefault(text + json.dumps(more), number or len(self._ids) + 1)
        self._schemas[known] = {"schema": text, **more}
        return known

    def refer(self, subject: str, schema: Any, **more: Any) -> dict[str, Any]:
        """A reference to a schema that stands under a subject."""
        self._subjects[f"/subjects/{subject}/versions/1"] = {"schema": json.dumps(schema), **more}
        return {"name": subject, "subject": subject, "version": 1}

    def right(self, path: str) -> Answer:
        if path == "/schemas/types":
            return 200, b'["JSON","PROTOBUF","AVRO"]'
        found = self._subjects.get(unquote(path))
        if path.startswith("/schemas/ids/"):
            found = self._schemas.get(int(path.rpartition("/")[2]))
        if found is None:
            return 404, b'{"error_code":40403,"message":"Schema not found"}'
        return 200, json.dumps(found).encode()


@cache
def registry() -> Registry:
    """One for who only needs schemas."""
    return Registry()


def avro_options(registry: Registry, **more: str) -> dict[str, str]:
    """The options of the format."""
    return {"format.encoding": "avro", "format.registry.url": registry.url, **more}


def as_avro(registry: Registry, enveloped: Any) -> bytes:
    """A message out of one of JsonConverter with its schema envelope."""
    schema = enveloped["schema"]
    return packed(registry, avro_schema(schema), _avro_value(schema, enveloped["payload"]))


def packed(registry: Registry, schema: Any, value: Any) -> bytes:
    """A message of a schema that is registered, as the wire has it."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(plain_schema(schema)), value)
    return b"\0" + registry.register(schema).to_bytes(4, "big") + file.getvalue()


def avro_schema(connect: Any) -> Any:
    """Avro's schema of Connect's."""
    return _avro(connect, set())


def _avro(connect: Any, met: set[str]) -> Any:
    schema = _required(connect, met)
    return ["null", schema] if connect.get("optional") else schema


def _required(connect: Any, met: set[str]) -> Any:
    kind, name = connect["type"], connect.get("name")
    meta: dict[str, Any] = {}
    if name is not None:
        meta = {"connect.name": name, "connect.version": connect.get("version", 1)}
    if "parameters" in connect:
        meta["connect.parameters"] = connect["parameters"]
    if kind == "struct":
        if name in met:
            return name
        met.add(name)
        head, _, own = str(name).rpartition(".")
        fields = [{"name": f["field"], "type": _avro(f, met)} for f in connect["fields"]]
        return {"type": "record", "name": own, "namespace": head, "fields": fields, **meta}
    if kind == "array":
        return {"type": "array", "items": _avro(connect["items"], met), **meta}
    if kind in ("int8", "int16"):
        meta["connect.type"] = kind
    if name in _LOGICAL:
        meta["logicalType"] = _LOGICAL[name]
    if name == "org.apache.kafka.connect.data.Decimal":
        precision = int(connect["parameters"].get("connect.decimal.precision", 64))
        meta |= {"scale": int(connect["parameters"]["scale"]), "precision": precision}
    return {"type": _PRIMITIVES[kind], **meta} if meta else _PRIMITIVES[kind]


def _avro_value(connect: Any, value: Any) -> Any:
    if value is None:
        return None
    kind = connect["type"]
    if kind == "struct":
        return {f["field"]: _avro_value(f, value.get(f["field"])) for f in connect["fields"]}
    if kind == "array":
        return [_avro_value(connect["items"], item) for item in value]
    if kind == "bytes":
        return base64.b64decode(value)
    return float(value) if kind in ("float", "double") else value


def plain_schema(schema: Any) -> Any:
    """A schema whose values are written as they are given."""
    if isinstance(schema, list):
        return [plain_schema(part) for part in schema]
    if isinstance(schema, dict):
        return {name: plain_schema(part) for name, part in schema.items() if name != "logicalType"}
    return schema
