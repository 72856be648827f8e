"""One epoch: from a micro-batch to a published manifest, as numbered steps in commit order.

1. net       changes per key by position, old rows from the mirrors -> dR per table
2. mirrors   append dR, register released chunks: invisible until the manifest names the versions
3. views     dV per view in DAG order; the dV of a view that others read is a dR for them
4. stage     every sink makes its dV durable as soon as it is there, nothing is shown; so do the
             views' state tables
5. intent    the manifest-to-be and the sinks' tokens: from here on the epoch will be published
6. commit    sinks show their dV
7. publish   the manifest, put-if-absent: only now the epoch exists
8. move      memory follows what was published

A crash before 5 rolls back, after 5 rolls forward (runtime/recover.py). Steps 5 to 7 are
`Engine.commit`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from mview.changelog import RowKind, from_ipc
from mview.clock import END_OF_TIME, SourceMs
from mview.errors import UserError, concerning
from mview.execute.kinds import Counts, Delta, with_kinds
from mview.execute.program import Request, ViewDelta
from mview.ivm.plan import ViewPlan
from mview.merge.net import Netted, net_changes, old_and_new
from mview.merge.rules import Release
from mview.plan.clocks import CLOCKS, pinned_rows
from mview.runtime.cost import FULL, Ran, costs_of, with_run
from mview.runtime.engine import Engine, LiveView
from mview.runtime.failpoints import failpoint
from mview.runtime.halts import halted, halting, of_the_data, reads_halted, with_rows
from mview.runtime.names import VIEW, is_source, state_of, view_of
from mview.runtime.offsets import BatchOffsets
from mview.runtime.report import EpochReport, ViewChange
from mview.runtime.spark_functions import function_errors
from mview.runtime.strategy import Done, Task, perform
from mview.runtime.upkeep import Upkeep
from mview.schema import TableSchema
from mview.store.manifest import Manifest, TableState, ViewState
from mview.store.mirror import KIND
from mview.turns import turn

V = TypeVar("V")


@dataclass(frozen=True)
class EpochInput:
    """What a micro-batch brought, by table.

    Attributes:
        changes: change batches per table.
        releases: released chunks per table.
        offsets: where the batch ends.
        generation: number of the query.
        batch: number of the batch in the query.
    """

    changes: Mapping[str, list[pa.Table]]
    releases: Mapping[str, list[Release]]
    offsets: BatchOffsets
    generation: int
    batch: int

    @classmethod
    def of(cls, rows: pa.Table, offsets: BatchOffsets, generation: int, batch: int) -> EpochInput:
        """Sort the stream rows of a batch."""
        changes: dict[str, list[pa.Table]] = defaultdict(list)
        releases: dict[str, list[Release]] = defaultdict(list)
        for row in rows.select(["kind", "table", "body"]).to_pylist():
            if row["kind"] == "changes":
                changes[row["table"]].append(from_ipc(row["body"]))
            elif row["kind"] == "release":
                releases[row["table"]].append(Release.from_body(row["body"]))
        return cls(dict(changes), dict(releases), offsets, generation, batch)


@dataclass
class Work:
    """What the steps of one epoch build up."""

    epoch: int
    positions: dict[str, str]
    newest: dict[str, int]
    tables: dict[str, TableState]
    views: dict[str, ViewState]
    netted: dict[str, Netted] = field(default_factory=dict)
    #: What has changed, per relation.
    deltas: dict[str, Delta] = field(default_factory=dict)
    #: The same of the clocks, which have no mirror.
    clocks: dict[str, Delta] = field(default_factory=dict)
    #: State tables that are being appended to, and what they are then.
    appending: dict[str, Future[TableState]] = field(default_factory=dict)
    #: Views that are being maintained beside others.
    maintaining: list[Future[None]] = field(default_factory=list)
    #: What sinks are staging, and their tokens, per view.
    staging: dict[str, Future[dict[str, Any]]] = field(default_factory=dict)
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    report: dict[str, ViewChange] = field(default_factory=dict)
    #: Views that have halted in this epoch.
    halted: dict[str, UserError] = field(default_factory=dict)


def run_epoch(
    engine: Engine, upkeep: Upkeep, batch: EpochInput, chunks: Mapping[str, int]
) -> EpochReport:
    """Run and publish one epoch.

    Args:
        engine: the open store.
        upkeep: its finished compactions are published along.
        batch: what came.
        chunks: number of chunks of each table that is being loaded.

    Raises:
        MviewError: the epoch failed and is not visible; the next start rolls it back or forward.
    """
    began = time.monotonic()
    before = engine.manifest
    work = Work(
        before.epoch + 1,
        dict(before.positions),
        dict(before.newest),
        upkeep.take_over(before.tables),
        dict(before.views),
    )
    engine.lease.check()
    engine.pin(batch.offsets.pinned_ms)
    work.clocks = _clock_changes(before.pinned_ms, engine.pinned_ms)
    _net(engine, batch, work)
    failpoint("after-net")
    _write_mirrors(engine, batch, work, chunks)
    failpoint("after-mirrors")
    with _all_durable(work):
        _maintain_views(engine, work)
        failpoint("after-views")
    failpoint("after-stage")
    manifest = engine.commit(_manifest(engine, batch, work), work.tokens)
    engine.move({name: delta.rows for name, delta in work.deltas.items()})
    upkeep.after_epoch()
    # Of what was taken only: changes that are sent again are old, and no lag.
    newest = max((ms for one in work.netted.values() for ms in one.newest.values()), default=None)
    return EpochReport(
        epoch=work.epoch,
        duration_ms=int((time.monotonic() - began) * 1000),
        lag_ms=None if newest is None else max(0, engine.clock.now() - newest),
        changes={n: delta.rows.num_rows for n, delta in work.deltas.items() if is_source(n)},
        views={name: work.report[name] for name in engine.views if name in work.report},
        watermark=manifest.watermark,
        dropped=sum(one.duplicates for one in work.netted.values()),
        halted=work.halted,
    )


# --- 1. net --------------------------------------------------------------------------------------


def _net(engine: Engine, batch: EpochInput, work: Work) -> None:
    requests = []
    for name, batches in batch.changes.items():
        schema = engine.relations[name].schema
        before, newest = of_table(name, work.positions), of_table(name, work.newest)
        with concerning(f"table {name}"):
            netted = net_changes(batches, schema, before, newest)
        work.netted[name] = netted
        work.positions.update({position_key(name, p): v for p, v in netted.high_water.items()})
        work.newest.update(
            {position_key(name, p): max(v, newest.get(p, v)) for p, v in netted.newest.items()}
        )
        keys = None if netted.truncated else _touched(netted, schema)
        if keys is None or keys.num_rows:
            requests.append(Request(name, keys, schema.names))
    old_rows = engine.executors.fetch(requests)
    for request, rows in zip(requests, old_rows, strict=True):
        schema = engine.relations[request.table].schema
        with concerning(f"table {request.table}"):
            changes = old_and_new(work.netted[request.table], rows, schema)
        if changes.num_rows:
            work.deltas[request.table] = Delta(changes)


def _touched(netted: Netted, schema: TableSchema) -> pa.Table:
    keys = schema.key_arrow
    loose = pa.schema([pa.field(f.name, f.type) for f in keys])
    parts = [netted.upserts.select(keys.names), netted.deleted.select(keys.names)]
    return pa.concat_tables([part.cast(loose) for part in parts])


def position_key(table: str, partition: str) -> str:
    """The manifest's entry for what was taken of a table from a source partition."""
    return f"{table}@{partition}"


