"""What all source databases share: connecting, errors without secrets, planning and reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.pool import PoolProxiedConnection

from mview.clock import SourceMs
from mview.config import ConnectionSettings, secret_values
from mview.errors import AwayError, ConfigError, MviewError, UserError
from mview.schema import TableSchema
from mview.secrets import Mask, reveal
from mview.snapshot import Chunk, ChunkPlan, KeyValues
from mview_connectors.databases.chunking import Size, find_bounds
from mview_connectors.databases.keys import IndexKeys
from mview_connectors.databases.ranges import Limit, between, limits
from mview_connectors.network import are_local
from mview_connectors.pool import pool_of

#: Words of drivers for a server that does not prove who it is.
TLS_WORDS = ("certificate", "SSL", "TLS")


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
    #: Whether an index serves `(a, b) >= (x, y)`.
    row_values: ClassVar[bool] = True
    clock_sql: ClassVar[str]
    #: What to set where the server's certificate is not signed by a public authority, or there is
    #: none.
    tls_hint: ClassVar[str] = ""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._engine: sa.Engine | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._settings,)

    # --- what a dialect adds ---------------------------------------------------------------------

    @abstractmethod
    def _prepare(self, connection: Any) -> None:
        """Set the session of a new driver connection: UTC, exact text forms, no time-outs."""

    @abstractmethod
    def _kinds(self) -> dict[str, str]:
        """All relations by name and what each is: `table`, or e.g. `view`."""

    @abstractmethod
    def _schema(self, table: str) -> TableSchema:
        """Columns and key of an existing table; the key is empty when there is none."""

    @abstractmethod
    def _chunk_columns(self, table: str, schema: TableSchema) -> tuple[str, ...]:
        """The longest prefix of the key that the database orders as `ChunkPlan.route` does."""

    @abstractmethod
    def _size(self, table: str) -> Size:
        """Estimated rows and bytes per row."""

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

    # --- Database --------------------------------------------------------------------------------

    def clock(self) -> SourceMs:
        """The database's own clock, in milliseconds."""
        return SourceMs(int(self.query(self.clock_sql)[0][0]))

    def tables(self) -> Sequence[str]:
        """The names of the tables that can be read."""
        return sorted(name for name, kind in self._kinds().items() if kind == "table")

    def describe(self, table: str) -> TableSchema:
        """Columns and primary key of a table.

        Raises:
            UserError: unknown table, a view, no primary key, or a type that has no exact equal.
        """
        kinds = self._kinds()
        if table not in kinds:
            self._unknown(table, [name for name, kind in kinds.items() if kind == "table"])
        if kinds[table] != "table":
            raise UserError(
                f"{self.place(table)} is a {kinds[table]}, not a table",
                allowed="tables with a primary key: only those have a changelog",
                hint=f"write the query of the {kinds[table]} into your own view",
            )
        schema = self._schema(table)
        if not schema.key:
            raise UserError(
                f"table {self.place(table)} has no primary key",
                allowed="tables with a primary key: it tells which row a change belongs to",
                hint=f"add one in the database: ALTER TABLE {self.quote(table)} "
                "ADD PRIMARY KEY (...)",
            )
        return schema

    def plan(self, table: str, schema: TableSchema, rows: int, size: int) -> ChunkPlan:
        """Split the table into chunks of at most `rows` rows and about `size` bytes."""
        columns = self._chunk_columns(table, schema)
        estimate = self._size(table)
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
        if plan.maximum is None:
            return
        low, high = limits(chunk)
        where, parameters = self.where(plan.columns, low, high)
        with self._connection(f"reading {self.place(table)}") as connection:
            for batch in self._fetch(
                connection.driver_connection, table, schema, where, parameters
            ):
                self._check_order(table, plan, chunk, batch)
                yield batch

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
        """The table's name in SQL."""
        return self.quote(table)

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
            yield connection
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
            connection = dialect.loaded_dbapi.connect(*arguments, **{**options, **self._options()})
        except TypeError as error:
            raise ConfigError(
                "the database driver does not accept the options",
                where=f"connections.{self._settings.name}.query",
                got=str(error),
                hint=f"names and values are those of {self.driver.rpartition('+')[2]}",
            ) from None
        self._prepare(connection)
        return connection

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
        kind = self.driver.partition("+")[0]
        if self._is_passing(cause):
            failure: type[MviewError] = AwayError
            hint = "check that the server runs and can be reached, then run the same command again"
            safe = "nothing was lost: what is loaded stays, the open chunk is read again"
        else:
            failure = ConfigError if task == "connecting" else UserError
            safe = "nothing of this read was taken"
            hint = f"check connections.{self._settings.name} and the user's rights"
            if any(word in str(cause) for word in TLS_WORDS):
                hint = f"the server must prove who it is: {self.tls_hint}"
        raise failure(
            f"{kind} database {self._server()} failed while {task}",
            where=f"connections.{self._settings.name}",
            got=self._without_secrets(" ".join(str(cause).split())),
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
        raise UserError(
            f"column type {source_type} cannot be read exactly: {why}",
            where=f"{self.place(table)}.{column}",
            hint="change the column's type in the database, or move the column to another table",
        )
