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
from typing import Protocol

from mview.catalog.definitions import (
    all_definitions,
    digest_of,
    mend_definitions,
    published_definitions,
    with_tried,
)
from mview.catalog.environments import keep_given, unpublished, with_those_read
from mview.catalog.followers import check_followers
from mview.catalog.functions import declared_functions, is_declared, with_functions
from mview.catalog.places import check_store, check_targets
from mview.catalog.sinks import forget_views, sink_options
from mview.clock import SystemClock, steady_clock, utc_text
from mview.config import Config, secret_values
from mview.connector import TableHalt
from mview.epoch.engine import Engine, LiveView, empty_manifest, tick_of
from mview.epoch.halts import halted
from mview.epoch.recover import forget_folders, recover
from mview.epoch.report import EpochReport, Listener, LoadReport, Silence, ViewChange
from mview.epoch.steps import run_epoch
from mview.epoch.upkeep import Upkeep
from mview.epoch.views.beside import Building
from mview.epoch.views.build import build_views, unbuilt, why_unbuilt
from mview.epoch.views.opening import open_sinks, open_views, wrong_texts
from mview.errors import AwayError, MviewError, RetryableError, UserError, several
from mview.execute.executors import far
from mview.execute.queries import limit_memory
from mview.follow.followers import Followers
from mview.ingest.batches import Batch, BatchOffsets
from mview.ingest.changelogs import CHUNKS_READ
from mview.ingest.load import LoadQuery
from mview.ingest.load_plan import (
    LoadPlan,
    LoadStart,
    read_plan,
)
from mview.ingest.mending.rereads import RereadLog, ask_anew, without_snapshots
from mview.ingest.pace import held
from mview.ingest.sources import register_sources
from mview.ingest.spec import QuerySpec, TableSpec
from mview.memory import Memory
from mview.merge.rules import LoadingTable
from mview.plan.definition import ViewDefinition, order_views
from mview.relation import RelationId
from mview.run.applying import (
    Applying,
    KeptViews,
    refuse_requests,
)
from mview.run.begin import Refused, begin_anew
from mview.run.feed import Feed, SourceFeed
from mview.run.lights import keep, lights_of
from mview.run.patience import Patience
from mview.run.production import Production
from mview.run.tables import RunTables, go_on, loaded_schemas, with_column_told
from mview.schema import TableSchema
from mview.secrets import Mask
from mview.session.disks import disks_told
from mview.session.jvm import check_jvm, jvm_errors
from mview.session.lazy import Spark
from mview.session.spark import release_heap, release_workers
from mview.session.spark_errors import SparkWorkerError
from mview.store.away import read_away, write_away
from mview.store.failure import failure_kept
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import Lease, fenced
from mview.store.manifest import Cut, Manifest, read_until
from mview.store.requests.applies import ApplyLog
from mview.store.requests.asked import keep_asked
from mview.store.requests.paused import paused_tables

__all__ = ["EpochReport", "Listener", "Pipeline", "ViewChange"]


#: Seconds between two looks at the lease where no epoch does it.
_LOOK_S = 0.2


