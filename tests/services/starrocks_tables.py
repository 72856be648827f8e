"""What a StarRocks cluster holds, for the conformance server: databases, primary-key tables, views.

The rows are in DuckDB. A statement is read as StarRocks' dialect, held against StarRocks' own rules
(order of key columns, types in keys, sizes), and then run. Loads are converted value by value as a
back end does with JSON: also its trap that without strict mode a bad value becomes NULL.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any, NamedTuple

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import sqlglot
from sqlglot import exp

from tests.services import mysql_wire as wire
from tests.services.mysql_wire import Result, SqlError

_BAD_DATABASE, _BAD_TABLE, _SYNTAX, _EXISTS = 5501, 5502, 1064, 1050

#: Bytes of an encoded primary key at the most, as `primary_key_limit_size` of a back end.
KEY_BYTES = 128
_VARCHAR = 1_048_576
_WIDE = Context(prec=80)

_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64, "LARGEINT": 128, "INT128": 128}
_IN_KEYS = {*_INTEGERS, "BOOLEAN", "VARCHAR", "DATE", "DATETIME"}
_WIRE = {
    "BOOLEAN": wire.TINY,
    "TINYINT": wire.TINY,
    "SMALLINT": wire.SHORT,
    "INTEGER": wire.LONG,
    "BIGINT": wire.LONGLONG,
    "FLOAT": wire.FLOAT,
    "DOUBLE": wire.DOUBLE,
    "DATE": wire.DATE,
    "TIMESTAMP": wire.DATETIME,
}


class Column(NamedTuple):
    """A column: its type by StarRocks' name, with up to two numbers."""

    name: str
    type: str
    sizes: tuple[int, ...]
    nullable: bool