def of_table(table: str, entries: Mapping[str, V]) -> dict[str, V]:
    """A table's entries of the manifest's positions or times, by source partition."""
    prefix = position_key(table, "")
    return {k.removeprefix(prefix): v for k, v in entries.items() if k.startswith(prefix)}


# --- 2. mirrors ----------------------------------------------------------------------------------


def _write_mirrors(
    engine: Engine, batch: EpochInput, work: Work, chunks: Mapping[str, int]
) -> None:
    for name in {*batch.releases, *work.deltas}:
        state = work.tables[name]
        if name in batch.releases:
            state = _release(engine, work, name, batch.releases[name], chunks[name])
        work.tables[name] = state
        if name in work.deltas:
            work.tables[name] = _appended(engine, work, name)


def _appended(engine: Engine, work: Work, name: str) -> TableState:
    """A relation with the changes of this epoch."""
    delta = work.deltas[name]
    version = engine.relations[name].mirror.append(work.epoch, delta.rows)
    state = work.tables[name]
    return replace(state, changelog_version=version, rows=state.rows + delta.gained)


def _release(
    engine: Engine, work: Work, name: str, releases: list[Release], chunks: int
) -> TableState:
    """Take released chunk files into the base, without the rows that changes have overtaken."""
    relation, state = engine.relations[name], work.tables[name]
    released = set(state.released)
    fresh = [release for release in releases if release.marker.chunk not in released]
    touched = _touched(work.netted[name], relation.schema) if name in work.netted else None
    excluded: dict[str, pa.Table] = {}
    rows = state.rows
    for release in fresh:
        rows += release.marker.rows
        if release.marker.file:
            keys = _overtaken(engine, name, release, touched)
            excluded[release.marker.file] = keys
            rows -= keys.num_rows
    markers = [release.marker for release in fresh]
    version = relation.mirror.register(work.epoch, markers, excluded)
    released |= {marker.chunk for marker in markers}
    return replace(
        state,
        base_version=version,
        released=tuple(sorted(released)),
        rows=rows,
        phase="loaded" if len(released) == chunks else "loading",
    )


