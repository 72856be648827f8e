"""The lists of function names are those of the Spark that runs."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from mview.plan.function_names import AGGREGATES, GENERATORS, SCALARS


@pytest.mark.spark
def test_every_builtin_function_is_listed_by_kind(spark: SparkSession) -> None:
    registry = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()  # type: ignore[union-attr]
    names = registry.listFunction().iterator()
    wrong = []
    while names.hasNext():
        name = names.next()
        info = registry.lookupFunction(name)
        group = info.get().getGroup() if info.isDefined() else ""
        text = name.funcName()
        if (
            (group == "agg_funcs" and text not in AGGREGATES)
            or (group == "generator_funcs" and text not in GENERATORS)
            or (text.replace("_", "").isalnum() and text not in AGGREGATES | GENERATORS | SCALARS)
        ):
            wrong.append(text)
    assert wrong == []
