"""What `verify` says where a batch query fails: a block, and the other views are compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.admin.verify import verify
from mview.cli.render import verified_text
from mview.schema import Column, TableSchema
from mview.store.mirror import KIND
from tests.epoch.epochs import Epochs
from tests.relations import rel

pytestmark = [pytest.mark.spark]

SCHEMAS = {
    "shop.sums": TableSchema(
        (Column("id", pa.int64(), nullable=False), Column("v", pa.int64())), ("id",)
    )
}
VIEWS = {
    "shares": "select id, 100 / v as share from shop.sums",
    "total": "select sum(v) as total from shop.sums",
    "keys": "select id from shop.sums",
}


def test_the_error_of_a_batch_query_is_a_block(tmp_path: Path, spark: SparkSession) -> None:
    world = Epochs(tmp_path, spark, SCHEMAS, VIEWS)
    world.seed()
    with world.opened():
        world.epoch(("sums", "insert", None, {"id": 1, "v": 2**63 - 1}))
        assert not world.build()
        engine, name = world.engine, "shop.sums"
        # Rows that no view has seen: by them the batch queries fail now.
        state = engine.manifest.tables[rel(name)]
        rows = pa.table({KIND: ["+I", "+I"], "id": [2, 3], "v": [0, 1]})
        version = engine.relations[rel(name)].mirror.append(engine.manifest.epoch + 1, rows)
        tables = {**engine.manifest.tables, name: replace(state, changelog_version=version, rows=3)}
        engine.commit(engine.next_manifest(tables=tables), {})
    results = verify(world.config, world.definitions)
    assert [result.equal for result in results] == [False] * 3
    shares, total, keys = (verified_text([result]) for result in results)
    assert "shares: NOT COMPARED" in shares
    assert "the batch query of view shares fails on the data: DIVIDE_BY_ZERO" in shares
    assert "ARITHMETIC_OVERFLOW" in total
    assert "next:" in total
    assert keys.count("missing in the sink") == 2
