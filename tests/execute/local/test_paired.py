"""A query over the rows before and after at once gives what it gives over each."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mview.execute.local import evaluate
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.local.paired import paired
from mview.execute.local.parsing.reading import read
from mview.schema import parse_type
from tests.seeds import seeds

#: Two tables with many equal keys; every column may be NULL.
SCHEMA = pa.schema(
    [
        ("k", parse_type("bigint")),
        ("s", parse_type("string")),
        ("d", parse_type("decimal(9,2)")),
        ("f", parse_type("double")),
        ("t", parse_type("timestamp")),
    ]
)
VALUES: dict[str, list[Any]] = {
    "k": [None, 1, 2, 3],
    "s": [None, "", "a", "b"],
    "d": [None, Decimal("0.10"), Decimal("-7.25")],
    "f": [None, 0.1, -0.0, 1e16, -1e16, 1.0],
    "t": [None, dt.datetime(2024, 2, 29, tzinfo=dt.timezone.utc)],
}

PAIRED = [
    "SELECT k, s FROM {a}",
    "SELECT x.k, upper(x.s) AS s, d FROM {a} AS x WHERE d > 0 OR k IS NULL",
    "SELECT s, count(*) AS n, sum(d) AS d FROM {a} GROUP BY s",
    "SELECT s, count(k) AS n, max(t) AS t FROM {a} GROUP BY 1 HAVING count(*) > 1",
    "SELECT x.s, sum(y.f) AS f, avg(x.f) AS g FROM {a} x JOIN {b} y ON x.k = y.k GROUP BY x.s",
    "SELECT x.s, y.d FROM {a} x JOIN {b} y ON x.k = y.k",
    "SELECT x.s, y.d FROM {a} x, {b} y WHERE x.k = y.k AND x.s < y.s",
    "SELECT x.s, y.d FROM {a} x CROSS JOIN {b} y",
    "SELECT `X`.s, y.d, y.k FROM {a} `X` LEFT JOIN {b} y ON `X`.k <=> y.k AND y.d > 0",
    "SELECT x.k, count(y.s) AS n FROM {a} x LEFT OUTER JOIN {b} y ON x.k = y.k GROUP BY x.k",
    "SELECT x.s, y.s AS o, z.d FROM {a} x LEFT JOIN {b} y ON x.k = y.k JOIN {a} z ON z.s = y.s",
    "SELECT x.s, min(y.t) AS t FROM {a} x INNER JOIN {b} y ON x.k = y.k WHERE y.d IN (0.10) "
    "GROUP BY x.s, y.d",
]
ALONE = [
    "SELECT count(*) AS n FROM {a}",
    "SELECT sum(d) AS d FROM {a} HAVING count(*) > 1",
    "SELECT * FROM {a}",
    "SELECT x.* FROM {a} x",
    "SELECT DISTINCT s FROM {a}",
    "SELECT s, count(*) AS n FROM {a} GROUP BY ROLLUP (s)",
    "SELECT s, k, count(*) AS n FROM {a} GROUP BY s, k WITH CUBE",
    "SELECT x.s, y.d FROM {a} x RIGHT JOIN {b} y ON x.k = y.k",
    "SELECT x.s, y.d FROM {a} x FULL JOIN {b} y ON x.k = y.k",
    "SELECT x.s FROM {a} x LEFT SEMI JOIN {b} y ON x.k = y.k",
    "SELECT x.s FROM {a} x LEFT ANTI JOIN {b} y ON x.k = y.k",
    "SELECT x.s, y.d FROM {a} x JOIN {b} y USING (k)",
    "SELECT x.s FROM {a} x WHERE EXISTS (SELECT 1 FROM {b} y WHERE x.k = y.k)",
    "SELECT x.s FROM {a} x WHERE k IN (SELECT k FROM {b})",
    "SELECT x.s, (SELECT max(k) FROM {b}) AS k FROM {a} x",
    "SELECT s, row_number() OVER (PARTITION BY s ORDER BY k) AS n FROM {a}",
    "SELECT s FROM (SELECT s FROM {a}) x",
    "SELECT s FROM {a} UNION ALL SELECT s FROM {b}",
    "SELECT s FROM {a} ORDER BY s LIMIT 1",
    "WITH x AS (SELECT s FROM {a}) SELECT s FROM x",
    "SELECT 1 AS n",
]


def delta(query: str) -> str:
    """The delta of a view, as a plan says it."""
    new, old = (query.format(a=f"__{when}_0", b=f"__{when}_1") for when in ("new", "old"))
    weight = "AS __weight, *"
    return f"SELECT 1 {weight} FROM ({new}\n) UNION ALL SELECT -1 {weight} FROM ({old}\n)"


def random_rows(rng: random.Random) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {name: rng.choice(values) for name, values in VALUES.items()}
            for _ in range(rng.choice([0, 1, 4, 12]))
        ],
        SCHEMA,
    )


def shown(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@pytest.fixture
def evaluator() -> Iterator[LocalEvaluator]:
    made = LocalEvaluator()
    yield made
    made.close()


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("query", PAIRED)
def test_one_query_gives_what_two_give(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, query: str, seed: int
) -> None:
    rng, sql, asked = random.Random(seed), delta(query), []
    run = evaluator._queries.run

    def counted(text: str, tables: Any) -> pa.Table:
        asked.append((text, len(tables)))
        return run(text, tables)

    monkeypatch.setattr(evaluator._queries, "run", counted)
    for _ in range(8):
        tables = {f"__{when}_{n}": random_rows(rng) for when in ("new", "old") for n in range(2)}
        if "{b}" not in query:
            tables = {name: rows for name, rows in tables.items() if name.endswith("0")}
        at_once = evaluator.run(sql, tables, None)
        assert [text.count("UNION ALL") for text, _ in asked] == [0]
        assert asked[0][1] == len(tables) // 2
        with monkeypatch.context() as patched:
            patched.setattr(evaluate, "_FEW", 0)
            apart = evaluator.run(sql, tables, at_once.schema)
        assert at_once.schema == apart.schema
        assert shown(at_once) == shown(apart)
        assert shown(evaluator.run(sql, tables, apart.schema)) == shown(apart)
        asked.clear()


@pytest.mark.parametrize("query", ALONE)
def test_what_looks_beyond_its_rows_is_asked_apart(query: str) -> None:
    assert paired(read(delta(query))) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k FROM __new_0",
        delta("SELECT k FROM {a}").replace("UNION ALL", "UNION"),
        delta("SELECT k FROM {a}").replace("-1", "1"),
        delta("SELECT k FROM {a}").replace("__old_0", "__new_0"),
        delta("SELECT k, s FROM {a}").replace("k, s FROM __old_0", "k, k FROM __old_0"),
        delta("SELECT x.k FROM {a} x JOIN {b} y ON x.k = y.k").replace("__old_1", "__old_0"),
        delta("SELECT x.k FROM {a} x JOIN {b} y ON x.k = y.k").replace("__old_1", "__new_0"),
        delta("SELECT k FROM {a}").replace("-1 AS __weight", "-1 AS w"),
        delta("SELECT k FROM {a}").replace("__weight", "w"),
        delta("SELECT k FROM {a}").replace("*", "k"),
        delta("SELECT k FROM {a}") + " ORDER BY k",
        delta("SELECT k FROM {a}") + " LIMIT 1",
    ],
)
def test_other_queries_are_no_pair(sql: str) -> None:
    assert paired(read(sql)) is None


@pytest.mark.parametrize("mark", ["k", "K", "s", "w"])
def test_a_union_of_the_users_is_computed_by_its_sides(
    evaluator: LocalEvaluator, mark: str
) -> None:
    """Its numbers may have the name of a column of the tables that the query does not read."""
    one, two = (f"SELECT t.d FROM {name} AS t" for name in ("__new_0", "__old_0"))
    sql = f"SELECT 1 AS {mark}, * FROM ({one}) UNION ALL SELECT 2 AS {mark}, * FROM ({two})"
    rows = [{"k": 7, "s": "a", "d": Decimal(number)} for number in (1, 2)]
    tables = {
        name: pa.Table.from_pylist([row], SCHEMA)
        for name, row in zip(("__new_0", "__old_0"), rows, strict=True)
    }
    found = evaluator.run(sql, tables, None)
    assert [[*row.values()] for row in found.to_pylist()] == [[1, Decimal(1)], [2, Decimal(2)]]


@pytest.mark.parametrize(
    "other", [SCHEMA.field("s").with_nullable(False), pa.field("more", "int8")]
)
def test_tables_of_different_columns_are_asked_apart(
    evaluator: LocalEvaluator, other: pa.Field
) -> None:
    new = pa.table({"k": pa.array([1]), "s": ["a"]})
    old = pa.table(
        [pa.array([2]), pa.array([None] if other.nullable else ["b"], other.type)],
        pa.schema([pa.field("k", pa.int64()), other]),
    )
    sql = delta("SELECT k FROM {a}")
    evaluator.run(sql, {"__new_0": new, "__old_0": new}, None)  # a pair, which these are not
    rows = evaluator.run(sql, {"__new_0": new, "__old_0": old}, None)
    assert shown(rows) == shown(pa.table({"__weight": [1, -1], "k": [1, 2]}))


def test_an_error_is_that_of_the_sides(evaluator: LocalEvaluator) -> None:
    """And what DuckDB refuses of the one query only is asked apart."""
    sql = delta("SELECT k + 9223372036854775807 AS k FROM {a}")
    fine, over = (pa.table({"k": pa.array([value])}) for value in (0, 1))
    for tables in ({"__new_0": fine, "__old_0": over}, {"__new_0": over, "__old_0": fine}):
        with pytest.raises(evaluate.EvaluationError):
            evaluator.run(sql, tables, None)
    rows = evaluator.run(sql, {"__new_0": fine, "__old_0": fine.slice(0, 0)}, None)
    assert rows.to_pylist() == [{"__weight": 1, "k": 2**63 - 1}]
