"""Writers of every format, which are not its own code: for the contract, and for whole runs."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterable
from decimal import Context, Decimal
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from mview_connectors.formats.mysql_values import mysql_type
from mview_connectors.formats.ownlog.noted import noted_message
from mview_connectors.formats.written import json_values

from mview.clock import SourceMs
from mview.connector import Format, load
from mview.schema import parse_type
from mview.testing import FormatHarness, RowChange
from mview.testing.formats import Row, Written
from tests.connectors.avro import as_avro, avro_options, registry

_UTC = dt.timezone.utc


class Writer(FormatHarness):
    """A format by its name.

    Attributes:
        format: the name.
        options: what its configuration states.
    """

    format: str
    options: ClassVar[dict[str, str]] = {}

    def open(self) -> Format:
        decoder: Format = load("formats", self.format)(self.options)
        return decoder


class MysqlHarness(Writer):
    """Columns of MySQL that are easily read wrong."""

    columns = (
        ("id", "bigint", "bigint(20)"),
        ("tiny", "smallint", "tinyint(3) unsigned"),
        ("big", "decimal(20,0)", "bigint(20) unsigned"),
        ("price", "decimal(38,10)", "decimal(38,10)"),
        ("real", "float", "float"),
        ("long", "double", "double"),
        ("name", "string", "varchar(20)"),
        ("state", "string", "enum('new','it''s','a,b')"),
        ("tags", "string", "set('x','y','z')"),
        ("flag", "boolean", "bit(1)"),
        ("bits", "binary", "bit(12)"),
        ("fixed", "binary", "binary(4)"),
        ("bytes", "binary", "varbinary(300)"),
        ("day", "date", "date"),
        ("local", "timestamp_ntz", "datetime(3)"),
        ("at", "timestamp", "timestamp(6)"),
        ("clock", "string", "time(3)"),
    )
    values: ClassVar = {
        "tiny": (0, 255),
        "big": (Decimal(0), Decimal(2**64 - 1)),
        "price": (Decimal("0E-10"), Decimal("-9999999999999999999999999999.9999999999")),
        "real": (0.10000000149011612, -3.4028234663852886e38, 0.0),
        "long": (0.1, 1e-300, -1.7976931348623157e308, 2.0**53 + 2),
        "name": ("", " ", "7", "é😀", "NULL", "null", '"\\\n\t', "a:b,{}"),
        "state": ("new", "it's", "a,b"),
        "tags": ("", "x", "x,z"),
        "flag": (True, False),
        "bits": (b"\x00\x00", b"\x0f\xff", b"\x01\x00"),
        "fixed": (b"\x00\xff\x00\x00", b"\x00\x00\x00\x00", b"abcd"),
        "bytes": (b"", b"\x00", bytes(range(256))),
        "day": (dt.date(1000, 1, 1), dt.date(2024, 2, 29), dt.date.max),
        "local": (dt.datetime(1000, 1, 1), dt.datetime(2024, 2, 29, 23, 59, 59, 120000)),
        "at": (
            dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=_UTC),
            dt.datetime(2024, 10, 27, 0, 30, 0, 123456, tzinfo=_UTC),
        ),
        "clock": ("00:00:00", "12:34:56.78"),
    }


def text_of(value: Any, source_type: str) -> Any:
    """A value as Canal and TiCDC print it."""
    kind = mysql_type(source_type)
    if value is None:
        return None
    if kind.name == "enum":
        return str(kind.labels.index(value) + 1)
    if kind.name == "set":
        return str(sum(1 << kind.labels.index(label) for label in value.split(",") if label))
    if kind.name == "bit":
        return str(int(value) if type(value) is bool else int.from_bytes(value, "big"))
    if kind.name == "float":
        return str(np.float32(value))
    if kind.name == "time":
        return clock_of(value, kind.size)
    if type(value) is bytes:
        return bare(value, kind.name).decode("latin-1")
    if type(value) is Decimal:
        return format(value, "f")
    if type(value) is dt.datetime:
        local = (
            value if value.tzinfo is None else value.astimezone(dt.timezone(dt.timedelta(hours=8)))
        )
        return local.strftime("%Y-%m-%d %H:%M:%S.%f").zfill(26)[: 20 + kind.size]
    return str(value)


def clock_of(text: str, digits: int) -> str:
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.ljust(digits, '0')}" if digits else whole


def bare(value: bytes, name: str) -> bytes:
    """Bytes as the binlog has them."""
    return value.rstrip(b"\0") if name == "binary" else value


class CanalHarness(MysqlHarness):
    positions = False

    format = "canal"
    options: ClassVar = {"format.time.zone": "+08:00"}

    def row(self, row: Row) -> Row:
        return {name: text_of(row[name], source) for name, _, source in self.columns}

    def body(self, change: RowChange) -> dict[str, Any]:
        words = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "truncate": "TRUNCATE"}
        whole = change.after or change.before
        old = None
        if change.kind == "u":
            old = [self.old(change.before or {}, change.after or {})]
        return {
            **{"database": "shop", "table": change.table, "type": words[change.kind], "old": old},
            **{"isDdl": change.kind == "truncate", "es": change.at, "ts": change.at + 7},
            "data": None if whole is None else [self.row(whole)],
        }

    def old(self, before: Row, after: Row) -> Row:
        """What the row was before: what has changed."""
        changed = {name for name in before if before[name] != after[name]}
        return {name: value for name, value in self.row(before).items() if name in changed}

    def write(self, change: RowChange) -> Iterable[Written]:
        yield None, json.dumps(self.body(change)).encode()


class TicdcHarness(CanalHarness):
    positions = True

    format = "ticdc"

    def old(self, before: Row, after: Row) -> Row:
        return self.row(before)

    def body(self, change: RowChange) -> dict[str, Any]:
        return {**super().body(change), "_tidb": {"commitTs": (change.at << 18) + change.number}}

    def heartbeat(self, at: SourceMs) -> Written | None:
        body = {"database": "", "table": "", "type": "TIDB_WATERMARK", "isDdl": False}
        return None, json.dumps({**body, "_tidb": {"watermarkTs": (at + 1 << 18) + 5}}).encode()


class LegacyTicdcHarness(TicdcHarness):
    """Without old values: of an update there is no row before; a new key is a delete and a row."""

    positions = False

    def heartbeat(self, at: SourceMs) -> Written | None:
        return None

    options: ClassVar = {"format.time.zone": "+08:00", "format.enable.tidb.extension": "false"}

    def write(self, change: RowChange) -> Iterable[Written]:
        parts = [change]
        if change.before and change.after and change.before["id"] != change.after["id"]:
            common = (change.number, change.at)
            gone = RowChange("d", change.table, change.before, None, *common)
            parts = [gone, RowChange("c", change.table, None, change.after, *common)]
        for part in parts:
            body = {**self.body(part), "old": None}
            del body["_tidb"]
            if part.kind == "d":
                body["data"] = [{"id": body["data"][0]["id"]}]  # handle key columns only
            yield None, json.dumps(body).encode()


class MaxwellHarness(MysqlHarness):
    truncates = False

    format = "maxwell"
    options: ClassVar = {"format.time.zone": "+08:00", "format.time.of.day": "true"}

    def row(self, row: Row) -> Row:
        return {name: self.value(row[name], source) for name, _, source in self.columns}

    def value(self, value: Any, source_type: str) -> Any:
        kind = mysql_type(source_type)
        if kind.name == "set" and value is not None:
            return [label for label in value.split(",") if label]
        if kind.name == "bit" and value is not None:
            return int(value) if type(value) is bool else int.from_bytes(value, "big")
        if type(value) is bytes:
            return base64.b64encode(bare(value, kind.name)).decode()
        if type(value) is Decimal:
            return f"@{value:f}@"
        if type(value) in (dt.date, dt.datetime) or kind.name == "time":
            return text_of(value, source_type)
        return value

    def write(self, change: RowChange) -> Iterable[Written]:
        words = {"c": "insert", "u": "update", "d": "delete"}
        body: dict[str, Any] = {
            **{"database": "shop", "table": change.table, "type": words[change.kind]},
            **{"ts": change.at // 1000, "xid": change.number},
            "position": f"bin.000007:{change.number * 100}",
            "data": self.row(change.after or change.before or {}),
        }
        if change.before and change.after:
            before, after = change.before, change.after
            changed = {name for name in before if before[name] != after[name]}
            old = self.row(before)
            body["old"] = {name: value for name, value in old.items() if name in changed}
        # A decimal is a number with all its digits.
        yield None, json.dumps(body).replace('"@', "").replace('@"', "").encode()


class UnifiedHarness(MysqlHarness):
    format = "unified"

    def row(self, row: Row) -> Row:
        return {
            name: json_values(pa.array([row[name]], parse_type(kind)))[0]
            for name, kind, _ in self.columns
        }

    def write(self, change: RowChange) -> Iterable[Written]:
        words = {"c": "insert", "u": "update", "d": "delete", "truncate": "truncate"}
        body: dict[str, Any] = {"table": change.table, "op": words[change.kind]}
        body |= {"ts": change.at, "position": change.number}
        for name, row in (("before", change.before), ("after", change.after)):
            if row is not None:
                body[name] = self.row(row)
        yield None, json.dumps(body).encode()

    def heartbeat(self, at: SourceMs) -> Written | None:
        return None, json.dumps({"op": "heartbeat", "ts": at}).encode()


class DebeziumHarness(MysqlHarness):
    format = "debezium"
    options: ClassVar = {
        "format.decimal.handling.mode": "string",
        "format.time.precision.mode": "adaptive",
        "format.binary.handling.mode": "base64",
    }

    def row(self, row: Row) -> Row:
        return {name: self.value(row[name], source) for name, _, source in self.columns}

    def value(self, value: Any, source_type: str) -> Any:
        kind = mysql_type(source_type)
        if value is None or type(value) in (bool, int, float):
            return value
        if kind.name == "bit":
            return base64.b64encode(value[::-1]).decode()
        if kind.name == "time":
            clock = dt.time.fromisoformat(clock_of(value, 6))
            return round(
                (dt.datetime.combine(dt.date.min, clock) - dt.datetime.min).total_seconds() * 1e6
            )
        if type(value) is bytes:
            return base64.b64encode(value).decode()
        if type(value) is Decimal:
            return format(value, "f")
        if kind.name == "timestamp":
            return value.isoformat().replace("+00:00", "Z")
        if type(value) is dt.datetime:
            return round((value - dt.datetime(1970, 1, 1)) / dt.timedelta(milliseconds=1))
        if type(value) is dt.date:
            return (value - dt.date(1970, 1, 1)).days
        return value

    def write(self, change: RowChange) -> Iterable[Written]:
        for key, body in self.parts(change):
            yield self.key(key, change.table), self.body(body, change.table)
            if body["op"] == "d":
                yield self.key(key, change.table), None

    def key(self, key: Any, table: str) -> bytes | None:
        return None if key is None else json.dumps(key).encode()

    def body(self, body: Any, table: str) -> bytes:
        return json.dumps(body).encode()

    def parts(self, change: RowChange) -> Iterable[tuple[Any, Any]]:
        """Keys and values as they are in Connect."""
        if change.before and change.after and change.before["id"] != change.after["id"]:
            common = (change.number, change.at)
            yield from self.parts(RowChange("d", change.table, change.before, None, *common))
            yield from self.parts(RowChange("c", change.table, None, change.after, *common))
            return
        source = {"connector": "mariadb", "db": "shop", "table": change.table, "ts_ms": change.at}
        body: dict[str, Any] = {
            "op": "t" if change.kind == "truncate" else change.kind,
            "before": change.before and self.row(change.before),
            "after": change.after and self.row(change.after),
            "source": {**source, "file": "bin.000007", "pos": change.number, "row": 0},
        }
        row = change.after or change.before
        yield None if row is None else {"id": row["id"]}, body

    def heartbeat(self, at: SourceMs) -> Written | None:
        return None, json.dumps({"ts_ms": at}).encode()


class EnvelopedHarness(DebeziumHarness):
    """With the schema envelope, and decimals as bytes: no option says how values are written."""

    #: By the name of a type of MySQL: Connect's type, and its meaning.
    kinds: ClassVar[dict[str, tuple[str, str | None]]] = {
        "bigint": ("int64", None),
        "bigint unsigned": ("bytes", "org.apache.kafka.connect.data.Decimal"),
        "tinyint": ("int16", None),
        "decimal": ("bytes", "org.apache.kafka.connect.data.Decimal"),
        "float": ("float", None),
        "double": ("double", None),
        "varchar": ("string", None),
        "enum": ("string", "io.debezium.data.Enum"),
        "set": ("string", "io.debezium.data.EnumSet"),
        "bit": ("bytes", "io.debezium.data.Bits"),
        "binary": ("bytes", None),
        "varbinary": ("bytes", None),
        "date": ("int32", "io.debezium.time.Date"),
        "datetime": ("int64", "io.debezium.time.Timestamp"),
        "timestamp": ("string", "io.debezium.time.ZonedTimestamp"),
        "time": ("int64", "io.debezium.time.MicroTime"),
    }

    options: ClassVar = {}

    def value(self, value: Any, source_type: str) -> Any:
        if type(value) is not Decimal:
            return super().value(value, source_type)
        unscaled = int(value.scaleb(-(value.as_tuple().exponent or 0), Context(prec=60)))
        size = unscaled.bit_length() // 8 + 1
        return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()

    def key(self, key: Any, table: str) -> bytes | None:
        schema = self.struct([self.field(*self.columns[0])], f"maria.shop.{table}.Key")
        return None if key is None else self.packed({"schema": schema, "payload": key})

    def body(self, body: Any, table: str) -> bytes:
        row = self.struct([self.field(*column) for column in self.columns], f"{table}.Value")
        source = [
            {"field": name, "type": "string" if type(value) is str else "int64"}
            for name, value in body["source"].items()
        ]
        rows = [{**row, "optional": True, "field": name} for name in ("before", "after")]
        source_schema = {**self.struct(source, "io.debezium.connector.Source"), "field": "source"}
        envelope = [*rows, source_schema, {"field": "op", "type": "string"}]
        schema = self.struct(envelope, f"{table}.Envelope")
        return self.packed({"schema": schema, "payload": body})

    def heartbeat(self, at: SourceMs) -> Written | None:
        field = {"field": "ts_ms", "type": "int64"}
        schema = self.struct([field], "io.debezium.connector.common.Heartbeat")
        return None, self.packed({"schema": schema, "payload": {"ts_ms": at}})

    def packed(self, message: Any) -> bytes:
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()

    def struct(self, fields: list[Any], name: str) -> Any:
        return {"type": "struct", "name": name, "fields": fields}

    def field(self, name: str, arrow: str, source_type: str) -> Any:
        kind = mysql_type(source_type).name
        if kind == "bigint" and arrow.startswith("decimal"):
            kind = "bigint unsigned"
        connect, meaning = self.kinds[kind]
        if arrow == "boolean":
            connect, meaning = "boolean", None
        field = {"field": name, "type": connect, "optional": name != "id"}
        if meaning is not None:
            field |= {"name": meaning, "version": 1}
        if meaning is not None and meaning.endswith("Decimal"):
            field["parameters"] = {"scale": str(parse_type(arrow).scale)}
        return field


class AvroHarness(EnvelopedHarness):
    """The same as Avro with a schema registry."""

    def open(self) -> Format:
        decoder: Format = load("formats", "debezium")(avro_options(registry()))
        return decoder

    def packed(self, message: Any) -> bytes:
        return as_avro(registry(), message)


class NotedHarness(MysqlHarness):
    """What triggers of SQLite note: each message is of a key, and has a later number."""

    truncates = False
    #: SQLite's integers and reals have 64 bits.
    columns = tuple(
        (name, {"smallint": "bigint", "float": "double"}.get(arrow, arrow), source)
        for name, arrow, source in MysqlHarness.columns
    )

    format = "noted"

    def stored(self, value: Any) -> Any:
        """A value as a program stores it in SQLite."""
        if type(value) is bool:
            return int(value)
        if type(value) is Decimal:
            return format(value, "f")
        if isinstance(value, dt.date):
            return str(value)
        return value

    def write(self, change: RowChange) -> Iterable[Written]:
        before, after = change.before, change.after
        moved = before and (after is None or after["id"] != before["id"])
        notes = [("d", {"id": before["id"]})] if before and moved else []
        if after is not None:
            notes.append(("u", {name: self.stored(value) for name, value in after.items()}))
        for op, row in notes:
            message = noted_message("", 0, change.at, change.table, op, row)
            yield message.key, message.value
