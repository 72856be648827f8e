"""MySQL and MariaDB as source databases: the text protocol, parsed column by column."""

from __future__ import annotations

import re
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import Any, ClassVar, NoReturn

import pyarrow as pa

from mview.clock import SourceMs
from mview.connector import Look
from mview.errors import ConfigError, UserError, ask_all
from mview.relation import TableName
from mview.schema import Column, TableSchema
from mview_connectors import silence
from mview_connectors.databases.chunking import Size, whole_number
from mview_connectors.databases.conditions import Comparable
from mview_connectors.databases.mysql_packets import MalformedRowError, MysqlServerError, row_blocks
from mview_connectors.databases.mysql_types import NOT_BY_DEBEZIUM, read_type
from mview_connectors.databases.sql import TLS_WORDS, SqlDatabase, UniqueIndex
from mview_connectors.databases.values import ReadType, UnsupportedTypeError, build_batch
from mview_connectors.network import mysql_caution

#: Seconds the server waits for a reader that is busy with its last rows.
_PATIENCE = 3600
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
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
#: A foreign key in what SHOW CREATE TABLE prints: its name, and what it says.
_FOREIGN_KEY = re.compile(
    r"^ *CONSTRAINT (`(?:[^`]|``)+`|\S+) FOREIGN KEY ((?:`(?:[^`]|``)*`|[^`\n])*)", re.MULTILINE
)
_NAMES = re.compile(r"`(?:[^`]|``)*`")
_CHANGES_ROWS = re.compile(r" ON (?:DELETE|UPDATE) (?:CASCADE|SET )")

#: MariaDB says NULL by its name, MySQL by itself.
_DEFAULTS = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND IS_NULLABLE = 'YES' AND COLUMN_DEFAULT IS NOT NULL
    AND NOT (version() LIKE '%%MariaDB%%' AND COLUMN_DEFAULT = 'NULL')
