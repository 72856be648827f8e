"""Many changes of a table are written while views are maintained: nothing else is different."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.epoch import tables
from mview.epoch.views import maintain, strategy
from mview.epoch.views.cost import FULL, Choice
from mview.execute.local import index
from mview.schema import Column, TableSchema
from tests.epoch.epochs import Epochs
from tests.relations import rel
from tests.seeds import seeds

pytestmark = [pytest.mark.spark]

SCHEMAS = {
    "shop.orders": TableSchema(
        (Column("id", pa.int64(), nullable=False), Column("customer", pa.int64())), ("id",)
    ),
    "shop.customers": TableSchema(
        (Column("id", pa.int64(), nullable=False), Column("name", pa.string())), ("id",)
    ),
}
VIEWS = {
    "named": "select o.id, c.name from shop.orders o join shop.customers c on c.id = o.customer",
    "totals": "select customer, count(*) as n from shop.orders group by customer",
}
#: A thread that waits so many seconds waits in vain.
VAIN = 60
NEWS = (
    ("orders", "insert", None, {"id": 7, "customer": 1}),
    ("orders", "update", None, {"id": 1, "customer": 2}),
    ("orders", "delete", {"id": 2}, None),
    ("customers", "update", None, {"id": 2, "name": "another"}),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Epochs:
    world = Epochs(tmp_path_factory.mktemp("built"), spark, SCHEMAS, VIEWS)
    world.seed()
    with world.opened():
        assert not world.build()
        world.epoch(
            *(("customers", "insert", None, {"id": n, "name": f"c{n}"}) for n in range(3)),
            *(("orders", "insert", None, {"id": n, "customer": n % 3}) for n in range(6)),
        )
        world.check()
    return world


@pytest.fixture
def world(built: Epochs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Epochs]:
    """Any change of a table is one of many."""
    monkeypatch.setattr(tables, "_MANY", 0)
    with built.copy(tmp_path / "copy").opened() as world:
        yield world


def test_views_do_not_wait_for_the_tables(world: Epochs, monkeypatch: pytest.MonkeyPatch) -> None:
    maintained, perform, append = threading.Event(), maintain.perform, tables.appended

    def performed(*args: Any) -> Any:
        done = perform(*args)
        maintained.set()
        return done

    def appended(*args: Any) -> Any:
        assert maintained.wait(VAIN)
        return append(*args)

    monkeypatch.setattr(maintain, "perform", performed)
    monkeypatch.setattr(tables, "appended", appended)
    world.epoch(*NEWS)
    world.check()


def test_a_view_that_reads_the_tables_does(world: Epochs, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, written, append = threading.Event(), tables.Changed.written, tables.appended

    def waited(changed: tables.Changed) -> Any:
        asked.set()
        return written(changed)

    def appended(*args: Any) -> Any:
        assert asked.wait(VAIN)
        return append(*args)

    monkeypatch.setattr(tables.Changed, "written", waited)
    monkeypatch.setattr(tables, "appended", appended)
    monkeypatch.setattr(strategy, "_choice", lambda *_: Choice(FULL, "of a test"))
    world.epoch(*NEWS)
    world.check()


@pytest.mark.parametrize("seed", seeds(2))
def test_where_the_rows_of_many_changes_stand_is_found_once(
    world: Epochs, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(index, "_SMALL", 0)
    # Rows that were just moved are found anew: not while this counts who searches.
    monkeypatch.setattr(index.ResidentTable, "merge_due", property(lambda table: False))
    foresee, searched = index.ResidentTable._foresee, []
    told, numbers = [], index.ResidentTable.key_numbers

    def numbered(table: Any, keys: Any) -> Any:
        told.append(numbers(table, keys))
        return told[-1]

    def searching(table: Any, *args: Any) -> Any:
        searched.append(table.name)
        return foresee(table, *args)

    monkeypatch.setattr(index.ResidentTable, "key_numbers", numbered)
    monkeypatch.setattr(index.ResidentTable, "_foresee", searching)
    rng, there = random.Random(seed), {n: n % 3 for n in range(6)}
    for _ in range(4):
        news: list[Any] = []
        for id_ in rng.sample(range(20), 12):
            customer, is_there = rng.randrange(3), id_ in there
            if is_there and rng.random() < 0.4:
                news.append(("orders", "delete", {"id": id_}, None))
                del there[id_]
            else:
                kind = "update" if is_there else "insert"
                news.append(("orders", kind, None, {"id": id_, "customer": customer}))
                there[id_] = customer
        world.epoch(*news)
        world.check()
    assert told
    assert all(some is not None for some in told)
    assert rel("shop.orders") not in searched


@pytest.mark.parametrize("chosen", ["its changes", "as a whole"])
def test_a_table_that_cannot_be_written_fails_the_epoch(
    world: Epochs, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    before, error = world.engine.manifest, OSError(errno.ENOSPC, "No space left on device")

    def fails(*args: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        if chosen == "as a whole":
            patch.setattr(strategy, "_choice", lambda *_: Choice(FULL, "of a test"))
        patch.setattr(tables, "appended", fails)
        with pytest.raises(OSError, match="No space left") as told:
            world.epoch(*NEWS)
    assert told.value is error
    assert world.engine.manifest == before
    world.check()
    world.upkeep.take_back()
    world.epoch(*NEWS)
    world.check()
