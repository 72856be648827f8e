"""Many changes of a table are written while views are maintained: nothing else is different."""

from __future__ import annotations

import errno
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
from mview.schema import Column, TableSchema
from tests.epoch.epochs import Epochs

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
