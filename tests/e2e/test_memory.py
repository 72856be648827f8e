"""Memory of a whole `mview run` with Spark: the driver stays within a tiny budget."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.memory import measured

MEMORY = 32 << 20

#: What is not rows: DuckDB's least, 64 MB, and what Python, Arrow and Spark's client keep.
BESIDE = 96 << 20


@pytest.mark.long(days=1)
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak")
def test_the_driver_of_a_run_stays_within(tmp_path: Path) -> None:
    """Of 90 MB in rows of 900 kB, 60 change at once; then half of them go, by messages of 70 bytes.

    Tails and files are larger than their shares from the third row on. Where an epoch was bounded
    by its messages alone, the driver grew by 395 MB.
    """
    _, peaks = measured(tmp_path, MEMORY, rows=400, changes=60, width=900_000, bursts=1)
    grown = {phase: peak.driver for phase, peak in peaks.items()}
    assert max(grown.values()) < MEMORY + BESIDE, grown
