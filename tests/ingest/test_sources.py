"""What the sources decide without Spark: chunk order, staging, alignment, offsets of a batch."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mview.clock import SourceMs
from mview.config import Config, EngineSettings
from mview.config.file import load_config
from mview.connector import Progress, Split
from mview.errors import ConfigError, CorruptionError, DecodeError
from mview.ingest.batches import batch_offsets
from mview.ingest.changelogs import (
    CHUNKS_READ,
    Changelogs,
    ahead_of,
    marks_of,
    packed,
    slowest_of,
)
from mview.ingest.chunks import stage_chunk
from mview.ingest.pace import HELD_S
from mview.ingest.sources import SnapshotReader
from mview.ingest.spec import (
    QuerySpec,
    TableSpec,
    chunk_bytes,
    chunks_per_epoch,
    open_changelog,
    read_spec,
)
from mview.schema import Column, TableSchema
from mview.snapshot import ChunkPlan
from mview.store.layout import Store
from mview.store.requests.paused import pause, resume
from tests.relations import keyed, rel

SCHEMA = TableSchema((Column("id", pa.int64(), nullable=False),), ("id",))


def table(name: str, bounds: int, base: Path = Path("base")) -> TableSpec:
    plan = ChunkPlan(name, ("id",), tuple((n,) for n in range(1, bounds + 1)), (bounds,), 10)
    return TableSpec(rel(name), SCHEMA, base, "stage/000001", plan)


def progress(watermark: int | None, backlog: int) -> Progress:
    return Progress({}, None if watermark is None else SourceMs(watermark), backlog)


def test_chunks_of_several_tables_are_interleaved_by_their_share() -> None:
    tables = {"a.big": table("a.big", 3), "b.small": table("b.small", 1)}
    spec = QuerySpec(
        1, Config(path=Path("mview.yml"), store=Path("s")), keyed(tables), {}, -1, 2, False
    )
    order = [(str(one.name), chunk.number) for one, chunk in spec.chunks]
    assert order == [
        ("a.big", 0),
        ("b.small", 0),
        ("a.big", 1),
        ("a.big", 2),
        ("b.small", 1),
        ("a.big", 3),
    ]


def test_a_load_goes_on_when_a_table_of_it_was_loaded(tmp_path: Path) -> None:
    """Offsets name chunks: those of a table that is left out are no place in what is left."""
    config = tmp_path / "mview.yml"
    config.write_text(
        "store: s\nengine: {chunks_per_epoch: 3}\nconnections:\n"
        "  a: {drivername: sqlite, database: a.db}\n  b: {drivername: sqlite, database: b.db}\n"
    )
    tables = {"a.big": table("a.big", 3), "b.small": table("b.small", 1)}
    file = tmp_path / "spec.json"
    reader = SnapshotReader(
        QuerySpec(1, load_config(config), keyed(tables), {}, -1, 2, False).write(file)
    )
    begin = reader.initialOffset()
    first = reader.latestOffset(begin, ReadAllAvailable())
    parts = [(str(part.table), part.chunk) for part in reader.partitions(begin, first)]
    assert parts == [("a.big", 0), ("b.small", 0), ("a.big", 1)]

    tables["b.small"] = replace(tables["b.small"], plan=None)
    reader = SnapshotReader(
        QuerySpec(1, load_config(config), keyed(tables), {}, -1, 2, False).write(file)
    )
    second = reader.latestOffset(first, ReadAllAvailable())
    parts = [(str(part.table), part.chunk) for part in reader.partitions(first, second)]
    assert parts == [("a.big", 2), ("a.big", 3)]
    # A batch that Spark had not noted is done again, without the table that needs no chunk more.
    assert [str(part.table) for part in reader.partitions(begin, first)] == ["a.big", "a.big"]
    assert reader.latestOffset(second, ReadAllAvailable()) == second


def test_where_no_chunk_may_be_read_spark_is_told_so_and_not_at_once(tmp_path: Path) -> None:
    """It asks again and again: that must neither cost nor read."""
    config = tmp_path / "mview.yml"
    config.write_text("store: s\nconnections:\n  a: {drivername: sqlite, database: a.db}\n")
    tables, waits = {"a.big": table("a.big", 3)}, list[float]()
    settings = load_config(config)
    spec = QuerySpec(1, settings, keyed(tables), {}, -1, 2, False).write(tmp_path / "spec.json")
    reader = SnapshotReader(spec, waits.append)
    begin = reader.initialOffset()
    pause(Store(settings.store), rel("a.big"), 0)
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin
    assert waits == [HELD_S]
    resume(Store(settings.store), rel("a.big"))
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert (end, waits) == ({"chunks": {"a.big": 4}}, [HELD_S])
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert waits == [HELD_S], "when all is read nothing is waited for"


def test_a_small_budget_makes_small_chunks_and_more_of_them() -> None:
    """An epoch reads as many bytes as with a large one."""
    usual, small = EngineSettings(), EngineSettings(memory=128 << 20)
    assert (chunk_bytes(usual), chunks_per_epoch(usual, 2)) == (64 << 20, 4)
    assert (chunk_bytes(small), chunks_per_epoch(small, 2)) == (4 << 20, 64)
    assert chunks_per_epoch(EngineSettings(memory=128 << 20, chunks_per_epoch=3), 2) == 3


def test_a_spec_survives_its_file(tmp_path: Path) -> None:
    config = tmp_path / "mview.yml"
    config.write_text("store: s\n")
    tables = {"a.t": table("a.t", 2)}
    spec = QuerySpec(3, load_config(config), keyed(tables), {"a": {"t/0": 5}}, 17, 2, True)
    reference = spec.write(tmp_path / "q" / "spec.json")
    assert read_spec(reference) == spec


def test_a_spec_that_somebody_changed_is_refused(tmp_path: Path) -> None:
    config, file = tmp_path / "mview.yml", tmp_path / "q#1" / "spec.json"
    config.write_text("store: s\n")
    reference = QuerySpec(
        3, load_config(config), {rel("a.t"): table("a.t", 2)}, {}, 17, 2, True
    ).write(file)
    file.write_text(file.read_text().replace(str(config), "/tmp/theirs.yml"))
    with pytest.raises(CorruptionError, match="somebody changed") as caught:
        read_spec(reference)
    assert caught.value.where == str(file)


@pytest.mark.parametrize("old", ["path: log", "database: a.db"])
def test_a_run_reads_by_the_places_it_began_with(tmp_path: Path, old: str) -> None:
    """Offsets of a log, and chunks of a database, are of no other one."""
    text = (
        "store: s\nconnections: {a: {drivername: sqlite, database: a.db}}\n"
        "changes: {a: {source: files, format: unified, path: log}}\n"
    )
    file = tmp_path / "mview.yml"
    file.write_text(text)
    spec = QuerySpec(3, load_config(file), {}, {"a": {"log": ["", 0, 0]}}, 17, 2, True)
    reference = spec.write(tmp_path / "spec.json")
    for edited in (f"{text}engine: {{max_changes: 7}}\n", text.replace(old, f"{old}2"), "store: {"):
        file.write_text(edited)
        read_spec.cache_clear()
        assert read_spec(reference) == spec
    file.unlink()
    read_spec.cache_clear()
    assert read_spec(reference) == spec


def test_a_spec_has_no_more_of_the_configuration_than_is_read_by(tmp_path: Path) -> None:
    """Of what nobody reads by, not all is checked: there may be a password in it."""
    file = tmp_path / "mview.yml"
    file.write_text(
        "connections: {a: {drivername: sqlite, database: a.db, password: '${env:WORD}'}}\n"
        "sinks: {away: {type: kafka, password: hidden}} # hidden\n"
    )
    config = load_config(file)
    reference = QuerySpec(3, config, {}, {}, 17, 2, True).write(tmp_path / "spec.json")
    assert "hidden" not in (tmp_path / "spec.json").read_text()
    assert read_spec(reference).config.connections == config.connections


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


def test_a_log_ahead_waits_for_one_that_is_behind() -> None:
    found = {"slow": progress(1_000, backlog=9), "fast": progress(99_000, backlog=0)}
    assert slowest_of(found) == 1_000
    assert ahead_of(found, SourceMs(1_000)) == ["fast"]
    assert ahead_of({**found, "new": progress(None, 0)}, SourceMs(1_000)) == ["fast", "new"]


def test_a_silent_log_holds_nobody_back() -> None:
    found = {"silent": progress(1_000, backlog=0), "fast": progress(99_000, backlog=5)}
    assert slowest_of(found) == 99_000
    assert ahead_of(found, SourceMs(99_000)) == []
    assert slowest_of({"new": progress(None, 4), "fast": progress(9, 0)}) is None
    assert slowest_of({"only": progress(9, 4)}) is None


def write_log(folder: Path, name: str, times: list[int]) -> None:
    (folder / name).mkdir(parents=True)
    lines = [
        {"op": "insert", "table": "t", "after": {"id": n}, "ts": ts} for n, ts in enumerate(times)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / name / "1.jsonl").write_text(text)


def _read(stream: Changelogs, start: dict[str, Any], end: dict[str, Any], name: str) -> int:
    """How many messages of a connection lie between two offsets."""
    changelog = stream._open()[name]
    splits = changelog.splits(start["connections"][name], end["connections"][name])
    return sum(1 for _ in changelog.read(splits))


def test_logs_of_two_connections_are_read_side_by_side(tmp_path: Path) -> None:
    """After an outage: 100 changes an hour in one, 10 in the other; half an hour may differ."""
    hour = 3_600_000
    times = {
        "busy": [n * hour // 100 for n in range(1_000)],
        "calm": [n * hour // 10 for n in range(100)],
    }
    for name, stamps in times.items():
        write_log(tmp_path, name, stamps)
    config = tmp_path / "mview.yml"
    config.write_text(
        "store: data\nengine: {max_changes: 60, max_drift: 30 minutes}\n"
        "connections: {busy: {drivername: sqlite, database: a.db},"
        " calm: {drivername: sqlite, database: b.db}}\nchanges:\n"
        + "".join(
            f"  {name}: {{source: files, format: unified, path: {name}, T: 1 s}}\n"
            for name in times
        )
    )
    start = {name: {"log": ["", 0, 0]} for name in times}
    spec = QuerySpec(1, load_config(config), {}, start, -1, 1, False)
    stream = Changelogs(spec.write(tmp_path / "spec.json"))
    at, read = stream.begin(), {"busy": 0, "calm": 0}
    while read != {"busy": 1_000, "calm": 100}:
        end = stream.advance(at)
        for name in read:
            read[name] += _read(stream, at, end, name)
        # The last change that is taken, and the first that is not.
        newest = max(times[name][read[name] - 1] for name in times if read[name])
        oldest = min([times[n][read[n]] for n in times if read[n] < len(times[n])], default=newest)
        assert newest - oldest <= hour / 2 + 1, read
        assert end != at, read
        assert end["watermark"] <= oldest
        at = end


def test_what_a_log_is_read_by_is_kept_in_process_until_the_end_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of Spark keeps nothing: it may never read again."""
    write_log(tmp_path, "a", list(range(100)))
    file = tmp_path / "mview.yml"
    file.write_text(
        "store: data\nengine: {max_changes: 10}\n"
        "connections: {a: {drivername: sqlite, database: a.db}}\n"
        "changes: {a: {source: files, format: unified, path: a, T: 1 s}}\n"
    )
    spec = TableSpec(rel("a.t"), SCHEMA, tmp_path, "stage/000001", None)
    start = {"a": {"log": ["", 0, 0]}}
    query = QuerySpec(1, load_config(file), {spec.name: spec}, start, -1, 1, False)
    opened: list[Any] = []
    closed: list[Any] = []

    def open_noted(*args: Any, **named: Any) -> Any:
        changelog = open_changelog(*args, **named)
        monkeypatch.setattr(changelog, "close", lambda: closed.append(changelog))
        opened.append(changelog)
        return changelog

    stream = Changelogs(query.write(tmp_path / "spec.json"))
    at, taken = stream.begin(), []
    pieces = []
    for _ in range(4):
        end = stream.advance(at)
        pieces += stream.pieces(at, end)
        at = end
    monkeypatch.setattr("mview.ingest.changelogs.open_changelog", open_noted)
    for piece in pieces[:3]:
        taken += [row for read in stream.changes(piece) for row in read.changes["id"].to_pylist()]
    assert taken == list(range(30))
    assert (len(opened), closed) == (1, [])
    (tmp_path / "a" / "1.jsonl").write_text("no change\n" * 1_000)
    with pytest.raises(DecodeError):
        list(stream.changes(pieces[3]))
    assert closed == opened
    write_log(tmp_path / "again", "a", list(range(100)))
    (tmp_path / "again" / "a" / "1.jsonl").replace(tmp_path / "a" / "1.jsonl")
    assert len(list(stream.changes(pieces[3]))) == 1
    assert (len(opened), len(closed)) == (2, 1)
    worker = pickle.loads(pickle.dumps(stream))
    assert len(list(worker.rows(pieces[0]))) == 1
    assert (len(opened), len(closed)) == (3, 2)
    stream.close()
    assert len(closed) == 3


