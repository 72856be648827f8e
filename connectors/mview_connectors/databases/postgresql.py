"""PostgreSQL as a source database: COPY ... TO STDOUT, parsed by Arrow."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import pyarrow.csv as pa_csv

from mview.connector import Look
from mview.errors import ConfigError, UserError
from mview.relation import TableName
from mview.schema import READ_AS, Column, TableSchema, parse_type, type_name
from mview_connectors.databases.chunking import Size, whole_number
from mview_connectors.databases.conditions import Comparable
from mview_connectors.databases.postgresql_types import read_type
from mview_connectors.databases.sql import TLS_WORDS, SqlDatabase, UniqueIndex
from mview_connectors.databases.values import ReadType, UnsupportedTypeError, build_batch
from mview_connectors.network import POSTGRESQL_REFUSALS, postgresql_caution
from mview_connectors.silence import connect_postgresql, wait_postgresql

#: Bytes of CSV that become one Arrow batch.
_BLOCK = 4 << 20

_SESSION = """
SET TIME ZONE 'UTC'; SET DateStyle TO 'ISO, YMD'; SET client_encoding TO 'UTF8';
SET extra_float_digits TO 1; SET standard_conforming_strings TO on; SET statement_timeout TO 0;
SET IntervalStyle TO 'iso_8601'; SET bytea_output TO 'hex'; SET xmlbinary TO 'base64';
SET row_security TO off
"""

#: Schemas of users, into which this one may look.
_SCHEMAS = """
SELECT nspname FROM pg_namespace
WHERE nspname <> %s AND nspname !~ '^pg_' AND nspname <> 'information_schema'
    AND has_schema_privilege(oid, 'USAGE')
ORDER BY nspname
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

#: The columns that are left out of these.
_GENERATED = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated <> ''
ORDER BY attnum
"""

#: Unique indexes of all rows; a deferrable one may have two rows of a key for a moment, and changes
#: in the log do not say which of them they are of.
_INDEXES = """
SELECT i.indisprimary, array_agg(a.attname::text ORDER BY k.place)
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indpred IS NULL
    AND i.indimmediate AND i.indisvalid AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indisprimary HAVING bool_and(k.number > 0)
