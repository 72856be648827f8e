"""A load of two tables that is killed in each of its epochs, without Spark.

Everything is the engine's own but the stream itself: `Stream` does what Spark's micro-batches do.
It notes where a batch ends before the batch runs, does a batch that it has not noted as done
again, from the state before it, and keeps the merge's state by chunk.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mview.catalog.tables import describe_tables
from mview.changelog import STREAM_ARROW
from mview.config import Config
from mview.epoch.engine import Engine
from mview.epoch.recover import forget_folders, recover
from mview.epoch.report import Silence
from mview.epoch.views.opening import open_sinks
from mview.execute.program import Request
from mview.failpoints import armed
from mview.ingest.batches import Batch, OnBatch, batch_offsets, sorted_rows
from mview.ingest.load_plan import read_plan
from mview.ingest.sources import ChangelogReader, SnapshotReader
from mview.ingest.spec import QuerySpec
from mview.merge.rules import LoadingTable
from mview.merge.stateful import _merge_group
from mview.run import begin, pipeline
from mview.run.begin import begin_tables
from mview.run.feed import SourceFeed
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import Lease, fenced
from mview.store.manifest import Manifest
from tests.e2e.running import views_of
from tests.e2e.shop import Changes, Shop
from tests.e2e.truth import Truth
from tests.epoch.runners import TTL_MS, CrashError, SetClock, crash
from tests.relations import rel
from tests.seeds import seeds

VIEWS = views_of(
    names="select id, name from shop.customers", lines="select order_id, line from shop.lines"
)

#: With the epoch taken back by the next runner, and with it published.
UNDECIDED = ("after-net", "after-mirrors", "after-views", "after-stage", "after-lease")
DECIDED = ("after-publish", "after-clear")
TAKING_OVER = ("recover-decided", "recover-published", "recover-fenced", "file-linked")


class GroupState:
    """What Spark hands to the merge of a group."""

    def __init__(self, value: bytes | None, watermark: int) -> None:
        self.value, self._watermark = value, watermark
        self.wakes: int | None = None

    @property
    def getOption(self) -> tuple[bytes] | None:
        return None if self.value is None else (self.value,)

    def update(self, value: tuple[bytes]) -> None:
        (self.value,) = value

    def getCurrentWatermarkMs(self) -> int:
        return self._watermark

    def setTimeoutTimestamp(self, ms: int) -> None:
        self.wakes = ms


class Stream:
    """In the place of `LoadQuery`."""

    def __init__(
        self,
        spark: object,
        spec: QuerySpec,
        folder: Path,
        loading: Sequence[LoadingTable],
        on_batch: OnBatch,
    ) -> None:
        self._spec, self._folder, self._on_batch = spec, folder, on_batch
        self._loading = {str(table.table): table for table in loading}
        (folder / "checkpoint" / "offsets").mkdir(parents=True, exist_ok=True)
        self._file = folder / "checkpoint" / "committed"

    def run(self, until: Callable[[], bool]) -> None:
        reference = self._spec.write(self._folder / "spec.json")
        chunks, changes = SnapshotReader(reference), ChangelogReader(reference)
        try:
            while not until():
                self._next(chunks, changes)
        finally:
            changes.stop()

    def _next(self, chunks: SnapshotReader, changes: ChangelogReader) -> None:
        batch, start, states, wakes, watermark = self._committed(chunks, changes)
        noted = self._folder / "checkpoint" / "offsets" / f"{batch}"
        if noted.exists():
            ends = [orjson.loads(line) for line in noted.read_text().splitlines()[2:]]
        else:
            limit = ReadAllAvailable()
            ends = [chunks.latestOffset(start[0], limit), changes.latestOffset(start[1], limit)]
            due = any(ms < watermark for ms in wakes.values())
            if ends == start and not due:
                return
            noted.write_text("\n".join(["v1", "{}", *(orjson.dumps(e).decode() for e in ends)]))
        rows = [
            row
            for source, begin, end in zip((chunks, changes), start, ends, strict=True)
            for part in source.partitions(begin, end)
            for piece in source.read(part)
            for row in piece.to_pylist()
        ]
        groups: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        newest = watermark
        for row in rows:
            if row["event_time"] is None:
                groups[row["table"], row["chunk"]].append(row)
            else:
                newest = max(newest, int(row["event_time"].timestamp() * 1000))
        for key, ms in wakes.items():
            if ms < watermark:
                groups[key]  # its time has come
        out: list[dict[str, Any]] = []
        states, wakes = dict(states), dict(wakes)
        for key, given in groups.items():
            state = GroupState(states.get(key), watermark)
            out += _merge_group(key, given, cast(Any, state), self._loading.get(key[0]))
            if state.value is not None:
                states[key] = state.value
            wakes.pop(key, None)
            if state.wakes is not None:
                wakes[key] = state.wakes
        table = pa.Table.from_pylist(out, STREAM_ARROW)
        offsets = batch_offsets(self._folder / "checkpoint", batch)
        changes, releases, halts, rejects = sorted_rows(table)
        generation = self._spec.generation
        self._on_batch(
            Batch(changes, releases, offsets, generation, batch, halts=halts, rejects=rejects)
        )
        self._file.write_bytes(pickle.dumps((batch + 1, ends, states, wakes, newest)))

    def _committed(self, chunks: SnapshotReader, changes: ChangelogReader) -> Any:
        if not self._file.exists():
            return 0, [chunks.initialOffset(), changes.initialOffset()], {}, {}, 0
        return pickle.loads(self._file.read_bytes())


class Scans:
    """In the place of Spark: rows of mirrors that are not in memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        return [self._rows(one) for one in requests]

    def _rows(self, request: Request) -> pa.Table:
        state = self._engine.manifest.tables[request.table]
        rows = self._engine.relations[request.table].mirror.scan(state)
        if request.keys is not None:
            names = request.keys.column_names
            wanted = {tuple(row.values()) for row in request.keys.to_pylist()}
            found = (tuple(row.values()) for row in rows.select(names).to_pylist())
            rows = rows.filter(pa.array([key in wanted for key in found], pa.bool_()))
        return rows.select(request.select)


