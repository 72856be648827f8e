"""Epochs in the bench's own process: the engine's `run_epoch` over seeded tables, without Kafka.

From messages to the published manifest: decode, net, mirrors, views, sinks, manifest.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa

from mview.clock import SystemClock
from mview.config import Config
from mview.config.file import load_config
from mview.connector import Message
from mview.epoch.engine import Engine
from mview.epoch.steps import run_epoch
from mview.epoch.upkeep import Upkeep
from mview.epoch.views.build import build_views, unbuilt
from mview.epoch.views.opening import open_views
from mview.ingest.batches import Batch, BatchOffsets
from mview.ingest.decode.split import decode_split
from mview.ingest.spec import TableSpec, open_format
from mview.memory import give_back_what_is_freed
from mview.plan.definition import load_views
from mview.relation import RelationId
from mview.session.lazy import Spark
from mview.session.spark import spark_session
from mview.session.worker import settled, short_turns, without_collections
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import Lease
from tests.bench.results import MEMORY
from tests.bench.running import Meter
from tests.bench.seed import seed_store, write_config
from tests.bench.w1 import CONNECTION, KEYS, Changes, Tables, message, view_sql
from tests.relations import keyed, rel

T = TypeVar("T")

#: What `use_the_systems_allocator` of `mview.memory` says to Arrow.
_SYSTEMS_ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}

_PARTITION = "all/0"
_BEGIN_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Epochs:
    """What some epochs of one kind took.

    Attributes:
        seconds: of each.
        cpu_seconds: of all together, of this process, the JVM and the workers.
    """

    seconds: Sequence[float]
    cpu_seconds: float

    @property
    def p50(self) -> float:
        """The median, in seconds."""
        return median(self.seconds)


class Bench:
    """An open engine over seeded tables.

    Args:
        config: the configuration; its store is empty.
        tables: what the store begins with.
        views: queries by view name, with `{customer}` and so on for the tables.
        lease: of the store.
        vectors: whether the views may have deletion vectors.
    """

    def __init__(
        self,
        config: Config,
        tables: Tables,
        views: Mapping[str, str],
        lease: Lease,
        vectors: bool,
    ) -> None:
        seed_store(config, tables, {})
        self._views, self._folder = views, config.path.parent
        self._spark = spark_session(config)
        self._engine = Engine(config, Spark.of(self._spark), lease)
        self.schemas = {
            name: self._engine.manifest.tables[rel(f"{CONNECTION}.{name}")].schema for name in KEYS
        }
        self.build_seconds = self._build(config, vectors)
        self._engine.executors.warm(self._engine.look_up_keys())
        self._upkeep = Upkeep(self._engine)
        self._format = open_format(config, CONNECTION)
        self._specs = {
            name: TableSpec(rel(f"{CONNECTION}.{name}"), schema, Path(), "", None)
            for name, schema in self.schemas.items()
        }
        self._sent = self._taken = 0
        self._meter = Meter(os.getpid())

    def _build(self, config: Config, vectors: bool) -> float:
        """Open and build the views; returns the seconds of the build."""
        folder = self._folder / "views"
        folder.mkdir()
        for name, select in self._views.items():
            (folder / f"{name}.sql").write_text(view_sql(select, name, vectors))
        schemas = {f"{CONNECTION}.{name}": schema for name, schema in self.schemas.items()}
        opened = open_views(config, Spark.of(self._spark), load_views([folder]), keyed(schemas))
        assert not opened.refused, opened.refused
        self._engine.views.update(opened.views)
        self._engine.open_relations()
        start = time.perf_counter()
        for error in build_views(self._engine, unbuilt(self._engine)).values():
            raise error
        return time.perf_counter() - start

    def strategy(self, view: str) -> str:
        """How a view is maintained."""
        return self._engine.views[view].plan.strategy

    def messages(self, changes: Changes, count: int) -> list[Message]:
        """The next changes, as they stand in a topic."""
        found = []
        for change in changes.take(count):
            self._sent += 1
            value = message(change, self._sent, _BEGIN_MS + self._sent)
            found.append(Message(_PARTITION, self._sent, None, value))
        return found

    def epoch(self, messages: Sequence[Message]) -> float:
        """Run one epoch from messages; returns its seconds."""
        start = time.perf_counter()
        changes: dict[RelationId, list[pa.Table]] = {}
        with without_collections():
            for row in decode_split(messages, self._format, self._specs):
                changes.setdefault(row.table, []).append(row.changes)
        self.apply(changes, len(messages))
        return time.perf_counter() - start

    def epochs(self, changes: Changes, size: int, count: int) -> Epochs:
        """Some epochs of one size, after one that warms up."""
        self.epoch(self.messages(changes, size))
        batches = [self.messages(changes, size) for _ in range(count)]
        before = self._meter.cpu_seconds()
        seconds = [self.epoch(batch) for batch in batches]
        return Epochs(seconds, self._meter.cpu_seconds() - before)

    def apply(
        self,
        changes: Mapping[str, list[pa.Table]] | Mapping[RelationId, list[pa.Table]],
        count: int,
    ) -> float:
        """Run one epoch from decoded batches (`batch_schema`) by relation; returns its seconds."""
        start = time.perf_counter()
        self._taken += count
        manifest = self._engine.manifest
        offsets = BatchOffsets({CONNECTION: {_PARTITION: self._taken + 1}}, -1, {})
        batch = Batch(keyed(changes), {}, offsets, manifest.generation, manifest.batch + 1)
        run_epoch(self._engine, self._upkeep, batch, {})
        return time.perf_counter() - start

    def recompute(self, view: str) -> float:
        """Compute a view from scratch by plain Spark; returns the seconds."""
        for name in KEYS:
            relation = self._engine.relations[rel(f"{CONNECTION}.{name}")]
            files = [path for path, _ in relation.base_files]
            self._spark.read.parquet(*files).createOrReplaceTempView(name)
        query = self._views[view].format(**{name: name for name in KEYS})
        start = time.perf_counter()
        self._spark.sql(query).write.mode("overwrite").parquet(str(self._folder / "recompute"))
        return time.perf_counter() - start

    def cpu_seconds(self) -> float:
        """CPU seconds so far, of this process, the JVM and the workers."""
        return self._meter.cpu_seconds()

    def close(self) -> None:
        """Free everything but the Spark session."""
        self._meter.close()
        self._upkeep.close()
        self._engine.executors.close()


@contextmanager
def opened(
    tables: Tables, views: Mapping[str, str], extra: str, vectors: bool = False
) -> Iterator[Bench]:
    """A bench in a store of its own, which is gone at the end.

    Args:
        tables: what the store begins with.
        views: queries by view name.
        extra: more sections of the configuration.
        vectors: whether the views may have deletion vectors.
    """
    with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
        changes = "{source: files, format: unified, path: changes, T: 1s}"
        config = load_config(write_config(Path(temp), changes, extra))
        claim_store(config.store)
        with Lease(Store(config.store).lease, SystemClock()) as lease:
            bench = Bench(config, tables, views, lease, vectors)
            try:
                with short_turns(), settled():  # as a run has it
                    yield bench
            finally:
                bench.close()


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function of a module in a process of its own: a cold JVM, nothing in memory.

    It takes memory as `mview run` does.
    """
    context = get_context("spawn")
    with patch.dict(os.environ, _SYSTEMS_ALLOCATOR), context.Pool(1, _as_a_run) as pool:
        return pool.apply(function, arguments)


def _as_a_run() -> None:
    # Arrow is here by now, and has chosen; processes of this one are not concerned.
    for name in _SYSTEMS_ALLOCATOR:
        del os.environ[name]
    give_back_what_is_freed(MEMORY)
