"""`mview run`: from view definitions to published epochs, until stopped.

The manifest decides what happens next: tables that are not loaded are loaded (load query), views
that are not built are built (one batch job), then changes are followed. A restart does the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from mview.changelog import encode_position
from mview.clock import SystemClock, utc_text
from mview.config import Config, Mask, secret_values
from mview.connector import Offsets
from mview.errors import FencedError, MviewError, UserError
from mview.merge.rules import LoadingTable
from mview.plan.definition import ViewDefinition
from mview.runtime.build import build_views, unbuilt
from mview.runtime.catalog import check_changelogs, describe_tables
from mview.runtime.changelogs import CHUNKS_READ
from mview.runtime.definitions import all_definitions, published_definitions
from mview.runtime.engine import Engine, LiveView, tick_of
from mview.runtime.epoch import EpochInput, of_table, position_key, run_epoch
from mview.runtime.failpoints import failpoint
from mview.runtime.functions import declared_functions, with_functions
from mview.runtime.live import LiveQuery
from mview.runtime.load_plan import (
    LoadPlan,
    group_by_connection,
    plan_load,
    read_plan,
    write_plan,
)
from mview.runtime.names import is_source
from mview.runtime.offsets import BatchOffsets
from mview.runtime.query import LoadQuery
from mview.runtime.recover import forget_folders, recover
from mview.runtime.report import EpochReport, Listener, Silence, ViewChange
from mview.runtime.session import release_heap, spark_session
from mview.runtime.sources import register_sources
from mview.runtime.spark_errors import WorkerStartError
from mview.runtime.spec import QuerySpec, TableSpec, open_changelog
from mview.runtime.upkeep import Upkeep
from mview.runtime.views import open_sinks, open_views
from mview.schema import TableSchema
from mview.store.failure import failure_kept
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest

__all__ = ["EpochReport", "Listener", "Pipeline", "ViewChange"]


class Pipeline:
    """Keeps the views of one store.

    Args:
        config: the configuration.
        views: views to add or replace; those of the store are kept as well.
        listener: who is told of progress.
    """

    def __init__(
        self, config: Config, views: Sequence[ViewDefinition], *, listener: Listener | None = None
    ) -> None:
        self.config, self.given = config, list(views)
        self.listener: Listener = listener or Silence()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Finish the running epoch and return from `run`; may be called from any thread."""
        self._stop.set()

    def run(self, *, once: bool) -> None:
        """Load what is not loaded, build what is not built, then follow the changes.

        Args:
            once: take what is there, publish it and return; otherwise until `stop`.

        Raises:
            MviewError: with what failed, where, and whether the data is safe.
        """
        store = Store(self.config.store)
        clock = SystemClock()
        store.root.mkdir(parents=True, exist_ok=True)
        mask = Mask(secret_values(self.config))
        functions = declared_functions(self.config)
        with Lease(store.lease, clock) as lease, failure_kept(store, clock, mask):
            manifest = recover(store, lease, clock, partial(open_sinks, self.config))
            forget_folders(store, manifest)
            definitions = with_functions(all_definitions(store, manifest, self.given), functions)
            known = {name: s.schema for name, s in manifest.tables.items() if is_source(name)}
            schemas = describe_tables(self.config, definitions, known)
            schemas |= followed(self.config, manifest)
            check_changelogs(self.config, definitions)
            self.listener.on_message("starting Spark")
            spark = spark_session(self.config)
            register_sources(spark)
            engine = Engine(self.config, spark, lease, clock)
            engine.views = open_views(self.config, spark, definitions, schemas)
            try:
                Run(engine, schemas, definitions, self.listener, self._stop, once).go()
            finally:
                engine.executors.close()


def followed(config: Config, manifest: Manifest) -> dict[str, TableSchema]:
    """Loaded tables; they go on without a view that reads them, to be right when one does again.

    Half loaded ones that no view reads, and those whose connection is gone, are left.
    """
    return {
        name: state.schema
        for name, state in manifest.tables.items()
        if is_source(name) and state.phase == "loaded" and name.partition(".")[0] in config.changes
    }


#: Starts of a query before it is given up.
_STARTS = 3

