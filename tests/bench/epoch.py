"""An epoch of some changes, on each executor, against a full Spark recompute of the same view.

    python -m tests.bench.epoch --sf 0.1 --changes 30,300,1000,10000

The epochs are the engine's own `run_epoch`, from messages to the published manifest: decode, net,
mirrors, view, sink, manifest. The recompute is plain Spark over the same Parquet files.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa

from mview.changelog import from_ipc
from mview.clock import SystemClock
from mview.config import Config, load_config
from mview.connector import Message
from mview.plan.definition import load_views
from mview.runtime.build import build_views, unbuilt
from mview.runtime.decode import decode_split
from mview.runtime.engine import Engine
from mview.runtime.epoch import EpochInput, run_epoch
from mview.runtime.offsets import BatchOffsets
from mview.runtime.session import spark_session
from mview.runtime.spec import TableSpec, open_format
from mview.runtime.upkeep import Upkeep
from mview.runtime.views import open_views
from mview.store.layout import Store
from mview.store.lease import Lease
from tests.bench.results import Result
from tests.bench.seed import seed_store, write_config
from tests.bench.w1 import CONNECTION, KEYS, VIEW, Changes, Tables, make_tables, message, view_sql

#: Epochs per size after one that warms up; a Spark epoch of tens of thousands takes seconds.
_EPOCHS = {"local": 12, "spark": 5}
_RECOMPUTES = 4


class Bench:
    """An open engine over seeded tables, fed with generated changes.

    Args:
        config: the configuration; its store is empty.
        tables: what the store begins with.
    """

    def __init__(self, config: Config, tables: Tables, lease: Lease) -> None:
        seed_store(config, tables, {})
        self._config, self._changes = config, Changes(tables)
        self.spark = spark_session(config)
        self.engine = Engine(config, self.spark, lease)
        schemas = {name: state.schema for name, state in self.engine.manifest.tables.items()}
        (config.path.parent / "order_revenue.sql").write_text(view_sql())
        definitions = load_views([config.path.parent / "order_revenue.sql"])
        self.engine.views.update(open_views(config, self.spark, definitions, schemas))
        self.engine.open_relations()
        start = time.perf_counter()
        build_views(self.engine, unbuilt(self.engine))
        self.build_seconds = time.perf_counter() - start
        self.engine.executors.warm()
        self._upkeep = Upkeep(self.engine)
        self._format = open_format(config, CONNECTION)
        self._specs = {
            name: TableSpec(
                f"{CONNECTION}.{name}", schemas[f"{CONNECTION}.{name}"], Path(), "", None
            )
            for name in KEYS
        }
        self._position = 0

    def messages(self, count: int) -> list[Message]:
        """The next changes, as they stand in a topic."""
        found = []
        for change in self._changes.take(count):
            self._position += 1
            value = message(change, self._position, 1_700_000_000_000 + self._position)
            found.append(Message("all/0", self._position, None, value))
        return found

    def epoch(self, messages: Sequence[Message]) -> float:
        """Run one epoch; returns its seconds."""
        start = time.perf_counter()
        changes: dict[str, list[pa.Table]] = {}
        for row in decode_split(messages, self._format, self._specs):
            changes.setdefault(row.table, []).append(from_ipc(row.body))
        manifest = self.engine.manifest
        offsets = BatchOffsets({CONNECTION: {"all/0": self._position + 1}}, -1, 0)
        batch = EpochInput(changes, {}, offsets, manifest.generation, manifest.batch + 1)
        run_epoch(self.engine, self._upkeep, batch, {})
        return time.perf_counter() - start

    def recompute(self, folder: Path) -> float:
        """Compute the view from scratch by plain Spark; returns the seconds."""
        for name in KEYS:
            relation = self.engine.relations[f"{CONNECTION}.{name}"]
            files = [path for path, _ in relation.base_files]
            self.spark.read.parquet(*files).createOrReplaceTempView(name)
        start = time.perf_counter()
        query = VIEW.format(**{name: name for name in KEYS})
        self.spark.sql(query).write.mode("overwrite").parquet(str(folder / "recompute"))
        return time.perf_counter() - start

    def close(self) -> None:
        """Free everything."""
        self._upkeep.close()
        self.engine.executors.close()


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--changes", default="30,300,1000,10000")
    parser.add_argument("--executors", default="local,spark")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    result = Result(
        "epoch",
        f"An epoch against a full recompute, W1 at scale {options.sf:g}",
        ["executor", "changes", "p50 ms", "max ms", "recompute ms", "ratio"],
        variant=f"sf{options.sf:g}",
    )
    tables = make_tables(options.sf)
    for executor in options.executors.split(","):
        with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
            folder = Path(temp)
            extra = f"engine: {{executor: {executor}}}\nspark: {{master: '{options.master}'}}"
            changes = "{source: files, format: unified, path: changes, T: 1s}"
            config = load_config(write_config(folder, changes, extra))
            with Lease(Store(config.store).lease, SystemClock()) as lease:
                bench = Bench(config, tables, lease)
                try:
                    _measure(bench, executor, options.changes, folder, result)
                finally:
                    bench.close()
    result.notes.append("recompute: median of the runs beside each size, after one to warm up")
    result.save()


def _measure(bench: Bench, executor: str, sizes: str, folder: Path, result: Result) -> None:
    built = bench.build_seconds
    result.notes.append(f"first build of the view before the {executor} epochs: {built:.1f} s")
    bench.recompute(folder)
    for size in (int(text) for text in sizes.split(",")):
        recomputes = [bench.recompute(folder) for _ in range(_RECOMPUTES // 2)]
        bench.epoch(bench.messages(size))
        times = [bench.epoch(bench.messages(size)) for _ in range(_EPOCHS[executor])]
        recomputes += [bench.recompute(folder) for _ in range(_RECOMPUTES // 2)]
        full = median(recomputes)
        result.add(
            executor,
            size,
            median(times) * 1000,
            max(times) * 1000,
            full * 1000,
            median(times) / full,
        )


if __name__ == "__main__":
    main()