def _overtaken(engine: Engine, name: str, release: Release, touched: pa.Table | None) -> pa.Table:
    """The keys of a chunk file whose rows came by the changelog, before or in this epoch."""
    relation = engine.relations[name]
    key = relation.schema.key_arrow
    if not len(release.excluded) and touched is None:
        return key.empty_table()
    file = relation.mirror.base.folder / release.marker.file
    keys = pq.read_table(file, columns=key.names).select(key.names).cast(key)
    seen = release.excluded
    if touched is not None and touched.num_rows:
        seen = seen.union(type(seen).of(touched.cast(key), key))
    return keys.filter(pa.array(seen.contains(keys, key)))


# --- 3. views ------------------------------------------------------------------------------------


def _clock_changes(before_ms: int, pinned_ms: int) -> dict[str, Delta]:
    """The changes of the clocks that show another time than before."""
    found = {}
    for clock in CLOCKS:
        old, new = pinned_rows(clock, before_ms), pinned_rows(clock, pinned_ms)
        if not old.equals(new):
            kinds = pa.array([RowKind.UPDATE_BEFORE.value, RowKind.UPDATE_AFTER.value])
            found[clock] = Delta(pa.concat_tables([old, new]).add_column(0, KIND, kinds))
    return found


#: Views at a time: while the query of one runs in DuckDB, another computes in Python.
_maintainers = ThreadPoolExecutor(3, "mview-view")


def _maintain_views(engine: Engine, work: Work) -> None:
    for views in _levels(engine.views.values()):
        if len(views) == 1:
            _maintain_or_halt(engine, views[0], work)
            continue
        for view in views:
            work.maintaining.append(_maintainers.submit(_in_turn, engine, view, work))
        wait(work.maintaining)
        for maintained in work.maintaining:
            maintained.result()


def _levels(views: Iterable[LiveView]) -> list[list[LiveView]]:
    """Views that read none of each other; each reads only those of levels before."""
    found: list[list[LiveView]] = []
    levels: dict[str, int] = {}
    for view in views:
        reads = [levels[name] for name in view.definition.table_names if name in levels]
        level = levels[view.name] = max(reads, default=-1) + 1
        if level == len(found):
            found.append([])
        found[level].append(view)
    return found


def _in_turn(engine: Engine, view: LiveView, work: Work) -> None:
    with turn():
        _maintain_or_halt(engine, view, work)


def _maintain_or_halt(engine: Engine, view: LiveView, work: Work) -> None:
    if view.name not in work.views or work.views[view.name].stale:
        return
    try:
        _check_inputs(view, work)
        with concerning(f"view {view.name}"), function_errors():
            _maintain_view(engine, view, work)
    except Exception as error:
        told = halting(error, view.name)
        if told is None or view.name in work.staging:
            raise
        if of_the_data(error):
            told = with_rows(told, engine, view.plan, dict(work.deltas))
        _halt(view, work, told)


def _check_inputs(view: LiveView, work: Work) -> None:
    for name in view.definition.table_names:
        if name in work.views and work.views[name].stale:
            raise reads_halted(view.name, name)


def _halt(view: LiveView, work: Work, error: UserError) -> None:
    """Leave a view out, from this epoch on; without any other one the epoch fails."""
    work.views[view.name] = halted(work.views[view.name], error)
    if all(state.stale for state in work.views.values()):
        raise error
    work.halted[view.name] = error


