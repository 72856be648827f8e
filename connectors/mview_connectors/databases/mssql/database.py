"""SQL Server as a source database, through Microsoft's ODBC driver.

No server was there to run this against: what is sent is held by tests as text, and the reading is
run through the ODBC drivers of MariaDB and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa

from mview.errors import ConfigError, UserError
from mview.relation import TableName
from mview.schema import Column, TableSchema
from mview_connectors.databases.chunking import Size, whole_number
from mview_connectors.databases.mssql.odbc import OdbcDatabase
from mview_connectors.databases.mssql.types import read_type, written
from mview_connectors.databases.sql import UniqueIndex
from mview_connectors.databases.values import ReadType, UnsupportedTypeError
from mview_connectors.network import caution

#: Asks for TLS and for a certificate that fits, if nothing else is said.
_DRIVER = "ODBC Driver 18 for SQL Server"

#: ISO forms in texts, no errors of arithmetic, and waiting for locks without an end.
_SESSION = "SET LANGUAGE us_english; SET DATEFORMAT ymd; SET ANSI_NULLS ON; SET LOCK_TIMEOUT -1"

#: A read as the table was at one moment, which waits for nobody and stops nobody.
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL {}"

_KINDS = """
SELECT o.name, o.type, s.name
FROM sys.objects o JOIN sys.schemas s ON s.schema_id = o.schema_id
WHERE s.name = ? AND o.type IN ('U', 'V') AND o.is_ms_shipped = 0
"""
_KIND_NAMES = {"U": "table", "V": "view"}

_SCHEMAS = """
SELECT s.name FROM sys.schemas s
WHERE s.name <> ? AND s.name NOT IN ('sys', 'INFORMATION_SCHEMA', 'cdc')
    AND EXISTS (SELECT * FROM sys.tables t WHERE t.schema_id = s.schema_id)
ORDER BY s.name
"""

#: The types that alias types stand for. Computed columns are left out: the log has NULL for them.
_COLUMNS = """
SELECT c.name, COALESCE(b.name, t.name), c.precision, c.scale, c.max_length, c.is_nullable
FROM sys.columns c
JOIN sys.types t ON t.user_type_id = c.user_type_id
LEFT JOIN sys.types b ON b.user_type_id = t.system_type_id AND t.is_assembly_type = 0
WHERE c.object_id = OBJECT_ID(?) AND c.is_computed = 0 AND c.is_column_set = 0
ORDER BY c.column_id
"""

#: Unique indexes of all rows that are in use, each with its columns in order.
_INDEXES = """
SELECT i.index_id, i.is_primary_key, c.name
FROM sys.indexes i
JOIN sys.index_columns k ON k.object_id = i.object_id AND k.index_id = i.index_id
JOIN sys.columns c ON c.object_id = k.object_id AND c.column_id = k.column_id
WHERE i.object_id = OBJECT_ID(?) AND i.is_unique = 1 AND i.has_filter = 0
    AND i.is_disabled = 0 AND i.is_hypothetical = 0 AND k.key_ordinal > 0
ORDER BY i.index_id, k.key_ordinal
"""

_SIZE = """
SELECT COALESCE(SUM(p.rows), 0), COALESCE(SUM(u.pages), 0) * 8192
FROM sys.partitions p
OUTER APPLY (SELECT SUM(a.used_pages) AS pages FROM sys.allocation_units a
    WHERE a.container_id = p.partition_id) u
