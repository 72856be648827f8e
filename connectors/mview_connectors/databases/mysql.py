"""MySQL and MariaDB as source databases: the text protocol, parsed column by column."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NoReturn

import pyarrow as pa

from mview.errors import UserError
from mview.schema import Column, TableSchema
from mview_connectors.databases.chunking import Size, whole_number
from mview_connectors.databases.mysql_packets import MalformedRowError, MysqlServerError, row_blocks
from mview_connectors.databases.mysql_types import read_type
from mview_connectors.databases.sql import TLS_WORDS, SqlDatabase
from mview_connectors.databases.values import ReadType, UnsupportedTypeError, build_batch
from mview_connectors.network import mysql_caution

#: Seconds the server waits for a reader that is busy with its last rows.
_PATIENCE = 3600
#: Seconds without a byte after which the server counts as gone: while connecting, and later.
_GREETING, _SILENCE = 60, 3600

_SESSION = (
    "SET time_zone = '+00:00', sql_mode = '', "
    f"net_write_timeout = {_PATIENCE}, net_read_timeout = {_PATIENCE}"
)

#: Error numbers after which the same command may succeed: too many connections, lock wait,
#: deadlock, server shutting down or gone, connection refused or lost.
_PASSING = {1040, 1053, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1927, 2002, 2003, 2006, 2013}

#: What pymysql raises where a packet is shorter than it says, or has other bytes.
_NO_ANSWER = (struct.error, LookupError, ValueError, AssertionError)

_STRINGS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")

#: Collations in the order of the UTF-8 bytes; the first ones pad with spaces to compare.
_PADDED = {f"{charset}_bin" for charset in ("utf8mb4", "utf8mb3", "utf8", "ascii")}
_UNPADDED = {"utf8mb4_nopad_bin", "utf8mb3_nopad_bin", "ascii_nopad_bin", "utf8mb4_0900_bin"}

_COLUMNS = """
SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLLATION_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_KEY = """
SELECT COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY'
ORDER BY SEQ_IN_INDEX
"""


class MysqlDatabase(SqlDatabase):
    """A MySQL or MariaDB database.

    tinyint(1) is a number, as in the changelog; bigint unsigned is decimal(20,0); a zero date halts
    the read.
    """

    driver: ClassVar[str] = "mysql+pymysql"
    #: Its optimizer finds no range in `(a, b) >= (x, y)`.
    row_values: ClassVar[bool] = False
    tls_hint: ClassVar[str] = (
        "query: {ssl_ca: /path/to/ca.pem} for a certificate of your own authority; "
        "query: {ssl_disabled: 'true'} only on a network that you trust"
    )
    clock_sql: ClassVar[str] = "SELECT FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000)"

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"autocommit": True, "charset": "utf8mb4"}
        if "read_timeout" not in self._settings.query:
            options["read_timeout"] = _GREETING
        if self._is_remote() and not self._tls_settings():
            options["ssl"] = ssl.create_default_context()
        return options

    def _tls_settings(self) -> set[str]:
        return {name for name in self._settings.query if name.startswith("ssl")}

    def caution(self) -> str | None:
        """A warning for a remote server with settings that do not verify."""
        if not self._is_remote():
            return None
        place = f"connections.{self._settings.name}.query"
        return mysql_caution(place, self._server(), self._settings.query)

    def _prepare(self, connection: Any) -> None:
        if "read_timeout" not in self._settings.query:
            connection._read_timeout = _SILENCE
        with connection.cursor() as cursor:
            cursor.execute(_SESSION)

    def _is_passing(self, error: Exception) -> bool:
        number = error.args[0] if error.args else None
        if any(word in str(error) for word in TLS_WORDS):
            return False
        return isinstance(error, OSError) or number in _PASSING

    def _driver_errors(self) -> tuple[type[Exception], ...]:
        return (*super()._driver_errors(), *_NO_ANSWER, RuntimeError)

    def _fail(self, error: Exception, task: str) -> NoReturn:
        if isinstance(error, _NO_ANSWER):
            # pymysql takes packets apart without looking whether they are so long.
            error = RuntimeError("the server's answer breaks the MySQL protocol")
        super()._fail(error, task)

    def _kinds(self) -> dict[str, str]:
        rows = self.query(
            "SELECT TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES"
            " WHERE TABLE_SCHEMA = DATABASE()"
        )
        return {
            name: "table" if kind in ("BASE TABLE", "SYSTEM VERSIONED") else kind.lower()
            for name, kind in rows
        }

    def _schema(self, table: str) -> TableSchema:
        columns = tuple(
            Column(name, self._read_type(table, name, text).arrow, nullable == "YES", text)
            for name, text, nullable, _ in self.query(_COLUMNS, (table,))
        )
        return TableSchema(columns, tuple(name for (name,) in self.query(_KEY, (table,))))

    def _read_type(self, table: str, column: str, source_type: str) -> ReadType:
        try:
            return read_type(source_type)
        except UnsupportedTypeError as error:
            return self._refuse(table, column, source_type, str(error))

    def _chunk_columns(self, table: str, schema: TableSchema) -> tuple[str, ...]:
        collations = {name: collation for name, _, _, collation in self.query(_COLUMNS, (table,))}
        columns: list[str] = []
        for name in schema.key:
            column = schema.column(name)
            if column.source_type.lower().startswith(_STRINGS):
                if collations[name] in _UNPADDED:
                    columns.append(name)
                    continue
                # Padded with spaces, a key with control characters orders otherwise than its
                # bytes. `read` notices that, but only for a key of one column.
                return (name,) if collations[name] in _PADDED and not columns else tuple(columns)
            moment = pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
            if not (moment or whole_number(column.type)):
                break
            columns.append(name)
        return tuple(columns)

    def _size(self, table: str) -> Size:
        sql = (
            "SELECT TABLE_ROWS, AVG_ROW_LENGTH FROM information_schema.TABLES"
            " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s"
        )
        rows, row_bytes = self.query(sql, (table,))[0]
        return Size(int(rows or 0), int(row_bytes or 0))

    def _fetch(
        self,
        connection: Any,
        table: str,
        schema: TableSchema,
        where: str,
        parameters: Sequence[Any],
    ) -> Iterator[pa.RecordBatch]:
        from pymysql.cursors import SSCursor

        types = [self._read_type(table, c.name, c.source_type) for c in schema.columns]
        names = [self.quote(column.name) for column in schema.columns]
        selected = ", ".join(type_.select(name) for type_, name in zip(types, names, strict=True))
        converts = [type_.convert for type_ in types]
        cursor = connection.cursor(SSCursor)
        cursor.execute(f"SELECT {selected} FROM {self.relation(table)}{where}", tuple(parameters))
        for raw in _rows(connection, len(types)):
            yield build_batch(self.place(table), schema, raw, converts)


def _rows(connection: Any, columns: int) -> Iterator[list[pa.Array]]:
    """The rows of the unbuffered query that was just executed, read past pymysql's own parser."""
    from pymysql.err import raise_mysql_exception

    result = connection._result
    # From here on pymysql must not try to read the rows itself, whatever ends this.
    result.unbuffered_active = False
    result.connection = None
    try:
        yield from row_blocks(connection._rfile.read1, columns)
    except MysqlServerError as error:
        raise_mysql_exception(error.packet)
    except MalformedRowError as error:
        raise UserError(
            "the server's answer breaks the MySQL protocol",
            where=f"{connection.host}:{connection.port}",
            got=str(error),
            safe="nothing of this read was taken",
            hint="is it a MySQL or MariaDB server, and nothing between that rewrites its answers? "
            "A newer one of its kind may help; then run again",
        ) from None
