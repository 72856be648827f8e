"""View files: what is read, what is refused and how the message shows the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from mview.errors import UserError
from mview.plan.definition import load_views, parse_view
from mview.plan.render import bind_tables
from tests.relations import rel

CREATE = """-- revenue
CREATE OR REPLACE MATERIALIZED VIEW rev COMMENT 'per order'
WITH (key = 'id, name', path = 'out/rev', freshness = '10 seconds', policy = 'incremental_only',
      sink.retries = '3') AS
SELECT o.id, c.name FROM shop.orders o JOIN crm.c ON o.c = c.id -- the end
;
"""


def test_create_view_is_read_and_its_text_kept() -> None:
    view = parse_view(CREATE, "file", "rev.sql")
    assert view.name == "rev"
    assert view.sql.startswith("SELECT o.id")
    assert CREATE[view.offset :].startswith(view.sql)
    assert (view.line, view.column) == (5, 1)
    assert view.key == ("id", "name")
    assert view.freshness_ms == 10_000
    assert view.policy == "incremental_only"
    assert view.comment == "per order"
    assert view.options == {"path": "out/rev", "retries": "3"}
    assert view.table_names == (rel("shop.orders"), rel("crm.c"))


def test_bare_select_takes_the_name_of_its_file() -> None:
    assert parse_view("select 1 as x", "one").name == "one"


def test_cte_names_hide_tables() -> None:
    sql = (
        "with orders as (select * from orders), b as (select * from orders) "
        "select * from b, shop.orders where exists (with t as (select 1) select * from t, u)"
    )
    view = parse_view(sql, "v")
    assert [str(use.name) for use in view.tables] == ["orders", "shop.orders", "u"]


@pytest.mark.parametrize(
    ("text", "wrong", "place"),
    [
        ("select a\nfrom b wher x = ", "x", "f.sql:2:13"),
        ("select (a from b", "from", "f.sql:1:11"),
        ("select 'a from b", "'", "f.sql:1:8"),
        ("create materialized view a.b as select 1", "a.b", "f.sql:1:26"),
        ("create materialized view `../x` as select 1", "`../x`", "f.sql:1:26"),
        ("create materialized view v with (kye = 'a') as select 1", "kye", "f.sql:1:34"),
        (
            "create materialized view v with (freshness = 'soon') as select 1",
            "'soon'",
            "f.sql:1:46",
        ),
        ("create materialized view v with (policy = 'x') as select 1", "'x'", "f.sql:1:43"),
        ("create materialized view v with (key = 'a', key = 'b') as select 1", "key", "f.sql:1:45"),
        ("insert into t select 1", "insert", "f.sql:1:1"),
        ("select * from a.b.c.d", "a.b.c.d", "f.sql:1:15"),
    ],
)
def test_wrong_text_is_shown_with_a_caret(text: str, wrong: str, place: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_view(text, "v", "f.sql")
    assert caught.value.where == place
    _, line, caret = caught.value.what.splitlines()
    assert line[caret.index("^") : caret.rindex("^") + 1] == wrong


def test_a_typo_in_a_property_gets_a_hint() -> None:
    with pytest.raises(UserError, match="unknown property 'freshnes'") as caught:
        parse_view("create materialized view v with (freshnes='1s') as select 1", "v")
    assert caught.value.hint == "did you mean 'freshness'?"


@pytest.mark.parametrize("name", ["a/b", "../a", "a b", "1a", ""])
def test_a_view_name_is_no_path(name: str) -> None:
    with pytest.raises(UserError, match="is not a view name"):
        parse_view("select 1 as x", name)


def test_tables_are_replaced_and_nothing_else() -> None:
    sql = (
        "select shop.orders.id, `shop`.`orders`.x, o.y, 'shop.orders' -- shop.orders\n"
        "from shop.orders, shop.orders o, `shop`.lines"
    )
    bound = bind_tables(parse_view(sql, "v"), {rel("shop.orders"): "t0", rel("shop.lines"): "t1"})
    assert bound == (
        "SELECT orders.id, `orders`.x, o.y, 'shop.orders' "
        "FROM t0 AS `orders` CROSS JOIN t0 AS o CROSS JOIN t1 AS `lines`"
    )


def test_views_come_in_the_order_they_read_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("select * from b")
    (tmp_path / "b.sql").write_text("select * from c")
    (tmp_path / "c.sql").write_text("select * from shop.t")
    assert [view.name for view in load_views([tmp_path])] == ["c", "b", "a"]


def test_circles_and_duplicates_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("select * from b")
    (tmp_path / "b.sql").write_text("select * from a")
    with pytest.raises(UserError, match="circle: a -> b -> a"):
        load_views([tmp_path])
    (tmp_path / "b.sql").write_text("create materialized view a as select 1 as x")
    with pytest.raises(UserError, match="two views are called 'a'"):
        load_views([tmp_path])
    with pytest.raises(UserError, match="there is no file"):
        load_views([tmp_path / "none.sql"])
