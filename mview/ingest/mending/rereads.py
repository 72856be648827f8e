"""Reading chunks of a loaded table anew, while its changes are followed: it becomes right again.

A request in the store names the chunks; the run that follows the changes takes it up. By the rule
of the load: a chunk is read, and counts when every change up to its read has been seen, without the
keys that these changes touched. The epoch then takes what differs from our copy as changes of the
table. To do it once more changes nothing, so a request goes only when all of it is published.

Whatever fails is the request's alone. Where the database is away, it is asked again while changes
are followed on. Else the request is refused, with the reason: each chunk is a correction by itself,
of rows as the source had them at one time, so those that have counted stay, and nothing is undone.
Who wanted all of the table knows that it is not all. The table is no worse than it was before, but
where a snapshot of its connector was passed over for the request (`ask_anew`): rows may be wrong
then that nobody can name, so the table halts, and is loaded anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import OP
from mview.clock import steady_clock
from mview.config import Config, secret_values
from mview.connector import TableHalt
from mview.errors import AwayError, MviewError, RetryableError, UserError, known_error, typed
from mview.ingest.batches import Reloaded
from mview.ingest.chunks import read_chunk
from mview.ingest.spec import QuerySpec, TableSpec, chunk_bytes, open_database
from mview.merge.rules import ChunkState, LoadingTable, Release, on_changes, release_ms
from mview.relation import RelationId
from mview.rows.key_sets import KeySet
from mview.schema import TableSchema
from mview.secrets import Mask
from mview.snapshot import ChunkPlan, Marker
from mview.store.quarantine import MendLog, MendRequest
from mview.store.requests.log import RequestLog

Changes: TypeAlias = Mapping[RelationId, Sequence[pa.Table]]

V = TypeVar("V")

#: Chunks that are being read, or wait for their changes: files beside our copy.
_AHEAD = 4

#: Seconds before a database that is away is asked again, beside what `read_chunk` tries.
_AWAY_S = 10.0

#: Marks requests for which rows of a snapshot were passed over.
_OWED = "-owed"

#: The kind of a row that a connector has read from the table, and not from its log.
SNAPSHOT_ROW = "r"


@dataclass(frozen=True)
class RereadRequest:
    """What is to be read anew.

    Attributes:
        table: the table.
        plan: how it is split; None: as the run finds best.
        chunks: numbers of chunks of the plan; all of them where there is no plan.
    """

    table: RelationId
    plan: ChunkPlan | None = None
    chunks: tuple[int, ...] = ()


class RereadLog(RequestLog[RereadRequest]):
    """The requests to read chunks anew.

    Args:
        folder: where they are.
    """

    kind = RereadRequest
    damaged = (
        "a request to read chunks anew cannot be read",
        "remove the file, and ask again: mview verify --source --repair",
    )

    def owe(self, table: RelationId) -> Path:
        """Ask for a whole table that halts where it cannot be read."""
        return self._put(RereadRequest(table), _OWED)

    @staticmethod
    def is_owed(file: Path) -> bool:
        """Whether a request is of `owe`."""
        return file.stem.endswith(_OWED)


def not_followed(table: RelationId) -> UserError:
    """A table that is in the store, and whose changes no run reads as the configuration is."""
    section = f"changes.{table.connection}"
    return UserError(
        f"changes of {table} are not followed, so it cannot be read anew",
        safe="nothing was changed: our copy is as it was when they were followed last",
        hint=f"put {section} into the configuration and run again; or mview drop {typed(table)}",
    )


def plan_anew(config: Config, table: RelationId, schema: TableSchema) -> ChunkPlan:
    """The chunks of a table as it is now, each of as many rows as an epoch takes changes."""
    engine, database = config.engine, open_database(config, table.connection)
    try:
        rows = min(engine.chunk_rows, engine.max_changes)
        plan = database.plan(table.name, schema, rows, chunk_bytes(engine))
    finally:
        database.close()
    return replace(plan, table=str(table))


@dataclass
class _Reading:
    """A chunk on its way."""

    request: Path
    table: LoadingTable
    spec: TableSpec
    number: int
    future: Future[Marker]
    state: ChunkState
    marker: Marker | None = None
    is_outdated: bool = False


@dataclass
class _Taken:
    """A request that was begun.

    Attributes:
        spec: the table, with the plan when that is made.
        planning: makes the plan, where there is none; None: it is to begin.
        left: chunks to be read.
        unpublished: chunks that are read, and not known to be published.
        is_whole: the whole table is asked for.
        begun_ms: wall time, before anything of it was read.
        again_at: nothing is asked before this time, as the database is away; None: it is not.
    """

    spec: TableSpec
    left: list[int]
    planning: Future[ChunkPlan] | None = None
    unpublished: set[int] = field(default_factory=set)
    is_whole: bool = False
    begun_ms: int = field(default_factory=lambda: int(steady_clock().now()))
    again_at: float | None = None

    @property
    def is_read(self) -> bool:
        """Whether nothing is left to be read."""
        return self.spec.plan is not None and not self.left


class Rereads:
    """The requests of a store, while one query follows the changes. One thread calls.

    Args:
        spec: the query's.
        folder: of the requests.
        say: is told of progress.
        mends: takes note of tables that are right again, whatever of them is in quarantine.
    """

    def __init__(
        self, spec: QuerySpec, folder: Path, say: Callable[[str], None], mends: MendLog
    ) -> None:
        self._spec, self._log, self._say = spec, RereadLog(folder), say
        self._mends = mends
        self._pool = ThreadPoolExecutor(1, "mview-reread")
        self._taken: dict[Path, _Taken] = {}
        self._readings: list[_Reading] = []
        self._seen: dict[RelationId, float] = {}
        self._read_at = time.monotonic()
        self._ended = False
        self._lost: AwayError | None = None
        self._mask = Mask(secret_values(spec.config))
        self._halts: dict[Path, tuple[RelationId, TableHalt]] = {}
        #: Files of chunks that `step` gave.
        self._given: list[Path] = []
        self._log.forget_refused()

    @property
    def halts(self) -> dict[RelationId, TableHalt]:
        """Tables that halt with the next batch, as what they need cannot be read."""
        return dict(self._halts.values())

    def end(self) -> None:
        """Begin nothing more: the logs end here, and what is read later may be beyond them."""
        self._ended = True

    def close(self) -> None:
        """End; what is not done is done by the next query."""
        self._pool.shutdown(cancel_futures=True)
        for reading in self._readings:
            self._discard(reading)
        for staged in self._given:  # in an epoch that has failed
            staged.unlink(missing_ok=True)

    def without_snapshots(
        self, changes: dict[RelationId, list[pa.Table]]
    ) -> dict[RelationId, list[pa.Table]]:
        """Changes without the rows of a connector's snapshot, for which the table is read anew."""
        kept, tables = without_snapshots(changes)
        if tables:
            ask_anew(self._log, tables, self._say)
            self._seen |= dict.fromkeys(tables, time.monotonic())
        return kept

    def step(self, changes: Changes, marks: Mapping[str, int]) -> dict[RelationId, list[Reloaded]]:
        """Take note of a batch, before it is published; returns the chunks that count with it.

        Args:
            changes: what was read after the batch before.
            marks: by connection, the time up to which every change was read, where it is known.

        Raises:
            MviewError: the store takes no files.
        """
        for reading in self._readings:
            for batch in changes.get(reading.table.table, ()):
                reading.state = on_changes(reading.state, batch, reading.table)
        self._go_on()
        for number, reading in enumerate(self._readings):
            if not _is_due(reading, marks):
                continue
            del self._readings[number]
            self._taken[reading.request].unpublished.discard(reading.number)
            assert reading.spec.plan is not None
            assert reading.marker is not None
            release = Release(reading.marker, reading.state.seen)
            if reading.marker.file:
                self._given.append(reading.spec.base / reading.marker.file)
            return {reading.table.table: [Reloaded(reading.spec.plan, release)]}
        return {}

    def read_again(self, tables: Collection[RelationId]) -> None:
        """Have what was read of tables, and does not count yet, be read once more.

        Changes are taken out of quarantine that may be newer, and are in no batch.
        """
        for reading in self._readings:
            if reading.table.table in tables:
                reading.is_outdated = True

    def is_due(self, marks: Mapping[str, int]) -> bool:
        """Whether a chunk counts, without a change more."""
        return any(_is_due(reading, marks) for reading in self._readings)

    def published(self) -> None:
        """All that `step` and `halts` gave is published: requests that are done go."""
        given, self._given = self._given, []
        for staged in given:  # what differed is in the changelog
            staged.unlink(missing_ok=True)
        halts, self._halts = self._halts, {}
        lost = dict(halts.values())
        for file, request in self._log.waiting().items() if lost else ():
            if request.table in lost:
                self._forget(file)
                self._log.refuse(file, lost[request.table])
        for file, taken in [*self._taken.items()]:
            if taken.is_read and not taken.unpublished:
                table = taken.spec.name
                if taken.is_whole:
                    # By our clock, as what is in quarantine has it; who asked may have another.
                    self._mends.ask(MendRequest(table, "reread", before_ms=taken.begun_ms))
                    self._log.forget_refused(partial(_is_of, table))
                file.unlink(missing_ok=True)
                del self._taken[file]
                self._say(f"{table} is as its database has it again")

    def look(self) -> None:
        """Go on with reading; between two batches.

        Raises:
            MviewError: as `step`.
            AwayError: a database is away, and the run a bounded one: it ends when all is done, so
                it waits for that, within its bounds.
        """
        self._go_on()
        if (lost := self._lost) is not None:
            self._lost = None
            raise lost

    def _go_on(self) -> None:
        for reading in [*self._readings]:
            if reading.request not in self._taken:
                continue  # refused just now
            if reading.marker is None and reading.future.done():
                self._take(reading)
            # What was read before a TRUNCATE says nothing.
            elif reading.state.emptied or reading.is_outdated:
                self._put_back(reading)
        if self._ended:
            return
        for file, request in self._log.waiting().items():
            if file not in self._taken and file not in self._halts:
                self._begin(file, request)
        for file, taken in [*self._taken.items()]:
            if taken.planning is not None and taken.planning.done():
                planning, taken.planning = taken.planning, None
                plan = self._result(file, planning)
                if plan is not None:
                    taken.spec = replace(taken.spec, plan=plan)
                    taken.left = list(range(len(plan.chunks)))
            if file in self._taken and time.monotonic() >= (taken.again_at or 0):
                self._ask(file, taken)

    def may_end(self) -> bool:
        """Whether a bounded run may take the logs as ended: nothing waits for a later watermark.

        Logs in files end in any case, and what is at their end has been read.
        """
        waiting = {request.table for request in self._log.waiting().values()}
        waiting &= self._spec.tables.keys()
        if not waiting:
            return True
        changes = self._spec.config.changes
        if any(changes[table.connection].source != "files" for table in waiting):
            return False
        if len(self._taken) < len(waiting) or not all(t.is_read for t in self._taken.values()):
            return False
        delay = max(changes[table.connection].delay for table in waiting)
        read = all(reading.marker is not None for reading in self._readings)
        return read and (time.monotonic() - self._read_at) * 1000 > delay

    def _begin(self, file: Path, request: RereadRequest) -> None:
        spec = self._spec.tables.get(request.table)
        if request.table.connection not in self._spec.config.changes:
            self._log.refuse(file, TableHalt.of(not_followed(request.table)))
            return
        if spec is None:
            return  # it has halted: when it is loaded anew
        delay = self._spec.config.changes[spec.connection].delay
        if time.monotonic() - self._seen.get(spec.name, float("-inf")) < delay / 1000:
            return  # the connector still sends its snapshot
        plan = request.plan
        if plan is not None and not set(plan.columns) <= set(spec.schema.key):
            plan = None
        what = "all" if plan is None else f"{len(request.chunks)}"
        self._say(f"{spec.name}: {what} chunks are read anew, what differs is corrected")
        left = [] if plan is None else list(request.chunks)
        self._taken[file] = _Taken(replace(spec, plan=plan), left, is_whole=request.plan is None)

    def _ask(self, file: Path, taken: _Taken) -> None:
        """Have done what comes next of a request."""
        spec = taken.spec
        if spec.plan is None and taken.planning is None:
            plan = partial(plan_anew, self._spec.config, spec.name, spec.schema)
            taken.planning = self._pool.submit(plan)
        while taken.left and len(self._readings) < _AHEAD:
            self._read(file, taken, taken.left.pop(0))

    def _read(self, file: Path, taken: _Taken, number: int) -> None:
        spec = taken.spec
        delay = self._spec.config.changes[spec.connection].delay
        table = LoadingTable(spec.name, spec.schema, delay)
        read = partial(read_chunk, self._spec.config, spec, number, open_end=True)
        future = self._pool.submit(read)
        state = ChunkState(KeySet.empty(spec.schema.key_arrow))
        taken.unpublished.add(number)
        self._readings.append(_Reading(file, table, spec, number, future, state))

    def _take(self, reading: _Reading) -> None:
        reading.marker = self._result(reading.request, reading.future)
        self._read_at = time.monotonic()
        is_of_no_use = reading.marker is None or reading.state.emptied or reading.is_outdated
        if is_of_no_use and reading.request in self._taken:
            self._put_back(reading)

    def _put_back(self, reading: _Reading) -> None:
        """Have a chunk be read once more."""
        self._discard(reading)
        self._readings.remove(reading)
        taken = self._taken[reading.request]
        taken.left.append(reading.number)
        taken.unpublished.discard(reading.number)

    def _result(self, file: Path, future: Future[V]) -> V | None:
        """What was read or planned; None: it was not, so it is asked for later, or not at all.

        Raises:
            MviewError: it is no matter of this request alone.
        """
        taken = self._taken[file]
        try:
            result = future.result()
        except AwayError as error:
            if self._spec.once:
                self._lost = error
            elif taken.again_at is None:
                self._say(f"{taken.spec.name} is read anew when that can be done: {error.what}")
            taken.again_at = time.monotonic() + _AWAY_S
            return None
        except Exception as error:
            # Of the store: the chunk is written there.
            if isinstance(error, OSError):
                raise
            if isinstance(error, MviewError) and not isinstance(error, UserError | RetryableError):
                raise
            self._refuse(file, known_error(error))
            return None
        taken.again_at = None
        return result

    def _refuse(self, file: Path, error: MviewError) -> None:
        """Give a request up that cannot be done; what counts of it stays."""
        table, why = self._taken[file].spec.name, TableHalt.of(error)
        what, where, got, hint = map(self._mask, (why.what, why.where, why.got, why.hint))
        why = replace(why, what=what, where=where, got=got, hint=hint)
        self._forget(file)
        if self._log.is_owed(file):
            # Refused when that is published; it stands until then.
            told = f"{table} cannot be read anew, as a snapshot of its connector asks: {why.what}"
            self._halts[file] = table, replace(why, what=told)
            return
        again = f"mview backfill {typed(table)}"
        if hint:
            hint = f"{hint}; once it can be read: {again}"
        else:
            hint = f"if it stays so, `mview drop {typed(table)}` and run again; else mend that, "
            hint += f"then {again}"
        self._log.refuse(file, replace(why, hint=hint))
        self._say(f"{table} is not read anew: {why.text}; it is as it was, and followed on")

    def _forget(self, file: Path) -> None:
        """Go on without a request; what was read of it and does not count yet is of no use."""
        self._taken.pop(file, None)
        for reading in [reading for reading in self._readings if reading.request == file]:
            self._discard(reading)
            self._readings.remove(reading)

    def _discard(self, reading: _Reading) -> None:
        future = reading.future
        future.cancel()
        done = future.done() and not future.cancelled() and future.exception() is None
        if done and (name := future.result().file):
            (reading.spec.base / name).unlink(missing_ok=True)


