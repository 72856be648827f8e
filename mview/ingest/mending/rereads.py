"""Reading chunks of a loaded table anew, while its changes are followed: it becomes right again.

A request in the store names the chunks; the run that follows the changes takes it up. By the rule
of the load: a chunk is read, and counts when every change up to its read has been seen, without the
keys that these changes touched. The epoch then takes what differs from our copy as changes of the
table. To do it once more changes nothing, so a request goes only when all of it is published.
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
from mview.config import Config
from mview.errors import UserError
from mview.ingest.batches import Reloaded
from mview.ingest.chunks import read_chunk
from mview.ingest.spec import QuerySpec, TableSpec, chunk_bytes, open_database
from mview.merge.rules import ChunkState, LoadingTable, Release, on_changes, release_ms
from mview.relation import RelationId
from mview.rows.key_sets import KeySet
from mview.schema import TableSchema
from mview.snapshot import ChunkPlan, Marker
from mview.store.quarantine import MendLog, MendRequest
from mview.store.requests.log import RequestLog

Changes: TypeAlias = Mapping[RelationId, Sequence[pa.Table]]

V = TypeVar("V")

#: Chunks that are being read, or wait for their changes: files beside our copy.
_AHEAD = 4

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
        planning: makes the plan; None: it is made.
        left: chunks to be read.
        unpublished: chunks that are read, and not known to be published.
        is_whole: the whole table is asked for.
        begun_ms: wall time, before anything of it was read.
    """

    spec: TableSpec
    planning: Future[ChunkPlan] | None
    left: list[int]
    unpublished: set[int] = field(default_factory=set)
    is_whole: bool = False
    begun_ms: int = field(default_factory=lambda: int(steady_clock().now()))

    @property
    def is_read(self) -> bool:
        """Whether nothing is left to be read."""
        return self.planning is None and not self.left


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

    def end(self) -> None:
        """Begin nothing more: the logs end here, and what is read later may be beyond them."""
        self._ended = True

    def close(self) -> None:
        """End; what is not done is done by the next query."""
        self._pool.shutdown(cancel_futures=True)
        for reading in self._readings:
            self._discard(reading)

    def without_snapshots(
        self, changes: dict[RelationId, list[pa.Table]]
    ) -> dict[RelationId, list[pa.Table]]:
        """Changes without the rows of a connector's snapshot, for which the table is read anew."""
        kept, tables = without_snapshots(changes)
        if tables:
            ask_anew(self._log, tables, self._say)
            self._seen |= dict.fromkeys(tables, time.monotonic())
        return kept

    def step(self, changes: Changes, watermark: int) -> dict[RelationId, list[Reloaded]]:
        """Take note of a batch, before it is published; returns the chunks that count with it.

        Args:
            changes: what was read after the batch before.
            watermark: every change up to it was read; -1: unknown.

        Raises:
            MviewError: a chunk cannot be read.
        """
        for reading in self._readings:
            for batch in changes.get(reading.table.table, ()):
                reading.state = on_changes(reading.state, batch, reading.table)
        self.look()
        for number, reading in enumerate(self._readings):
            if not _is_due(reading, watermark):
                continue
            del self._readings[number]
            self._taken[reading.request].unpublished.discard(reading.number)
            assert reading.spec.plan is not None
            assert reading.marker is not None
            release = Release(reading.marker, reading.state.seen)
            return {reading.table.table: [Reloaded(reading.spec.plan, release)]}
        return {}

    def read_again(self, tables: Collection[RelationId]) -> None:
        """Have what was read of tables, and does not count yet, be read once more.

        Changes are taken out of quarantine that may be newer, and are in no batch.
        """
        for reading in self._readings:
            if reading.table.table in tables:
                reading.is_outdated = True

    def is_due(self, watermark: int) -> bool:
        """Whether a chunk counts, without a change more."""
        return any(map(partial(_is_due, watermark=watermark), self._readings))

    def published(self) -> None:
        """All that `step` has returned is published: requests that are done go."""
        for file, taken in [*self._taken.items()]:
            if taken.is_read and not taken.unpublished:
                if taken.is_whole:
                    # By our clock, as what is in quarantine has it; who asked may have another.
                    begun_ms = taken.begun_ms
                    self._mends.ask(MendRequest(taken.spec.name, "reread", before_ms=begun_ms))
                file.unlink(missing_ok=True)
                del self._taken[file]
                self._say(f"{taken.spec.name} is as its database has it again")

    def look(self) -> None:
        """Go on with reading; between two batches.

        Raises:
            MviewError: a chunk cannot be read.
        """
        for reading in [*self._readings]:
            if reading.marker is None and reading.future.done():
                self._take(reading)
            # What was read before a TRUNCATE says nothing.
            if reading.state.emptied or reading.is_outdated:
                self._discard(reading)
                self._readings.remove(reading)
                taken = self._taken[reading.request]
                taken.left.append(reading.number)
                taken.unpublished.discard(reading.number)
        if self._ended:
            return
        for file, request in self._log.waiting().items():
            if file not in self._taken:
                self._begin(file, request)
        for file, taken in self._taken.items():
            if taken.planning is not None and taken.planning.done():
                plan = self._result(file, taken.planning)
                taken.planning, taken.spec = None, replace(taken.spec, plan=plan)
                taken.left = list(range(len(plan.chunks)))
            while taken.left and len(self._readings) < _AHEAD:
                self._read(file, taken, taken.left.pop(0))

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
        if spec is None:
            return  # not followed in this run
        delay = self._spec.config.changes[spec.connection].delay
        if time.monotonic() - self._seen.get(spec.name, float("-inf")) < delay / 1000:
            return  # the connector still sends its snapshot
        plan, planning = request.plan, None
        if plan is None or not set(plan.columns) <= set(spec.schema.key):
            planning = self._pool.submit(plan_anew, self._spec.config, spec.name, spec.schema)
        what = "all" if planning else f"{len(request.chunks)}"
        self._say(f"{spec.name}: {what} chunks are read anew, what differs is corrected")
        left = [] if planning else list(request.chunks)
        taken = _Taken(replace(spec, plan=plan), planning, left, is_whole=request.plan is None)
        self._taken[file] = taken

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

    def _result(self, request: Path, future: Future[V]) -> V:
        try:
            return future.result()
        except UserError as error:
            # The run must not end by it again and again: who asked is told, and may ask again.
            self._log.refuse(request, error.what)
            raise

    def _discard(self, reading: _Reading) -> None:
        future = reading.future
        done = future.done() and not future.cancelled() and future.exception() is None
        if done and (name := future.result().file):
            (reading.spec.base / name).unlink(missing_ok=True)


def _is_due(reading: _Reading, watermark: int) -> bool:
    """Whether every change up to the read was seen."""
    return reading.marker is not None and watermark > release_ms(reading.marker, reading.table)


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
    """Have tables read anew as a whole, unless that is asked for already."""
    asked = {request.table for request in log.waiting().values() if request.plan is None}
    for table in tables:
        if table not in asked:
            log.ask(RereadRequest(table))
            say(
                f"the connector reads {table} anew: rows that were deleted while it did not follow "
                "are in no message, so the table is read anew here, too"
            )
