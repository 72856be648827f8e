"""Property: views over all common types, in process, equal the batch query after each epoch.

And what runs in process is what Spark makes of it over the last rows. More: MVIEW_TYPED_VIEWS=2000.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter

import pytest
from pyspark.sql import SparkSession

from mview.errors import UserError
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.refusal import EvaluationError, NotAdmittedError
from tests.ivm.typed_views import SCHEMAS, TypedViews, run_epochs
from tests.ivm.world import Engine, Row, SparkEngine, World, to_rows
from tests.relations import rel
from tests.seeds import seeds

COUNT = int(os.environ.get("MVIEW_TYPED_VIEWS", "60"))


def run(seed: int) -> World | None:
    """A view that was maintained in process; None: a row of it raises, or only Spark runs it."""
    sql = TypedViews(seed).view()
    try:
        world = World(SCHEMAS, {"v": sql}, LocalEvaluator())
        run_epochs(world, seed)
    except (EvaluationError, NotAdmittedError, UserError):
        return None
    except AssertionError as error:
        pytest.fail(f"seed {seed}: {sql}\n{error}")
    return world


def rows_of(world: World, engine: Engine) -> Counter[Row]:
    """The view's rows; times without their zone, which tables lose on their way to Spark."""
    world.batch = engine
    return Counter(
        tuple(v.replace(tzinfo=None) if isinstance(v, dt.datetime) else v for v in row)
        for row in to_rows(world.compute(rel("v")))
    )


def test_typed_views_equal_the_batch_query() -> None:
    ran = [run(seed) is not None for seed in seeds(COUNT, first=90_000)]
    assert sum(ran) > len(ran) * 0.8


@pytest.mark.spark
@pytest.mark.slow
def test_typed_views_equal_spark(spark: SparkSession) -> None:
    engine, local, compared = SparkEngine(spark), LocalEvaluator(), 0
    for seed in seeds(COUNT // 3, first=95_000):
        if (world := run(seed)) is None:
            continue
        assert rows_of(world, local) == rows_of(world, engine), f"seed {seed}"
        compared += 1
    assert compared > COUNT // 5
