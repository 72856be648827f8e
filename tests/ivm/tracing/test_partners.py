"""Rows of a join that depend on rows beside the changed one: is there another partner?"""

from __future__ import annotations

import pytest

from mview.ivm.compile import compile_view
from mview.ivm.tracing.steps import Whole
from mview.plan.definition import parse_view
from tests.ivm.world import DuckEngine, Row, World, table_schema
from tests.relations import keyed, rel

VIEWS = {
    "left": "select a.id, b.id as other from a left join b on a.k = b.k",
    "right": "select b.id, a.id as other from a right join b on a.k = b.k",
    "full": "select a.id, b.id as other from a full join b on a.k = b.k",
    "semi": "select id from a left semi join b on a.k = b.k",
    "anti": "select id from a left anti join b on a.k = b.k",
    "not_in": "select id from a where k not in (select k from b)",
    "using": "select k, count(*) as n from a full join b using (k) group by k",
    "not_in_as_value": "select id, k not in (select k from b) as f from a",
    "not_in_of": "select id from a where k not in (select k from b where b.g = a.g)",
}


@pytest.mark.parametrize("name", VIEWS)
def test_one_of_two_partners_goes_and_comes(name: str) -> None:
    schema = table_schema("id bigint, k bigint, g bigint", "id")
    world = World({"a": schema, "b": schema}, {"v": VIEWS[name]}, DuckEngine())
    rows = [(1, 7, 1), (2, 7, 1), (3, 8, 1), (4, None, 2)]
    world.epoch({"a": [(1, row) for row in rows], "b": [(1, row) for row in rows]})
    for table in ("a", "b"):
        for row in rows:
            world.epoch({table: [(-1, row)]})
            world.epoch({table: [(1, row)]})


#: Where NULL stands for a partner that is not there, and what finds the rows behind it.
OPTIONAL = {
    "as a key": "select a.id, c.id as other from a left join b on b.k = a.k join c on c.g <=> b.g",
    "in an expression": "select b.id, c.id as other from a right join b on a.k = b.k "
    "join c on c.k = coalesce(a.k, 2)",
    "equal to NULL": "select a.id, b.id as other from a join b on a.k % 2 <=> b.k % 2",
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_rows_behind_a_null(name: str) -> None:
    schema = table_schema("id bigint, k bigint, g bigint", "id")
    world = World(dict.fromkeys("abc", schema), {"v": OPTIONAL[name]}, DuckEngine())
    rows: dict[str, list[Row]] = {
        "a": [(1, 1, 1), (2, None, 2)],
        "b": [(1, 1, 1), (2, 2, None), (3, None, 2)],
        "c": [(1, 2, None), (2, 1, 1)],
    }
    world.epoch({table: [(1, row) for row in rows[table]] for table in "abc"})
    for table in "abc":
        for row in rows[table]:
            world.epoch({table: [(-1, row)]})
            world.epoch({table: [(1, row)]})


def test_no_key_is_sent_to_a_merged_column_of_two_types() -> None:
    schemas = {
        "a": table_schema("id bigint, k bigint", "id"),
        "b": table_schema("id bigint, k decimal(10,2)", "id"),
        "c": table_schema("id bigint, k bigint", "id"),
    }
    view = "select u.k, c.id from (select k from a full join b using (k)) u join c on c.k = u.k"
    plan = compile_view(parse_view(view, "v"), keyed(schemas))
    (steps,) = (one.steps for one in plan.traces if one.table == rel("c"))
    assert {Whole(rel("a")), Whole(rel("b"))} <= set(steps)
