"""SQLite as a source database."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from mview.errors import ConfigError, UserError
from mview.relation import TableName
from mview.schema import Column, TableSchema, parse_type
from mview_connectors.databases.chunking import Size
from mview_connectors.databases.sql import SqlDatabase, UniqueIndex
from mview_connectors.databases.values import Convert, build_batch, decimals, from_text

#: The clock, in whole milliseconds: a day's fraction has too few digits to be cut off.
CLOCK = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


def quoted(name: str) -> str:
    """An identifier in SQL. What SQLite does not know in double quotes it takes for a text."""
    return "`" + name.replace("`", "``") + "`"


#: Rows per Arrow batch: some MB of usual rows.
_BATCH = 50_000

#: Rows at the start of a table from which the bytes per row are estimated.
_SAMPLE = 1000

#: Declared types (first word or words) by what their values must be. Unlike SQLite's own affinity
#: rules the list is closed: a type that nobody named has no value form to check against.
_DECLARED = {
    "bigint": r"(UNSIGNED )?(INT|INTEGER|BIGINT|SMALLINT|TINYINT|MEDIUMINT|INT2|INT4|INT8)",
    "boolean": r"BOOL(EAN)?",
    "double": r"REAL|FLOAT|DOUBLE( PRECISION)?",
    "date": r"DATE",
    "timestamp_ntz": r"DATETIME|TIMESTAMP( WITHOUT TIME ZONE)?",
    "timestamp": r"TIMESTAMPTZ|TIMESTAMP WITH TIME ZONE",
    "string": r"TEXT|CLOB|N?(VAR)?CHAR|CHARACTER|VARYING CHARACTER|NVARCHAR|STRING|JSON|UUID|TIME",
    "binary": r"BLOB|(VAR)?BINARY",
}
_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC)(?:\((\d+)(?:,(\d+))?\))?")


#: Python types that the driver may return for a type, other than NULL.
_STORED: dict[pa.DataType, set[type]] = {
    pa.int64(): {int},
    pa.float64(): {int, float},
    pa.binary(): {bytes},
}


class SqliteDatabase(SqlDatabase):
    """A SQLite file, opened read-only.

    Column types follow the declared type; a value that does not fit it halts the read. Dates and
    timestamps are ISO texts, decimals without precision are decimal(38,18).
    """

    driver: ClassVar[str] = "sqlite"
    mode: ClassVar[str] = "ro"
    mark: ClassVar[str] = "?"
    clock_sql: ClassVar[str] = f"SELECT {CLOCK}"
    away_hint: ClassVar[str] = "another program holds a lock on the file: let it commit or end"
    access_hint: ClassVar[str] = "check the path and the rights of the file"

    def quote(self, name: str) -> str:
        """See `quoted`."""
        return quoted(name)

    def _open(self) -> sqlite3.Connection:
        path = self._part("database")
        if not path or path == ":memory:":
            raise ConfigError(
                "a SQLite connection needs the path of its file",
                where=f"connections.{self._settings.name}.database",
            )
        file = Path(path).expanduser().absolute()
        if file.exists() and not file.is_file():
            # A pipe would be waited for.
            raise ConfigError(
                f"the SQLite database {file} is no regular file",
                where=f"connections.{self._settings.name}.database",
            )
        # Neither ro nor rw makes an empty database of a path that is wrong.
        uri = f"file:{quote(str(file))}?mode={self.mode}"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._prepare(connection)
        return connection

    def _connected(self) -> sa.Engine:
        if self._engine is None:
            pool = super()._connected()
            # Who has a file open reads on in it, though another one has taken its place or none
            # is there any more: that would be silent, and look fresh.
            sa.event.listen(pool, "connect", lambda _, record: self._note_file(record))
            sa.event.listen(pool, "checkout", lambda _, record, __: self._check_file(record))
        return super()._connected()

    def _note_file(self, record: sa.pool.ConnectionPoolEntry) -> None:
        record.info["file"] = self._file_there()

    def _check_file(self, record: sa.pool.ConnectionPoolEntry) -> None:
        if record.info.get("file") != self._file_there():
            raise sa.exc.DisconnectionError("the file was replaced")

    def _file_there(self) -> tuple[int, int] | None:
        """Which file it is that has the path now."""
        try:
            file = Path(self._part("database") or "").expanduser().stat()
        except OSError:
            return None
        return file.st_dev, file.st_ino

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.isolation_level = None

    def _is_passing(self, error: Exception) -> bool:
        return "locked" in str(error) or "busy" in str(error)

    def _parameter(self, value: Any) -> Any:
        return value.isoformat() if isinstance(value, dt.date) else value

    def _kinds(self, schema: str) -> dict[str, str]:
        rows = self.query("SELECT name, type FROM pragma_table_list WHERE schema = 'main'")
        return {
            name: "virtual table" if kind == "virtual" else kind
            for name, kind in rows
            if kind in ("table", "view", "virtual") and not name.startswith(("sqlite_", "_mview_"))
        }

    def _columns(self, table: str) -> dict[str, Callable[[], Column]]:
        rows = self.query(
            'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden != 1',
            (TableName.of(table).table,),
        )
        return {name: partial(self._column, table, name, *row) for name, *row in rows}

    def _column(self, table: str, name: str, declared: str, required: int, pk: int) -> Column:
        return Column(name, self._type(table, name, declared), not (required or pk), declared)

    def _indexes(self, table: str) -> Sequence[UniqueIndex]:
        named = (TableName.of(table).table,)
        key = self.query("SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", named)
        unique: dict[str, list[str | None]] = {}
        for index, column in self.query(
            "SELECT i.name, x.name FROM pragma_index_list(?) i, pragma_index_info(i.name) x"
            " WHERE i.\"unique\" AND NOT i.partial AND i.origin != 'pk' ORDER BY i.name, x.seqno",
            named,
        ):
            unique.setdefault(index, []).append(column)
        primary = [UniqueIndex(tuple(name for (name,) in key), True)] if key else []
        return primary + [
            UniqueIndex(tuple(name for name in columns if name is not None), False)
            for columns in unique.values()
            if None not in columns
        ]

    def _type(self, table: str, name: str, declared: str) -> pa.DataType:
        text = re.sub(r"\s+", " ", declared.upper()).replace(" (", "(").replace(", ", ",").strip()
        if match := _DECIMAL.fullmatch(text):
            precision, scale = (int(match[1]), int(match[2] or 0)) if match[1] else (38, 18)
            if precision > 38 or scale > precision:
                self._refuse(table, name, declared, "a decimal has at most 38 digits")
            return pa.decimal128(precision, scale)
        base = re.sub(r"\(\d+(,\d+)?\)", "", text).removesuffix(" UNSIGNED")
        for known, pattern in _DECLARED.items():
            if re.fullmatch(pattern, base):
                return parse_type(known)
        return self._refuse(table, name, declared or "(none)", "not a declared type that is known")

    def _chunk_columns(self, table: str, schema: TableSchema) -> tuple[str, ...]:
        self._check_key(table, schema)
        binary = {
            name
            for (name,) in self.query(
                "SELECT x.name FROM pragma_index_list(?) i, pragma_index_xinfo(i.name) x"
                ' WHERE i."unique" AND x.key GROUP BY x.name'
                " HAVING min(x.coll = 'BINARY')",
                (TableName.of(table).table,),
            )
        }
        utf8 = self.query("PRAGMA encoding")[0][0] == "UTF-8"
        columns = []
        for name in schema.key:
            arrow = schema.column(name).type
            text = pa.types.is_string(arrow) and name in binary and utf8
            # Timestamps are texts of several forms ("T" or space): they do not order by time.
            if not (pa.types.is_integer(arrow) or pa.types.is_date(arrow) or text):
                break
            columns.append(name)
        return tuple(columns)

    def _check_key(self, table: str, schema: TableSchema) -> None:
        """Halt on NULL in a key, which SQLite allows: no range would hold such a row."""
        missing = " OR ".join(f"{self.quote(name)} IS NULL" for name in schema.key)
        if self.query(f"SELECT 1 FROM {self.relation(table)} WHERE {missing} LIMIT 1"):
            raise UserError(
                f"a primary key of {self.place(table)} is NULL",
                where=", ".join(f"{self.place(table)}.{name}" for name in schema.key),
                hint=f"find it: SELECT * FROM {self.relation(table)} WHERE {missing}",
            )

    def _size(self, table: str, schema: TableSchema) -> Size:
        relation = self.relation(table)
        (rows,) = self.query(f"SELECT count(*) FROM {relation}")[0]
        width = " + ".join(
            f"coalesce(length(CAST({self.quote(name)} AS BLOB)), 0)" for name in schema.names
        )
        sample = f"SELECT avg({width}) FROM (SELECT * FROM {relation} LIMIT {_SAMPLE})"
        (average,) = self.query(sample)[0]
        return Size(rows, int(average or 0) + 1)

    def _fetch(
        self,
        connection: Any,
        table: str,
        schema: TableSchema,
        where: str,
        parameters: Sequence[Any],
    ) -> Iterator[pa.RecordBatch]:
        names = ", ".join(self.quote(name) for name in schema.names)
        converts = [converter(column.type) for column in schema.columns]
        cursor = connection.cursor()
        try:
            cursor.execute(f"SELECT {names} FROM {self.relation(table)}{where}", tuple(parameters))
            while rows := cursor.fetchmany(_BATCH):
                raw = list(zip(*rows, strict=True))
                yield build_batch(self.place(table), schema, raw, converts)
        finally:
            cursor.close()


def converter(arrow: pa.DataType) -> Convert:
    """From values as the driver returns them to a type; see the module."""
    if pa.types.is_decimal(arrow):
        return lambda values: _decimals(values, arrow)
    if pa.types.is_boolean(arrow):
        return _booleans
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_binary(arrow):
        stored = _STORED[arrow]
        return lambda values: pa.array(_only(values, stored), arrow)
    convert = from_text(arrow)
    return lambda values: convert(pa.array(_only(values, {str}), pa.string()))


def _only(values: Sequence[Any], stored: set[type]) -> Sequence[Any]:
    for kind in set(map(type, values)) - stored - {type(None)}:
        raise TypeError(f"stored as {kind.__name__}")
    return values


def _booleans(values: Sequence[Any]) -> pa.Array:
    for number in set(_only(values, {int})) - {0, 1, None}:
        raise ValueError(f"{number} is neither 0 nor 1")
    return pc.equal(pa.array(values, pa.int64()), 1)


def _decimals(values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
    kinds = set(map(type, _only(values, {int, float, str})))
    if float in kinds and str not in kinds and int not in kinds:
        # The shortest text that reads back as the same double is what was written.
        texts = pa.array(values, pa.float64()).cast(pa.string())
    else:
        texts = pa.array([None if v is None else str(v) for v in values], pa.string())
    return decimals(arrow)(texts)
