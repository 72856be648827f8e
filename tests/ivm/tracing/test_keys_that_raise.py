"""Rows that a filter leaves out may have keys that raise: they are in an index all the same.

One that the filter does not leave out is told by the view."""

from __future__ import annotations

import pytest

from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.refusal import EvaluationError
from tests.ivm.world import World, table_schema

SCHEMAS = {
    "t": table_schema("id bigint, s string, a int, b int, d string", "id"),
    "u": table_schema("id bigint, k int, ok boolean", "id"),
}
VIEWS = [
    "select cast(s as int) as k, count(distinct a) as n from t where s in ('1', '2') group by 1",
    "select distinct a div b as x from t where b <> 0 and id > 0",
    "select u.id, x.id as y from (select * from t where s < 'a') x "
    "join u on cast(x.s as int) = u.k",
    "select id, count(*) over (partition by a % b) as n from (select * from t where b > 0) x",
    "select cast(a / b as int) as k, max(id) as m from t where b > 0 group by 1",
    "select cast(cast(s as int) as string) as k, max(a) as m from t where s < 'a' group by 1",
    "select int(s) as k, max(a) as m from t where s in ('1', '2') group by 1",
    "select to_date(d) as k, max(a) as m from t where s in ('1', '2') group by 1",
    "select max(a) as m from (select a, cast(s as int) as k from t where s < 'a') x group by k",
]


@pytest.mark.parametrize("sql", VIEWS)
def test_rows_that_a_filter_leaves_out_raise_nothing(sql: str) -> None:
    world = World(SCHEMAS, {"v": sql}, LocalEvaluator())
    assert len(world.plans) > 1, "no index"
    world.epoch(
        {
            "t": [(1, (1, "1", 7, 2, "2024-01-01")), (1, (2, "x", 8, 0, "no"))],
            "u": [(1, (1, 1, True))],
        }
    )
    world.epoch(
        {
            "t": [
                (-1, (1, "1", 7, 2, "2024-01-01")),
                (1, (1, "2", 7, 2, "2024-01-02")),
                (1, (3, "y", None, 0, "")),
            ]
        }
    )
    world.epoch({"t": [(-1, (2, "x", 8, 0, "no")), (1, (2, "1", 8, 3, "2024-02-01"))]})


def test_a_row_that_the_view_has_is_told() -> None:
    world = World(SCHEMAS, {"v": VIEWS[0].replace("where s in ('1', '2')", "")}, LocalEvaluator())
    with pytest.raises(EvaluationError):
        world.epoch({"t": [(1, (1, "x", 7, 2, ""))]})
