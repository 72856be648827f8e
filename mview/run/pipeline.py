"""`mview run`: from view definitions to published epochs, until stopped.

The manifest decides what happens next: tables that are not loaded are loaded (load query), views
that are not built are built (one batch job), then changes are followed. A restart does the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mview.catalog.definitions import all_definitions, mend_definitions, published_definitions
from mview.catalog.followers import check_followers
from mview.catalog.functions import declared_functions, is_declared, with_functions
from mview.catalog.places import check_store, check_targets
from mview.catalog.sinks import forget_views, sink_options
from mview.catalog.tables import cautions, check_changelogs, describe_tables
from mview.clock import steady_clock, utc_text
from mview.config import Config, secret_values
from mview.epoch.engine import Engine, LiveView, empty_manifest, tick_of
from mview.epoch.halts import halted
from mview.epoch.recover import forget_folders, recover
from mview.epoch.report import EpochReport, Listener, Silence, ViewChange
from mview.epoch.steps import run_epoch
from mview.epoch.upkeep import Upkeep
from mview.epoch.views.build import build_views, unbuilt
from mview.epoch.views.opening import open_sinks, open_views, wrong_texts
from mview.errors import AwayError, MviewError, RetryableError, UserError, several
from mview.execute.queries import limit_memory
from mview.follow.followers import Followers
from mview.ingest.batches import Batch, BatchOffsets
from mview.ingest.changelogs import CHUNKS_READ
from mview.ingest.live import LiveQuery
from mview.ingest.load import LoadQuery
from mview.ingest.load_plan import (
    LoadPlan,
    LoadStart,
    read_plan,
)
from mview.ingest.sources import register_sources
from mview.ingest.spec import QuerySpec, TableSpec
from mview.memory import Memory
from mview.merge.rules import LoadingTable
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.run.begin import begin_tables
from mview.run.lights import keep, lights_of
from mview.run.patience import Patience
from mview.schema import TableSchema
from mview.secrets import Mask
from mview.session.disks import disks_told
from mview.session.jvm import check_jvm, jvm_errors
from mview.session.spark import release_heap, spark_session
from mview.session.spark_errors import WorkerStartError
from mview.store.failure import failure_kept
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import Lease, fenced
from mview.store.manifest import Manifest

__all__ = ["EpochReport", "Listener", "Pipeline", "ViewChange"]


#: Seconds between two looks at the lease where no epoch does it.
_LOOK_S = 0.2


class Pipeline:
    """Keeps the views of one store.

    Args:
        views: views to add or replace; those of the store are kept as well.
    """

    def __init__(
        self, config: Config, views: Sequence[ViewDefinition], *, listener: Listener | None = None
    ) -> None:
        self.config, self.given = config, list(views)
        self._full = [view for view in self.given if view.mode == "full"]
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
        with disks_told(self._places):
            self._run(once)

    def _places(self) -> list[Path]:
        """The folders that are written to."""
        store = Store(self.config.store)
        targets = [sink_options(self.config, store, view)["path"] for view in self._full]
        return [store.root, *map(Path, targets)]

    def _run(self, once: bool) -> None:
        store = Store(self.config.store)
        clock = steady_clock()
        check_store(self.config)
        claim_store(store.root)
        mask = Mask(secret_values(self.config))
        functions = declared_functions(self.config)
        with (
            Lease(store.lease, clock, above=ManifestLog(store.manifests).token()) as lease,
            failure_kept(store, lease.token, clock, mask),
            fenced(lease),
        ):
            newest = ManifestLog(store.manifests).latest() or empty_manifest()
            mend_definitions(store, newest, with_functions(self._full, functions))
            opener = partial(open_sinks, self.config, fence=lease)
            manifest, refused = recover(store, lease, clock, opener, mask)
            left = forget_views(self.config, manifest, lease)
            forget_folders(store, manifest, lease, left.folders)
            for error in left.errors:
                self.listener.on_message(str(error.render()))
            wanted = all_definitions(store, manifest, self._full)
            definitions, refused = with_functions(wanted.views, functions), refused | wanted.damaged
            given = [
                definition
                for definition in definitions
                if definition.name in {v.name for v in self._full}
            ]
            wrong = check_targets(self.config, definitions, manifest)
            if wrong := wrong | check_followers(self.config, given):
                raise several([*wrong.values()], "views are refused")
            known = {name: state.schema for name, state in manifest.source_tables.items()}
            schemas = describe_tables(self.config, definitions, known)
            schemas |= followed(self.config, manifest)
            limit_memory(Memory(self.config.engine.memory).queries)
            lights = lights_of(self.config, store, self.given, manifest)
            if not schemas and not lights:
                raise UserError(
                    "there is nothing to keep fresh: no view, given or in the store, reads a table",
                    where=str(store.root),
                    safe="nothing was changed",
                    hint="name the files of views that read tables: `mview run sql/orders.sql`",
                )
            declared = [*definitions, *(light.definition for light in lights)]
            check_changelogs(self.config, declared)
            for caution in cautions(self.config, declared):
                self.listener.on_message(caution)
            keep(store, lights, lease)
            followers = Followers(
                self.config,
                definitions,
                lease,
                clock,
                mask,
                self.listener.on_message,
                lights=lights,
                once=once,
            )
            if not schemas:
                self._follow_lights(followers, lease, manifest, once)
                return
            self.listener.on_message("starting Spark")
            with jvm_errors():
                spark = spark_session(self.config)
                register_sources(spark)
                engine = Engine(self.config, spark, lease, clock, mask)
                engine.manifest = manifest
                opened = open_views(self.config, spark, definitions, schemas, lease, refused)
                if texts := wrong_texts(definitions, opened.refused, manifest):
                    raise several(texts, "views are refused")
                if opened.refused and not opened.views:
                    raise next(iter(opened.refused.values()))
                columns = {name: view.schema for name, view in opened.views.items()}
                if wrong := check_followers(self.config, given, columns):
                    raise several([*wrong.values()], "views are refused")
                engine.views, engine.refused = opened
                engine.manifest = without_unread(engine)
                try:
                    engine.followers = followers
                    followers.start(engine.manifest)
                    Run(engine, schemas, definitions, self.listener, self._stop, once).go()
                    self._finish(followers, once)
                finally:
                    followers.close()
                    engine.executors.close()

    def _follow_lights(
        self, followers: Followers, lease: Lease, manifest: Manifest, once: bool
    ) -> None:
        """A run of views in light mode alone: nothing is there for Spark to do."""
        try:
            followers.start(manifest)
            while not once and not self._stop.wait(_LOOK_S):
                lease.check()
            self._finish(followers, once)
        finally:
            followers.close()

    def _finish(self, followers: Followers, once: bool) -> None:
        if once and not self._stop.is_set() and (behind := followers.finish()):
            raise behind[0] if len(behind) == 1 else _all_behind(behind)


def without_unread(engine: Engine) -> Manifest:
    """The manifest without the mirrors of views that nobody reads or follows any more.

    They are not kept right from now on: one that is read again is built anew.
    """
    unread = {view.name for view in engine.views.values() if not view.is_read}
    tables = {n: state for n, state in engine.manifest.tables.items() if n not in unread}
    return replace(engine.manifest, tables=tables)


def _all_behind(errors: Sequence[MviewError]) -> MviewError:
    return RetryableError(
        "\n\n".join(str(error.render()) for error in errors),
        safe="the views are published",
    )


def followed(config: Config, manifest: Manifest) -> dict[str, TableSchema]:
    """Loaded tables; they go on without a view that reads them, to be right when one does again.

    Half loaded ones that no view reads, and those whose connection is gone, are left.
    """
    return {
        name: state.schema
        for name, state in manifest.source_tables.items()
        if state.phase == "loaded" and RelationId.of(name).connection in config.changes
    }


#: Starts of a query before it is given up.
_STARTS = 3

#: Seconds between two explanations of a load that waits for the changelog.
_EXPLAIN_EVERY_S = 30


class Run:
    """One run over an open engine.

    Args:
        schemas: of every source table the views read.
        definitions: of all views, in DAG order; `engine.views` are these.
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
        news = self._leave_out_refused()
        begin_tables(engine, self._schemas, self._listener.on_message)
        engine.open_relations()
        generation, token = engine.manifest.generation, engine.lease.token
        self._plans = {
            name: read_plan(engine.store.plan(generation, token, name))
            for name in self._tables("loading")
        }
        if self._plans:
            self._load()
        if self._stop.is_set():
            return
        views = unbuilt(engine)
        if views or news:
            self._build(views)
        if self._plans or views:
            release_heap(engine.spark)  # what that needed, before mirrors come into memory
        self._tell_of_far(self._warm())
        self._query(load=False)
        if self._once:
            self._upkeep.finish()
            self._tell_of_upkeep()
            self._note_halts(self._upkeep.damaged)

    def _warm(self) -> list[str]:
        """Bring mirrors into memory, and build views anew of which a file is damaged.

        Returns:
            Relations that did not fit.

        Raises:
            CorruptionError: a table is damaged.
        """
        engine = self._engine
        left_out = engine.executors.warm(engine.look_up_keys())
        for name, error in engine.executors.damaged.items():
            if not (view := RelationId.of(name).view):
                raise error
            states = engine.manifest.views
            self._listener.on_message(f"view {view} is built anew: {error.render()}")
            states = {**states, view: halted(states[view], error, engine.mask)}
            engine.manifest = replace(engine.manifest, views=states)
        if engine.executors.damaged:
            self._build(unbuilt(engine))
            left_out = engine.executors.warm(engine.look_up_keys())
        return left_out

    def _tell_of_far(self, tables: Sequence[str]) -> None:
        if tables:
            self._listener.on_message(f"looked up on Spark, beyond memory: {', '.join(tables)}")

    def _tell_of_upkeep(self) -> None:
        for text in self._upkeep.news():
            self._listener.on_message(text)

    def _leave_out_refused(self) -> bool:
        """Have refused views stand as halted from the next manifest on; whether any is news."""
        engine = self._engine
        self._note_halts(engine.refused)
        known = engine.manifests.latest()
        states = dict(engine.manifest.views)
        for name, error in engine.refused.items():
            if name in states:
                states[name] = halted(states[name], error, engine.mask)
        engine.manifest = replace(engine.manifest, views=states)
        return known is None or any(
            name not in known.views or not known.views[name].stale for name in engine.refused
        )

    def _build(self, views: Sequence[LiveView]) -> None:
        """Build views; what fails on the data is tried again with the changes that are there."""
        engine = self._engine
        failed = self._built(views)
        if failed and not self._stop.is_set():
            names = ", ".join(failed)
            self._listener.on_message(f"{names}: not built yet; taking the changes first")
            engine.executors.warm(engine.look_up_keys())
            self._query(load=False, once=True)
            # With those that read them: they may have been built over rows that go.
            again = {view.name for view in unbuilt(engine)}
            failed = self._built([view for view in views if view.name in again])
        self._note_halts(failed)
        if failed and all(state.stale for state in engine.manifest.views.values()):
            raise next(iter(failed.values()))

    def _built(self, views: Sequence[LiveView]) -> dict[str, MviewError]:
        """Build views once; returns those that failed."""
        names = ", ".join(view.name for view in views)
        self._listener.on_message(f"building {names} from the mirrors")
        self._upkeep.finish()
        self._tell_of_upkeep()
        self._upkeep.close()  # a mirror that begins anew must not be compacted meanwhile
        self._upkeep = Upkeep(self._engine)
        failed = build_views(self._engine, views, self._definitions)
        self._announce_builds([view for view in views if view.name not in failed])
        return failed

    def _load(self) -> None:
        """Load tables while the published views go on as they are; new ones come afterwards."""
        engine = self._engine
        for name, plan in self._plans.items():
            self._listener.on_load(name, 0, plan.chunks.rows, False)
        published = [
            view
            for view in published_definitions(engine.store, engine.manifest)
            if is_declared(engine.config, view)
        ]
        if published:
            tables = engine.manifest.tables
            self._open_views(published, {v.name for v in published if v.name in tables})
        self._query(load=True)
        if published:
            self._open_views(self._definitions)

    def _open_views(
        self, definitions: Sequence[ViewDefinition], mirrored: Collection[str] | None = None
    ) -> None:
        engine = self._engine
        # What a sink has staged is safe from its own cleaning only, and these get new ones.
        self._upkeep.settle()
        engine.views, refused = open_views(
            engine.config,
            engine.spark,
            definitions,
            self._schemas,
            engine.lease,
            engine.refused,
            mirrored,
        )
        engine.refused = refused

    def _tables(self, phase: str) -> list[str]:
        tables = self._engine.manifest.source_tables
        return [name for name, state in tables.items() if state.phase == phase]

    def _note_halts(self, halted: Mapping[str, MviewError]) -> None:
        for name, error in halted.items():
            self._halted[name] = error
            told = self._engine.mask(error.render())
            self._listener.on_message(f"view {name} halts, alone: {told}")

    def _announce_builds(self, views: Sequence[LiveView]) -> None:
        manifest = self._engine.manifest
        changes = {}
        for view in views:
            state = manifest.views[view.name]
            changes[view.name] = ViewChange(state.rows, 0, 0, state.rows, state.strategy, "spark")
        self._listener.on_epoch(
            EpochReport(manifest.epoch, 0, None, {}, changes, manifest.watermark)
        )

    # --- queries ---------------------------------------------------------------------------------

    def _query(self, *, load: bool, once: bool | None = None) -> None:
        """Follow the changes until the end; what passes gets more than one try.

        Args:
            load: load tables on the way.
            once: only take what is there; None: as the run does.
        """
        starts, epoch = 1, self._engine.manifest.epoch
        patience = Patience(self._stop, self._listener.on_message)
        while True:
            try:
                self._follow(load, self._once if once is None else once)
                return
            except WorkerStartError as error:
                if starts == _STARTS or self._stop.is_set():
                    raise
                starts += 1
                self._listener.on_message(f"{error.what}; trying again")
                self._upkeep.take_back()
            except AwayError as error:
                self._upkeep.take_back()
                if self._engine.manifest.epoch > epoch:
                    epoch = self._engine.manifest.epoch
                    patience.renew()
                patience.wait(error)
                if self._stop.is_set():
                    return

    def _follow(self, load: bool, once: bool) -> None:
        engine = self._engine
        # A load goes on in its own checkpoint, which holds the merge's state; a live query has none
        # and always starts anew from the manifest.
        generation = engine.manifest.generation + (0 if load else 1)
        folder = engine.store.checkpoint(generation, engine.lease.token)
        self._chunks_read = False
        spec = self._spec(generation, load, once)

        def on_batch(batch: Batch) -> None:
            if (generation, batch.number) <= (engine.manifest.generation, engine.manifest.batch):
                return  # published before a crash; Spark replays what it had not noted
            chunks = {name: len(plan.chunks.chunks) for name, plan in self._plans.items()}
            report = run_epoch(engine, self._upkeep, batch, chunks)
            self._listener.on_epoch(report)
            self._tell_of_upkeep()
            self._tell_of_far(engine.executors.news())
            self._note_halts(report.halted)
            if report.halted and all(state.stale for state in engine.manifest.views.values()):
                raise next(iter(report.halted.values()))
            if load:
                self._after_load_epoch(spec, batch.offsets, folder)

        def until() -> bool:
            check_jvm()
            engine.lease.check()  # also where nothing changes, a runner that was replaced must end
            if load:
                self._explain_a_wait(folder / CHUNKS_READ)
            return self._stop.is_set() or (load and not self._tables("loading"))

        if load:
            loading = [self._loading_table(name) for name in self._plans]
            LoadQuery(engine.spark, spec, folder, loading, on_batch).run(until)
        else:
            LiveQuery(engine.spark, spec, folder, on_batch, engine.most_changes).run(until)

    def _loading_table(self, name: str) -> LoadingTable:
        delay = self._engine.config.changes[RelationId.of(name).connection].delay
        return LoadingTable(name, self._schemas[name], delay, self._plans[name].begin)

    def _spec(self, generation: int, load: bool, once: bool) -> QuerySpec:
        engine = self._engine
        # Views that are not built yet, while tables are loaded, ask for no time.
        kept = [view for view in engine.views.values() if view.name in engine.manifest.views]
        tables = {}
        for name, schema in self._schemas.items():
            mirror = engine.relations[name].mirror
            plan = self._plans.get(name) if load else None
            stage = mirror.stage_folder(generation).relative_to(mirror.base.folder)
            tables[name] = TableSpec(
                name,
                schema,
                mirror.base.folder,
                str(stage),
                None if plan is None else plan.chunks,
                {} if plan is None else plan.since,
            )
        start = LoadStart.at(engine.manifest)
        if load:
            start = next(plan.start for plan in self._plans.values())
        return QuerySpec(
            generation=generation,
            config=engine.config,
            tables=tables,
            start=dict(start.offsets),
            watermark=start.watermark,
            tasks=engine.spark.sparkContext.defaultParallelism,
            once=once,
            pinned_ms=start.pinned_ms,
            tick_ms=tick_of(kept, engine.config.engine.tick),
        )

    def _after_load_epoch(self, spec: QuerySpec, offsets: BatchOffsets, folder: Path) -> None:
        for name, plan in self._plans.items():
            total = len(plan.chunks.chunks)
            read = offsets.chunks.get(name, 0)
            state = self._engine.manifest.tables[name]
            done = state.phase == "loaded"
            rows = state.rows if done else plan.chunks.rows * read // total
            self._listener.on_load(name, rows, max(rows, plan.chunks.rows), done)
        if not self._chunks_read and not spec.chunks_after(offsets.chunks):
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