def test_a_silent_log_holds_the_others_as_long_as_is_asked_for() -> None:
    found = {"silent": progress(1_000, backlog=0), "fast": progress(99_000, backlog=0)}
    assert slowest_of(found) is None
    assert slowest_of(found, 1 << 40) == 1_000
    assert slowest_of(found, 30_000) == 69_000
    assert slowest_of({**found, "slow": progress(5_000, backlog=1)}, 30_000) == 5_000
    unknown = {"new": progress(None, backlog=0), "fast": progress(99_000, backlog=0)}
    assert slowest_of(unknown, 1 << 40) == 0
    assert slowest_of(unknown, 30_000) == 69_000
    assert slowest_of({"new": progress(None, backlog=0)}, 9) is None
    assert slowest_of({"only": progress(9, backlog=0)}, 9) is None


@pytest.mark.parametrize(("alignment", "taken"), [("fresh", 100), ("wait", 21), ("30 seconds", 70)])
def test_how_much_is_taken_while_another_source_is_silent(
    tmp_path: Path, alignment: str, taken: int
) -> None:
    """One change a second; the other source has told of its first twenty seconds."""
    write_log(tmp_path, "fast", [n * 1_000 for n in range(100)])
    write_log(tmp_path, "silent", [20_001])
    file = tmp_path / "mview.yml"
    file.write_text(
        f"store: data\nengine: {{max_drift: 0, alignment: {alignment}}}\nconnections: "
        "{fast: {drivername: sqlite, database: a.db}, silent: {drivername: sqlite, database: b.db}}"
        "\nchanges:\n  fast: {source: files, format: unified, path: fast}\n"
        "  silent: {source: files, format: unified, path: silent}\n"
    )
    config = load_config(file)
    start = {name: {"log": ["", 0, 0]} for name in config.changes}
    spec = QuerySpec(1, config, {}, start, -1, 1, False)
    stream = Changelogs(spec.write(tmp_path / "spec.json"))
    at, read = stream.begin(), 0
    for _ in range(2):
        end = stream.advance(at)
        read += _read(stream, at, end, "fast")
        at = end
    assert read == taken
    assert at["cuts"]["silent"] == {"until": 20_000, "whole": None}
    stream.finish()  # the end of a bounded run waits for nobody
    assert read + _read(stream, at, stream.advance(at), "fast") == 100


