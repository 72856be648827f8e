"""The lists of function names are those of the Spark that runs."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from mview.plan.checks.sense import OVER_ONLY
from mview.plan.functions.names import AGGREGATES, ARGUMENTS, BUILT_IN, GENERATORS, REFUSED, WORDS

#: Forms that only the parser of Spark knows: `dateadd(DAY, 1, d)`.
_BY_WORDS = {
    "cast", "grouping", "grouping_id", "date_add", "date_diff", "dateadd", "datediff",
}  # fmt: skip
#: Only the parser of Spark knows them.
_WORDS = {"timestampadd", "timestampdiff", "collations", "sql_keywords"}


#: Functions that stand in FROM only, in a registry of their own.
_TABLE_FUNCTIONS = {"variant_explode", "variant_explode_outer"}

#: A second argument that Spark takes and does not document; refused here.
_UNDOCUMENTED = {"hour/2 fits", "minute/2 fits", "second/2 fits"}


@pytest.mark.spark
def test_every_builtin_function_is_listed_by_kind(spark: SparkSession) -> None:
    registry = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()  # type: ignore[union-attr]
    names = registry.listFunction().iterator()
    wrong, known = [], set()
    while names.hasNext():
        name = names.next()
        info = registry.lookupFunction(name)
        group = info.get().getGroup() if info.isDefined() else ""
        text = name.funcName()
        known.add(text)
        if (
            (group == "agg_funcs" and text not in AGGREGATES | set(REFUSED) | WORDS)
            or (group == "generator_funcs" and text not in GENERATORS | set(REFUSED))
            or (text.replace("_", "").isalnum() and text not in BUILT_IN)
        ):
            wrong.append(text)
    assert wrong == []
    assert BUILT_IN - known <= {*_WORDS, *GENERATORS, *_TABLE_FUNCTIONS}
    assert not set(ARGUMENTS) & set(REFUSED)


@pytest.mark.long
@pytest.mark.spark
def test_spark_takes_as_many_arguments_as_are_listed(spark: SparkSession) -> None:
    wrong = []
    for name, counts in ARGUMENTS.items():
        if name in {*_WORDS, *GENERATORS, *_BY_WORDS} | OVER_ONLY:
            continue
        few = {one for one in counts if one <= 8}
        # What has one more or one less than is allowed must be too many or too few to Spark.
        beside = {one for count in few for one in (count - 1, count + 1)} - counts - {-1}
        wrong += [f"{name}/{count}" for count in few if not _fits(spark, name, count)]
        wrong += [f"{name}/{count} fits" for count in beside if _fits(spark, name, count)]
    assert set(wrong) == _UNDOCUMENTED


def _fits(spark: SparkSession, name: str, count: int) -> bool:
    try:
        spark.sql(f"SELECT `{name}`({', '.join(['NULL'] * count)})")
    except AnalysisException as error:
        return not (error.getCondition() or "").startswith(("WRONG_NUM_ARGS", "REQUIRED_PARAM"))
    return True
