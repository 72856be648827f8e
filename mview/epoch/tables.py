"""Steps 1 and 2 of an epoch: what a batch changes in the tables, and their mirrors with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from mview.connector import TableHalt
from mview.delta.parquet import read_parquet
from mview.epoch.engine import Engine
from mview.epoch.quarantine import Quarantines
from mview.epoch.stages import MIRRORS, WRITERS, Begun
from mview.epoch.upkeep import Upkeep
from mview.errors import ConfigError, OtherLogError, UserError, concerning
from mview.execute.delta import Delta
from mview.execute.program import Request
from mview.execute.slices import difference
from mview.ingest.batches import Batch, Reloaded
from mview.merge.net import Netted, net_changes, old_and_new
from mview.merge.rules import Release
from mview.plan.clocks import CLOCKS, pinned_rows
from mview.relation import RelationId
from mview.rows.equality import as_shown
from mview.rows.key_sets import KeySet
from mview.rows.match import row_codes
from mview.schema import TableSchema
from mview.store.manifest import TableState

#: Bytes of a table's changes from which on they are written in a thread of their own: fewer are
#: written in the time that it takes to wait for one.
_MANY = 1 << 20


@dataclass(frozen=True)
class Moved:
    """Relations as they are after an epoch, and what has changed in them."""

    tables: Mapping[RelationId, TableState] = field(default_factory=dict)
    deltas: Mapping[RelationId, Delta] = field(default_factory=dict)

    def __or__(self, other: Moved) -> Moved:
        return Moved({**self.tables, **other.tables}, {**self.deltas, **other.deltas})


@dataclass(frozen=True)
class Changed:
    """What a batch changes.

    Attributes:
        epoch: number of the epoch.
        batch: what came.
        tables: the relations with it, and with the compactions that are finished; of those that
            are being written the version is the one before.
        positions: by table and source partition, what is taken.
        newest: beside each position, the newest source time up to it.
        netted: the net changes, by table.
        deltas: what they change in the tables.
        clocks: the same of the clocks, which have no mirror.
        halts: tables that halt in it, and why: they stay as they were before it.
        quarantine: of tables whose quarantine is another one then, what happened, for people.
        writing: tables whose changes are being written, and what they are then.
    """

    epoch: int
    batch: Batch
    tables: Mapping[RelationId, TableState]
    positions: Mapping[RelationId, dict[str, str]]
    newest: Mapping[RelationId, dict[str, int]]
    netted: Mapping[RelationId, Netted]
    deltas: Mapping[RelationId, Delta]
    clocks: Mapping[RelationId, Delta]
    halts: Mapping[RelationId, TableHalt] = field(default_factory=dict)
    quarantine: Mapping[RelationId, tuple[str, ...]] = field(default_factory=dict)
    writing: Mapping[RelationId, Future[TableState]] = field(default_factory=dict)

    def written(self) -> dict[RelationId, TableState]:
        """Wait for the tables that are being written.

        Raises:
            MviewError: one could not be.
        """
        return {name: state.result() for name, state in self.writing.items()}

    @property
    def moved(self) -> Moved:
        """The same for views."""
        return Moved(self.tables, {**self.deltas, **self.clocks})


# --- 1. net --------------------------------------------------------------------------------------


def net(engine: Engine, upkeep: Upkeep, batch: Batch) -> Changed:
    """Net the changes by key, and look up the rows that they replace."""
    before = engine.manifest
    tables = upkeep.take_over(before.tables)
    engine.lease.check()
    engine.pin(batch.offsets.pinned_ms)
    halts = {n: halt for n, halt in batch.halted.items() if n in tables and not tables[n].halted}
    netted, requests, deltas = {}, [], dict(batch.deltas)
    quarantines = Quarantines(engine, batch)
    for name in dict.fromkeys([*batch.changes, *batch.rereads, *quarantines.tables]):
        if name in halts or tables[name].halted:
            continue
        schema = engine.relations[name].schema
        known, times = before.positions.get(name, {}), before.newest.get(name, {})
        with _halting(name, halts), concerning(f"table {name}"):
            changes = net_changes(batch.changes.get(name, ()), schema, known, times)
            changes = quarantines.taken(name, changes)
            if name in batch.rereads:
                changes = _with_rereads(engine, name, changes, batch.rereads[name])
            netted[name] = changes
            keys = None if changes.truncated else _touched(changes, schema)
            if keys is None or keys.num_rows:
                requests.append(Request(name, keys, schema.names))
    for request, old_rows in zip(requests, engine.executors.fetch(requests), strict=True):
        name = request.table
        with _halting(name, halts), concerning(f"table {name}"):
            schema = engine.relations[name].schema
            taken = quarantines.without_orphans(name, netted[name], old_rows)
            numbers = None
            if taken is netted[name] and request.keys is not None:
                numbers = engine.executors.key_numbers(name, request.keys)
            netted[name] = taken
            rows, codes = old_and_new(taken, old_rows, schema, numbers)
            if rows.num_rows:
                deltas[name] = Delta(rows, schema.key, codes)
    netted = {name: changes for name, changes in netted.items() if name not in halts}
    positions = {**before.positions, **batch.positions}
    newest = {**before.newest, **batch.newest}
    for name, changes in netted.items():
        known, times = before.positions.get(name, {}), before.newest.get(name, {})
        positions[name] = {**known, **changes.high_water}
        newest[name] = times | {p: max(ms, times.get(p, ms)) for p, ms in changes.newest.items()}
    for name, halt in halts.items():
        text = engine.mask(str(halt.error().render()))
        tables = {**tables, name: replace(tables[name], halted=text)}
    tables = {**tables, **{n: quarantines.written(n, tables[n]) for n in netted}}
    told = {name: said for name, said in quarantines.said().items() if name in netted}
    clocks = clock_changes(before.pinned_ms, engine.pinned_ms)
    number = before.epoch + 1
    return Changed(number, batch, tables, positions, newest, netted, deltas, clocks, halts, told)


@contextmanager
def _halting(name: RelationId, halts: dict[RelationId, TableHalt]) -> Iterator[None]:
    """What a table's changes are no changes of it for halts that table alone."""
    try:
        yield
    except (ConfigError, OtherLogError):
        raise
    except UserError as error:
        halts[name] = TableHalt.of(error)


