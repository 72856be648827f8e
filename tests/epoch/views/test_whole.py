"""Views that every epoch computes as a whole: equal to the batch query, whatever way they go."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.epoch.views.cost import FULL, runs_of
from mview.errors import CorruptionError
from mview.execute import executors
from mview.rows.parts import Parts
from tests.epoch.epochs import Epochs, Row
from tests.ivm.world import table_schema
from tests.relations import rel
from tests.seeds import daily

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMAS = {
    "shop.orders": table_schema("id bigint, customer bigint, note string, unused string", "id"),
    "shop.lines": table_schema(
        "order_id bigint, line int, amount bigint, product string", "order_id line"
    ),
}
VIEWS = {
    # By a key of both tables.
    "by_both": "select o.customer + l.line as k, count(*) as n, sum(l.amount) as total"
    " from shop.orders o join shop.lines l on l.order_id = o.id group by o.customer + l.line",
    "noted": "select o.id, l.line, o.note, l.amount from shop.orders o"
    " left join shop.lines l on l.order_id = o.id and l.amount > o.customer",
    "counted": "select count(*) as n from shop.lines",
    "twice": "select a.product, count(*) as n from shop.lines a join shop.lines b"
    " on a.product = b.product and a.line < b.line group by a.product",
}
SETTINGS = "engine: {strategy: full}\n"


@pytest.fixture(scope="module")
def built(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Epochs:
    folder = tmp_path_factory.mktemp("whole")
    epochs = Epochs(
        folder / "first", spark, {rel(n): s for n, s in SCHEMAS.items()}, VIEWS, SETTINGS
    )
    epochs.seed()
    with epochs.opened():
        assert epochs.build() == {}
    return epochs


@pytest.fixture
def epochs(built: Epochs, tmp_path: Path) -> Iterator[Epochs]:
    copied = built.copy(tmp_path / "copy")
    with copied.opened():
        yield copied


class World:
    """Random changes: inserts, updates, deletes, keys that move, NULLs."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows: dict[str, dict[tuple[Any, ...], Row]] = {"orders": {}, "lines": {}}

    def _row(self, table: str) -> Row:
        rng = self.rng
        if table == "orders":
            customer = rng.choice([None, *range(5)])
            note = rng.choice([None, "", "é", "x" * rng.randrange(9)])
            return {"id": rng.randrange(30), "customer": customer, "note": note, "unused": "u"}
        key = {"order_id": rng.randrange(30), "line": rng.randrange(4)}
        amount = rng.choice([None, 0, -1, rng.randrange(100)])
        return {**key, "amount": amount, "product": rng.choice([None, *"abc"])}

    def changes(self, count: int) -> list[tuple[str, str, Row | None, Row | None]]:
        """So many changes; an update that moves a key is a delete and an insert of a database."""
        found: list[tuple[str, str, Row | None, Row | None]] = []
        for _ in range(count):
            table = self.rng.choice([*self.rows])
            there, row = self.rows[table], self._row(table)
            names = ("id",) if table == "orders" else ("order_id", "line")
            key = tuple(row[name] for name in names)
            before = there.get(key)
            if before is None and there and self.rng.random() < 0.3:
                moved = self.rng.choice([*there])
                found.append((table, "u", there.pop(moved), row))
                there[key] = row
            elif before is None:
                found.append((table, "c", None, row))
                there[key] = row
            elif self.rng.random() < 0.5:
                found.append((table, "d", there.pop(key), None))
            else:
                found.append((table, "u", before, row))
                there[key] = row
        return found


def ways(epochs: Epochs) -> set[tuple[str, str]]:
    """How the views were brought up to the newest epoch, and where that ran."""
    newest = epochs.engine.manifest
    ran = [one for state in newest.views.values() for one in runs_of(state).values()]
    return {(one.strategy, one.executor) for one in ran if one.epoch == newest.epoch}


@pytest.mark.parametrize("way", ["at once", "in parts", "in parts, not in memory"])
def test_random_epochs(epochs: Epochs, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Tails of many epochs, folded now and then; rows that count as too many to be held."""
    rng = random.Random(daily(17) + len(way))
    if way != "at once":
        epochs.engine.memory.whole = 0
        monkeypatch.setattr("mview.execute.local.index._PART_ROWS", 7)
    if way.endswith("memory"):
        monkeypatch.setattr(executors.Executors, "rows_after", lambda *_: None)
    world, ran = World(rng), set()
    for number in range(12):
        epochs.epoch(*world.changes(rng.choice([1, 5, 40])))
        epochs.check()
        ran |= ways(epochs)
        if number == 6:
            fold_all(epochs)
    assert ran == {(FULL, "local")}


def fold_all(epochs: Epochs) -> None:
    """Have what the tails say be in the bases, as compaction does it beside the epochs."""
    for name in SCHEMAS:
        relation = epochs.engine.relations[rel(name)]
        relation.mirror.compact(relation.state)


def test_what_one_thread_does_not_read(epochs: Epochs) -> None:
    """Beyond the limit Spark computes it."""
    epochs.engine.memory.whole = epochs.engine.memory.streamed = 0
    epochs.epoch(*World(random.Random(3)).changes(20))
    epochs.check()
    assert ways(epochs) == {(FULL, "spark")}


def test_an_outcome_that_only_spark_decides(epochs: Epochs) -> None:
    """A sum that overflows a bigint halts its view by the error of Spark; no part counts."""
    epochs.engine.memory.whole = 0
    most = 2**63 - 1
    changes: list[tuple[str, str, Row | None, Row | None]] = []
    for number in (1, 2):
        order = {"id": number, "customer": 1, "note": None, "unused": None}
        line = {"order_id": number, "line": 0, "amount": most, "product": "a"}
        changes += [("orders", "c", None, order), ("lines", "c", None, line)]
    epochs.epoch(*changes)
    epochs.check("by_both")


def test_a_damaged_file_is_told_as_such(epochs: Epochs) -> None:
    """What a table says of itself comes through the query that reads it."""

    def broken(*_: Any) -> Iterator[pa.Table]:
        raise CorruptionError("a page is damaged", where="here")
        yield

    parts = Parts(pa.schema([("line", pa.int32())]), broken)
    rows = epochs.engine.executors.stream(
        "select count(*) as n from t", {"t": parts}, pa.schema([("n", pa.int64())])
    )
    with pytest.raises(CorruptionError, match="a page is damaged"):
        list(rows)
