"""What a plan says of itself, where no result of a view would show it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.ivm.tracing.steps import Fetch
from mview.plan.definition import parse_view
from mview.plan.operators.ir import Ref
from mview.relation import RelationId
from mview.schema import TableSchema
from tests.ivm.world import table_schema
from tests.relations import keyed, rel

SCHEMAS = {
    "orders": table_schema("id bigint, cust bigint, name string, day date, at timestamp", "id"),
    "others": table_schema("id bigint, name string", "id"),
    "codes": table_schema("code string, num bigint, name string", "code"),
    "halves": table_schema("half double, name string", "half"),
}


def planned(sql: str) -> ViewPlan:
    return compile_view(parse_view(sql, "v"), keyed(SCHEMAS))


def test_slices_have_the_columns_that_are_read() -> None:
    plan = planned("select id, cust + 1 as c from orders")
    assert plan.slice_schemas[rel("orders")].names == ("id", "cust")


def test_first_rows_are_computed_as_their_state_takes_them() -> None:
    plan = planned("select day from orders order by day limit 3")
    assert plan.full_definition.sql.endswith("ORDER BY `day`, `__k0` LIMIT 3")
    assert planned("select (select max(id) from orders) as m").full_definition.table_names == (
        rel("orders"),
    )


def test_first_rows_of_a_join_with_a_value_have_a_key() -> None:
    plan = planned(
        "select o.id, s.n from orders o cross join (select sum(id) as n from others) s "
        "order by s.n limit 2"
    )
    assert [part.key for part in plan.parts] == [("n",), ("id", "n")]


def test_values_alone_are_no_full_read() -> None:
    sql = "select (select max(id) from orders) as a, (select max(id) from others) as b"
    assert planned(sql).evaluation == "slice_diff"


@pytest.mark.parametrize(
    ("sql", "indexed"),
    [
        ("select lower(name) as k, stddev(id) as n from orders group by lower(name)", True),
        # What it means is not known once it is written again.
        (
            "select to_date(name, 'yyyy') as k, stddev(id) as n from orders "
            "group by to_date(name, 'yyyy')",
            False,
        ),
    ],
)
def test_which_keys_are_indexed(sql: str, indexed: bool) -> None:
    assert bool(planned(sql).parts) == indexed


def test_no_index_is_planned_below_grouping_sets() -> None:
    # All rows are read for them, whatever looks into the index.
    sql = (
        "select k, max(n) as m from (select cust % 3 as k, day, count(*) as n from orders "
        "group by rollup (cust % 3, day)) group by k"
    )
    analyzed: list[RelationId] = []

    def analyze(plan: ViewPlan, schemas: Mapping[RelationId, TableSchema]) -> ViewPlan:
        analyzed.append(plan.relation)
        return plan

    compile_view(parse_view(sql, "v"), keyed(SCHEMAS), analyze)
    assert analyzed == [rel("v")]


def test_rows_in_an_order_that_distinct_leaves_out_are_no_first_rows() -> None:
    # Spark refuses it. A part with the hidden column would have another row for each of its values.
    assert planned("select distinct cust, day from orders order by day limit 3").parts
    assert not planned("select distinct cust from orders order by day limit 3").parts


@pytest.mark.parametrize("made", ["day - 3", "case when id > 1 then day - day else rint(id) end"])
def test_a_type_is_refused_where_it_is_sure(made: str) -> None:
    assert planned(f"select id, {made} as d from orders").key == ("id",)


def test_a_column_that_is_compared_to_two_values_is_looked_up_by_one() -> None:
    """Rows have each column once: twice, the look-up would have two columns of one name."""
    plan = planned("select a.id from orders a join others b on a.cust = b.id and a.id = b.id")
    fetches = [step for trace in plan.traces for step in trace.steps if isinstance(step, Fetch)]
    by_table = {step.table: step.columns for step in fetches}
    assert by_table == keyed({"others": ("id",), "orders": ("cust", "id")})


def test_twice_the_columns_are_twice_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    begin = Ref.__init__

    def counted(self: Ref, relation: str, column: str) -> None:
        nonlocal made
        made += 1
        begin(self, relation, column)

    monkeypatch.setattr(Ref, "__init__", counted)
    counts = []
    for number in (40, 80):
        made = 0
        planned(f"select {', '.join(f'cust as c{n}' for n in range(number))}, id from orders")
        counts.append(made)
    assert counts[1] < 2.5 * counts[0]


@pytest.mark.parametrize(
    ("key", "query", "proven"),
    [
        ("id", "select id, name from orders", True),
        ("id, name", "select id, name from orders", True),
        ("name", "select id, name from orders", False),
        ("cust", "select cust, max(id) as m from orders group by cust", True),
        ("m", "select cust, max(id) as m from orders group by cust", False),
        ("cust", "select cust, day, max(id) as m from orders group by cust, day", False),
        ("id", "select o.id, x.name from orders o join others x on o.cust = x.id", True),
        ("id", "select o.id, x.name from orders o join others x on o.name = x.name", False),
        ("id", "select id from orders union all select id from others", False),
        (
            "cust",
            "select cust, id from (select cust, id, row_number() over "
            "(partition by cust order by id) as n from orders) where n = 1",
            True,
        ),
        # '1' and '01' are one number, and so are whole numbers beyond 2^53 as DOUBLE.
        ("id", "select o.id, c.name from orders o left join codes c on o.cust = c.code", False),
        ("num", "select o.id as num, c.name from codes c join orders o on c.code = o.id", False),
        ("half", "select h.half, o.name from orders o join halves h on o.id = h.half", False),
        ("id", "select o.id, c.name from orders o left join codes c on o.name = c.code", True),
        ("id", "select o.id from orders o left semi join codes c on o.cust = c.code", True),
        ("id", "select id, x from orders lateral view explode(array(1, 1)) e as x", False),
    ],
)
def test_which_declared_keys_are_proven(key: str, query: str, proven: bool) -> None:
    plan = planned(f"create materialized view v with (key='{key}') as {query}")
    assert plan.key == tuple(part.strip() for part in key.split(","))
    assert plan.has_proven_key == proven
