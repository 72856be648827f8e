"""Spark makes a text of any bytes; what is none halts its view, whatever the view makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.admin.verify import verify
from mview.schema import Column, TableSchema
from tests.epoch.epochs import Epochs

pytestmark = [pytest.mark.spark]

SCHEMAS = {
    "shop.t": TableSchema(
        (
            Column("id", pa.int64(), nullable=False),
            Column("k", pa.int64()),
            Column("b", pa.binary()),
        ),
        ("id",),
    )
}
TEXT = "cast(b as string)"
VIEWS = {
    "rows": f"select id, {TEXT} as x, {TEXT} || '!' as y from shop.t",
    "groups": f"select {TEXT} as x, count(*) as n from shop.t group by 1",
    "largest": f"select k, max({TEXT}) as x from shop.t group by k",
    "lists": f"select k, array_sort(collect_list({TEXT})) as x from shop.t group by k",
    "first": f"select id, {TEXT} as x from shop.t order by x desc, id limit 3",
}
RIGHT = {
    "signs": f"select id, make_valid_utf8({TEXT}) as x from shop.t",
    "lengths": f"select id, length({TEXT}) as n from shop.t",
    "bytes": "select id, b, hex(b) as x from shop.t",
}


def row(number: int, b: str | None) -> dict[str, Any]:
    return {"id": number, "k": number % 2, "b": b}


def insert(number: int, b: str | None) -> tuple[str, str, None, dict[str, Any]]:
    return ("t", "insert", None, row(number, b))


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> Epochs:
    world = Epochs(tmp_path, spark, SCHEMAS, {**VIEWS, **RIGHT})
    world.seed()
    return world


#: Of bytes in base64: `a`, and one that no text has.
A, NONE = "YQ==", "/w=="


def told(error: Any) -> None:
    assert "INVALID_UTF8_STRING" in str(error), error
    assert "make_valid_utf8(CAST(b AS STRING))" in str(error)


def test_in_an_epoch(world: Epochs) -> None:
    with world.opened():
        assert not world.build()
        assert not world.epoch(insert(1, A), insert(2, None), insert(3, A)).halted
        before = {name: world.rows(name) for name in VIEWS}
        assert before["rows"][(1, "a", "a!")] == 1
        halted = world.epoch(insert(4, NONE), insert(5, A)).halted
        assert set(halted) == set(VIEWS)
        for error in halted.values():
            told(error)
        assert {name: world.rows(name) for name in VIEWS} == before
        assert world.rows("signs")[(4, "\ufffd")] == 1
        assert sum(world.rows("lengths").values()) == 5
    found = {one.view: one for one in verify(world.config, world.definitions)}
    assert {name for name, one in found.items() if not one.equal} == set(VIEWS)


def test_where_views_are_built(world: Epochs) -> None:
    with world.opened():
        world.epoch(insert(1, A), insert(2, NONE))
        failed = world.build()
        assert set(failed) == set(VIEWS)
        for error in failed.values():
            told(error)
        assert world.rows("signs")[(2, "\ufffd")] == 1
