"""What people bring along from other engines is refused with what a view writes in its place."""

from __future__ import annotations

import pytest

from mview.errors import UserError
from mview.ivm.compile import compile_view
from mview.plan.definition import parse_view
from mview.plan.functions.names import ARGUMENTS, REFUSED
from mview.plan.text.elsewhere import FUNCTIONS
from tests.ivm.world import table_schema
from tests.relations import keyed

SCHEMAS = keyed(
    {
        "shop.orders": table_schema(
            "id bigint, k bigint, item string, tags array<string>, at timestamp", "id"
        )
    }
)


def refused(sql: str, name: str = "v") -> UserError:
    with pytest.raises(UserError) as caught:
        compile_view(parse_view(sql, name), SCHEMAS)
    return caught.value


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("select group_concat(item) as x from shop.orders", "listagg(x, ',') WITHIN GROUP"),
        ("select * exclude (item) from shop.orders", "SELECT * EXCEPT (column)"),
        ("select n from generate_series(1, 3) t(n)", "explode(sequence(1, 10))"),
        ("select id from range(10)", "explode(sequence(1, 10))"),
        ("select w from table(tumble(table shop.orders, descriptor(at)))", "date_trunc('minute'"),
        ("select id from table shop.orders union (table shop.orders)", "SELECT * FROM shop.orders"),
        (
            "select window.start as s from shop.orders group by window(at, '1 hour')",
            "date_trunc('mi",
        ),
        ("select id from shop.orders where at > mz_now()", "now()"),
        ("select proctime() as p from shop.orders", "now()"),
        ("select distinct on (k) id from shop.orders", "QUALIFY row_number() OVER"),
        ("select id from shop.orders fetch first 3 rows only", "LIMIT 10"),
        ("select id from shop.orders where id = :id", "write the value itself"),
        ("select id from shop.orders version as of 3", "as_of() of its reader"),
        ("select id from shop.orders tablesample (10 percent)", "WHERE id % 10 = 0"),
        ("select id from orders", "a table is written <connection>.orders"),
        ('select "Id" from shop.orders', "a column in backticks: `Id`"),
        ("select id + 1 from shop.orders", "<expression> AS <name>"),
        ("select {{ ref('orders') }}", "templates are not filled in here"),
        ("select id from shop.orders where item = ‘x’", "texts in quotes: 'a b'"),
        ("create view v as select id from shop.orders", "CREATE [OR REPLACE] MATERIALIZED VIEW"),
        ("insert into v select id from shop.orders", "write the query alone: SELECT …"),
        ("select id from shop.orders; select id from shop.orders", "a file for each view"),
    ],
)
def test_the_hint_says_what_is_written_here(sql: str, hint: str) -> None:
    assert hint in (refused(sql).hint or "")


@pytest.mark.parametrize(
    "sql",
    [
        "select listagg(item, ',') within group (order by item) as x from shop.orders",
        "select * except (item) from shop.orders",
        "select explode(sequence(1, 10)) as n",
        "select date_trunc('minute', at) as m, count(*) as n from shop.orders "
        "group by date_trunc('minute', at)",
        "select id from shop.orders qualify row_number() over (partition by k order by id) = 1",
        "select o.id, x from shop.orders o lateral view explode(o.tags) as x",
    ],
)
def test_what_hints_say_is_taken(sql: str) -> None:
    compile_view(parse_view(sql, "v"), SCHEMAS)


def test_no_function_of_ours_is_called_foreign() -> None:
    assert not FUNCTIONS.keys() & {*ARGUMENTS, *REFUSED}


def test_a_long_line_is_shown_around_the_place() -> None:
    items = ", ".join(f"id + {number} as c{number}" for number in range(2000))
    told = refused(f"select {items}, nix as x, {items.replace('as c', 'as d')} from shop.orders")
    _, line, caret = told.what.split("\n")
    assert len(line) < 200
    assert line[caret.index("^") :].startswith("nix as x")
    assert line[caret.index("^") + 3 :].endswith(" …")
