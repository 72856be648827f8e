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

A crash before 5 rolls back, after 5 rolls forward (epoch/recover.py). Steps 5 to 7 are
`Engine.commit`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from mview.changelog import RowKind, from_ipc
from mview.clock import END_OF_TIME, SourceMs
from mview.delta.parquet import read_parquet
from mview.epoch.engine import Engine
from mview.epoch.maintain import Maintained, Maintenance, appended
from mview.epoch.report import EpochReport
from mview.epoch.upkeep import Upkeep
from mview.errors import concerning
from mview.execute.kinds import Delta
from mview.execute.program import Request
from mview.failpoints import failpoint
from mview.ingest.offsets import BatchOffsets
from mview.merge.net import Netted, net_changes, old_and_new
from mview.merge.rules import Release
from mview.plan.clocks import CLOCKS, pinned_rows
from mview.schema import TableSchema
from mview.store.manifest import Manifest, TableState
from mview.store.mirror import KIND

V = TypeVar("V")

#: Bytes of a batch after which memory is given back: it takes about a millisecond.
_LARGE_BATCH = 8 << 20


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
        columns = (rows[name] for name in ("kind", "table", "body"))
        for kind, table, body in zip(*columns, strict=True):
            if kind.as_py() == "changes":
                # The table lies in the body: to make bytes of it would be a copy.
                changes[table.as_py()].append(from_ipc(body.as_buffer()))
            elif kind.as_py() == "release":
                releases[table.as_py()].append(Release.from_body(body.as_py()))
        return cls(dict(changes), dict(releases), offsets, generation, batch)


@dataclass
class Work:
    """What the steps of one epoch build up."""

    epoch: int
    positions: dict[str, str]
    newest: dict[str, int]
    tables: dict[str, TableState]
    netted: dict[str, Netted] = field(default_factory=dict)
    #: What has changed, per source table.
    deltas: dict[str, Delta] = field(default_factory=dict)
    #: The same of the clocks, which have no mirror.
    clocks: dict[str, Delta] = field(default_factory=dict)


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
    )
    engine.lease.check()
    engine.pin(batch.offsets.pinned_ms)
    work.clocks = _clock_changes(before.pinned_ms, engine.pinned_ms)
    _net(engine, batch, work)
    failpoint("after-net")
    _write_mirrors(engine, batch, work, chunks)
    failpoint("after-mirrors")
    changed = work.deltas | work.clocks
    views = Maintenance(engine, work.epoch, work.tables, changed, upkeep.damaged)
    with views.all_durable():
        views.run()
        failpoint("after-views")
    done = views.result()
    failpoint("after-stage")
    manifest, refused = engine.commit(_manifest(engine, batch, work, done), done.tokens)
    engine.move({name: delta.rows for name, delta in (work.deltas | done.deltas).items()})
    upkeep.after_epoch()
    if sum(part.nbytes for parts in batch.changes.values() for part in parts) >= _LARGE_BATCH:
        # The allocator keeps what it had for the largest epoch; small ones would never need it.
        pa.default_memory_pool().release_unused()
    # Of what was taken only: changes that are sent again are old, and no lag.
    newest = max((ms for one in work.netted.values() for ms in one.newest.values()), default=None)
    return EpochReport(
        epoch=work.epoch,
        duration_ms=int((time.monotonic() - began) * 1000),
        lag_ms=None if newest is None else max(0, engine.clock.now() - newest),
        changes={name: delta.rows.num_rows for name, delta in work.deltas.items()},
        views={name: one for name, one in done.changes.items() if name not in refused},
        watermark=manifest.watermark,
        dropped=sum(one.duplicates for one in work.netted.values()),
        halted=done.halted | refused,
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
            delta = work.deltas[name]
            work.tables[name] = appended(engine, work.epoch, name, delta, work.tables[name])


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
    keys = read_parquet(relation.mirror.staged(release.marker.file), key)
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


# --- 7. what is published ------------------------------------------------------------------------


def _manifest(engine: Engine, batch: EpochInput, work: Work, views: Maintained) -> Manifest:
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
        tables=views.tables,
        views=views.views,
    )
