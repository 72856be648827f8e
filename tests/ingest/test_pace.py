"""Which chunks may be read: by a clock that the test moves, against what was asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from mview.config import Config
from mview.config.file import load_config
from mview.config.window import DailyWindow, parse_window
from mview.errors import ConfigError, CorruptionError
from mview.ingest.pace import Pacer, Waiting, held
from mview.ingest.spec import QuerySpec, TableSpec, check_unedited, load_chunk_rows, read_spec
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.snapshot import ChunkPlan
from mview.store.layout import Store
from mview.store.requests.paused import pause, paused_tables, resume
from tests.relations import rel
from tests.seeds import seeds

SCHEMA = TableSchema((Column("id", pa.int64(), nullable=False),), ("id",))
HOUR = 3_600_000


def config_of(root: Path, **connections: dict[str, Any]) -> Config:
    file = root / "mview.yml"
    named = {
        name: {"drivername": "sqlite", "database": "a.db", **settings}
        for name, settings in connections.items()
    }
    changes = {name: {"source": "files", "format": "unified", "path": "log"} for name in named}
    file.write_text(yaml.safe_dump({"store": "s", "connections": named, "changes": changes}))
    return load_config(file)


def table(name: str, chunks: int, rows: int = 1000) -> TableSpec:
    bounds = tuple((n,) for n in range(1, chunks))
    plan = ChunkPlan(name, ("id",), bounds, (chunks,), rows * chunks)
    return TableSpec(rel(name), SCHEMA, Path("base"), "stage/000001", plan)


class Reader:
    """Takes chunks as the source of a load does, and keeps what was handed out."""

    def __init__(self, config: Config, *tables: TableSpec) -> None:
        self.seconds, self.wall = 0.0, 0
        spec = QuerySpec(1, config, {t.name: t for t in tables}, {}, -1, 1, False)
        self._spec = spec
        self.handed: dict[RelationId, int] = {}
        self.pace = Pacer(config, lambda: self.seconds, lambda: self.wall)  # type: ignore[arg-type, return-value]

    def waiting(self) -> list[Waiting]:
        return self._spec.chunks_after(self.handed)

    def take(self, most: int = 1) -> list[str]:
        taken = self.pace.take(self.waiting(), most)
        for spec, chunk in taken:
            assert chunk.number == self.handed.get(spec.name, 0), "chunks come by number"
            self.handed[spec.name] = chunk.number + 1
        return [f"{spec.name}:{chunk.number}" for spec, chunk in taken]


def test_without_settings_all_is_as_it_was(tmp_path: Path) -> None:
    reader = Reader(config_of(tmp_path, a={}), table("a.x", 2), table("a.y", 4))
    every = [f"{spec.name}:{chunk.number}" for spec, chunk in reader.waiting()]
    assert reader.take(3) + reader.take(3) == every
    assert reader.take() == []


def test_a_rate_of_a_table_and_of_its_connection(tmp_path: Path) -> None:
    slow = {"x": {"load": {"rows_per_second": 500}}}
    config = config_of(tmp_path, a={"tables": slow, "load": {"rows_per_second": 1000}}, b={})
    reader = Reader(config, table("a.x", 9), table("a.y", 9), table("b.z", 2))
    assert reader.take(9) == ["a.x:0", "b.z:0", "b.z:1"], "one of the connection, all of the other"
    assert reader.take(9) == []
    reader.seconds = 1.0  # 1,000 rows more of the connection
    assert reader.take(9) == ["a.y:0"], "of the table only after two seconds"
    reader.seconds = 2.0
    assert reader.take(9) == ["a.x:1"]


def test_priorities(tmp_path: Path) -> None:
    tables = {"y": {"load": {"priority": 2}}, "z": {"load": {"priority": -1}}}
    reader = Reader(
        config_of(tmp_path, a={"tables": tables}),
        *(table(f"a.{name}", 2) for name in "xyz"),
    )
    assert reader.take(9) == ["a.y:0", "a.y:1", "a.x:0", "a.x:1", "a.z:0", "a.z:1"]


def test_what_may_not_be_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    tables = {"y": {"load": {"priority": 2}}}
    config = config_of(tmp_path, a={"tables": tables, "load": {"tables_at_once": 1}})
    reader = Reader(config, *(table(f"a.{name}", 2) for name in "xyz"))
    store = Store(config.store)
    assert reader.take() == ["a.y:0"]
    assert pause(store, rel("a.y"), 0)
    assert not pause(store, rel("a.y"), 0)
    assert reader.take() == ["a.x:0"]
    assert reader.take() == ["a.x:1"], "it has begun: it ends before another begins"
    assert resume(store, rel("a.y"))
    assert not resume(store, rel("a.y"))
    assert reader.take(9) == ["a.y:1"]
    assert reader.take(9) == ["a.z:0", "a.z:1"]


def test_windows_of_tables_and_connections(tmp_path: Path) -> None:
    tables = {"x": {"load": {"window": "00:00-04:00"}}}
    config = config_of(tmp_path, a={"tables": tables, "load": {"window": "22:00-06:00"}})
    reader = Reader(config, table("a.x", 3), table("a.y", 3))
    reader.wall = 23 * HOUR
    assert reader.take(1) == ["a.y:0"]
    assert held(config, [rel("a.x"), rel("a.y")], [], reader.wall) == {
        rel("a.x"): "read in its window only, 00:00-04:00 UTC"
    }
    reader.wall = 25 * HOUR
    assert reader.take(1) == ["a.x:0"]
    reader.wall = 31 * HOUR
    assert reader.take(9) == []
    assert [*held(config, [rel("a.x"), rel("a.y")], [rel("a.x")], reader.wall).values()] == [
        "paused; on it goes with: mview resume a.x",
        "read in its window only, 22:00-06:00 UTC",
    ]


@pytest.mark.parametrize("seed", seeds(20))
def test_whatever_is_asked_for_all_is_read_once_and_no_faster(tmp_path: Path, seed: int) -> None:
    """Random settings, pauses and times: never too much, and in the end each chunk."""
    random_ = random.Random(seed)

    def load(*more: tuple[str, Callable[[], object]]) -> dict[str, object]:
        kinds: tuple[tuple[str, Callable[[], object]], ...] = (
            ("rows_per_second", lambda: random_.choice([200, 1000, 5000])),
            ("window", lambda: random_.choice(["22:00-10:00", "09:00-12:30"])),
        )
        return {name: make() for name, make in (*kinds, *more) if random_.random() < 0.4}

    connections: dict[str, dict[str, Any]] = {
        name: {
            "load": load(("tables_at_once", lambda: random_.randint(1, 2))),
            "tables": {
                t: {"load": load(("priority", lambda: random_.randint(-1, 1)))} for t in "xyz"
            },
        }
        for name in "ab"
    }
    config = config_of(tmp_path, **connections)
    store = Store(config.store)
    specs = [table(f"{c}.{t}", random_.randint(1, 5)) for c in "ab" for t in "xyz"]
    reader = Reader(config, *specs)
    read: dict[str, int] = {}
    for step in range(3000):
        if not reader.waiting():
            break
        name = random_.choice(specs).name
        # Pauses end: no table may stay behind for ever.
        if random_.random() < 0.3 and step < 2000:
            pause(store, name, 0)
        else:
            resume(store, name)
        elapsed = random_.choice([0.1, 1, 30, 900])
        reader.seconds += elapsed
        reader.wall += int(elapsed * 1000)
        paused, begun = paused_tables(store), {n for n, k in reader.handed.items() if k}
        taken = reader.take(random_.randint(1, 4))
        for text in taken:
            name = rel(text.partition(":")[0])
            assert name not in paused
            assert name not in held(config, [name], (), reader.wall)
            for owner, settings in (
                (str(name), config.connections[name.connection].table(name.name).load),
                (name.connection, config.connections[name.connection].load),
            ):
                read[owner] = read.get(owner, 0) + 1000
                if settings.rows_per_second:
                    most = reader.seconds * settings.rows_per_second + 1000
                    assert read[owner] <= most, (owner, reader.seconds)
        assert begun <= {n for n, k in reader.handed.items() if k}
    assert reader.waiting() == []


def test_a_chunk_takes_ten_seconds_of_a_rate_at_the_most(tmp_path: Path) -> None:
    tables = {"x": {"load": {"rows_per_second": 50}}}
    config = config_of(tmp_path, a={"tables": tables, "load": {"rows_per_second": 400}})
    assert load_chunk_rows(config, rel("a.x")) == 500
    assert load_chunk_rows(config, rel("a.y")) == 4000
    assert load_chunk_rows(config_of(tmp_path, a={}), rel("a.x")) == config.engine.chunk_rows


def test_how_gently_may_be_edited_and_counts_from_the_next_start_on(tmp_path: Path) -> None:
    config = config_of(tmp_path, a={})
    reference = QuerySpec(3, config, {}, {}, -1, 1, False).write(tmp_path / "spec.json")
    config_of(
        tmp_path, a={"load": {"rows_per_second": 7}, "tables": {"x": {"load": {"priority": 1}}}}
    )
    assert read_spec(reference).config == config
    check_unedited(config)  # a run takes requests still


def test_a_damaged_request_is_told_with_its_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert paused_tables(store) == frozenset()
    pause(store, rel("a.Größe"), 5)
    assert paused_tables(store) == {rel("a.Größe")}
    (file,) = store.paused.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CorruptionError, match="mview pause") as caught:
        paused_tables(store)
    assert caught.value.where == str(file)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22:00-06:00", [22, 23.99, 24, 5.99], [6, 12, 21.99]),
        ("09:30 - 17:00", [9.5, 16.99], [9.49, 17, 0]),
        ("22:00-06:00 Europe/Berlin", [21, 28.9], [5.01, 20.9]),
    ],
)
def test_a_window_of_each_day(text: str, inside: list[float], outside: list[float]) -> None:
    window = parse_window(text)
    assert isinstance(window, DailyWindow)
    assert [hour for hour in inside if not window.is_open(int(hour * HOUR))] == []
    assert [hour for hour in outside if window.is_open(int(hour * HOUR))] == []


@pytest.mark.parametrize(
    "text",
    ["22:00", "22-06", "24:00-06:00", "22:60-06:00", "06:00-06:00", "22:00-06:00 Mars", 22, True],
)
def test_what_is_no_window_is_refused_with_what_to_write(tmp_path: Path, text: object) -> None:
    with pytest.raises(ConfigError, match="22:00-06:00 Europe/Berlin"):
        config_of(tmp_path, a={"load": {"window": text}})


@pytest.mark.parametrize("rate", [0, -1, 1.5, "10", True])
def test_a_rate_is_a_count(tmp_path: Path, rate: object) -> None:
    with pytest.raises(ConfigError, match="rows_per_second"):
        config_of(tmp_path, a={"load": {"rows_per_second": rate}})
