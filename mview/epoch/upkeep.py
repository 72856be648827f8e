"""What keeps a store small, beside the epochs: compaction of tails, deletion of what is not needed.

One background thread does it. Its results become true with a later manifest (compaction), or touch
only what no kept manifest names (deletion), so a crash in between costs nothing.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from mview.clock import SteadyClock, steady_clock
from mview.epoch.engine import Engine
from mview.epoch.halts import at_its_sink, halted, halting
from mview.epoch.retention import Retention, last_ended_ms
from mview.errors import CorruptionError, MviewError
from mview.execute.relations import Relation
from mview.failpoints import failpoint
from mview.relation import RelationId
from mview.store.environments import (
    followed_by_environments,
    needed_by_environments,
    remove_dead,
)
from mview.store.manifest import Manifest, TableState
from mview.store.mirror import Mirror

#: A tail is folded into its base when it has so many rows or bytes, and a tenth of the base's rows;
#: or more than a compaction may hold.
_TAIL_ROWS, _TAIL_BYTES = 20_000, 16 << 20
_TAIL_SHARE = 0.1

#: Epochs between two rounds of deleting, and seconds at least: a round lists every folder, however
#: little there is to delete.
_CLEAN_EVERY, _CLEAN_EVERY_S = 50, 15.0

_LEAPT = (
    "this machine's clock went ahead by more than a day: now() and the ages of what is kept follow "
    "it when that has lasted an hour. Set the clock right, if it is wrong"
)


class Upkeep:
    """Keeps the mirrors and sinks of an engine small."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._news: deque[str] = deque()
        self._said: set[str] = set()
        #: Views whose copies cannot be compacted, and why: they halt in the next epoch.
        self.damaged: dict[str, MviewError] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mview-upkeep")
        self._compactions: dict[RelationId, Future[tuple[int, int]]] = {}
        self._cleaning: Future[None] | None = None
        self._cleaned_s = float("-inf")
        self._retention = Retention(engine.manifests, engine.config.engine)
        # A clock that is wrong when the run begins ages nothing by years, either.
        ended_ms = last_ended_ms(engine.manifests, engine.lease.token)
        self._aging = SteadyClock(engine.clock, ended_ms)

    def take_over(self, tables: dict[RelationId, TableState]) -> dict[RelationId, TableState]:
        """The states of the next manifest with the compactions that are finished.

        What a view keeps and cannot be compacted is the view's: see `damaged`.

        Raises:
            MviewError: what the compaction of a table raised.
        """
        states = dict(tables)
        for name, running in list(self._compactions.items()):
            if running.done():
                del self._compactions[name]
                try:
                    version, folded = running.result()
                except Exception as error:
                    self._note_damage(name, error)
                    continue
                state = states[name]
                states[name] = replace(
                    state, base_version=max(version, state.base_version), folded=folded
                )
        return states

    def _note_damage(self, relation: RelationId, error: Exception) -> None:
        """Note why a view halts; raises what is of all."""
        name = relation.view
        if not name or not isinstance(error, CorruptionError):
            raise error
        self.damaged[name] = halting(error, name, self._engine.store)

    def after_epoch(self) -> None:
        """Start what is due; called between epochs."""
        if steady_clock().is_in_doubt:
            self._tell(_LEAPT)
        manifest = self._engine.manifest
        for name, relation in self._engine.relations.items():
            if name.view in self.damaged:
                continue
            if self._is_due(relation) and name not in self._compactions:
                self._compactions[name] = self._worker.submit(
                    self._compact, name, relation.mirror, relation.state
                )
        self._move_memory()
        self._retention.note(manifest)
        if (
            manifest.epoch % _CLEAN_EVERY == 0
            and time.monotonic() >= self._cleaned_s + _CLEAN_EVERY_S
            and (self._cleaning is None or self._cleaning.done())
        ):
            self.settle()
            self._cleaned_s = time.monotonic()
            self._cleaning = self._worker.submit(self._clean, manifest)

    def _move_memory(self) -> None:
        """Copy what has left memory for Spark, and read what may come back."""
        executors, relations = self._engine.executors, self._engine.relations
        for name in executors.left():
            # Nobody asks how it ended: a look-up makes the copies that are missing.
            self._worker.submit(executors.prepare, name, relations[name].base_files)
        if (read := executors.bring_back()) is not None:
            # In the thread that deletes, so nothing that it reads is deleted meanwhile.
            self._worker.submit(read)

    def _is_due(self, relation: Relation) -> bool:
        rows, nbytes = relation.tail_rows, relation.tail_bytes
        large = rows >= _TAIL_ROWS or nbytes >= _TAIL_BYTES
        share = rows >= _TAIL_SHARE * relation.state.rows
        return (large and share) or nbytes >= self._engine.memory.folded

    def finish(self) -> None:
        """Wait for what is running, publish the compactions that no epoch has taken over, clean.

        Else a run that ends after its epochs, and is started again by a timer, never does.

        Raises:
            MviewError: what a compaction raised, or the manifest cannot be published.
        """
        wait(self._compactions.values())
        if self._compactions:
            engine = self._engine
            tables = self.take_over(engine.manifest.tables)
            views = dict(engine.manifest.views)
            views |= {
                name: halted(views[name], error, engine.mask)
                for name, error in self.damaged.items()
            }
            engine.commit(engine.next_manifest(tables=tables, views=views), {})
            engine.move({})
        self.settle()
        self._clean(self._engine.manifest)

    def settle(self) -> None:
        """Wait for what is being deleted; raises what it raised."""
        cleaning, self._cleaning = self._cleaning, None
        if cleaning is not None:
            cleaning.result()

    def leave(self, relations: Iterable[RelationId]) -> None:
        """Have nothing to do with relations that begin anew, and wait for what is being deleted."""
        for name in relations:
            running = self._compactions.pop(name, None)
            if running is not None and not running.cancel():
                wait([running])
            self.damaged.pop(name.view, None)
        self.settle()

    def news(self) -> Iterator[str]:
        """What people should know and were not told yet: tables that cannot be cleaned."""
        while self._news:
            yield self._news.popleft()

    def _note(self, view: str, error: MviewError) -> None:
        place = f" ({error.where})" if error.where else ""
        text = f"view {view} goes on, but old files of its table stay: {error.what}{place}"
        self._tell(text)

    def _tell(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._news.append(text)

    def take_back(self) -> None:
        """Undo what a failed epoch has appended: when it runs again, it may be a larger one.

        What was compacted meanwhile goes as well: who took over that its tail is folded, over a
        base that went back, would lose it.
        """
        wait(self._compactions.values())
        self._compactions.clear()
        for name, state in self._engine.manifest.tables.items():
            if name in self._engine.relations:
                self._engine.relations[name].mirror.restore(state)

    def _compact(self, name: RelationId, mirror: Mirror, state: TableState) -> tuple[int, int]:
        version, folded = mirror.compact(state, self._engine.memory.folded)
        failpoint("after-compact")
        files = mirror.files(replace(state, base_version=version, folded=folded))
        self._engine.executors.prepare(name, files.base)
        return version, folded

    def _clean(self, newest: Manifest) -> None:
        engine = self._engine
        oldest = self._retention.prune(self._aging.now(), followed_by_environments(engine.store))
        failpoint("after-prune")
        before_ms = self._aging.now() - engine.config.engine.history
        for environment in remove_dead(engine.store, before_ms, engine.clock):
            self._tell(f"environment {environment} is removed: nobody has run it for long")
        environments = needed_by_environments(engine.store, before_ms, engine.clock)
        for name, relation in engine.relations.items():
            if state := newest.tables.get(name):
                begun = replace(state, base_version=0, changelog_version=0)
                then = oldest.tables.get(name, begun)
                view, beside = name.view, engine.reads_beside
                try:
                    needed = (
                        engine.followers.floor(view)
                        if name == RelationId("view", view)
                        else sys.maxsize
                    )
                    if environments is not None and name.is_table:
                        needed = min(needed, environments)
                    if beside is not None and name in beside.tables:
                        then = _older(then, beside.tables[name])
                        needed = min(needed, beside.epoch)
                    relation.mirror.maintain(state, then, newest.generation, needed)
                except Exception as error:
                    if not view:
                        raise
                    self._note(view, halting(error, view, engine.store))
        for view, live in engine.views.items():
            if view in newest.views and newest.views[view].sink:
                old = oldest.views.get(view)
                facts = old.sink if old and old.sink else None
                try:
                    with at_its_sink():
                        live.sink.maintain(facts, self._retention.needed(view))
                except Exception as error:
                    engine.lease.check()
                    self._note(view, halting(error, view, engine.store))

    def close(self) -> None:
        """Wait for what is running; what it made and no manifest names goes on the next start."""
        self._worker.shutdown(wait=True, cancel_futures=True)


def _older(state: TableState, other: TableState) -> TableState:
    """Of each of the two logs of a mirror the older version."""
    return replace(
        state,
        base_version=min(state.base_version, other.base_version),
        changelog_version=min(state.changelog_version, other.changelog_version),
    )
