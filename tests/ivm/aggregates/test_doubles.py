"""Sums of DOUBLE depend on the order of their rows, and -0.0 is equal to 0.0: views stay right."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.schema import Column, TableSchema
from tests.epoch.epochs import Epochs
from tests.seeds import daily

SCHEMAS = {
    "shop.orders": TableSchema(
        (
            Column("id", pa.int64(), nullable=False),
            Column("g", pa.int64()),
            Column("x", pa.float64()),
        ),
        ("id",),
    )
}
#: The rows of `sums` and `over` are found by their values when they go.
VIEWS = {
    "text": "select id, cast(x as string) as t from shop.orders",
    "sums": "select sum(x) as s from shop.orders group by g",
    "keyed": "select g, sum(x) as s from shop.orders group by g",
    "over": "select s from keyed",
    "again": "select s + 1 as d from sums",
}


def row(key: int, value: float) -> dict[str, object]:
    return {"id": key, "g": key % 2, "x": value}


@pytest.mark.spark
@pytest.mark.days(2)
@pytest.mark.parametrize(
    "names",
    [("sums", "keyed", "over"), pytest.param(tuple(VIEWS), marks=pytest.mark.long)],
    ids=["some", "all"],
)
def test_sums_in_another_order_and_both_zeros(
    tmp_path: Path, spark: SparkSession, names: tuple[str, ...]
) -> None:
    chance = random.Random(daily(8))
    world = Epochs(tmp_path, spark, SCHEMAS, {name: VIEWS[name] for name in names})
    world.seed()
    rows = {key: row(key, chance.choice([0.1, 0.2, 0.3, 0.7, 1.1, 2.3])) for key in range(30)}
    with world.opened():
        for keys in (range(0, 30, 3), range(1, 30, 3), range(2, 30, 3)):
            world.epoch(*(("orders", "insert", None, rows[key]) for key in keys))
        assert not world.build()
        for value in (0.0, -0.0, 0.0, 0.4):
            world.epoch(("orders", "update", rows[7], row(7, value)))
            rows[7] = row(7, value)
            world.check()
        for key in chance.sample(sorted(rows), 4):
            world.epoch(("orders", "delete", rows[key], None))
            world.check()
