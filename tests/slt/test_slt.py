"""Every golden case, with exact and with generous look-ups."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.ivm.world import SparkEngine
from tests.slt.runner import SltCase, parse_file, run_case

CASES = [
    pytest.param(case, id=f"{path.stem}: {case.title}")
    for path in sorted(Path(__file__).parent.glob("*.slt"))
    for case in parse_file(path)
]


@pytest.mark.spark
@pytest.mark.parametrize("case", CASES)
def test_epochs(case: SltCase, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    for generous in (False, True):
        for number, (epoch, answer) in enumerate(
            run_case(case, SparkEngine(spark), generous=generous)
        ):
            assert answer == epoch.expected, f"epoch {number + 1}, generous={generous}"