class Table(NamedTuple):
    """A table of the primary-key kind."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]


class Loaded(NamedTuple):
    """What a load is after its rows were looked at."""

    rows: list[tuple[Any, ...]]
    operations: list[int]
    filtered: list[str]


class Tables:
    """The databases of a cluster."""

    def __init__(self) -> None:
        self._engine = duckdb.connect(":memory:")
        self._lock = threading.RLock()
        self.tables: dict[tuple[str, str], Table] = {}
        self._engine.execute("CREATE SCHEMA _catalog")
        self._engine.execute(
            "CREATE TABLE _catalog.tables (TABLE_SCHEMA VARCHAR, TABLE_NAME VARCHAR, "
            "TABLE_TYPE VARCHAR, TABLE_COMMENT VARCHAR)"
        )
        self._engine.execute(
            "CREATE TABLE _catalog.views (TABLE_SCHEMA VARCHAR, TABLE_NAME VARCHAR, "
            "VIEW_DEFINITION VARCHAR)"
        )
        self.databases: set[str] = set()

    def close(self) -> None:
        """Forget everything."""
        self._engine.close()

    def create_database(self, name: str) -> None:
        """A database."""
        with self._lock:
            self._engine.execute(f'CREATE SCHEMA "{name}"')
            self.databases.add(name)

    def backup(self, place: tuple[str, str]) -> Callable[[], None]:
        """Copy the rows of a table; returns what restores them, and the table if it is gone."""
        with self._lock:
            copy = self._engine.execute(f"SELECT * FROM {_placed(place)}").to_arrow_table()
            where = "WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?"
            sql = f"SELECT TABLE_COMMENT FROM _catalog.tables {where}"
            (comment,) = self._engine.execute(sql, place).fetchone() or ("",)
            table = self.tables[place]

        def restore() -> None:
            with self._lock:
                if place not in self.tables:
                    self._make(place, table, comment)
                cursor = self._engine.cursor()
                cursor.register("copy", copy)
                cursor.execute("BEGIN")
                cursor.execute(f"DELETE FROM {_placed(place)}")
                cursor.execute(f"INSERT INTO {_placed(place)} SELECT * FROM copy")
                cursor.execute("COMMIT")
                cursor.close()

        return restore

    # --- statements ------------------------------------------------------------------------------

    def session(self) -> wire.Execute:
        """What runs the statements of a new session."""
        cursor = self._engine.cursor()

        def execute(sql: str) -> Result | None:
            return self.execute(sql, cursor)

        return execute

    def execute(self, sql: str, cursor: Any = None) -> Result | None:
        """Run a statement."""
        word = sql.strip().rstrip(";").split(None, 1)[0].upper()
        if word in ("SET", "SYNC"):
            return None
        try:
            statement = sqlglot.parse_one(sql, read="starrocks")
        except sqlglot.errors.SqlglotError as error:
            raise SqlError(_SYNTAX, f"Getting syntax error: {error}") from None
        with self._lock:
            try:
                if isinstance(statement, exp.Create) and statement.kind == "TABLE":
                    return self._create_table(statement)
                if isinstance(statement, exp.Create | exp.Alter) and statement.kind == "VIEW":
                    return self._make_view(statement)
                if isinstance(statement, exp.Drop):
                    return self._drop(statement)
                if isinstance(statement, exp.Query):
                    return self._select(statement, cursor or self._engine)
                if isinstance(statement, exp.Insert | exp.Delete):
                    (cursor or self._engine).execute(statement.sql("duckdb"))
                    return None
            except duckdb.CatalogException as error:
                raise SqlError(
                    _BAD_TABLE, f"Getting analyzing error. Unknown table: {error}"
                ) from None
            except duckdb.Error as error:
                raise SqlError(_SYNTAX, f"Getting analyzing error: {error}") from None
        raise SqlError(_SYNTAX, f"Getting syntax error: {sql[:80]}")

    def _place(self, table: exp.Table) -> tuple[str, str]:
        if table.db not in self.databases:
            raise SqlError(_BAD_DATABASE, f"Unknown database '{table.db}'")
        return table.db, table.name

    def _kind(self, place: tuple[str, str]) -> str | None:
        found = self._engine.execute(
            "SELECT TABLE_TYPE FROM _catalog.tables WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?",
            place,
        ).fetchone()
        return None if found is None else str(found[0])

    def _create_table(self, statement: exp.Create) -> None:
        schema = statement.this
        place = self._place(schema.this)
        if self._kind(place) is not None:
            raise SqlError(_EXISTS, f"Table '{place[1]}' already exists")
        properties = statement.args["properties"].expressions
        # The parser gives a comment after the key to the key.
        options = [
            option.args.get("comment") for option in schema.find_all(exp.IndexConstraintOption)
        ]
        comments = [option.name for option in options if option is not None]
        keys = [p for p in schema.expressions if isinstance(p, exp.PrimaryKey)]
        keys += [p for p in properties if isinstance(p, exp.PrimaryKey)]
        if not keys:
            raise SqlError(_SYNTAX, "only primary-key tables are known here")
        key = tuple(part.name for part in keys[0].expressions)
        columns = tuple(map(_column, schema.find_all(exp.ColumnDef)))
        for column in columns[: len(key)]:
            if column.name not in key:
                raise SqlError(_SYNTAX, "Key columns must be the first few columns of the schema")
            if column.nullable:
                raise SqlError(_SYNTAX, f"primary key column[{column.name}] cannot be nullable")
            if column.type not in _IN_KEYS:
                raise SqlError(_SYNTAX, f"Invalid data type of key column {column.name}")
        if tuple(column.name for column in columns[: len(key)]) != key:
            raise SqlError(_SYNTAX, "Key columns should be a ordered prefix of the schema")
        if len({column.name.casefold() for column in columns}) < len(columns):
            raise SqlError(_SYNTAX, "Duplicate column name")
        self._make(place, Table(columns, key), comments[0] if comments else "")

    def _make(self, place: tuple[str, str], table: Table, comment: str) -> None:
        listed = ", ".join(f"{_quoted(c.name)} {_of_duckdb(c)}" for c in table.columns)
        self._engine.execute(f"CREATE TABLE {_placed(place)} ({listed})")
        self.tables[place] = table
        self._engine.execute(
            "INSERT INTO _catalog.tables VALUES (?, ?, 'BASE TABLE', ?)", [*place, comment]
        )

    def _make_view(self, statement: exp.Create | exp.Alter) -> None:
        is_new = isinstance(statement, exp.Create)
        schema = statement.this
        place = self._place(schema.this if isinstance(schema, exp.Schema) else schema)
        kind = self._kind(place)
        if is_new and kind is not None:
            raise SqlError(_EXISTS, f"Table '{place[1]}' already exists")
        if not is_new and kind != "VIEW":
            raise SqlError(_BAD_TABLE, f"Unknown view '{place[1]}'")
        query = statement.expression if is_new else statement.args["actions"][0]
        names = [part.name for part in schema.expressions] if isinstance(schema, exp.Schema) else []
        columns = f" ({', '.join(map(_quoted, names))})" if names else ""
        inner = query.sql("duckdb")
        self._engine.execute(f"CREATE OR REPLACE VIEW {_placed(place)}{columns} AS {inner}")
        self._forget(place)
        self._engine.execute("INSERT INTO _catalog.tables VALUES (?, ?, 'VIEW', '')", place)
        # It is kept in another spelling: every column with its database and table.
        table = query.find(exp.Table)
        for column in query.find_all(exp.Column):
            column.set("table", exp.to_identifier(table.name, quoted=True))
            column.set("db", exp.to_identifier(table.db, quoted=True))
        self._engine.execute(
            "INSERT INTO _catalog.views VALUES (?, ?, ?)", [*place, query.sql("starrocks")]
        )

    def _drop(self, statement: exp.Drop) -> None:
        place = self._place(statement.find(exp.Table))
        kind = "VIEW" if statement.kind == "VIEW" else "BASE TABLE"
        if self._kind(place) != kind:
            if statement.args.get("exists"):
                return
            raise SqlError(_BAD_TABLE, f"Unknown table '{place[1]}'")
        self._engine.execute(f"DROP {statement.kind} {_placed(place)}")
        self.tables.pop(place, None)
        self._forget(place)

    def _forget(self, place: tuple[str, str]) -> None:
        for name in ("tables", "views"):
            self._engine.execute(
                f"DELETE FROM _catalog.{name} WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", place
            )

    def _select(self, statement: exp.Query, cursor: Any) -> Result:
        for table in statement.find_all(exp.Table):
            if table.db.casefold() == "information_schema":
                table.set("db", exp.to_identifier("_catalog"))
            elif table.db:
                self._place(table)
        cursor.execute(statement.sql("duckdb"))
        names = [
            (str(name), _WIRE.get(str(kind), wire.DECIMAL if "DECIMAL" in str(kind) else wire.TEXT))
            for name, kind, *_ in cursor.description
        ]
        rows = [[_text(value) for value in row] for row in cursor.fetchall()]
        return Result(names, rows)

    # --- loads -----------------------------------------------------------------------------------

    def converted(
        self, place: tuple[str, str], objects: Iterable[dict[str, Any]], *, is_strict: bool
    ) -> Loaded:
        """Rows of a load by the types of a table; those that do not fit are filtered."""
        table = self.tables[place]
        loaded = Loaded([], [], [])
        for item in objects:
            try:
                row = tuple(_value_or_null(item.get(c.name), c, is_strict) for c in table.columns)
                operation = int(item.get("__op", 0))
                size = sum(map(_key_bytes, row[: len(table.key)]))
                if size > KEY_BYTES:
                    raise ValueError("primary key size exceed the limit")
            except (ValueError, InvalidOperation) as error:
                loaded.filtered.append(str(error))
                continue
            loaded.rows.append(row)
            loaded.operations.append(operation)
        return loaded

    def apply(self, place: tuple[str, str], loaded: Loaded) -> None:
        """Upsert and delete, in the order of the load, at once."""
        with self._lock:
            if place not in self.tables:
                return
            table = self.tables[place]
            width = len(table.key)
            last = {row[:width]: number for number, row in enumerate(loaded.rows)}
            places = sorted(last.values())
            content = pa.table(
                {
                    **{
                        f"c{n}": pa.array([loaded.rows[p][n] for p in places], _of_arrow(column))
                        for n, column in enumerate(table.columns)
                    },
                    "operation": pa.array([loaded.operations[p] for p in places], pa.int8()),
                }
            )
            cursor = self._engine.cursor()
            cursor.register("content", content)
            target = _placed(place)
            same = " AND ".join(
                f"{target}.{_quoted(name)} = content.c{n}" for n, name in enumerate(table.key)
            )
            columns = ", ".join(f"c{n}" for n in range(len(table.columns)))
            cursor.execute("BEGIN")
            cursor.execute(f"DELETE FROM {target} USING content WHERE {same}")
            cursor.execute(
                f"INSERT INTO {target} SELECT {columns} FROM content WHERE operation = 0"
            )
            cursor.execute("COMMIT")
            cursor.close()


def _column(found: exp.ColumnDef) -> Column:
    kind = found.args["kind"]
    name = kind.this.name
    name = {"DATETIME": "DATETIME", "TIMESTAMP": "DATETIME", "TEXT": "VARCHAR"}.get(name, name)
    sizes = tuple(int(part.this.name) for part in kind.expressions)
    rules = [rule.kind for rule in found.constraints]
    nullable = not any(
        isinstance(rule, exp.NotNullColumnConstraint) and not rule.args.get("allow_null")
        for rule in rules
    )
    if name == "VARCHAR" and not 1 <= (sizes or (65533,))[0] <= _VARCHAR:
        raise SqlError(_SYNTAX, f"Varchar size must be <= {_VARCHAR}")
    if name == "DECIMAL" and not 0 <= sizes[1] <= sizes[0] <= 38:
        raise SqlError(_SYNTAX, "Precision and scale of DECIMAL")
    known = {*_IN_KEYS, "DECIMAL", "FLOAT", "DOUBLE"}
    if name not in known:
        raise SqlError(_SYNTAX, f"type {name} is not known here")
    return Column(found.name, name, sizes, nullable)


def _of_duckdb(column: Column) -> str:
    if column.type == "DECIMAL":
        return f"DECIMAL({column.sizes[0]}, {column.sizes[1]})"
    others = {"DATETIME": "TIMESTAMP", "LARGEINT": "HUGEINT", "INT128": "HUGEINT"}
    return others.get(column.type, column.type)


def _of_arrow(column: Column) -> pa.DataType:
    if column.type == "DECIMAL":
        return pa.decimal128(*column.sizes)
    if column.type in _INTEGERS:
        bits = _INTEGERS[column.type]
        return pa.decimal128(38, 0) if bits == 128 else getattr(pa, f"int{bits}")()
    types = {
        "BOOLEAN": pa.bool_(),
        "VARCHAR": pa.string(),
        "DATE": pa.date32(),
        "DATETIME": pa.timestamp("us"),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
    }
    return types[column.type]


def _value_or_null(value: Any, column: Column, is_strict: bool) -> Any:
    try:
        found = None if value is None else _value(value, column)
    except (ValueError, InvalidOperation, TypeError) as error:
        if is_strict:
            raise ValueError(f"Value '{value}' of column {column.name}: {error}") from None
        found = None  # the trap
    if found is None and not column.nullable:
        raise ValueError(f"NULL value in non-nullable column '{column.name}'")
    return found


def _value(value: Any, column: Column) -> Any:
    kind = column.type
    if kind == "VARCHAR":
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        if len(text.encode()) > (column.sizes or (65533,))[0]:
            raise ValueError("String is too long")
        return text
    if kind == "BOOLEAN":
        if isinstance(value, str):
            return {"true": True, "false": False, "1": True, "0": False}[value.lower()]
        return bool(value)
    if kind in _INTEGERS:
        if isinstance(value, bool):
            raise ValueError("Numeric type is required")
        number, bits = int(value), _INTEGERS[kind]
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError("Value is overflow")
        return number
    if kind in ("FLOAT", "DOUBLE"):
        with np.errstate(over="ignore"):
            real = float(np.float32(value)) if kind == "FLOAT" else float(value)
        if real in (float("inf"), float("-inf")):
            raise ValueError("Value is overflow")
        return real
    if kind == "DECIMAL":
        # Of a number in JSON only what a double holds arrives.
        precision, scale = column.sizes
        exact = Decimal(value) if isinstance(value, str) else Decimal(repr(float(value)))
        whole = int(exact.scaleb(scale, _WIDE).to_integral_value(context=_WIDE))
        if abs(whole) >= 10**precision:
            raise ValueError("Value is overflow")
        return Decimal(whole).scaleb(-scale, _WIDE)
    if kind == "DATE":
        return dt.date.fromisoformat(value)
    if len(value) < 19:
        raise ValueError("no DATETIME")
    return dt.datetime.fromisoformat(value)


def _key_bytes(value: Any) -> int:
    """About the bytes of a key's value in the encoded key."""
    return len(value.encode()) if isinstance(value, str) else 8


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _placed(place: Sequence[str]) -> str:
    return ".".join(map(_quoted, place))
