"""Tables of Iceberg sinks as DuckDB reads them, from their metadata files and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError

from mview.follower import FollowerTarget
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import World
from mview.testing.view import Row
from tests.connectors.test_followers_iceberg import IcebergHarness
from tests.services.duckdb_reader import DuckdbReader

pytestmark = pytest.mark.service


class DuckdbHarness(IcebergHarness):
    """A folder, read by DuckDB."""

    def __init__(self, folder: Path, reader: DuckdbReader, **options: Any) -> None:
        super().__init__(folder, **options)
        self._reader = reader

    def read(self, target: FollowerTarget) -> list[Row] | None:
        try:
            location = self.table(target).metadata_location
        except NoSuchTableError:
            return None
        return self._reader.read(location, target.schema.names)


@pytest.mark.long
class TestIcebergReadByDuckdb(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture(params=["", "bucket(3, k)"], ids=["whole", "in-partitions"])
    def harness(
        self, tmp_path: Path, duckdb_reader: DuckdbReader, request: pytest.FixtureRequest
    ) -> FollowerHarness:
        return DuckdbHarness(tmp_path / "warehouse", duckdb_reader, partition=request.param)


def test_rows_that_were_deleted_by_position_are_gone_for_duckdb(
    tmp_path: Path, duckdb_reader: DuckdbReader
) -> None:
    harness = DuckdbHarness(tmp_path / "warehouse", duckdb_reader, partition="bucket(2, k)")
    world = World(harness, tmp_path)
    world.view.publish([world.row(n) for n in range(300)])
    world.sync()
    for at in range(6):
        world.view.publish([world.row(at * 7, f"{at}"), world.row(1000 + at)], [(at * 7 + 1,)])
        world.sync()
        world.check()
    files = harness.table(world.target()).inspect.files()
    assert files["content"].to_pylist().count(1) >= 6
    world.faulty.maintain(thorough=True)
    world.check()
    world.close()