def _with_rereads(
    engine: Engine, name: RelationId, netted: Netted, rereads: Sequence[Reloaded]
) -> Netted:
    """Net changes, and beside them what differs in chunks that were read anew."""
    mirror, schema = engine.relations[name].mirror, engine.relations[name].schema
    loose, key = pa.schema([f.with_nullable(True) for f in schema.arrow]), schema.key_arrow
    touched = KeySet.of(_touched(netted, schema).cast(key), key)
    come, gone = [netted.upserts], [netted.deleted]
    for reread in rereads:
        marker = reread.release.marker
        excluded = reread.release.excluded.union(touched)
        there = read_parquet(mirror.staged(marker.file), loose) if marker.file else None
        chunk = loose.empty_table() if there is None else there
        copy = pa.concat_tables(
            [
                loose.empty_table(),
                *(
                    part.select(loose.names).filter(_in_chunk(part, reread))
                    for part in mirror.parts(engine.manifest.tables[name])
                ),
            ]
        )
        ours, theirs = row_codes([as_shown(chunk), as_shown(copy)])
        new = chunk.filter(pa.array(~np.isin(ours, theirs) & ~excluded.contains(chunk, key)))
        ours, theirs = row_codes([chunk.select(key.names), copy.select(key.names)])
        old = copy.filter(pa.array(~np.isin(theirs, ours) & ~excluded.contains(copy, key)))
        empty = pa.nulls(new.num_rows, netted.upserts.schema.field("__unchanged").type)
        new = new.append_column("__unchanged", empty)
        come.append(new.cast(netted.upserts.schema))
        gone.append(old.select(netted.deleted.column_names).cast(netted.deleted.schema))
    return replace(netted, upserts=pa.concat_tables(come), deleted=pa.concat_tables(gone))


