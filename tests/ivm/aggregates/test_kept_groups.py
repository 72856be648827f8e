"""Groups that are kept: what a change beside other rows of its group makes of them."""

from __future__ import annotations

import pytest

from tests.ivm.world import DuckEngine, World, table_schema

VIEWS = {
    "tests": "select k, bool_and(v > 1) as b, bool_or(v > 1) as o, count_if(v > 1) as n "
    "from t group by k",
    "having": "select k, count(*) as n from t group by k having count(*) > 1",
    "sets": "select k, g, count(*) as n from t group by grouping sets ((k), (g), (k))",
}


@pytest.mark.parametrize("name", VIEWS)
def test_rows_of_a_group_go_and_come(name: str) -> None:
    schema = table_schema("id bigint, k bigint, g bigint, v bigint", "id")
    world = World({"t": schema}, {"v": VIEWS[name]}, DuckEngine())
    rows = [(1, 7, 1, 1), (2, 7, 2, 2), (3, 7, 1, None), (4, 8, 2, 3), (5, None, 2, 0)]
    for row in rows:
        world.epoch({"t": [(1, row)]})
    for row in rows:
        world.epoch({"t": [(-1, row)]})
        world.epoch({"t": [(1, row)]})