@pytest.mark.parametrize(
    ("loading", "passed"), [("fast", 99_000), ("slow", 20_000), ("fast slow", 20_000), ("", None)]
)
def test_a_load_waits_for_the_logs_of_its_own_tables_alone(
    tmp_path: Path, loading: str, passed: int | None
) -> None:
    """Also where the clock of another connection is far ahead, at which the run has been."""
    file = tmp_path / "mview.yml"
    names = ("fast", "slow", "unknown")
    file.write_text(
        "store: data\nconnections:\n"
        + "".join(f"  {name}: {{drivername: sqlite, database: {name}.db}}\n" for name in names)
        + "changes:\n"
        + "".join(f"  {name}: {{source: files, format: unified, path: .}}\n" for name in names)
    )
    tables = {f"{name}.t": table(f"{name}.t", 1) for name in names}
    tables = {k: v if v.connection in loading else replace(v, plan=None) for k, v in tables.items()}
    start = {name: {"log": 0} for name in names}
    spec = QuerySpec(1, load_config(file), keyed(tables), start, 500_000, 1, False)
    stream = Changelogs(spec.write(tmp_path / "spec.json"))
    marks = {"fast": SourceMs(99_000), "slow": SourceMs(20_000), "unknown": None}
    stream._changelogs = {name: At(mark) for name, mark in marks.items()}  # type: ignore[misc]
    begin = {**stream.begin(), "cuts": {"left": {"until": 5, "whole": None}}}
    end = stream.advance(begin)
    stamped = [piece.watermark for piece in stream.pieces(begin, end)]
    assert stamped == ([] if passed is None else [passed])
    assert end["watermark"] == 500_000
    for log in stream._changelogs.values():
        log.mark = None  # type: ignore[attr-defined]
    again = stream.advance(end)
    assert [marks_of(cuts) for cuts in (end["cuts"], again["cuts"])] == [
        {"fast": 99_000, "slow": 20_000}
    ] * 2
    assert stream.pieces(end, again) == []


