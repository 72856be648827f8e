"""ClickHouse as a sink: a staging table per step, shown by one ATTACH PARTITION of one part.

What is atomic in every version since 18 is the arrival of one part. So a step is one part: its rows
and the mark, staged in a table of its own and merged there until it is one. A view with the
target's name is what people read; the rows are in a table beside it:

| `_kind` | row of | `_version` |
|---|---|---|
| 0 | the view | the step's epoch |
| 1 | the mark; the newest counts | the step's epoch |
| 2 | the fence, in generation 0; the greatest counts | the runner's token |

A fill is a new *generation*, a partition of its own, which the view's readers see from the moment
its mark is there: no table is renamed, and nothing of the old one is missing before.

ATTACH has no condition, so a runner that was paused before it must find nothing to attach. A runner
writes its token first and then renames all staging tables; one that commits looks for its staging
table first and then at the token. Whichever comes first at the server, the older one fails. The
same is done after every error: a request that was sent and not answered comes too late then.
"""

from __future__ import annotations

import http.client
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field

from mview.changelog import KIND
from mview.config import Duration, Part
from mview.errors import ElsewhereError, MviewError, RetryableError, UserError
from mview.follower import (
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
    check_inserts,
    check_owner,
    failed,
    mark_of,
    not_ours,
    refuse_types,
)
from mview.schema import type_name
from mview.secrets import Mask, reveal, secrets_of
from mview_connectors.followers.clickhouse import native
from mview_connectors.followers.clickhouse.server import (
    Server,
    ServerError,
    literal,
    quoted,
    told_in_words,
)
from mview_connectors.network import http_caution, http_urls, listed
from mview_connectors.references import reference

#: Rows, or bytes in Arrow, of one INSERT: less than what the server makes two parts of.
_ROWS, _BYTES = 500_000, 64 << 20

#: How long an older generation is kept for queries that had begun, in seconds.
_KEPT = 60.0

_ROW, _MARK, _FENCE = 0, 1, 2

#: ClickHouse's number of this error.
_UNKNOWN_TABLE = 60

#: Values of `Date`, `Date32` (days since 1970) and `DateTime64` (micros) that every server holds.
_RANGES = {
    "Date": (0, 49_672, "1970-01-01 to 2105-12-31"),
    "Date32": (-25_567, 120_529, "1900-01-01 to 2299-12-31"),
    "DateTime64(6, 'UTC')": (
        -2_208_988_800_000_000,
        10_413_791_999_999_999,
        "the years 1900 to 2299",
    ),
}


class ClickhouseSettings(FollowerSettings):
    """A ClickHouse server, or its shards, as a sink."""

    hidden = ("password",)

    #: The HTTP interface; several with commas are shards.
    url: Annotated[str, Field(min_length=1), AfterValidator(http_urls)]
    #: Who writes.
    user: Part = "default"
    #: A reference to it, never itself.
    password: Annotated[str, AfterValidator(reference)] | None = Field(default=None, repr=False)
    #: Where the tables are.
    database: Annotated[str, Field(min_length=1)] = "default"
    #: Servers dislike many small parts.
    every: Duration = 1000
    #: How long an answer is waited for.
    timeout: Duration = 300_000
    #: What a date is there: ISO text, days since 1970 (Int32), Date or Date32.
    dates: Literal["text", "days", "date", "date32"] | None = None
    #: What a timestamp is there: ISO text in UTC, micros since 1970 (Int64), or DateTime64(6).
    timestamps: Literal["text", "micros", "datetime64"] | None = None


class _Held(NamedTuple):
    """One column of a block; see `native.Column`."""

    name: str
    type: str
    rows: pa.Array


@dataclass(frozen=True)
class _Control:
    """What the marks and fences of one server say.

    Attributes:
        is_ours: whether there is a fence: ours was made whole.
        owner: who writes there.
        fence: the greatest token.
        made_of: what the table is made of.
        generation: the newest with a mark; 0: none.
        older: others with a mark.
        mark: of the newest generation.
    """

    is_ours: bool = False
    owner: str = ""
    fence: int = 0
    made_of: str = ""
    generation: int = 0
    older: tuple[int, ...] = ()
    mark: Mark | None = None


