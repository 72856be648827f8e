"""Property: after every epoch a maintained view equals the batch query over all rows.

DuckDB runs both sides here (the rules are what is tested); one small run is on Spark. More views:
MVIEW_RANDOM_VIEWS=5000. A failure prints the seed and a shrunk case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace

import duckdb
import pytest
from pyspark.sql import SparkSession

from tests.ivm.random_views import SCHEMAS, Case, random_case, run_case, shrink, variants
from tests.ivm.world import DuckEngine, Engine, Row, SparkEngine, World
from tests.relations import rel
from tests.seeds import seeds, some_today

COUNT = int(os.environ.get("MVIEW_RANDOM_VIEWS", "24"))


def outcome(
    case: Case, engine: Engine, generous: bool, below: Mapping[str, str] | None = None
) -> str | None:
    """What is wrong after the epochs; None when all is well or the engine has no plan for it."""
    try:
        world = World(SCHEMAS, {**(below or {}), "v": case.sql}, engine, generous=generous)
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


#: The tables as views without a key, in which some rows stand twice.
DOUBLED = {
    f"{name}2": f"select * from {name} union all select * from {name} where {column} > 0"
    for name, column in {"t": "k", "u": "k", "s": "x"}.items()
}


def outcome_over_views(case: Case, engine: Engine, generous: bool) -> str | None:
    """As `outcome`, of a view that reads views without a key."""
    over = re.sub(r"\b([tus]) (r\d+)", r"\g<1>2 \2", case.sql)
    return outcome(replace(case, sql=over), engine, generous, DOUBLED)


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
    for seed in seeds(COUNT // 6, first=10_000 * depth):
        check(seed, depth, engine, generous)


@pytest.mark.parametrize("generous", some_today([False, True], 2), ids=["exact", "generous"])
def test_views_over_views_without_a_key(generous: bool) -> None:
    engine = DuckEngine()
    for seed in seeds(max(COUNT // 2, 6), 60_000):
        case = random_case(seed, 1)
        if " limit " not in case.sql:  # of rows that tie it takes any
            wrong = outcome_over_views(case, engine, generous)
            assert wrong is None, f"seed {seed}, generous {generous}: {wrong}\n{case}"


@pytest.mark.parametrize(
    "sql",
    [
        "select u.id, a.n from u left join a on a.k <=> u.k",
        "select a.k, count(u.id) as n from a left join u on a.k <=> u.k group by a.k",
        "select id from u where k not in (select k from a)",
        "select k from a except select k from u",
    ],
)
def test_the_key_of_a_view_may_be_null(sql: str) -> None:
    below = {"a": "select k, max(v) as n from t group by k"}
    world = World(SCHEMAS, {**below, "v": sql}, DuckEngine())
    world.epoch({"t": [(1, (1, None, 0, 3)), (1, (2, 1, 0, 5))], "u": [(1, (1, None, 0, 0))]})
    world.epoch({"t": [(1, (3, None, 0, 4)), (-1, (2, 1, 0, 5))], "u": [(1, (2, 7, 0, 0))]})
    world.epoch({"t": [(-1, (1, None, 0, 3)), (-1, (3, None, 0, 4))]})


def final_rows(case: Case, *, cancelling: bool = False) -> dict[Row, int] | None:
    """The view after all epochs; None when the engine has no plan for it."""
    try:
        world = World(SCHEMAS, {"v": case.sql}, DuckEngine())
        run_case(case, world, cancelling=cancelling)
    except duckdb.Error:
        return None
    return dict(world.mirrors[rel("v")].rows)


def test_how_changes_are_cut_into_epochs_does_not_matter() -> None:
    for seed in seeds(max(COUNT // 4, 6), first=50_000):
        case = random_case(seed, 1)
        want = final_rows(case)
        assert final_rows(case, cancelling=True) == want, f"seed {seed}, rows that cancel"
        for name, other in variants(case).items():
            assert final_rows(other) in (want, None), f"seed {seed}, {name}"


@pytest.mark.slow
@pytest.mark.spark
def test_views_equal_the_batch_query_on_spark(spark: SparkSession) -> None:
    for seed in seeds(max(COUNT // 8, 3), first=90_000):
        check(seed, 1, SparkEngine(spark), generous=False)
