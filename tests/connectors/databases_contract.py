"""One harness over the three source databases, for the contract suite and the type tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from mview.config import ConnectionSettings
from mview.connector import Database, load
from mview.schema import TableSchema
from mview.snapshot import ChunkPlan


class Source:
    """A fresh database of one kind, and the connector that reads it."""

    def __init__(self, kind: str, settings: dict[str, Any], execute: Any) -> None:
        self.kind = kind
        self.settings = ConnectionSettings(name="src", **settings)
        self._execute = execute
        self.database: Database = load("databases", kind)(self.settings)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self._execute(sql)

    def quote(self, name: str) -> str:
        mark = "`" if self.kind == "mariadb" else '"'
        return mark + name.replace(mark, mark * 2) + mark

    @property
    def byte_order(self) -> str:
        """The collation clause of a text column that orders by bytes."""
        return {
            "sqlite": "COLLATE BINARY",
            "mariadb": "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin",
            "postgresql": 'COLLATE "C"',
        }[self.kind]

    @property
    def other_order(self) -> str:
        """The collation clause of a text column that orders in another way."""
        return {
            "sqlite": "COLLATE NOCASE",
            "mariadb": "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            "postgresql": 'COLLATE "en-x-icu"',
        }[self.kind]

    def insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        texts = [f"({', '.join(map(self._literal, row))})" for row in rows]
        for start in range(0, len(texts), 500):
            values = ", ".join(texts[start : start + 500])
            self.execute(f"INSERT INTO {self.quote(table)} VALUES {values}")

    def _literal(self, value: Any) -> str:
        if value is None or isinstance(value, int | float):
            return "NULL" if value is None else str(value)
        text = str(value).replace("'", "''")
        return f"'{text.replace(chr(92), chr(92) * 2) if self.kind == 'mariadb' else text}'"

    def read(self, table: str, *, rows: int = 100_000) -> list[dict[str, Any]]:
        """All rows, by describe, plan and read."""
        schema = self.database.describe(table)
        plan = self.database.plan(table, schema, rows, 1 << 30)
        return [row for part in read_chunks(self.database, table, schema, plan) for row in part]


def read_chunks(
    database: Database, table: str, schema: TableSchema, plan: ChunkPlan
) -> list[list[dict[str, Any]]]:
    """The rows of every chunk; each batch must have exactly the table's schema."""
    chunks = []
    for chunk in plan.chunks:
        batches = list(database.read(table, schema, plan, chunk))
        assert all(batch.schema.equals(schema.arrow) for batch in batches)
        for batch in batches:
            batch.validate(full=True)
        chunks.append(pa.Table.from_batches(batches, schema.arrow).to_pylist())
    return chunks


@contextmanager
def sqlite_source(folder: Path) -> Iterator[Source]:
    path = folder / "source.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:

        def execute(sql: str) -> list[tuple[Any, ...]]:
            return connection.execute(sql).fetchall()

        execute("PRAGMA synchronous = OFF")
        source = Source("sqlite", {"drivername": "sqlite", "database": str(path)}, execute)
        yield source
        source.database.close()


@contextmanager
def server_source(kind: str, server: Any) -> Iterator[Source]:
    with server.new_database() as name:
        source = Source(kind, server.settings(name), lambda sql: server.execute(sql, name))
        try:
            yield source
        finally:
            source.database.close()
