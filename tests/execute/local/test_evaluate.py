"""What the evaluator refuses, and the shape of what it returns; no Spark here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from mview.execute.local import evaluate
from mview.execute.local.admission import admit
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.local.parsing.reading import read
from mview.execute.refusal import EvaluationError, NotAdmittedError
from mview.schema import Column, TableSchema, parse_type

SCHEMA = TableSchema(
    (
        Column("id", parse_type("bigint")),
        Column("n", parse_type("int")),
        Column("s", parse_type("string")),
        Column("f", parse_type("double")),
        Column("d", parse_type("date")),
        Column("Big", parse_type("decimal(30,10)")),
        Column("list", parse_type("array<int>")),
        Column("lists", parse_type("array<array<int>>")),
        Column("at", parse_type("timestamp")),
    ),
    ("id",),
)
OTHER = TableSchema(
    (Column("id", parse_type("bigint")), Column("n", parse_type("bigint"))), ("id",)
)
SCHEMAS = {"shop.t": SCHEMA, "u": OTHER}


def reason(sql: str) -> str | None:
    found = admit(read(sql), SCHEMAS)
    return None if found is None else str(found)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, big FROM shop.t WHERE n > 1",
        "SELECT t.id, count(*) AS c FROM shop.t JOIN u ON t.id = u.id GROUP BY t.id HAVING c > 1",
        "SELECT x.id FROM shop.t AS x WHERE d >= '2024-01-01'",
    ],
)
def test_admits(sql: str) -> None:
    assert reason(sql) is None


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("SELECT soundex(s) FROM shop.t", "soundex"),
        ("SELECT my_function(s) FROM shop.t", "my_function"),
        ("SELECT rand() AS r FROM shop.t", "rand"),
        ("SELECT current_date() AS r FROM shop.t", "current_date"),
        ("SELECT id + f + s FROM shop.t", "add(double, string)"),
        ("SELECT s = d FROM shop.t", "eq(string, date)"),
        ("SELECT d > 'yesterday' FROM shop.t", "yesterday"),
        ("SELECT s LIKE 'a\\\\%' FROM shop.t", "like(string, string)"),
        ("SELECT s LIKE 'a!%' ESCAPE '!' FROM shop.t", "escape"),
        ("SELECT big * CAST(n AS decimal(38,36)) FROM shop.t", "multiply(decimal(30,10)"),
        ("SELECT big / CAST(n AS decimal(38,36)) FROM shop.t", "divide"),
        ("SELECT sum(DISTINCT f) FROM shop.t", "sum_of_doubles(double)"),
        ("SELECT greatest(f, 1, 2) FROM shop.t", "greatest"),
        ("SELECT f, count(*) FROM shop.t GROUP BY f", "grouping by a double"),
        ("SELECT DISTINCT f FROM shop.t", "grouping by a double"),
        ("SELECT f FROM shop.t UNION SELECT f FROM shop.t", "grouping by a double"),
        ("SELECT s FROM shop.t UNION ALL SELECT n FROM u", "different types"),
        ("SELECT id FROM shop.t WHERE s IN (SELECT n FROM u)", "different types"),
        ("SELECT row_number() OVER (ORDER BY f) FROM shop.t", "ORDER BY a double"),
        ("SELECT lists FROM shop.t", "array<array<int>>"),
        ("SELECT DISTINCT list FROM shop.t", "grouping by a array<int>"),
        ("SELECT count(DISTINCT list) FROM shop.t", "count(array<int>)"),
        ("SELECT list = list FROM shop.t", "eq(array<int>, array<int>)"),
        ("SELECT list IN (SELECT list FROM shop.t) FROM shop.t", "IN (SELECT"),
        ("SELECT (id IN (SELECT id FROM u)) IS NULL FROM shop.t", "IN (SELECT"),
        ("SELECT id FROM shop.t WHERE NOT (n > 1 AND id IN (SELECT id FROM u))", "IN (SELECT"),
        ("SELECT array_contains(list, s) FROM shop.t", "array_contains"),
        ("SELECT atan2(f, f) FROM shop.t", "atan2"),
        ("SELECT try_cast(s AS float) FROM shop.t", "TRY_CAST"),
        ("SELECT s RLIKE '(?i)a' FROM shop.t", "rlike(string, string)"),
        ("SELECT regexp_replace(s, 'a*', 'b') FROM shop.t", "regexp_replace"),
        ("SELECT power(s, 3) FROM shop.t", "power(string, int)"),
        ("SELECT substring(s, id, 2) FROM shop.t", "substring"),
        ("SELECT date_add(d, id) FROM shop.t", "date_add"),
        ("SELECT 'it''s' FROM shop.t", "adjacent"),
        ("SELECT 1e3 FROM shop.t", "1e3"),
        ("SELECT n FROM shop.t GROUP BY id, ROLLUP (n)", "several sets"),
        ("SELECT n FROM shop.t GROUP BY ROLLUP ((n, id), s)", "several sets"),
        ("SELECT id FROM shop.t TABLESAMPLE (10 PERCENT)", "sample"),
        ("SELECT x FROM shop.t LATERAL VIEW explode(list)", "resolved"),
        ("SELECT x FROM shop.t LATERAL VIEW posexplode(list) q AS x", "LATERAL"),
        ("SELECT posexplode(list) FROM shop.t", "posexplode but in LATERAL VIEW"),
        ("SELECT x FROM shop.t LATERAL VIEW inline(list) q AS x", "inline"),
        (
            "SELECT x FROM u FULL JOIN shop.t ON t.id = u.id LATERAL VIEW explode(list) q AS x",
            "outer join",
        ),
        ("SELECT explode(s) AS x FROM shop.t", "explode(string)"),
        ("SELECT explode(collect_list(n)) AS x FROM shop.t", "explode beside what is grouped"),
        ("SELECT explode(list) AS x, explode(list) AS y FROM shop.t", "explode twice"),
        ("SELECT explode(list) + 1 AS x FROM shop.t", "explode"),
        ("SELECT (SELECT n FROM u WHERE u.id = t.id) AS m FROM shop.t", "column"),
        ("SELECT (SELECT max(u.n + t.id) FROM u WHERE u.id = t.id) AS m FROM shop.t", "column"),
        ("SELECT (SELECT max(n) FROM u WHERE u.id = t.id GROUP BY n) AS m FROM shop.t", "column"),
        ("SELECT datediff(millisecond, at, d) AS m FROM shop.t", "timestampdiff"),
        ("SELECT id FROM shop.t WHERE dateadd(day, n, at) > d", "INTERVAL"),
        ("SELECT n FROM shop.t JOIN u USING (n)", "USING (n)"),
        ("SELECT id FROM shop.t NATURAL JOIN u", "method"),
        ("SELECT id FROM nowhere", "table nowhere"),
        ("SELECT nothing FROM shop.t", "nothing"),
        ("SELECT id FROM shop.t JOIN u ON t.id = u.id", "id"),
        ("SELECT n + 1 AS n, count(*) AS c FROM shop.t GROUP BY n HAVING n > 1", "hides a column"),
        ("SELECT n + 1 AS n FROM shop.t ORDER BY n LIMIT 1", "hides a column"),
        ("WITH u AS (SELECT 1 AS x FROM shop.t) SELECT x FROM u", "CTE u"),
        ("VALUES (1)", "Values"),
        ("SELECT sum(n) IGNORE NULLS OVER (ORDER BY id) FROM shop.t", "IgnoreNulls"),
        ("SELECT sum(n) OVER (ORDER BY f RANGE 3 PRECEDING) FROM shop.t", "ORDER BY a double"),
        ("SELECT count(DISTINCT n, f) FROM shop.t", "count(int, double)"),
        ("SELECT sum(DISTINCT n, id) FROM shop.t", "DISTINCT columns"),
        ("SELECT sort_array(list, n > 1) FROM shop.t", "sort_array"),
        ("SELECT n FROM shop.t GROUP BY CUBE (n), ROLLUP (id)", "several sets"),
        ("SELECT id FROM shop.t LIMIT 1 + 1", "LIMIT"),
    ],
)
def test_refuses(sql: str, part: str) -> None:
    text = reason(sql)
    assert text is not None
    assert part.lower() in text.lower()


@pytest.fixture
def evaluator() -> Iterator[LocalEvaluator]:
    made = LocalEvaluator()
    yield made
    made.close()


def test_types_that_spark_sees_otherwise_are_refused(evaluator: LocalEvaluator) -> None:
    tables = {"t": pa.table({"a": [1]})}
    for kind in (pa.int32(), pa.float64()):
        with pytest.raises(NotAdmittedError, match="Spark has"):
            evaluator.run("SELECT a FROM t", tables, pa.schema([("a", kind)]))
    with pytest.raises(NotAdmittedError, match="columns"):
        evaluator.run("SELECT a, a AS b FROM t", tables, pa.schema([("a", pa.int64())]))


def test_result_has_the_names_and_types_of_spark(evaluator: LocalEvaluator) -> None:
    at = dt.datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("UTC"))
    table = pa.table({"At": pa.array([at], parse_type("timestamp")), "N": pa.array([7], pa.int8())})
    result = pa.schema([("At", parse_type("timestamp")), ("Total", pa.int64())])
    rows = evaluator.run("SELECT at, sum(n) AS Total FROM t GROUP BY at", {"T": table}, result)
    assert rows.schema == result
    assert rows.to_pylist() == [{"At": at, "Total": 7}]
    untyped = evaluator.run("SELECT at, n * 2 AS m FROM t", {"T": table}, None)
    assert untyped.schema.types == [parse_type("timestamp"), pa.int32()]


def test_rebinds_to_new_rows_and_new_types(evaluator: LocalEvaluator) -> None:
    sql = "SELECT sum(a) AS s FROM t"
    for values, kind in (([1, 2], pa.int32()), ([5], pa.int32()), ([], pa.int64())):
        rows = evaluator.run(sql, {"t": pa.table({"a": pa.array(values, kind)})}, None)
        assert rows.column("s").to_pylist() == [sum(values) if values else None]


@pytest.mark.parametrize("call", ["a + 1", "a / 0", "a % 0", "CAST(a AS int)", "sum(a)"])
def test_run_time_errors_are_for_spark(evaluator: LocalEvaluator, call: str) -> None:
    table = pa.table({"a": [2**63 - 1, 2**63 - 1]})
    with pytest.raises(EvaluationError):
        evaluator.run(f"SELECT {call} AS x FROM t", {"t": table}, None)
    assert evaluator.run("SELECT a FROM t", {"t": table}, None).num_rows == 2


UNION = "SELECT 1 AS w, a FROM t WHERE a > 1 UNION ALL SELECT -1 AS w, a * b FROM u, t"


@pytest.mark.parametrize(
    ("sql", "sides"),
    [
        (UNION, 2),
        (f"{UNION} UNION ALL SELECT 2, a FROM t", 2),
        (UNION.replace(" ALL", ""), 1),
        (f"{UNION} ORDER BY a LIMIT 2", 1),
        (f"WITH v AS (SELECT a FROM t) {UNION.replace('FROM t', 'FROM v')}", 1),
        ("SELECT a FROM t", 1),
    ],
)
def test_many_rows_are_computed_side_by_side(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, sql: str, sides: int
) -> None:
    asked, run = [], evaluator._queries.run

    def counted(text: str, tables: Any) -> pa.Table:
        asked.append(text)
        return run(text, tables)

    tables = {"t": pa.table({"a": [1, 2, 3]}), "u": pa.table({"b": [7, 8]})}
    at_once = evaluator.run(sql, tables, None)
    monkeypatch.setattr(evaluate, "_MANY", 1)
    monkeypatch.setattr(evaluator._queries, "run", counted)
    rows = evaluator.run(sql, tables, None)
    assert len(asked) == sides
    assert rows.schema == at_once.schema
    assert sorted(map(str, rows.to_pylist())) == sorted(map(str, at_once.to_pylist()))


@pytest.mark.parametrize("place", [0, 1])
def test_a_side_that_fails_is_for_spark(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr(evaluate, "_MANY", 1)
    sides = ["SELECT a FROM t", "SELECT a FROM t"]
    sides[place] = "SELECT a + 1 AS a FROM t"
    table = pa.table({"a": [2**63 - 1]})
    with pytest.raises(EvaluationError):
        evaluator.run(" UNION ALL ".join(sides), {"t": table}, None)
