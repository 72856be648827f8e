"""Views that are built while the epochs of all others go on.

1. pin     a published epoch; what it names stays on disk
2. build   the rows at that epoch, as `build.py` builds them, in a folder of their own
3. follow  what has changed since, out of the tails of the changelogs, in rounds: as an epoch does
           it, by the same plans, over the mirrors as they were at the end of the round before
4. swap    between two epochs: the rest is followed, and one epoch shows all of it

Until the swap nothing is written that a manifest names, and no sink shows any of it: a runner that
ends leaves a folder with its token, which the next one deletes. A view that is changed is kept by
its former text meanwhile.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from mview.catalog.definitions import save_definition, with_former
from mview.catalog.spark_functions import function_errors
from mview.delta.parquet import read_parquet, write_rows
from mview.epoch.engine import Engine, LiveView
from mview.epoch.halts import at_its_sink, halting, reads_halted
from mview.epoch.report import BuildReport
from mview.epoch.stages import Begun
from mview.epoch.tables import Changed, clock_changes
from mview.epoch.tails import Since, changes_since
from mview.epoch.views.build import Build, Watch, build_rows, pin, state_of
from mview.epoch.views.maintain import maintain, settle
from mview.errors import MviewError, UserError, concerning
from mview.execute.delta import Delta
from mview.failpoints import failpoint
from mview.files.durable import later
from mview.ingest.batches import Batch, BatchOffsets
from mview.plan.clocks import is_clock
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.schema import TableSchema
from mview.store.layout import folder_name
from mview.store.manifest import Manifest, TableState
from mview.store.mirror import ROW, Mirror

#: So many changed rows are left to the swap, which others wait for: about what an epoch takes.
_CLOSE_ROWS = 500

#: Rounds after which it is swapped all the same: changes may come as fast as they are followed.
_ROUNDS = 8

#: Jobs of Spark's scheduler that share the cores with those of epochs.
_POOL = "mview-beside"


class _StoppedError(Exception):
    """A building is not wanted any more."""


class _Aside(Engine):
    """An engine that reads what another one has published, and writes into a folder of its own.

    Args:
        shown: the engine of the epochs.
        folder: for the relations that it keeps.
        own: these.
    """

    def __init__(self, shown: Engine, folder: Path, own: Collection[RelationId]) -> None:
        super().__init__(
            shown.config,
            shown.spark.beside(),
            shown.lease,
            shown.clock,
            shown.mask,
            shown.memory.beside(),
        )
        self.folder, self.own = folder, frozenset(own)

    def mirror(self, relation: RelationId, schema: TableSchema) -> Mirror:
        """The mirror of a relation: one of its own, or one that it only reads."""
        known = self.relations.get(relation)
        if known is not None:
            return known.mirror
        if relation in self.own:
            folder = self.folder / folder_name("table", str(relation))
            return Mirror(folder, schema, fence=self.lease)
        return Mirror(self.store.mirror(relation), schema)


class _Nowhere:
    """In the place of a sink while nothing may be shown: the rows are in the view's mirror.

    Args:
        aside: has that.
        view: the view.
    """

    def __init__(self, aside: _Aside, view: LiveView) -> None:
        self._aside, self._view = aside, view

    def stage(self, epoch: int, delta: pa.Table) -> dict[str, Any]:
        """Nothing is to be shown."""
        return {}

    def parts(self, published: Mapping[str, Any]) -> Iterator[pa.Table]:
        """The rows as of the last round."""
        kept = self._aside.relations[self._view.definition.relation]
        for part in kept.mirror.parts(kept.state):
            yield part.select(self._view.schema.names)


class Building:
    """Views on their way into the epochs of an engine. One thread builds; another one swaps.

    Args:
        engine: publishes the epochs; `begin` and `swap` are called between two of them.
        views: what is to be built, in DAG order.
        kept: all views that are kept when they are there, by name, in DAG order.
        definitions: of all views that are to be kept, also of refused ones.
        tell: told when the build of a view begins and when it has ended well; by another thread.
    """

    def __init__(
        self,
        engine: Engine,
        views: Sequence[LiveView],
        kept: Mapping[str, LiveView],
        definitions: Sequence[ViewDefinition],
        tell: Callable[[BuildReport], None],
    ) -> None:
        self._engine, self.kept, self._definitions = engine, kept, definitions
        self._tell = tell
        self.views = {view.name: view for view in views}
        self._begun = engine.manifest.epoch
        self._folder = engine.store.build(engine.lease.token, self._begun)
        own = {relation for view in views for relation in replace(view, is_read=True).relations}
        read = {table for view in views for table in view.definition.table_names}
        self._inputs = {name for name in read - own if not is_clock(name)}
        self._aside = _Aside(engine, self._folder, own)
        #: The published epoch that it is at.
        self._at = engine.manifest
        #: By view, where each file of its mirror lies for its sink.
        self._staged: dict[str, dict[str, Path]] = {}
        self._folders: set[Path] = set()
        self._failed: dict[str, MviewError] = {}
        self._error: BaseException | None = None
        self._stopped, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mview-beside", daemon=True)

    def begin(self) -> None:
        """Begin to build, in a thread of its own."""
        self._pin()
        self._thread.start()

    @property
    def relations(self) -> set[RelationId]:
        """What is kept of the views beside their sinks, by now or then: it begins anew."""
        now = {relation for relation in self._engine.relations if relation.view in self.views}
        return now.union(*(view.relations for view in self.views.values()))

    @property
    def is_close(self) -> bool:
        """Whether it can be swapped in, or has failed."""
        return self._closed.is_set()

    def close(self) -> None:
        """End it, wherever it is, and delete what it has written."""
        self._stopped.set()
        session = self._aside.spark.running
        while self._thread.is_alive():
            if session is not None:
                with suppress(Exception):  # without a JVM nothing goes on there, either
                    session.sparkContext.cancelJobGroup(self._folder.name)
            self._thread.join(0.2)
            session = self._aside.spark.running
        self._end()

    def _end(self) -> None:
        self._aside.executors.close()
        for relation in self._aside.relations.values():
            relation.close()
        self._engine.reads_beside = None
        for folder in (self._folder, *self._folders):
            shutil.rmtree(folder, ignore_errors=True)

    # --- beside the epochs -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            context = self._aside.spark.session().sparkContext
            context.setJobGroup(self._folder.name, "views that are built beside", True)
            context.setLocalProperty("spark.scheduler.pool", _POOL)
            self._build()
            if self._failed and self._engine.manifest.epoch > self._at.epoch:
                # What fails on the data may be right with the changes that have come since.
                self._failed.clear()
                self._pin()
                self._build()
            self._catch_up()
        except _StoppedError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._closed.set()

    def _look(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError
        self._engine.lease.check()

    def _pin(self) -> None:
        self._at = self._engine.reads_beside = self._engine.manifest

    def _build(self) -> None:
        """The rows at the pinned epoch."""
        aside, at = self._aside, self._at
        aside.manifest, aside.pinned_ms = at, at.pinned_ms
        pin(aside, self.kept.values(), self._engine.views.values())
        tables = {name: at.tables[name] for name in self._inputs}
        states = dict(at.views)
        for number, (name, view) in enumerate(self.views.items(), 1):
            self._look()
            hidden = self._hidden(view)
            report = Build(at.epoch, tables, states).report(view, number, len(self.views))
            self._tell(report)
            try:
                if reads := self._failed.keys() & set(view.definition.read_views):
                    raise reads_halted(name, min(reads))
                # Should the run end now, it tells where the sink may have been.
                save_definition(aside.store, view.definition)
                watch, built = Watch({}), dict(tables)
                folder = aside.folder / "rows" / folder_name("view", name)
                folder.mkdir(parents=True, exist_ok=True)
                with concerning(f"view {name}"), function_errors():
                    files = build_rows(aside, hidden, built, folder, watch)
                state = state_of(hidden, at.epoch, files, watch)
                shutil.rmtree(folder)
                failpoint("in-build")
            except Exception as error:
                self._note(view, error)
            else:
                self._tell(replace(report, done=True))
                aside.views[name] = hidden
                tables, states[name] = built, state
        aside.manifest = replace(at, tables=tables, views=states, pinned_ms=aside.pinned_ms)
        aside.open_relations()

    def _hidden(self, view: LiveView) -> LiveView:
        """A view that nobody sees: its rows are in a mirror, whoever reads it afterwards."""
        sink: Any = _Nowhere(self._aside, view)
        return replace(view, sink=sink, is_read=True)

    def _note(self, view: LiveView, error: Exception) -> None:
        """A view has failed; raises what is of all views."""
        if self._stopped.is_set():
            raise _StoppedError from error
        name, views = view.name, self._aside.views
        self._failed[name] = halting(error, name, self._engine.store, self._aside.spark)
        views.pop(name, None)
        for reader in [v for v in views.values() if name in v.definition.read_views]:
            self._note(reader, reads_halted(reader.name, name))

    def _catch_up(self) -> None:
        """Follow the epochs until few changes are left."""
        views = self._aside.views.values()
        # What is computed as a whole is computed at the swap, as in each epoch from then on.
        is_followed = all(view.plan.evaluation != "full" for view in views)
        for _ in range(_ROUNDS if is_followed else 0):
            self._look()
            upto, deltas, is_all = self._changes(self._aside.memory.folded)
            if is_all and sum(delta.rows.num_rows for delta in deltas.values()) <= _CLOSE_ROWS:
                break
            self._follow(upto, deltas)
            failpoint("build-followed")
        self._prepare()

    def _changes(self, most: int) -> Since:
        """What has changed in the tables, up to which published epoch, and whether it is all.

        Args:
            most: about so many bytes of it, of one epoch at least.
        """
        upto, after = self._engine.manifest, self._at.epoch
        for name in self._inputs - upto.tables.keys():
            # Of a view that has halted.
            self._inputs.remove(name)
            for view in [v for v in self._aside.views.values() if name in v.definition.table_names]:
                self._note(view, reads_halted(view.name, name.view))
        mirrors = {name: self._aside.relations[name].mirror for name in self._inputs}
        for name, mirror in mirrors.items():
            mirror.base.refresh()
            mirror.changelog.refresh()
            assert mirror.trimmed(upto.tables[name]) <= after, f"changes of {name} are gone"
        return changes_since(after, upto, self._aside.manifests, mirrors, most)

    def _follow(self, upto: Manifest, deltas: Mapping[RelationId, Delta]) -> None:
        """A round: the views at an epoch, of what has changed since the one before."""
        aside, before = self._aside, self._aside.manifest
        aside.pin(upto.pinned_ms)
        own = {name: state for name, state in before.tables.items() if name in aside.own}
        inputs = {name: upto.tables[name] for name in self._inputs}
        clocks = clock_changes(before.pinned_ms, aside.pinned_ms)
        nothing = Batch({}, {}, BatchOffsets({}, -1, {}), upto.generation, upto.batch)
        tables = {**inputs, **own}
        changed = Changed(upto.epoch, nothing, tables, {}, {}, {}, deltas, clocks)
        with Begun() as begun:
            maintained = maintain(aside, {}, begun, changed, beside=True)
            outcomes = settle(aside, begun, maintained).outcomes
        states = upto.views | {name: before.views[name] for name in aside.views}
        for name, outcome in outcomes.items():
            if outcome.error is not None:
                self._note(self.views[name], outcome.error)
        for name in aside.views.keys() & outcomes.keys():
            states[name] = outcomes[name].state
            tables |= outcomes[name].moved.tables
        tables = {name: tables[name] for name in (*self._inputs, *self._relations())}
        aside.manifest = replace(upto, tables=tables, views=states, pinned_ms=aside.pinned_ms)
        self._at = self._engine.reads_beside = upto
        self._fold()

    def _relations(self) -> list[RelationId]:
        """What is kept of the views that have not failed."""
        return [relation for view in self._aside.views.values() for relation in view.relations]

    def _fold(self) -> None:
        """Have all rows of the views in the bases of their mirrors, and open all anew."""
        aside = self._aside
        tables = dict(aside.manifest.tables)
        for name in self._relations():
            mirror = aside.mirror(name, tables[name].schema)
            while mirror.tail_sizes(tables[name]):
                version, folded = mirror.compact(tables[name], aside.memory.folded)
                tables[name] = replace(tables[name], base_version=version, folded=folded)
        aside.manifest = replace(aside.manifest, tables=tables)
        aside.open_relations()

    def _prepare(self) -> None:
        """Put the views' files where their sinks take them from."""
        for view in [*self._aside.views.values()]:
            self._look()
            try:
                self._put_files(view)
            except Exception as error:
                self._note(view, error)

    def _put_files(self, view: LiveView) -> None:
        name, store = view.name, self._engine.store.root
        with at_its_sink():
            folder = self.views[name].sink.staging(self._begun)
        self._folders.add(folder)
        kept = self._aside.relations[view.definition.relation]
        live, staged = {path for path, _ in kept.base_files}, self._staged.setdefault(name, {})
        for path in staged.keys() - live:
            staged.pop(path).unlink(missing_ok=True)
        for path in sorted(live - staged.keys()):
            staged[path] = folder / Path(path).name
            _put_rows(kept.schema, Path(path), staged[path], store)

    # --- between two epochs ----------------------------------------------------------------------

    def swap(self) -> dict[str, MviewError]:
        """Show the views, in one epoch; returns why some are not.

        The engine keeps all views from then on that are to be kept.

        Raises:
            MviewError: what ended the building, and is of all views.
        """
        engine = self._engine
        self._thread.join()
        try:
            if self._error is not None:
                raise self._error
            newest, deltas, _ = self._changes(sys.maxsize)
            if deltas or newest.pinned_ms > self._aside.manifest.pinned_ms:
                self._follow(newest, deltas)
            self._prepare()
            failpoint("build-closed")
            engine.pin(self._aside.pinned_ms)
            relations = self.relations
            build = Build.begin(engine, self.kept, self._definitions)
            for view in self.views.values():
                try:
                    self._show(build, view)
                except Exception as error:
                    told = halting(error, view.name, engine.store, engine.spark)
                    build.leave_out(engine, view, told)
            failpoint("after-build")
            engine.views = dict(self.kept)
            manifest = engine.next_manifest(tables=build.tables, views=build.states)
            refused = engine.commit(manifest, build.tokens).halted
            engine.reopen(relations)
        finally:
            self._end()
        failed = {**build.failed, **refused}
        return {name: error for name, error in failed.items() if name not in engine.refused}

    def _show(self, build: Build, view: LiveView) -> None:
        """Have an epoch show a view."""
        name = view.name
        if name in self._failed:
            raise self._failed[name]
        for read in view.definition.read_views:
            state = build.states.get(read)
            if read in build.failed or state is None or state.stale:
                raise reads_halted(name, read)
        kept = self._aside.relations[view.definition.relation]
        state = self._aside.manifest.views[name]
        if state.rows != sum(rows for _, rows in kept.base_files):
            # A row that came for a key that was there has taken its place.
            raise UserError(
                f"the key ({', '.join(view.schema.key)}) of view {name} is not unique",
                where=view.definition.file,
                safe="the view was not built; other views are untouched",
                hint="declare a key that is unique, or none",
            )
        tables = dict(build.tables)
        for kept_beside in view.relations:
            tables[kept_beside] = self._taken(kept_beside, build.epoch)
        files = [*self._staged.pop(name).values()]
        with concerning(f"view {name}"), at_its_sink():
            token = view.sink.stage_full(build.epoch, files)
        build.tables, build.tokens[name] = tables, token
        shown = replace(
            state,
            sink={},
            built_epoch=build.epoch,
            inserted=state.rows,
            updated=0,
            deleted=0,
            facts={**state.facts, "epoch": build.epoch},
        )
        build.states[name] = with_former(shown, build.states.get(name))

    def _taken(self, relation: RelationId, epoch: int) -> TableState:
        """A relation that begins anew with the rows that were built."""
        engine, built = self._engine, self._aside.relations[relation]
        if (kept := engine.relations.pop(relation, None)) is not None:
            kept.close()
        engine.executors.forget(relation)
        mirror = engine.mirror(relation, built.schema)
        state, files = mirror.create(), []
        for path, rows in built.base_files:
            if rows:
                files.append(mirror.new_file(epoch))
                os.link(path, files[-1])
        version = mirror.take(epoch, files)
        # All that is published so far is in the base, whatever the mirror had of it before.
        return replace(
            state,
            base_version=version,
            folded=engine.manifest.epoch,
            rows=built.state.rows,
            phase="loaded",
        )


def _put_rows(schema: TableSchema, file: Path, to: Path, store: Path) -> None:
    """Have the rows of a file of a mirror in one for a sink, which others may come to read."""
    if schema.key == (ROW,):
        rows = pa.schema([field.with_nullable(True) for field in schema.arrow])
        write_rows(to, read_parquet(file, rows).drop_columns([ROW]))
    elif to.is_relative_to(store):
        os.link(file, to)
    else:
        shutil.copy2(file, to)
    later(to)
