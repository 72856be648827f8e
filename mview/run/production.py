"""The tables of an environment: production's, as they were at one of its epochs, and what it has
published since.

1. link    the files of production's mirrors at its newest epoch are linked, and one epoch of the
           environment shows all tables so: they are of one cut
2. follow  what production's changelogs say since then, up to a later epoch of its, is a batch: an
           epoch of the environment, with the rows that are replaced already beside the new ones

Production knows nothing of it, but that its upkeep leaves the changes in its changelogs which an
environment that runs has not taken yet. Where some are gone all the same (the environment did not
run, or a table was loaded anew), all tables are linked once more, and the views built anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from mview.catalog.definitions import load_definitions
from mview.catalog.environments import missing, production, shared_tables, waited_for
from mview.clock import last_tick, steady_clock
from mview.config import Config
from mview.epoch.engine import Engine
from mview.epoch.tails import Since, changes_since
from mview.epoch.without import without
from mview.errors import CorruptionError, MviewError, RetryableError, UserError, typed
from mview.ingest.batches import Batch, BatchOffsets, OnBatch
from mview.ingest.live import Epochs
from mview.ingest.spec import QuerySpec
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.run.feed import FeedQuery, Say
from mview.run.tables import RunTables
from mview.schema import TableSchema
from mview.store.environments import Followed, followed
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import insist
from mview.store.manifest import Manifest, TableState, schemas_of
from mview.store.mirror import Mirror

#: Seconds between two looks for a new epoch of production.
_LOOK_S = 0.1

#: Seconds after which an epoch without a change is followed, so that what is shown is known to be
#: fresh: as often as production makes one.
_QUIET_S = 5.0

#: Tries to link files: production may replace them, when its `keep_files` is short.
_TRIES = 5


class Production:
    """The tables of an environment's run.

    Args:
        config: the environment's.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store = Store(production(config)[0].root)
        self.log = ManifestLog(self._store.manifests)
        #: The query has ended as changes are gone, or a table is another one.
        self.begins_anew = False
        #: The token of production's runner by the epoch that was taken last.
        self._taken: dict[int, int] = {}
        self._opened: dict[RelationId, _Opened] = {}

    # --- as of a run -----------------------------------------------------------------------------

    def tables_of(
        self,
        definitions: Sequence[ViewDefinition],
        manifest: Manifest,
        left: Collection[RelationId] = (),
        refusing: Mapping[RelationId, UserError] = MappingProxyType({}),
    ) -> RunTables:
        """See `Feed`; none is loaded for an environment."""
        return RunTables(
            schemas_of(shared_tables(self._config, definitions, self.newest())), {}, {}
        )

    def check(
        self,
        definitions: Sequence[ViewDefinition],
        schemas: Mapping[RelationId, TableSchema],
        loaded: Collection[RelationId],
    ) -> None:
        """Nothing but production is followed."""

    def cautions(
        self, definitions: Sequence[ViewDefinition], schemas: Mapping[RelationId, TableSchema]
    ) -> list[str]:
        """What production has said is not said again."""
        return []

    def begin(self, engine: Engine, schemas: Mapping[RelationId, TableSchema], say: Say) -> None:
        """See `Feed`; where the tables cannot go on as they are, all are linked anew."""
        self.begins_anew = False
        manifest = engine.manifest
        same = schemas_of(manifest.source_tables) == dict(schemas)
        at = followed(manifest)
        if same and at is not None and self.mirrors(at, self.newest()) is not None:
            return
        for tries in range(1, _TRIES + 1):
            newest = self.newest()
            tables = {name: newest.tables.get(name) for name in schemas}
            for name, state in tables.items():
                if (error := missing(self._config, name, state)) is not None:
                    raise error
            there = {name: state for name, state in tables.items() if state is not None}
            if schemas_of(there) != dict(schemas):
                raise _other_columns(self._config)
            try:
                self._link(engine, newest, there, say)
                return
            except (FileNotFoundError, CorruptionError):
                # Production has moved on meanwhile, and cleaned up behind it; else it is damaged.
                if tries == _TRIES or self.newest().epoch == newest.epoch:
                    raise

    def live(
        self, engine: Engine, spec: QuerySpec, folder: Path, on_batch: OnBatch, say: Say
    ) -> FeedQuery:
        """See `Feed`."""
        return _Following(self, engine, spec, on_batch, say)

    # --- what production has ---------------------------------------------------------------------

    def newest(self) -> Manifest:
        """Production's newest epoch."""
        newest = self.log.latest()
        if newest is None:
            return production(self._config)[1]  # tells it
        return newest

    def unready(self, tables: Collection[RelationId], newest: Manifest) -> MviewError | None:
        """Why tables cannot be followed up to an epoch; None: they can.

        One that has halted cannot: it stays as it was while others go on, so they are of two cuts.
        """
        for name in sorted(tables):
            if (error := missing(self._config, name, newest.tables.get(name))) is not None:
                return error
        return None

    def mirrors(self, at: Followed, newest: Manifest) -> dict[RelationId, Mirror] | None:
        """Production's mirrors of what is followed; None: changes are gone, or tables are others.

        Raises:
            UserError: production has gone back.
        """
        if not self._is_line(at, newest):
            return None
        mirrors = {}
        for name, id_ in at.mirrors.items():
            state = newest.tables.get(name)
            if state is None or state.phase != "loaded":
                return None
            with suppress(CorruptionError, FileNotFoundError):
                mirror = self._mirror(name, state)
                if _id_of(mirror) == id_ and mirror.cleaned <= at.epoch:
                    mirrors[name] = mirror
        return mirrors if mirrors.keys() == at.mirrors.keys() else None

    def take(self, epoch: Manifest) -> None:
        """Note what of production is taken."""
        self._taken = {epoch.epoch: epoch.token}

    def _is_line(self, at: Followed, newest: Manifest) -> bool:
        """Whether production goes on from what was followed, as far as can be told.

        An epoch that is not kept may have been another one. But a runner never goes back.

        Raises:
            UserError: it does not: an older copy was put back.
        """
        is_behind, is_known = newest.epoch < at.epoch, False
        with suppress(UserError, CorruptionError):
            is_behind |= self.log.read(at.epoch).created_ms != at.published_ms
            is_known = True
        if is_behind:
            name = self._config.environment
            raise UserError(
                f"production is not what environment {name} has followed: it was put back to an "
                "older state",
                where=str(self._store.root),
                got=f"epoch {newest.epoch}",
                allowed=f"epoch {at.epoch} as it was published, or a later one",
                safe="the environment is as it was; production is not touched",
                hint=f"begin the environment anew: `mview drop --env {typed(name)}`, then run it "
                "again",
            )
        return is_known or self._taken.get(at.epoch) == newest.token

    def _mirror(self, name: RelationId, state: TableState) -> Mirror:
        """Production's mirror of a table as it is on disk now.

        Raises:
            CorruptionError, FileNotFoundError: it is damaged, or gone.
        """
        opened, folder = self._opened.get(name), self._store.mirror(name)
        if opened is not None and opened.is_at(folder) and opened.mirror.schema == state.schema:
            with suppress(CorruptionError):  # what it knows of the logs was cleaned away
                return opened.refreshed()
        if opened is not None:
            os.close(opened.handle)
            del self._opened[name]
        handle = os.open(folder, os.O_RDONLY)
        opened = self._opened[name] = _Opened(Mirror(folder, state.schema), handle)
        return opened.refreshed()

    # --- link ------------------------------------------------------------------------------------

    def _link(
        self,
        engine: Engine,
        newest: Manifest,
        tables: Mapping[RelationId, TableState],
        say: Say,
    ) -> None:
        """Have one epoch show all tables as production has them at an epoch of its."""
        manifest, sources = engine.manifest, [*engine.manifest.source_tables]
        again = "once more" if sources else "as they are"
        say(f"tables of production, {again}: {', '.join(map(str, tables))} (epoch {newest.epoch})")
        for name in sources:
            if (kept := engine.relations.pop(name, None)) is not None:
                kept.close()
            engine.executors.forget(name)
        after = without(load_definitions(engine.store, manifest), manifest, [*map(str, sources)])
        own, ids = {}, {}
        try:
            for name, state in tables.items():
                mirror = self._mirror(name, state)
                ids[name] = _id_of(mirror)
                own[name] = engine.mirror(name, state.schema).copy(
                    mirror, state, manifest.epoch + 1, engine.memory.folded
                )
        except Exception:
            _put_back(engine)  # a run that goes on has what it has published
            raise
        self.take(newest)
        at = Followed(newest.epoch, newest.created_ms, ids)
        connections = {name.connection for name in tables}
        engine.commit(
            engine.next_manifest(
                generation=after.generation,
                batch=after.batch,
                offsets={n: o for n, o in newest.offsets.items() if n in connections},
                cuts={n: cut for n, cut in newest.cuts.items() if n in connections},
                watermark=newest.watermark,
                tables={**after.tables, **own},
                views=after.views,
                positions=at.positions,
                newest=at.newest,
            ),
            {},
        )


