"""Aggregates and windows over all rows: which become values that are kept, and which may not."""

from __future__ import annotations

import random

import pytest

from mview.ivm.compile import compile_view
from mview.plan.definition import parse_view
from tests.ivm.world import DuckEngine, Row, World, random_changes, table_schema
from tests.relations import keyed

SCHEMA = table_schema("id bigint, k bigint, g bigint", "id")
VIEWS = {
    "different pairs": "select count(distinct k, g) as n from t",
    "different ones of some rows": "select count(distinct k) filter (where g > 1) as n from t",
    "a running sum": "select id, sum(k) over (order by id) as s from t",
    "of groups of all that is no aggregate": "select k, max(count(*)) over () as m from t "
    "group by all",
    "one row per group is no value": "select t.id, s.n from t cross join "
    "(select sum(g) as n from t group by k) s",
    "first rows of first rows": "select k, g from (select id, k, g from t order by g, id limit 4) "
    "order by k limit 2",
    "ties": "select id, k from t order by k limit 2",
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_equal_the_batch(name: str) -> None:
    world = World({"t": SCHEMA}, {"v": VIEWS[name]}, DuckEngine())
    chance, rows = random.Random(2), dict[int, Row]()

    def made(key: int) -> Row:
        return key, chance.choice([None, 1, 2]), chance.choice([None, 1, 2])

    for _ in range(6):
        world.epoch({"t": random_changes(chance, rows, range(6), 2, 0.7, made)})


def test_what_makes_rows_of_all_rows_is_no_value() -> None:
    rows = "(select explode(collect_list(k)) as e from t)"
    plan = compile_view(
        parse_view(f"select t.id, x.e from t cross join {rows} x", "v"), keyed({"t": SCHEMA})
    )
    assert plan.parts == ()


def test_a_function_that_may_be_declared_stays_outside_of_the_state() -> None:
    known = compile_view(parse_view("select 1 + max(k) as m from t", "v"), keyed({"t": SCHEMA}))
    assert (known.maintained is not None, known.parts) == (True, ())
    plan = compile_view(
        parse_view("select hypot(1, max(k)) as m from t", "v"), keyed({"t": SCHEMA})
    )
    assert plan.maintained is None
    assert [part.maintained is not None for part in plan.parts] == [True]
    assert plan.definition.sql == "SELECT hypot(1, (SELECT `value` FROM `v:1`)) AS m"