#: Seconds between two explanations of a load that waits for the changelog.
_EXPLAIN_EVERY_S = 30


class Run:
    """One run over an open engine.

    Args:
        engine: the open store.
        schemas: of every source table the views read.
        definitions: of all views, in DAG order; `engine.views` are these.
        listener: who is told of progress.
        stop: set when the run shall end after the running epoch.
        once: take what is there and return.
    """

    def __init__(
        self,
        engine: Engine,
        schemas: Mapping[str, TableSchema],
        definitions: Sequence[ViewDefinition],
        listener: Listener,
        stop: threading.Event,
        once: bool,
    ) -> None:
        self._engine, self._schemas, self._definitions = engine, schemas, definitions
        self._listener, self._stop, self._once = listener, stop, once
        self._plans: dict[str, LoadPlan] = {}
        self._upkeep = Upkeep(engine)
        self._explained = 0.0
        self._chunks_read = False
        self._halted: dict[str, MviewError] = {}

    def go(self) -> None:
        """Load, build, follow.

        Raises:
            MviewError: what ended the run, or, after all, why a view has halted meanwhile.
        """
        try:
            self._go()
        finally:
            self._upkeep.close()
        for error in self._halted.values():
            raise error

    def _go(self) -> None:
        engine = self._engine
        self._begin_tables()
        engine.open_relations()
        generation = engine.manifest.generation
        self._plans = {
            name: read_plan(engine.store.plan(generation, name)) for name in self._tables("loading")
        }
        if self._plans:
            self._load()
        if self._stop.is_set():
            return
        if views := unbuilt(engine):
            self._build(views)
        release_heap(engine.spark)  # what loads and builds needed, before mirrors come into memory
        if left_out := engine.executors.warm(engine.look_up_keys()):
            self._listener.on_message(f"looked up on Spark, beyond memory: {', '.join(left_out)}")
        self._query(load=False)

    def _build(self, views: Sequence[LiveView]) -> None:
        """Build views; what fails on the data is tried again with the changes that are there."""
        engine = self._engine
        failed = self._built(views)
        if failed and not self._stop.is_set():
            names = ", ".join(failed)
            self._listener.on_message(f"{names}: not built yet; taking the changes first")
            engine.executors.warm(engine.look_up_keys())
            self._query(load=False, once=True)
            failed = self._built([view for view in views if view.name in failed])
        self._note_halts(failed)
        if failed and all(state.stale for state in engine.manifest.views.values()):
            raise next(iter(failed.values()))

    def _built(self, views: Sequence[LiveView]) -> dict[str, UserError]:
        """Build views once; returns those that failed."""
        names = ", ".join(view.name for view in views)
        self._listener.on_message(f"building {names} from the mirrors")
        self._upkeep.close()  # a mirror that begins anew must not be compacted meanwhile
        self._upkeep = Upkeep(self._engine)
        failed = build_views(self._engine, views)
        self._announce_builds([view for view in views if view.name not in failed])
        return failed

    def _load(self) -> None:
        """Load tables while the published views go on as they are; new ones come afterwards."""
        engine = self._engine
        for name, plan in self._plans.items():
            self._listener.on_load(name, 0, plan.chunks.rows, False)
        published = published_definitions(engine.store, engine.manifest)
        if published:
            self._open_views(published)
        self._query(load=True)
        if published:
            self._open_views(self._definitions)

    def _open_views(self, definitions: Sequence[ViewDefinition]) -> None:
        engine = self._engine
        engine.views = open_views(engine.config, engine.spark, definitions, self._schemas)

    def _tables(self, phase: str) -> list[str]:
        tables = self._engine.manifest.tables
        return [name for name, state in tables.items() if state.phase == phase and is_source(name)]

    def _note_halts(self, halted: Mapping[str, MviewError]) -> None:
        for name, error in halted.items():
            self._halted[name] = error
            self._listener.on_message(f"view {name} halts, alone: {error.render()}")

    def _announce_builds(self, views: Sequence[LiveView]) -> None:
        manifest = self._engine.manifest
        changes = {}
        for view in views:
            state = manifest.views[view.name]
            changes[view.name] = ViewChange(state.rows, 0, 0, state.rows, state.strategy, "spark")
        self._listener.on_epoch(
            EpochReport(manifest.epoch, 0, None, {}, changes, manifest.watermark)
        )

    # --- new tables ------------------------------------------------------------------------------

    def _begin_tables(self) -> None:
        """Note where the changelogs are, then plan the chunks, then publish that loading began.

        In this order: a change after the noted offsets is read, one before them is in the chunks.
        Tables that are not to be followed any more go with the same manifest.
        """
        engine = self._engine
        sources = {name for name in engine.manifest.tables if is_source(name)}
        if sources == set(self._schemas):
            return
        # A load that was under way starts over with the new ones: its state is in the old query.
        new = [
            name
            for name in self._schemas
            if name not in engine.manifest.tables or name in self._tables("loading")
        ]
        generation = engine.manifest.generation + 1
        offsets = self._begin_offsets()
        left = sources - set(self._schemas)
        tables = {k: v for k, v in engine.manifest.tables.items() if k not in left}
        kept_positions = engine.manifest.positions.items()
        positions = {k: v for k, v in kept_positions if k.rpartition("@")[0] not in left}
        kept_times = engine.manifest.newest.items()
        newest = {k: v for k, v in kept_times if k.rpartition("@")[0] not in left}
        for name in new:
            schema = self._schemas[name]
            self._listener.on_message(f"planning the load of {name}")
            begin = self._begin_positions(name, offsets, of_table(name, positions))
            plan = plan_load(engine.config, name, schema, begin)
            write_plan(engine.store.plan(generation, name), plan)
            failpoint("after-plan")
            tables[name] = engine.mirror(name, schema).create()
            positions.update({position_key(name, p): mark for p, mark in begin.items()})
            # The log may be stamped by another clock than the one that was asked.
            asked = plan.asked_ms + engine.config.changes[name.partition(".")[0]].delay
            newest.update({position_key(name, p): asked for p in begin})
        manifest = engine.next_manifest(
            generation=generation,
            batch=-1,
            offsets=offsets,
            tables=tables,
            positions=positions,
            newest=newest,
        )
        engine.commit(manifest, {})

    def _begin_offsets(self) -> dict[str, Offsets]:
        engine = self._engine
        offsets: dict[str, Offsets] = {}
        for connection, tables in group_by_connection(self._schemas).items():
            before = engine.manifest.offsets.get(connection, {})
            changelog = open_changelog(engine.config, connection, tables)
            try:
                # What is being read goes on where it is; only new topics begin at their end.
                offsets[connection] = {**changelog.begin(), **before}
            finally:
                changelog.close()
        return offsets

    def _begin_positions(
        self, name: str, offsets: Mapping[str, Offsets], taken: Mapping[str, str]
    ) -> dict[str, str]:
        """By partition, the first position after what was sent before `offsets`.

        Not the database's own position: its transactions commit in another order than they write,
        and what is read from may be another server than the one the connector reads.
        """
        connection, _, table = name.partition(".")
        changelog = open_changelog(self._engine.config, connection, [table])
        try:
            sent = changelog.sent(table, offsets[connection])
        finally:
            changelog.close()
        begin = dict(taken)
        for partition, (*parts, last) in sent.items():
            after = encode_position((*parts, last + 1))
            begin[partition] = max(after, begin.get(partition, ""))
        return begin

    # --- queries ---------------------------------------------------------------------------------

    def _query(self, *, load: bool, once: bool | None = None) -> None:
        """Follow the changes until the end; a machine that is too busy gets more than one try.

        Args:
            load: load tables on the way.
            once: only take what is there; None: as the run does.
        """
        for left in reversed(range(_STARTS)):
            try:
                self._follow(load, self._once if once is None else once)
                break
            except WorkerStartError as error:
                if not left or self._stop.is_set():
                    raise
                self._listener.on_message(f"{error.what}; trying again")
                forget_folders(self._engine.store, self._engine.manifest)

    def _follow(self, load: bool, once: bool) -> None:
        engine = self._engine
        # A load goes on in its own checkpoint, which holds the merge's state; a live query has none
        # and always starts anew from the manifest.
        generation = engine.manifest.generation + (0 if load else 1)
        folder = engine.store.checkpoint(generation)
        self._chunks_read = False
        spec = self._spec(generation, load, once)

        def on_batch(rows: pa.Table, offsets: BatchOffsets, batch: int) -> None:
            if (generation, batch) <= (engine.manifest.generation, engine.manifest.batch):
                return  # published before a crash; Spark replays what it had not noted
            chunks = {name: len(plan.chunks.chunks) for name, plan in self._plans.items()}
            epoch = EpochInput.of(rows, offsets, generation, batch)
            try:
                report = run_epoch(engine, self._upkeep, epoch, chunks)
            except FencedError:
                engine.lease.check()  # who took the store over says more than what stopped it first
                raise
            self._listener.on_epoch(report)
            self._note_halts(report.halted)
            if load:
                self._after_load_epoch(spec, offsets, folder)

        def until() -> bool:
            engine.lease.check()  # also where nothing changes, a runner that was replaced must end
            if load:
                self._explain_a_wait(folder / CHUNKS_READ)
            return self._stop.is_set() or (load and not self._tables("loading"))

        if load:
            loading = [self._loading_table(name) for name in self._plans]
            LoadQuery(engine.spark, spec, folder, loading, on_batch).run(until)
        else:
            LiveQuery(engine.spark, spec, folder, on_batch).run(until)

    def _loading_table(self, name: str) -> LoadingTable:
        delay = self._engine.config.changes[name.partition(".")[0]].delay
        return LoadingTable(name, self._schemas[name], delay, self._plans[name].begin)

    def _spec(self, generation: int, load: bool, once: bool) -> QuerySpec:
        engine = self._engine
        # Views that are not built yet, while tables are loaded, ask for no time.
        kept = [view for view in engine.views.values() if view.name in engine.manifest.views]
        tables = {}
        for name, schema in self._schemas.items():
            mirror = engine.relations[name].mirror
            plan = self._plans[name].chunks if load and name in self._plans else None
            stage = mirror.stage_folder(generation).relative_to(mirror.base.folder)
            tables[name] = TableSpec(name, schema, mirror.base.folder, str(stage), plan)
        return QuerySpec(
            generation=generation,
            config_path=engine.config.path,
            tables=tables,
            start=engine.manifest.offsets,
            watermark=-1 if engine.manifest.watermark is None else engine.manifest.watermark,
            tasks=engine.spark.sparkContext.defaultParallelism,
            once=once,
            pinned_ms=engine.manifest.pinned_ms,
            tick_ms=tick_of(kept, engine.config.engine.tick),
        )

    def _after_load_epoch(self, spec: QuerySpec, offsets: BatchOffsets, folder: Path) -> None:
        handed = spec.chunks[: offsets.chunks]
        for name, plan in self._plans.items():
            total = len(plan.chunks.chunks)
            read = sum(1 for table, _ in handed if table.name == name)
            state = self._engine.manifest.tables[name]
            done = state.phase == "loaded"
            rows = state.rows if done else plan.chunks.rows * read // total
            self._listener.on_load(name, rows, max(rows, plan.chunks.rows), done)
        if offsets.chunks == len(spec.chunks) and not self._chunks_read:
            # Once: a bounded load waits T from here, and epochs may come more often than that.
            (folder / CHUNKS_READ).touch()
            self._chunks_read = True

    def _explain_a_wait(self, chunks_read: Path) -> None:
        """Say now and then why a table whose chunks are all read is not loaded yet."""
        if not chunks_read.exists():
            return
        waited = time.time() - max(chunks_read.stat().st_mtime, self._explained)
        if waited < _EXPLAIN_EVERY_S:
            return
        self._explained = time.time()
        watermark = self._engine.manifest.watermark
        seen = "unknown" if watermark is None else f"{utc_text(watermark)} UTC"
        tables = ", ".join(self._tables("loading"))
        self._listener.on_message(
            f"waiting for {tables}: all chunks are read; they count when the changelog has passed "
            f"their read time plus T. Its watermark is {seen}. It moves by changes and by the "
            "connector's heartbeats: if it stands still, no heartbeat arrives"
        )
