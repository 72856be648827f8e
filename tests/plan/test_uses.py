"""Columns that a view may read: never fewer than it reads, and not more than need be."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from mview.ivm.compile import compile_view
from mview.ivm.explain import explain
from mview.plan.definition import parse_view
from mview.plan.uses import uses_of
from mview.relation import RelationId
from mview.schema import TableSchema
from tests.ivm.ordinary import SCHEMAS, texts
from tests.relations import keyed, rel
from tests.seeds import daily

COLUMNS = {
    "shop.t": ("id", "a", "b", "Weird name", "current_date"),
    "shop.u": ("id", "a", "c", "group by"),
}


@pytest.mark.parametrize(
    ("sql", "of_t", "of_u"),
    [
        ("SELECT a FROM shop.t", "a", ""),
        ("SELECT A AS x FROM shop.t", "a", ""),
        ("SELECT count(*) AS n FROM shop.t", "", ""),
        ("SELECT * FROM shop.t", "*", ""),
        ("SELECT count(DISTINCT *) AS n FROM shop.t", "*", ""),
        ("SELECT count(t.*) AS n FROM shop.t", "*", ""),
        ("SELECT struct(*) AS s FROM shop.t", "*", ""),
        ("SELECT * EXCEPT (a) FROM shop.t", "*", ""),
        # What stands before a column tells whose it is.
        ("SELECT t.a, u.c FROM shop.t JOIN shop.u ON t.id = u.id", "id a", "id c"),
        ("SELECT shop.t.b FROM shop.t, shop.u", "b", ""),
        ("SELECT x.b FROM shop.t x JOIN shop.u y ON x.id = y.a", "id b", "a"),
        ("SELECT x.* FROM shop.t x JOIN shop.u y ON x.id = y.a", "*", "a"),
        ("SELECT o.b FROM (shop.t) AS o", "b", ""),
        ("SELECT o.* FROM (shop.t) AS o", "*", ""),
        # Where nothing does, it may be either's; also in a query around it.
        ("SELECT a FROM shop.t JOIN shop.u USING (id)", "id a", "id a"),
        ("SELECT b FROM shop.t WHERE EXISTS (SELECT 1 FROM shop.u WHERE c = a)", "a b", "a c"),
        ("SELECT b FROM shop.t NATURAL JOIN shop.u", "*", "*"),
        ("SELECT b FROM shop.t WHERE id IN (SELECT * FROM shop.u)", "id b", "*"),
        ("SELECT * FROM shop.t WHERE EXISTS (SELECT 1 FROM shop.u)", "*", ""),
        ("WITH q AS (SELECT a FROM shop.t) SELECT * FROM q", "a", ""),
        ("WITH q AS (SELECT * FROM shop.t) SELECT a FROM q", "*", ""),
        ("SELECT * FROM (SELECT a FROM shop.t) t", "a", ""),
        ("SELECT t.a FROM shop.t UNION ALL SELECT u.c FROM shop.u", "a", "c"),
        # Columns that are renamed by their order.
        ("SELECT v FROM shop.t AS x(v, w)", "*", ""),
        # Names that are words of SQL elsewhere.
        ("SELECT `weird name`, current_date AS d FROM shop.t", "Weird name,current_date", ""),
        ("SELECT `group by` AS g FROM shop.u", "", "group by"),
    ],
)
def test_the_columns_that_a_view_may_read(sql: str, of_t: str, of_u: str) -> None:
    view = parse_view(sql, "v")
    for table, text in (("shop.t", of_t), ("shop.u", of_u)):
        used = uses_of([view], rel(table))
        every = COLUMNS[table]
        wanted = every if text == "*" else text.split("," if "," in text else None)
        if text in ("group by",):
            wanted = [text]
        if table not in map(str, view.table_names):
            wanted = []
        assert [name for name in every if used(name)] == list(wanted)


def test_several_views_use_what_each_of_them_does() -> None:
    views = [parse_view(f"SELECT {name} FROM shop.t", f"v{name}") for name in "ab"]
    assert list(filter(uses_of(views, rel("shop.t")), COLUMNS["shop.t"])) == ["a", "b"]
    assert not uses_of(views, rel("shop.u"))("id")


def _narrow(table: RelationId, schema: TableSchema, sql: str) -> TableSchema:
    used = uses_of([parse_view(sql, "v")], table)
    kept = [c for c in schema.columns if c.name in schema.key or used(c.name)]
    return replace(schema, columns=tuple(kept))


def test_no_plan_is_another_one_without_the_columns_that_are_not_used() -> None:
    left_out = 0
    for sql in Random(daily()).sample(texts(), 50):  # others every day: all take 4 s
        schemas = keyed(SCHEMAS)
        narrow = {name: _narrow(name, schema, sql) for name, schema in schemas.items()}
        left_out += sum(len(schemas[n].columns) - len(narrow[n].columns) for n in schemas)
        view = parse_view(sql, "v")
        plan, wide = compile_view(view, narrow), compile_view(view, schemas)
        assert (plan.columns, plan.key) == (wide.columns, wide.key), sql
        assert explain(plan) == explain(wide), sql
    assert left_out > 200