def _is_of(table: RelationId, request: RereadRequest) -> bool:
    return request.table == table


def _is_due(reading: _Reading, marks: Mapping[str, int]) -> bool:
    """Whether every change up to the read was seen."""
    mark = marks.get(reading.table.table.connection, -1)
    return reading.marker is not None and mark > release_ms(reading.marker, reading.table)


def without_snapshots(
    changes: Mapping[RelationId, list[pa.Table]],
) -> tuple[dict[RelationId, list[pa.Table]], list[RelationId]]:
    """Changes without the rows of snapshots, and the tables that have such rows."""
    kept: dict[RelationId, list[pa.Table]] = {}
    tables = []
    for table, batches in changes.items():
        others = [batch.filter(pc.not_equal(batch[OP], SNAPSHOT_ROW)) for batch in batches]
        if any(o.num_rows < b.num_rows for o, b in zip(others, batches, strict=True)):
            tables.append(table)
            kept[table] = [batch for batch in others if batch.num_rows]
        else:
            kept[table] = batches
    return kept, tables


def ask_anew(log: RereadLog, tables: Collection[RelationId], say: Callable[[str], None]) -> None:
    """Have tables read anew as a whole, unless that is asked for already.

    A table halts where that cannot be done: rows of the snapshot that calls for it are passed over.
    """
    waiting = log.waiting().items()
    asked = {request.table for file, request in waiting if log.is_owed(file)}
    for table in tables:
        if table not in asked:
            log.owe(table)
            say(
                f"the connector reads {table} anew: rows that were deleted while it did not follow "
                "are in no message, so the table is read anew here, too"
            )
