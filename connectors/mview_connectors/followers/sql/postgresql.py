"""PostgreSQL tables as sinks: a fill by COPY, changes by one upsert and one delete."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from mview_connectors.followers.sql.follower import ROWS, SqlFollower
from mview_connectors.followers.sql.two_phase import PostgresqlTwoPhase, TwoPhase
from mview_connectors.network import POSTGRESQL_REFUSALS, postgresql_caution
from mview_connectors.silence import connect_postgresql, wait_postgresql

#: Rows of one statement, and their bytes in Arrow.
_ROWS, _BYTES = 10_000, 32 << 20

#: SQLSTATE classes and codes after which the same may succeed: connection, resources, operator
#: intervention, system errors; deadlock, serialization, lock not available, idle in transaction.
_PASSING = ("08", "53", "57", "58", "40", "55P03", "25P03")


class PostgresqlFollower(SqlFollower):
    """A table of a PostgreSQL database."""

    driver: ClassVar[str] = "postgresql+psycopg"
    collation: ClassVar[str] = "C"
    two_phase: ClassVar[TwoPhase | None] = PostgresqlTwoPhase()

    def column_type(self, kind: pa.DataType, *, in_key: bool) -> str | None:
        """PostgreSQL's name of a type."""
        if pa.types.is_floating(kind) and in_key:
            return "!no floating-point numbers in a key"
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision},{kind.scale})"
        if pa.types.is_string(kind):
            return f'text COLLATE "{self.collation}"'
        return _TYPES.get(kind)

    def values(self, column: pa.ChunkedArray, name: str) -> list[Any]:
        """Texts as COPY reads them."""
        kind = column.type
        if pa.types.is_binary(kind):
            return [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        if pa.types.is_decimal(kind):
            return [None if value is None else f"{value:f}" for value in column.to_pylist()]
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us")).cast(pa.string())
            if kind.tz is not None:
                column = pc.binary_join_element_wise(column, "+00", "")
        listed: list[Any] = column.cast(pa.string()).to_pylist()
        return listed

    def arrow(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """What psycopg gives, exactly."""
        if pa.types.is_decimal(kind):
            return pa.array([None if value is None else Decimal(value) for value in values], kind)
        return pa.array(values, kind)

    def standing(self, connection: Any) -> str | None:
        """From the catalog: relations of all kinds share their names."""
        sql = f"SELECT relkind::text FROM pg_class WHERE oid = to_regclass({self.mark})"
        rows = self._query(connection, sql, (self.table,))
        return _KINDS.get(rows[0][0], "relation") if rows else None

    def types(self, connection: Any) -> dict[str, str]:
        """From the catalog."""
        sql = (
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = to_regclass({self.mark}) AND attnum > 0 AND NOT attisdropped"
        )
        return dict(self._query(connection, sql, (self.table,)))

    def key_there(self, connection: Any) -> dict[str, str]:
        """From the catalog."""
        sql = (
            "SELECT a.attname, c.collname FROM pg_index i JOIN pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
            "LEFT JOIN pg_collation c ON c.oid = a.attcollation "
            f"WHERE i.indrelid = to_regclass({self.mark}) AND i.indisprimary"
        )
        return {name: by or "" for name, by in self._query(connection, sql, (self.table,))}

    def spelled(self, column_type: str) -> str:
        """Without what is no type, and in full."""
        plain = column_type.partition(" COLLATE")[0]
        return {
            "timestamptz": "timestamp with time zone",
            "timestamp": "timestamp without time zone",
        }.get(plain, plain)

    def connect(self, dialect: sa.Dialect, *arguments: Any, **options: Any) -> Any:
        """See `mview_connectors.silence`."""
        return connect_postgresql(*arguments, **options)

    def wait(self, connection: Any, seconds: float) -> None:
        """See `mview_connectors.silence`."""
        wait_postgresql(connection, seconds)

    def prepare(self, connection: Any) -> None:
        """UTC, exact texts, and bounds for who is hung in a transaction."""
        seconds = max(1, self._settings.timeout // 1000)
        for setting in (
            "TIME ZONE 'UTC'",
            "DateStyle TO 'ISO, YMD'",
            "client_encoding TO 'UTF8'",
            "standard_conforming_strings TO on",
            f"lock_timeout TO '{seconds}s'",
            f"idle_in_transaction_session_timeout TO '{seconds}s'",
            "client_min_messages TO warning",
            # What a policy hides would be neither changed nor compared, without a word.
            "row_security TO off",
        ):
            self._execute(connection, f"SET {setting}")

    def probe(self) -> None:
        """See `ask_server`."""
        self.ask_server()

    def caution(self) -> str | None:
        """A warning for a remote server with an `sslmode` that does not verify."""
        if not self.is_remote:
            return None
        mode = self.url().query.get("sslmode")
        place = f"sinks.{self.target.sink}.url"
        return postgresql_caution(place, "its server", None if mode is None else str(mode))

    def options(self) -> dict[str, Any]:
        """Transactions are begun by us; a server beyond this machine proves who it is."""
        import psycopg

        options: dict[str, Any] = {"autocommit": True, "cursor_factory": psycopg.ClientCursor}
        url = self.url()
        if self.is_remote and "sslmode" not in url.query:
            options["sslmode"] = "verify-full"
            if "sslrootcert" not in url.query:
                options["sslrootcert"] = "system"
        return options

    def insert(self, connection: Any, rows: pa.Table) -> None:
        """COPY, straight into the table."""
        self._copy(connection, self.table, rows)

    def upsert(self, connection: Any, rows: pa.Table) -> None:
        """One statement per block of rows."""
        names = rows.column_names
        others = [name for name in names if name not in self.target.schema.key]
        columns = ", ".join(map(self.quote, names))
        written = self._in_blocks(
            connection,
            f"INSERT INTO {self.table} ({columns}) SELECT {columns} FROM ",
            f" {self.on_conflict(others)}",
            rows,
        )
        if others:
            self.check_done(rows.num_rows - written, rows.num_rows)

    def delete(self, connection: Any, keys: pa.Table) -> None:
        """One statement per block of keys."""
        names = map(self.quote, keys.column_names)
        where = " AND ".join(f"t.{name} = s.{name}" for name in names)
        before, after = f"DELETE FROM {self.table} t USING ", f" WHERE {where}"
        if self._in_blocks(connection, before, after, keys) < keys.num_rows:
            left = self._in_blocks(connection, f"SELECT FROM {self.table} t, ", after, keys)
            self.check_done(left, keys.num_rows)

    def _in_blocks(self, connection: Any, before: str, after: str, rows: pa.Table) -> int:
        """One statement per block of rows, which stand in it as a table `s`: arrays, one a column.

        Returns of how many rows the server tells.

        Not by COPY into a temporary table: a transaction that has seen one cannot be prepared, and
        a few rows take longer so.
        """
        from psycopg import Cursor

        names, key = rows.column_names, self.target.schema.key
        kinds = [
            self.column_type(field.type, in_key=field.name in key) or "" for field in rows.schema
        ]
        columns = ", ".join(
            f"{self.quote(name)}::{kind} AS {self.quote(name)}"
            for name, kind in zip(names, kinds, strict=True)
        )
        listed, marks = ", ".join(map(self.quote, names)), ", ".join([self.mark] * len(names))
        arrays = marks.replace(self.mark, f"{self.mark}::text[]")
        table = f"(SELECT {columns} FROM unnest({arrays}) AS r({listed})) AS s"
        sql, count = self.with_parameters(before + table + after), 0
        # The server's own parameters: a text of megabytes is not read as a statement.
        with Cursor(connection) as cursor:
            # A parameter holds 1 GB at the most.
            most = max(1, min(_ROWS, rows.num_rows * _BYTES // max(1, rows.nbytes)))
            for begin in range(0, rows.num_rows, most):
                block = rows.slice(begin, most)
                cursor.execute(
                    sql,
                    [
                        array_text(self.values(column, name))
                        for name, column in zip(names, block.columns, strict=True)
                    ],
                    prepare=False,  # poolers between know nothing of prepared statements
                )
                count += cursor.rowcount
        return count

    def _copy(self, connection: Any, table: str, rows: pa.Table) -> None:
        columns = [
            self.values(column, name)
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        ]
        named = ", ".join(map(self.quote, rows.column_names))
        with connection.cursor() as cursor:
            with cursor.copy(f"COPY {table} ({named}) FROM STDIN") as copy:
                for row in zip(*columns, strict=True):
                    copy.write_row(row)
            self.check_done(rows.num_rows - cursor.rowcount, rows.num_rows)

    def stream(self, connection: Any, sql: str) -> Iterator[list[Any]]:
        """By a cursor of the server: the driver's own holds all rows."""
        with connection.transaction(), connection.cursor(name="mview_read") as cursor:
            cursor.execute(sql)
            while rows := cursor.fetchmany(10 * ROWS):
                yield rows

    def is_passing(self, error: BaseException) -> bool:
        """By SQLSTATE; without one, the connection is gone, or was refused."""
        import psycopg

        code = getattr(error, "sqlstate", None)
        if code is not None:
            return bool(code.startswith(_PASSING))
        if any(text in str(error) for text in POSTGRESQL_REFUSALS):
            return False
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)


def array_text(values: list[str | None]) -> str:
    """Texts as PostgreSQL reads an array of them: the driver's own way takes several times as long.

    >>> print(array_text(["a", None, 'b"c', "NULL", ""]))
    {"a",NULL,"b\\"c","NULL",""}
    """
    texts = pa.array(values, pa.large_string())
    for sign in ("\\", '"'):
        texts = pc.replace_substring(texts, sign, "\\" + sign)
    quoted = pc.binary_join_element_wise(
        *(pa.scalar('"', pa.large_string()), texts, pa.scalar('"', pa.large_string())),
        pa.scalar("", pa.large_string()),
    )
    return "{" + ",".join(quoted.fill_null("NULL").to_pylist()) + "}"


#: Relations by `pg_class.relkind`.
_KINDS = {
    **dict.fromkeys("rp", "table"),
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
    "S": "sequence",
    **dict.fromkeys("iI", "index"),
}

_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamptz",
    pa.timestamp("us"): "timestamp",
}