WHERE p.object_id = OBJECT_ID(?) AND p.index_id IN (0, 1)
"""

_MAY_READ = "SELECT HAS_PERMS_BY_NAME(?, 'OBJECT', 'SELECT'), SUSER_SNAME()"

#: Whether a read can be of one moment: by snapshots that are asked for, or by those of statements.
_VERSIONS = """
SELECT snapshot_isolation_state, is_read_committed_snapshot_on, name FROM sys.databases
WHERE database_id = DB_ID()
"""

_TRACKED = """
SELECT is_tracked_by_cdc FROM sys.tables WHERE object_id = OBJECT_ID(?)
"""

#: What each capture of a table leaves out.
_CAPTURED = """
SELECT t.capture_instance, c.column_name
FROM cdc.change_tables t JOIN cdc.captured_columns c ON c.object_id = t.object_id
WHERE t.source_object_id = OBJECT_ID(?)
ORDER BY t.capture_instance, c.column_ordinal
"""


class MssqlDatabase(OdbcDatabase):
    """A SQL Server database; the schema of tables without one is that of the settings, or `dbo`.

    A chunk is read as a snapshot, so the database must keep versions of its rows. A value with
    parts of a microsecond halts the read.
    """

    driver: ClassVar[str] = "mssql+pyodbc"
    row_values: ClassVar[bool] = False
    clock_sql: ClassVar[str] = "SELECT DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())"
    tls_hint: ClassVar[str] = (
        "have the machine trust the authority of the server's certificate; "
        "the option TrustServerCertificate=yes only on a network that you trust"
    )

    def _url(self) -> sa.URL:
        url = super()._url()
        # ODBC takes names in any case, what makes its connection string only this one.
        query = {n if n.lower() != "driver" else "driver": text for n, text in url.query.items()}
        query.setdefault("driver", _DRIVER)
        if self._is_remote() and "encrypt" not in {name.lower() for name in query}:
            query["Encrypt"] = "yes"
        return url.set(query=query)

    def caution(self) -> str | None:
        """A warning for a remote server whose certificate is not looked at, or that has none."""
        settings = {name.lower(): text for name, text in self._settings.query.items()}
        trusts = settings.get("trustservercertificate", "no").lower() in ("yes", "true", "1")
        is_plain = settings.get("encrypt", "yes").lower() in ("no", "optional", "false", "0")
        if not self._is_remote() or not (trusts or is_plain):
            return None
        place = f"connections.{self._settings.name}.query"
        how = "is not encrypted" if is_plain else "is not verified"
        return caution(place, self._server(), how, "Leave Encrypt and TrustServerCertificate away.")

    def _prepare(self, connection: Any) -> None:
        connection.execute(_SESSION)

    # --- the catalog -----------------------------------------------------------------------------

    def _named(self, table: str) -> TableName:
        name = TableName.of(table)
        return name if name.schema else name._replace(schema=self._settings.own_schema or "dbo")

    def relation(self, table: str) -> str:
        """The table's name in SQL, with its schema."""
        return ".".join(map(self.quote, self._named(table)))

    def first(self, select: str, order: str, offset: int) -> str:
        """See `SqlDatabase`."""
        order = order or " ORDER BY (SELECT NULL)"
        return f"{select}{order} OFFSET {offset} ROWS FETCH NEXT 1 ROWS ONLY"

    def _schemas(self) -> Sequence[str]:
        return [name for (name,) in self.query(_SCHEMAS, (self._settings.own_schema,))]

    def _kinds(self, schema: str) -> dict[str, str]:
        schema = schema or self._settings.own_schema or "dbo"
        return {
            name: _KIND_NAMES[kind.strip()]
            for name, kind, known in self.query(_KINDS, (schema,))
            if known == schema  # the server may compare without case, messages have its name
        }

    def _columns(self, table: str) -> dict[str, Callable[[], Column]]:
        rows = self.query(_COLUMNS, (self.relation(table),))
        return {row[0]: partial(self._column, table, *row) for row in rows}

    def _column(
        self,
        table: str,
        name: str,
        kind: str,
        precision: int,
        scale: int,
        length: int,
        nullable: bool,
    ) -> Column:
        source_type = written(kind, precision, scale, length)
        arrow = self._read_type(table, name, kind, precision, scale, source_type).arrow
        return Column(name, arrow, bool(nullable), source_type)

    def _read_type(
        self, table: str, column: str, kind: str, precision: int, scale: int, source_type: str
    ) -> ReadType:
        try:
            return read_type(kind, precision, scale)
        except UnsupportedTypeError as error:
            return self._refuse(table, column, source_type, str(error))

    def _read_types(self, table: str, schema: TableSchema) -> Sequence[ReadType]:
        kinds = {row[0]: row[1:4] for row in self.query(_COLUMNS, (self.relation(table),))}
        types = []
        for column in schema.columns:
            kind, precision, scale = kinds[column.name]
            types.append(
                self._read_type(table, column.name, kind, precision, scale, column.source_type)
            )
        return types

    def _indexes(self, table: str) -> Sequence[UniqueIndex]:
        columns: dict[tuple[int, bool], list[str]] = {}
        for index, is_primary, column in self.query(_INDEXES, (self.relation(table),)):
            columns.setdefault((index, bool(is_primary)), []).append(column)
        return [UniqueIndex(tuple(names), primary) for (_, primary), names in columns.items()]

    def _chunk_columns(self, table: str, schema: TableSchema) -> tuple[str, ...]:
        columns = []
        for name in schema.key:
            column = schema.column(name)
            # Texts pad with spaces to compare, GUIDs have an order of their own, and a datetime is
            # compared by parts of a millisecond that it does not show.
            is_time = pa.types.is_date(column.type) or column.source_type.startswith("datetime2")
            if not (is_time or whole_number(column.type)):
                break
            columns.append(name)
        return tuple(columns)

    def _size(self, table: str, schema: TableSchema) -> Size:
        # Of all columns: which pages are whose is not counted.
        rows, size = self.query(_SIZE, (self.relation(table),))[0]
        return Size(int(rows), int(size) // max(1, int(rows)))

    def _missing_grant(self, table: str, schema: TableSchema | None) -> tuple[str, Sequence[str]]:
        may, user = self.query(_MAY_READ, (self.relation(table),))[0]
        # NULL: there is no such table, or it is hidden; what follows tells it.
        relation, to = self.relation(table), self.quote(user)
        return (f"GRANT SELECT ON {relation} TO {to}" if may == 0 else ""), ()

    # --- reading ---------------------------------------------------------------------------------

    def describe(self, table: str, uses: Callable[[str], bool] | None = None) -> TableSchema:
        """See `SqlDatabase`.

        Raises:
            UserError: also of a database that keeps no versions of rows.
        """
        self._isolation()
        return super().describe(table, uses)

    def _isolation(self) -> str:
        """The level by which a statement reads what was committed at one moment."""
        by_snapshot, by_statement, database = self.query(_VERSIONS)[0]
        if int(by_snapshot) == 1:
            return "SNAPSHOT"
        if by_statement:
            return "READ COMMITTED"
        raise ConfigError(
            f"SQL Server at {self._server()} keeps no versions of rows: a read would mix moments, "
            "and wait for who writes",
            where=f"connections.{self._settings.name}",
            safe="nothing was read",
            hint=f"ALTER DATABASE {self.quote(database)} SET ALLOW_SNAPSHOT_ISOLATION ON",
        )

    def _fetch(
        self,
        connection: Any,
        table: str,
        schema: TableSchema,
        where: str,
        parameters: Sequence[Any],
    ) -> Iterator[pa.RecordBatch]:
        connection.execute(_SNAPSHOT.format(self._isolation()))
        yield from super()._fetch(connection, table, schema, where, parameters)
        # Catalogs have no versions: whoever asks one may be stopped by who alters a table.
        connection.execute(_SNAPSHOT.format("READ COMMITTED"))

    # --- the log ---------------------------------------------------------------------------------

    def check_log(self, table: str, read: Sequence[Column] = ()) -> None:
        """Raise where changes of the table, or of columns that are read, are not captured."""
        schema, name = self._named(table)
        enable = (
            f"EXEC sys.sp_cdc_enable_table @source_schema = N'{_escaped(schema)}', "
            f"@source_name = N'{_escaped(name)}', @role_name = NULL"
        )
        tracked = self.query(_TRACKED, (self.relation(table),))
        if not tracked or not tracked[0][0]:
            raise UserError(
                f"changes of {self.place(table)} are not captured (CDC)",
                where=self._server(),
                safe="nothing was changed at the source",
                hint=f"EXEC sys.sp_cdc_enable_db, once; then {enable}",
            )
        captured: dict[str, set[str]] = {}
        for capture, column in self.query(_CAPTURED, (self.relation(table),)):
            captured.setdefault(capture, set()).add(column)
        wanted = list(filter(self._settings.table(table).reads, self._read_columns(table)))
        left = {c: [n for n in wanted if n not in names] for c, names in captured.items()}
        if captured and all(left.values()):
            capture, missing = next(iter(left.items()))
            raise UserError(
                f"changes of {self.place(table)} are captured without {', '.join(missing)}",
                where=f"{self._server()}, capture instance {capture}",
                safe="nothing was changed at the source",
                hint="disable it (sys.sp_cdc_disable_table) and capture all columns: "
                f"{enable}; or leave the columns out: {self._setting(table)}.exclude",
            )


def _escaped(text: str) -> str:
    return text.replace("'", "''")