class ClickhouseFollower:
    """A view in ClickHouse, with the table of rows behind it.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = ClickhouseSettings
    capabilities: Capabilities = Capabilities(
        modes=frozenset({"upsert", "append", "changelog"}), durable_prepare=True, by_key=True
    )

    def __init__(self, target: FollowerTarget) -> None:
        self.target = target
        self._settings: ClickhouseSettings = target.settings
        self._urls = listed(self._settings.url)
        self._is_upsert = self._settings.mode == "upsert"
        # A change in two rows is no row of the view.
        self.capabilities = replace(
            type(self).capabilities,
            reads=self._settings.mode != "changelog",
            null_keys=not self._is_upsert,
        )
        self._opened: list[Server] = []
        self._view = quoted(target.table)
        self._rows_name = f"{target.table}__rows"
        self._rows = quoted(self._rows_name)
        digest = sha256(target.table.encode()).hexdigest()[:12]
        self._prefix = f"mview_stage_{digest}_"
        self._older_since: float | None = None
        # Whether staging tables of other steps may be there.
        self._is_tidy = False
        # Where the last commit of this process left each server; a commit looks again.
        self._left: list[_Control] = []

    # --- types -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse types that ClickHouse has no exact equal of, and names that are ours."""
        key, wrong = self.target.schema.key, {}
        for column in self.target.schema.columns:
            column_type = self._type(column.type, in_key=column.name in key)
            if column_type.startswith("!"):
                wrong[column.name] = column_type[1:]
        refuse_types(self.target, wrong)
        own = [name for name, _ in self._system()]
        if taken := [name for name in self.target.schema.names if name in own]:
            raise UserError(
                f"column {taken[0]} of view {self.target.view} has a name that sink "
                f"{self.target.sink} needs itself",
                allowed=f"any but {', '.join(own)}",
                hint="rename it in the view",
            )

    def probe(self) -> None:
        """Ask each server whether it lets us in, and has the database."""
        with self._failing("asking the server"):
            for server in self._servers():
                server.run("SELECT 1")

    def _type(self, kind: pa.DataType, *, in_key: bool) -> str:
        """ClickHouse's type of a column; after `!`: why there is none."""
        plain = self._plain_type(kind, in_key=in_key)
        if plain.startswith("!") or (in_key and self._is_upsert):
            return plain
        return f"Nullable({plain})"

    def _plain_type(self, kind: pa.DataType, *, in_key: bool) -> str:
        settings = self._settings
        if pa.types.is_boolean(kind):
            return "UInt8"
        if pa.types.is_integer(kind):
            return f"Int{kind.bit_width}"
        if pa.types.is_floating(kind):
            if in_key and self._is_upsert:
                return "!no floating-point numbers in a key"
            return f"Float{kind.bit_width}"
        if pa.types.is_decimal(kind):
            return f"Decimal({kind.precision}, {kind.scale})"
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return "String"
        if pa.types.is_date(kind):
            types = {"text": "String", "days": "Int32", "date": "Date", "date32": "Date32"}
            return types.get(
                settings.dates or "",
                "!dates: text or days hold every date; date32 those of 1900 to 2299, date those of "
                "1970 to 2105",
            )
        if pa.types.is_timestamp(kind):
            micros = "DateTime64(6, 'UTC')"
            types = {"text": "String", "micros": "Int64", "datetime64": micros}
            return types.get(
                settings.timestamps or "",
                "!timestamps: text or micros hold every time; datetime64 those of 1900 to 2299, in "
                "servers from version 20 on",
            )
        return "!no arrays: ClickHouse has no NULL in their place"

    def _stored(self, rows: pa.Array, name: str, kind: str) -> pa.Array:
        """A column's values as ClickHouse's type has them."""
        plain = native.inner(kind)
        if pa.types.is_timestamp(rows.type):
            rows = rows.cast(pa.timestamp("us"))
            rows = rows.cast(pa.string() if plain == "String" else pa.int64())
        elif pa.types.is_date(rows.type):
            rows = rows.cast(pa.string() if plain == "String" else pa.int32())
        elif pa.types.is_boolean(rows.type):
            rows = rows.cast(pa.uint8())
        if plain in _RANGES:
            low, high, told = _RANGES[plain]
            ends = pc.min_max(rows).as_py()
            if ends["min"] is not None and (ends["min"] < low or ends["max"] > high):
                raise UserError(
                    f"a value of view {self.target.view} cannot be held by sink {self.target.sink}",
                    where=f"column {name}",
                    got=f"{ends['min'] if ends['min'] < low else ends['max']} since 1970",
                    allowed=f"{told}, as {plain}",
                    safe="nothing of the commit was brought; other sinks go on",
                    hint="leave such rows out, or write the column as text",
                )
        return rows

    def _arrow(self, rows: pa.Array, kind: pa.DataType) -> pa.Array:
        """The reverse, of what the Native format gives."""
        if pa.types.is_timestamp(kind):
            if pa.types.is_binary(rows.type):
                rows = rows.cast(pa.string()).cast(pa.timestamp("us"))
            return rows.cast(pa.timestamp("us")).cast(kind)
        if pa.types.is_date(kind):
            if not pa.types.is_binary(rows.type):
                return rows.cast(pa.int32()).cast(kind)
            rows = rows.cast(pa.string())
        if pa.types.is_boolean(kind):
            return pc.not_equal(rows, 0)
        return rows.cast(kind)

    # --- tables ----------------------------------------------------------------------------------

    def _system(self) -> list[tuple[str, str]]:
        """Columns of ours, before the view's."""
        common = [
            ("_generation", "UInt32"),
            ("_kind", "UInt8"),
            ("_version", "UInt64"),
            ("_mark", "String"),
        ]
        if self._is_upsert:
            return [*common, ("_deleted", "UInt8")]
        log = [*common, ("_epoch", "UInt64"), ("_position", "UInt64")]
        return [*log, ("_change", "String")] if self._settings.mode == "changelog" else log

    def _columns(self) -> list[tuple[str, str]]:
        key = self.target.schema.key
        return [
            *self._system(),
            *((c.name, self._type(c.type, in_key=c.name in key)) for c in self._of_view()),
        ]

    def _of_view(self) -> Any:
        return self.target.schema.columns

    def _table_ddl(self, name: str) -> str:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self._columns())
        key = self.target.schema.key if self._is_upsert else ("_epoch", "_position")
        order = ", ".join(map(quoted, ("_generation", "_kind", *key)))
        return (
            f"CREATE TABLE {quoted(name)} ({columns}) ENGINE = ReplacingMergeTree(_version) "
            f"PARTITION BY _generation ORDER BY ({order})"
        )

    def _view_ddl(self) -> str:
        rows = f"{quoted(self._settings.database)}.{self._rows}"
        names = list(self.target.schema.names)
        if self._settings.mode == "changelog":
            names = ["_change", "_epoch", "_position", *names]
        newest = f"SELECT max(_generation) FROM {rows} WHERE _kind = {_MARK}"
        return (
            f"CREATE VIEW {self._view} AS SELECT {', '.join(map(quoted, names))} FROM {rows}"
            f"{' FINAL' if self._is_upsert else ''} WHERE (_generation = ({newest})) "
            f"AND (_kind = {_ROW}){' AND (_deleted = 0)' if self._is_upsert else ''}"
        )

    def _made_of(self) -> str:
        """What the tables are made of; another text means other tables."""
        types = [[c.name, type_name(c.type)] for c in self._of_view()]
        parts = [self._columns(), types, list(self.target.schema.key), len(self._urls)]
        text = orjson.dumps([parts, self._settings.mode])
        return sha256(text).hexdigest()[:32]

    # --- Follower --------------------------------------------------------------------------------

    def caution(self) -> str | None:
        """A warning for a remote server without TLS."""
        return http_caution(f"sinks.{self.target.sink}.url", self._urls)

    def create(self) -> None:
        """Make the table and the view, put the token in, and take staging tables over."""
        self.check()
        self._is_tidy, self._left = False, []
        with self._failing("creating the table"):
            for server in self._servers():
                self._create(server)

    def _create(self, server: Server) -> None:
        tables = self._tables(server)
        rows = tables.get(self._rows_name)
        view = tables.get(self.target.table)
        if (rows is not None and "_generation" not in rows) or (
            view is not None and not self._is_ours(view)
        ):
            raise not_ours(self.target)
        control = _Control() if rows is None else self._control(server)
        check_owner(self.target, Mark(control.owner, control.fence, 0))
        if control.mark is not None:
            check_owner(self.target, control.mark)
        # Readers know the view alone: who drops it has dropped the table.
        is_dropped = view is None and control.mark is not None
        is_other = control.is_ours and control.made_of != self._made_of()
        if rows is not None and (is_dropped or is_other):
            # The view first: nobody may read one whose table has other columns.
            if view is not None:
                server.run(f"DROP TABLE {self._view}")
            server.run(f"DROP TABLE {self._rows}")
            rows = view = None
            control = _Control()
        if rows is None:
            if view is not None:  # of a table that somebody has dropped
                server.run(f"DROP TABLE {self._view}")
                view = None
            server.run(self._table_ddl(self._rows_name))
        if control.fence < self.target.fence or not control.is_ours:
            text = orjson.dumps([self.target.owner, self.target.fence, self._made_of()]).decode()
            row = self._own_row(0, _FENCE, self.target.fence, text)
            self._insert(server, self._rows_name, self._block([], row))
        if view is None:
            server.run(self._view_ddl())
        # After the token is in: see the module.
        for name in self._staging(server):
            step = name[len(self._prefix) :].partition("_")[0]
            other = f"{self._prefix}{step}_{secrets.token_hex(4)}"
            server.run(f"RENAME TABLE {quoted(name)} TO {quoted(other)}")

    def _is_ours(self, view: str) -> bool:
        """Whether what made a table makes a view of our rows."""
        return view.startswith("CREATE VIEW ") and self._rows[1:-1] in view

    def position(self) -> Mark | None:
        """The mark; None: never filled, or shards do not stand at one step."""
        with self._failing("reading the mark"):
            marks = []
            for server in self._servers():
                control = self._control(server)
                if control.mark is None or self.target.table not in self._tables(server):
                    return None
                fence = max(control.fence, control.mark.fence)
                marks.append(replace(control.mark, fence=fence))
            if len({(mark.epoch, mark.step) for mark in marks}) > 1:
                return None
            return max(marks, key=lambda mark: mark.fence)

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Insert the changes into a staging table."""
        return self._stage(step, (self._changed(batch) for batch in batches(delta)))

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """Insert all rows into a staging table of a new generation."""
        kinds = ((batch, pa.repeat("+I", batch.num_rows)) for batch in batches(rows))
        return self._stage(step, kinds)

    def _changed(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        """The rows to write of a delta's batch, and their kinds."""
        kinds, mode = batch.column(KIND), self._settings.mode
        if mode == "append":
            check_inserts(self.target, kinds)
        if mode == "upsert":
            batch = batch.filter(pc.not_equal(kinds, "-U"))
            kinds = batch.column(KIND)
        return batch.drop_columns([KIND]), kinds

    def _stage(self, step: Step, parts: Iterator[tuple[pa.RecordBatch, pa.Array]]) -> Token:
        with self._failing("staging"):
            generations = []
            servers = self._servers()
            known = self._left or [self._control(server) for server in servers]
            for server, control in zip(servers, known, strict=True):
                self._check_control(control, step)
                newest = control.generation
                self._forget_older(server, control, at_once=step.is_fill)
                # A table that is made anew begins elsewhere: a paused runner drops none of it.
                begin = newest or secrets.randbelow(1 << 31)
                generations.append(begin + 1 if step.is_fill else newest)
                if not self._is_tidy:
                    for name in self._staging(server):
                        server.run(f"DROP TABLE {quoted(name)}")
            self._is_tidy = False  # until this one is gone, too
            name = f"{self._prefix}{step.id}_{secrets.token_hex(4)}"
            for server in self._servers():
                server.run(self._table_ddl(name))
            writers = [_Writer(self, server, name) for server in self._servers()]
            position = 0
            for batch, kinds in parts:
                for writer, held, places in self._shared(writers, batch, kinds, position):
                    writer.add(held, step.epoch, generations[writers.index(writer)], places)
                position += batch.num_rows
            text = mark_of(self.target, step).to_text()
            for writer, generation in zip(writers, generations, strict=True):
                if writer.end(self._own_row(generation, _MARK, step.epoch, text)) > 1:
                    self._make_one(writer.server, name, generation)
            return {
                "id": step.id,
                "table": name,
                "epoch": step.epoch,
                "after": step.after,
                "base": step.base,
                "generations": generations,
                "rows": position,
            }

    def commit(self, token: Token) -> Facts:
        """Attach the staged part, once; on every shard."""
        with self._failing("committing"):
            step = Step(token["id"], token["epoch"], token["after"], base=token["base"])
            todo, left, self._left = [], [], []
            for server, generation in zip(self._servers(), token["generations"], strict=True):
                # In this order; see the module.
                staged = self._staged(server, step, token["table"])
                control = self._control(server)
                if control.mark is not None and control.mark.step == step.id:
                    check_owner(self.target, control.mark)
                    continue
                self._check_control(control, step)
                newest = control.generation
                fits = generation > newest if step.is_fill else generation == newest
                if staged is None or self.target.table not in self._tables(server):
                    raise self._gone()
                if not fits:
                    raise ElsewhereError(
                        f"the table {self.target.table} of sink {self.target.sink} was filled "
                        "anew, or a copy of it put back, since the step was staged",
                        got=f"generation {newest}",
                        allowed=f"{generation}",
                        safe="nothing of the step was written",
                    )
                todo.append((server, staged, generation))
            for server, (name, parts), generation in todo:
                if parts != 1:
                    self._make_one(server, name, generation)
                server.run(
                    f"ALTER TABLE {self._rows} ATTACH PARTITION {generation} FROM {quoted(name)}"
                )
                shown = self._control(server)
                if shown.mark is None or shown.mark.step != step.id:
                    raise self._gone()
                left.append(shown)
            for server, (name, _), _ in todo:
                server.run(f"DROP TABLE {quoted(name)}")
            if step.is_fill:
                self._older_since = None
            if len(todo) == len(self._urls):
                self._is_tidy, self._left = True, left
            return {"epoch": step.epoch}

    def state(self, step: Step, token: Token | None) -> State:
        """What marks and staging tables say, over all shards."""
        with self._failing("asking for a step"):
            done, staged = [], []
            for server in self._servers():
                whole = self._staged(server, step, "") is not None
                mark = self._control(server).mark
                done.append(mark is not None and mark.step == step.id)
                staged.append(whole)
            if all(done):
                return State.COMMITTED
            if all(shown or whole for shown, whole in zip(done, staged, strict=True)):
                return State.PREPARED
            if any(done):
                return State.UNKNOWN
            begun = any(self._staging(server, step) for server in self._servers())
            return State.INITIALIZED if begun else State.UNKNOWN

    def abort(self, step: Step, token: Token | None) -> None:
        """Drop the staging tables of a step."""
        with self._failing("dropping what was staged"):
            for server in self._servers():
                for name in self._staging(server, step):
                    server.run(f"DROP TABLE {quoted(name)}")

    def read(self) -> pa.RecordBatchReader:
        """The view's rows, of all shards."""
        schema = pa.schema([field.with_nullable(True) for field in self.target.schema.arrow])
        sql = f"SELECT {', '.join(map(quoted, schema.names))} FROM {self._view} FORMAT Native"

        def read() -> Iterator[pa.RecordBatch]:
            with self._failing("reading the table"):
                for server in self._servers():
                    with server.stream(sql) as answer:
                        for columns in native.blocks(answer):
                            arrays = [
                                self._arrow(column, field.type)
                                for column, field in zip(columns, schema, strict=True)
                            ]
                            yield pa.record_batch(arrays, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, read())

    def maintain(self, *, thorough: bool) -> Facts:
        """Drop what a fill has replaced; merge all parts, where there is time for that.

        The server merges parts itself, but not the largest: rows that were replaced or deleted
        long ago stay in these until all parts are merged. A merge leaves the last row of a key,
        which of a deleted one says just that: these go afterwards.
        """
        done: Counter[str] = Counter()
        with self._failing("merging parts and dropping what was replaced"):
            for server in self._servers():
                control = self._control(server)
                check_owner(self.target, Mark(control.owner, control.fence, 0))
                self._forget_older(server, control, at_once=True)
                done["generations_dropped"] += len(control.older)
                if thorough and control.mark is not None:
                    done["parts_merged"] += self._merge(server, control.generation)
                    if self._is_upsert:
                        gone = self._sweep(server, control.generation, control.mark.epoch)
                        done["tombstones_removed"] += gone
        return {name: number for name, number in done.items() if number}

    def close(self) -> None:
        """Close the connections."""
        for server in self._opened:
            server.close()
        self._opened.clear()

    # --- parts of them ---------------------------------------------------------------------------

    def _check_control(self, control: _Control, step: Step) -> None:
        """Whether this runner may take the step."""
        check_owner(self.target, Mark(control.owner, control.fence, 0))
        admit(self.target, control.mark, step)

    def _tables(self, server: Server) -> dict[str, str]:
        """The view and the table of rows, with what made them."""
        own = f"{literal(self.target.table)}, {literal(self._rows_name)}"
        tables = server.rows(
            "SELECT name, create_table_query FROM system.tables WHERE "
            f"database = {literal(self._settings.database)} AND name IN ({own})"
        )
        return {str(name): str(query) for name, query in tables}

    def _staging(self, server: Server, step: Step | None = None) -> list[str]:
        """Staging tables: all, or those of a step."""
        prefix = self._prefix if step is None else f"{self._prefix}{step.id}_"
        tables = server.rows(
            f"SELECT name FROM system.tables WHERE database = {literal(self._settings.database)} "
            f"AND position(name, {literal(prefix)}) = 1"
        )
        return [str(name) for (name,) in tables]

    def _control(self, server: Server) -> _Control:
        """The marks and fences; a few rows, found by the sorting key."""
        rows = server.rows(
            f"SELECT _generation, _kind, _version, _mark FROM {self._rows} WHERE _kind > {_ROW}"
        )
        fences = [(int(v), str(text)) for _, kind, v, text in rows if int(kind) == _FENCE]
        marks = [(int(g), int(v), str(text)) for g, kind, v, text in rows if int(kind) == _MARK]
        control = _Control()
        if fences:
            owner, fence, made_of = orjson.loads(max(fences)[1])
            control = _Control(True, owner, fence, made_of)
        if not marks:
            return control
        generation, _, text = max(marks)
        older = tuple({other for other, _, _ in marks} - {generation})
        mark = Mark.from_text(text)
        return replace(control, generation=generation, older=older, mark=mark)

    def _forget_older(self, server: Server, control: _Control, *, at_once: bool) -> None:
        """Drop generations that were replaced, but not under queries that have just begun."""
        if not control.older:
            return
        now = time.monotonic()
        self._older_since = now if self._older_since is None else self._older_since
        if at_once or now - self._older_since > _KEPT:
            for generation in control.older:
                server.run(f"ALTER TABLE {self._rows} DROP PARTITION {generation}")

    def _staged(self, server: Server, step: Step, name: str) -> tuple[str, int] | None:
        """The staging table of a step and its parts, if it is whole: if it has its mark.

        Args:
            server: where it is looked for.
            step: the step.
            name: what it was called.
        """
        if name and (parts := self._parts_if_whole(server, name)) is not None:
            return name, parts
        for other in self._staging(server, step):
            if (parts := self._parts_if_whole(server, other)) is not None:
                return other, parts
        return None

    def _parts_if_whole(self, server: Server, name: str) -> int | None:
        try:
            sql = f"SELECT (SELECT count() FROM {quoted(name)} WHERE _kind = {_MARK}) AS marks, "
            marks, parts = server.rows(f"{sql} ({self._count_parts(name)}) AS parts")[0]
        except ServerError as error:
            if error.code == _UNKNOWN_TABLE:
                return None
            raise
        return int(parts) if int(marks) else None

    def _count_parts(self, name: str) -> str:
        return (
            "SELECT count() FROM system.parts WHERE active AND "
            f"database = {literal(self._settings.database)} AND table = {literal(name)}"
        )

    def _make_one(self, server: Server, name: str, generation: int) -> None:
        """Merge a staging table until it is one part: only that arrives at once."""
        merging = (
            "SELECT count() FROM system.merges WHERE "
            f"database = {literal(self._settings.database)} AND table = {literal(name)}"
        )
        for _ in range(20):
            with suppress(TimeoutError):  # it goes on
                server.run(f"OPTIMIZE TABLE {quoted(name)} PARTITION {generation} FINAL")
            while int(server.rows(merging)[0][0]):
                time.sleep(0.5)
            if int(server.rows(self._count_parts(name))[0][0]) == 1:
                return
            time.sleep(0.5)  # a merge of the server's own is under way
        raise RetryableError(
            f"ClickHouse does not merge what was staged for {self.target.table}",
            where=f"sinks.{self.target.sink}",
            safe="nothing of it was shown; it is tried again",
            hint="look at system.merges and at the server's free disk space",
        )

    def _merge(self, server: Server, generation: int) -> int:
        """Merge the parts of a generation; those that come meanwhile stay. Returns how many less.

        Steps may be shown beside it: a merge changes no row that is read.
        """
        parts = self._count_parts(self._rows_name) + f" AND partition = '{generation}'"
        before = int(server.rows(parts)[0][0])
        if before < 2:
            return 0
        server.run(f"OPTIMIZE TABLE {self._rows} PARTITION {generation} FINAL")
        return max(0, before - int(server.rows(parts)[0][0]))

    def _sweep(self, server: Server, generation: int, before: int) -> int:
        """Have the server remove rows that say that a key is gone; returns how many.

        Such a row hides older ones of its key, of which a merged part has none. It must be the only
        part with rows of so old epochs. What steps bring beside it is not older.
        """
        old = f"_generation = {generation} AND _kind = {_ROW} AND _version < {before}"
        counts = f"SELECT uniqExact(_part) AS parts, sum(_deleted) AS gone FROM {self._rows}"
        parts, gone = map(int, server.rows(f"{counts} WHERE {old}")[0])
        if parts != 1 or not gone:
            return 0
        server.run(f"ALTER TABLE {self._rows} DELETE WHERE {old} AND _deleted = 1")
        return gone

    def _gone(self) -> RetryableError:
        return RetryableError(
            f"what was staged for {self.target.table} is not there any more",
            where=f"sinks.{self.target.sink}",
            safe="the marks in the table tell what was shown; they are asked before the next try",
        )

    # --- rows ------------------------------------------------------------------------------------

    def _shared(
        self, writers: list[_Writer], batch: pa.RecordBatch, kinds: pa.Array, position: int
    ) -> Iterator[tuple[_Writer, tuple[pa.RecordBatch, pa.Array], pa.Array]]:
        """A batch's rows by shard: those of a key always on one."""
        places = pa.array(np.arange(position, position + batch.num_rows, dtype=np.uint64))
        if len(writers) == 1:
            yield writers[0], (batch, kinds), places
            return
        if key := self.target.schema.key:
            texts = [
                batch.column(name).cast(pa.string()).fill_null("")
                if not pa.types.is_binary(batch.column(name).type)
                else batch.column(name).fill_null(b"")
                for name in key
            ]
            joined = zip(*(column.cast(pa.binary()).to_pylist() for column in texts), strict=True)
            hashes = np.array([zlib.crc32(b"\0".join(cells)) for cells in joined], np.uint64)
        else:
            hashes = np.asarray(places)
        shards = hashes % np.uint64(len(writers))
        for number, writer in enumerate(writers):
            of = pa.array(np.flatnonzero(shards == number))
            if len(of):
                yield writer, (batch.take(of), kinds.take(of)), places.take(of)

    def _own_row(self, generation: int, kind: int, version: int, text: str) -> dict[str, Any]:
        """A row that is none of the view: the columns of ours that are not 0 or empty."""
        return {"_generation": generation, "_kind": kind, "_version": version, "_mark": text}

    def _rows_block(
        self,
        held: tuple[pa.RecordBatch, pa.Array],
        epoch: int,
        generation: int,
        places: pa.Array,
    ) -> pa.RecordBatch:
        """Rows of the view with the columns of ours, as ClickHouse holds them."""
        batch, kinds = held
        count = batch.num_rows
        gone = pc.equal(kinds, "-D")

        def fixed(value: int, kind: pa.DataType) -> pa.Array:
            return pa.repeat(pa.scalar(value, kind), count)

        ours: dict[str, Callable[[], pa.Array]] = {
            "_generation": lambda: fixed(generation, pa.uint32()),
            "_kind": lambda: fixed(_ROW, pa.uint8()),
            "_version": lambda: fixed(epoch, pa.uint64()),
            "_mark": lambda: pa.repeat("", count),
            "_deleted": lambda: gone.cast(pa.uint8()),
            "_epoch": lambda: fixed(epoch, pa.uint64()),
            "_position": lambda: places,
            "_change": lambda: kinds.cast(pa.string()),
        }
        columns = []
        for name, kind in self._columns():
            if name in ours:
                columns.append(ours[name]())
                continue
            rows = batch.column(name)
            if self._is_upsert and kind.startswith("Nullable("):
                rows = pc.if_else(gone, pa.scalar(None, rows.type), rows)  # only the key counts
            columns.append(self._stored(rows, name, kind))
        return pa.record_batch(columns, [name for name, _ in self._columns()])

    def _block(self, rows: list[pa.RecordBatch], own: dict[str, Any] | None) -> bytes:
        """Rows, and maybe one of ours after them, in the Native format."""
        columns, count = [], sum(batch.num_rows for batch in rows) + (own is not None)
        for name, kind in self._columns():
            parts = [batch.column(name) for batch in rows]
            if own is not None:
                like = parts[0].type if parts else _arrow_of(kind)
                parts.append(pa.array([own.get(name)], like))
            columns.append(_Held(name, kind, pa.concat_arrays(parts)))
        return native.block(columns, count)

    def _insert(self, server: Server, table: str, content: bytes) -> None:
        columns = ", ".join(quoted(name) for name, _ in self._columns())
        server.run(f"INSERT INTO {quoted(table)} ({columns}) FORMAT Native", content)

    # --- connections -----------------------------------------------------------------------------

    def _servers(self) -> list[Server]:
        if not self._opened:
            settings, place = self._settings, f"sinks.{self.target.sink}"
            password = reveal(settings.password or "", f"{place}.password")
            user = reveal(settings.user, f"{place}.user")
            for url in self._urls:
                self._opened.append(
                    Server(url, user, password, settings.database, settings.timeout / 1000)
                )
        return self._opened

    @contextmanager
    def _failing(self, task: str) -> Iterator[None]:
        """Errors of the server and the network as ours, without secrets."""
        try:
            yield
        except MviewError:
            raise
        except (ServerError, OSError, http.client.HTTPException, native.Truncated) as error:
            passing = not isinstance(error, ServerError) or error.is_passing
            mask = Mask(secrets_of("password", self._settings.password or ""))
            raise failed(
                self.target,
                f"sink {self.target.sink} failed while {task}",
                mask(told_in_words(error)),
                "the mark in the table tells what was shown; it is asked before the next try",
                None
                if passing
                else "the server, the user's rights and the view's rows; if others have changed "
                f"{self.target.table} there, drop it: it is filled anew",
            ) from error


