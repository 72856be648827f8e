"""What is written of a tree is what was read: word by word, or in the other form Spark has."""

from __future__ import annotations

import pytest
import sqlglot
from pyspark.sql import SparkSession
from sqlglot import exp
from sqlglot.tokens import TokenType

from mview.plan.definition import parse_view
from mview.plan.text.dialect import called_as, drop_hints, fragment, parse, write
from tests.plan.checks.test_texts import SCHEMAS, lines
from tests.plan.checks.test_texts import sql_of as text_of
from tests.plan.functions.test_faithful import FAITHFUL, ROWS
from tests.seeds import some_today

#: Texts with one of these are written in the other form that Spark has for it.
_FORMS = (
    "position(", "substr(", "substring(s from", "overlay(", "char(65)", "struct(", "string_agg(",
    "and(ok", "or(ok", "values", "::", "<=>", "! ok", "nulls last", " minus ",
)  # fmt: skip
#: Words that may be left out, or stand in another place.
_LOOSE = ("AS", "NOT", "ALL", "JOIN")


def sql_of(line: str) -> str:
    """The SELECT of a line."""
    return parse_view(text_of(line), "v").sql


def tree_of(sql: str) -> exp.Expr:
    (tree,) = [one for one in parse(sql) if one is not None]
    drop_hints(tree)
    return tree


def words(sql: str) -> list[str]:
    """The words of a text, with strings as they are."""
    found = []
    for token in sqlglot.tokenize(sql, read="spark"):
        text = sql[token.start : token.end + 1]
        if token.token_type not in (TokenType.STRING, TokenType.RAW_STRING):
            text = " ".join(text.strip("`").upper().split())
        found.append("," if text == "CROSS" else text)
    return [word for word in found if word not in _LOOSE]


@pytest.mark.parametrize("line", lines("ok"))
def test_a_text_is_written_in_its_own_words(line: str) -> None:
    sql = sql_of(line)
    written = write(tree_of(sql))
    if not any(form in sql.lower() for form in _FORMS):
        assert words(written) == words(sql)
    # Written again it stays the same.
    assert write(tree_of(written)).lower() == written.lower()


@pytest.mark.parametrize("line", lines("ok"))
def test_a_tree_is_that_of_sqlglot(line: str) -> None:
    """What is kept beside the tree is no part of it: analyses see what they know."""
    assert parse(sql_of(line)) == sqlglot.parse(sql_of(line), dialect="spark")


def test_a_part_of_a_call_can_be_replaced() -> None:
    tree = tree_of("select date_sub(to_date(s, 'yyyy'), 1) + `A b` as x from t")
    for column in list(tree.find_all(exp.Column)):
        column.replace(fragment("max(v)", v=exp.column("y")))
    assert write(tree) == "SELECT date_sub(to_date(max(y), 'yyyy'), 1) + max(y) AS x FROM t"


def test_a_hint_is_written() -> None:
    assert write(tree_of("select /*+ BROADCAST(u) */ id from t")) == (
        "SELECT /*+ BROADCAST(u) */ id FROM t"
    )


def test_with_stays_in_its_query() -> None:
    sql = "SELECT * FROM (WITH c AS (SELECT 1 AS a) SELECT a FROM c) AS d"
    assert write(tree_of(sql)) == sql


def test_calls_have_their_names() -> None:
    called = [called_as(node) for node in tree_of("select NVL(a, 1), f(), cast(b as int)").walk()]
    assert [one for one in called if one is not None] == [("nvl", 2), ("f", 0)]


@pytest.mark.spark
@pytest.mark.parametrize("quarter", some_today(range(4), 4))
def test_spark_reads_the_same_in_what_is_written(spark: SparkSession, quarter: int) -> None:
    for name in ("t", "u"):
        spark.createDataFrame([], SCHEMAS[name].ddl).createOrReplaceTempView(name)
    texts = [sql_of(line) for line in lines("ok") if "shop." not in line][quarter::4]
    wrong = [sql for sql in texts if spark.sql(sql).schema != spark.sql(write(tree_of(sql))).schema]
    assert not wrong, "\n".join(wrong)
    assert len(texts) > 100


@pytest.mark.spark
def test_what_is_written_has_the_same_values(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.sql(f"select * from values {ROWS} as v(a, b, d, s, e, t, f)").createOrReplaceTempView("v")
    # Not of every text of the rows a year can be made.
    calls = [one for one in FAITHFUL if "s, 'yyyy'" not in one]
    texts = {one: write(tree_of(f"select {one} as x")).removesuffix(" AS x") for one in calls}
    rows = [
        spark.sql(f"select {', '.join(f'{one} as c{i}' for i, one in enumerate(listed))} from v")
        for listed in (texts, [sql.removeprefix("SELECT ") for sql in texts.values()])
    ]
    assert rows[0].dtypes == rows[1].dtypes
    assert rows[0].collect() == rows[1].collect()
