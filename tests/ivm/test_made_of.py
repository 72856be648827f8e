"""What columns of views are made of."""

from __future__ import annotations

import pytest

from mview.ivm.compile import compile_view
from mview.ivm.facts.lineage import origins
from mview.ivm.made_of import SourceColumn, made_of
from mview.plan.definition import parse_view
from tests.ivm.ordinary import plans as ordinary_plans
from tests.ivm.world import table_schema
from tests.relations import keyed

SCHEMAS = {
    "t": table_schema("id bigint, k bigint, x bigint, y bigint, xs array<bigint>", "id"),
    "u": table_schema("id bigint, k bigint, z bigint", "id"),
}


def sources(sql: str) -> dict[str, list[str]] | None:
    made = made_of(compile_view(parse_view(sql, "v"), keyed(SCHEMAS)))
    return made and {name: sorted(map(str, each)) for name, each in made.items()}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id, x + y as s, 1 as c from t", {"id": ["t.id"], "s": ["t.x", "t.y"], "c": []}),
        # A filter, a key of a join or of a group is no source of what stands beside it.
        (
            "select u.z, t.x as a from t join u on t.k = u.k where t.y > 1",
            {"z": ["u.z"], "a": ["t.x"]},
        ),
        (
            "select k, count(*) as n, sum(case when y > 1 then x end) as s from t group by k",
            {"k": ["t.k"], "n": [], "s": ["t.x", "t.y"]},
        ),
        (
            "select k, id from t full join u using (k, id)",
            {"k": ["t.k", "u.k"], "id": ["t.id", "u.id"]},
        ),
        ("select x as a from t union all select z from u", {"a": ["t.x", "u.z"]}),
        (
            "select id, sum(x) over (partition by k order by y) as s from t",
            {"id": ["t.id"], "s": ["t.k", "t.x", "t.y"]},
        ),
        ("select t.id, e from t lateral view explode(xs) g as e", {"id": ["t.id"], "e": ["t.xs"]}),
        ("select id, explode(xs) as e from t", {"id": ["t.id"], "e": ["t.xs"]}),
        (
            "select id, (select max(z) from u where u.k = t.k) as m from t",
            {"id": ["t.id"], "m": ["u.z"]},
        ),
        ("select id, x in (select z from u) as b from t", {"id": ["t.id"], "b": ["t.x", "u.z"]}),
        (
            "select t.id, l.m from t, lateral (select max(z) as m from u where u.k = t.k) l",
            {"id": ["t.id"], "m": ["u.z"]},
        ),
        (
            "select t.id, l.m from t, "
            "lateral (select * from (select z as m, k from u) where k = t.k) l",
            {"id": ["t.id"], "m": ["u.k", "u.z"]},
        ),
        (
            "select t.id, l.m from t, lateral (select max(z) as m from u) l",
            {"id": ["t.id"], "m": ["u.z"]},
        ),
        (
            "select id, (select count(*) + max(u.z + t.y) from u where u.k = t.k) as m from t",
            {"id": ["t.id"], "m": ["t.y", "u.z"]},
        ),
        (
            "with c as (select k, sum(x) as s from t group by k) select c.s * 2 as d from c",
            {"d": ["t.x"]},
        ),
        (
            "select id, transform(xs, e -> e + y) as a from t",
            {"id": ["t.id"], "a": ["t.xs", "t.y"]},
        ),
        ("select k, x from t order by y limit 3", {"k": ["t.k"], "x": ["t.x"]}),
        ("select distinct k from t where exists (select 1 from u)", {"k": ["t.k"]}),
        (
            "select k, id from t except select k, z from u",
            {"k": ["t.k", "u.k"], "id": ["t.id", "u.z"]},
        ),
        (
            "select k, sum(x) as s from t group by k having sum(y) > 1",
            {"k": ["t.k"], "s": ["t.x"]},
        ),
        (
            "select k, round(avg(x), 1) as a, max(y) - min(y) as w from t group by k",
            {"k": ["t.k"], "a": ["t.x"], "w": ["t.y"]},
        ),
        (
            "select s, count(*) as n from (select k, sum(x) as s from t group by k) group by s",
            {"s": ["t.x"], "n": []},
        ),
    ],
)
def test_what_columns_are_made_of(sql: str, expected: dict[str, list[str]]) -> None:
    assert sources(sql) == expected


def test_ordinary_views_name_columns_that_are_there() -> None:
    """Held against what is known of columns that are passed on unchanged, by other means."""
    compared = 0
    for sql, plan in ordinary_plans().items():
        made = made_of(plan)
        if plan.root is None or not plan.columns:
            assert made is None
            continue
        assert made is not None, sql
        assert tuple(made) == plan.columns
        schemas = {n: s for each in (*plan.parts, plan) for n, s in each.schemas.items()}
        for source in frozenset().union(*made.values()):
            assert source.column in schemas[source.relation].names, sql
        if plan.parts:
            continue
        shown = {ref.column: ref for ref in plan.root.columns}
        for name in plan.columns:
            for (origin,) in origins(plan.root, [shown.get(name)]):
                if origin is not None:
                    compared += 1
                    source = SourceColumn(origin.scan.table, origin.column)
                    assert source in made[name], sql
    assert compared > 100
