"""Every golden case, with exact and with generous look-ups.

All that DuckDB can run it runs every day, with the two kinds of look-ups by turns. On Spark every
case runs in CI, and in `make test` another part of them every day; what DuckDB runs, too, has the
two kinds by turns there.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.ivm.world import DuckEngine, Engine, SparkEngine
from tests.seeds import is_of_today
from tests.slt.runner import SltCase, parse_file, run_case

#: `make test` runs a case on Spark every so many days: one that DuckDB runs, and one it does not.
_DAYS, _DAYS_ALONE = 50, 16

#: What DuckDB does not take, or takes another way: decimals of averages, ROLLUP and aggregates over
#: no rows, lists. By the beginning of the title; declared functions are Spark's in any case.
_ONLY_SPARK = (
    "exact decimals and averages of decimals",
    "rollup",
    "ROLLUP: one state row per group",
    "aggregates over all rows with FILTER, tests and functions",
    "min and max under ROLLUP and CUBE",
    "in HAVING an alias hides",
    "PIVOT over a derived table",
    "the first rows without a key, of a union, of a rollup",
    "lists in no order are sorted",
    "a bare name in ORDER BY is a column of the result",
    "windows beside explode see the rows that it makes",
    "grouping sets that come twice, and keys before WITH ROLLUP",
)

CASES = {
    f"{path.stem}: {case.title}": case
    for path in sorted(Path(__file__).parent.glob("*.slt"))
    for case in parse_file(path)
}
LOCAL = {
    name: case
    for name, case in CASES.items()
    if not case.functions and not case.title.startswith(_ONLY_SPARK)
}


def _is_for_another_day(name: str) -> bool:
    return not is_of_today(list(CASES).index(name), _DAYS if name in LOCAL else _DAYS_ALONE)


def _has_its_turn(name: str, generous: bool) -> bool:
    """Which kind of look-ups a case that DuckDB runs has today: the two by turns."""
    return is_of_today(list(CASES).index(name), 2) == generous


def check(case: SltCase, engine: Engine, looks: Collection[bool]) -> None:
    for generous in looks:
        for number, (epoch, answer) in enumerate(run_case(case, engine, generous=generous)):
            assert answer == epoch.expected, f"epoch {number + 1}, generous={generous}"


@pytest.mark.parametrize(
    ("name", "generous"),
    [
        pytest.param(
            *(name, generous),
            id=f"{name}, {'generous' if generous else 'exact'}",
            marks=[] if _has_its_turn(name, generous) else [pytest.mark.long],
        )
        for name in LOCAL
        for generous in (False, True)
    ],
)
def test_epochs_in_process(name: str, generous: bool) -> None:
    check(LOCAL[name], DuckEngine(), (generous,))


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if _is_for_another_day(name) else [])
        for name in CASES
    ],
)
def test_epochs(name: str, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    looks = [kind for kind in (False, True) if name not in LOCAL or _has_its_turn(name, kind)]
    check(CASES[name], SparkEngine(spark), looks)
