"""Rows that tie: one text, one result, in whatever order the rows come."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.catalog.analyze import analyze
from mview.errors import UserError
from mview.ivm.compile import compile_view
from mview.ivm.rewrites.total_order import in_total_order
from mview.plan.definition import parse_view
from tests.ivm.world import (
    DuckEngine,
    Engine,
    Row,
    SparkEngine,
    World,
    random_changes,
    table_schema,
)
from tests.relations import keyed
from tests.seeds import seeds, some_today

SCHEMAS = {
    "t": table_schema("id bigint, k bigint, v bigint, w bigint", "id"),
    "u": table_schema("id bigint, k bigint, v bigint, w bigint", "id"),
    "a": table_schema("k bigint, v bigint"),
}
#: The user's text, and what is added to it ("": nothing need be).
ADDED = {
    "select id, row_number() over (partition by k order by v desc nulls last) as r from t": ", `t`.`id`",  # noqa: E501
    "select id, row_number() over (partition by k order by v, id) as r from t": "",
    "select id, rank() over (partition by k order by v) as r from t": "",
    "select id, sum(w) over (partition by k order by v) as r from t": "",
    "select id, sum(w) over (partition by k order by v rows 1 preceding) as r from t": ", `t`.`id`",
    "select id, first_value(w) over (partition by k order by v) as r from t": ", `t`.`id`",
    "select t.id, u.id as i, lag(t.w) over (order by t.v) as r from t join u on t.k = u.k": ", `t`.`id`, `u`.`id`",  # noqa: E501
    "select t.id, lag(t.w) over (order by t.v) as r from t join u on t.k = u.id": ", `t`.`id`",
    "select k, row_number() over (partition by k order by v) as r from a": "",
    "select k, row_number() over (order by v) as r from a": ", `a`.`k`",
    "select id, ntile(2) over (order by v) as r from (select id, v from t) qualify r < 3": ", `id`",
    "select k % 2 as p, row_number() over (order by count(*)) as r from t group by k % 2": ", `t`.`k` % 2",  # noqa: E501
    "select max(v) as m, row_number() over (order by max(v)) as r from t": "",
    "select k, v from t order by v limit 3": ", 1",
    "select id, v from t order by v limit 3": ", 1",
    "select v as x from t order by v, t.id limit 3": "",
    "select distinct k, v from t order by v limit 3": ", 1",
    "select k, count(*) as n from t group by k order by n limit 3": ", 1",
    "(select k, v from t) union all (select k, v from u) order by v limit 3": ", 1",
    "select id from t where k in (select k from u order by v offset 1)": ", 1",
    "select max_by(w, v) as x from t": None,
    "select k, max_by(w, id) as x from t group by k": "",
    "select k, max_by(w, struct(v, id)) as x from t group by k": "",
    "select id, min_by(w, v) as x from t group by id, v": "",
}
REFUSED = {
    "select id, last_value(w) over (partition by k order by v) as r from t": 12,
    "select id, collect_list(w) over (partition by k order by v) as r from t": 12,
    "select id, nth_value(w, 2) over (partition by k order by v) as r from t": 12,
    "select id, first_value(w) ignore nulls over (partition by k order by v) as r from t": 12,
}
#: Texts whose results ties decide, for the comparison with the batch.
TIED = [
    "select id, row_number() over (partition by k order by v desc) as r, w from t",
    "select w, row_number() over (partition by k order by v) as r from t",
    "select k, w from (select k, w, row_number() over (partition by k order by v) as r from t) x where r = 1",  # noqa: E501
    "select id, lag(w) over w as b, rank() over w as c, lead(w, 2) over w as d from t window w as (partition by k order by v)",  # noqa: E501
    "select id, first_value(w) over (partition by k order by v) as r from t",
    "select w, sum(w) over (partition by k order by v rows between 1 preceding and current row) as r from t",  # noqa: E501
    "select id, last_value(w) over (partition by k order by v rows between unbounded preceding and unbounded following) as r from t",  # noqa: E501
    "select k, max_by(w, v) as x, min_by(id, v) as y from t group by k",
    "select max_by(w, v) filter (where w > 0) as x, count(*) as n from t",
    "select t.k, max_by(u.w, t.v) as x from t left join u on t.k = u.k group by t.k",
    "select w, k from t order by v limit 3",
    "select k, count(*) as n from t group by k order by n desc limit 2",
    "select id from t where k in (select k from u order by v limit 2)",
    "select id, (select w from u order by v limit 1) as m from t",
    "select id, (select w from u where u.k = t.k order by v limit 1) as m from t",
    "select x.w, u.id from (select w, k from t order by v desc limit 3) x join u on u.k = x.k",
    "select w from t order by v offset 2",
    "select k, n, row_number() over (partition by n order by k) as r, lag(k) over (order by n) as b from (select k, count(*) as n from t group by k) x",  # noqa: E501
    "select k, v, row_number() over (partition by k order by v) as r from u2",
    "select k, v, row_number() over (partition by k order by w) as r from u2",
    "select k, count(*) as n, row_number() over (partition by max(v) order by count(*)) as r from t group by k",  # noqa: E501
]
BELOW = {"u2": "select k, v, w from u union all select k, v, w from u where w > 0"}


class Shuffled(DuckEngine):
    """An engine that finds rows in another order each time."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        return super().run(sql, {n: self.shuffled(rows) for n, rows in relations.items()}, result)

    def shuffled(self, rows: pa.Table) -> pa.Table:
        order = self.chance.sample(range(rows.num_rows), rows.num_rows)
        return rows.take(pa.array(order, pa.int64()))


