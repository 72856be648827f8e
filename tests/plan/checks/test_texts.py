"""Which texts may be views: `texts.txt` has a few hundred, each with its verdict.

A line is `ok | SQL`, or `line:column words of the message | SQL`; a `\\n` in the SQL is a line
break. What is `ok` here must be so to Spark, which analyzes all of them in one test.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import sqlglot
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from sqlglot.tokens import Token

from mview.catalog.analyze import analyze
from mview.errors import UserError
from mview.ivm.compile import compile_view
from mview.plan.definition import load_views, parse_view
from mview.plan.functions.names import ARGUMENTS
from tests.ivm.world import table_schema
from tests.relations import keyed
from tests.seeds import some_today

SCHEMAS = {
    "t": table_schema(
        "id bigint, i int, s string, f double, n decimal(10,2), d date, at timestamp, ok boolean,"
        " raw binary",
        "id",
    ),
    "u": table_schema("id bigint, k bigint, v string", "id"),
    "shop.orders": table_schema("id bigint, k bigint, user string", "id"),
}


def lines(verdict: str) -> list[str]:
    """The lines of the file whose verdict is `ok`, or is another one."""
    text = (Path(__file__).parent / "texts.txt").read_text()
    found = [one for one in text.splitlines() if one.strip() and not one.startswith("#")]
    return [one for one in found if one.startswith("ok |") == (verdict == "ok")]


def sql_of(line: str) -> str:
    return line.split(" | ", 1)[1].replace("\\n", "\n")


@pytest.mark.parametrize("line", lines("ok"))
def test_a_good_text_is_taken(line: str) -> None:
    compile_view(parse_view(sql_of(line), "v"), keyed(SCHEMAS))


@pytest.mark.parametrize("line", lines("refused"))
def test_a_bad_text_is_refused_with_its_place(line: str) -> None:
    place, words = line.split(" | ", 1)[0].split(" ", 1)
    with pytest.raises(UserError) as caught:
        compile_view(parse_view(sql_of(line), "v"), keyed(SCHEMAS))
    assert caught.value.where == f"<sql>:{place}"
    assert words in caught.value.what, caught.value.what
    assert caught.value.what.splitlines()[0].strip()


def test_every_function_stands_in_a_good_text() -> None:
    texts = " ".join(map(sql_of, lines("ok"))).lower()
    missing = [name for name in ARGUMENTS if f"{name}(" not in texts]
    # Words of the parser with forms of their own, and what the clocks refuse.
    assert set(missing) <= {"current_time"}


@pytest.mark.spark
@pytest.mark.parametrize("part", some_today(range(8), 8))
def test_spark_takes_every_good_text(spark: SparkSession, part: int) -> None:
    wrong = []
    for line in lines("ok")[part::8]:
        try:
            analyze(spark, parse_view(sql_of(line), "v"), keyed(SCHEMAS))
        except (UserError, AnalysisException, ParseException) as error:
            wrong.append(f"{line}\n    {str(error).splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


def calls_of(sql: str) -> dict[str, str]:
    """The calls in a text by the names of their functions, each with its OVER and such."""
    words = sqlglot.tokenize(sql, read="spark")
    found = {}
    for index, (word, after) in enumerate(pairwise(words)):
        name = word.text.lower()
        is_clause = name == "filter" and words[index + 2].text.lower() == "where"
        if after.text == "(" and name in ARGUMENTS and not is_clause:
            last = closing(words, index + 1)
            while words[last + 1 : last + 2] and words[last + 1].text.lower() in ("filter", "over"):
                last = closing(words, last + 2)
            found[name] = sql[word.start : words[last].end + 1]
    return found


def closing(words: list[Token], first: int) -> int:
    """The parenthesis that closes the one at an index; a name alone has none."""
    depth = 0
    for index in range(first, len(words)):
        depth += {"(": 1, ")": -1}.get(words[index].text, 0)
        if depth == 0:
            return index
    raise ValueError("a parenthesis is open")


@pytest.mark.long
@pytest.mark.spark
def test_check_knows_the_result_types_of_all_functions(spark: SparkSession) -> None:
    calls: dict[str, str] = {}
    for line in lines("ok"):
        calls |= calls_of(sql_of(line).split(" from t", 1)[0])
    seen, wrong = set(), []
    for name, call in calls.items():
        view = parse_view(f"select {call} as x from t", "v")
        told = []
        for one in (
            lambda view: compile_view(view, keyed(SCHEMAS)),
            lambda v: analyze(spark, v, keyed(SCHEMAS)),
        ):
            try:
                one(view)
                told.append("kept")
            except (UserError, AnalysisException, ParseException) as error:
                sort = "has a type that no table can have" in str(error)
                told.append("no type" if sort else "refused")
        if "refused" not in told:
            seen.add(name)
            if told[0] != told[1]:
                wrong.append(f"{call}: check says {told[0]}, Spark {told[1]}")
    assert not wrong, "\n".join(wrong)
    assert len(seen) > 330, sorted(set(ARGUMENTS) - seen)


@pytest.mark.parametrize(
    "sql",
    [
        "select " + "(" * 3000 + "id" + ")" * 3000 + " as x from t",
        "select " + " + ".join(["id"] * 5000) + " as x from t",
        "select id from t where " + " and ".join(["id = 1"] * 5000),
        "select " + "not " * 4000 + "ok as x from t",
        " union all ".join(["select id from t"] * 2000),
    ],
    ids=["parentheses", "sum", "and", "not", "union"],
)
def test_what_is_nested_too_deeply_is_said(sql: str) -> None:
    with pytest.raises(UserError, match=r"nested too deeply|parentheses stand inside"):
        compile_view(parse_view(sql, "v"), keyed(SCHEMAS))


def test_files_that_are_no_texts(tmp_path: Path) -> None:
    (tmp_path / "x.sql").mkdir()
    (tmp_path / "x.sql" / "v.sql").write_text("\ufeffselect 1 as a", encoding="utf-8")
    assert [view.name for view in load_views([tmp_path])] == ["v"]
    (tmp_path / "w.sql").write_text("select 1 as a", encoding="utf-16")
    with pytest.raises(UserError, match="UTF-16") as caught:
        load_views([tmp_path])
    assert str(tmp_path / "w.sql") in str(caught.value.where)
