"""How large is the merge's state while a table is being loaded?

Runs the real operator on Spark: every chunk is read, a share of the keys changes while no chunk can
be released, and the checkpoint's state folder is measured then and after the release.

    python -m tests.bench.merge_state --rows 1000000 5000000 --key int string
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mview.changelog import (
    STREAM_DDL,
    StreamRow,
    batch_schema,
    encode_position,
    stream_batch,
    to_ipc,
)
from mview.clock import SourceMs
from mview.merge.rules import LoadingTable
from mview.merge.stateful import merge_stream
from mview.schema import Column, TableSchema
from mview.session.spark import spark_session
from mview.snapshot import Marker
from tests.conftest import small_config
from tests.relations import rel

START = 1_700_000_000_000


@dataclass(frozen=True)
class Case:
    """One measurement."""

    rows: int
    key: str
    share: float
    chunk_rows: int
    batches: int

    @property
    def table(self) -> LoadingTable:
        """The table that is loaded."""
        kind = pa.int64() if self.key == "int" else pa.string()
        return LoadingTable(rel("db.t"), TableSchema((Column("id", kind, False),), ("id",)), 1_000)

    @property
    def chunks(self) -> int:
        """Number of snapshot chunks."""
        return -(-self.rows // self.chunk_rows)


def changes(case: Case, batch: int) -> Iterator[StreamRow]:
    """One micro-batch of changes: a part of the changing keys, spread over all chunks."""
    rng = np.random.default_rng(batch)
    schema = case.table.schema
    for chunk in range(case.chunks):
        size = int(case.chunk_rows * case.share / case.batches)
        # A batch has its own residue class of keys: no key changes twice.
        own = rng.choice(case.chunk_rows // case.batches, size, replace=False)
        ids = chunk * case.chunk_rows + own * case.batches + batch
        keys = ids if case.key == "int" else [f"customer-{n:012d}" for n in ids]
        columns = {
            "__op": ["u"] * size,
            "__position": [encode_position((1, batch, n)) for n in range(size)],
            "__source_ms": [START] * size,
            "__partition": ["t/0"] * size,
            "__offset": range(size),
            "__unchanged": [None] * size,
            "id": keys,
        }
        table = pa.table(columns, schema=batch_schema(schema))
        yield StreamRow("changes", "db.t", chunk, size, body=to_ipc(table))


def markers(case: Case) -> Iterator[StreamRow]:
    """All chunks are read at one time."""
    for chunk in range(case.chunks):
        name = f"chunk-{chunk:05d}-7f3a0c55-6f0e-4d56-9b5e-0a4f6f1d2c11.parquet"
        found = Marker("db.t", chunk, name, case.chunk_rows, 10**7, "0" * 32, START + 900)
        yield StreamRow("marker", "db.t", chunk, body=orjson.dumps(found.to_json()))


class Load:
    """The streaming query of one case, fed one micro-batch at a time."""

    def __init__(self, spark: SparkSession, case: Case, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        (folder / "in").mkdir()
        stream = spark.readStream.schema(STREAM_DDL).parquet(str(folder / "in"))
        self.query = (
            merge_stream(stream, [case.table])
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )

    def batch(self, rows: Iterator[StreamRow]) -> float:
        """Feed one micro-batch; its seconds."""
        self.files += 1
        path = self.folder / f"{self.files:04d}.parquet"
        pq.write_table(pa.Table.from_batches([stream_batch(rows)]), path)
        begin = time.perf_counter()
        path.rename(self.folder / "in" / path.name)
        self.query.processAllAvailable()
        return time.perf_counter() - begin

    def live(self) -> int:
        """Bytes of the state's values as the last batch left them."""
        state = self.spark.read.format("statestore").load(str(self.folder / "checkpoint"))
        value = state.select(F.sum(F.length("value.groupState.state"))).first()
        return int(value[0] or 0) if value else 0

    def state_files(self) -> list[Path]:
        """All files of the state store."""
        folder = self.folder / "checkpoint" / "state"
        return [path for path in folder.rglob("*") if path.is_file()]

    def snapshot(self) -> int:
        """Bytes of the newest full copy of every partition of the state, as Spark wrote it."""
        newest: dict[Path, tuple[int, int]] = {}
        for path in self.state_files():
            if path.suffix in (".snapshot", ".zip"):
                found = (int(path.stem.split("_")[0]), path.stat().st_size)
                newest[path.parent] = max(newest.get(path.parent, found), found)
        return sum(size for _, size in newest.values())

    def whole(self) -> int:
        """Bytes of the whole state folder."""
        return sum(path.stat().st_size for path in self.state_files())


def measure(spark: SparkSession, case: Case) -> str:
    """Run one case; a row of the result table."""
    folder = Path(tempfile.mkdtemp(prefix="merge-state-"))
    try:
        load = Load(spark, case, folder)
        load.batch(iter([StreamRow("heartbeat", event_time=SourceMs(START))]))
        seconds = []
        for number in range(case.batches):
            seconds.append(load.batch(changes(case, number)))
            if number == case.batches // 2:
                load.batch(markers(case))
        time.sleep(3)  # the store cleans up in the background, once a second (see main)
        live, snapshot, whole = load.live(), load.snapshot(), load.whole()
        load.batch(iter([StreamRow("heartbeat", event_time=SourceMs(START + 60_000))]))
        after = load.live()
        load.query.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return (
        f"| {case.rows:,} | {case.key} | {case.chunks} | {live / case.rows:.3f} "
        f"| {snapshot / case.rows:.3f} | {whole / case.rows:.3f} | {after} "
        f"| {1e3 * float(np.median(seconds)):.0f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--key", nargs="+", default=["int", "string"], choices=["int", "string"])
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--chunk-rows", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--conf", nargs="*", default=[], help="Spark settings, key=value")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session(small_config(Path(folder)))
        # For the measurement only: clean up at once instead of once a minute.
        spark.conf.set("spark.sql.streaming.stateStore.maintenanceInterval", "1s")
        for setting in args.conf:
            spark.conf.set(*setting.split("=", 1))
        print(
            "| rows | key | chunks | live B/row | snapshot B/row | folder B/row | after, B "
            "| batch ms |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for key in args.key:
            for rows in args.rows:
                case = Case(rows, key, args.share, args.chunk_rows, args.batches)
                print(measure(spark, case), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