def _in_chunk(rows: pa.Table, reread: Reloaded) -> pa.Array:
    return pa.array(np.asarray(reread.plan.route(rows)) == reread.release.marker.chunk)


def _touched(netted: Netted, schema: TableSchema) -> pa.Table:
    keys = schema.key_arrow
    loose = pa.schema([pa.field(f.name, f.type) for f in keys])
    parts = [netted.upserts.select(keys.names), netted.deleted.select(keys.names)]
    return pa.concat_tables([part.cast(loose) for part in parts])


def clock_changes(before_ms: int, pinned_ms: int) -> dict[RelationId, Delta]:
    """The changes of the clocks that show another time than before."""
    deltas = {}
    for clock in CLOCKS:
        old, new = pinned_rows(clock, before_ms), pinned_rows(clock, pinned_ms)
        if not old.equals(new):
            deltas[clock] = Delta(difference(new, old), ())
    return deltas


# --- 2. mirrors ----------------------------------------------------------------------------------


def write_mirrors(
    engine: Engine, chunks: Mapping[RelationId, int], begun: Begun, changed: Changed
) -> Changed:
    """Append the changes and register released chunks; no manifest names either yet.

    Many changes are still being written then, and memory looks where they will go. Views are
    maintained meanwhile by what is in memory, or wait; the stage after them waits in any case, so
    all is durable before anything is decided.
    """
    tables = dict(changed.tables)
    writing: dict[RelationId, Future[TableState]] = {}
    releases = {n: some for n, some in changed.batch.releases.items() if not tables[n].halted}
    for name in {*releases, *changed.deltas}:
        if name in releases:
            tables[name] = _release(engine, changed, name, chunks[name])
        if name in changed.deltas:
            delta, state = changed.deltas[name], tables[name]
            if delta.rows.nbytes < _MANY:
                tables[name] = appended(engine, changed.epoch, name, delta, state)
            else:
                to_write = engine, changed.epoch, name, delta, state
                writing[name] = begun.submit(MIRRORS, appended, *to_write)
                begun.submit(WRITERS, engine.executors.foresee, name, delta.rows, delta.given)
                tables[name] = _gained(state, delta)
    return replace(changed, tables=tables, writing=writing)


def appended(
    engine: Engine, epoch: int, relation: RelationId, delta: Delta, state: TableState
) -> TableState:
    """A relation with the changes of an epoch."""
    version = engine.relations[relation].mirror.append(epoch, delta.changelog)
    return replace(_gained(state, delta), changelog_version=version)


def _gained(state: TableState, delta: Delta) -> TableState:
    return replace(state, rows=state.rows + delta.gained)


def _release(engine: Engine, changed: Changed, name: RelationId, chunks: int) -> TableState:
    """Take released chunk files into the base, without the rows that changes have overtaken."""
    relation, state = engine.relations[name], changed.tables[name]
    released = set(state.released)
    releases = changed.batch.releases[name]
    fresh = [release for release in releases if release.marker.chunk not in released]
    netted = changed.netted.get(name)
    touched = None if netted is None else _touched(netted, relation.schema)
    excluded: dict[str, pa.Table] = {}
    rows = state.rows
    for release in fresh:
        rows += release.marker.rows
        if release.marker.file:
            keys = _overtaken(engine, name, release, touched)
            excluded[release.marker.file] = keys
            rows -= keys.num_rows
    markers = [release.marker for release in fresh]
    version = relation.mirror.register(changed.epoch, markers, excluded)
    released |= {marker.chunk for marker in markers}
    return replace(
        state,
        base_version=version,
        released=tuple(sorted(released)),
        rows=rows,
        phase="loaded" if len(released) == chunks else "loading",
    )


def _overtaken(
    engine: Engine, name: RelationId, release: Release, touched: pa.Table | None
) -> pa.Table:
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