def test_a_bounded_load_waits_for_t_by_no_clock_that_may_be_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its last chunk was read, the clock was an hour ahead."""
    write_log(tmp_path, "a", [1])
    file = tmp_path / "mview.yml"
    file.write_text(
        "store: data\nconnections: {a: {drivername: sqlite, database: a.db}}\n"
        "changes: {a: {source: files, format: unified, path: a, T: 10 s}}\n"
    )
    start = {"a": {"log": ["", 0, 0]}}
    tables = keyed({"a.t": table("a.t", 1)})
    spec = QuerySpec(1, load_config(file), tables, start, -1, 1, True)
    stream = Changelogs(spec.write(tmp_path / "spec.json"))
    seconds = [5.0, 14.9, 15.1]
    clock = SimpleNamespace(monotonic=iter(seconds).__next__)
    monkeypatch.setattr("mview.ingest.changelogs.time", clock)
    flag = tmp_path / CHUNKS_READ
    flag.touch()
    os.utime(flag, (time.time() + 3600,) * 2)
    ended: list[bool] = []
    for _ in seconds:
        stream._end_load(spec)
        ended.append(stream._bounded)
    assert ended == [False, False, True]


def test_a_batch_has_no_more_changes_than_asked_for(tmp_path: Path) -> None:
    """Together, of all connections; one of each in any case."""
    for name in ("a", "b"):
        write_log(tmp_path, name, list(range(100)))
    config = tmp_path / "mview.yml"
    config.write_text(
        "store: data\nconnections: {a: {drivername: sqlite, database: a.db},"
        " b: {drivername: sqlite, database: b.db}}\nchanges:\n"
        "  a: {source: files, format: unified, path: a, T: 1 s}\n"
        "  b: {source: files, format: unified, path: b, T: 1 s}\n"
    )
    start = {name: {"log": ["", 0, 0]} for name in ("a", "b")}
    spec = QuerySpec(1, load_config(config), {}, start, -1, 1, False)
    stream = Changelogs(spec.write(tmp_path / "spec.json"))
    at = stream.begin()
    for most, taken in ((20, (10, 10)), (1, (1, 1))):
        end = stream.advance(at, most)
        assert (_read(stream, at, end, "a"), _read(stream, at, end, "b")) == taken
        at = end


class Beats:
    """A log that brings nothing but a watermark, so far ahead of this machine's clock."""

    ahead = 0

    def advance(self, start: Any, *_: Any) -> Progress:
        return Progress(start, SourceMs(int(time.time() * 1000) + self.ahead))


