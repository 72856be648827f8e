"""Declared functions in Spark: where Spark takes them, and their errors as ours."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from mview.catalog.analyze import analyze
from mview.catalog.spark_functions import function_errors, register_functions
from mview.errors import UserError
from mview.plan.definition import ViewDefinition, parse_view
from mview.plan.functions.declared import Function
from tests.ivm.world import table_schema
from tests.relations import keyed

pytestmark = pytest.mark.spark
SCHEMAS = {"t": table_schema("id bigint, n bigint", "id")}
FUNCTIONS = (
    Function("near", "tests.slt.python:near", "boolean", "python"),
    Function("halves", "tests.slt.python:halves", "bigint", "pandas"),
)


def registered(spark: SparkSession, sql: str) -> ViewDefinition:
    view = replace(parse_view(sql, "v", "v.sql"), functions=FUNCTIONS)
    register_functions(spark, [view], str(Path(__file__).parents[2]))
    return view


def test_columns_have_the_declared_types(spark: SparkSession) -> None:
    view = registered(spark, "select id, Near(id, n) as a, halves(n) as b from t")
    assert [str(one) for one in analyze(spark, view, keyed(SCHEMAS)).arrow.types] == [
        "int64",
        "bool",
        "int64",
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "select l.id from t l left join t r on near(l.n, r.n)",
        "select id, transform(array(n), x -> halves(x)) as h from t",
    ],
)
def test_where_spark_takes_no_python_a_view_is_refused_before_it_runs(
    spark: SparkSession, sql: str
) -> None:
    view = registered(spark, sql)
    with pytest.raises(UserError, match=r"Spark refuses view v: .*Python UDF"):
        analyze(spark, view, keyed(SCHEMAS))


def test_the_error_of_a_function_comes_out_of_spark_as_it_was(spark: SparkSession) -> None:
    registered(spark, "select near(id, n) as a from t")
    with pytest.raises(UserError) as found, function_errors():
        spark.sql("select near('a', 1L)").toArrow()
    assert found.value.what.startswith("function near() raised TypeError: unsupported operand")
    assert "python.py:" in str(found.value.where)
    assert found.value.got == "('a', 1)"


def test_other_errors_of_spark_pass(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException), function_errors():
        spark.sql("select * from no_such_table").toArrow()


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        ("near('a', id)", UserError, "function near() raised TypeError"),
        ("1 / (id - id)", PySparkException, "DIVIDE_BY_ZERO"),
    ],
)
def test_what_fails_in_a_part_that_is_broadcast_is_told_as_itself(
    spark: SparkSession, value: str, error: type[Exception], said: str
) -> None:
    registered(spark, "select near(id, n) as a from t")
    part = f"(select /*+ REPARTITION(1) */ id, {value} as v from range(3))"
    query = f"select /*+ BROADCAST(b) */ a.id, v from range(3) a join {part} b on a.id = b.id"
    with pytest.raises(error, match=re.escape(said)), function_errors():
        spark.sql(query).toArrow()