class Pipeline:
    """Keeps the views of one store, of production or of an environment.

    Args:
        config: see `mview.catalog.environments.in_environment` for that of an environment.
        views: views to add or replace; those of the store are kept as well.
        files: what they were read from, absolute: `mview apply` reads it again.
    """

    def __init__(
        self,
        config: Config,
        views: Sequence[ViewDefinition],
        *,
        listener: Listener | None = None,
        files: Sequence[str] = (),
    ) -> None:
        self.config, self.given, self._files = config, list(views), files
        self._full = [view for view in self.given if view.mode == "full"]
        self.listener: Listener = listener or Silence()
        self._stop = threading.Event()
        self._feed: Feed = Production(config) if config.environment else SourceFeed(config)

    def stop(self) -> None:
        """Finish the running epoch and return from `run`; may be called from any thread."""
        self._stop.set()

    def _places(self) -> list[Path]:
        """The folders that are written to."""
        store = Store(self.config.store)
        targets = [sink_options(self.config, store, view)["path"] for view in self._full]
        return [store.root, *map(Path, targets)]

    def run(self, *, once: bool) -> None:
        """Load what is not loaded, build what is not built, then follow the changes.

        Args:
            once: take what is there, publish it and return; otherwise until `stop`.

        Raises:
            MviewError: with what failed, where, and whether the data is safe.
        """
        store = Store(self.config.store)
        clock = steady_clock()
        check_store(self.config)
        claim_store(store.root)
        mask = Mask(secret_values(self.config))
        functions = declared_functions(self.config)
        with (
            Lease(store.lease, clock, above=ManifestLog(store.manifests).token()) as lease,
            failure_kept(store, lease.token, clock, mask),
            disks_told(self._places),
            fenced(lease),
        ):
            write_away(store, lease.token, {})  # what was away to a run before is asked anew
            newest = ManifestLog(store.manifests).latest() or empty_manifest()
            if self.config.environment:
                self._take_given(store, newest)
            mend_definitions(store, newest, with_functions(self._full, functions))
            opener = partial(open_sinks, self.config, fence=lease)
            manifest, refused = recover(store, lease, clock, opener, mask)
            unworkable = dict(refused)
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
            schemas, anew, waiting = self._tables_of(definitions, manifest)
            refused |= waiting
            limit_memory(Memory(self.config.engine.memory).queries)
            lights = lights_of(self.config, store, self.given, manifest)
            if not schemas and not lights and waiting:
                raise next(iter(waiting.values()))
            if not schemas and not lights:
                raise UserError(
                    "there is nothing to keep fresh: no view, given or in the store, reads a table",
                    where=str(store.root),
                    safe="nothing was changed",
                    hint="name the files of views that read tables: `mview run sql/orders.sql`",
                )
            declared = [*definitions, *(light.definition for light in lights)]
            sound = [view for view in declared if view.name not in waiting]
            self._feed.check(sound, schemas, go_on(manifest, anew))
            keep_asked(store, [definition.name for definition in definitions], self._files)
            for caution in self._feed.cautions(sound, schemas):
                self.listener.on_message(caution)
            keep(self.config, store, lights, manifest, lease, self.listener.on_message)

            def follow(definitions: Sequence[ViewDefinition]) -> Followers:
                say = self.listener.on_message
                return Followers(
                    self.config, definitions, lease, clock, mask, say, lights=lights, once=once
                )

            followers = follow(definitions)
            if not schemas:
                self._follow_lights(followers, lease, manifest, once)
                return
            with jvm_errors():
                spark = Spark.of_config(self.config, self.listener.on_message)
                spark.once_started(register_sources)
                engine = Engine(self.config, spark, lease, clock, mask)
                engine.manifest = manifest
                opened = open_views(self.config, spark, definitions, schemas, lease, refused)
                told = with_column_told(
                    definitions, opened.refused, manifest, loaded_schemas(manifest), schemas
                )
                opened = opened._replace(refused=told)
                if anew and opened.refused:
                    # For a view that is refused no table is loaded anew.
                    kept = [view.definition for view in opened.views.values()]
                    schemas, anew, _ = self._tables_of(kept, manifest)
                    opened = open_views(
                        self.config, spark, definitions, schemas, lease, opened.refused
                    )
                if texts := wrong_texts(definitions, opened.refused, manifest):
                    raise several(texts, "views are refused")
                if opened.refused and not opened.views:
                    raise next(iter(opened.refused.values()))
                columns = {name: view.schema for name, view in opened.views.items()}
                if wrong := check_followers(self.config, given, columns):
                    raise several([*wrong.values()], "views are refused")
                engine.views, engine.refused = opened
                if anew:
                    begin_anew(engine, anew, left.folders, self.listener.on_message)
                applying = Applying(
                    engine,
                    KeptViews(definitions, schemas, followers),
                    follow,
                    lights,
                    unworkable,
                    self._files,
                    self.listener.on_message,
                    self._feed,
                    once,
                )
                try:
                    engine.followers = followers
                    followers.start(engine.manifest)
                    self._go_on(engine, applying, once)
                    self._finish(applying.kept.followers, once)
                finally:
                    applying.close()
                    applying.kept.followers.close()
                    engine.executors.close()
                    spark.settle()

    def _take_given(self, store: Store, newest: Manifest) -> None:
        """Keep what an environment is given, and give its run the same without sinks."""
        given = with_those_read(self.config, self.given, newest.views)
        keep_given(store, given)
        self.given = self._full = [unpublished(view) for view in given]

    def _go_on(self, engine: Engine, applying: Applying, once: bool) -> None:
        """Load, build, follow; again with other views, whenever it is asked for."""
        try:
            while True:
                kept = applying.kept
                run = Run(
                    engine,
                    kept.schemas,
                    kept.definitions,
                    self.listener,
                    self._stop,
                    once,
                    self._feed,
                    applying,
                )
                run.go()
                if not run.is_interrupted or self._stop.is_set():
                    return
                if run.refused is not None:
                    applying.leave_out(run.refused)
                elif run.lost:
                    applying.renew(run.lost)
                else:
                    applying.take()
        except BaseException as error:
            applying.failed(error)
            raise

    def _tables_of(self, definitions: Sequence[ViewDefinition], manifest: Manifest) -> RunTables:
        """What is read of each table: as it was loaded, but for those that are loaded anew."""
        return self._feed.tables_of(definitions, manifest)

    def _follow_lights(
        self, followers: Followers, lease: Lease, manifest: Manifest, once: bool
    ) -> None:
        """A run of views in light mode alone: nothing is there for Spark to do."""
        try:
            followers.start(manifest)
            log = ApplyLog(Store(self.config.store).applies)
            while not once and not self._stop.wait(_LOOK_S):
                lease.check()
                refuse_requests(log)
            self._finish(followers, once)
        finally:
            followers.close()

    def _finish(self, followers: Followers, once: bool) -> None:
        if not once or self._stop.is_set():
            return
        if (behind := followers.finish(self._stop)) and not self._stop.is_set():
            raise behind[0] if len(behind) == 1 else _all_behind(behind)


