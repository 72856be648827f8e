"""SQLite files as sinks."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from mview_connectors.databases.sqlite import quoted
from mview_connectors.followers.sql.follower import SqlFollower, finite

#: What the same error class says of a table that others have changed, and of rights.
_STANDING = (
    "no such table",
    "no such column",
    "has no column named",
    "cannot modify",
    "readonly database",
)


class SqliteFollower(SqlFollower):
    """A table of a SQLite file.

    Decimals, dates and times are text, as SQLite has no such types: exact, and dates and times in
    ISO form (UTC) sort right.
    """

    driver: ClassVar[str] = "sqlite"
    mark: ClassVar[str] = "?"
    for_update: ClassVar[str] = ""
    begin: ClassVar[str] = "BEGIN IMMEDIATE"

    def column_type(self, kind: pa.DataType, *, in_key: bool) -> str | None:
        """The declared type, which is SQLite's affinity."""
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return "INTEGER"
        if pa.types.is_floating(kind):
            return "!no floating-point numbers in a key" if in_key else "REAL"
        if pa.types.is_binary(kind):
            return "BLOB"
        if pa.types.is_nested(kind):
            return None
        return "TEXT"

    def values(self, column: pa.ChunkedArray, name: str) -> list[Any]:
        """Python values that sqlite3 binds."""
        kind = column.type
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        elif pa.types.is_floating(kind):
            _not_nan(column, name)
        elif pa.types.is_decimal(kind):
            return [None if value is None else f"{value:f}" for value in column.to_pylist()]
        elif pa.types.is_timestamp(kind):
            column = pc.cast(column.cast(pa.timestamp("us")), pa.string())
        elif pa.types.is_date(kind):
            column = column.cast(pa.string())
        listed: list[Any] = column.to_pylist()
        return listed

    def arrow(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Texts as what they say."""
        if pa.types.is_decimal(kind):
            return pa.array([None if value is None else Decimal(value) for value in values], kind)
        if pa.types.is_timestamp(kind):
            return pa.array(values, pa.string()).cast(pa.timestamp("us")).cast(kind)
        if pa.types.is_date(kind):
            return pa.array(values, pa.string()).cast(kind)
        if pa.types.is_boolean(kind):
            return pa.array(values, pa.int8()).cast(kind)
        return pa.array(values, kind)

    def quote(self, name: str) -> str:
        """See `quoted`: a column that was dropped would be read, and compared, as its name."""
        return quoted(name)

    def with_parameters(self, sql: str) -> str:
        """As it is: SQLite knows what stands in quotes."""
        return sql

    def tables(self, connection: Any) -> bool:
        """Whether the table is there; SQLite folds the case of names."""
        sql = "SELECT 1 FROM sqlite_master WHERE lower(name) = lower(?)"
        return bool(self._query(connection, sql, (self.target.table,)))

    def prepare(self, connection: Any) -> None:
        """Transactions are begun by us; a writer waits for another."""
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {self._settings.timeout}")
        connection.execute("PRAGMA synchronous = FULL")

    def options(self) -> dict[str, Any]:
        """Connections change threads with their sink."""
        return {"check_same_thread": False}

    def is_passing(self, error: BaseException) -> bool:
        """A lock, or a disk that is full; its numbers of errors Python has from 3.11 on only."""
        if any(text in str(error) for text in _STANDING):
            return False
        return isinstance(error, sqlite3.OperationalError | OSError)


def _not_nan(column: pa.ChunkedArray, name: str) -> None:
    """SQLite makes NULL of NaN."""
    if pc.any(pc.is_nan(column)).as_py():
        finite(column, name, "SQLite")
