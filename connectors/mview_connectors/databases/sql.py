"""What all source databases share: connecting, errors without secrets, planning and reading."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
import yaml
from sqlalchemy.pool import PoolProxiedConnection

from mview.clock import SourceMs
from mview.config import ConnectionSettings, secret_values
from mview.connector import Look
from mview.errors import (
    AwayError,
    ConfigError,
    MviewError,
    NoKeyError,
    UserError,
)
from mview.relation import TableName
from mview.rows.where import ALLOWED, check, parse_where
from mview.schema import Column, TableSchema
from mview.secrets import Mask, reveal
from mview.snapshot import Chunk, ChunkPlan, KeyValues
from mview_connectors import silence
from mview_connectors.databases.chunking import Size, find_bounds
from mview_connectors.databases.conditions import Comparable, asked_for
from mview_connectors.databases.keys import IndexKeys
from mview_connectors.databases.ranges import Limit, Predicate, between, limits
from mview_connectors.network import are_local
from mview_connectors.pool import driver_text, pool_of

#: Words of drivers for a server that does not prove who it is.
TLS_WORDS = ("certificate", "SSL", "TLS")


class UniqueIndex(NamedTuple):
    """Columns of which no two rows of a table have the same values, as the index has them."""

    columns: tuple[str, ...]
    is_primary: bool


class SqlDatabase(ABC):
    """A source database over SQLAlchemy; one subclass per dialect.

    Picklable at any time: a copy opens its own connections. Secrets are revealed while a connection
    is opened and kept nowhere.

    Args:
        settings: the connection's section in the configuration.
    """

    #: SQLAlchemy's dialect and driver, whatever driver the settings name.
    driver: ClassVar[str]
    #: The driver's parameter mark.
    mark: ClassVar[str] = "%s"
    #: Whether settings may say what a column is read as.
    reads_as: ClassVar[bool] = False
    #: Whether an index serves `(a, b) >= (x, y)`.
    row_values: ClassVar[bool] = True
    clock_sql: ClassVar[str]
    #: How the types begin whose values the database compares as we do; see `asked_for`.
    comparable: ClassVar[Comparable] = Comparable()
    #: What to set where the server's certificate is not signed by a public authority, or there is
    #: none: options of the driver.
    tls_hint: ClassVar[str] = ""
    #: What to do where it does not answer now, and what to look at where it refuses.
    away_hint: ClassVar[str] = "check that the server runs and can be reached"
    access_hint: ClassVar[str] = "check the address, the user, the password and the user's rights"

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._engine: sa.Engine | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._settings,)

    # --- what a dialect adds ---------------------------------------------------------------------

    def _wait(self, connection: Any, seconds: float) -> None:  # noqa: B027
        """Have a driver connection wait so long for the next sign of the server, each time."""

    @abstractmethod
    def _prepare(self, connection: Any) -> None:
        """Set the session of a new driver connection: UTC, exact text forms, no time-outs."""

    @abstractmethod
    def _kinds(self, schema: str) -> dict[str, str]:
        """The relations of a schema by name and what each is: `table`, or e.g. `view`.

        Args:
            schema: as `TableName` has it: empty is the connection's own.
        """

    def _schemas(self) -> Sequence[str]:
        """The other schemas of the database, whose tables `tables` names."""
        return ()

    @abstractmethod
    def _columns(self, table: str) -> dict[str, Callable[[], Column]]:
        """The columns of an existing table by name, in order; each raises where it has no equal."""

    @abstractmethod
    def _indexes(self, table: str) -> Sequence[UniqueIndex]:
        """What tells the table's rows apart: the primary key, and unique indexes of all rows."""

    @abstractmethod
    def _chunk_columns(self, table: str, schema: TableSchema) -> tuple[str, ...]:
        """The longest prefix of the key that the database orders as `ChunkPlan.route` does."""

    @abstractmethod
    def _size(self, table: str, schema: TableSchema) -> Size:
        """Estimated rows, and bytes per row of the columns that are read."""

    @abstractmethod
    def _fetch(
        self,
        connection: Any,
        table: str,
        schema: TableSchema,
        where: str,
        parameters: Sequence[Any],
    ) -> Iterator[pa.RecordBatch]:
        """Stream the rows of one range over a driver connection, in one statement."""

    @abstractmethod
    def _is_passing(self, error: Exception) -> bool:
        """Whether the same command may succeed later (server down) or the input must change."""

    def _why_no_key(self, table: str) -> str:
        """Why what seems to be a table's key is none; empty: there is nothing of the kind."""
        return ""

    def _missing_right(self, error: Exception) -> str:
        """The statement that gives the right to connect; empty: it is not that which lacks."""
        return ""

    def _refusal(self, error: Exception) -> type[UserError]:
        """What is made of an error that does not pass by itself."""
        return UserError

    def _missing_grant(self, table: str, schema: TableSchema | None) -> tuple[str, Sequence[str]]:
        """The statement without which this user cannot read a table, empty: it can.

        And the columns that it is about, where these are not all that are asked for.

        Args:
            table: its name; it may be hidden from who has no rights.
            schema: the columns that are read; None: before they are looked at.
        """
        return "", ()

    # --- Database --------------------------------------------------------------------------------

    def clock(self) -> SourceMs:
        """The database's own clock, in milliseconds."""
        return SourceMs(int(self.query(self.clock_sql)[0][0]))

    def tables(self) -> Sequence[str]:
        """The names of the tables that can be read."""
        return [
            str(TableName(schema, name))
            for schema in ("", *self._schemas())
            for name, kind in sorted(self._kinds(schema).items())
            if kind == "table"
        ]

    def describe(self, table: str, uses: Callable[[str], bool] | None = None) -> TableSchema:
        """The columns of a table that are read, and what tells its rows apart; see `Database`.

        Raises:
            UserError: unknown table, a view, no key, or a type that has no exact equal.
        """
        schema, name = TableName.of(table)
        self._check_schema(schema, name)
        self._check_grant(table, None)
        kinds = self._kinds(schema)
        if name not in kinds:
            known = [str(TableName(schema, n)) for n, kind in kinds.items() if kind == "table"]
            self._unknown(table, known)
        if kinds[name] != "table":
            raise UserError(
                f"{self.place(table)} is a {kinds[name]}, not a table",
                allowed="tables: only those have a changelog",
                hint=f"write the query of the {kinds[name]} into your own view",
            )
        settings, columns = self._settings.table(table), self._read_columns(table)
        key = self._key(table)
        is_all = uses is None or settings.columns is not None
        read = self._read(
            table,
            {
                name: column
                for name, column in columns.items()
                if settings.reads(name)
                and (is_all or name in (*key, *settings.asked) or (uses is not None and uses(name)))
            },
        )
        names = {column.name for column in read}
        unread = tuple(name for name in columns if name not in names)
        described = TableSchema(tuple(read), key, unread, settings.where or "")
        if described.where:
            try:
                check(parse_where(described.where), described)
            except ValueError as error:
                self._refuse_setting(table, f"where: {error}", [ALLOWED])
        self._check_grant(table, described)
        return described

    def _read(self, table: str, columns: Mapping[str, Callable[[], Column]]) -> list[Column]:
        """The columns; of those that cannot be read all are told at once."""
        read, refused = list[Column](), list[UserError]()
        for column in columns.values():
            try:
                read.append(column())
            except UserError as error:
                if not error.columns:
                    raise
                refused.append(error)
        if len(refused) > 1:
            names = [name for each in refused for name in each.columns]
            several = UserError(
                f"{len(names)} columns cannot be read exactly",
                where=self.place(table),
                got="; ".join(f"{each.columns[0]}: {each.what}" for each in refused),
                hint=self._mends(table, names),
            )
            several.columns = tuple(names)
            raise several
        if refused:
            raise refused[0]
        return read

    def unsent(self, table: str) -> Sequence[str]:
        """See `Database`; none, where the log has all columns."""
        return ()

    def keys(self, table: str) -> list[set[str]]:
        """See `Database`: the primary key, unique indexes without NULL, and the declared key."""
        schema, name = TableName.of(table)
        kinds = self._kinds(schema)
        if name not in kinds:
            self._unknown(table, list(kinds))
        required, columns = set[str](), self._columns(table)
        for column, described in columns.items():
            # A column of a type that cannot be read is none of a key that is read.
            with suppress(UserError):
                if not described().nullable:
                    required.add(column)
        keys = [
            set(index.columns)
            for index in self._indexes(table)
            if index.is_primary or required.issuperset(index.columns)
        ]
        declared = self._settings.table(table).key
        return keys if declared is None else [*keys, set(declared)]

    def _check_schema(self, schema: str, table: str) -> None:
        """Refuse a second name of one table, and schemas where there are none."""
        own = self._settings.own_schema
        if not schema or (own is not None and schema != own):
            return
        right = self.place(str(TableName("", table)))
        place = self.place(str(TableName(schema, table)))
        raise UserError(
            f"{schema} is the schema of connection {self._settings.name} itself: one table would "
            "have two names"
            if own is not None
            else f"{place}: this database has no schemas",
            where=place,
            allowed=right,
            hint=f"write {right}",
        )

    def _key(self, table: str) -> tuple[str, ...]:
        """The declared key, else the primary key, else the unique index of the fewest columns."""
        settings, required = self._settings.table(table), set[str]()
        for name, column in self._read_columns(table).items():
            # A column of a type that cannot be read is none of a key.
            with suppress(UserError):
                if settings.reads(name) and not column().nullable:
                    required.add(name)
        every = self._indexes(table)
        for index in every:
            left = [name for name in index.columns if index.is_primary and name not in required]
            if left:
                self._read_columns(table)[left[0]]()  # tells of a type that cannot be read
                what = f"column {left[0]!r} is of the primary key, and must be read"
                self._refuse_setting(table, what, index.columns)
        indexes = [index for index in every if required.issuperset(index.columns)]
        declared = self._settings.table(table).key
        if declared is not None:
            if left := [name for name in declared if name not in required]:
                self._read_columns(table)[left[0]]()
                names = ", ".join(map(repr, left))
                self._refuse_setting(
                    table,
                    f"{'column' if len(left) == 1 else 'columns'} {names} of the key may be NULL",
                    sorted(required) or ["none: no column of the table is NOT NULL"],
                    "make NOT NULL, in the database, what tells the rows apart",
                )
            same = (index.columns for index in indexes if set(index.columns) == set(declared))
            return next(same, tuple(declared))
        chosen = min(
            indexes, key=lambda i: (not i.is_primary, len(i.columns), i.columns), default=None
        )
        if chosen is None:
            error = NoKeyError(
                f"table {self.place(table)} has no primary key, and no unique index of columns "
                "that are NOT NULL",
                got=self._why_no_key(table) or None,
                allowed="tables with a key: it tells which row a change belongs to",
                hint=f"add one in the database: ALTER TABLE {self.relation(table)} "
                "ADD PRIMARY KEY (...); or say which columns, all NOT NULL, tell its rows apart: "
                f"{self._setting(table)}.key: [...]",
            )
            error.columns = tuple(c for c in self._columns(table) if c in required)
            raise error
        return chosen.columns

    def _read_columns(self, table: str) -> dict[str, Callable[[], Column]]:
        """The columns of an existing table; those that the settings name are there."""
        settings, columns = self._settings.table(table), self._columns(table)
        if settings.types and not self.reads_as:
            self._refuse_setting(
                table, "columns of this database have their own types", ["no types"]
            )
        for name in settings.named:
            if name not in columns:
                self._refuse_setting(table, f"there is no column {name!r}", columns)
        return columns

    def _setting(self, table: str) -> str:
        return f"connections.{self._settings.name}.tables.{table}"

    def _refuse_setting(
        self, table: str, what: str, allowed: Iterable[str], hint: str | None = None
    ) -> NoReturn:
        raise ConfigError(
            f"table {self.place(table)}: {what}",
            where=self._setting(table),
            allowed=", ".join(allowed),
            hint=hint,
        )

    def _check_grant(self, table: str, schema: TableSchema | None) -> None:
        grant, columns = self._missing_grant(table, schema)
        if grant:
            error = UserError(
                f"the user of connection {self._settings.name} may not read {self.place(table)}",
                where=self._server(),
                got=f"not: {', '.join(columns)}" if columns else None,
                safe="nothing was read",
                hint=f"as its owner: {grant}",
            )
            error.columns = tuple(columns)
            raise error

    def looks(self, tables: Sequence[str], load_ms: Callable[[], int] | None) -> Sequence[Look]:
        """What `mview doctor` asks of the log, where a program reads it; see `Examined`."""
        return []

    def check_log(self, table: str, read: Sequence[Column] = ()) -> None:
        """Make sure that the log has all changes of a table; a dialect without a log has none."""
        return

    def defaults(self, table: str) -> Sequence[str]:
        """The columns that may be NULL and have another default, where it matters."""
        return ()

    def plan(self, table: str, schema: TableSchema, rows: int, size: int) -> ChunkPlan:
        """Split the table into chunks of at most `rows` rows and about `size` bytes."""
        there = self._columns(table)
        if gone := [name for name in schema.names if name not in there]:
            raise UserError(
                f"table {self.place(table)} has no column {gone[0]!r} any more",
                got=f"the columns {', '.join(there)}",
                hint="give it back, or run without it: the views that use it name it",
            )
        columns = self._chunk_columns(table, schema)
        if schema.key not in [index.columns for index in self._indexes(table)]:
            columns = ()  # each chunk would read the whole table, to pass over most of it
        estimate = self._size(table, schema)
        keys = IndexKeys(self, table, schema, columns)
        maximum = keys.maximum()
        bounds: tuple[KeyValues, ...] = ()
        if columns and maximum is not None:
            limit = estimate.limit(rows, size)
            bounds = find_bounds(keys, schema, columns, maximum, estimate, limit)
        known = 0 if maximum is None else estimate.rows
        return ChunkPlan(self.place(table), columns, bounds, maximum, known)

    def read(
        self, table: str, schema: TableSchema, plan: ChunkPlan, chunk: Chunk
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one chunk, from one statement, in batches of `schema.arrow`."""
        if chunk.closed and chunk.high is None:
            return
        low, high = limits(chunk)
        where, parameters = self._narrowed(table, schema, *self.where(plan.columns, low, high))
        with self._connection(f"reading {self.place(table)}") as connection:
            for batch in self._fetch(
                connection.driver_connection, table, schema, where, parameters
            ):
                self._check_order(table, plan, chunk, batch)
                yield batch

    def _narrowed(
        self, table: str, schema: TableSchema, where: str, parameters: Sequence[Any]
    ) -> Predicate:
        """The WHERE of a chunk, and of the rows that are asked for: who reads them looks again."""
        # Of a declared key all rows must be seen, to know that it tells them apart.
        if not schema.where or self._settings.table(table).key is not None:
            return where, tuple(parameters)
        text, values = asked_for(schema, self.comparable, self.quote, self.mark)
        if not text:
            return where, tuple(parameters)
        more = tuple(map(self._parameter, values))
        return f"{where} AND {text}" if where else f" WHERE {text}", (*parameters, *more)

    def caution(self) -> str | None:
        """A warning where the server is not proven to be the one that is meant."""
        return None

    def close(self) -> None:
        """Close the connections; may be called more than once."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _check_order(
        self, table: str, plan: ChunkPlan, chunk: Chunk, batch: pa.RecordBatch
    ) -> None:
        """Halt where the database put a text key into another chunk than its bytes belong to."""
        if len(plan.columns) != 1 or not pa.types.is_string(
            batch.schema.field(plan.columns[0]).type
        ):
            return
        ends = pc.min_max(batch.column(plan.columns[0])).as_py()
        keys = pa.table({plan.columns[0]: [ends["min"], ends["max"]]})
        for number, key in zip(plan.route(keys), ends.values(), strict=True):
            if number != chunk.number:
                raise UserError(
                    "the database orders a text key otherwise than by its bytes",
                    where=f"{self.place(table)}.{plan.columns[0]}",
                    got=repr(key),
                    allowed="keys without control characters, or a NO PAD binary collation",
                    safe="nothing of this chunk was taken",
                    hint="change the column's collation, e.g. to utf8mb4_nopad_bin",
                )

    # --- shared by the dialects ------------------------------------------------------------------

    def place(self, table: str) -> str:
        """The table as users write it: `<connection>.<table>`."""
        return f"{self._settings.name}.{table}" if self._settings.name else table

    def quote(self, name: str) -> str:
        """An identifier, quoted always, for statements that are sent with parameters."""
        # SQLAlchemy doubles % itself where the driver's mark is %s.
        return self._connected().dialect.identifier_preparer.quote_identifier(name)

    def where(
        self, columns: Sequence[str], low: Limit | None, high: Limit | None
    ) -> tuple[str, tuple[Any, ...]]:
        """The WHERE clause of a key range and its parameters."""
        quoted = [self.quote(name) for name in columns]
        text, values = between(quoted, low, high, mark=self.mark, row_values=self.row_values)
        return text, tuple(map(self._parameter, values))

    def _parameter(self, value: Any) -> Any:
        """A bound as the driver takes it."""
        return value

    def relation(self, table: str) -> str:
        """The table's name in SQL, with its schema where that is not the connection's."""
        return ".".join(self.quote(part) for part in TableName.of(table) if part)

    def first(self, select: str, order: str, offset: int) -> str:
        """A statement of one row: the first one after so many; `order` may be empty."""
        return f"{select}{order} LIMIT 1 OFFSET {offset}"

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a small query."""
        with self._connection("asking") as connection:
            cursor = connection.cursor()
            try:
                cursor.execute(sql, tuple(parameters))
                return [tuple(row) for row in cursor.fetchall()]
            finally:
                cursor.close()

    @contextmanager
    def _connection(self, task: str) -> Iterator[PoolProxiedConnection]:
        connection: PoolProxiedConnection | None = None
        try:
            connection = self._connected().raw_connection()
            self._wait(connection.driver_connection, self._patience_s)
            yield connection
            # Who gets it next asks first whether it is there.
            self._wait(connection.driver_connection, silence.GREETING_S)
        except BaseException as error:
            # Also when a reader stops early: unread rows would answer the next statement.
            if connection is not None:
                connection.invalidate()
            if isinstance(error, self._driver_errors()):
                self._fail(error, task if connection is not None else "connecting")
            raise
        finally:
            if connection is not None:
                connection.close()

    @property
    def _patience_s(self) -> float:
        """Seconds for which a server that is asked or read may give no sign of itself."""
        return self._settings.timeout / 1000

    def _connected(self) -> sa.Engine:
        if self._engine is None:
            place = f"connections.{self._settings.name}"
            self._engine = pool_of(self.driver, self._open, place)
        return self._engine

    def _driver_errors(self) -> tuple[type[Exception], ...]:
        return (self._connected().dialect.loaded_dbapi.Error, sa.exc.SQLAlchemyError, OSError)

    def _part(self, part: str) -> str | None:
        text = getattr(self._settings, part)
        place = f"connections.{self._settings.name}.{part}"
        return None if text is None else reveal(str(text), place)

    def _url(self) -> sa.URL:
        port = self._part("port")
        name = self._settings.name
        if port is not None and not port.isdigit():
            raise ConfigError("the port is not a number", where=f"connections.{name}.port")
        query = {
            key: reveal(text, f"connections.{name}.query.{key}")
            for key, text in self._settings.query.items()
        }
        return sa.URL.create(
            self.driver,
            username=self._part("username"),
            password=self._part("password"),
            host=self._part("host"),
            port=None if port is None else int(port),
            database=self._part("database"),
            query=query,
        )

    def _open(self) -> Any:
        url = self._url()
        dialect = self._connected().dialect
        arguments, options = dialect.create_connect_args(url)
        try:
            connection = self._connect(*arguments, **{**options, **self._options()})
        except TypeError as error:
            raise ConfigError(
                "the database driver does not accept the options",
                where=f"connections.{self._settings.name}.query",
                got=str(error),
                hint=f"names and values are those of {self.driver.rpartition('+')[2]}",
            ) from None
        self._prepare(connection)
        return connection

    def _connect(self, *arguments: Any, **options: Any) -> Any:
        """A connection of the driver; it waits `GREETING_S` for the server."""
        driver = self._connected().dialect.loaded_dbapi
        assert driver is not None
        return driver.connect(*arguments, **options)

    def _options(self) -> dict[str, Any]:
        """Driver options of every connection."""
        return {}

    def _query(self, name: str) -> str | None:
        """A driver's option of the settings."""
        text = self._settings.query.get(name)
        place = f"connections.{self._settings.name}.query.{name}"
        return None if text is None else reveal(text, place)

    def _is_remote(self) -> bool:
        # Drivers take a host, or several, from the query, too.
        return not are_local(self._part("host"), self._query("host"), self._query("hostaddr"))

    def _server(self) -> str:
        # As written in the settings: `${env:…}` stays, so nothing secret can get into a message.
        settings = self._settings
        port = f":{settings.port}" if settings.port else ""
        host = f"{settings.host or ''}{port}"
        return f"{host}/{settings.database or ''}" if host else str(settings.database or "")

    def _fail(self, error: Exception, task: str) -> NoReturn:
        cause = getattr(error, "orig", None) or error
        kind = self._settings.drivername.partition("+")[0]
        if self._is_passing(cause):
            failure: type[MviewError] = AwayError
            hint = f"{self.away_hint}, then run the same command again"
            safe = "nothing was lost: what is loaded stays, the open chunk is read again"
        else:
            failure = ConfigError if task == "connecting" else self._refusal(cause)
            safe = "nothing of this read was taken"
            hint = self._missing_right(cause) or self.access_hint
            if any(word in str(cause) for word in TLS_WORDS):
                hint = (
                    f"the server must prove who it is: {self.tls_hint} (options stand under query "
                    "in the configuration, behind ? in a URL)"
                )
        raise failure(
            f"{kind} database {self._server()} failed while {task}",
            where=f"connections.{self._settings.name}",
            got=self._without_secrets(driver_text(cause)),
            safe=safe,
            hint=hint,
        ) from None

    def _without_secrets(self, text: str) -> str:
        return Mask(secret_values(self._settings))(text)

    def _unknown(self, table: str, known: Sequence[str]) -> NoReturn:
        by_fold = {name.casefold(): name for name in known}
        close = get_close_matches(table.casefold(), by_fold, n=1)
        raise UserError(
            f"unknown table {self.place(table)}",
            where=f"{self._server()}",
            allowed=", ".join(sorted(known)[:20]) or "the database has no tables",
            hint=f"did you mean {self.place(by_fold[close[0]])!r}?" if close else None,
        )

    def _refuse(self, table: str, column: str, source_type: str, why: str) -> NoReturn:
        error = UserError(
            f"column type {source_type} cannot be read exactly: {why}",
            where=f"{self.place(table)}.{column}",
            hint=self._mends(table, [column]),
        )
        error.columns = (column,)
        raise error

    def _mends(self, table: str, columns: Sequence[str]) -> str:
        """What mends columns whose types cannot be read, one or more."""
        names, is_one = [*map(_in_yaml, columns)], len(columns) == 1
        what = "it" if is_one else "them"
        texts = ", ".join(f"{name}: string" for name in names)
        mends = (
            "change the type in the database" if is_one else "change their types in the database"
        )
        if self.reads_as:
            mends = (
                f"read {what} as text, if that is enough: {self._setting(table)}.types: {{{texts}}}"
            )
        return (
            f"{mends}; or have no view use {what}: name columns in place of SELECT *, or leave "
            f"{what} out: {self._setting(table)}.exclude: [{', '.join(names)}]"
        )


def _in_yaml(name: str) -> str:
    """A name as it stands in a list of the configuration: quoted where it would be another value.

    >>> _in_yaml("line no"), _in_yaml("no"), _in_yaml("a, b")
    ('line no', '"no"', '"a, b"')
    """
    is_plain = re.fullmatch(r"\w[\w ]*", name) is not None and yaml.safe_load(name) == name
    return name if is_plain else json.dumps(name, ensure_ascii=False)
