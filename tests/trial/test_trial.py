"""Tests of views: files, values, what is told when one fails, and tests by chance."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from pyspark.errors import ArithmeticException

from mview.cli import main
from mview.connector import WEIGHT
from mview.errors import UserError
from mview.plan.definition import parse_view
from mview.schema import parse_type, type_name
from mview.trial import world
from mview.trial.files import TrialProject, run_by_chance
from mview.trial.values import value_of
from mview.trial.world import TrialEngine, TrialWorld, differences
from tests.ivm.world import table_schema
from tests.relations import keyed, rel
from tests.seeds import daily, some_today

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
TABLES = {
    "s.l": table_schema("id bigint, k bigint, n decimal(12,2), w string, at timestamp", "id"),
    "s.r": table_schema("k bigint, j int, d date, ok boolean, f double", "k j"),
}
VIEWS = {
    "joined": "select l.id, r.j, l.n * 2 as n from s.l l join s.r r on r.k = l.k",
    "outer_joined": "select l.id, l.k, r.j, r.d from s.l l left join s.r r on r.k = l.k and r.ok",
    "grouped": "select k, count(*) as c, sum(n) as s, max(w) as m from s.l group by k",
    "over_grouped": "select count(*) as many, sum(s) as total from grouped where c > 1",
    "ranked": "select id, row_number() over (partition by k order by n desc, id) as p from s.l",
    "missing": "select k, j from s.r where not exists (select 1 from s.l where l.k = r.k)",
    "recent": "select id, w from s.l where at > now() - interval 1 day",
    "distinct_words": "select distinct w from s.l where w <> 'a'",
    "averages": "select k, avg(j) as a, count(f) as c from s.r group by k",
    "totals": "select sum(n) as s, count(distinct k) as c from s.l",
    "top": "select id, n from s.l order by n desc, id limit 3",
    "both": "select k from s.l union select k from s.r",
}  # fmt: skip


@pytest.fixture
def tried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0, text=None, **views):
        for name, sql in views.items():
            (tmp_path / f"{name}.sql").write_text(sql)
        if text is not None:
            (tmp_path / "t.yml").write_text(text)
        result = CliRunner().invoke(main, ["test", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    return run


def examples(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sql").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "sql/revenue.sql").write_text(examples("sql")[0])
    (tmp_path / "tests/revenue.yml").write_text(examples("yaml")[0])
    result = CliRunner().invoke(main, ["test", "tests"])
    assert result.exit_code == 0, result.output
    shown = re.sub(r"\d+\.\d+ s", "… s", result.output)
    assert shown == "✓ a cancelled order leaves  … s\n1 passed, 0 failed in … s\n"
    assert re.sub(r"\d+\.\d+ s", "… s", PAGE).count(shown.strip()) == 1
    result = CliRunner().invoke(main, ["test", "--random", "5", "tests/revenue.yml"])
    assert result.output.startswith("5 random tests passed"), result.output


FILE = """
views: [v.sql]
tables: {s.t: {columns: {id: int, v: string}, key: [id]}}
tests:
  - name: one
    given: {s.t: [{id: 1, v: a}]}
    expect: {v: [{id: 1, v: a}]}
    steps:
      - {insert: {s.t: [{id: 2}]}}
      - {delete: {s.t: [{id: 1}]}, expect: {v: [{id: 2, v: b}]}}
"""


def test_what_fails_is_told_with_its_place(tried):
    told = tried("t.yml", code=1, text=FILE, v="select id, v from s.t")
    assert told.splitlines()[:4] == [
        "✗ one  t.yml:10:9",
        "    view v is not as expected:",
        "      too much: id=2, v=NULL",
        "      missing (expected): id=2, v=b",
    ]


def test_it_is_data_as_json(tried):
    (outcome,) = json.loads(tried("t.yml", "--json", code=1, text=FILE, v="select id, v from s.t"))
    assert (outcome["name"], outcome["where"], outcome["is_wrong"]) == ("one", "t.yml:10:9", False)


@pytest.mark.parametrize(
    ("number", "is_told"),
    [
        ("0.10000000000000001", True),
        ("123456789012345678.5", True),
        ("'0.10000000000000001'", False),
        ("0.1", False),
        ("-1.50", False),
    ],
)
def test_a_number_that_yaml_would_round_is_refused(tried, number, is_told):
    text = f"""