class _Writer:
    """Collects rows for a staging table of one server into few inserts; the last has the mark."""

    def __init__(self, follower: ClickhouseFollower, server: Server, table: str) -> None:
        self._follower, self.server, self._table = follower, server, table
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._inserts = 0

    def add(
        self,
        held: tuple[pa.RecordBatch, pa.Array],
        epoch: int,
        generation: int,
        places: pa.Array,
    ) -> None:
        """Rows of a batch."""
        if self._waiting and (self._rows > _ROWS or self._bytes > _BYTES):
            self._send(None)
        made = self._follower._rows_block(held, epoch, generation, places)
        self._waiting.append(made)
        self._rows += made.num_rows
        self._bytes += made.nbytes

    def end(self, own: dict[str, Any]) -> int:
        """The rest, and the mark: what has it is whole.

        Returns:
            The number of inserts.
        """
        self._send(own)
        return self._inserts

    def _send(self, own: dict[str, Any] | None) -> None:
        content = self._follower._block(self._waiting, own)
        self._follower._insert(self.server, self._table, content)
        self._waiting, self._rows, self._bytes = [], 0, 0
        self._inserts += 1


def _arrow_of(kind: str) -> pa.DataType:
    """The Arrow type that a column of ClickHouse's type is written from."""
    plain = native.inner(kind)
    if plain.startswith("Decimal("):
        precision, _, scale = plain[8:-1].partition(",")
        return pa.decimal128(int(precision), int(scale))
    types = {
        "String": pa.string(),
        "Float32": pa.float32(),
        "Float64": pa.float64(),
        "Date": pa.int32(),
        "Date32": pa.int32(),
    }
    if plain in types:
        return types[plain]
    return pa.int64() if plain.startswith(("Int", "DateTime")) else pa.uint64()