def _maintain_view(engine: Engine, view: LiveView, work: Work) -> None:
    for part in view.plan.parts:
        _maintain_part(engine, part, work)
    done = _perform(engine, view.plan, work)
    if done is None:
        return
    delta = done.delta
    if delta.rows.num_rows:
        changes, counts = with_kinds(delta.rows, view.schema.key, view.name)
        _begin_stage(work, view, delta.rows)
        _count(work, view, counts, done.ran)
        if view.is_read:
            work.deltas[VIEW + view.name] = Delta(changes)
            work.tables[VIEW + view.name] = _appended(engine, work, VIEW + view.name)
    _keep_state(engine, view.plan, work, delta)


def _maintain_part(engine: Engine, part: ViewPlan, work: Work) -> None:
    """A part is a view without a sink."""
    done = _perform(engine, part, work)
    if done is None:
        return
    delta = done.delta
    if delta.rows.num_rows:
        relation = VIEW + part.name
        work.deltas[relation] = Delta(with_kinds(delta.rows, part.key, part.name)[0])
        work.tables[relation] = _appended(engine, work, relation)
    _keep_state(engine, part, work, delta)


def _keep_state(engine: Engine, plan: ViewPlan, work: Work, delta: ViewDelta) -> None:
    """Nothing in the epoch reads a state table once its own view is done: it need not wait."""
    relation = state_of(plan)
    if relation is not None and delta.state is not None and delta.state.num_rows:
        work.deltas[relation] = Delta(with_kinds(delta.state, plan.state_key, plan.name)[0])
        append = concerning(f"view {view_of(VIEW + plan.name)}")(_appended)
        work.appending[relation] = _writers.submit(append, engine, work, relation)


def _perform(engine: Engine, plan: ViewPlan, work: Work) -> Done | None:
    """Bring a view or part up to the epoch and note what it cost; None: nothing has changed."""
    owner = view_of(VIEW + plan.name)
    costs = costs_of(work.views[owner], plan.name)
    deltas = {**work.deltas, **work.clocks}
    done = perform(engine, Task(plan, work.epoch, work.tables, deltas, costs))
    if done is not None:
        state = work.views[owner]
        facts = with_run(state.facts, plan.name, done.ran, done.costs)
        work.views[owner] = replace(state, facts=facts)
    return done


def _count(work: Work, view: LiveView, counts: Counts, ran: Ran) -> None:
    state = work.views[view.name]
    work.views[view.name] = replace(
        state,
        rows=state.rows + counts.rows,
        inserted=counts.inserted,
        updated=counts.updated,
        deleted=counts.deleted,
        facts={**state.facts, "epoch": work.epoch, "executor": ran.executor},
    )
    work.report[view.name] = ViewChange(
        inserted=counts.inserted,
        updated=counts.updated,
        deleted=counts.deleted,
        rows=state.rows + counts.rows,
        strategy=state.strategy,
        executor=ran.executor,
        chosen=ran.text if ran.strategy == FULL != state.strategy else "",
    )


# --- 4. stage ------------------------------------------------------------------------------------

#: What is written while other views are maintained: it waits for files more than it computes.
_writers = ThreadPoolExecutor(8, "mview-write")


def _begin_stage(work: Work, view: LiveView, rows: pa.Table) -> None:
    """Have a sink stage its rows while other views are maintained."""
    stage = concerning(f"view {view.name}")(view.sink.stage)
    work.staging[view.name] = _writers.submit(stage, work.epoch, rows)


@contextmanager
def _all_durable(work: Work) -> Iterator[None]:
    """Wait for all writers at the end, also after an error: a roll-back must not overtake one."""
    try:
        yield
    finally:
        wait(work.maintaining)
        wait(work.staging.values())
        wait(work.appending.values())
    work.tables.update({name: appended.result() for name, appended in work.appending.items()})
    work.tokens = {name: staged.result() for name, staged in work.staging.items()}


# --- 7. what is published ------------------------------------------------------------------------


def _manifest(engine: Engine, batch: EpochInput, work: Work) -> Manifest:
    watermark = engine.manifest.watermark
    # The end of a bounded log is not a time: the next run must not believe that all is read.
    if 0 <= batch.offsets.watermark < END_OF_TIME:
        watermark = SourceMs(max(batch.offsets.watermark, watermark or 0))
    return engine.next_manifest(
        generation=batch.generation,
        batch=batch.batch,
        offsets={**engine.manifest.offsets, **batch.offsets.connections},
        positions=work.positions,
        newest=work.newest,
        watermark=watermark,
        tables=work.tables,
        views=work.views,
    )
