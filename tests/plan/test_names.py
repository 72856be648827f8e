"""Names: told apart exactly, or refused with a reason; internal ones are nobody's."""

from __future__ import annotations

import re

import pytest

from mview.catalog.analyze import relation_names
from mview.epoch.names import is_source, reads_of
from mview.errors import UserError
from mview.ivm.compile import compile_view
from mview.plan.definition import load_views, parse_view
from mview.plan.render import bind_tables
from mview.schema import Column, TableSchema, check_free, parse_type, quoted
from mview.store.layout import folder_name


def table(*names: str) -> TableSchema:
    return TableSchema(tuple(Column(name, parse_type("bigint"), True) for name in names), names[:1])


def test_views_that_differ_in_case_are_one_to_spark(tmp_path):
    for folder, name in (("a", "V"), ("b", "v")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.sql").write_text("select id from shop.t")
    with pytest.raises(UserError, match="'V' and 'v' differ in case only") as caught:
        load_views([tmp_path])
    assert "V.sql:1 and " in str(caught.value)


@pytest.mark.parametrize("sql", ["select a from glob", "select a from shop.minus"])
def test_a_word_of_sql_that_is_a_name_stands_in_backticks(sql):
    word = re.split(r"[ .]", sql)[-1]
    with pytest.raises(UserError, match=f"in backticks: `{word}`"):
        parse_view(sql, "v")
    assert parse_view(sql.replace(word, f"`{word}`"), "v").table_names


def test_a_name_that_is_too_long_is_told_how_long_it_may_be():
    with pytest.raises(UserError, match="at most 128 letters"):
        parse_view("select a from shop.t", "n" * 129)
    assert parse_view("select a from shop.t", "n" * 128).name == "n" * 128


def test_tables_that_differ_in_case_are_two():
    schemas = {"shop.T": table("id", "a"), "shop.t": table("id", "b")}
    view = parse_view("select x.id, a, b from shop.T x join shop.t y on x.id = y.id", "v")
    assert set(compile_view(view, schemas).tables) == {"shop.T", "shop.t"}
    names = relation_names(view.table_names)
    assert len({name.lower() for name in names.values()}) == 2
    assert not set(names.values()) & set(relation_names(view.table_names).values())
    with pytest.raises(UserError, match="'id' is ambiguous"):
        compile_view(parse_view("select t.id from shop.T join shop.t on a = b", "v"), schemas)


@pytest.mark.parametrize(
    ("columns", "said"),
    [(("id", "Name", "name"), "differ in case only"), (("id", "x", "x"), "have one name")],
)
def test_columns_that_are_one_to_spark(columns, said):
    with pytest.raises(UserError, match=said):
        table(*columns)


def test_columns_of_a_view_that_are_one_to_spark():
    view = parse_view("select id, a as A, b as a from shop.t", "v")
    with pytest.raises(UserError, match="two columns of view 'v' are called 'a'"):
        compile_view(view, {"shop.t": table("id", "a", "b")})


@pytest.mark.parametrize("name", ["__weight", "__KIND", "__epoch", "__key_id", "__g0", "__s1_kept"])
def test_names_that_are_our_own(name):
    with pytest.raises(UserError, match="mview uses itself"):
        check_free([name])
    view = parse_view(f"select id as {name} from shop.t", "v")
    with pytest.raises(UserError, match=r"view v: column .* mview uses itself"):
        compile_view(view, {"shop.t": table("id")})


def test_names_that_only_look_like_our_own():
    check_free(["_metadata", "__v", "__deleted", "__op", "_kind", "epoch", "__key"])


def test_letters_beyond_ascii_need_backticks():
    assert parse_view("select `größe` from shop.`表`", "größe").table_names == ("shop.表",)
    with pytest.raises(UserError, match="in backticks only") as caught:
        parse_view("select id,\n größe from shop.t", "v", "v.sql")
    assert caught.value.where == "v.sql:2:2"


def test_any_table_name_is_bound():
    view = parse_view("select `my.table`.id, `a``b` from shop.`my.table`", "v")
    assert view.table_names == ("shop.my.table",)
    assert bind_tables(view, {"shop.my.table": "r"}) == (
        "SELECT `my.table`.id, `a``b` FROM r AS `my.table`"
    )
    assert quoted("a`b") == "`a``b`"
    with pytest.raises(UserError, match="too many parts"):
        parse_view("select id from `shop.t`", "v")


def test_relations_of_tables_with_colons():
    assert is_source(reads_of(["shop.a:b:c"])["shop.a:b:c"])
    assert not any(map(is_source, ["view:v", "state:v", "view:v:1", "state:v:1"]))


def test_folders_of_names():
    names = ["orders", "Orders", "ORDERS", "größe", "a b", "a`b", "表" * 128, "表" * 127, "x" * 200]
    folders = [folder_name("table", f"shop.{name}") for name in names]
    assert len({folder.lower() for folder in folders}) == len(names)
    assert all(len(folder.encode()) < 200 for folder in folders)
    assert folders[0] == "shop.orders"
