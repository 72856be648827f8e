"""Tables of SQL databases as sinks: the rows and the mark in one transaction.

Staging opens the transaction, locks the mark, looks at it, and writes the rows; committing commits
it. What was open when a process ended is rolled back by the server, so the mark alone tells what
came of a step. The mark's row is the lock that two runners meet at.

With `commit: two-phase` staging prepares the transaction: it outlives process and server, and its
name tells that it is there. It holds the lock of the mark. So a new runner, which would put its
token there, first lets become what is to become of the step, and puts it there then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pydantic import AfterValidator, Field
from sqlalchemy.pool import PoolProxiedConnection

from mview.config import Count, Duration
from mview.errors import ConfigError, MviewError, RetryableError, TargetError, UserError
from mview.follower import (
    GOES_ON,
    Capabilities,
    Facts,
    FollowerSettings,
    FollowerTarget,
    Mark,
    State,
    Step,
    Token,
    admit,
    batches,
    check_owner,
    failed,
    gone_keys,
    mark_of,
    new_rows,
    not_ours,
    refuse_types,
    state_by_mark,
)
from mview.schema import type_name
from mview.secrets import REFERENCE, Mask, plain_secrets, reveal, secrets_of
from mview_connectors import silence
from mview_connectors.followers.sql.two_phase import PreparedTransactions, Query, TwoPhase
from mview_connectors.network import are_local
from mview_connectors.pool import SharedPools, driver_text, pool_of
from mview_connectors.references import reference

#: The table of marks, one row per table that mview writes, in the same database and schema.
MARKS = "mview_marks"

#: Rows that are sent in one statement.
ROWS = 1000


#: Servers bear so many connections; views may be more.
_POOLS = SharedPools()


def _no_password(url: str) -> str:
    """A URL without a password in plain text; the message has no value."""
    with suppress(sa.exc.ArgumentError):
        if (password := sa.make_url(url).password) and not REFERENCE.search(str(password)):
            raise ValueError("must not hold a password: write it as password: ${env:NAME}")
    if plain_secrets(REFERENCE.sub("", url)):
        raise ValueError("must not hold a secret: write it as ${env:NAME}")
    return url


class SqlSettings(FollowerSettings):
    """A SQL database as a sink."""

    hidden = ("url", "password")

    #: SQLAlchemy's URL: the database and how to reach it.
    url: Annotated[str, Field(min_length=1, repr=False), AfterValidator(_no_password)]
    #: A reference to it, never itself.
    password: Annotated[str, AfterValidator(reference)] | None = Field(default=None, repr=False)
    #: The schema of the table and of the marks; the user's own where none is given.
    namespace: str | None = None
    #: How long a statement waits for a lock, and a transaction for its runner.
    timeout: Duration = 60_000
    #: To the server at the most, of all views that this sink follows together.
    connections: Count = 10
    #: two-phase: what is staged is prepared, and outlives process and server.
    commit: Literal["one-phase", "two-phase"] = "one-phase"


class SqlFollower(ABC):
    """A table of a SQL database; one subclass per dialect.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = SqlSettings
    capabilities: Capabilities = Capabilities(modes=frozenset({"upsert"}), by_key=True)

    #: How transactions are prepared; None: the database has no such thing.
    two_phase: ClassVar[TwoPhase | None] = None
    #: SQLAlchemy's dialect and driver, whatever driver the URL names.
    driver: ClassVar[str]
    #: A parameter in our statements; names cannot hold it, see `with_parameters`.
    mark: ClassVar[str] = "\0"
    #: By what texts in a key are compared: by their bytes, and by all of them.
    collation: ClassVar[str] = ""
    #: What a text column is that is compared by its bytes: of the marks, too.
    text: ClassVar[str] = "TEXT"
    #: A reading that locks the row.
    for_update: ClassVar[str] = " FOR UPDATE"
    #: Begins a transaction that will write.
    begin: ClassVar[str] = "BEGIN"

    def __init__(self, target: FollowerTarget) -> None:
        self.target = target
        self._settings: SqlSettings = target.settings
        self._engine: sa.Engine | None = None
        self._open: PoolProxiedConnection | None = None
        self._staged = ""
        if self._settings.commit == "two-phase":
            self.capabilities = replace(type(self).capabilities, durable_prepare=True)
        # Whether the table is this runner's; not, while an older one's step is prepared.
        self._is_taken = False

    # --- what a dialect adds ---------------------------------------------------------------------

    @abstractmethod
    def column_type(self, kind: pa.DataType, *, in_key: bool) -> str | None:
        """The database's type that holds all values of an Arrow type exactly; None: there is none.

        With why not as the text after `!`, e.g. `!a scale of at most 30`.
        """

    @abstractmethod
    def values(self, column: pa.ChunkedArray, name: str) -> list[Any]:
        """A column's values as the driver takes them.

        Raises:
            UserError: the database cannot hold one.
        """

    @abstractmethod
    def arrow(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """A column's values as the driver gives them, for `read`."""

    @abstractmethod
    def standing(self, connection: Any) -> str | None:
        """What stands there under the table's name: `table`, `view`, …; None: nothing."""

    def types(self, connection: Any) -> dict[str, str]:
        """The types of the table's columns, as `spelled` has them; none: the database keeps any."""
        return {}

    def key_there(self, connection: Any) -> Mapping[str, str] | None:
        """The columns of the table's primary key, each with its collation; of others than texts "".

        None: nobody can have altered it.
        """
        return None

    def without_transactions(self, connection: Any) -> str | None:
        """What keeps the table, where that has no transactions."""
        return None

    def spelled(self, column_type: str) -> str:
        """A type of `column_type` in the words of the database's catalog."""
        return column_type

    def connect(self, dialect: sa.Dialect, *arguments: Any, **options: Any) -> Any:
        """A connection of the driver; it waits `GREETING_S` for the server."""
        assert dialect.loaded_dbapi is not None
        return dialect.loaded_dbapi.connect(*arguments, **options)

    def wait(self, connection: Any, seconds: float) -> None:  # noqa: B027
        """Have a driver connection wait so long for the next sign of the server, each time."""

    @abstractmethod
    def prepare(self, connection: Any) -> None:
        """Set the session of a new driver connection: autocommit, UTC, exact texts, time-outs."""

    def upsert(self, connection: Any, rows: pa.Table) -> None:
        """Insert rows, or update those that are there by key."""
        key, names = self.target.schema.key, self.target.schema.names
        others = [name for name in names if name not in key]
        columns = ", ".join(map(self.quote, names))
        marks = ", ".join([self.mark] * len(names))
        written = self._many(
            connection,
            f"INSERT INTO {self.table} ({columns}) VALUES ({marks}) {self.on_conflict(others)}",
            rows,
        )
        if others:
            self.check_done(rows.num_rows - written, rows.num_rows)

    def on_conflict(self, others: Sequence[str]) -> str:
        """What an INSERT says of keys that are there: these columns are updated."""
        key = ", ".join(map(self.quote, self.target.schema.key))
        if not others:
            return f"ON CONFLICT ({key}) DO NOTHING"
        sets = ", ".join(f"{self.quote(name)} = excluded.{self.quote(name)}" for name in others)
        return f"ON CONFLICT ({key}) DO UPDATE SET {sets}"

    def delete(self, connection: Any, keys: pa.Table) -> None:
        """Delete rows by key."""
        where = " AND ".join(f"{self.quote(name)} = {self.mark}" for name in keys.column_names)
        if self._many(connection, f"DELETE FROM {self.table} WHERE {where}", keys) < keys.num_rows:
            sql = f"SELECT 1 FROM {self.table} WHERE {where}"
            left = sum(len(self._query(connection, sql, key)) for key in self._listed(keys))
            self.check_done(left, keys.num_rows)

    def insert(self, connection: Any, rows: pa.Table) -> None:
        """Insert rows into a table that has none of their keys."""
        self.upsert(connection, rows)

    def check_done(self, left: int, told: int) -> None:
        """Refuse that the database leaves rows as they were: a trigger or a rule of somebody does.

        Raises:
            TargetError: some are left.
        """
        if left:
            raise TargetError(
                f"the database has not written all rows of the table {self.target.table} of sink "
                f"{self.target.sink}, and has said nothing",
                where=f"{self.target.table} of sinks.{self.target.sink}",
                got=f"{left:,} of {told:,} are as they were",
                safe="nothing of the commit was written; other sinks go on",
                hint="drop the trigger or the rule of the table that somebody has made there: "
                f"{GOES_ON}",
            )

    def stream(self, connection: Any, sql: str) -> Iterator[list[Any]]:
        """The rows of a query as they come: no more than some thousands are held.

        Who ends it early throws the connection away.
        """
        cursor = connection.cursor()
        cursor.execute(sql)
        while rows := cursor.fetchmany(10 * ROWS):
            yield rows
        cursor.close()

    @abstractmethod
    def is_passing(self, error: BaseException) -> bool:
        """Whether the same may succeed later: a server that is away, a lock, a deadlock."""

    # --- Follower --------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse types that the database has no exact equal of."""
        key, wrong = self.target.schema.key, {}
        for column in self.target.schema.columns:
            column_type = self.column_type(column.type, in_key=column.name in key)
            if column_type is None or column_type.startswith("!"):
                wrong[column.name] = (column_type or "!another type")[1:]
        refuse_types(self.target, wrong)
        if self._settings.commit == "two-phase" and self.two_phase is None:
            raise ConfigError(
                f"the database of sink {self.target.sink} cannot commit in two phases",
                where=f"sinks.{self.target.sink}.commit",
                allowed="one-phase",
            )

    def ask_server(self) -> None:
        """Ask whether it lets us in, and prepares transactions, where these are asked for."""
        with self._asking("asking the server") as query:
            query("SELECT 1")
        if self._prepared is not None:
            self._prepared.check()

    def caution(self) -> str | None:
        """A warning where the server is not proven to be the one that is meant."""
        return None

    def create(self) -> None:
        """Make the marks, the table, and put the fence's token in."""
        self.check()
        self._roll_back()
        self._is_taken = False
        if self._prepared is not None:
            self._prepared.check()
        if self._prepared is None or not self._prepared.steps():  # they hold the mark
            self._take()

    def _take(self) -> None:
        """Make what is not there, and put the token in."""
        if self._is_taken:
            return
        with self._connection("creating the table") as connection:
            with self._marking():
                try:
                    self._execute(connection, self._marks_ddl())
                except Exception:
                    # Another sink may be making it: servers look first, and then make.
                    self._execute(connection, self._marks_ddl())
            with self._transaction(connection):
                row = self._row(connection)
                kind = self.standing(connection)
                there = kind is not None
                if row is None:
                    if there:
                        raise not_ours(self.target)
                    self._put_row(connection, None)
                else:
                    mark, columns = row
                    check_owner(self.target, mark)
                    if kind not in (None, "table"):
                        raise TargetError(
                            f"somebody has put a {kind} in the place of the table "
                            f"{self.target.table} of sink {self.target.sink}",
                            where=f"{self.target.table} of sinks.{self.target.sink}",
                            safe="nothing was written there since this runner began",
                            hint=f"drop the {kind} there, or give it another name: the table is "
                            "made and filled anew",
                        )
                    if there and columns == self._columns():
                        self._check_types(connection)
                    elif there:
                        # The mark goes first: a table without one is filled.
                        self._put_row(connection, None, columns)
                        self._execute(connection, f"DROP TABLE {self.table}")
                        there = False
                    self._put_row(connection, mark if there and mark.epoch >= 0 else None)
                if not there:
                    self._execute(connection, self._table_ddl())
        self._is_taken = True

    def _check_types(self, connection: Any) -> None:
        """Refuse a table that somebody has made another one: values would be cut to fit.

        Raises:
            TargetError: what of it, and how it was made.
        """
        if engine := self.without_transactions(connection):
            raise TargetError(
                f"somebody has altered the table {self.target.table} of sink {self.target.sink}: "
                "it takes part in no transaction any more",
                where="its engine",
                got=engine,
                allowed=self.kept_by.strip(),
                safe="nothing was written there since this runner began",
                hint="drop the table there: it is filled anew; or alter it back, and look with "
                "`mview verify` at what was written meanwhile",
            )
        key, there = self.target.schema.key, self.types(connection)
        unique_by, made_by = self.key_there(connection), self._key_made()
        if unique_by is not None and unique_by != made_by:
            raise TargetError(
                f"somebody has altered the table {self.target.table} of sink {self.target.sink}: "
                "rows are not told apart by its key any more",
                where=f"primary key ({', '.join(key)})",
                got=_key_text(unique_by) or "no primary key",
                allowed=_key_text(made_by),
                safe="nothing was written there since this runner began",
                hint="drop the table there: it is filled anew; or make the primary key again, and "
                "look with `mview verify` at what was written meanwhile",
            )
        for column in self.target.schema.columns:
            made = self.column_type(column.type, in_key=column.name in key) or ""
            if there.get(column.name, self.spelled(made)) != self.spelled(made):
                raise TargetError(
                    f"somebody has altered the table {self.target.table} of sink "
                    f"{self.target.sink}: it may not hold all values any more",
                    where=f"column {column.name}",
                    got=there[column.name],
                    allowed=self.spelled(made),
                    safe="nothing was written there since this runner began",
                    hint="drop the table there: it is filled anew; or alter it back, and look with "
                    "`mview verify` at what was written meanwhile",
                )

    def position(self) -> Mark | None:
        """The mark's row; None: the table was never filled."""
        with self._connection("reading the mark") as connection:
            row = self._row(connection, lock=False)
            if row is None or row[0].epoch < 0:
                return None
            return row[0]

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Write the changes in a transaction that stays open, or is prepared."""
        key = self.target.schema.key

        def write(connection: Any) -> None:
            # Deletes first: of a unique index that others made, the old row may be in the way.
            whole = [pa.Table.from_batches([batch]) for batch in batches(delta)]
            for table in whole:
                for batch in table.to_batches():
                    if (keys := gone_keys(batch, key)).num_rows:
                        self.delete(connection, pa.Table.from_batches([keys]))
            for table in whole:
                for batch in table.to_batches():
                    if (rows := new_rows(batch)).num_rows:
                        self.upsert(connection, pa.Table.from_batches([rows]))

        return self._stage(step, write)

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """Write all rows in a transaction that stays open, or is prepared."""

        def write(connection: Any) -> None:
            self._execute(connection, f"DELETE FROM {self.table}")
            left = self._query(connection, f"SELECT count(*) FROM {self.table}", ())[0][0]
            self.check_done(left, left)
            for batch in batches(rows):
                self.insert(connection, pa.Table.from_batches([batch]))

        return self._stage(step, write)

    def commit(self, token: Token) -> Facts:
        """Commit the open transaction, or the prepared one."""
        step = token["id"]
        if self._prepared is not None:
            is_done = self._prepared.commit(step)
        elif is_done := self._open is not None and self._staged == step:
            assert self._open is not None
            with self._failing("committing"):
                self._execute(self._open.driver_connection, "COMMIT")
            self._give_back()
        if not is_done:
            mark = self.position()
            if mark is None or mark.step != step:
                raise RetryableError(
                    f"what was staged for {self.target.table} is not there any more",
                    where=f"sinks.{self.target.sink}",
                    safe="nothing of it was written; it is staged again",
                )
        self._take()
        return {"epoch": token["epoch"]}

    def state(self, step: Step, token: Token | None) -> State:
        """What the mark says, or that the transaction is open here, or prepared."""
        if self._prepared is not None:
            # Before the mark: what is committed in between is seen there.
            if step.id in self._prepared.steps():
                return State.PREPARED
        elif self._open is not None and self._staged == step.id:
            return State.PREPARED
        return state_by_mark(self.position(), step)

    def abort(self, step: Step, token: Token | None) -> None:
        """Roll the open transaction back, or the prepared one."""
        self._roll_back()
        if self._prepared is not None:
            self._prepared.roll_back(step.id)
            self._take()

    def read(self) -> pa.RecordBatchReader:
        """The table's rows."""
        schema = pa.schema([field.with_nullable(True) for field in self.target.schema.arrow])
        names = ", ".join(self.quote(name) for name in schema.names)

        def read() -> Iterator[pa.RecordBatch]:
            with self._connection("reading the table") as connection:
                for rows in self.stream(connection, f"SELECT {names} FROM {self.table}"):
                    columns = [
                        self.arrow(list(values), field.type)
                        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
                    ]
                    yield pa.record_batch(columns, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, read())

    def maintain(self, *, thorough: bool) -> Facts:
        """Databases do it themselves."""
        return {}

    def close(self) -> None:
        """Roll back what is open and free the connections."""
        self._roll_back()
        if self._engine is not None:
            _POOLS.leave(self._pool_key)
            self._engine = None

    # --- the mark --------------------------------------------------------------------------------

    def _row(self, connection: Any, *, lock: bool = True) -> tuple[Mark, str] | None:
        columns = "owner, fence, epoch, step, columns_of"
        sql = f"SELECT {columns} FROM {self.marks} WHERE table_name = {self.mark}"
        with self._marking():
            rows = self._query(connection, sql + (self.for_update if lock else ""), (self._name,))
        if not rows:
            return None
        owner, fence, epoch, step, columns = rows[0]
        mark = Mark(str(owner), int(fence), -1 if epoch is None else int(epoch), str(step))
        return mark, str(columns)

    def _put_row(self, connection: Any, mark: Mark | None, columns: str | None = None) -> None:
        """Write the mark of a table of ours, with this runner's token; None: it is not filled."""
        row = (
            self.target.owner,
            self.target.fence,
            None if mark is None else mark.epoch,
            "" if mark is None else mark.step,
            columns or self._columns(),
        )
        marks = ", ".join([self.mark] * 6)
        into = f"{self.marks} (table_name, owner, fence, epoch, step, columns_of)"
        old = f"DELETE FROM {self.marks} WHERE table_name = {self.mark}"
        with self._marking():
            self._query(connection, old, (self._name,))
            self._query(connection, f"INSERT INTO {into} VALUES ({marks})", (self._name, *row))

    @contextmanager
    def _marking(self) -> Iterator[None]:
        """Errors of the table of marks, which has another remedy than the view's own table."""
        try:
            yield
        except Exception as error:
            if self.is_passing(error):
                raise
            raise failed(
                self.target,
                f"sink {self.target.sink} cannot use {MARKS}, the table in which it notes what it "
                "has written",
                self._told(error),
                "nothing of the commit was written; other sinks go on",
                f"the user's rights to it; if somebody has altered it, drop {MARKS} and "
                f"{self.target.table} there, and all other tables that mview writes beside them: "
                "they are made and filled anew",
            ) from error

    def _key_made(self) -> dict[str, str]:
        """What `key_there` says of a table that nobody has altered."""
        kinds = {name: self.target.schema.column(name).type for name in self.target.schema.key}
        return {n: self.collation if pa.types.is_string(k) else "" for n, k in kinds.items()}

    def _columns(self) -> str:
        """What the table is made of; another text means another table."""
        key = self.target.schema.key
        columns = [
            [c.name, self.column_type(c.type, in_key=c.name in key), type_name(c.type)]
            for c in self.target.schema.columns
        ]
        return orjson.dumps([columns, list(key)]).decode()

    def _marks_ddl(self) -> str:
        text = self.key_text
        return (
            f"CREATE TABLE IF NOT EXISTS {self.marks} (table_name {text} PRIMARY KEY, "
            f"owner {self.text} NOT NULL, fence BIGINT NOT NULL, epoch BIGINT, "
            f"step {self.text} NOT NULL, columns_of {self.text} NOT NULL){self.kept_by}"
        )

    #: What a new table is told to be kept by.
    kept_by: ClassVar[str] = ""
    #: A text column that is a key by itself.
    key_text: ClassVar[str] = "TEXT"

    def _table_ddl(self) -> str:
        key = self.target.schema.key
        columns = []
        for column in self.target.schema.columns:
            in_key = column.name in key
            kind = self.column_type(column.type, in_key=in_key)
            columns.append(f"{self.quote(column.name)} {kind}{' NOT NULL' if in_key else ''}")
        named = ", ".join(map(self.quote, key))
        listed = f"{', '.join(columns)}, PRIMARY KEY ({named})"
        return f"CREATE TABLE {self.table} ({listed}){self.kept_by}"

    # --- transactions ----------------------------------------------------------------------------

    def _stage(self, step: Step, write: Any) -> Token:
        self._roll_back()
        prepared = self._prepared
        if prepared is not None and not self._is_taken:
            self._take_back()
        self._open = self._lent()
        connection = self._open.driver_connection
        try:
            with self._failing("writing"):
                self._execute(connection, prepared.begin(step.id) if prepared else self.begin)
                row = self._row(connection)
                mark = None if row is None or row[0].epoch < 0 else row[0]
                if row is not None:
                    check_owner(self.target, row[0])
                admit(self.target, mark, step)
                write(connection)
                self._put_row(connection, mark_of(self.target, step))
                for sql in prepared.prepare(step.id) if prepared else ():
                    self._execute(connection, sql)
        except BaseException:
            self._roll_back()
            raise
        if prepared is None:
            self._staged = step.id
        elif prepared.leaves_session:
            self._give_back()
        else:
            self._throw_away()
        return {"id": step.id, "epoch": step.epoch}

    def _take_back(self) -> None:
        """Roll back what is prepared and nobody means to commit: no token of it is on disk."""
        assert self._prepared is not None
        for step in self._prepared.steps():
            self._prepared.roll_back(step)
        self._take()

    @cached_property
    def _prepared(self) -> PreparedTransactions | None:
        """Ours that are prepared; None: none ever are."""
        if self.two_phase is None or self._settings.commit == "one-phase":
            return None
        # Servers list those of all databases.
        place = [self.target.owner, self.url().database, self._settings.namespace]
        return PreparedTransactions(
            self.two_phase,
            f"mview-{sha256(orjson.dumps(place)).hexdigest()[:24]}",
            self._asking,
            self._settings.timeout / 1000,
            self.target.sink,
        )

    @contextmanager
    def _asking(self, task: str) -> Iterator[Query]:
        with self._connection(task) as connection:
            yield lambda sql: self._query(connection, sql, ())

    def _roll_back(self) -> None:
        """End what is open; a connection that is broken is thrown away."""
        if self._open is not None:
            with suppress(Exception):
                self._execute(self._open.driver_connection, "ROLLBACK")
                self._give_back()
                return
            self._open.invalidate()
            self._open, self._staged = None, ""

    def _lent(self) -> PoolProxiedConnection:
        """A connection that bears a target that is at work for long."""
        with self._failing("connecting"):
            connection = self._connected().raw_connection()
            self.wait(connection.driver_connection, self._settings.patience / 1000)
        return connection

    def _give_back(self) -> None:
        if self._open is not None:
            self.wait(self._open.driver_connection, silence.GREETING_S)
            self._open.close()
        self._open, self._staged = None, ""

    @contextmanager
    def _transaction(self, connection: Any) -> Iterator[None]:
        self._execute(connection, self.begin)
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self._execute(connection, "ROLLBACK")
            raise
        self._execute(connection, "COMMIT")

    @contextmanager
    def _connection(self, task: str) -> Iterator[Any]:
        with self._failing(task):
            connection = self._lent()
            try:
                yield connection.driver_connection
                # Who gets it next asks first whether it is there.
                self.wait(connection.driver_connection, silence.GREETING_S)
            except BaseException:
                connection.invalidate()
                raise
            finally:
                connection.close()

    @contextmanager
    def _failing(self, task: str) -> Iterator[None]:
        """Errors of drivers as ours, without secrets."""
        try:
            yield
        except MviewError:
            if task == "committing":
                self._throw_away()
            raise
        except Exception as error:
            if task == "committing":
                self._throw_away()
            cause = getattr(error, "orig", None) or error
            safe = (
                "the mark in the database tells what was written; it is asked before the next try"
            )
            look_at = (
                "the database, the user's rights and the view's rows; if others have changed "
                f"{self.target.table} there, drop it: it is filled anew"
            )
            if task == "connecting":
                safe = "nothing was sent to it"
                look_at = f"url and password of sinks.{self.target.sink}, and the database"
            passes = isinstance(cause, sa.exc.TimeoutError) or self.is_passing(cause)
            raise failed(
                self.target,
                f"sink {self.target.sink} failed while {task}",
                self._told(cause),
                safe,
                None if passes else look_at,
            ) from error

    def _told(self, error: BaseException) -> str:
        """What a driver says, without secrets."""
        mask = Mask(secrets_of("url", self._settings.url) | self._secrets())
        return mask(driver_text(error))

    def _throw_away(self) -> None:
        if self._open is not None:
            self._open.invalidate()
            self._open, self._staged = None, ""

    def _secrets(self) -> set[str]:
        password = self._settings.password
        return set() if password is None else secrets_of("password", password)

    def _connected(self) -> sa.Engine:
        if self._engine is None:
            place, most = f"sinks.{self.target.sink}", self._settings.connections

            def make() -> sa.Engine:
                # By one of its users, but nothing of the user's own: others stay longer.
                pool = pool_of(self.driver, lambda: self._connect(pool.dialect), place, most)
                return pool

            self._engine = _POOLS.join(self._pool_key, make)
        return self._engine

    @property
    def _pool_key(self) -> tuple[Any, ...]:
        """What sessions are made of."""
        given = self._settings
        return (
            type(self),
            self.target.sink,
            given.url,
            given.password,
            given.timeout,
            given.connections,
        )

    def _connect(self, dialect: sa.Dialect) -> Any:
        url, place = self.url(), f"sinks.{self.target.sink}"
        arguments, options = dialect.create_connect_args(url)
        try:
            connection = self.connect(dialect, *arguments, **{**options, **self.options()})
        except TypeError as error:
            raise ConfigError(
                "the database driver does not accept the options of the URL",
                where=f"{place}.url",
                got=str(error),
            ) from None
        self.prepare(connection)
        return connection

    def url(self) -> sa.URL:
        """Where the database is, with its secrets."""
        place = f"sinks.{self.target.sink}"
        try:
            url = sa.make_url(reveal(self._settings.url, f"{place}.url"))
        except sa.exc.ArgumentError:
            raise ConfigError(
                "this is no URL of a database",
                where=f"{place}.url",
                allowed="postgresql://user@host:5432/database, for example",
            ) from None
        url = url.set(drivername=self.driver)
        if self._settings.password is not None:
            url = url.set(password=reveal(self._settings.password, f"{place}.password"))
        return url

    @property
    def is_remote(self) -> bool:
        """Whether somebody may be between: drivers take hosts from the query, too."""
        url = self.url()
        named = [url.query.get(name, ()) for name in ("host", "hostaddr")]
        texts = [text for value in named for text in ([value] if isinstance(value, str) else value)]
        return not are_local(url.host, *texts)

    def options(self) -> dict[str, Any]:
        """Driver options of every connection."""
        return {}

    # --- statements ------------------------------------------------------------------------------

    def quote(self, name: str) -> str:
        """An identifier, quoted always; a percent sign stays one, unlike with SQLAlchemy."""
        sign = self._connected().dialect.identifier_preparer.initial_quote
        return f"{sign}{name.replace(sign, 2 * sign)}{sign}"

    @property
    def _name(self) -> str:
        return self.target.table

    def _in_namespace(self, name: str) -> str:
        space = self._settings.namespace
        return self.quote(name) if space is None else f"{self.quote(space)}.{self.quote(name)}"

    @property
    def table(self) -> str:
        """The target's table in SQL."""
        return self._in_namespace(self.target.table)

    @property
    def marks(self) -> str:
        """The table of marks in SQL."""
        return self._in_namespace(MARKS)

    def _execute(self, connection: Any, sql: str) -> None:
        """A statement without parameters."""
        cursor = connection.cursor()
        try:
            cursor.execute(sql)
        finally:
            cursor.close()

    def _query(self, connection: Any, sql: str, parameters: Sequence[Any]) -> list[Any]:
        cursor = connection.cursor()
        try:
            cursor.execute(self.with_parameters(sql), tuple(parameters))
            return list(cursor.fetchall()) if cursor.description is not None else []
        finally:
            cursor.close()

    def with_parameters(self, sql: str) -> str:
        """A statement of ours as the driver takes it beside parameters; names may hold `%`."""
        return sql.replace("%", "%%").replace(self.mark, "%s")

    def _listed(self, rows: pa.Table) -> list[tuple[Any, ...]]:
        """Rows as the driver takes them."""
        columns = [
            self.values(column, name)
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        ]
        return list(zip(*columns, strict=True))

    def _many(self, connection: Any, sql: str, rows: pa.Table) -> int:
        """A statement per row; of how many rows the database says that they were written."""
        listed, written = self._listed(rows), 0
        cursor = connection.cursor()
        try:
            for begin in range(0, len(listed), ROWS):
                cursor.executemany(self.with_parameters(sql), listed[begin : begin + ROWS])
                written += cursor.rowcount
        finally:
            cursor.close()
        return written


def _key_text(key: Mapping[str, str]) -> str:
    """The columns of a key for people: `k, name (collation C)`."""
    return ", ".join(f"{n} (collation {by})" if by else n for n, by in key.items())


def finite(column: pa.ChunkedArray, name: str, kind: str) -> None:
    """Refuse numbers that a database has not.

    Raises:
        UserError: NaN or infinity.
    """
    if pa.types.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is False:
        raise UserError(
            f"a value of column {name} is NaN or infinite, which {kind} cannot hold",
            allowed="finite numbers and NULL",
            safe="nothing of the commit was written; other sinks go on",
            hint="leave it out in the view: nullif(…), nanvl(…)",
        )