ORDER BY ORDINAL_POSITION
"""

_BINARY_LOG = "SELECT @@GLOBAL.log_bin, @@GLOBAL.binlog_format, @@GLOBAL.binlog_row_image"

#: Servers have one of them, or both; 0 keeps the log for ever.
_RETENTION = """
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('expire_logs_days', 'binlog_expire_logs_seconds')
"""
_DAY_S = 86_400

#: Bits of a TSO of TiDB that count within its millisecond.
_TSO_BITS = 18

#: Numbers of errors that deny a database, a table, a column or a command to this user.
_DENIED = (1044, 1142, 1143, 1227)

#: What the server says where a user has no right at all in a database.
_NO_DATABASE = re.compile(r"Access denied for user ('[^']*'@'[^']*') to database '([^']+)'")

#: Unique indexes; parts of a text, and expressions, tell rows apart by less than they are.
_INDEXES = """
SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0
ORDER BY INDEX_NAME, SEQ_IN_INDEX
"""


class DeniedError(UserError):
    """The user lacks a right."""


def is_denied(error: Exception) -> bool:
    """Whether the server says that the user lacks a right."""
    return bool(error.args) and error.args[0] in _DENIED


class MysqlDatabase(SqlDatabase):
    """A MySQL or MariaDB database.

    tinyint(1) is a number, as in the changelog; bigint unsigned is decimal(20,0); a zero date halts
    the read.
    """

    driver: ClassVar[str] = "mysql+pymysql"
    comparable: ClassVar[Comparable] = Comparable(
        (
            *("tinyint", "smallint", "mediumint", "int", "bigint", "decimal"),
            *("date", "datetime", "timestamp"),
        ),
        ("char", "varchar", "tinytext", "text", "mediumtext", "longtext"),
    )
    #: Its optimizer finds no range in `(a, b) >= (x, y)`.
    row_values: ClassVar[bool] = False
    tls_hint: ClassVar[str] = (
        "the option ssl_ca=/path/to/ca.pem for a certificate of your own authority; "
        "ssl_disabled=true only on a network that you trust"
    )
    clock_sql: ClassVar[str] = "SELECT FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000)"

    def clock(self) -> SourceMs:
        """The database's own clock; TiDB's is that of its timestamps (TSO), which TiCDC sends."""
        if not self._is_tidb:
            return super().clock()
        with self._connection("asking") as connection, closing(connection.cursor()) as cursor:
            cursor.execute("BEGIN")  # it is 0 outside of a transaction
            cursor.execute("SELECT @@tidb_current_ts")
            ((tso,),) = cursor.fetchall()
            cursor.execute("ROLLBACK")
        return SourceMs(int(tso) >> _TSO_BITS)

    @cached_property
    def _is_tidb(self) -> bool:
        return "TiDB" in str(self.query("SELECT VERSION()")[0][0])

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"autocommit": True, "charset": "utf8mb4"}
        options |= silence.mysql_options(self._settings.query)
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

    def _wait(self, connection: Any, seconds: float) -> None:
        silence.wait_mysql(connection, seconds, self._settings.query)

    def _prepare(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_SESSION)

    def _is_passing(self, error: Exception) -> bool:
        number = error.args[0] if error.args else None
        if any(word in str(error) for word in TLS_WORDS):
            return False
        return isinstance(error, OSError) or number in _PASSING

    def _missing_right(self, error: Exception) -> str:
        denied = _NO_DATABASE.search(str(error))
        if denied is None:
            return ""
        user, database = denied.groups()
        return (
            f"GRANT SELECT ON {self.quote(database)}.* TO {user}, if that is the database's name: "
            "the server says the same of one that is not there"
        )

    def _refusal(self, error: Exception) -> type[UserError]:
        return DeniedError if is_denied(error) else UserError

    def _driver_errors(self) -> tuple[type[Exception], ...]:
        return (*super()._driver_errors(), *_NO_ANSWER, RuntimeError)

    def _fail(self, error: Exception, task: str) -> NoReturn:
        if isinstance(error, _NO_ANSWER):
            # pymysql takes packets apart without looking whether they are so long.
            error = RuntimeError("the server's answer breaks the MySQL protocol")
        super()._fail(error, task)

    def _missing_grant(self, table: str, schema: TableSchema | None) -> tuple[str, Sequence[str]]:
        if schema is not None:
            return "", ()  # what may not be read cannot be seen
        try:
            self.query(f"SELECT 1 FROM {self.relation(table)} LIMIT 0")
        except DeniedError:
            return self._grant("SELECT", table), ()
        except UserError:
            pass  # which says so itself
        return "", ()

    def _grant(self, right: str, table: str) -> str:
        ((user,),) = self.query("SELECT CURRENT_USER()")
        name, _, host = str(user).rpartition("@")
        relation = ".".join(map(self.quote, self._named(table))).replace("%%", "%")
        return f"GRANT {right} ON {relation} TO '{name}'@'{host}'"

    def looks(self, tables: Sequence[str], load_ms: Callable[[], int] | None) -> Sequence[Look]:
        """What the binary log has, and for how long."""
        if load_ms is None:
            return []

        def ask() -> str:
            is_on, form, image = self.query(_BINARY_LOG)[0]
            if not int(is_on):
                return "this server writes none: that of another one is read"
            ask_all([partial(self.check_log, table) for table in tables])
            said = f"binlog_format {form}, binlog_row_image {image}"
            return f"{said}; {self.log_is_kept(load_ms())}"

        return [Look(f"connections.{self._settings.name}: binary log", ask)]

    def log_is_kept(self, load_ms: int) -> str:
        """For how long the server keeps its binary log.

        Args:
            load_ms: about how long a load takes.

        Raises:
            ConfigError: it is kept for less.
        """
        kept = {str(name): float(value) for name, value in self.query(_RETENTION)}
        seconds = kept.get("binlog_expire_logs_seconds", 0)
        seconds = seconds or kept.get("expire_logs_days", 0) * _DAY_S
        if not seconds:
            return "kept until it is purged by hand"
        if seconds * 1000 < load_ms:
            raise ConfigError(
                "the binary log is kept for less than a load takes",
                where=self._server(),
                got=f"{seconds / 3600:.1f} hours; a load takes about {load_ms / 3_600_000:.1f}",
                hint=f"SET GLOBAL expire_logs_days = {2 + load_ms // (_DAY_S * 1000)}, and the "
                "same in the server's configuration",
            )
        return f"kept for {seconds / 3600:.1f} hours"

    def check_log(self, table: str, read: Sequence[Column] = ()) -> None:
        """Raise where the binary log has statements, or parts of rows, or lacks changes.

        A server that writes none is not the one whose log is read.
        """
        for column in read:
            if (why := NOT_BY_DEBEZIUM.get(column.source_type.lower())) is not None:
                raise UserError(
                    f"changes of {self.place(table)}.{column.name} cannot be read exactly from "
                    f"Debezium's messages: {why}",
                    got=column.source_type,
                    safe="nothing was read",
                    hint="let mview follow the log itself (source: mysql); or leave it out: "
                    f"{self._setting(table)}.exclude: [{column.name}]",
                )
        is_on, form, image = self.query(_BINARY_LOG)[0]
        for setting, got, wanted in (
            ("binlog_format", form, "ROW"),
            ("binlog_row_image", image, "FULL"),
        ):
            if int(is_on) and str(got).upper() != wanted:
                raise UserError(
                    f"the binary log of {self._server()} has not all columns of a change: what is "
                    "left out would come as NULL",
                    where=self.place(table),
                    got=f"{setting} = {got}",
                    allowed=f"{setting} = {wanted}",
                    hint=f"SET GLOBAL {setting} = '{wanted}', and the same in the server's "
                    "configuration; clients that are connected keep the old setting until they "
                    "connect anew",
                )

        self.check_cascades(table)

    def defaults(self, table: str) -> Sequence[str]:
        """The columns that may be NULL and have another default."""
        return [str(name) for (name,) in self.query(_DEFAULTS, self._named(table))]

    def check_cascades(self, table: str) -> None:
        """Raise where a foreign key changes rows by itself: the server writes no log of that."""
        for name, rule in _FOREIGN_KEY.findall(self._definition(table)):
            if not _CHANGES_ROWS.search(_NAMES.sub("", rule)):
                continue
            relation = self.relation(table).replace("%%", "%")
            raise UserError(
                f"table {self.place(table)} has the foreign key {name.strip('`')} with CASCADE or "
                "SET NULL: what it changes is not in the log",
                safe="nothing was changed at the source",
                hint=f"ALTER TABLE {relation} DROP FOREIGN KEY {name}, and add it with ON DELETE "
                "RESTRICT ON UPDATE RESTRICT",
            )

    def _definition(self, table: str) -> str:
        """The statement that makes it.

        REFERENTIAL_CONSTRAINTS of MariaDB hides foreign keys from who may only SELECT.
        """
        try:
            return str(self.query(f"SHOW CREATE TABLE {self.relation(table)}")[0][1])
        except DeniedError:
            if not self._columns(table):
                return ""  # it cannot be read at all, which is told where it is
            raise UserError(
                f"table {self.place(table)} may have foreign keys that change rows by themselves, "
                "and this user may not see them",
                got="SELECT is granted on some of its columns only",
                safe="nothing was changed at the source",
                hint=f"{self._grant('REFERENCES', table)}; it lets nobody read a row",
            ) from None

    @cached_property
    def database(self) -> str:
        """The name of the connection's database, as the server has it."""
        return str(self.query("SELECT DATABASE()")[0][0])

    def _named(self, table: str) -> TableName:
        """The table with its database."""
        name = TableName.of(table)
        return name if name.schema else name._replace(schema=self.database)

    def _kinds(self, schema: str) -> dict[str, str]:
        schema = schema or self.database
        rows = self.query(
            "SELECT TABLE_NAME, TABLE_TYPE, TABLE_SCHEMA FROM information_schema.TABLES"
            " WHERE TABLE_SCHEMA = %s",
            (schema,),
        )
        return {
            name: "table" if kind in ("BASE TABLE", "SYSTEM VERSIONED") else kind.lower()
            for name, kind, known in rows
            if known == schema  # the server compares without case, its log with
        }

    def _columns(self, table: str) -> dict[str, Callable[[], Column]]:
        rows = self.query(_COLUMNS, self._named(table))
        return {name: partial(self._column, table, name, *row) for name, *row in rows}

    def _column(
        self, table: str, name: str, source_type: str, nullable: str, collation: str | None
    ) -> Column:
        arrow = self._read_type(table, name, source_type).arrow
        return Column(name, arrow, nullable == "YES", source_type)

    def _indexes(self, table: str) -> Sequence[UniqueIndex]:
        parts: dict[str, list[str | None]] = {}
        for index, column, length in self.query(_INDEXES, self._named(table)):
            whole = length is None or index == "PRIMARY"
            parts.setdefault(index, []).append(column if whole else None)
        return [
            UniqueIndex(tuple(name for name in columns if name is not None), index == "PRIMARY")
            for index, columns in parts.items()
            if None not in columns
        ]

    def _read_type(self, table: str, column: str, source_type: str) -> ReadType:
        try:
            return read_type(source_type)
        except UnsupportedTypeError as error:
            return self._refuse(table, column, source_type, str(error))

    def _chunk_columns(self, table: str, schema: TableSchema) -> tuple[str, ...]:
        rows = self.query(_COLUMNS, self._named(table))
        collations = {name: collation for name, _, _, collation in rows}
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

    def _size(self, table: str, schema: TableSchema) -> Size:
        sql = (
            "SELECT TABLE_ROWS, AVG_ROW_LENGTH FROM information_schema.TABLES"
            " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        )
        rows, row_bytes = self.query(sql, self._named(table))[0]
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
