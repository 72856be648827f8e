"""MySQL and MariaDB tables as sinks: rows in statements of many values, in one transaction."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.errors import TargetError, UserError
from mview.follower import GOES_ON
from mview_connectors import silence
from mview_connectors.followers.sql.follower import ROWS, SqlFollower, finite
from mview_connectors.followers.sql.two_phase import MysqlTwoPhase, TwoPhase
from mview_connectors.network import mysql_caution

#: Error numbers after which the same may succeed: too many connections, lock wait, deadlock, server
#: shutting down or gone, a session that was ended, connection refused or lost.
_PASSING = {1040, 1053, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1927, 2002, 2003, 2006, 2013}
_PASSING |= {1020, 1030, 1317, 1397, 4031}

#: A column that cannot be NULL was to be.
_NULL_REFUSED = 1048

#: Bytes of texts and bytes in one statement, where the server takes that much.
_BYTES = 8 << 20

#: A text or bytes as a literal take up to so many times their bytes.
_WRITTEN = 2

#: Characters of a text key: an index of InnoDB has at most 3072 bytes, of up to 4 per character.
_KEY_BYTES = 3072


class MariadbFollower(SqlFollower):
    """A table of a MariaDB database. Instants are DATETIME(6) in UTC."""

    driver: ClassVar[str] = "mysql+pymysql"
    two_phase: ClassVar[TwoPhase | None] = MysqlTwoPhase()
    #: No trailing space is lost, either.
    collation: ClassVar[str] = "utf8mb4_nopad_bin"
    text: ClassVar[str] = "LONGTEXT CHARACTER SET utf8mb4"
    #: Digits behind the point of a DECIMAL.
    scale: ClassVar[int] = 38
    begin: ClassVar[str] = "START TRANSACTION"
    kept_by: ClassVar[str] = " ENGINE=InnoDB"
    #: Bytes of a statement that the server takes; 0: not asked yet.
    _packet = 0
    #: What ends a session that is idle in a transaction, in seconds.
    idle_timeout: ClassVar[str] = "idle_transaction_timeout"

    @property
    def key_text(self) -> str:  # type: ignore[override]
        """A text column that is a key by itself."""
        return f"VARCHAR(512) CHARACTER SET utf8mb4 COLLATE {self.collation}"

    def column_type(self, kind: pa.DataType, *, in_key: bool) -> str | None:
        """MySQL's name of a type."""
        if pa.types.is_floating(kind):
            # FLOAT is rounded when it is read.
            return "!no floating-point numbers in a key" if in_key else "DOUBLE"
        if pa.types.is_decimal(kind):
            if kind.scale > self.scale:
                return f"!at most {self.scale} digits behind the point"
            return f"DECIMAL({kind.precision},{kind.scale})"
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return self._text(kind, in_key)
        return _TYPES.get(kind)

    def _text(self, kind: pa.DataType, in_key: bool) -> str:
        key = [self.target.schema.column(name).type for name in self.target.schema.key]
        texts = sum(pa.types.is_string(part) or pa.types.is_binary(part) for part in key)
        # The other columns of a key take up to 32 bytes each.
        room = (_KEY_BYTES - 32 * (len(key) - texts)) // max(1, texts)
        if pa.types.is_binary(kind):
            return f"VARBINARY({room})" if in_key else "LONGBLOB"
        name = f"VARCHAR({room // 4})" if in_key else "LONGTEXT"
        return f"{name} CHARACTER SET utf8mb4 COLLATE {self.collation}"

    def values(self, column: pa.ChunkedArray, name: str) -> list[Any]:
        """Python values that pymysql writes as literals."""
        kind = column.type
        if pa.types.is_floating(kind):
            finite(column, name, "MySQL")
            column = column.cast(pa.float64())
        elif pa.types.is_decimal(kind):
            return [None if value is None else f"{value:f}" for value in column.to_pylist()]
        elif pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us")).cast(pa.string())
        elif pa.types.is_date(kind):
            column = column.cast(pa.string())
        listed: list[Any] = column.to_pylist()
        return listed

    def arrow(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """What pymysql gives, exactly."""
        if pa.types.is_boolean(kind):
            return pa.array(values, pa.int8()).cast(kind)
        return pa.array(values, kind)

    def standing(self, connection: Any) -> str | None:
        """From the catalog."""
        # Names are compared there without regard to case, also where they are told apart by it.
        sql = (
            "SELECT TABLE_NAME, @@lower_case_table_names, TABLE_TYPE "
            f"FROM information_schema.TABLES WHERE TABLE_NAME = {self.mark} AND TABLE_SCHEMA = "
            + ("DATABASE()" if self._settings.namespace is None else self.mark)
        )
        more = () if self._settings.namespace is None else (self._settings.namespace,)
        name = self.target.table
        there = self._query(connection, sql, (name, *more))
        kinds = [str(kind) for other, folds, kind in there if other == name or folds]
        return _KINDS.get(kinds[0], "table") if kinds else None

    def types(self, connection: Any) -> dict[str, str]:
        """From the catalog."""
        rows = self._of_catalog(
            connection, "COLUMN_NAME, TABLE_NAME, COLUMN_TYPE FROM information_schema.COLUMNS"
        )
        return {str(name): self.spelled(str(kind)) for name, _, kind in rows}

    def _of_catalog(self, connection: Any, what: str, more: str = "") -> list[Any]:
        """Rows of the catalog about the table; the second column is the table's name."""
        space = self._settings.namespace
        schema = "DATABASE()" if space is None else self.mark
        sql = f"SELECT {what} WHERE TABLE_NAME = {self.mark} AND TABLE_SCHEMA = {schema}{more}"
        arguments = (self.target.table,) if space is None else (self.target.table, space)
        rows = self._query(connection, sql, arguments)
        # As in `tables`; where names fold there is but one.
        return [row for row in rows if row[1] == self.target.table] or list(rows)

    def key_there(self, connection: Any) -> dict[str, str]:
        """From the catalog: without one, rows would come twice, without a word."""
        rows = self._of_catalog(
            connection,
            "COLUMN_NAME, TABLE_NAME, COLLATION_NAME, SUB_PART FROM information_schema.STATISTICS "
            "JOIN information_schema.COLUMNS USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME)",
            " AND INDEX_NAME = 'PRIMARY'",
        )
        return {
            str(name): f"{by or ''}" if part is None else f"{by}, of {part} characters"
            for name, _, by, part in rows
        }

    def without_transactions(self, connection: Any) -> str | None:
        """From the catalog."""
        rows = self._of_catalog(
            connection,
            "ENGINE, TABLE_NAME FROM information_schema.TABLES "
            "JOIN information_schema.ENGINES USING (ENGINE)",
            " AND TRANSACTIONS <> 'YES'",
        )
        return str(rows[0][0]) if rows else None

    def spelled(self, column_type: str) -> str:
        """Without the width of integers, which some servers tell and which bounds nothing."""
        plain = column_type.partition(" CHARACTER SET")[0].lower()
        plain = "tinyint" if plain == "boolean" else plain
        return plain.partition("(")[0] if "int" in plain else plain

    def wait(self, connection: Any, seconds: float) -> None:
        """See `mview_connectors.silence`."""
        silence.wait_mysql(connection, seconds, self.url().query)

    def prepare(self, connection: Any) -> None:
        """UTC, strict values, and bounds for who is hung in a transaction."""
        seconds = max(1, self._settings.timeout // 1000)
        self._execute(
            connection,
            "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
            f"innodb_lock_wait_timeout = {seconds}, {self.idle_timeout} = {seconds}",
        )
        self._execute(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def probe(self) -> None:
        """See `ask_server`."""
        self.ask_server()

    def caution(self) -> str | None:
        """A warning for a remote server with settings that do not verify."""
        if not self.is_remote:
            return None
        return mysql_caution(f"sinks.{self.target.sink}.url", "its server", self.url().query)

    def options(self) -> dict[str, Any]:
        """Transactions are begun by us; a server beyond this machine proves who it is."""
        url = self.url()
        options: dict[str, Any] = {"autocommit": True, "charset": "utf8mb4"}
        options |= silence.mysql_options(url.query)
        if self.is_remote and not any(name.startswith("ssl") for name in url.query):
            options["ssl"] = ssl.create_default_context()
        return options

    def on_conflict(self, others: Sequence[str]) -> str:
        """MySQL's upsert, which fails where it meets a row of another key.

        By a unique index of somebody else, or another collation, it finds such rows: they would be
        updated, and ours be lost, without a word. So the key is set to NULL then, which none takes.
        """
        schema, same = self.target.schema, []
        for name in schema.key:
            there, comes = self.quote(name), f"VALUES({self.quote(name)})"
            if pa.types.is_string(schema.column(name).type):
                there, comes = (f"CAST({text} AS BINARY)" for text in (there, comes))
            same.append(f"{there} = {comes}")
        first = self.quote(schema.key[0])
        sets = [f"{first} = IF({' AND '.join(same)}, {first}, NULL)"]
        sets += [f"{self.quote(name)} = VALUES({self.quote(name)})" for name in others]
        return f"ON DUPLICATE KEY UPDATE {', '.join(sets)}"

    def upsert(self, connection: Any, rows: pa.Table) -> None:
        """Statements of many rows."""
        names = rows.column_names
        others = [name for name in names if name not in self.target.schema.key]
        columns = ", ".join(map(self.quote, names))
        before = f"INSERT INTO {self.table} ({columns}) VALUES "
        try:
            self._in_blocks(connection, before, f" {self.on_conflict(others)}", rows)
        except Exception as error:
            key = self.target.schema.key
            if error.args[:1] != (_NULL_REFUSED,) or f"'{key[0]}'" not in str(error.args[1]):
                raise
            raise TargetError(
                f"a row meets another one of the table {self.target.table} of sink "
                f"{self.target.sink}, whose key is not the same",
                where=f"an index that is not the primary key ({', '.join(key)}), or its collation",
                safe="nothing of the commit was written; other sinks go on",
                hint=f"drop the unique index that somebody has made there: {GOES_ON}; or drop the "
                "table: it is filled anew",
            ) from error

    def delete(self, connection: Any, keys: pa.Table) -> None:
        """Statements of many keys."""
        columns = ", ".join(map(self.quote, keys.column_names))
        self._in_blocks(connection, f"DELETE FROM {self.table} WHERE ({columns}) IN (", ")", keys)

    def _in_blocks(self, connection: Any, before: str, after: str, rows: pa.Table) -> None:
        """One statement per block of rows, whose values stand between two texts.

        The driver's own way of joining rows finds them by a pattern that names of columns break.
        """
        columns = [
            self.values(column, name)
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        ]
        listed = list(zip(*columns, strict=True))
        marks_of_row = f"({', '.join(['%s'] * rows.num_columns)})"
        before, after = (self.with_parameters(text) for text in (before, after))
        sizes = text_bytes(rows)
        if not self._packet:
            self._packet = int(self._query(connection, "SELECT @@max_allowed_packet", ())[0][0])
        with connection.cursor() as cursor:
            for begin, end in blocks(sizes, ROWS, min(_BYTES, self._packet // (2 * _WRITTEN))):
                block = listed[begin:end]
                marks = ", ".join([marks_of_row] * len(block))
                cells = [cell for row in block for cell in row]
                statement = cursor.mogrify(before + marks + after, cells).encode()
                if len(statement) >= self._packet and end - begin == 1:
                    raise self._too_long(int(sizes[begin]))
                cursor.execute(statement)

    def _too_long(self, size: int) -> UserError:
        """The refusal of a row; the server would end the connection, as if it were away."""
        return UserError(
            f"a row of view {self.target.view} is longer than the server of sink "
            f"{self.target.sink} takes",
            got=f"{size:,} bytes of texts and bytes, which take up to {_WRITTEN} times as many",
            allowed=f"a statement of {self._packet:,} bytes, its max_allowed_packet",
            safe="nothing of the commit was written; other sinks go on",
            hint="set max_allowed_packet of the server higher, or leave such rows out",
        )

    def stream(self, connection: Any, sql: str) -> Iterator[list[Any]]:
        """As the server sends them: the driver's own cursor holds all rows."""
        from pymysql.cursors import SSCursor

        cursor = connection.cursor(SSCursor)
        cursor.execute(sql)
        while rows := cursor.fetchmany(10 * ROWS):
            yield list(rows)
        cursor.close()

    def is_passing(self, error: BaseException) -> bool:
        """By the server's numbers, or as the connection is gone."""
        number = error.args[0] if error.args else None
        return number in _PASSING or isinstance(error, OSError)


class MysqlFollower(MariadbFollower):
    """A table of a MySQL database, version 8 or newer."""

    collation: ClassVar[str] = "utf8mb4_0900_bin"
    scale: ClassVar[int] = 30
    #: It has none for transactions alone.
    idle_timeout: ClassVar[str] = "wait_timeout"


def text_bytes(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The bytes of each row's texts and bytes."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy()
    return sizes


def blocks(
    sizes: np.ndarray[Any, np.dtype[np.int64]], most_rows: int, most_bytes: int
) -> Iterator[tuple[int, int]]:
    """Rows in blocks, from and up to which: of so many rows and bytes at the most, or of one row.

    >>> list(blocks(np.array([1, 1, 9, 2, 3, 0, 0]), 3, 5))
    [(0, 2), (2, 3), (3, 6), (6, 7)]
    """
    ends, begin = np.cumsum(sizes), 0
    while begin < len(sizes):
        before = ends[begin] - sizes[begin]
        fit = int(np.searchsorted(ends, before + most_bytes, side="right"))
        end = min(max(begin + 1, fit), begin + most_rows)
        yield begin, end
        begin = end


#: Types that all servers of MySQL's protocol name so.
INTEGERS_AND_DATES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.date32(): "DATE",
}

#: What is no table, by `information_schema.TABLES.TABLE_TYPE`.
_KINDS = {"VIEW": "view", "SYSTEM VIEW": "view", "SEQUENCE": "sequence"}

_TYPES = {
    **INTEGERS_AND_DATES,
    pa.timestamp("us", tz="UTC"): "DATETIME(6)",
    pa.timestamp("us"): "DATETIME(6)",
}