def drive(config: Config, clock: SetClock) -> None:
    """What `mview run` does up to the end of its load, on a stream and a Spark of our own."""
    store = Store(config.store)
    claim_store(store.root)
    lease = Lease(store.lease, clock, TTL_MS, above=ManifestLog(store.manifests).token())
    lease.acquire()
    try:
        with fenced(lease):
            sinks = partial(open_sinks, config, fence=lease)
            manifest, _ = recover(store, lease, clock, sinks, Mask(()))
            forget_folders(store, manifest, lease, ())
            spark = SimpleNamespace(slots=2, session=lambda: None)
            engine = Engine(config, cast(Any, spark), lease, clock)
            engine.executors._spark = cast(Any, Scans(engine))
            schemas = describe_tables(config, VIEWS, {})
            run = pipeline.Run(
                engine,
                schemas,
                [],
                Silence(),
                threading.Event(),
                once=True,
                feed=SourceFeed(config),
            )
            begin_tables(engine, schemas, lambda text: None)
            engine.open_relations()
            generation = engine.manifest.generation
            run._plans = {
                name: read_plan(store.plan(generation, lease.token, name))
                for name in run._tables("loading")
            }
            if run._plans:
                run._load()
            run._upkeep.close()
    except CrashError:
        lease._stop.set()
        clock.ms += TTL_MS + 1
        raise
    lease.release()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(pipeline, "LoadQuery", Stream)
    shop = Shop(tmp_path, size=16)
    yield shop
    shop.close()


@pytest.mark.parametrize("seed", seeds(1))
def test_nothing_is_skipped_and_nothing_done_twice(shop: Shop, seed: int) -> None:
    """Each runner is killed before, and the next behind, and one in its take-over; then anew."""
    chosen = random.Random(seed)
    changes = Changes(shop, chosen)
    config = shop.config(chunk_rows=3, chunks_per_epoch=1)
    log, clock = ManifestLog(Store(config.store).manifests), SetClock()
    killed: list[str] = []

    def kill(point: str) -> None:
        for _ in range(chosen.randrange(4)):
            changes.one()
        shop.heartbeat()
        with armed(point, crash) as hit:
            try:
                drive(config, clock)
            except CrashError:
                killed.append(point)
        assert hit.is_set(), point

    kill("after-plan")
    while (newest := log.latest()) is None or not is_loaded(newest):
        assert len(killed) < 300, "the load does not get on"
        if len(killed) < 12:
            kill("in-chunk")
        for points in (UNDECIDED, TAKING_OVER, DECIDED):
            kill(chosen.choice(points))
    drive(config, clock)
    manifests = [log.read(epoch) for epoch in log.epochs()]
    ends = set()
    for table, number in {"shop.customers": 2, "shop.lines": 11}.items():
        states = [
            manifest.tables[rel(table)] for manifest in manifests if rel(table) in manifest.tables
        ]
        assert states[-1].released == tuple(range(len(states[-1].released)))
        assert len(states[-1].released) >= number
        ends.add(next(n for n, state in enumerate(states) if state.phase == "loaded"))
    assert len(ends) == 2, "both were loaded in the same epoch"
    published = [manifest.token for manifest in manifests if not is_loaded(manifest)]
    assert max(map(published.count, published)) <= 2, "a take-over and an epoch, then it is killed"
    assert len(killed) > 20
    Truth(config, shop, VIEWS).check()


def is_loaded(manifest: Manifest) -> bool:
    """Whether both tables are."""
    states = manifest.tables.values()
    return len(states) == 2 and all(state.phase == "loaded" for state in states)


def test_tables_are_planned_side_by_side(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the other: one after the other none would ever be planned."""
    both, plan = threading.Barrier(2), begin.plan_load
    monkeypatch.setattr(begin, "plan_load", lambda *a: (both.wait(60), plan(*a))[1])
    config, clock = shop.config(chunk_rows=3), SetClock()
    drive(config, clock)
    manifest = ManifestLog(Store(config.store).manifests).latest()
    assert manifest is not None
    loaded = {str(name) for name, state in manifest.tables.items() if state.phase == "loaded"}
    assert loaded == {"shop.customers", "shop.lines"}
