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


#: Joins of values that are one to a comparison alone: two BIGINTs as DOUBLE, '1' and '01' as 1.
CONVERTED = {
    "left": "select t.id, {b}.v from t left join {b} on {on}",
    "inner": "select t.id, {b}.v from t join {b} on {on}",
    "right": "select t.id, {b}.v from {b} right join t on {on}",
    "full": "select t.id, {b}.k, {b}.v from t full join {b} on {on}",
    "semi": "select id from t left semi join {b} on {on}",
    "anti": "select id from t left anti join {b} on {on}",
    "exists": "select id from t where not exists (select 1 from {b} where {on})",
    "as_value": "select id, exists (select 1 from {b} where {on}) or id = 9 as f from t",
    "scalar": "select id, (select count(*) from {b} where {on}) as n from t",
    "first": "select t.id, {b}.v from t join {b} on {on} order by t.id limit 1",
}


@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.parametrize("other", ["u", "s"])
def test_partners_that_only_a_conversion_makes_equal(name: str, other: str) -> None:
    schemas = {
        "t": table_schema("id bigint, x double, n int", "id"),
        "u": table_schema("k bigint, v int", "k"),
        "s": table_schema("k string, v int", "k"),
    }
    large = 2**53
    rows: list[Row] = [(large, 10), (large + 1, 20)] if other == "u" else [("1", 10), ("01", 20)]
    on = {"u": "t.x = u.k", "s": "t.n = s.k"}[other]
    world = World(schemas, {"v": CONVERTED[name].format(b=other, on=on)}, DuckEngine())
    world.epoch({"t": [(1, (1, float(large), 1)), (1, (2, 5.0, 2))], other: [(1, rows[0])]})
    world.epoch({other: [(1, rows[1])]})
    world.epoch({other: [(-1, rows[0])]})
    world.epoch({other: [(-1, rows[1])]})


@pytest.mark.parametrize(
    ("mine", "theirs", "key"),
    [
        *(("bigint", kind, ("id",)) for kind in ("int", "decimal(20,0)", "decimal(30,10)")),
        *(("bigint", kind, ()) for kind in ("string", "double", "decimal(38,20)")),
        ("timestamp", "date", ("id",)), ("decimal(38,2)", "decimal(38,10)", ()),
    ],
)  # fmt: skip
def test_a_key_is_no_key_of_rows_that_may_have_two_partners(
    mine: str, theirs: str, key: tuple[str, ...]
) -> None:
    schemas = {
        "a": table_schema(f"id bigint, k {mine}", "id"),
        "b": table_schema(f"k {theirs}, v int", "k"),
    }
    plan = compile_view(
        parse_view("select a.id, b.v from a left join b on a.k = b.k", "v"), keyed(schemas)
    )
    assert plan.key == key


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
