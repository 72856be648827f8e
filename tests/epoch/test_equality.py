"""Which rows are the same where a user meets it: both zeros and NaN, also in lists and structs."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.schema import Column, TableSchema
from mview.store.layout import Store
from mview.store.mirror import Mirror
from tests.epoch.epochs import Epochs
from tests.relations import rel

LIST = pa.list_(pa.float64())
ID = Column("id", pa.int64(), nullable=False)
SCHEMAS = {
    "shop.t": TableSchema((ID, Column("x", pa.float64()), Column("xs", LIST)), ("id",)),
    "shop.u": TableSchema((ID, Column("xs", LIST)), ("id",)),
}
#: By their values, without a key, read by another view; and as keys of all kinds.
SHOWN = {
    "plain": "select id, x, xs from shop.t",
    "bag": "select x, xs from shop.t",
    "over": "select x, xs, size(xs) as n from bag",
}
KEYS = {
    "kinds": "select distinct xs from shop.t",
    "groups": "select xs, count(*) as n from shop.t group by xs",
    "pairs": "select x, xs, max(id) as m from shop.t group by x, xs",
    "joined": "select t.id, u.id as v from shop.t t join shop.u u on t.xs = u.xs",
    "inside": "select id from shop.t where xs in (select xs from shop.u)",
    "either": "select xs from shop.t union select xs from shop.u",
    "structs": "select named_struct('a', x, 'b', xs).a as a, count(*) as n from shop.t"
    " group by named_struct('a', x, 'b', xs)",
    "maps": "select map_values(m) as w, count(*) as n"
    " from (select map(1, x) as m from shop.t) group by m",
}
#: Rows of shop.t that come, change and go.
EPOCHS: list[dict[int, Any]] = [
    {1: (0.0, [0.0]), 2: (-0.0, [-0.0]), 3: (1.0, [1.0, -0.0]), 4: ("NaN", ["NaN"])},
    {1: (-0.0, [-0.0])},
    {2: (0.0, [0.0]), 4: ("NaN", None)},
    {3: (0.0, [1.0, 0.0]), 5: (-0.0, [0.0])},
    {2: None, 5: (0.0, [-0.0])},
    {1: None, 5: None},
]


def looks(value: Any) -> Any:
    """What is shown of a value: -0.0 is not 0.0, and there is one NaN."""
    if isinstance(value, list):
        return tuple(map(looks, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else repr(value)


def shown(rows: pa.Table) -> Counter[Any]:
    return Counter(tuple(map(looks, row.values())) for row in rows.to_pylist())


def by_spark(world: Epochs) -> dict[str, Counter[Any]]:
    """All views by Spark's batch query over the mirrors."""
    names = {name: name.replace(".", "_") for name in SCHEMAS}
    for name, schema in SCHEMAS.items():
        mirror = Mirror(Store(world.config.store).mirror(rel(name)), schema)
        rows = mirror.scan(world.engine.manifest.tables[rel(name)])
        world.spark.createDataFrame(rows, schema.ddl).createOrReplaceTempView(names[name])
    batch = {}
    for view in world.definitions:
        sql = view.sql
        for name, relation in names.items():
            sql = sql.replace(name, relation)
        frame = world.spark.sql(sql)
        frame.createOrReplaceTempView(view.name)
        batch[view.name] = shown(frame.toArrow())
    return batch


@pytest.mark.days(3)
@pytest.mark.spark
@pytest.mark.parametrize(
    "views", [SHOWN, pytest.param(KEYS, marks=pytest.mark.long)], ids=["shown", "keys"]
)
def test_views_show_what_the_batch_shows(
    tmp_path: Path, spark: SparkSession, views: dict[str, str]
) -> None:
    world = Epochs(tmp_path, spark, SCHEMAS, views)
    world.seed()
    there: dict[int, Any] = {}
    with world.opened():
        world.epoch(("u", "insert", None, {"id": 1, "xs": [-0.0]}))
        assert not world.build()
        for number, rows in enumerate(EPOCHS):
            changes = []
            for key, cells in rows.items():
                before = there.get(key)
                after = there[key] = cells and {"id": key, "x": cells[0], "xs": cells[1]}
                op = "insert" if before is None else "delete" if after is None else "update"
                changes.append(("t", op, before, after))
            world.epoch(*changes)
            for name, expected in by_spark(world).items():
                state = world.engine.manifest.views[name]
                assert not state.halted, (number, name)
                assert shown(world.engine.views[name].sink.rows(state.sink)) == expected, name
