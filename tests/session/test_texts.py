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