class _Opened(NamedTuple):
    """A mirror of production that is read again and again.

    Attributes:
        mirror: the mirror.
        handle: its folder, open: another one of the same name is told by it.
    """

    mirror: Mirror
    handle: int

    def is_at(self, folder: Path) -> bool:
        """Whether the folder is still the one that was opened."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self.handle), folder.stat())
        return False

    def refreshed(self) -> Mirror:
        """The mirror with what its logs say now."""
        for log in (self.mirror.base, self.mirror.changelog):
            log.refresh()
        return self.mirror


def _put_back(engine: Engine) -> None:
    """Have the tables as they are published, some of which were begun anew."""
    for name, state in engine.manifest.source_tables.items():
        insist(engine.lease, partial(engine.mirror(name, state.schema).restore, state))
    engine.reopen(())


def _id_of(mirror: Mirror) -> str:
    return str(mirror.base.head.metadata["id"])


def _other_columns(config: Config) -> RetryableError:
    return RetryableError(
        f"production has loaded a table anew, with other columns than environment "
        f"{config.environment} began with",
        safe="the environment is as it was",
        hint="run the same command again: its views are built anew",
    )


class _Following:
    """Hands what production publishes to epochs.

    Args:
        production: is told when tables are to be begun anew.
        engine: of the environment.
        spec: the generation, whether it is bounded, and how often the time moves.
        on_batch: runs an epoch.
        say: tells people.
    """

    def __init__(
        self, production: Production, engine: Engine, spec: QuerySpec, on_batch: OnBatch, say: Say
    ) -> None:
        self._production, self._engine, self._spec = production, engine, spec
        self._on_batch, self._say = on_batch, say
        self._waits = ""
        self._number = 0
        self._moved = time.monotonic()

    def run(self, until: Callable[[], bool]) -> None:
        """See `FeedQuery`."""
        last = self._production.newest() if self._spec.once else None
        with Epochs(self._on_batch) as epochs:
            while not until() and not self._production.begins_anew:
                newest = last or self._production.newest()
                batch = self._next(newest)
                if batch is not None:
                    epochs.begin(batch)
                    epochs.finish()
                elif last is not None:
                    return
                else:
                    time.sleep(_LOOK_S)

    def _next(self, newest: Manifest) -> Batch | None:
        """What comes next; None: nothing is new."""
        manifest = self._engine.manifest
        at = followed(manifest)
        assert at is not None, "a run begins with tables"
        pinned_ms = self._pinned(manifest.pinned_ms)
        if (error := self._production.unready(at.mirrors, newest)) is not None:
            self._wait(error)
            return None
        self._waits = ""
        if newest.epoch == at.epoch and pinned_ms == manifest.pinned_ms:
            return None
        since = self._since(at, newest)
        if since is None:
            return None
        upto, deltas, _ = since
        is_quiet = time.monotonic() - self._moved < _QUIET_S and not self._spec.once
        if not deltas and pinned_ms == manifest.pinned_ms and is_quiet:
            return None
        self._moved = time.monotonic()
        self._production.take(upto)
        now = Followed(upto.epoch, upto.created_ms, at.mirrors)
        connections = {name.connection for name in at.mirrors}
        offsets = BatchOffsets(
            {name: o for name, o in upto.offsets.items() if name in connections},
            -1 if upto.watermark is None else int(upto.watermark),
            {},
            pinned_ms,
            {name: cut for name, cut in upto.cuts.items() if name in connections},
        )
        batch = Batch({}, {}, offsets, self._spec.generation, self._number)
        self._number += 1
        return replace(batch, deltas=deltas, positions=now.positions, newest=now.newest)

    def _since(self, at: Followed, newest: Manifest) -> Since | None:
        """What production has changed; None: that is not there any more."""
        tries = 0
        while (mirrors := self._production.mirrors(at, newest)) is not None:
            tries += 1
            try:
                most, log = self._engine.memory.folded, self._production.log
                return changes_since(at.epoch, newest, log, mirrors, most)
            except (FileNotFoundError, CorruptionError, UserError):
                # Cleaned away under us: the next look tells; else it is damaged.
                if tries == _TRIES:
                    raise
        self._production.begins_anew = True
        return None

    def _wait(self, error: MviewError) -> None:
        """Wait for a table, which production will load, or not.

        Raises:
            MviewError: nobody waits, in a bounded run.
        """
        if self._spec.once:
            raise error
        if error.what != self._waits:
            self._waits = error.what
            self._say(waited_for(error))

    def _pinned(self, before_ms: int) -> int:
        """What `now()` is in the next epoch."""
        if not self._spec.tick_ms:
            return before_ms
        return max(before_ms, last_tick(steady_clock().now(), self._spec.tick_ms))