"""

#: Whether the primary key is deferrable: then it is no key.
_DEFERRABLE = """
SELECT conname FROM pg_constraint
WHERE conrelid = %s::regclass AND contype = 'p' AND condeferrable
"""

#: Columns whose values are ordered by their bytes.
_ORDERED = """
SELECT a.attname,
    a.atttypid = 'uuid'::regtype
    OR (a.atttypid IN ('text'::regtype, 'varchar'::regtype)
        AND (c.collname IN ('C', 'POSIX', 'ucs_basic')
            OR (c.collname = 'default' AND d.datcollate IN ('C', 'POSIX')
                -- The column exists since version 15.
                AND coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') = 'c')))
        AND pg_encoding_to_char(d.encoding) = 'UTF8'
FROM pg_attribute a
LEFT JOIN pg_collation c ON c.oid = a.attcollation
JOIN pg_database d ON d.datname = current_database()
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
"""


_DEFAULTS = """
SELECT a.attname
FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND NOT a.attnotnull
    AND a.attgenerated = '' AND pg_get_expr(d.adbin, d.adrelid) !~ '^NULL(::|$)'
ORDER BY a.attnum
"""

#: Whether it has rows of its own: to count those of a view may take any time.
_IS_TABLE = "SELECT relkind IN ('r', 'p') FROM pg_class WHERE oid = %s::regclass"

#: Rows that are counted at the most, where the planner thinks that there are fewer.
_COUNTED = 10_000

_PERSISTENCE = "SELECT relpersistence::text FROM pg_class WHERE oid = %s::regclass"

#: What the table is, and the topmost table that it is a part of.
_FAMILY = """
SELECT c.relkind = 'p', c.relispartition,
    EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid), pg_partition_root(c.oid)::text
FROM pg_class c WHERE c.oid = %s::regclass
"""

#: Publications that send its changes under its own name, and what they leave out. Rows are left out
#: by a filter since version 15.
_PUBLISHED = """
SELECT p.pubname, p.pubinsert AND p.pubupdate AND p.pubdelete, p.pubtruncate,
    to_jsonb(t) ->> 'rowfilter'
FROM pg_publication_tables t JOIN pg_publication p ON p.pubname = t.pubname
WHERE t.schemaname = %s AND t.tablename = %s
"""

#: Publications that send what a table's partitions have under its name.
_PUBLISHED_AT = """
SELECT t.pubname FROM pg_publication_tables t
WHERE format('%%I.%%I', t.schemaname, t.tablename)::regclass = %s::regclass
"""

#: Publications that send the changes of its partitions under their names.
_PARTS_PUBLISHED = """
SELECT DISTINCT t.pubname::text
FROM pg_partition_tree(%s::regclass) f
JOIN pg_class c ON c.oid = f.relid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_publication_tables t ON t.schemaname = n.nspname AND t.tablename = c.relname
WHERE f.level > 0 ORDER BY 1
"""


#: Columns that this user may not read, whether it may look into the schema, and whether a policy
#: hides rows from it: the log has these, too.
_GRANTS = """
SELECT has_schema_privilege(n.oid, 'USAGE'), current_user, row_security_active(c.oid),
    (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
     WHERE a.attrelid = c.oid AND a.attname = ANY(%s::text[])
        AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""

#: How much of the log the server has, and slots that were too far behind.
_LOG = """
SELECT current_setting('wal_level'), current_setting('max_slot_wal_keep_size', true),
    (SELECT string_agg(s.slot_name, ', ') FROM pg_replication_slots s
     WHERE s.database = current_database() AND to_jsonb(s) ->> 'wal_status' = 'lost')
"""

#: What of an old row is sent: all of it, nothing, or these columns.
_IDENTITY = """
SELECT c.relreplident::text, (SELECT array_agg(a.attname::text)
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = c.oid AND i.indimmediate
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)
FROM pg_class c WHERE c.oid = %s::regclass
"""


class PostgresqlDatabase(SqlDatabase):
    """A PostgreSQL database; the schema of tables without one is that of the settings, or `public`.

    numeric without precision is decimal(38,18). A value that does not fit (NaN, infinity, a year
    before 1 or after 9999) halts the read.
    """

    driver: ClassVar[str] = "postgresql+psycopg"
    comparable: ClassVar[Comparable] = Comparable(
        ("smallint", "integer", "bigint", "numeric", "date", "timestamp"),
        ("text", "character varying", "character("),
    )
    reads_as: ClassVar[bool] = True
    tls_hint: ClassVar[str] = (
        "the option sslrootcert=/path/to/ca.pem for a certificate of your own authority; "
        "sslmode=disable only on a network that you trust"
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

    def _connect(self, *arguments: Any, **options: Any) -> Any:
        return connect_postgresql(*arguments, **options)

    def _wait(self, connection: Any, seconds: float) -> None:
        wait_postgresql(connection, seconds)

    def _prepare(self, connection: Any) -> None:
        connection.execute(_SESSION)

    def _is_passing(self, error: Exception) -> bool:
        import psycopg

        state = getattr(error, "sqlstate", None)
        if state is not None:
            # Classes: 08 connection, 40 rollback, 53 resources, 55 locks, 57 operator, 58 system.
            return state[:2] in ("08", "40", "53", "55", "57", "58")
        if any(text in str(error) for text in (*TLS_WORDS, *POSTGRESQL_REFUSALS)):
            return False
        return isinstance(error, psycopg.OperationalError | OSError)

    def _missing_grant(self, table: str, schema: TableSchema | None) -> tuple[str, Sequence[str]]:
        names = [] if schema is None else list(schema.names)
        grants, some = list[str](), list[str]()
        named = self._named(table)
        for usage, user, is_hidden, denied in self.query(_GRANTS, (names, *named)):
            to = f"TO {self.quote(user)}"
            if not usage:
                grants.append(f"GRANT USAGE ON SCHEMA {self.quote(named.schema)} {to}")
            if denied:
                only = ", ".join(map(self.quote, denied))
                columns = "" if len(denied) == len(names) else f" ({only})"
                some += denied if columns else []
                grants.append(f"GRANT SELECT{columns} ON {self.relation(table)} {to}")
            if is_hidden:  # row level security
                grants.append(f"ALTER ROLE {self.quote(user)} BYPASSRLS")
        return "; ".join(grants), some

    def looks(self, tables: Sequence[str], load_ms: Callable[[], int] | None) -> Sequence[Look]:
        """What the log keeps and sends."""
        if load_ms is None:
            return []
        about = f"connections.{self._settings.name}: log"
        return [Look(about, self._look_at_log)]

    def _look_at_log(self) -> str:
        level, most, lost = self.query(_LOG)[0]
        if level != "logical":
            raise ConfigError(
                f"wal_level is {level}: the log has no rows",
                where=self._server(),
                hint="ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
            )
        if lost:
            raise ConfigError(
                "slots were too far behind: the log that they need is gone",
                where=self._server(),
                got=f"{lost}; max_slot_wal_keep_size is {most}",
                hint="make the slot of the connector anew, with a new snapshot of its tables; and "
                "`mview drop` these tables, so that they are loaded anew",
            )
        kept = "without a limit: watch its disk" if most in ("-1", None) else f"up to {most}"
        return f"wal_level is logical; a slot keeps the log {kept}"

    def identity_fault(self, table: str) -> tuple[str, str]:
        """What is wrong with what the log has of rows that go, and what mends it; empty: nothing.

        Without the table's key nobody could tell which row it was.
        """
        kind, sent = self.query(_IDENTITY, (self._regclass(table),))[0]
        key = self._key(table)
        if kind == "f" or (kind != "n" and set(key) <= set(sent or ())):
            return "", ""
        by_primary = any(
            index.is_primary and index.columns == key for index in self._indexes(table)
        )
        return (
            f"does not send its key ({', '.join(key)}) with changes (REPLICA IDENTITY)",
            f"ALTER TABLE {self._regclass(table)} REPLICA IDENTITY "
            + ("DEFAULT" if by_primary else "FULL"),
        )

    def check_log(self, table: str, read: Sequence[Column] = ()) -> None:
        """Raise where publications leave something out, or send it under another table's name.

        Which publication is read is not known here: one that is right is enough.
        """
        what, hint = self.identity_fault(table)
        if what:
            self._refuse_log(table, what, "its setting now", hint)
        relation = self._regclass(table)
        if self.query(_PERSISTENCE, (relation,))[0][0] != "p":
            what = "is unlogged or temporary: the log has no changes of it"
            self._refuse_log(table, what, "relpersistence", f"ALTER TABLE {relation} SET LOGGED")
        partitioned, is_part, has_parts, root = self.query(_FAMILY, (relation,))[0]
        published = self.query(_PUBLISHED, self._named(table))
        if not published and partitioned:
            names = [name for (name,) in self.query(_PARTS_PUBLISHED, (relation,))]
            name = self.quote(names[0]) if names else "…"
            self._refuse_log(
                table,
                "is partitioned, and its changes are sent under the names of its partitions",
                f"publications of its partitions: {', '.join(names) or 'none'}",
                f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true); then restart "
                "the connector",
            )
        if not published and is_part and self.query(_PUBLISHED_AT, (root,)):
            self._refuse_log(
                table,
                "is a partition, and its changes are sent under the name of the whole table",
                f"a publication of {root} with publish_via_partition_root",
                f"read {root} instead, with a condition on its rows",
            )
        if has_parts and not partitioned:
            self._refuse_log(
                table,
                "has tables that inherit from it: their rows are read with its own, and their "
                "changes are sent under their names",
                "children in pg_inherits",
                f"ALTER TABLE … NO INHERIT {self.relation(table)}, and read the children as tables "
                "of their own: UNION ALL",
            )
        if published and not any(whole and emptied for _, whole, emptied, _ in published):
            self._refuse_log(
                table,
                "is published without some of its changes",
                f"publication {published[0][0]}",
                f"ALTER PUBLICATION {self.quote(published[0][0])} "
                "SET (publish = 'insert, update, delete, truncate')",
            )
        if published and all(rows is not None for _, _, _, rows in published):
            self._refuse_log(
                table,
                "is published without some of its rows",
                f"publication {published[0][0]} WHERE {published[0][3]}",
                f"ALTER PUBLICATION {self.quote(published[0][0])} SET TABLE … without WHERE",
            )

    def _refuse_log(self, table: str, why: str, got: str, hint: str) -> NoReturn:
        raise UserError(
            f"{self.place(table)} {why}",
            where=self._server(),
            got=got,
            allowed="a table whose log has all its changes, under its own name",
            hint=hint,
        )

    @property
    def _namespace(self) -> str:
        return self._settings.own_schema or "public"

    def _why_no_key(self, table: str) -> str:
        for (name,) in self.query(_DEFERRABLE, (self._regclass(table),)):
            return (
                f"primary key {name} is DEFERRABLE: two rows may have a key for a while, and a "
                "change in the log does not say which of them it is of"
            )
        return ""

    def defaults(self, table: str) -> Sequence[str]:
        """The columns that may be NULL and have another default."""
        return [str(name) for (name,) in self.query(_DEFAULTS, (self._regclass(table),))]

    def _named(self, table: str) -> TableName:
        """The table with its schema."""
        name = TableName.of(table)
        return name if name.schema else name._replace(schema=self._namespace)

    def relation(self, table: str) -> str:
        """The table's name in SQL, with its schema."""
        return ".".join(map(self.quote, self._named(table)))

    def _regclass(self, table: str) -> str:
        # As a parameter, unlike in a statement, a % stands for itself.
        return self.relation(table).replace("%%", "%")

    def _schemas(self) -> Sequence[str]:
        return [name for (name,) in self.query(_SCHEMAS, (self._namespace,))]

    def _kinds(self, schema: str) -> dict[str, str]:
        rows = self.query(
            "SELECT c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s",
            (schema or self._namespace,),
        )
        return {name: _RELATIONS[kind] for name, kind in rows if kind in _RELATIONS}

    def unsent(self, table: str) -> Sequence[str]:
        """Generated columns."""
        return [name for (name,) in self.query(_GENERATED, (self._regclass(table),))]

    def _columns(self, table: str) -> dict[str, Callable[[], Column]]:
        rows = self.query(_COLUMNS, (self._regclass(table),))
        return {row[0]: partial(self._column, table, *row) for row in rows}

    def _column(
        self, table: str, name: str, required: bool, source_type: str, category: str
    ) -> Column:
        said = self._settings.table(table).types.get(name)
        if said is None:
            arrow = self._read_type(table, name, source_type, category).arrow
            return Column(name, arrow, not required, source_type)
        wanted = parse_type(said)
        self._read_type(table, name, source_type, category, wanted)
        if source_type == "money" and pa.types.is_decimal(wanted):
            ((scale,),) = self.query("SELECT scale('1'::money::numeric)")
            if scale != wanted.scale:
                what = f"money has {scale} decimal places at this server (lc_monetary)"
                self._refuse_setting(table, f"column {name!r}: {what}", [f"decimal(19,{scale})"])
        return Column(name, wanted, not required, f"{source_type}{READ_AS}{type_name(wanted)}")

    def _indexes(self, table: str) -> Sequence[UniqueIndex]:
        rows = self.query(_INDEXES, (self._regclass(table),))
        return [UniqueIndex(tuple(columns), primary) for primary, columns in rows]

    def _read_type(
        self,
        table: str,
        column: str,
        source_type: str,
        category: str,
        wanted: pa.DataType | None = None,
    ) -> ReadType:
        try:
            return read_type(source_type, category, wanted)
        except UnsupportedTypeError as error:
            return self._refuse(table, column, source_type, str(error))

    def _chunk_columns(self, table: str, schema: TableSchema) -> tuple[str, ...]:
        ordered = dict(self.query(_ORDERED, (self._regclass(table),)))
        columns = []
        for name in schema.key:
            arrow = schema.column(name).type
            moment = pa.types.is_date(arrow) or pa.types.is_timestamp(arrow)
            if not (ordered[name] or moment or whole_number(arrow)):
                break
            columns.append(name)
        return tuple(columns)

    def _size(self, table: str, schema: TableSchema) -> Size:
        # The planner's estimate uses the table's size now, also where ANALYZE never ran.
        names = ", ".join(self.quote(name) for name in schema.names)
        (plan,) = self.query(f"EXPLAIN (FORMAT JSON) SELECT {names} FROM {self.relation(table)}")[0]
        (explained,) = json.loads(plan) if isinstance(plan, str) else plan
        rows, width = int(explained["Plan"]["Plan Rows"]), int(explained["Plan"]["Plan Width"])
        # Without ANALYZE it takes every table for one of ten pages at least: few rows are counted.
        if rows < _COUNTED and self.query(_IS_TABLE, (self._regclass(table),))[0][0]:
            few = f"SELECT {names} FROM {self.relation(table)} LIMIT {_COUNTED}"
            ((rows,),) = self.query(f"SELECT count(*) FROM ({few}) AS few")
        return Size(int(rows), width)

    def _fetch(
        self,
        connection: Any,
        table: str,
        schema: TableSchema,
        where: str,
        parameters: Sequence[Any],
    ) -> Iterator[pa.RecordBatch]:
        categories = {row[0]: row[3] for row in self.query(_COLUMNS, (self._regclass(table),))}
        types = []
        for column in schema.columns:
            own, said = column.read_as
            # Of one that has gone since, the query says so.
            category = categories.get(column.name, "")
            wanted = column.type if said else None
            types.append(self._read_type(table, column.name, own, category, wanted))
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
