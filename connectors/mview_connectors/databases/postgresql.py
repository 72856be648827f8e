"""PostgreSQL as a source database: COPY ... TO STDOUT, parsed by Arrow."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv as pa_csv

from mview.schema import Column, TableSchema
from mview_connectors.databases.chunking import Size, whole_number
from mview_connectors.databases.postgresql_types import read_type
from mview_connectors.databases.sql import TLS_WORDS, SqlDatabase
from mview_connectors.databases.values import ReadType, UnsupportedTypeError, build_batch
from mview_connectors.network import postgresql_caution

#: Bytes of CSV that become one Arrow batch.
_BLOCK = 4 << 20

_SESSION = """
SET TIME ZONE 'UTC'; SET DateStyle TO 'ISO, YMD'; SET client_encoding TO 'UTF8';
SET extra_float_digits TO 1; SET standard_conforming_strings TO on; SET statement_timeout TO 0
"""

#: pg_class.relkind -> what it is called in messages; partitioned tables read like tables.
_RELATIONS = {
    "r": "table",
    "p": "table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}

#: Domains are followed to the type they stand on. Generated columns are left out: PostgreSQL does
#: not send them in its log.
_COLUMNS = """
WITH RECURSIVE types(number, name, required, type, modifier, ordinal) AS (
    SELECT a.attnum, a.attname, a.attnotnull, a.atttypid, a.atttypmod, 0
    FROM pg_attribute a
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
        AND a.attgenerated = ''
  UNION ALL
    SELECT s.number, s.name, s.required OR t.typnotnull, t.typbasetype, t.typtypmod, s.ordinal + 1
    FROM types s JOIN pg_type t ON t.oid = s.type
    WHERE t.typtype = 'd'
)
SELECT s.name, s.required, format_type(s.type, s.modifier), t.typtype::text
FROM types s JOIN pg_type t ON t.oid = s.type
WHERE t.typtype <> 'd'
ORDER BY s.number
"""

_KEY = """
SELECT a.attname,
    a.atttypid = 'uuid'::regtype
    OR (a.atttypid IN ('text'::regtype, 'varchar'::regtype)
        AND (c.collname IN ('C', 'POSIX', 'ucs_basic')
            OR (c.collname = 'default' AND d.datcollate IN ('C', 'POSIX')
                -- The column exists since version 15.
                AND coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') = 'c')))
        AND pg_encoding_to_char(d.encoding) = 'UTF8'
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
LEFT JOIN pg_collation c ON c.oid = a.attcollation
JOIN pg_database d ON d.datname = current_database()
WHERE i.indrelid = %s::regclass AND i.indisprimary AND k.place <= i.indnkeyatts
ORDER BY k.place
"""


class PostgresqlDatabase(SqlDatabase):
    """A PostgreSQL database; table names are looked up in the schema of the settings, or `public`.

    numeric without precision is decimal(38,18). A value that does not fit (NaN, infinity, a year
    before 1 or after 9999) halts the read.
    """

    driver: ClassVar[str] = "postgresql+psycopg"
    tls_hint: ClassVar[str] = (
        "query: {sslrootcert: /path/to/ca.pem} for a certificate of your own authority; "
        "query: {sslmode: disable} only on a network that you trust"
    )
    clock_sql: ClassVar[str] = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)"

    def _options(self) -> dict[str, Any]:
        import psycopg

        # COPY takes no server-side parameters: the client cursor writes them as literals.
        options = {"autocommit": True, "cursor_factory": psycopg.ClientCursor}
        if self._is_remote() and self._query("sslmode") is None:
            options["sslmode"] = "verify-full"
            if self._query("sslrootcert") is None:
                options["sslrootcert"] = "system"
        return options

    def caution(self) -> str | None:
        """A warning for a remote server with an `sslmode` that does not verify."""
        if not self._is_remote():
            return None
        place = f"connections.{self._settings.name}.query"
        return postgresql_caution(place, self._server(), self._query("sslmode"))

    def _prepare(self, connection: Any) -> None:
        connection.execute(_SESSION)

    def _is_passing(self, error: Exception) -> bool:
        import psycopg

        state = getattr(error, "sqlstate", None)
        if state is not None:
            # Classes: 08 connection, 40 rollback, 53 resources, 55 locks, 57 operator, 58 system.
            return state[:2] in ("08", "40", "53", "55", "57", "58")
        wrong = (
            *TLS_WORDS,
            "authentication failed",
            "no pg_hba.conf entry",
            "does not exist",
            "no password",
        )
        if any(text in str(error) for text in wrong):
            return False
        return isinstance(error, psycopg.OperationalError | OSError)

    @property
    def _namespace(self) -> str:
        return self._part("namespace") or "public"

    def relation(self, table: str) -> str:
        """The table's name in SQL, with its schema."""
        return f"{self.quote(self._namespace)}.{self.quote(table)}"

    def _regclass(self, table: str) -> str:
        # As a parameter, unlike in a statement, a % stands for itself.
        return self.relation(table).replace("%%", "%")

    def _kinds(self) -> dict[str, str]:
        rows = self.query(
            "SELECT c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s",
            (self._namespace,),
        )
        return {name: _RELATIONS[kind] for name, kind in rows if kind in _RELATIONS}

    def _schema(self, table: str) -> TableSchema:
        relation = self._regclass(table)
        columns = []
        for name, required, source_type, category in self.query(_COLUMNS, (relation,)):
            arrow = self._read_type(table, name, source_type, category).arrow
            columns.append(Column(name, arrow, not required, source_type))
        key = tuple(name for name, _ in self.query(_KEY, (relation,)))
        return TableSchema(tuple(columns), key)

    def _read_type(self, table: str, column: str, source_type: str, category: str) -> ReadType:
        try:
            return read_type(source_type, category)
        except UnsupportedTypeError as error:
            return self._refuse(table, column, source_type, str(error))

    def _chunk_columns(self, table: str, schema: TableSchema) -> tuple[str, ...]:
        columns = []
        for name, ordered in self.query(_KEY, (self._regclass(table),)):
            arrow = schema.column(name).type
            moment = pa.types.is_date(arrow) or pa.types.is_timestamp(arrow)
            if not (ordered or moment or whole_number(arrow)):
                break
            columns.append(name)
        return tuple(columns)

    def _size(self, table: str) -> Size:
        # The planner's estimate uses the table's size now, also where ANALYZE never ran.
        (plan,) = self.query(f"EXPLAIN (FORMAT JSON) SELECT * FROM {self.relation(table)}")[0]
        (explained,) = json.loads(plan) if isinstance(plan, str) else plan
        return Size(int(explained["Plan"]["Plan Rows"]), int(explained["Plan"]["Plan Width"]))

    def _fetch(
        self,
        connection: Any,
        table: str,
        schema: TableSchema,
        where: str,
        parameters: Sequence[Any],
    ) -> Iterator[pa.RecordBatch]:
        categories = {row[0]: row[3] for row in self.query(_COLUMNS, (self._regclass(table),))}
        types = [
            self._read_type(table, column.name, column.source_type, categories[column.name])
            for column in schema.columns
        ]
        names = [self.quote(column.name) for column in schema.columns]
        selected = ", ".join(type_.select(name) for type_, name in zip(types, names, strict=True))
        sql = f"COPY (SELECT {selected} FROM {self.relation(table)}{where}) TO STDOUT (FORMAT csv)"
        converts = [type_.convert for type_ in types]
        with connection.cursor() as cursor, cursor.copy(sql, tuple(parameters)) as copy:
            for block in _blocks(copy):
                raw = _parse(block, len(types))
                yield build_batch(self.place(table), schema, raw, converts)


def _blocks(copy: Any) -> Iterator[bytes]:
    """The stream in pieces of whole rows: the server sends a row per message."""
    rows: list[bytes] = []
    size = 0
    for row in copy:
        rows.append(bytes(row))
        size += len(row)
        if size >= _BLOCK:
            yield b"".join(rows)
            rows, size = [], 0
    if rows:
        yield b"".join(rows)


def _parse(block: bytes, columns: int) -> list[pa.Array]:
    """The columns of a CSV block as texts; NULL is the unquoted empty field."""
    names = [str(number) for number in range(columns)]
    table = pa_csv.read_csv(
        io.BytesIO(block),
        read_options=pa_csv.ReadOptions(column_names=names, block_size=len(block) + 1),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() for column in table.columns]
