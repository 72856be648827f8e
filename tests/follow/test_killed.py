"""Processes that follow a store are killed at any moment: readers see published epochs, whole.

For one sink; `python -m tests.chaos.sinks` does it for all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.sinks import Series
from tests.connectors.every_sink import places
from tests.seeds import daily

KILLS = 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Also beside maintenance, which takes turns with the process."""
    with places(tmp_path / "places", {}.__getitem__, ["sqlite"]) as there:
        series = Series(tmp_path, there, daily(77))
        series.run(KILLS)
    assert series.wrong == []
    assert series.counts["sqlite"].looks == KILLS + 1
    assert series.counts["sqlite"].epochs > 1
