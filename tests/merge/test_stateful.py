"""The Spark operator against rules.py, over real streams with several micro-batches."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mview.changelog import STREAM_DDL, StreamRow, from_ipc, stream_batch, to_ipc
from mview.clock import END_OF_TIME, SourceMs
from mview.merge.rules import ChunkState, LoadingTable, Release, step
from mview.merge.stateful import merge_stream
from mview.rows.key_sets import KeySet
from mview.snapshot import Marker
from tests.merge.real import SINGLE, change_batch
from tests.models.merge import Event
from tests.relations import rel
from tests.seeds import seeds, some_today

pytestmark = pytest.mark.spark

TABLE = LoadingTable(rel("db.t"), SINGLE, delay_ms=10)


def heartbeat(ms: int) -> StreamRow:
    return StreamRow("heartbeat", event_time=SourceMs(ms))


def changes(chunk: int, *keys: int, table: str = "db.t") -> StreamRow:
    events = [
        (Event("u", chunk, (key,), (key, 1, "x"), position, "p"), position)
        for position, key in enumerate(keys)
    ]
    return StreamRow("changes", table, chunk, len(keys), body=to_ipc(change_batch(SINGLE, events)))


def marker(chunk: int, high_ms: int, file: str = "f") -> StreamRow:
    found = Marker("db.t", chunk, file, 7, 70, "00", high_ms)
    return StreamRow("marker", "db.t", chunk, 7, body=orjson.dumps(found.to_json()))


class Feed:
    """A stream whose files are micro-batches, and what the operator made of each."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.out: list[list[StreamRow]] = []
        self.files = 0
        (folder / "in").mkdir()

    def put(self, *rows: StreamRow) -> None:
        self.files += 1
        path = self.folder / f"{self.files:04d}.parquet"
        pq.write_table(pa.Table.from_batches([stream_batch(rows)]), path)
        os.utime(path, (self.files, self.files))  # Spark takes files by their age
        path.rename(self.folder / "in" / path.name)

    def frame(self) -> DataFrame:
        stream = self.spark.readStream.schema(STREAM_DDL).option("maxFilesPerTrigger", 1)
        return merge_stream(stream.parquet(str(self.folder / "in")), [TABLE])

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        query = (
            self.frame()
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .start()
        )
        try:
            query.processAllAvailable()
            yield query
            query.processAllAvailable()
        finally:
            query.stop()

    def _take(self, frame: DataFrame, batch: int) -> None:
        rows = [
            StreamRow(r["kind"], r["table"], r["chunk"], r["rows"], r["event_time"], r["body"])
            for r in frame.toArrow().to_pylist()
        ]
        del self.out[batch:]
        self.out.append(sorted(rows, key=repr))


class Expected:
    """What rules.py makes of the same micro-batches, with Spark's watermark and timeouts."""

    def __init__(self) -> None:
        self.out: list[list[StreamRow]] = []
        self.states = {n: ChunkState(KeySet.empty(SINGLE.key_arrow)) for n in range(3)}
        self.wakes: dict[int, int] = {}
        self.watermark = 0

    def batch(self, rows: Sequence[StreamRow]) -> None:
        out: list[StreamRow] = []
        for chunk in self.states:
            mine = [row for row in rows if row.kind != "heartbeat" and row.chunk == chunk]
            if mine or self.watermark > self.wakes.get(chunk, END_OF_TIME):
                out += self._chunk(chunk, mine)
        self.out.append(out)
        stamps = [row.event_time for row in rows if row.event_time is not None]
        self.watermark = max([self.watermark, *stamps])

    def _chunk(self, chunk: int, rows: Sequence[StreamRow]) -> list[StreamRow]:
        batches = [from_ipc(row.body) for row in rows if row.kind == "changes"]
        markers = [Marker.from_json(orjson.loads(r.body)) for r in rows if r.kind == "marker"]
        state, release = step(self.states[chunk], batches, markers, self.watermark, TABLE)
        self.states[chunk] = ChunkState.from_bytes(state.to_bytes(), SINGLE.key_arrow)
        self.wakes.pop(chunk, None)
        if state.marker:
            self.wakes[chunk] = max(self.watermark, state.marker.high_ms + TABLE.delay_ms)
        out = [row for row in rows if row.kind == "changes"]
        if release:
            rows_ = release.marker.rows
            out.append(StreamRow("release", "db.t", chunk, rows_, body=release.to_body()))
        return out


def random_batch(rng: random.Random, time: int, unread: list[int]) -> list[StreamRow]:
    rows = [heartbeat(time)] if rng.random() < 0.6 else []
    for chunk in range(3):
        for _ in range(rng.choice([0, 0, 1, 2])):
            rows.append(changes(chunk, *rng.sample(range(100), rng.randint(1, 4))))
        if chunk in unread and rng.random() < 0.3:
            rows.append(marker(chunk, time - rng.randint(0, 30), f"f{rng.randrange(1000):03d}"))
            if rng.random() < 0.7:
                unread.remove(chunk)
    return rows or [heartbeat(time)]


@pytest.mark.parametrize("seed", some_today(seeds(2), 4))
def test_operator_equals_the_rules(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng, feed, expected = random.Random(seed), Feed(spark, tmp_path), Expected()
    unread, time = [0, 1, 2], 100
    for _life in range(2):  # the second one starts from the checkpoint
        for _ in range(8):
            time += rng.randint(0, 20)
            rows = random_batch(rng, time, unread)
            feed.put(*rows)
            before = expected.watermark
            expected.batch(rows)
        with feed.running():
            pass
        if expected.watermark > before:
            expected.batch([])  # a batch without data runs when the watermark has moved
    assert len(feed.out) == len(expected.out)
    for number, (got, wanted) in enumerate(zip(feed.out, expected.out, strict=True)):
        assert comparable(got) == comparable(wanted), f"seed {seed}, batch {number}"
    kinds = [row.kind for rows in feed.out for row in rows]
    assert kinds.count("release") >= 2


def comparable(rows: Sequence[StreamRow]) -> list[str]:
    return sorted(repr((r.kind, r.table, r.chunk, r.rows, r.event_time, r.body)) for r in rows)


def test_marker_waits_for_the_next_watermark(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path)
    feed.put(changes(0, 1), heartbeat(1_000))
    with feed.running():
        feed.put(marker(0, 90))
    assert [row.kind for row in feed.out[-1]] == []
    with feed.running():
        feed.put(heartbeat(1_001))
    (row,) = feed.out[-1]
    release = Release.from_body(row.body)
    assert release.marker.file == "f"
    assert release.excluded.values.tolist() == [1]


def test_rows_of_loaded_tables_pass(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path)
    row = changes(0, 1, 2, table="db.other")
    feed.put(row, heartbeat(100))
    with feed.running():
        pass
    assert feed.out[0] == [row]


def test_heartbeats_pass_the_watermark_before_they_are_dropped(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.put(changes(0, 1))
    with feed.running() as query:
        plan = query._jsq.explainInternal(False)
    assert 0 < plan.index("Filter isnull(event_time") < plan.index("EventTimeWatermark")


def test_marker_after_the_end_of_the_changelog_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.put(heartbeat(END_OF_TIME))
    with (
        pytest.raises(StreamingQueryException, match="closed before all chunks were read"),
        feed.running(),
    ):
        feed.put(marker(0, 90))
