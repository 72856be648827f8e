"""What the sources decide without Spark: chunk order, staging, alignment, offsets of a batch."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mview.clock import SourceMs
from mview.config import load_config
from mview.connector import Progress
from mview.errors import CorruptionError
from mview.runtime.changelogs import Changelogs, held_back
from mview.runtime.offsets import batch_offsets
from mview.runtime.sources import stage_chunk
from mview.runtime.spec import QuerySpec, TableSpec, open_changelog, read_spec
from mview.schema import Column, TableSchema
from mview.snapshot import ChunkPlan

SCHEMA = TableSchema((Column("id", pa.int64(), nullable=False),), ("id",))


def table(name: str, bounds: int, base: Path = Path("base")) -> TableSpec:
    plan = ChunkPlan(name, ("id",), tuple((n,) for n in range(1, bounds + 1)), (bounds,), 10)
    return TableSpec(name, SCHEMA, base, "stage/000001", plan)


def progress(watermark: int | None, backlog: int) -> Progress:
    return Progress({}, None if watermark is None else SourceMs(watermark), backlog)


def test_chunks_of_several_tables_are_interleaved_by_their_share() -> None:
    tables = {"a.big": table("a.big", 3), "b.small": table("b.small", 1)}
    spec = QuerySpec(1, Path("mview.yml"), tables, {}, -1, 2, False)
    order = [(one.name, chunk.number) for one, chunk in spec.chunks]
    assert order == [
        ("a.big", 0),
        ("b.small", 0),
        ("a.big", 1),
        ("a.big", 2),
        ("b.small", 1),
        ("a.big", 3),
    ]


def test_a_spec_survives_its_file(tmp_path: Path) -> None:
    config = tmp_path / "mview.yml"
    config.write_text("store: s\n")
    tables = {"a.t": table("a.t", 2)}
    spec = QuerySpec(3, config, tables, {"a": {"t/0": 5}}, 17, 2, True)
    spec.write(tmp_path / "q" / "spec.json")
    assert read_spec(str(tmp_path / "q" / "spec.json"))[0] == spec


def test_staged_rows_and_their_facts(tmp_path: Path) -> None:
    one = table("a.t", 1, tmp_path)
    assert one.plan is not None
    batches = [pa.record_batch([pa.array([1, 2])], schema=SCHEMA.arrow)] * 2
    facts = stage_chunk(iter(batches), one, one.plan.chunks[0])
    file = tmp_path / facts["file"]
    assert facts["rows"] == 4
    assert facts["size"] == file.stat().st_size
    assert pq.read_table(file)["id"].to_pylist() == [1, 2, 1, 2]


def test_an_empty_chunk_leaves_no_file(tmp_path: Path) -> None:
    one = table("a.t", 1, tmp_path)
    assert one.plan is not None
    facts = stage_chunk(iter([]), one, one.plan.chunks[0])
    assert facts == {"file": "", "rows": 0, "size": 0, "digest": ""}
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_log_far_ahead_waits_for_one_that_is_behind() -> None:
    found = {"slow": progress(1_000, backlog=9), "fast": progress(99_000, backlog=0)}
    assert held_back(found, 60_000) == {"fast"}
    assert held_back(found, 98_000) == set()


def test_a_silent_log_holds_nobody_back() -> None:
    found = {"silent": progress(1_000, backlog=0), "fast": progress(99_000, backlog=5)}
    assert held_back(found, 60_000) == set()
    assert held_back({"new": progress(None, 4), "fast": progress(9, 0)}, 0) == set()


def test_batch_offsets_come_from_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    changes = {"connections": {"a": {"t/0": 7}}, "watermark": 12, "pinned_ms": 60_000}
    lines = ["v1", "{}", json.dumps({"next": 3}), json.dumps(changes)]
    (tmp_path / "offsets" / "4").write_text("\n".join(lines))
    found = batch_offsets(tmp_path, 4)
    assert (found.connections, found.watermark, found.chunks) == ({"a": {"t/0": 7}}, 12, 3)


def test_a_torn_offset_file_is_corruption(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text('v1\n{}\n{"conn')
    with pytest.raises(CorruptionError, match="offsets of batch 4"):
        batch_offsets(tmp_path, 4)


class Clock:
    """A clock that a test moves."""

    ms = 61_500

    def now(self) -> int:
        return self.ms


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Make the reader of an empty log, for views that need the time this often."""
    (tmp_path / "log").mkdir()
    config = tmp_path / "mview.yml"
    config.write_text(
        "store: data\nconnections: {a: {drivername: sqlite, database: a.db}}\n"
        "changes: {a: {source: files, format: unified, path: log}}\n"
    )
    monkeypatch.setattr("mview.runtime.changelogs.SystemClock", Clock)
    monkeypatch.setattr("mview.runtime.changelogs.WAIT_MS", 0)
    monkeypatch.setattr(Clock, "ms", Clock.ms)

    def make(tick_ms):
        log = open_changelog(load_config(config), "a", [])
        spec = QuerySpec(1, config, {}, {"a": log.begin()}, -1, 1, False, 60_000, tick_ms)
        spec.write(tmp_path / "spec.json")
        return Changelogs(str(tmp_path / "spec.json"))

    return make


def test_a_tick_is_news(reader):
    stream = reader(1_000)
    start = stream.begin()
    assert start["pinned_ms"] == 60_000
    first = stream.advance(start)
    assert first == {**start, "pinned_ms": 61_000}
    assert stream.pieces(start, first) == []
    assert stream.advance(first) == first
    Clock.ms = 62_000
    second = stream.advance(first)
    assert second["pinned_ms"] == 62_000
    Clock.ms = 50_000  # the machine's clock was set back
    assert stream.advance(second) == second


@pytest.mark.parametrize("tick_ms", [0, 86_400_000])
def test_no_tick_before_its_time(reader, tick_ms):
    stream = reader(tick_ms)
    start = stream.begin()
    assert stream.advance(start) == start


def test_a_bounded_run_ends_at_the_time_of_its_start(reader):
    stream = reader(1_000)
    stream.finish()
    Clock.ms = 99_000
    end = stream.advance(stream.begin())
    assert end["pinned_ms"] == 61_000
    assert stream.advance(end) == end
