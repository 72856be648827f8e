"""SQL that we made is not used where Spark reads it another way than the user's text."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlglot import exp

from mview.catalog.analyze import Analyst
from mview.epoch.views import opening as views
from mview.ivm import compile as compiler
from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.ivm.rewrites.parts import ViewParts
from mview.plan.definition import ViewDefinition, parse_view
from mview.schema import TableSchema
from mview.session.lazy import Spark
from tests.ivm.world import table_schema
from tests.relations import keyed

pytestmark = pytest.mark.spark
SCHEMAS = {"shop.orders": table_schema("id bigint, cust bigint, total decimal(12,2)", "id")}
SUMS = "select cust % 7 as c, sum(total) as s, max(total) as m from shop.orders group by cust % 7"
FIRST = "select id, total from shop.orders order by total desc, id limit 3"


def opened(sql: str, spark: SparkSession) -> ViewPlan:
    """The plan that Spark has looked at."""
    view = parse_view(sql, "v")
    return compile_view(view, keyed(SCHEMAS), views.analyzer(Analyst(Spark.of(spark))))


def test_plans_know_the_columns_of_all_they_keep(spark: SparkSession) -> None:
    plan = opened(SUMS, spark)
    assert plan.evaluation == "maintained"
    assert plan.state_result is not None
    assert set(plan.state_key) < set(plan.state_result.names)
    plan = opened(FIRST, spark)
    assert plan.evaluation == "top"
    assert plan.parts[0].result == plan.result == plan.state_result


def test_a_final_query_of_other_types_is_not_used(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_final_types", lambda *_: [pa.int64(), pa.string(), pa.string()])
    plan = opened(SUMS, spark)
    assert plan.maintained is None
    assert plan.evaluation == "slice_diff"


def test_text_over_parts_with_other_columns_is_not_used(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compiler.split

    def other(definition: ViewDefinition, schemas: dict[str, TableSchema]) -> ViewParts:
        found = real(definition, keyed(schemas))
        tree = found.main.tree.copy()
        total = tree.selects[1]
        total.replace(exp.alias_(exp.cast(exp.column("total", quoted=True), "string"), "total"))
        return replace(found, main=found.main.with_tree(tree))

    monkeypatch.setattr(compiler, "split", other)
    plan = opened(FIRST, spark)
    assert plan.parts == ()
    assert plan.evaluation == "full"
