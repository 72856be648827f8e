"""Names: what is unknown or ambiguous is shown in the text; what is valid is bound."""

from __future__ import annotations

import pytest

from mview.errors import UserError
from mview.plan.clocks import CLOCKS
from mview.plan.definition import parse_view
from mview.plan.operators.build import build
from mview.plan.operators.ir import Unsupported
from tests.ivm.world import table_schema
from tests.relations import keyed

SCHEMAS = {
    "shop.orders": table_schema(
        "id bigint, cust bigint, total decimal(12,2), tags array<string>", "id"
    ),
    "shop.lines": table_schema("order_id bigint, n int, qty int", "order_id n"),
    "cust": table_schema("id bigint, name string", "id"),
}

LATER = "the select list names it later: name it before, or write it out"
NO_ALIAS = "Spark takes none there: write what it stands for, or name it in a subquery"


@pytest.mark.parametrize(
    ("sql", "wrong", "hint"),
    [
        ("select nam from cust", "nam", "did you mean 'name'?"),
        ("select c.nam from cust c", "nam", "did you mean 'name'?"),
        ("select x.name from cust c", "x.name", "one of c"),
        ("select id\nfrom cust a, cust b", "id", "write one of a.id, b.id"),
        ("select st.f from (select struct(id as f) as st from cust) a,"
         " (select struct(id as f) as st from cust) b", "st.f", "write one of a.st.f, b.st.f"),
        ("select id from shop.order", "shop.order", "did you mean 'shop.orders'?"),
        ("select id from cust where exists (select 1 from shop.lines where orderid = id)", "orderid",  # noqa: E501
         "did you mean 'order_id'?"),
        ("select name, count(*) as n from cust group by 3", "3", None),
        ("select id from cust union select order_id, n from shop.lines",
         "order_id, n from shop.lines", None),
        ("select * from cust join shop.orders using (nix)", "nix", None),
        # Columns are told before what the query makes of them, which may be what is wrong.
        ("select c.idd as namx, c.namx as n from cust c", "idd", "did you mean 'id'?"),
        ("select zzz, count(*) as n from cust group by name", "zzz", "one of id, name"),
        ("select namx as namxx from cust", "namx", "did you mean 'name'?"),
        ("select name as called from cust having calld > 'a'", "calld", "did you mean 'called'?"),
        # An alias stands for its expression behind it, where Spark takes it.
        ("select b + 1 as a, id as b from cust", "b", LATER),
        ("select b + 1 as b from cust", "b", "one of id, name"),
        ("select b as a, count(*) as b from cust group by id", "b", LATER),
        ("select id as b, sum(b) as s from cust group by id", "b", NO_ALIAS),
        ("select id as b, sum(id) filter (where b > 1) as s from cust group by id", "b", NO_ALIAS),
        ("select id as b from cust group by id having max(b) > 1", "b", NO_ALIAS),
        ("select id as b, rank() over (order by b) as r from cust", "b", NO_ALIAS),
        ("select id as b, explode(array(b)) as e from cust", "b", NO_ALIAS),
        ("select id as a, a as b, count(*) as n from cust group by b", "a", NO_ALIAS),
        ("select id as a, a as b, count(*) as n from cust group by 1, 2", "a", NO_ALIAS),
        ("select id as a, a as b, count(*) as n from cust group by all", "a", NO_ALIAS),
        ("select struct(id) as st, max(st.id) as m from cust group by id", "st.id", NO_ALIAS),
        ("select sx.* from (select struct(id) as st from cust)", "sx.*", None),
    ],
)  # fmt: skip
def test_wrong_names_are_shown(sql: str, wrong: str, hint: str | None) -> None:
    with pytest.raises(UserError) as caught:
        build(parse_view(sql, "v", "v.sql"), keyed(SCHEMAS))
    _, line, caret = caught.value.what.splitlines()
    assert line[caret.index("^") : caret.rindex("^") + 1] == wrong
    assert caught.value.hint == hint


def test_clocks_are_no_tables_to_choose_from() -> None:
    with pytest.raises(UserError) as caught:
        build(parse_view("select id from zzz", "v", "v.sql"), {**keyed(SCHEMAS), **CLOCKS})
    assert caught.value.hint == (
        "one of cust, shop.lines, shop.orders; a table is written <connection>.zzz; a view that is "
        "not in the store yet: give its file or folder, too"
    )


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("select *, id + 1 as next from cust", ["id", "name", "next"]),
        ("select * except (name) from cust", ["id"]),
        (
            "select c.*, o.total from cust c join shop.orders o on o.cust = c.id",
            ["id", "name", "total"],
        ),
        (
            "select * from cust natural join (select id, total from shop.orders)",
            ["id", "name", "total"],
        ),
        ("select shop.orders.id from shop.orders", ["id"]),
        ("select ID as a, a + 1 as b from cust", ["a", "b"]),
        ("select id as a, max(id) as m, m + a as b from cust group by a having b > 1", list("amb")),
        (
            "select id as x, max(transform(tags, x -> x)) as m from shop.orders group by id",
            ["x", "m"],
        ),
        ("select id as a, count(*) as n from cust group by id, a + 1", ["a", "n"]),
        ("select id + 1 as a, count(*) as n from cust group by all", ["a", "n"]),
        ("select id as b from cust qualify rank() over (order by b) < 3", ["b"]),
        ("select id as b, rank() over (order by id) + b as r from cust", ["b", "r"]),
        ("select 1 as a from cust c where exists (select a + 1 as a from values (1) t(a))", ["a"]),
        ("select upper(name) as u, count(*) as n from cust group by u having n > 1", ["u", "n"]),
        ("select transform(tags, x -> concat(x, id)) as t from shop.orders", ["t"]),
        ("select t.tag from shop.orders lateral view explode(tags) t as tag", ["tag"]),
        ("select x from values (1), (2) as t(x)", ["x"]),
    ],
)
def test_valid_names_are_bound(sql: str, columns: list[str]) -> None:
    root = build(parse_view(sql, "v"), keyed(SCHEMAS)).root
    assert [ref.column for ref in root.columns] == columns


def test_only_columns_that_are_read_are_used() -> None:
    built = build(
        parse_view("select name from cust where exists (select 1 from shop.lines)", "v"),
        keyed(SCHEMAS),
    )
    assert built.used == keyed({"cust": {"id", "name"}, "shop.lines": {"order_id", "n"}})


@pytest.mark.parametrize("sql", ["select count(*) from cust", "select id, id from cust"])
def test_every_column_needs_a_name_of_its_own(sql: str) -> None:
    with pytest.raises(UserError, match=r"has no name|are called"):
        build(parse_view(sql, "v"), keyed(SCHEMAS))


def test_what_the_ir_cannot_express_says_so() -> None:
    with pytest.raises(Unsupported, match="recursive"):
        build(
            parse_view("with recursive r as (select 1 as x) select x from r", "v"), keyed(SCHEMAS)
        )