@pytest.mark.parametrize("sql", ADDED)
def test_what_tells_rows_apart_is_added(sql: str) -> None:
    view = parse_view(sql, "v")
    text, written = in_total_order(view, keyed(SCHEMAS)).query.sql, view.query.sql
    added = ADDED[sql]
    if added is None:
        assert text.count("THEN STRUCT(v AS v, NOT (w) IS NULL AS col2, w AS w) END)") == 1
        return
    kept = iter(text)
    assert all(letter in kept for letter in written)
    assert len(text) == len(written) + len(added)
    assert added in text


@pytest.mark.parametrize("sql", REFUSED)
def test_what_cannot_be_told_apart_is_refused(sql: str) -> None:
    with pytest.raises(UserError, match="ORDER_DEPENDENT") as caught:
        compile_view(parse_view(sql, "v"), keyed(SCHEMAS))
    assert caught.value.where == f"<sql>:1:{REFUSED[sql]}"
    compile_view(parse_view(sql.replace("order by v", "order by v, id"), "v"), keyed(SCHEMAS))


def test_rows_that_explode_makes_are_not_told_apart_by_the_key() -> None:
    schemas = keyed({"t": table_schema("id bigint, k bigint, xs array<bigint>", "id")})
    text = "select id, explode(xs) as x, row_number() over (partition by k order by id) as r from t"
    with pytest.raises(UserError, match="ORDER_DEPENDENT"):
        compile_view(parse_view(text, "v"), schemas)
    inner = "select id, k, explode(xs) as x from t"
    text = f"select id, x, row_number() over (partition by k order by id, x) as r from ({inner})"
    compile_view(parse_view(text, "v"), schemas)


def run(sql: str, engine: Engine, seed: int, epochs: int) -> None:
    """Small tables, where nearly all rows tie."""
    chance = random.Random(seed)
    world, on_spark = World(SCHEMAS, {**BELOW, "v": sql}, engine), isinstance(engine, SparkEngine)
    rows: dict[str, dict[int, Row]] = {"t": {}, "u": {}}

    def made(key: int) -> Row:
        k, v, w = (chance.choice([None, 0, 1, 2]) for _ in range(3))
        # DuckDB's max_by leaves out rows whose value is NULL; Spark's does not.
        return key, k, v, 0 if w is None and "_by(" in sql and not on_spark else w

    for _ in range(epochs):
        world.epoch(
            {
                name: random_changes(
                    chance, rows[name], range(12), chance.randrange(1, 8), 0.7, made
                )
                for name in chance.sample(["t", "u"], chance.randrange(1, 3))
            }
        )


@pytest.mark.parametrize("sql", some_today(TIED, 2))
def test_ties_give_what_the_batch_gives(sql: str) -> None:
    for seed in seeds(2, first=4_000):
        run(sql, Shuffled(random.Random(seed)), seed, epochs=8)


def test_what_ties_is_kept_up_over_all_rows() -> None:
    sql = "select max_by(w, v) as a, min_by(id, v) filter (where w > 0) as b from t"
    plan = compile_view(parse_view(sql, "v"), keyed(SCHEMAS))
    assert plan.evaluation == "maintained"
    run(sql, Shuffled(random.Random(1)), 1, epochs=20)


@pytest.mark.spark
@pytest.mark.days(3)
def test_spark_takes_the_text_with_its_own_types(spark: SparkSession) -> None:
    schemas = {**SCHEMAS, "u2": table_schema("k bigint, v bigint, w bigint")}
    sets = "select k, v, row_number() over (order by count(*)) as r from t group by rollup (k, v)"
    for sql in (*ADDED, *TIED, sets):
        view = parse_view(sql, "v")
        total = in_total_order(view, keyed(schemas))
        assert analyze(spark, total, keyed(schemas)) == analyze(spark, view, keyed(schemas)), (
            total.sql
        )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.days(3)
def test_ties_on_spark(spark: SparkSession) -> None:
    for seed, sql in enumerate(TIED[:9]):
        run(sql, SparkEngine(spark), seed, epochs=2)