def _all_behind(errors: Sequence[MviewError]) -> MviewError:
    return RetryableError(
        "\n\n".join(str(error.render()) for error in errors),
        safe="the views are published",
    )


#: Starts of a query without an epoch between before it is given up.
_STARTS = 3

#: Seconds between two explanations of a load that waits for the changelog.
_EXPLAIN_EVERY_S = 30


class _ColdDamageError(Exception):
    """A file that was to come into memory with the first change is damaged."""


class Requests(Protocol):
    """What others ask of a run."""

    @property
    def is_asked(self) -> bool:
        """Whether something is."""
        ...

    def live(self, *, all_built: bool = True) -> None:
        """What could be built is built, and changes are followed from now on.

        Args:
            all_built: False: some views are being built, or wait for tables that are loaded.
        """
        ...


class NoRequests:
    """Nobody asks for anything."""

    @property
    def is_asked(self) -> bool:
        """Nothing is."""
        return False

    def live(self, *, all_built: bool = True) -> None:
        """Nobody is told."""


class Run:
    """One run over an open engine, until its end or a request.

    Args:
        schemas: of every source table the views read.
        definitions: of all views, in DAG order; `engine.views` are these.
        stop: set when the run shall end after the running epoch.
        once: take what is there and return.
        feed: brings the tables and their changes.
        requests: what others ask for ends it, and is told when all is live; None: nobody asks.
    """

    def __init__(
        self,
        engine: Engine,
        schemas: Mapping[RelationId, TableSchema],
        definitions: Sequence[ViewDefinition],
        listener: Listener,
        stop: threading.Event,
        once: bool,
        feed: Feed,
        requests: Requests | None = None,
    ) -> None:
        self._engine, self._schemas, self._definitions = engine, schemas, definitions
        self._listener, self._stop, self._once = listener, stop, once
        self._feed = feed
        self._requests = requests or NoRequests()
        #: Whether it has ended between two epochs, for a request or as tables have halted.
        self.is_interrupted = False
        #: The tables that have halted in it, and why.
        self.lost: dict[RelationId, TableHalt] = {}
        #: The tables that a source did not let be loaded: nothing has begun then.
        self.refused: Refused | None = None
        self._plans: dict[RelationId, LoadPlan] = {}
        self._upkeep = Upkeep(engine)
        #: When it was said last why a load waits, or first seen that it does, monotonic.
        self._explained: float | None = None
        self._chunks_read = self._watches = False
        self._handed: Mapping[RelationId, int] = {}
        self._held: dict[RelationId, str] = {}
        self._away = read_away(engine.store, engine.lease.token)
        self._halted: dict[str, MviewError] = {}
        self._building: Building | None = None
        #: Held by who runs an epoch, or changes what is kept between two.
        self._epoch = threading.Lock()
        #: The query is to begin anew: views look at the time more often, or less.
        self._renews = False
        #: Mirrors come into memory with the first change.
        self._is_cold = False

    def go(self) -> None:
        """Load, build, follow.

        Raises:
            MviewError: what ended the run, or, after all, why a view has halted meanwhile.
        """
        try:
            self._go()
            if self.is_interrupted and self.refused is None:
                self._upkeep.finish()  # what is compacted must be published, or begin anew
                self._tell_of_upkeep()
        finally:
            if self._building is not None:
                self._building.close()
                # The next run begins that build anew: former texts are not what is asked for.
                self._engine.views = dict(self._building.kept)
            self._upkeep.close()
        if self.is_interrupted and not self._stop.is_set():
            return  # what has halted is built anew, as a start does, or halts once more
        for error in self._halted.values():
            raise error

    def _go(self) -> None:
        engine = self._engine
        news = self._leave_out_refused()
        self.refused = self._feed.begin(engine, self._schemas, self._listener.on_message)
        if self.refused is not None:
            self.is_interrupted = True
            return
        engine.open_relations()
        generation, token = engine.manifest.generation, engine.lease.token
        self._plans = {
            name: read_plan(engine.store.plan(generation, token, name))
            for name in self._tables("loading")
        }
        if self._plans:
            self._load()
            if engine.spark.is_ours:
                release_workers(engine.spark.session())  # what builds has no use for them
        if self._stop.is_set() or self.is_interrupted:
            return
        views, kept = unbuilt(engine), engine.views
        beside = views if self._goes_on_beside() else []
        if beside:
            self._keep_former({view.name for view in beside})
            if news:
                self._build([])
        else:
            if views or news:
                self._build(views)
            self._forget_unread()
        if (session := engine.spark.running) and (self._plans or (views and not beside)):
            # What that needed, before mirrors come into memory.
            release_heap(session)
        elif not self._once and any(v.plan.evaluation == "full" for v in engine.views.values()):
            engine.spark.begin()  # an epoch will wait for it: beside the mirrors it is there sooner
        # A bounded run that finds no change looks nothing up.
        self._is_cold = self._once
        if not self._is_cold:
            self._tell_of_far(self._warm())
        if beside:
            self._build_beside(beside, kept)
        self._requests.live(all_built=not beside)
        self._query(load=False)
        if self._once and not self.is_interrupted:
            self._upkeep.finish()
            self._tell_of_upkeep()
            self._note_halts(self._upkeep.damaged)

    def _warm(self) -> list[RelationId]:
        """Bring mirrors into memory, and build views anew of which a file is damaged.

        Returns:
            Relations that did not fit.

        Raises:
            CorruptionError: a table is damaged.
        """
        engine = self._engine
        self._is_cold = False
        left_out = engine.executors.warm(engine.look_up_keys())
        for name, error in engine.executors.damaged.items():
            if not (view := name.view):
                raise error
            states = engine.manifest.views
            self._listener.on_message(f"view {view} is built anew: {error.render()}")
            states = {**states, view: halted(states[view], error, engine.mask)}
            engine.manifest = replace(engine.manifest, views=states)
        if engine.executors.damaged:
            self._build(unbuilt(engine))
            left_out = engine.executors.warm(engine.look_up_keys())
        return left_out

    def _warm_for(self, batch: Batch) -> None:
        """Bring mirrors into memory before the first epoch of a bounded run that looks rows up.

        Raises:
            _ColdDamageError: a file is damaged: views are built anew between two queries, and the
                batch is read again.
        """
        engine = self._engine
        brings = batch.changes or batch.deltas or batch.rereads or batch.mends
        if self._is_cold and (brings or self._tick_ms):
            self._is_cold = False
            left_out = engine.executors.warm(engine.look_up_keys())
            if engine.executors.damaged:
                raise _ColdDamageError
            self._tell_of_far(left_out)

    def _tell_of_far(self, tables: Sequence[RelationId]) -> None:
        if tables:
            self._listener.on_message(far(tables))

    def _tell_of_upkeep(self) -> None:
        for text in self._upkeep.news():
            self._listener.on_message(text)

    def _leave_out_refused(self) -> bool:
        """Have refused views stand as halted from the next manifest on; whether any is news."""
        engine = self._engine
        self._note_halts(engine.refused)
        known = engine.manifests.latest()
        states = dict(engine.manifest.views)
        wanted = {definition.name: definition for definition in self._definitions}
        for name, error in engine.refused.items():
            if name not in states:
                continue
            if name in wanted:  # else its own definition is damaged
                states[name] = with_tried(states[name], wanted[name])
            states[name] = halted(states[name], error, engine.mask)
        engine.manifest = replace(engine.manifest, views=states)
        return known is None or any(
            name not in known.views or known.views[name] != states[name] for name in engine.refused
        )

    def _build(self, views: Sequence[LiveView]) -> None:
        """Build views; what fails on the data is tried again with the changes that are there."""
        engine = self._engine
        failed = self._built(views)
        if failed and not self._stop.is_set() and self._follows:
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

    # --- views that are built beside the epochs of others ----------------------------------------

    def _goes_on_beside(self) -> bool:
        """Whether there are epochs that must not wait for a build."""
        states = self._engine.manifest.views.values()
        return not self._once and self._follows and any(not state.stale for state in states)

    def _keep_former(self, anew: Collection[str]) -> None:
        """Keep the published views as they are, by the texts that they have.

        Args:
            anew: views that are to be built.
        """
        engine, manifest = self._engine, self._engine.manifest
        former = [
            view
            for view in published_definitions(engine.store, manifest)
            if is_declared(engine.config, view)
        ]
        mirrored = {view.name for view in former if view.relation in manifest.tables}
        opened = open_views(
            engine.config,
            engine.spark,
            former,
            self._schemas,
            engine.lease,
            mirrored=mirrored,
        )
        # One that goes on may be read by a former text only: its rows are kept as long as that is.
        engine.views = {
            name: view if name in anew else replace(engine.views[name], is_read=view.is_read)
            for name, view in opened.views.items()
        }
        states = dict(manifest.views)
        for name, state in states.items():
            if not state.stale and name not in engine.views:
                error = opened.refused.get(name) or UserError(
                    f"view {name} cannot be kept by its former text while it is built anew",
                    safe="it has the rows of its last good epoch until then",
                )
                states[name] = halted(state, error, engine.mask)
                self._listener.on_message(str(error.render()))
        engine.manifest = replace(manifest, views=states)

    def _build_beside(self, views: Sequence[LiveView], kept: Mapping[str, LiveView]) -> None:
        """Begin to build views while the epochs of all others go on.

        Args:
            kept: all views that are kept when they are there.
        """
        why = why_unbuilt(self._engine, kept.values())
        names = ", ".join(f"{view.name} ({why.get(view.name, 'new')})" for view in views)
        self._listener.on_message(f"building beside the epochs: {names}")
        self._building = Building(
            self._engine, views, kept, self._definitions, self._listener.on_build
        )
        self._building.begin()

    def _swap(self) -> None:
        """Show what was built beside, if it is there; called between two epochs."""
        engine, building = self._engine, self._building
        if building is None or not building.is_close:
            return
        self._building = None
        before = {name: state.strategy for name, state in engine.manifest.views.items()}
        tick, relations = self._tick_ms, building.relations
        self._upkeep.leave(relations)
        failed = building.swap()
        built = [view for name, view in building.views.items() if name not in failed]
        self._announce_builds(built, before)
        self._note_halts(failed)
        if failed and all(state.stale for state in engine.manifest.views.values()):
            raise next(iter(failed.values()))
        self._tell_of_far(engine.executors.warm(engine.look_up_keys(), relations))
        self._renews = self._tick_ms != tick
        self._requests.live()

    def _forget_unread(self) -> None:
        """Leave the mirrors of views that nobody reads or follows any more.

        They are not kept right from now on: one that is read again is built anew.
        """
        engine = self._engine
        unread = {view.definition.relation for view in engine.views.values() if not view.is_read}
        tables = {n: state for n, state in engine.manifest.tables.items() if n not in unread}
        engine.manifest = replace(engine.manifest, tables=tables)
        engine.reopen(())

    # --- views that are built while nothing else goes on -----------------------------------------

    def _built(self, views: Sequence[LiveView], *, in_load: bool = False) -> dict[str, MviewError]:
        """Build views once; returns those that failed."""
        why = why_unbuilt(self._engine, self._engine.views.values())
        if views:
            names = ", ".join(f"{view.name} ({why.get(view.name, 'new')})" for view in views)
            self._listener.on_message(f"building from the mirrors: {names}")
        before = {name: state.strategy for name, state in self._engine.manifest.views.items()}
        self._upkeep.finish()
        self._tell_of_upkeep()
        self._upkeep.close()  # a mirror that begins anew must not be compacted meanwhile
        self._upkeep = Upkeep(self._engine)
        failed = build_views(
            self._engine, views, self._definitions, in_load=in_load, tell=self._listener.on_build
        )
        self._announce_builds([view for view in views if view.name not in failed], before)
        return failed

    def _load(self) -> None:
        """Load tables while the published views go on as they are.

        New views are built as soon as the tables are loaded that they read, all others afterwards.
        """
        engine = self._engine
        for name, plan in self._plans.items():
            self._listener.on_load(LoadReport(str(name), 0, 0, plan.chunks.rows, False))
        opened = False
        while True:
            published = [
                view
                for view in published_definitions(engine.store, engine.manifest)
                if is_declared(engine.config, view)
            ]
            ready = self._ready()
            if published or ready:
                opened = True
                tables, read = engine.manifest.tables, self._mirrored()
                mirrored = {view.name for view in published if view.relation in tables}
                mirrored |= {view.name for view in ready if view.name in read}
                self._open_views(order_views([*published, *ready]), mirrored)
            if views := [engine.views[v.name] for v in ready if v.name in engine.views]:
                if failed := self._built(views, in_load=True):
                    names = ", ".join(failed)
                    self._listener.on_message(f"{names}: built again when all tables are loaded")
                self._requests.live(all_built=False)
            self._query(load=True)
            if self._stop.is_set() or self.is_interrupted or not self._tables("loading"):
                break
        if opened:
            self._open_views(self._definitions)

    def _mirrored(self) -> set[str]:
        """The views of which a mirror is kept: others read them, or sinks follow them."""
        read = {name for view in self._definitions for name in view.read_views}
        return read | {view.name for view in self._definitions if view.sinks}

    def _ready(self) -> list[ViewDefinition]:
        """New views that can be built while tables are loaded which they do not read, in DAG order.

        What they read of other views must be there, too, as it is to be.
        """
        engine, manifest = self._engine, self._engine.manifest
        tables = manifest.source_tables.items()
        there = {n for n, s in tables if s.phase == "loaded" and not s.halted}
        ready = []
        for view in self._definitions:
            state = manifest.views.get(view.name)
            if state is not None:
                is_right = not state.stale and state.definition == digest_of(view)
                if is_right and view.relation in manifest.tables:
                    there.add(view.relation)
            elif view.name not in engine.refused and there.issuperset(view.table_names):
                ready.append(view)
                there.add(view.relation)
        return ready

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

    def _tables(self, phase: str) -> list[RelationId]:
        """The tables of a phase that have not halted."""
        tables = self._engine.manifest.source_tables
        return [n for n, state in tables.items() if state.phase == phase and not state.halted]

    @property
    def _follows(self) -> bool:
        """Whether there is a table whose changes can be taken: all may have halted."""
        return any(not self._engine.manifest.tables[name].halted for name in self._schemas)

    def _note_halts(self, halted: Mapping[str, MviewError]) -> None:
        for name, error in halted.items():
            self._halted[name] = error
            self._listener.on_halt(name, error)

    def _announce_builds(self, views: Sequence[LiveView], before: Mapping[str, str]) -> None:
        """Tell of views that were built.

        Args:
            before: the strategies that views had, by name.
        """
        manifest = self._engine.manifest
        changes = {}
        for view in views:
            state = manifest.views[view.name]
            # A view that halted before it had any rows was kept by none.
            if (was := before.get(view.name, "")) not in ("", state.strategy):
                self._listener.on_message(
                    f"view {view.name} is kept by {state.strategy} from now on, "
                    f"before by {was}; why: mview explain"
                )
            ran = str(state.facts["executor"])
            changes[view.name] = ViewChange(state.rows, 0, 0, state.rows, state.strategy, ran)
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
        if not self._follows:
            return
        self._watches = once is None
        starts, epoch = 1, self._engine.manifest.epoch
        patience = Patience(self._stop, self._listener.on_message)
        while not self._stop.is_set() and not self._is_asked():
            try:
                self._follow(load, self._once if once is None else once)
                if self._feed.begins_anew:
                    self.is_interrupted = True
                if not self._renews or self.is_interrupted:
                    return
                self._renews = False
            except _ColdDamageError:
                self._tell_of_far(self._warm())
            except (SparkWorkerError, AwayError) as error:
                self._upkeep.take_back()
                # What fails again and again is given up, not what fails now and then for months.
                if self._engine.manifest.epoch > epoch:
                    starts, epoch = 1, self._engine.manifest.epoch
                    patience.renew()
                if isinstance(error, AwayError):
                    patience.wait(error)
                elif starts == _STARTS or self._stop.is_set():
                    raise
                else:
                    starts += 1
                    self._listener.on_message(f"{error.what}; trying again")

    def _is_asked(self) -> bool:
        """Whether to end for a request; what only takes the changes on the way goes on."""
        if self._watches and (self.lost or self._requests.is_asked):
            self.is_interrupted = True
        return self.is_interrupted

    def _follow(self, load: bool, once: bool) -> None:
        engine = self._engine
        # A load goes on in its own checkpoint, which holds the merge's state; a live query has none
        # and always starts anew from the manifest.
        generation = engine.manifest.generation + (0 if load else 1)
        folder = engine.store.checkpoint(generation, engine.lease.token)
        self._chunks_read, self._explained = False, None
        spec = self._spec(generation, load, once)

        def on_batch(batch: Batch) -> None:
            with self._epoch:
                self._swap()
                self._warm_for(batch)
                in_turn(batch)

        def in_turn(batch: Batch) -> None:
            if (generation, batch.number) <= (engine.manifest.generation, engine.manifest.batch):
                return  # published before a crash; Spark replays what it had not noted
            if load:
                changes, anew = without_snapshots(batch.changes)
                ask_anew(RereadLog(engine.store.rereads), anew, self._listener.on_message)
                batch = replace(batch, changes=changes)
            chunks = {name: len(plan.chunks.chunks) for name, plan in self._plans.items()}
            before = engine.manifest.cuts
            report = run_epoch(engine, self._upkeep, batch, chunks)
            self._listener.on_epoch(report)
            for text in report.quarantine:
                self._listener.on_message(text)
            self._tell_of_parts(before)
            self._tell_of_upkeep()
            for text in engine.executors.news():
                self._listener.on_message(text)
            self._note_halts(report.halted)
            for name, halt in report.tables.items():
                self._listener.on_message(f"table {name} halts: {halt.what}")
            self.lost |= report.tables
            if (
                report.halted
                and not self.lost
                and all(state.stale for state in engine.manifest.views.values())
            ):
                raise next(iter(report.halted.values()))
            if load:
                self._after_load_epoch(spec, batch.offsets, folder)

        begun = len(self._tables("loading")) if load else 0

        def until() -> bool:
            check_jvm()
            engine.lease.check()  # also where nothing changes, a runner that was replaced must end
            if self._epoch.acquire(blocking=False):
                try:
                    self._swap()
                finally:
                    self._epoch.release()
            self._tell_of_away()
            if load:
                self._tell_of_held()
                self._explain_a_wait(folder / CHUNKS_READ)
            loading = len(self._tables("loading")) if load else 0
            done = self._stop.is_set() or self._renews or (load and not loading)
            return done or self._is_asked() or (loading < begun and bool(self._ready()))

        if load:
            loading = [self._loading_table(name) for name in self._plans]
            LoadQuery(engine.spark.session(), spec, folder, loading, on_batch).run(until)
        else:
            say = self._listener.on_message
            live = self._feed.live(engine, spec, folder, on_batch, say)
            live.run(until)

    def _tell_of_parts(self, before: Mapping[str, Cut]) -> None:
        """Say where the newest epoch is the first that ends inside of a transaction."""
        for name, cut in self._engine.manifest.cuts.items():
            if cut.whole is False and (name not in before or before[name].whole is not False):
                self._listener.on_message(
                    f"{name}: a transaction is larger than there is room for: it is published in "
                    "parts. More engine.memory makes room for more rows of one"
                )

    def _loading_table(self, name: RelationId) -> LoadingTable:
        delay = self._engine.config.changes[name.connection].delay
        return LoadingTable(name, self._schemas[name], delay, self._plans[name].begin)

    def _spec(self, generation: int, load: bool, once: bool) -> QuerySpec:
        engine = self._engine
        tables = {}
        for name, schema in self._schemas.items():
            if engine.manifest.tables[name].halted:
                continue  # its changes are passed over
            mirror = engine.relations[name].mirror
            plan = self._plans.get(name) if load else None
            to = mirror.reread_folder() if plan is None else mirror.stage_folder(generation)
            stage = to.relative_to(mirror.base.folder)
            tables[name] = TableSpec(
                name,
                schema,
                mirror.base.folder,
                str(stage),
                None if plan is None else plan.chunks,
                {} if plan is None else plan.since,
                rereads=plan is None,
            )
        start = LoadStart.at(engine.manifest)
        if load:
            start = next(plan.start for plan in self._plans.values())
        followed = {name.connection for name in tables}
        return QuerySpec(
            generation=generation,
            config=engine.config,
            tables=tables,
            start={n: offsets for n, offsets in start.offsets.items() if n in followed},
            watermark=start.watermark,
            tasks=engine.spark.slots,
            once=once,
            pinned_ms=start.pinned_ms,
            tick_ms=self._tick_ms,
            token=engine.lease.token,
        )

    @property
    def _tick_ms(self) -> int:
        """How often the time moves; views that are not built yet ask for none."""
        engine = self._engine
        kept = [view for view in engine.views.values() if view.name in engine.manifest.views]
        return tick_of(kept, engine.config.engine.tick)

    def _after_load_epoch(self, spec: QuerySpec, offsets: BatchOffsets, folder: Path) -> None:
        self._handed = offsets.chunks
        self._report_loads()
        if not self._chunks_read and not spec.chunks_after(offsets.chunks):
            # Once: a bounded load waits T from here, and epochs may come more often than that.
            (folder / CHUNKS_READ).touch()
            self._chunks_read = True

    def _report_loads(self) -> None:
        for name, plan in self._plans.items():
            state = self._engine.manifest.tables[name]
            done, total = state.phase == "loaded", plan.chunks.rows
            # How many rows were read is an estimate: a chunk's are counted when it counts.
            handed = self._handed.get(name, len(state.released))
            read = state.rows if done else total * handed // len(plan.chunks.chunks)
            rows, why = state.rows, "" if done else self._held.get(name, "")
            self._listener.on_load(LoadReport(str(name), rows, read, max(rows, total), done, why))

    def _tell_of_held(self) -> None:
        """Say when tables are held back, and when they go on."""
        engine, before = self._engine, self._held
        paused, now = paused_tables(engine.store), SystemClock().now()
        self._held = held(engine.config, self._tables("loading"), paused, now)
        if self._held == before:
            return
        for name in [*self._held, *(name for name in before if name not in self._held)]:
            why = self._held.get(name, "")
            if why != before.get(name, ""):
                self._listener.on_message(f"{name}: {why or 'read on'}")
        self._report_loads()

    def _tell_of_away(self) -> None:
        """Say once when a connection goes away, and once when it is back."""
        engine = self._engine
        before, self._away = self._away, read_away(engine.store, engine.lease.token)
        for name in self._away.keys() - before.keys():
            self._listener.on_message(
                f"{name} is away: its tables stay as they are, all others go on; it is asked again "
                f"and again. {self._away[name].error}"
            )
        for name in before.keys() - self._away.keys():
            self._listener.on_message(f"{name} is back: it is read again")

    def _explain_a_wait(self, chunks_read: Path) -> None:
        """Say now and then why a table whose chunks are all read is not loaded yet."""
        if not chunks_read.exists():
            return
        now = time.monotonic()  # the clock may be set back meanwhile
        if self._explained is None:
            self._explained = now
        if now - self._explained < _EXPLAIN_EVERY_S:
            return
        self._explained = now
        loading = self._tables("loading")
        cuts = self._engine.manifest.cuts_of({table.connection for table in loading})
        watermark = read_until(cuts.values())
        seen = "unknown" if watermark is None else f"{utc_text(watermark)} UTC"
        tables = ", ".join(map(str, loading))
        self._listener.on_message(
            f"waiting for {tables}: all chunks are read; they count when the changelog has passed "
            f"their read time plus T. Its watermark is {seen}. It moves by changes and by "
            "heartbeats: if it stands still, none arrives, or they are of an earlier time"
        )
