"""Runners of one store, several in one process: the engine's own commits, without Spark.

The source is endless, its n-th change inserts row n into `shop.t`; the view `v` is the same rows.
So what is published holds exactly the rows 1 to n, where n is the offset in the manifest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from deltalake import DeltaTable

from mview.catalog.definitions import digest_of, save_definition
from mview.catalog.sinks import forget_views, open_sink
from mview.clock import SystemClock, WallMs
from mview.config.file import load_config
from mview.connector import WEIGHT
from mview.epoch.engine import Engine, LiveView
from mview.epoch.recover import forget_folders, recover
from mview.epoch.upkeep import Upkeep
from mview.epoch.views.opening import open_sinks
from mview.execute.delta import Delta
from mview.failpoints import armed, failpoint
from mview.files.fence import UNFENCED
from mview.plan.definition import parse_view
from mview.schema import Column, TableSchema, parse_type
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import Lease, fenced
from mview.store.manifest import Manifest, ViewState
from mview.store.mirror import Mirror
from tests.relations import rel

TABLE, VIEW = rel("shop.t"), "v"
DEFINITION = parse_view(
    "CREATE MATERIALIZED VIEW v WITH (path = 'out/v') AS SELECT id FROM shop.t", VIEW
)
SCHEMA = TableSchema((Column("id", parse_type("bigint"), nullable=False),), ("id",))
TTL_MS = 600_000

#: Seconds after which a test is stuck.
PATIENCE = 60


class SetClock:
    """A clock that goes by hand."""

    def __init__(self) -> None:
        self.ms = int(SystemClock().now())

    def now(self) -> WallMs:
        return WallMs(self.ms)


class CrashError(BaseException):
    """The process ends here: nothing after it is done, no handler of errors takes it."""


def crash() -> None:
    raise CrashError


class Runner:
    """One process on a store. It starts as `mview run` does, and its epochs commit as its do."""

    def __init__(self, root: Path, clock: SetClock) -> None:
        file = root / "mview.yml"
        if not file.exists():
            file.write_text(
                "store: store\nengine: {executor: local, history: 30min, keep_files: 15min}\n"
            )
        self.config, self.clock = load_config(file), clock
        self.store = Store(self.config.store)
        claim_store(self.store.root)
        token = ManifestLog(self.store.manifests).token()
        self.lease = Lease(self.store.lease, clock, TTL_MS, above=token)

    def recover(self) -> Manifest:
        """What a start does first."""
        self.lease.acquire()
        with fenced(self.lease):
            sinks = partial(open_sinks, self.config, fence=self.lease)
            manifest, _ = recover(self.store, self.lease, self.clock, sinks, Mask(()))
            left = forget_views(self.config, manifest, self.lease)
            forget_folders(self.store, manifest, self.lease, left.folders)
            return manifest

    def start(self) -> Runner:
        self.recover()
        with fenced(self.lease):
            spark = SimpleNamespace(slots=1)
            self.engine = Engine(self.config, cast(Any, spark), self.lease, self.clock)
            self.engine.open_relations()
            digest = digest_of(DEFINITION)
            save_definition(self.store, DEFINITION)
            self.sink = open_sink(self.config, self.store, DEFINITION, SCHEMA, digest, self.lease)
            view = SimpleNamespace(name=VIEW, sink=self.sink)
            self.engine.views = {VIEW: cast(LiveView, view)}
            self.upkeep = Upkeep(self.engine)
        return self

    def epoch(self) -> None:
        """Take the next change and publish it."""
        with fenced(self.lease):
            engine, before = self.engine, self.engine.manifest
            number = offset_of(before) + 1
            ids = pa.array([number], pa.int64())
            rows = pa.table({"id": ids, WEIGHT: pa.array([1], pa.int64())})
            delta = Delta(rows, SCHEMA.key)
            mirror = engine.mirror(TABLE, SCHEMA)
            states = self.upkeep.take_over(before.tables)
            state = states.get(TABLE) or replace(mirror.create(), phase="loaded")
            version = mirror.append(before.epoch + 1, delta.changelog)
            failpoint("after-mirrors")
            token = self.sink.stage(before.epoch + 1, rows)
            failpoint("after-stage")
            new = ViewState(digest_of(DEFINITION), "LINEAR", SCHEMA, {}, before.epoch + 1)
            view = before.views.get(VIEW) or new
            manifest = engine.next_manifest(
                offsets={"shop": {"log": number}},
                tables={TABLE: replace(state, changelog_version=version, rows=number)},
                views={VIEW: replace(view, rows=number)},
            )
            engine.commit(manifest, {VIEW: token})
            engine.move({TABLE: delta})

    def upkeep_round(self) -> None:
        """Compact and delete, in the thread of this call."""
        if not self.engine.relations:
            return
        with fenced(self.lease):
            for name, relation in self.engine.relations.items():
                self.upkeep._compact(name, relation.mirror, relation.state)
            self.upkeep._clean(self.engine.manifest)

    def stop(self) -> None:
        self.lease.release()

    def die(self) -> None:
        """Be gone without a word: only time ends the lease."""
        self.lease._stop.set()
        self.clock.ms += TTL_MS + 1


def offset_of(manifest: Manifest) -> int:
    return int(manifest.offsets.get("shop", {}).get("log", 0))


def check(runner: Runner, shown: bool = True) -> int:
    """Hold what is published, and what any reader of Delta sees, against the source.

    Args:
        runner: of the store.
        shown: look as another reader, too.

    Returns:
        The number of changes taken.
    """
    store = runner.store
    log = ManifestLog(store.manifests)
    newest = log.latest()
    assert newest is not None
    tokens = [log.read(epoch).token for epoch in log.epochs()]
    assert tokens == sorted(tokens)
    for manifest in (log.read(epoch) for epoch in log.epochs()):
        expected = list(range(1, offset_of(manifest) + 1))
        view = manifest.views.get(VIEW)
        if view is None or view.built_epoch != newest.views[VIEW].built_epoch:
            continue  # of a table that was dropped since
        if manifest == newest:
            kept = Mirror(store.mirror(TABLE), SCHEMA).scan(manifest.tables[TABLE])
            assert sorted(kept["id"].to_pylist()) == expected
        sink = open_sinks(runner.config, manifest, UNFENCED)[VIEW]
        rows = sink.rows(view.sink)
        assert sorted(rows["id"].to_pylist()) == expected, manifest.epoch
    if offset_of(newest) and shown:
        seen = DeltaTable(target_of(runner)).to_pyarrow_table()
        assert sorted(seen["id"].to_pylist()) == list(range(1, offset_of(newest) + 1))
    return offset_of(newest)


def target_of(runner: Runner) -> Path:
    """The folder of the view's table: outside of the store."""
    return runner.config.path.parent / "out" / VIEW


class Paused:
    """A call in a thread that is stopped at a fail point, like a process that hangs there."""

    def __init__(self, call: Callable[[], object], point: str, nth: int = 1) -> None:
        self.error: BaseException | None = None
        self._call, self._point = call, armed(point, self._wait, nth)
        self._go, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _wait(self) -> None:
        assert self._go.wait(PATIENCE), "never woken"

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error
        finally:
            self._ended.set()

    def begin(self) -> bool:
        """Run up to the point, or to the end; returns whether it was reached."""
        hit = self._point.__enter__()
        self._thread.start()
        while not (hit.wait(0.002) or self._ended.is_set()):
            pass
        return hit.is_set()

    def wake(self) -> None:
        """Go on to the end."""
        self._go.set()
        self._thread.join(PATIENCE)
        self._point.__exit__(None, None, None)
        assert not self._thread.is_alive(), "does not end"

    @contextmanager
    def paused(self) -> Iterator[bool]:
        """Sleep at the point during the block; yields whether it was reached."""
        hit = self.begin()
        try:
            yield hit
        finally:
            self.wake()