@pytest.mark.parametrize(
    ("ahead", "loading", "halts"),
    [(9_000, True, True), (500, True, False), (-60_000, True, False), (9_000, False, False)],
)
def test_heartbeats_by_a_clock_that_is_ahead_by_more_than_t_end_a_load(
    tmp_path: Path, ahead: int, loading: bool, halts: bool
) -> None:
    """Of a loaded table nothing counts by a clock: it goes on."""
    file = tmp_path / "mview.yml"
    file.write_text(
        f"store: data\nconnections: {{a: {{drivername: sqlite, database: '{tmp_path}/a.db'}}}}\n"
        "changes: {a: {source: kafka, format: debezium, T: 2 s, topic: t, heartbeat_topic: h,"
        " bootstrap_servers: 'localhost:1'}}\n"
    )
    sqlite3.connect(tmp_path / "a.db").close()
    tables = {"a.t": table("a.t", 1) if loading else replace(table("a.t", 1), plan=None)}
    spec = QuerySpec(1, load_config(file), keyed(tables), {"a": {"t/0": 0}}, -1, 1, False)
    stream = Changelogs(spec.write(tmp_path / "spec.json"))
    log = Beats()
    log.ahead = ahead
    stream._changelogs = {"a": log}  # type: ignore[dict-item]
    if not halts:
        assert stream.advance(stream.begin())["watermark"] > 0 or not loading
    else:
        with pytest.raises(ConfigError, match="is ahead of the database's") as caught:
            stream.advance(stream.begin())
        measured = int(str(caught.value.got).split()[0])
        assert ahead - 2_000 < measured <= ahead
        assert "T is 2000 ms" in str(caught.value.got)
    pickle.loads(pickle.dumps(stream))  # executors get a copy


