"""Property: what runs in process is what Spark makes of the same query over the same rows.

The queries are those of `tests.ivm.random_views`, nested as they come: what is wrong in a join or a
subquery shows in no function by itself. More: MVIEW_RANDOM_QUERIES=2000.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.refusal import EvaluationError, NotAdmittedError
from tests.ivm.random_views import SCHEMAS, Case, random_case
from tests.ivm.world import SparkEngine, to_rows
from tests.seeds import seeds

COUNT = int(os.environ.get("MVIEW_RANDOM_QUERIES", "60"))


def tables_of(case: Case) -> dict[str, pa.Table]:
    """The tables after all epochs."""
    rows = {(table, key): rest for ops in case.epochs for table, key, rest in ops}
    made = {}
    for name, schema in SCHEMAS.items():
        kept = [(*key, *rest) for (table, key), rest in rows.items() if table == name and rest]
        columns = zip(*kept, strict=True) if kept else [()] * len(schema.columns)
        made[name] = pa.table(list(map(pa.array, columns, schema.arrow.types)), schema.names)
    return made


def in_process(
    evaluator: LocalEvaluator, sql: str, tables: Mapping[str, pa.Table]
) -> Counter[tuple[object, ...]] | None:
    """The rows; None: it is for Spark."""
    try:
        return Counter(to_rows(evaluator.run(sql, tables, None)))
    except (NotAdmittedError, EvaluationError):
        return None


@pytest.mark.spark
@pytest.mark.slow
def test_random_queries_equal_spark(spark: SparkSession) -> None:
    evaluator, engine, compared = LocalEvaluator(), SparkEngine(spark), 0
    for seed in seeds(COUNT, first=70_000):
        case = random_case(seed, depth=1 + seed % 2)
        tables = tables_of(case)
        mine = in_process(evaluator, case.sql, tables)
        if mine is None:
            continue
        theirs = Counter(to_rows(engine.run(case.sql, tables, None)))
        assert mine == theirs, f"seed {seed}: {case.sql}\n{tables}"
        compared += 1
    assert compared > COUNT // 3
