"""StarRocks as a sink: one transaction of Stream Load per step, with a label of its own.

A transaction is prepared, which outlives processes and servers, and then committed by its label.
It writes one table, so the mark is a row of that table: rows and mark come at once. A view with
the target's name is what people read; it leaves the mark out:

| `_mview` | row of |
|---|---|
| 0 | the view |
| 1 | the mark: one row |

A fill is a new table beside it, loaded unseen in as many transactions as it takes; then the view is
turned to it, which is atomic, and the old one is dropped.

What became of a step says its label as long as the servers know it: three days, or fewer where many
are written. Whether it was committed says the mark, always: every commit writes it. So a label that
is forgotten decides nothing. A runner that was paused cannot have its way: a commit's token is on
disk before, and who takes over looks there first.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Annotated, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import orjson
import pyarrow as pa
from pydantic import AfterValidator, Field

from mview.config import Count, Duration, Part
from mview.errors import ElsewhereError, MviewError, RetryableError, UserError
from mview.follower import (
    DAY,
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
)
from mview.schema import type_name
from mview.secrets import Mask, reveal, secrets_of
from mview_connectors.followers.starrocks.loads import Loads
from mview_connectors.followers.starrocks.rows import (
    KIND_COLUMN,
    MARK_COLUMN,
    OPERATION,
    ROWS,
    RowsOfLoads,
    column_type,
    in_transactions,
    requests_of,
    to_arrow,
)
from mview_connectors.followers.starrocks.server import (
    Frontends,
    RefusedError,
    Sql,
    literal,
    quoted,
)
from mview_connectors.network import caution, http_caution, http_urls, listed
from mview_connectors.references import reference

#: The servers' numbers of this error, older and newer.
_NO_TABLE = {1146, 5502}

#: Words of refusals after which the same may succeed later.
_PASSING = re.compile(
    r"TXN_|IN_PROCESSING|LABEL_ALREADY_EXISTS|timeout|timed out|running txns|no backend|not alive"
    r"|SERVICE_UNAVAILABLE|HTTP (429|5\d\d)",
    re.IGNORECASE,
)


def _of_a_header(name: str) -> str:
    if not re.fullmatch(r"[\w-]+", name):
        raise ValueError("must be of letters, digits, _ and -")
    return name


class StarrocksSettings(FollowerSettings):
    """A StarRocks cluster as a sink."""

    hidden = ("password",)

    #: The HTTP interface of the front ends.
    url: Annotated[str, Field(min_length=1), AfterValidator(http_urls)]
    #: Their port for the MySQL protocol.
    query_port: Annotated[int, Field(gt=0, lt=1 << 16)] = 9030
    #: Who writes.
    user: Part = "root"
    #: A reference to it, never itself.
    password: Annotated[str, AfterValidator(reference)] | None = Field(default=None, repr=False)
    #: Where the tables are; its name stands in a header of HTTP.
    database: Annotated[str, Field(max_length=256), AfterValidator(_of_a_header)]
    #: Each commit is a version of the table, which the servers compact.
    every: Duration = 1000
    #: How long an answer is waited for, and how long a load may take.
    timeout: Duration = 600_000
    #: How long a prepared transaction waits for its commit.
    prepared_timeout: Duration = DAY
    #: An FE with TLS sends loads on to a BE: may that be one without?
    plain_backends: bool = False
    #: Of a table that is made; the servers choose where none is given.
    buckets: Count | None = None
    #: PROPERTIES of a table that is made.
    properties: dict[str, str] = Field(default={})


class _Shown(NamedTuple):
    """What the view is.

    Attributes:
        is_there: whether there is one.
        table: the table that it shows; None: none that is there.
        owner: who has made that table; empty: not known.
        made_of: what that table is made of.
    """

    is_there: bool = False
    table: str | None = None
    owner: str = ""
    made_of: str = ""


class StarrocksFollower:
    """A view in StarRocks, with the table of rows behind it.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = StarrocksSettings
    capabilities: ClassVar[Capabilities] = Capabilities(
        modes=frozenset({"upsert"}), durable_prepare=True
    )

    def __init__(self, target: FollowerTarget) -> None:
        self.target = target
        self._settings: StarrocksSettings = target.settings
        self._urls = listed(self._settings.url)
        # The name stands in headers of HTTP, which hold ASCII only.
        plain = re.sub(r"\W", "_", target.table, flags=re.ASCII)[:40]
        self._digest = sha256(target.table.encode()).hexdigest()[:8]
        self._prefix = f"{plain}__{self._digest}_"
        self._own_name = re.compile(rf"\b{re.escape(self._prefix)}[0-9a-f]{{12}}\b")
        self._rows = RowsOfLoads(target)
        self._http: Frontends | None = None
        self._sql: tuple[str, Sql] | None = None
        # Where the last commit of this process left the table; a commit looks again.
        self._left: tuple[str, Mark] | None = None

    # --- types -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse types that StarRocks has no exact equal of, and names that are ours."""
        key, wrong = self.target.schema.key, {}
        for column in self.target.schema.columns:
            kind = column_type(column.type, in_key=column.name in key)
            if kind.startswith("!"):
                wrong[column.name] = kind[1:]
        refuse_types(self.target, wrong)
        own = (KIND_COLUMN, MARK_COLUMN, OPERATION)
        if taken := [name for name in self.target.schema.names if name.casefold() in own]:
            raise UserError(
                f"column {taken[0]} of view {self.target.view} has a name that sink "
                f"{self.target.sink} needs itself",
                allowed=f"any but {', '.join(own)}",
                hint="rename it in the view",
            )

    def _made_of(self) -> str:
        """What the table is made of; another text means another table."""
        key = self.target.schema.key
        columns = [
            [c.name, column_type(c.type, in_key=c.name in key), type_name(c.type)]
            for c in self.target.schema.columns
        ]
        return sha256(orjson.dumps([columns, list(key)])).hexdigest()[:32]

    # --- tables ----------------------------------------------------------------------------------

    def _table_ddl(self, name: str) -> str:
        key = self.target.schema.key
        columns = {
            c.name: column_type(c.type, in_key=c.name in key) for c in self.target.schema.columns
        }
        lines = [f"{quoted(KIND_COLUMN)} TINYINT NOT NULL"]
        lines += [f"{quoted(column)} {columns.pop(column)} NOT NULL" for column in key]
        lines += [f"{quoted(column)} {kind} NULL" for column, kind in columns.items()]
        lines.append(f"{quoted(MARK_COLUMN)} VARCHAR(65533) NULL")
        named = ", ".join(map(quoted, key))
        comment = orjson.dumps([self.target.owner, self._made_of()]).decode()
        buckets = f" BUCKETS {self._settings.buckets}" if self._settings.buckets else ""
        properties = ", ".join(
            f"{literal(name)} = {literal(value)}"
            for name, value in self._settings.properties.items()
        )
        return (
            f"CREATE TABLE {self._place(name)} ({', '.join(lines)}) "
            f"PRIMARY KEY ({quoted(KIND_COLUMN)}, {named}) COMMENT {literal(comment)} "
            f"DISTRIBUTED BY HASH({named}){buckets}"
            + (f" PROPERTIES ({properties})" if properties else "")
        )

    def _view_ddl(self, verb: str, table: str) -> str:
        names = ", ".join(map(quoted, self.target.schema.names))
        return (
            f"{verb} VIEW {self._place(self.target.table)} ({names}) AS "
            f"SELECT {names} FROM {self._place(table)} WHERE {quoted(KIND_COLUMN)} = 0"
        )

    def _place(self, name: str) -> str:
        return f"{quoted(self._settings.database)}.{quoted(name)}"

    def _label(self, step: Step) -> str:
        """Of a step's transaction; with the table's name, as labels are of a database."""
        return f"mview-{self._digest}-{step.id}"

    def _rows_name(self, step: Step) -> str:
        """The table that a fill makes."""
        return f"{self._prefix}{sha256(step.id.encode()).hexdigest()[:12]}"

    def _look(self) -> tuple[_Shown, dict[str, str]]:
        """What the view is, and the tables of our name form with their comments.

        Raises:
            TargetError: a table or view of the target's name is not ours.
        """
        sql, target = self._statements(), self.target
        within = f"TABLE_SCHEMA = {literal(self._settings.database)}"
        sql.run("SYNC")  # also what other front ends have done is seen then
        listed = sql.run(
            "SELECT TABLE_NAME, TABLE_TYPE, TABLE_COMMENT FROM information_schema.tables WHERE "
            f"{within} AND (TABLE_NAME = {literal(target.table)} OR "
            f"TABLE_NAME LIKE {literal(f'{self._prefix}%')})"
        )
        tables = {str(name): str(note) for name, _, note in listed if self._is_own(str(name))}
        kind = next((str(kind) for name, kind, _ in listed if name == target.table), None)
        if kind is None:
            return _Shown(), tables
        definitions = sql.run(
            "SELECT VIEW_DEFINITION FROM information_schema.views WHERE "
            f"{within} AND TABLE_NAME = {literal(target.table)}"
        )
        named = self._own_name.search(str(definitions[0][0])) if definitions else None
        if "VIEW" not in kind.upper() or named is None:
            raise not_ours(target)
        if named[0] not in tables:
            return _Shown(True), tables
        return _Shown(True, named[0], *_noted(tables[named[0]])), tables

    def _is_own(self, name: str) -> bool:
        return self._own_name.fullmatch(name) is not None

    def _shown(self, *, writes: bool = True) -> tuple[str, Mark | None] | None:
        """The table that the view shows and its mark, if it is made of what it is to be.

        Args:
            writes: whether that is asked to write there, which a newer runner's mark forbids.

        Raises:
            TargetError: somebody else's.
            FencedError: a newer runner's.
        """
        shown, _ = self._look()
        if shown.table is None:
            return None
        check_owner(self.target, Mark(shown.owner, 0, 0))
        mark = self._mark(shown.table)
        if mark is not None:
            check_owner(self.target, Mark(mark.owner, mark.fence if writes else 0, 0))
        return (shown.table, mark) if shown.made_of == self._made_of() else None

    def _mark(self, table: str) -> Mark | None:
        """The mark in a table; None: there is none, or no such table."""
        sql = self._statements()
        sql.run("SYNC")
        try:
            marks = sql.run(
                f"SELECT {quoted(MARK_COLUMN)} FROM {self._place(table)} "
                f"WHERE {quoted(KIND_COLUMN)} = 1"
            )
        except sql.errors as error:
            if error.args and error.args[0] in _NO_TABLE:
                return None
            raise
        return Mark.from_text(str(marks[0][0])) if marks else None

    # --- Follower --------------------------------------------------------------------------------

    def caution(self) -> str | None:
        """A warning for remote servers without TLS."""
        place = f"sinks.{self.target.sink}"
        if self._settings.plain_backends:
            how = "may lead on to back ends without TLS (plain_backends: true)"
            return caution(place, "its servers", how, "Turn TLS on in the back ends.")
        return http_caution(f"{place}.url", self._urls)

    def probe(self) -> None:
        """Ask by both protocols, and whether the table is free or ours; makes nothing."""
        with self._failing("asking the servers"):
            self._shown(writes=False)
            self._loads().state(f"mview-{self._digest}-probe")

    def create(self) -> None:
        """Look whether the place is ours; the table comes with the fill."""
        self.check()
        self._left = None
        with self._failing("looking for the table"):
            self._shown()

    def position(self) -> Mark | None:
        """The mark in the table that is shown."""
        with self._failing("reading the mark"):
            shown = self._shown(writes=False)
            return None if shown is None else shown[1]

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Load the changes in a transaction, and prepare it."""
        key = self.target.schema.key

        def rows() -> Iterator[dict[str, Any]]:
            for batch in batches(delta):
                yield from self._rows.json(gone_keys(batch, key), 1)
                yield from self._rows.json(new_rows(batch), 0)
            yield self._rows.mark(step)

        with self._failing("staging"):
            stands = self._left or self._shown()
            table, mark = stands or ("", None)
            admit(self.target, mark, step)
            self._left = None
            count = self._loads().prepare(self._label(step), table, requests_of(rows()))
            return {
                "id": step.id,
                "table": table,
                "epoch": step.epoch,
                "after": step.after,
                "base": step.base,
                "rows": count - 1,
            }

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """Load all rows into a new table that nobody sees yet."""

        def content() -> Iterator[dict[str, Any]]:
            for batch in batches(rows):
                yield from self._rows.json(batch, 0)
            yield self._rows.mark(step)

        with self._failing("filling"):
            self._left = None
            shown, tables = self._look()
            self._admit_fill(step, shown)
            self._drop_others(shown, tables)
            table = self._rows_name(step)
            self._statements().run(self._table_ddl(table))
            count = 0
            for number, requests in enumerate(in_transactions(requests_of(content()))):
                label = f"{self._label(step)}-{number}"
                count += self._loads().prepare(label, table, requests)
                self._loads().decide(label)
            return {
                "id": step.id,
                "table": table,
                "epoch": step.epoch,
                "after": None,
                "base": "",
                "rows": count - 1,
            }

    def commit(self, token: Token) -> Facts:
        """Commit the transaction until it is seen; or turn the view to what was filled."""
        with self._failing("committing"):
            step = Step(token["id"], token["epoch"], token["after"], base=token["base"])
            table, self._left = token["table"], None
            if step.is_fill:
                self._show(step, table)
            else:
                self._check_shown(table)
                mark = self._mark(table)
                if mark is None or mark.step != step.id:
                    admit(self.target, mark, step)
                    self._loads().decide(self._label(step))
                else:
                    check_owner(self.target, mark)
            self._left = (table, mark_of(self.target, step))
            return {"epoch": step.epoch, "rows": token["rows"]}

    def state(self, step: Step, token: Token | None) -> State:
        """What the mark and the label say; of a fill, what the view shows."""
        with self._failing("asking for a step"):
            shown, tables = self._look()
            if step.is_fill:
                table = self._rows_name(step)
                if shown.table == table:
                    return State.COMMITTED
                if table not in tables:
                    return State.UNKNOWN
                mark = self._mark(table)
                is_whole = mark is not None and mark.step == step.id
                return State.PREPARED if is_whole else State.INITIALIZED
            told = self._loads().state(self._label(step))[0]
            if told == "COMMITTED":
                return State.COMMITTING  # it is decided, and will be seen
            # After the label: what is committed in between is seen then. A label alone is no proof:
            # it may be from before the store or the table were restored from a backup.
            stands = self._mark(shown.table) if shown.table else None
            if stands is not None and stands.step == step.id:
                return State.COMMITTED
            if told == "ABORTED":
                return State.ABORTED
            if told not in ("PREPARE", "PREPARED"):
                return State.UNKNOWN
            # One that begins elsewhere than the table stands is never committed.
            fits = stands is not None and stands.epoch == step.after
            fits = fits and (token is None or token["table"] == shown.table)
            is_whole = told == "PREPARED" and fits
            return State.PREPARED if is_whole else State.INITIALIZED

    def abort(self, step: Step, token: Token | None) -> None:
        """Roll the transaction back, or drop the table that was filled."""
        with self._failing("taking back what was staged"):
            if step.is_fill:
                shown, tables = self._look()
                table = self._rows_name(step)
                if table in tables and shown.table != table:
                    self._statements().run(f"DROP TABLE {self._place(table)}")
                return
            self._loads().roll_back(self._label(step))

    def read(self) -> pa.RecordBatchReader:
        """The view's rows."""
        schema = pa.schema([field.with_nullable(True) for field in self.target.schema.arrow])
        names = ", ".join(map(quoted, schema.names))

        def read() -> Iterator[pa.RecordBatch]:
            with self._failing("reading the table"):
                sql = self._statements()
                sql.run("SYNC")
                place = self._place(self.target.table)
                for rows in sql.stream(f"SELECT {names} FROM {place}", ROWS):
                    columns = [
                        to_arrow(list(values), field.type)
                        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
                    ]
                    yield pa.record_batch(columns, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, read())

    def maintain(self, *, thorough: bool) -> Facts:
        """Nothing but the fence: the servers compact, and a table that is not shown may be a fill.

        What a dead fill has left the next fill drops.
        """
        with self._failing("looking for the table"):
            self._shown()
        return {}

    def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None
        if self._sql is not None:
            self._sql[1].close()
            self._sql = None

    def _check_shown(self, table: str) -> None:
        """Refuse a step on a table that nobody sees: somebody has put the view of before back.

        Raises:
            ElsewhereError: the view shows another one.
        """
        shown, _ = self._look()
        if shown.table != table:
            raise ElsewhereError(
                f"the view {self.target.table} of sink {self.target.sink} shows another table "
                "than the one on which a step was staged",
                got=shown.table or "no such view",
                allowed=table,
                safe="nothing of the step is seen",
            )

    # --- fills -----------------------------------------------------------------------------------

    def _admit_fill(self, step: Step, shown: _Shown) -> None:
        """Whether this runner may replace what is shown."""
        if shown.table is not None:
            check_owner(self.target, Mark(shown.owner, 0, 0))
            admit(self.target, self._mark(shown.table), step)

    def _show(self, step: Step, table: str) -> None:
        """Turn the view to a table that was filled."""
        shown, tables = self._look()
        if shown.table != table:
            self._admit_fill(step, shown)
            mark = self._mark(table)
            if mark is None or mark.step != step.id:
                raise RetryableError(
                    f"what was filled for {self.target.table} is not there any more",
                    where=f"sinks.{self.target.sink}",
                    safe="the view shows what it has shown; it is filled again",
                )
            verb = "ALTER" if shown.is_there else "CREATE"
            self._statements().run(self._view_ddl(verb, table))
        self._drop_others(_Shown(True, table), tables)

    def _drop_others(self, shown: _Shown, tables: dict[str, str]) -> None:
        """Drop the tables of ours that are not shown."""
        for name, comment in tables.items():
            if name != shown.table and _noted(comment)[0] == self.target.owner:
                self._statements().run(f"DROP TABLE {self._place(name)}")

    # --- connections -----------------------------------------------------------------------------

    def _secrets(self) -> tuple[str, str]:
        settings, place = self._settings, f"sinks.{self.target.sink}"
        user = reveal(settings.user, f"{place}.user")
        return user, reveal(settings.password or "", f"{place}.password")

    def _frontends(self) -> Frontends:
        if self._http is None:
            settings = self._settings
            self._http = Frontends(
                self._urls,
                *self._secrets(),
                settings.timeout / 1000,
                settings.plain_backends,
                f"sinks.{self.target.sink}",
            )
        return self._http

    def _loads(self) -> Loads:
        return Loads(self._frontends(), self.target)

    def _statements(self) -> Sql:
        """The MySQL protocol of the front end that is asked."""
        url = self._frontends().url
        if self._sql is None or self._sql[0] != url:
            if self._sql is not None:
                self._sql[1].close()
            settings, parts = self._settings, urlsplit(url)
            sql = Sql(
                parts.hostname or "localhost",
                settings.query_port,
                *self._secrets(),
                parts.scheme == "https",
                settings.timeout / 1000,
                f"sinks.{self.target.sink}",
            )
            self._sql = (url, sql)
        return self._sql[1]

    @contextmanager
    def _failing(self, task: str) -> Iterator[None]:
        """Errors of the servers and the network as ours, without secrets."""
        try:
            yield
        except MviewError:
            raise
        except Exception as error:
            sql = self._sql[1].errors if self._sql is not None else ()
            if not isinstance(error, (RefusedError, OSError, http.client.HTTPException, *sql)):
                raise
            passing = _is_passing(error)
            if isinstance(error, sql) and passing:
                self._frontends().turn()
            mask = Mask(secrets_of("password", self._settings.password or ""))
            raise failed(
                self.target,
                f"sink {self.target.sink} failed while {task}",
                mask(" ".join(f"{type(error).__name__}: {error}".split())),
                "label and mark tell what was shown; they are asked before the next try",
                None
                if passing
                else "the cluster, the user's rights and the view's rows; if others have changed "
                f"{self.target.table} there, drop it: it is filled anew",
            ) from error


def _is_passing(error: Exception) -> bool:
    """Whether the same may succeed later."""
    if isinstance(error, RefusedError):
        return _PASSING.search(str(error)) is not None
    if isinstance(error, OSError | http.client.HTTPException):
        return True
    number = error.args[0] if error.args else None
    # Of the driver: 2000 and more say that the server cannot be reached, or went away.
    return (isinstance(number, int) and 2000 <= number < 3000) or bool(_PASSING.search(str(error)))


def _noted(comment: str) -> tuple[str, str]:
    """Who has made a table, and of what; empty: it does not say."""
    try:
        owner, made_of = orjson.loads(comment)
    except (ValueError, TypeError):
        return "", ""
    return str(owner), str(made_of)