views: [v.sql]
tables:
  s.t: {{columns: {{id: bigint, n: "decimal(38,17)"}}, key: [id]}}
tests:
- name: one
  given: {{s.t: [{{id: 1, n: {number}}}]}}
  expect: {{v: [{{id: 1, n: {number}}}]}}
"""
    told = tried("t.yml", code=1 if is_told else 0, text=text, v="select id, n from s.t")
    assert ("t.yml:7:" in told and "more digits than are kept" in told) == is_told, told


def test_only_some(tried):
    assert "no test has 'nope'" in tried(
        "t.yml", "-k", "nope", code=1, text=FILE, v="select id, v from s.t"
    )


def test_a_row_may_have_columns_that_no_view_uses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, note TEXT)")
    (tmp_path / "changes").mkdir()
    (tmp_path / "mview.yml").write_text(
        "store: store\nconnections:\n  s: {drivername: sqlite, database: shop.db}\n"
        "changes:\n  s: {source: files, format: unified, path: changes, T: 1 second}\n"
    )
    (tmp_path / "v.sql").write_text("SELECT id, v FROM s.t")
    rows = "{s.t: [{id: 1, v: a, note: x}]}"
    text = f"views: [v.sql]\ntests:\n- name: one\n  given: {rows}\n"
    text += "  expect: {v: [{id: 1, v: a}]}\n"
    (tmp_path / "t.yml").write_text(text)
    told = CliRunner().invoke(main, ["test", "t.yml", "-c", "mview.yml"])
    assert told.exit_code == 0, told.output
    (tmp_path / "t.yml").write_text(text.replace("note", "nope"))
    told = CliRunner().invoke(main, ["test", "t.yml", "-c", "mview.yml"])
    assert "s.t has no column 'nope'" in told.output


@pytest.mark.parametrize(
    ("was", "put", "told"),
    [
        ("id: 1, v: a}]}\n    expect", "id: 1, x: a}]}\n    expect", "s.t has no column 'x'"),
        ("[{id: 2}]", "[{v: b}]", "column id is missing"),
        ("[{id: 2}]", "[{id: 1}]", "has a row with this key: id=1"),
        ("delete: {s.t: [{id: 1}]", "delete: {s.t: [{id: 7}]", "has no row id=7"),
        ("delete: {s.t: [{id: 1}]", "update: {s.t: [{id: 7}]", "has no row id=7"),
        ("[{id: 2}]", "[{id: 2147483648}]", "not a value of type int"),
        ("[{id: 2}]", "[{id: 2.0}]", "not a value of type int: '2.0'; allowed: a whole number"),
        ("insert: {s.t:", "insert: {s.u:", "no view of this file reads 's.u'"),
        ("expect: {v: [{id: 1", "expect: {w: [{id: 1", "no view 'w'"),
        ("expect: {v: [{id: 1, v", "expect: {v: [{id: 1, w", "view v has no column 'w'"),
    ],
)
def test_what_does_not_fit_is_told(tried, was, put, told):
    assert FILE.count(was) == 1, was
    assert told in tried("t.yml", code=1, text=FILE.replace(was, put), v="select id, v from s.t")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be a mapping"),
        ("views: [v.sql]\ntests: []", "tests: is empty"),
        (FILE.replace("given", "givn"), "did you mean 'given'?"),
        (FILE.replace("{insert: ", "{change: "), "one of at, delete, expect, insert, update"),
        (FILE.replace("key:", "keys:"), "did you mean 'key'?"),
        (FILE.replace("id: int", "id: int4"), "unknown column type 'int4'"),
        (FILE.replace("key: [id]", "key: [x]"), "key column 'x'"),
        (FILE + "tests: []\n", "stands twice"),
        (FILE.replace("[v.sql]", "[nope.sql]"), "nope.sql"),
        (FILE.replace("s.t: {columns", "s.u: {columns"), "table s.t needs a configuration"),
        ("a: [", "not valid YAML"),
    ],
)
def test_files_that_are_wrong(tried, text, told):
    output = tried("t.yml", code=output_code(told), text=text, v="select id, v from s.t")
    assert told in output
    assert "Traceback" not in output


def output_code(told):
    return 2 if "configuration" in told else 1


def test_a_view_that_asks_for_the_time(tried):
    view = "select id from s.t where current_date > date '2026-01-15'"
    text = (
        FILE[: FILE.index("    expect")] + "    steps: [{at: 2026-02-01, expect: {v: [{id: 1}]}}]\n"
    )
    assert "say it with `at:`" in tried("t.yml", code=1, text=text, v=view)
    timed = text.replace("    given", "    at: 2026-01-01\n    expect: {v: []}\n    given")
    assert "1 passed" in tried("t.yml", text=timed, v=view)


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("decimal(12,2)", 10.5, Decimal("10.50")),
        ("decimal(38,0)", "100000000000000000001", Decimal(100000000000000000001)),
        ("bigint", 9223372036854775807, 9223372036854775807),
        ("double", "NaN", "nan"),
        ("double", 1, 1.0),
        ("binary", "00ff", b"\0\xff"),
        ("array<int>", [1, None], [1, None]),
        ("timestamp", "2026-01-01T00:00:00+02:00", "2025-12-31 22:00:00+00:00"),
        ("timestamp_ntz", "2026-01-01 00:00:00", "2026-01-01 00:00:00"),
        ("date", "2026-02-28", "2026-02-28"),
    ],
)
def test_values(kind, given, value):
    found = value_of(given, parse_type(kind))
    assert found == value or str(found) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("decimal(12,2)", 0.001),
        ("decimal(12,2)", "1e11"),
        ("decimal(38,20)", 0.10000000000000001234),
        ("decimal(3,1)", "NaN"),
        ("bigint", 9223372036854775808),
        ("int", True),
        ("boolean", 1),
        ("string", 1),
        ("binary", "0"),
        ("binary", "xy"),
        ("date", "2026-02-30"),
        ("date", "2026-02-01 10:00:00"),
        ("timestamp_ntz", "2026-01-01T00:00:00Z"),
        ("timestamp", "soon"),
        ("array<int>", 1),
        ("array<int>", ["a"]),
        ("double", "1.5"),
    ],
)
def test_values_that_are_refused(kind, given):
    if isinstance(given, float) and kind == "decimal(38,20)":
        given = 0.12345678901234567
    with pytest.raises(UserError, match="not a value of type"):
        value_of(given, parse_type(kind))


def no_spark(reason):
    raise AssertionError(reason)


class Failing:
    """Spark, which fails on the rows."""

    def run(self, sql, relations, result):
        raise ArithmeticException(message="[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012")


def test_what_spark_raises_is_told_of_the_view():
    """Rows that a query fails on, and texts that only Spark refuses, are no faults of mview."""
    engine = TrialEngine(lambda reason: Failing())
    view = parse_view("select id, 7 / (id - 1) as share from s.M", "shares")
    rows = pa.table({"id": [1]})
    with pytest.raises(UserError, match="query of view shares fails on the data: DIVIDE_") as told:
        engine.view(view, lambda name: rows, ())
    assert (told.value.safe, told.value.hint) == (
        "nothing was written",
        "correct the row or the query",
    )


@pytest.mark.parametrize("name", some_today(VIEWS, 4))
def test_views_by_chance(name, tmp_path):
    needed = ["grouped", name] if name == "over_grouped" else [name]
    for view in needed:
        (tmp_path / f"{view}.sql").write_text(VIEWS[view])
    tables = {
        table: {
            "columns": {c.name: type_name(c.type) for c in schema.columns},
            "key": [*schema.key],
        }
        for table, schema in TABLES.items()
    }
    file = tmp_path / "t.yml"
    tests = [{"name": "none"}]
    views = [f"{view}.sql" for view in needed]
    file.write_text(yaml.safe_dump({"views": views, "tables": tables, "tests": tests}))
    result = run_by_chance(TrialProject(None), [file], 12, daily() * 1000)
    assert result.failed is None, result


@pytest.mark.parametrize(
    "sql",
    [
        "select * from s.M",
        "select `Id`, Word as W from s.M",
        "select `Id` + 1 as `Key`, count(*) as N from s.M group by 1",
        "select m.*, max(`Id`) over (partition by `Word`) as Most from s.M m",
        "select `Word`, sum(`Id`) as S from s.M group by `Word` order by S limit 3",
    ],
)
def test_names_with_large_letters(sql, tmp_path):
    (tmp_path / "v.sql").write_text(sql)
    tables = {"s.M": {"columns": {"Id": "bigint", "Word": "string"}, "key": ["Id"]}}
    file = tmp_path / "t.yml"
    form = {"views": ["v.sql"], "tables": tables, "tests": [{"name": "none"}]}
    file.write_text(yaml.safe_dump(form))
    result = run_by_chance(TrialProject(None), [file], 5, daily() * 1000)
    assert result.failed is None, result


def test_a_view_that_is_kept_up_wrongly_is_noticed(tried, monkeypatch):
    """What the engine gets wrong, a test by chance finds, and prints as a test that fails, too."""
    right = world.run_view

    def forgets(plan, deltas, lookups, evaluator, state=None):
        delta = right(plan, deltas, lookups, evaluator, state)
        if delta is None:
            return None
        # Rows that go stay.
        rows = delta.rows.filter(pa.compute.greater(delta.rows[WEIGHT], 0))
        return world.ViewDelta(rows, delta.state)

    monkeypatch.setattr(world, "run_view", forgets)
    view = "select id, v from s.t where v is not null"
    told = tried("--random", "200", "--seed", "1", "t.yml", code=1, text=FILE, v=view)
    assert "differs from its batch query" in told
    printed = yaml.safe_load(told.split("as a test:", 1)[1])
    (test,) = printed["tests"]
    # Nothing in it that is not needed: a row that comes, and goes.
    rows = [
        row
        for step in [{"insert": test.get("given", {})}, *test["steps"]]
        for kind in ("insert", "update", "delete")
        for row in step.get(kind, {}).get("s.t", [])
    ]
    assert len(rows) == 2, printed
    again = FILE[: FILE.index("tests:")] + yaml.safe_dump(printed)
    assert "differs from its batch query" in tried("t.yml", code=1, text=again, v=view)


def test_doubles_are_compared_by_their_first_digits():
    schema = pa.schema([("f", pa.float64())])
    one = pa.table({"f": [0.1 + 0.2, None, float("nan")]}, schema)
    other = pa.table({"f": [0.3, None, float("nan")]}, schema)
    assert differences(one, other).num_rows == 0
    assert differences(one, other.slice(1)).num_rows == 1


def test_rows_that_are_not_there_cannot_go():
    engine = TrialEngine(no_spark)
    made = TrialWorld(keyed(TABLES), [parse_view(VIEWS["both"], "both")], engine, 0)
    shape = [(c.name, c.type) for c in TABLES["s.r"].columns]
    gone = pa.Table.from_pylist(
        [{"k": 1, "j": 1, WEIGHT: -1}], pa.schema([*shape, (WEIGHT, pa.int32())])
    )
    with pytest.raises(UserError, match=r"a row goes from s\.r that is not there: k=1, j=1"):
        made.epoch({rel("s.r"): gone})
    engine.close()
