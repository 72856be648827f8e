"""Property: after every epoch a maintained view equals the batch query over all rows.

DuckDB runs both sides here (the rules are what is tested); one small run is on Spark. More views:
MVIEW_RANDOM_VIEWS=5000. A failure prints the seed and a shrunk case.
"""

from __future__ import annotations

import os

import duckdb
import pytest
from pyspark.sql import SparkSession

from tests.ivm.random_views import SCHEMAS, Case, random_case, run_case, shrink, variants
from tests.ivm.world import DuckEngine, Engine, Row, SparkEngine, World

COUNT = int(os.environ.get("MVIEW_RANDOM_VIEWS", "24"))


def outcome(case: Case, engine: Engine, generous: bool) -> str | None:
    """What is wrong after the epochs; None when all is well or the engine has no plan for it."""
    try:
        world = World(SCHEMAS, {"v": case.sql}, engine, generous=generous)
    except duckdb.Error:
        return None  # a construct that only Spark runs
    try:
        run_case(case, world)
    except AssertionError as error:
        return str(error)
    except duckdb.Error as error:
        if "More than one row" in str(error):
            return None  # the batch query fails as well
        raise
    return None


def check(seed: int, depth: int, engine: Engine, generous: bool) -> None:
    """Run a case; on failure shrink it and say how to repeat it."""
    case = random_case(seed, depth)
    wrong = outcome(case, engine, generous)
    if wrong is None:
        return
    small = shrink(case, lambda one: outcome(one, engine, generous) is not None)
    pytest.fail(f"seed {seed}, depth {depth}, generous {generous}: {wrong}\n{small}")


@pytest.mark.parametrize("generous", [False, True], ids=["exact", "generous"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_views_equal_the_batch_query(depth: int, generous: bool) -> None:
    engine = DuckEngine()
    first = 10_000 * depth
    for seed in range(first, first + COUNT // 6):
        check(seed, depth, engine, generous)


def final_rows(case: Case, *, cancelling: bool = False) -> dict[Row, int] | None:
    """The view after all epochs; None when the engine has no plan for it."""
    try:
        world = World(SCHEMAS, {"v": case.sql}, DuckEngine())
        run_case(case, world, cancelling=cancelling)
    except duckdb.Error:
        return None
    return dict(world.mirrors["v"].rows)


def test_how_changes_are_cut_into_epochs_does_not_matter() -> None:
    for seed in range(50_000, 50_000 + max(COUNT // 4, 6)):
        case = random_case(seed, 1)
        want = final_rows(case)
        assert final_rows(case, cancelling=True) == want, f"seed {seed}, rows that cancel"
        for name, other in variants(case).items():
            assert final_rows(other) in (want, None), f"seed {seed}, {name}"


@pytest.mark.slow
@pytest.mark.spark
def test_views_equal_the_batch_query_on_spark(spark: SparkSession) -> None:
    for seed in range(90_000, 90_000 + max(COUNT // 4, 6)):
        check(seed, 1, SparkEngine(spark), generous=False)
