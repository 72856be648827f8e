"""Golden plans: title, SQL, and what `explain` prints. MVIEW_COMPLETE=1 writes the answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mview.errors import UserError
from mview.ivm.compile import compile_view
from mview.ivm.explain import explain
from mview.plan.definition import parse_view
from tests.ivm.world import table_schema
from tests.relations import keyed

FILE = Path(__file__).parent / "explain.txt"
SCHEMAS = {
    "shop.orders": table_schema("id bigint, cust bigint, day date, total decimal(12,2)", "id"),
    "shop.lines": table_schema(
        "order_id bigint, n int, qty int, price decimal(12,2)", "order_id n"
    ),
    "crm.customers": table_schema("id bigint, name string, nation bigint", "id"),
    "crm.nations": table_schema("id bigint, name string", "id"),
}


def cases() -> list[list[str]]:
    """[title, SQL, tree] per case; cases are apart by ====, the parts by ----."""
    parts = [one.split("\n----\n") for one in FILE.read_text().strip().split("\n====\n")]
    return [[one[0], one[1].strip(), one[2].strip() if len(one) > 2 else ""] for one in parts]


@pytest.mark.parametrize(("title", "sql", "tree"), [pytest.param(*c, id=c[0]) for c in cases()])
def test_plan(title: str, sql: str, tree: str) -> None:
    assert explain(compile_view(parse_view(sql, "v"), keyed(SCHEMAS))) == tree


@pytest.mark.skipif(
    "MVIEW_COMPLETE" not in os.environ, reason="MVIEW_COMPLETE=1 writes the answers"
)
def test_complete() -> None:
    done = [
        "\n----\n".join([title, sql, explain(compile_view(parse_view(sql, "v"), keyed(SCHEMAS)))])
        for title, sql, _ in cases()
    ]
    FILE.write_text("\n====\n".join(done) + "\n")


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        (
            "select l.order_id, l.n, o.day from shop.lines l join shop.orders o on o.id = l.order_id",  # noqa: E501
            "order_id n",
        ),
        ("select o.id, l.n from shop.lines l join shop.orders o on o.id = l.order_id", "id n"),
        ("select o.id, c.name from shop.orders o left join crm.customers c on c.id = o.cust", "id"),
        ("select o.id, l.n from shop.orders o join shop.lines l on o.id = l.order_id", "id n"),
        ("select o.id, l.n from shop.orders o left join shop.lines l on l.order_id = o.id", ""),
        (
            "select o.id, c.id as c from shop.orders o join crm.customers c on c.nation = o.cust",
            "id c",
        ),
        ("select cust, count(*) as n from shop.orders group by cust", "cust"),
        ("select distinct cust, day from shop.orders", "cust day"),
        ("select day from shop.orders", ""),
        ("select cust from shop.orders union all select id from crm.customers", ""),
        (
            "select cust, day from (select *, row_number() over (partition by cust order by id) as rn from shop.orders) where rn = 1",  # noqa: E501
            "cust",
        ),
        (
            "select cust, day from (select *, row_number() over (partition by cust order by id) as rn from shop.orders) where rn > 1",  # noqa: E501
            "",
        ),
        (
            "select cust, day from shop.orders qualify row_number() over (partition by cust order by id) > 1",  # noqa: E501
            "",
        ),
        (
            "select cust, row_number() over (partition by cust + 1 order by day) as n from (select cust, day from shop.orders union all select cust, day from shop.orders)",  # noqa: E501
            "",
        ),
    ],
)
def test_keys_are_derived(sql: str, key: str) -> None:
    assert compile_view(parse_view(sql, "v"), keyed(SCHEMAS)).key == tuple(key.split())


def test_a_declared_key_must_be_a_column() -> None:
    view = parse_view(
        "create materialized view v with (key='idd') as select id from crm.nations", "v"
    )
    with pytest.raises(UserError, match="'idd' is not a column") as caught:
        compile_view(view, keyed(SCHEMAS))
    assert caught.value.hint == "did you mean 'id'?"


@pytest.mark.parametrize(
    ("select", "code"),
    [
        ("select stddev(total) as m from shop.orders", "GLOBAL"),
        (
            "select id from shop.orders order by id offset 3",
            "LIMIT",
        ),
        (
            "select a.id as a, b.id as b from shop.orders a left join shop.orders b on a.total < b.total",  # noqa: E501
            "NO_EQUALITY",
        ),
        (
            "select o.total + c.nation as x, count(distinct cust) as m from shop.orders o join crm.customers c on c.id = o.cust group by o.total + c.nation",  # noqa: E501
            "COMPUTED_KEY",
        ),
        (
            "select c.name, count(distinct o.id) as m from shop.orders o left join crm.customers c on o.cust = c.id group by c.name",  # noqa: E501
            "NULL_EXTENDED",
        ),
    ],
)
def test_incremental_only_refuses_full(select: str, code: str) -> None:
    text = f"create materialized view v with (policy='incremental_only') as {select}"
    with pytest.raises(UserError, match=rf"needs FULL \({code}\)"):
        compile_view(parse_view(text, "v"), keyed(SCHEMAS))


def test_incremental_only_accepts_what_is_incremental() -> None:
    text = "create materialized view v with (policy='incremental_only') as select distinct day from shop.orders"  # noqa: E501
    assert compile_view(parse_view(text, "v"), keyed(SCHEMAS)).evaluation == "slice_diff"


#: What a hint says to write instead of a text that needs FULL.
HEEDED = {
    "select stddev(total) as m from shop.orders": "select cust, stddev(total) as m from shop.orders group by cust",  # noqa: E501
    "select sum(double(total)) as m from shop.orders": "select sum(cast(double(total) as decimal(20, 2))) as m from shop.orders",  # noqa: E501
    "select cust, day, stddev(total) as m from shop.orders group by rollup (cust, day)": "select cust, day, stddev(total) as m from shop.orders group by cust, day union all select cust, null, stddev(total) from shop.orders group by cust",  # noqa: E501
    "select id, row_number() over (order by id) as n from shop.orders": "select id, row_number() over (partition by cust order by id) as n from shop.orders",  # noqa: E501
    "select id from shop.orders order by id offset 3": "select id from shop.orders order by id limit 10 offset 3",  # noqa: E501
}


@pytest.mark.parametrize("text", HEEDED)
def test_who_follows_a_hint_is_incremental(text: str) -> None:
    plan = compile_view(parse_view(text, "v"), keyed(SCHEMAS))
    (note,) = {one.note for one in plan.nodes if one.strategy == "FULL"}
    assert note is not None
    assert note.hint
    better = compile_view(parse_view(HEEDED[text], "v"), keyed(SCHEMAS))
    assert not [one for p in (*better.parts, better) for one in p.nodes if one.strategy == "FULL"]


@pytest.mark.parametrize(
    "text",
    [
        "select id from shop.orders where cust in (select cust from shop.orders order by total desc, id limit 3)",  # noqa: E501
        "select id from shop.orders where total = (select total from shop.orders order by total desc, id limit 1)",  # noqa: E501
        "select id from shop.orders where exists (select 1 from shop.orders o where o.cust = orders.cust limit 1)",  # noqa: E501
    ],
)
def test_first_rows_in_a_subquery_are_kept(text: str) -> None:
    plan = compile_view(parse_view(text, "v"), keyed(SCHEMAS))
    assert not [one for p in (*plan.parts, plan) for one in p.nodes if one.strategy == "FULL"]
