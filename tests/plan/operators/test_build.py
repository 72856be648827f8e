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


@pytest.mark.parametrize(
    ("sql", "wrong", "hint"),
    [
        ("select nam from cust", "nam", "did you mean 'name'?"),
        ("select c.nam from cust c", "nam", "did you mean 'name'?"),
        ("select x.name from cust c", "x.name", "one of c"),
        ("select id\nfrom cust a, cust b", "id", "write one of a.id, b.id"),
        ("select id from shop.order", "shop.order", "did you mean 'shop.orders'?"),
        ("select id from cust where exists (select 1 from shop.lines where orderid = id)", "orderid",  # noqa: E501
         "did you mean 'order_id'?"),
        ("select name, count(*) as n from cust group by 3", "3", None),
        ("select id from cust union select order_id, n from shop.lines",
         "order_id, n from shop.lines", None),
        ("select * from cust join shop.orders using (nix)", "nix", None),
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
