"""Names: told apart exactly, or refused with a reason; internal ones are nobody's."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mview
from mview.catalog.analyze import relation_names
from mview.errors import UserError
from mview.ivm.compile import compile_view
from mview.plan.definition import load_views, name_of, parse_view, table_of
from mview.plan.render import bind_tables
from mview.relation import RelationId, TableName
from mview.schema import Column, TableSchema, check_free, parse_type, quoted
from mview.store.layout import folder_name
from tests.relations import keyed, rel


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
    assert set(compile_view(view, keyed(schemas)).tables) == {rel("shop.T"), rel("shop.t")}
    names = relation_names(view.table_names)
    assert len({name.lower() for name in names.values()}) == 2
    assert not set(names.values()) & set(relation_names(view.table_names).values())
    with pytest.raises(UserError, match="'id' is ambiguous"):
        compile_view(
            parse_view("select t.id from shop.T join shop.t on a = b", "v"), keyed(schemas)
        )


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
        compile_view(view, keyed({"shop.t": table("id", "a", "b")}))


@pytest.mark.parametrize(
    "name", ["__weight", "__KIND", "__op", "__epoch", "__key_id", "__g0", "__s1_kept"]
)
def test_names_that_are_our_own(name):
    with pytest.raises(UserError, match="mview uses itself"):
        check_free([name])
    view = parse_view(f"select id as {name} from shop.t", "v")
    with pytest.raises(UserError, match=r"view v: column .* mview uses itself"):
        compile_view(view, keyed({"shop.t": table("id")}))


def test_names_that_only_look_like_our_own():
    check_free(["_metadata", "__v", "__deleted", "__ops", "_kind", "epoch", "__key"])


def test_letters_beyond_ascii_need_backticks():
    assert parse_view("select `größe` from shop.`表`", "größe").table_names == (rel("shop.表"),)
    with pytest.raises(UserError, match="in backticks only") as caught:
        parse_view("select id,\n größe from shop.t", "v", "v.sql")
    assert caught.value.where == "v.sql:2:2"


def test_any_table_name_is_bound():
    view = parse_view("select `my.table`.id, `a``b` from shop.`my.table`", "v")
    table = rel("shop.`my.table`")
    assert view.table_names == (table,)
    assert bind_tables(view, {table: "r"}) == "SELECT `my.table`.id, `a``b` FROM r AS `my.table`"
    assert quoted("a`b") == "`a``b`"
    with pytest.raises(UserError, match="too many parts"):
        parse_view("select id from `shop.t`", "v")


def test_tables_of_one_name_in_two_schemas_and_one_that_looks_like_both():
    text = (
        "select o.id, shop.my.`orders`.x, `my.orders`.id from shop.orders "
        "join shop.sales.orders as o on shop.orders.id = o.id cross join shop.my.orders "
        "cross join shop.`my.orders` where shop.my.orders.x = shop.`my.orders`.x"
    )
    view = parse_view(text, "v")
    names = {rel("shop.orders"): "r0", rel("shop.sales.orders"): "r1"}
    names |= {rel("shop.my.orders"): "r2", rel("shop.`my.orders`"): "r3"}
    assert view.table_names == tuple(names)
    assert bind_tables(view, names) == (
        "SELECT o.id, `orders`.x, `my.orders`.id FROM r0 AS `orders` "
        "JOIN r1 AS o ON orders.id = o.id CROSS JOIN r2 AS `orders` CROSS JOIN r3 AS `my.orders` "
        "WHERE orders.x = `my.orders`.x"
    )
    for relation in names:
        assert name_of(table_of(relation)) == relation
    with pytest.raises(UserError, match="too many parts"):
        parse_view("select id from a.b.c.d", "v")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("t", TableName("", "t")),
        ("s.t", TableName("s", "t")),
        ("`s.t`", TableName("", "s.t")),
        ("`a``b`.`c.d`", TableName("a`b", "c.d")),
        ("a b.ü 🚲", TableName("a b", "ü 🚲")),
        ("`a.b`.c", TableName("a.b", "c")),
    ],
)
def test_names_of_tables_as_text(text, name):
    assert (TableName.of(text), str(name)) == (name, text)


def test_no_two_tables_have_one_text():
    parts = ["a", "b", "a.b", "`", "``", "a`", "`a`", "`a.b`", ".", "a.", ".b", "`.`"]
    names = [TableName(schema, table) for schema in ["", *parts] for table in parts]
    assert [TableName.of(str(name)) for name in names] == names


@pytest.mark.parametrize(
    ("text", "relation"),
    [
        ("shop.t", RelationId("table", "t", "shop")),
        ("shop.a:1:state", RelationId("table", "a:1:state", "shop")),
        ("shop.my.table", RelationId("table", "my.table", "shop")),
        ("v", RelationId("view", "v")),
        ("v:12", RelationId("view", "v", part=12)),
        ("v:state", RelationId("state", "v")),
        ("v:12:state", RelationId("state", "v", part=12)),
        ("clock", RelationId("view", "clock")),
        ("clock:1", RelationId("view", "clock", part=1)),
        ("clock:state", RelationId("state", "clock")),
        ("clock:day", RelationId("clock", "day")),
    ],
)
def test_a_relation_is_read_as_it_was_written(text, relation):
    assert RelationId.of(text) == relation
    assert str(relation) == text


def test_what_is_no_relation_stays_what_it_was():
    for text in ("", "a:b", "v:", "v:1:2", "clock:", "v:state:1", "state:v:x"):
        assert str(RelationId.of(text)) == text


#: What else is cut at a dot, a colon or an @: each is of another kind.
CUT = {
    "mview/relation.py": "names of relations",
    "mview/codes.py": "names of modules",
    "mview/execute/calls.py": "module:attribute",
    "mview/notebook/extra.py": "names of modules",
    "mview/execute/local/admitted/literals.py": "digits",
    "mview/failpoints.py": "a fail point and what it does",
    "mview/merge/net.py": "parts of a position",
    "mview/plan/definition.py": "<sink>.<option> of a property",
    "mview/java/jars.py": "coordinates of a jar",
    "mview/java/classes.py": "class paths",
    "mview/cli/explore/datasets.py": "who logs in at a server",
    "mview/cli/watch/access.py": "user:password",
}


def test_nobody_else_takes_names_of_relations_apart():
    cut = re.compile(r"""(partition|split|count)\(["'][.:@]["']""")
    root = Path(mview.__file__).parent
    found = {
        file.relative_to(root.parent).as_posix()
        for file in root.rglob("*.py")
        if cut.search(file.read_text())
    }
    assert found <= CUT.keys()


def test_folders_of_names():
    names = ["orders", "Orders", "ORDERS", "größe", "a b", "a`b", "表" * 128, "表" * 127, "x" * 200]
    folders = [folder_name("table", f"shop.{name}") for name in names]
    assert len({folder.lower() for folder in folders}) == len(names)
    assert all(len(folder.encode()) < 200 for folder in folders)
    assert folders[0] == "shop.orders"


def test_a_relation_is_one_key_in_every_process():
    """Hashes of texts differ from one process to the next, and relations go to Spark's workers."""
    sent = pickle.dumps([rel("shop.t"), rel("v:1:state")])
    told = "import pickle, sys; one, other = pickle.load(sys.stdin.buffer); "
    told += "print({type(one).of('shop.t'): 1}[one], {type(one).of('v:1:state'): 2}[other])"
    asked = subprocess.run(
        [sys.executable, "-c", told], input=sent, capture_output=True, check=True
    )
    assert asked.stdout.split() == [b"1", b"2"]