class At:
    """A log that has come to an end at a time."""

    def __init__(self, mark: SourceMs | None) -> None:
        self.mark = mark

    def advance(self, at: dict[str, int], *bounds: object) -> Progress:
        return Progress({"log": 1}, self.mark)

    def splits(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
        return []


def test_batch_offsets_come_from_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    changes = {"connections": {"a": {"t/0": 7}}, "watermark": 12, "pinned_ms": 60_000}
    changes |= {"cuts": {}, "halts": {}}
    lines = ["v1", "{}", json.dumps({"chunks": {"a.t": 3}}), json.dumps(changes)]
    (tmp_path / "offsets" / "4").write_text("\n".join(lines))
    found = batch_offsets(tmp_path, 4)
    assert (found.connections, found.watermark) == ({"a": {"t/0": 7}}, 12)
    assert found.chunks == {rel("a.t"): 3}


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
    monkeypatch.setattr("mview.ingest.spec.SystemClock", Clock)
    monkeypatch.setattr("mview.ingest.changelogs.steady_clock", Clock)
    monkeypatch.setattr("mview.ingest.changelogs.WAIT_MS", 0)
    monkeypatch.setattr(Clock, "ms", Clock.ms)

    def make(tick_ms):
        log = open_changelog(load_config(config), "a", [])
        spec = QuerySpec(
            1, load_config(config), {}, {"a": log.begin()}, -1, 1, False, 60_000, tick_ms
        )
        return Changelogs(spec.write(tmp_path / "spec.json"))

    return make


def test_a_tick_is_news(reader):
    stream = reader(1_000)
    start = stream.begin()
    assert start["pinned_ms"] == 60_000
    first = stream.advance(start)
    assert first == {**start, "pinned_ms": 61_000, "cuts": {"a": {"until": None, "whole": None}}}
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


def test_a_change_of_a_time_to_come_is_not_taken(reader, tmp_path):
    """Ten minutes ahead of this machine's clock are taken, a millisecond more is not."""
    latest = Clock.ms + 600_000
    change = {"op": "insert", "table": "t", "after": {"id": 1}}
    lines = [json.dumps({**change, "ts": ms}) + "\n" for ms in (latest, latest + 1)]
    stream = reader(0)
    begin = stream.begin()
    (tmp_path / "log" / "1.jsonl").write_text(lines[0])
    middle = stream.advance(begin)
    (tmp_path / "log" / "1.jsonl").write_text("".join(lines))
    end = stream.advance(middle)
    for piece in stream.pieces(begin, middle):
        list(stream.rows(piece))
    (piece,) = stream.pieces(middle, end)
    with pytest.raises(DecodeError, match="a time to come") as caught:
        list(stream.rows(piece))
    assert "10 minutes more" in str(caught.value)


def test_a_log_of_a_database_goes_by_the_clock_there(tmp_path, monkeypatch):
    """This machine's clock was set back, or a session has set another time: its changes count."""
    monkeypatch.setattr("mview.ingest.spec.SystemClock", Clock)
    file, config_file = tmp_path / "a.db", tmp_path / "mview.yml"
    config_file.write_text(
        f"store: data\nconnections: {{a: {{drivername: sqlite, database: {file}}}}}\n"
        "changes: {a: {source: sqlite}}\n"
    )
    config = load_config(config_file)
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        with closing(open_changelog(config, "a", ["t"])) as log:
            log.install()
            begin = log.begin()
        database.execute("INSERT INTO t VALUES (7)")
    tables = {rel("a.t"): replace(table("a.t", 1), plan=None)}
    spec = QuerySpec(1, config, tables, {"a": begin}, -1, 1, False)
    stream = Changelogs(spec.write(tmp_path / "spec.json"))
    start = stream.begin()
    end = stream.advance(start)
    (piece,) = stream.pieces(start, end)
    ((_, _, changes),) = stream.changes(piece)
    assert changes["id"].to_pylist() == [7]
    assert changes["__source_ms"][0].as_py() > Clock.ms + 600_000
    stream.close()


def test_work_is_packed_into_parts_of_about_as_many_messages_in_its_order() -> None:
    sizes = [1997, 10_000, 7649, 10_000, 10_000, 10_000, 354]
    work = [("shop", Split("t/0", place, place + 1, size)) for place, size in enumerate(sizes)]
    parts = packed(work, 2)
    assert sorted(split.start for part in parts for _, split in part) == [*range(len(work))]
    for part in parts:
        starts = [split.start for _, split in part]
        assert starts == sorted(starts)
    assert [sum(split.messages for _, split in part) for part in parts] == [27_649, 22_351]
