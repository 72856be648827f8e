"""ClickHouse as a sink: the contract, on a real server of version 18, and what is its own."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pytest
from mview_connectors.followers.clickhouse import ClickhouseFollower, ClickhouseSettings

from mview.follower import Follower, FollowerSettings, FollowerTarget
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.view import Row
from tests.services.clickhouse import ClickhouseServer

pytestmark = pytest.mark.service


class ClickhouseHarness(FollowerHarness):
    """One database of a server."""

    mode = "upsert"

    def __init__(self, server: ClickhouseServer) -> None:
        self.server, self.database = server, server.new_database()

    def settings(self, **options: Any) -> FollowerSettings:
        held = {"dates": "text", "timestamps": "text", "mode": self.mode}
        return ClickhouseSettings(**{**self.server.settings(self.database), **held, **options})

    def open(self, target: FollowerTarget) -> Follower:
        return ClickhouseFollower(target)

    def execute(self, sql: str) -> list[Row]:
        return [tuple(row) for row in self.server.execute(sql, self.database)]

    def tables(self) -> list[str]:
        sql = f"SELECT name FROM system.tables WHERE database = '{self.database}'"
        return [name for (name,) in self.execute(sql)]

    def read(self, target: FollowerTarget) -> list[Row] | None:
        if target.table not in self.tables():
            return None
        columns = target.schema.columns
        shown = [expression(column.name, str(column.type)) for column in columns]
        rows = self.execute(f"SELECT {', '.join(shown)} FROM {quoted(target.table)}")
        kinds = [str(column.type) for column in columns]
        return [tuple(map(value_of, row, kinds)) for row in rows]

    def foreign(self, target: FollowerTarget) -> bool:
        columns = ", ".join(f"{quoted(name)} String" for name in target.schema.names)
        self.execute(f"CREATE TABLE {quoted(target.table)} ({columns}) ENGINE = Log")
        return True

    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        rows, copy = quoted(f"{target.table}__rows"), quoted(f"{target.table} copy")
        if f"{target.table} copy" in self.tables():
            self.execute(f"DROP TABLE {copy}")
        sql = f"SELECT create_table_query FROM system.tables WHERE database = '{self.database}' "
        (made,) = self.execute(f"{sql} AND name = '{target.table}__rows'")
        ddl = made[0].partition("(")[2]
        self.execute(f"CREATE TABLE {copy} ({ddl}")
        self._copy(f"{target.table}__rows", f"{target.table} copy")

        def restore() -> None:
            self.execute(f"DROP TABLE {rows}")
            self.execute(f"CREATE TABLE {rows} ({ddl}")
            self._copy(f"{target.table} copy", f"{target.table}__rows")

        return restore

    def _copy(self, source: str, to: str) -> None:
        sql = "SELECT DISTINCT partition FROM system.parts WHERE active AND database = "
        for (name,) in self.execute(f"{sql} '{self.database}' AND table = '{source}'"):
            self.execute(f"ALTER TABLE {quoted(to)} ATTACH PARTITION {name} FROM {quoted(source)}")

    def drop(self, target: FollowerTarget) -> bool:
        self.execute(f"DROP TABLE {quoted(target.table)}")
        self.execute(f"DROP TABLE {quoted(target.table + '__rows')}")
        return True


def quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def expression(name: str, kind: str) -> str:
    """What shows a value exactly in JSON."""
    if kind in ("float", "double"):
        return (
            f"reinterpretAsUInt{32 if kind == 'float' else 64}(reinterpretAsString({quoted(name)}))"
        )
    if kind.startswith("decimal"):  # `toString` of 18.16 fails at some of 38 digits
        return f"hex(reinterpretAsString({quoted(name)}))"
    if kind in ("string", "binary"):
        return f"hex({quoted(name)})"
    return f"toString({quoted(name)})"


def value_of(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "string":
        return bytes.fromhex(value).decode()
    if kind == "binary":
        return bytes.fromhex(value)
    if kind == "bool":
        return value == "1"
    if kind in ("float", "double"):
        size = 4 if kind == "float" else 8
        return struct.unpack("<f" if size == 4 else "<d", int(value).to_bytes(size, "little"))[0]
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[11:-1].split(","))
        width = 4 if precision <= 9 else 8 if precision <= 18 else 16
        whole = bytes.fromhex(value).ljust(width, b"\0")
        digits = int.from_bytes(whole, "little", signed=True)
        return Decimal(digits).scaleb(-scale, Context(prec=40))
    if kind == "date32[day]":
        return dt.date.fromisoformat(value)
    if kind.startswith("timestamp"):
        return dt.datetime.fromisoformat(value)
    return int(value)


class TestClickhouse(FollowerContract):
    @pytest.fixture
    def harness(self, clickhouse: ClickhouseServer) -> FollowerHarness:
        return ClickhouseHarness(clickhouse)
