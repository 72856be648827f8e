"""Views without a key that other views read, in both executors, against the batch query."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.connector import WEIGHT
from mview.execute.numbered import number_changes, number_first
from mview.execute.slices import weighted
from mview.schema import Column, TableSchema
from mview.store.mirror import ROW
from tests.epoch.epochs import Epochs
from tests.relations import rel
from tests.seeds import daily

SCHEMAS = {
    "shop.orders": TableSchema(
        (
            Column("id", pa.int64(), nullable=False),
            Column("customer", pa.int64()),
            Column("amount", pa.decimal128(10, 2)),
        ),
        ("id",),
    )
}
#: Each row of `plain`, `lists` and `twice` stands there more than once.
VIEWS = {
    "plain": "select customer, amount from shop.orders",
    "lists": "select array(customer) as one, cast(customer as double) / 2 as half from shop.orders",
    "twice": "select customer from plain union all select customer from plain where amount > 2",
    "grand": "select count(*) as n, sum(amount) as total from shop.orders",
    "grouped": "select customer, count(*) as n, sum(amount) as total from plain group by customer",
    "counted": "select half, count(*) as n from lists group by half",
    "halves": "select one, half from lists where half > 0.5",
    "sized": "select count(*) as n from plain",
    "above": "select p.customer, g.n from plain p cross join grand g",
    "once": "select distinct customer from twice",
    "missing": "select o.id, t.customer as c from shop.orders o left join twice t"
    " on t.customer = o.id",
}


class Shop:
    """Random changes of the table."""

    def __init__(self, seed: int) -> None:
        self.random, self.rows = random.Random(seed), {}

    def changes(self, count: int) -> list[Any]:
        found = []
        for key in self.random.sample(range(14), count):
            before = self.rows.pop(key, None)
            after = None
            if before is None or self.random.random() < 0.6:
                customer = self.random.choice([None, 0, 1, 2])
                after = {"id": key, "customer": customer, "amount": self.random.choice("123")}
                self.rows[key] = after
            op = "insert" if before is None else "delete" if after is None else "update"
            found.append(("orders", op, before, after))
        return found


@pytest.mark.spark
@pytest.mark.days(2)
@pytest.mark.parametrize("executor", ["auto", pytest.param("spark", marks=pytest.mark.long)])
def test_they_equal_the_batch(tmp_path: Path, spark: SparkSession, executor: str) -> None:
    settings = f"engine: {{executor: {executor}}}"
    world = Epochs(tmp_path, spark, SCHEMAS, VIEWS, settings)
    world.seed()
    shop = Shop(daily(5))
    with world.opened():
        world.epoch(*shop.changes(6))
        assert not world.build()
        world.check()
        for _ in range(8 if executor == "auto" else 2):
            world.epoch(*shop.changes(shop.random.randint(1, 5)))
            world.check()
        before = world.engine.manifest.tables[rel("plain")]
        assert before.rows == len(shop.rows)
    # Again from the files, with what is compacted.
    with world.opened():
        for relation in [*world.engine.relations.values()]:
            version, folded = relation.mirror.compact(relation.state)
            state = replace(relation.state, base_version=version, folded=folded)
            assert relation.mirror.scan(state).num_rows == relation.state.rows
        for _ in range(4 if executor == "auto" else 1):
            world.epoch(*shop.changes(4))
            world.check()


def test_numbers_are_those_of_equal_rows() -> None:
    schema = TableSchema((Column("a", pa.float64()), Column("b", pa.list_(pa.int64()))), ())
    kept = pa.table(
        {"a": [1.0, 1.0, None, float("nan"), -0.0], "b": [[1], [1], None, [], [2, None]]},
        schema.arrow,
    )
    gone = weighted(kept.take([4, 0, 3, 1, 2]), -1)
    come = weighted(kept.slice(0, 1), 2)
    first = number_first(kept, 0)
    rows = number_changes(
        rel("v"), schema, pa.concat_tables([gone, come]), 7, lambda requests: [first]
    )
    numbers = rows[ROW].to_pylist()
    assert rows[WEIGHT].to_pylist() == [-1] * 5 + [1] * 2
    assert (numbers[0], numbers[2], numbers[4]) == (4, 3, 2)
    assert {numbers[1], numbers[3]} == {0, 1}
    assert len(set(numbers)) == 7
    assert max(numbers[5:]) < 0
    twice = pa.concat_tables([gone, gone])
    with pytest.raises(ValueError, match="a row that goes is not in the mirror v"):
        number_changes(rel("v"), schema, twice, 7, lambda requests: [first])


def test_rows_that_go_are_those_of_the_mirror() -> None:
    """Which of 0.0 and -0.0 min finds may be chance; the very one goes where it is there."""
    schema = TableSchema((Column("a", pa.float64()),), ())
    first = number_first(pa.table({"a": [0.0, -0.0]}), 0)

    def numbered(*values: float) -> list[tuple[str, int]]:
        gone = weighted(pa.table({"a": values}), -1)
        rows = number_changes(rel("v"), schema, gone, 7, lambda requests: [first])
        return [(str(row["a"]), row[ROW]) for row in rows.to_pylist()]

    assert numbered(-0.0) == [("-0.0", 1)]
    assert sorted(numbered(-0.0, -0.0)) == [("-0.0", 1), ("0.0", 0)]
