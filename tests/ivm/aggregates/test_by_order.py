"""Which views hold values that differ by the order in which rows are read."""

from __future__ import annotations

import pytest

from mview.ivm.compile import compile_view
from mview.plan.definition import parse_view
from tests.ivm.world import table_schema
from tests.relations import keyed

SCHEMAS = {"t": table_schema("id bigint, g int, x double, p decimal(12,2)", "id")}


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("select sum(x) as s from t group by g", True),
        ("select cast(avg(x + 1) filter (where id > 1) as string) as s from t group by g", True),
        ("select sum(x) over (partition by g) as s from t", True),
        ("select s from (select g, stddev(p) as s from t group by g)", True),
        ("select max_by(p, g) as s from t", False),
        ("select try_sum(p) as s from t group by g", True),
        ("select g, regr_slope(x, p) as s from t group by g", True),
        ("select sum(p) as s, avg(g) as a, count(x) as n from t group by g", False),
        ("select min(x) as a, max(x) as b, percentile(x, 0.5) as c from t group by g", False),
        ("select x * 2 as d from t", False),
        ("select rank() over (partition by g order by x) as r from t", False),
    ],
)
def test_views(sql: str, found: bool) -> None:
    assert compile_view(parse_view(sql, "v"), keyed(SCHEMAS)).is_by_order is found
