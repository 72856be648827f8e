"""Tables that leave memory and come back to it, beside epochs that go on, against a dict."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from mview.connector import WEIGHT
from mview.errors import CorruptionError
from mview.execute.delta import Delta
from mview.execute.executors import Executors
from mview.execute.local import returning
from mview.execute.local.returning import Absent, Returning
from mview.execute.program import Request
from mview.execute.relations import Relation
from mview.memory import Memory
from mview.relation import RelationId
from mview.schema import Column, TableSchema, parse_type
from mview.store.mirror import Mirror
from tests.relations import rel
from tests.seeds import seeds

SCHEMA = TableSchema(
    (Column("id", parse_type("bigint"), nullable=False), Column("v", parse_type("string"))),
    ("id",),
)
NAMES = (rel("c.a"), rel("c.b"), rel("c.d"))
BUDGET = 1 << 20
PATIENCE = 60


class Nowhere:
    """Stands for Spark: nothing here is looked up in files."""

    def prepare(self, *_: object) -> None:
        """No copies."""


class World:
    """Mirrors whose epochs are published, with the one thread beside them; `rows` is the truth."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.draw, self.epoch = draw, 0
        self.rows: dict[RelationId, dict[int, str]] = {name: {} for name in NAMES}
        self.relations = {}
        for name in NAMES:
            mirror = Mirror(folder / str(name), SCHEMA)
            self.relations[name] = Relation(mirror, replace(mirror.create(), phase="loaded"))
        self.executors = Executors(
            Nowhere(),  # type: ignore[arg-type]
            self.relations,
            "auto",
            Memory(BUDGET),
        )
        self.worker = ThreadPoolExecutor(1)
        self.compactions: dict[RelationId, Future[tuple[int, int]]] = {}
        self.news: list[str] = []

    def close(self) -> None:
        self.worker.shutdown()
        self.executors.close()

    def change(self, name: RelationId, gone: list[int], come: dict[int, str]) -> Delta:
        rows = self.rows[name]
        old = [(key, rows.pop(key), -1) for key in gone]
        rows.update(come)
        listed = [*old, *((key, v, 1) for key, v in come.items())]
        columns = [[row[place] for row in listed] for place in range(3)]
        weighted = pa.table(
            [pa.array(columns[0], pa.int64()), pa.array(columns[1], pa.string()), columns[2]],
            [*SCHEMA.names, WEIGHT],
        )
        return Delta(weighted, SCHEMA.key)

    def publish(self, deltas: dict[RelationId, Delta]) -> None:
        """One epoch, as `Engine.move` and `Upkeep` make it."""
        self.epoch += 1
        for name, relation in self.relations.items():
            state, changelog = relation.state, None
            if name in self.compactions and self.compactions[name].done():
                version, folded = self.compactions.pop(name).result()
                state = replace(state, base_version=version, folded=folded)
            if name in deltas:
                changelog = deltas[name].changelog
                version = relation.mirror.append(self.epoch, changelog)
                state = replace(state, changelog_version=version, rows=len(self.rows[name]))
            relation.move(state, changelog, self.epoch)
        self.executors.move({name: delta.rows for name, delta in deltas.items()})
        self.news += self.executors.news()
        for name in self.executors.left():
            self.executors.prepare(name, ())
        for name, relation in self.relations.items():
            if name not in self.compactions and self.draw.random() < 0.1:
                compact = relation.mirror.compact
                self.compactions[name] = self.worker.submit(compact, relation.state)
        if (read := self.executors.bring_back()) is not None:
            self.worker.submit(self._late, read, self.draw.random() * 0.02)

    @staticmethod
    def _late(read: Callable[[], None], seconds: float) -> None:
        time.sleep(seconds)
        read()

    def random_epoch(self) -> None:
        deltas = {}
        for name in self.draw.sample(NAMES, self.draw.randrange(1, 4)):
            rows = self.rows[name]
            # Tables grow beyond what all may have together, and shrink again.
            grows = self.draw.random() < (0.7 if len(rows) < 3_000 else 0.3)
            size = self.draw.choice([1, 20, 1_500])
            share = self.draw.randrange(size + 1) if grows else size
            gone = self.draw.sample(sorted(rows), min(len(rows), share // (2 if grows else 1)))
            fresh = (self.draw.randrange(100_000) for _ in range(size if grows else size // 4))
            come = {key: f"{self.epoch}-{key}" for key in fresh if key not in rows}
            come |= {key: "again" for key in gone if self.draw.random() < 0.3}
            if gone or come:
                deltas[name] = self.change(name, gone, come)
        self.publish(deltas)

    def check(self) -> set[RelationId]:
        """Every table in memory is the truth, by all rows and by a key; returns those there."""
        there = set()
        for name in NAMES:
            resident = self.executors.rows_after(name, None, SCHEMA.names)
            if resident is None:
                continue
            rows = resident.table()
            there.add(name)
            found = sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
            assert found == sorted(self.rows[name].items()), f"{name} at epoch {self.epoch}"
            key = self.draw.choice(sorted(self.rows[name]) or [7])
            request = Request(name, pa.table({"id": pa.array([key], pa.int64())}), ("v",))
            (row,) = self.executors.fetch([request])
            assert row["v"].to_pylist() == [v for k, v in self.rows[name].items() if k == key]
        return there


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(tmp_path, random.Random(request.param))
    yield made
    made.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables may come back as soon as they have left."""
    monkeypatch.setattr(returning, "_FIRST", 0.0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("world", seeds(3), indirect=True)
def test_what_is_in_memory_is_what_was_published(world: World) -> None:
    world.executors.warm({name: [("v",)] for name in NAMES})
    for _ in range(40):
        world.random_epoch()
        world.check()
    # One outgrows all that they may have together: what is drawn also depends on threads.
    grown = {200_000 + n: "x" * 100 for n in range(BUDGET // 50)}
    world.publish({NAMES[0]: world.change(NAMES[0], [], grown)})
    assert world.check() != set(NAMES)
    # All shrink: all come back.
    world.publish({n: world.change(n, sorted(rows)[50:], {}) for n, rows in world.rows.items()})
    deadline = time.monotonic() + PATIENCE
    while world.check() != set(NAMES) and time.monotonic() < deadline:
        world.publish({NAMES[0]: world.change(NAMES[0], [], {1_000_000 + world.epoch: "x"})})
        world.worker.submit(int).result()
    assert world.check() == set(NAMES)
    assert any(text.startswith("looked up on Spark") for text in world.news)
    assert any(text.startswith("in memory again: ") for text in world.news)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("world", [1], indirect=True)
def test_a_table_that_begins_anew_does_not_come_back_as_it_was(world: World) -> None:
    name = NAMES[0]
    world.executors.warm({})
    world.publish({name: world.change(name, [], dict.fromkeys(range(9000), "x" * 50))})
    assert name not in world.check()
    hold = threading.Event()
    world.worker.submit(hold.wait)
    world.publish({name: world.change(name, list(range(10, 9_000)), {})})  # may come back
    world.executors.forget(name)
    hold.set()
    world.worker.submit(int).result()
    world.publish({name: world.change(name, [1], {})})
    assert name not in world.check()


def test_pauses_double_up_to_an_hour_and_are_forgotten_with_the_table() -> None:
    now = 0.0
    absent, name = Absent(lambda: now), NAMES[0]
    pauses = []
    for _ in range(9):
        absent.add(name)
        before = now
        while not absent.due():
            now += 30
        pauses.append(now - before)
        absent.remove(name)
        assert not absent.due()
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    absent.forget(name)
    absent.add(name)
    now += 60
    assert absent.due() == [name]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(["x"] * len(ids))})


def test_more_changes_than_it_may_keep_end_a_return() -> None:
    coming = Returning(NAMES[0], ("id",), lambda: rows(1), [], most=100)
    coming.note(rows(), rows(2))
    assert not coming.has_ended
    coming.note(rows(), rows(*range(3, 50)))
    assert coming.has_ended
    assert coming.table() is None
    coming.run()
    assert coming.table() is None


def test_a_return_that_cannot_be_read_says_why() -> None:
    def read() -> pa.Table:
        raise CorruptionError("a file is damaged")

    coming = Returning(NAMES[0], ("id",), read, [], most=100)
    coming.run()
    assert coming.has_ended
    assert coming.table() is None
    assert "damaged" in str(coming.error)
