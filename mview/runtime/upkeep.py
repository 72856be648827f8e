"""What keeps a store small, beside the epochs: compaction of tails, deletion of what is not needed.

One background thread does it. Its results become true with a later manifest (compaction), or touch
only what no kept manifest names (deletion), so a crash in between costs nothing.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from mview.runtime.engine import Engine
from mview.runtime.failpoints import failpoint
from mview.store.manifest import Manifest, TableState
from mview.store.mirror import Mirror

#: A tail is folded into its base when it has this many rows, and a tenth of the base's.
_TAIL_ROWS = 20_000
_TAIL_SHARE = 0.1

#: Epochs between two rounds of deleting.
_CLEAN_EVERY = 50


class Upkeep:
    """Keeps the mirrors and sinks of an engine small."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mview-upkeep")
        self._compactions: dict[str, Future[tuple[int, int]]] = {}
        self._cleaning: Future[None] | None = None

    def take_over(self, tables: dict[str, TableState]) -> dict[str, TableState]:
        """The states of the next manifest with the compactions that are finished.

        Raises:
            MviewError: what a compaction raised.
        """
        states = dict(tables)
        for name, running in list(self._compactions.items()):
            if running.done():
                del self._compactions[name]
                version, folded = running.result()
                state = states[name]
                states[name] = replace(
                    state, base_version=max(version, state.base_version), folded=folded
                )
        return states

    def after_epoch(self) -> None:
        """Start what is due; called between epochs."""
        manifest = self._engine.manifest
        for name, relation in self._engine.relations.items():
            rows = relation.tail.num_rows
            due = rows >= _TAIL_ROWS and rows >= _TAIL_SHARE * relation.state.rows
            if due and name not in self._compactions and relation.state.phase == "loaded":
                self._compactions[name] = self._worker.submit(
                    self._compact, name, relation.mirror, relation.state
                )
        if manifest.epoch % _CLEAN_EVERY == 0 and (self._cleaning is None or self._cleaning.done()):
            if self._cleaning is not None:
                self._cleaning.result()
            self._cleaning = self._worker.submit(self._clean, manifest)

    def _compact(self, name: str, mirror: Mirror, state: TableState) -> tuple[int, int]:
        version, folded = mirror.compact(state)
        failpoint("after-compact")
        files = mirror.files(replace(state, base_version=version, folded=folded))
        self._engine.executors.prepare(name, files.base)
        return version, folded

    def _clean(self, newest: Manifest) -> None:
        engine = self._engine
        oldest = engine.manifests.read(engine.manifests.prune(engine.config.engine.history))
        for name, relation in engine.relations.items():
            kept = oldest.tables.get(name)
            # A table that was dropped and loaded again has new versions: nothing old is needed.
            if (
                kept is not None
                and oldest.generation == newest.generation
                and name in newest.tables
            ):
                relation.mirror.maintain(newest.tables[name], kept, newest.generation)
        for name, view in engine.views.items():
            published, kept_view = newest.views.get(name), oldest.views.get(name)
            if published is None or kept_view is None:
                continue
            if published.built_epoch == kept_view.built_epoch:
                view.sink.maintain(kept_view.sink)

    def close(self) -> None:
        """Wait for what is running; what it made and no manifest names goes on the next start."""
        self._worker.shutdown(wait=True, cancel_futures=True)
