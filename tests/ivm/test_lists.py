"""Views of lists, maintained in process: after each epoch they are what Spark makes of all rows."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from mview.execute.local.evaluate import LocalEvaluator
from tests.ivm.world import Row, SparkEngine, World, table_schema
from tests.seeds import daily

VIEWS = {
    "shown": "select id, xs, at, element_at(ws, -1) as w from t where size(ws) > 0",
    "collected": "select g, collect_list(id) as ids, collect_set(xs[0]) as firsts from t"
    " where size(xs) > 0 group by g",
    "exploded": "select id, w from t lateral view explode(ws) e as w where w <> 'b'",
    "counted": "select w, count(*) as n, max(id) as most from"
    " (select id, explode(ws) as w from t) group by w",
    "outer": "select id, g, x from t lateral view outer explode(xs) e as x",
    "joined": "select a.id, b.g, array_contains(b.xs, a.g) as has from t a join t b on a.g = b.id",
}


@pytest.mark.spark
def test_views_of_lists_are_those_of_the_batch(spark: SparkSession) -> None:
    chance = random.Random(daily())
    kinds = "id bigint, g int, xs array<int>, ws array<string>, at array<date>"
    tables, batch = {"t": table_schema(kinds, "id")}, SparkEngine(spark)
    world = World(tables, VIEWS, LocalEvaluator(), batch=batch)

    def values() -> tuple[int | None, ...] | None:
        some = chance.choices([None, 1, 2, 3], k=chance.randint(0, 4))
        return chance.choice([None, tuple(some), tuple(some)])

    def row(number: int) -> Row:
        xs, ws = values(), values()
        words = None if ws is None else tuple(None if w is None else "abc"[w - 1] for w in ws)
        return number, chance.choice([None, 1, 2, 3]), xs, words, chance.choice([None, ()])

    rows = [row(number) for number in range(30)]
    world.epoch({"t": [(1, made) for made in rows]})
    for _ in range(3):
        at = chance.sample(range(len(rows)), 6)
        come = [row(number) for number in at]
        world.epoch({"t": [(-1, rows[n]) for n in at] + [(1, made) for made in come]})
        for number, made in zip(at, come, strict=True):
            rows[number] = made
