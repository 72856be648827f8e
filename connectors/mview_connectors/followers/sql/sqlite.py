"""SQLite files as sinks."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.pool import PoolProxiedConnection

from mview_connectors.databases.sqlite import quoted
from mview_connectors.followers.sql.follower import SqlFollower, finite

#: What passes of an error class that also says what somebody must mend.
_PASSING = (
    "locked",
    "locking protocol",
    "disk is full",
    "disk I/O error",
    "unable to open database file",
    "out of memory",
    "interrupted",
)


class SqliteFollower(SqlFollower):
    """A table of a SQLite file.

    Decimals, dates and times are text, as SQLite has no such types: exact, and dates and times in
    ISO form (UTC) sort right.
    """

    driver: ClassVar[str] = "sqlite"
    collation: ClassVar[str] = "BINARY"
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

    def standing(self, connection: Any) -> str | None:
        """From the catalog; SQLite folds the case of names."""
        sql = "SELECT type FROM sqlite_master WHERE lower(name) = lower(?)"
        rows = self._query(connection, sql, (self.target.table,))
        return str(rows[0][0]) if rows else None

    def types(self, connection: Any) -> dict[str, str]:
        """As declared: by that, SQLite makes numbers of texts."""
        sql = "SELECT name, upper(type) FROM pragma_table_info(?)"
        return dict(self._query(connection, sql, (self.target.table,)))

    def key_there(self, connection: Any) -> dict[str, str]:
        """From the catalog; a whole number that is the key has no index."""
        sql = (
            "SELECT name, (SELECT x.coll FROM pragma_index_list(?1) AS l, "
            "pragma_index_xinfo(l.name) AS x WHERE l.origin = 'pk' AND x.cid = c.cid) "
            "FROM pragma_table_info(?1) AS c WHERE pk > 0"
        )
        made = self._key_made()
        rows = self._query(connection, sql, (self.target.table,))
        return {name: by if made.get(name, "-") else "" for name, by in rows}

    def _lent(self) -> PoolProxiedConnection:
        """One to the file that stands there now: another one may have been put in its place."""
        while True:
            connection = super()._lent()
            file = _file_of(connection.driver_connection)
            if connection.info.setdefault("file", file) == file:
                return connection
            connection.invalidate()

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
        if isinstance(error, sqlite3.OperationalError):
            return any(text in str(error) for text in _PASSING)
        return isinstance(error, OSError)


def _file_of(connection: Any) -> tuple[int, int] | None:
    """The file that stands at a database's path; None: none does."""
    (path,) = (row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main")
    try:
        told = Path(path).stat()
    except FileNotFoundError:
        return None
    return told.st_dev, told.st_ino


def _not_nan(column: pa.ChunkedArray, name: str) -> None:
    """SQLite makes NULL of NaN."""
    if pc.any(pc.is_nan(column)).as_py():
        finite(column, name, "SQLite")
