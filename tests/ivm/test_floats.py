"""Edges of FLOAT and DOUBLE: NaN, infinities, both zeros, the smallest and the largest numbers.

As values, group keys, join keys, extremes, in DISTINCT, IN, CASE and rankings.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.ivm.world import NAN, Row, SparkEngine, World, random_changes, table_schema
from tests.seeds import SEED

SCHEMAS = {
    "t": table_schema("id bigint, x double, y float, g int", "id"),
    "u": table_schema("id bigint, x double, v int", "id"),
}
VIEWS = {
    "plain": "select id, x, y, x < 1 as a, x = 0 as b, x <=> double('NaN') as c from t",
    "texts": "select id, cast(x as string) as a, concat('', y) as b from t",
    "groups": "select x, count(*) as n, count(y) as m from t group by x",
    "pairs": "select x, y, max(id) as m from t group by x, y",
    "kinds": "select distinct y from t",
    "joined": "select t.id, u.v from t join u on t.x = u.x",
    "outer": "select t.id, u.v from t left join u on t.x <=> u.x",
    "least": "select g, min(x) as a, max(y) as b, count(distinct x) as n from t group by g",
    "whole": "select count(distinct x) as n, count(distinct y) as m, count(*) as c from t",
    "chosen": "select id from t where x in (0.0D, double('NaN'), double('Infinity'))",
    "inside": "select id from t where x in (select x from u)",
    "cases": "select id, case x when 0.0D then 1 when double('NaN') then 2 else 3 end as c from t",
    "ranked": "select id, row_number() over (partition by g order by x, id) as r from t",
    "places": "select id, rank() over (partition by g order by y desc) as r from t",
    "first": "select id, x from t order by x desc, id limit 3",
    "either": "select x from t union select x from u",
    "both": "select x from t intersect select x from u",
}
EDGES = [
    None, NAN, float("inf"), float("-inf"), 0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308,
    1.7976931348623157e308, 1.0, -1.5, 9007199254740993.0,
]  # fmt: skip
_SMALL = [None, NAN, float("inf"), float("-inf"), 0.0, -0.0, 1e-45, 3.4028234663852886e38, 1.0]
SMALL = [None if one is None else float(np.float32(one)) for one in _SMALL]


@pytest.mark.spark
@pytest.mark.parametrize(
    "names",
    [
        ("texts", "groups", "joined", "least", "chosen", "ranked"),
        pytest.param(tuple(VIEWS), marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def test_views_equal_the_batch(spark: SparkSession, names: tuple[str, ...]) -> None:
    chance = random.Random(f"{SEED} floats")
    world = World(SCHEMAS, {name: VIEWS[name] for name in names}, SparkEngine(spark))
    t: dict[int, Row] = {}
    u: dict[int, Row] = {}
    for _ in range(4):
        world.epoch(
            {
                "t": random_changes(
                    chance, t, range(12), 6, 0.8,
                    lambda key: (key, chance.choice(EDGES), chance.choice(SMALL), key % 2),
                ),
                "u": random_changes(
                    chance, u, range(6), 2, 0.8, lambda key: (key, chance.choice(EDGES), key)
                ),
            }
        )  # fmt: skip
