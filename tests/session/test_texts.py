from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from mview.session.texts import query

pytestmark = [pytest.mark.spark]


@pytest.mark.parametrize(
    "text",
    [
        "cast(b as string)", "CAST(b AS VARCHAR(3))", "string(b)", "b::string", "b || 'a'",
        "concat_ws(',', b)", "array('a', cast(b as string))",
        "cast(b as string) collate utf8_lcase", "cast(b as string) collate unicode_ci",
        "array('a' collate utf8_lcase, cast(b as string))",
    ],
)  # fmt: skip
def test_a_text_that_is_none_fails_the_query(spark: SparkSession, text: str) -> None:
    sql = "select {} as `a b``c`, 1 as one from (select X'{}' as b)"
    assert query(spark, sql.format(text, "61")).toArrow().column_names == ["a b`c", "one"]
    with pytest.raises(Exception, match="INVALID_UTF8_STRING"):
        query(spark, sql.format(text, "FF")).toArrow()


def test_others_are_as_they_were(spark: SparkSession) -> None:
    sql = "select X'FF' as b, cast(null as string) as n, array('\U0001f600', null) as text, 7 as i"
    assert query(spark, sql).toArrow().equals(spark.sql(sql).toArrow())


def test_a_collation_stays_one(spark: SparkSession) -> None:
    """What is asked of the rows afterwards compares as the view does."""
    rows = query(spark, "select 'A' collate utf8_lcase as a, array('B' collate utf8_lcase) as many")
    assert rows.where("a = 'a' and array_contains(many, 'b')").count() == 1
    assert rows.toArrow().to_pylist() == [{"a": "A", "many": ["B"]}]
