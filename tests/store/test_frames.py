from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mview.schema import Column, TableSchema, parse_type
from mview.store.frames import mirror_dataframe
from mview.store.mirror import Mirror
from tests.store.mirrors import MirrorDriver, delta_of

pytestmark = pytest.mark.spark


def test_the_same_rows_as_a_scan(spark: SparkSession, tmp_path: Path) -> None:
    # Names that would be patterns to Spark.
    driver = MirrorDriver(tmp_path / "m [x] {o} #*?é%20", 11)
    empty = mirror_dataframe(spark, driver.mirror, driver.state)
    assert empty.count() == 0
    for _ in range(8):
        driver.publish(driver.epoch_once(15))
    driver.compact()
    for _ in range(4):
        driver.publish(driver.epoch_once(15))
    for epoch in (2, 8, driver.epoch):
        state, rows = driver.history[epoch]
        frame = mirror_dataframe(spark, driver.mirror, state)
        assert frame.columns == list(driver.mirror.schema.names)
        assert Counter(map(tuple, frame.collect())) == Counter(rows), f"epoch {epoch}"


def test_keys_that_are_null(spark: SparkSession, tmp_path: Path) -> None:
    """The state of an aggregate is keyed by group, and a group may be NULL or NaN."""
    columns = (Column("g", parse_type("string")), Column("f", parse_type("double")))
    schema = TableSchema((*columns, Column("n", parse_type("bigint"))), ("g", "f"))
    mirror = Mirror(tmp_path / "m", schema)
    state = mirror.create()
    nan = float("nan")
    first = [("+I", (None, None, 1)), ("+I", (None, nan, 1)), ("+I", ("a", 0.0, 1))]
    state = replace(state, changelog_version=mirror.append(1, delta_of(first, schema)))
    base, folded = mirror.compact(state)
    state = replace(state, base_version=base, folded=folded)
    second = [
        *(("-U", row) for _, row in first),
        *(("+U", (*row[:2], 2)) for _, row in first[:2]),
        ("+U", ("a", -0.0, 2)),
    ]
    state = replace(state, changelog_version=mirror.append(2, delta_of(second, schema)))
    assert sorted(mirror.scan(state)["n"].to_pylist()) == [2, 2, 2]
    frame = mirror_dataframe(spark, mirror, state)
    assert sorted(row["n"] for row in frame.collect()) == [2, 2, 2]


def test_a_correlated_subquery_beside_a_tail(spark: SparkSession, tmp_path: Path) -> None:
    """The rows of a mirror with a tail are a union, over which an optimizer's rule of Spark fails.

    Without the rule, what is not selected is not read all the same.
    """
    schema = TableSchema(tuple(Column(n, parse_type("bigint")) for n in ("id", "k", "n")), ("id",))
    mirror = Mirror(tmp_path / "m", schema)
    state = mirror.create()
    first = [("+I", (1, 7, 1)), ("+I", (2, 8, 1))]
    state = replace(state, changelog_version=mirror.append(1, delta_of(first, schema)))
    base, folded = mirror.compact(state)
    state = replace(state, base_version=base, folded=folded)
    second = [("+I", (3, 7, 1)), ("+I", (4, None, 1))]
    state = replace(state, changelog_version=mirror.append(2, delta_of(second, schema)))
    mirror_dataframe(spark, mirror, state).createOrReplaceTempView("rows")
    others = "select count(*) from rows o where o.k = rows.k and o.id <> rows.id"
    found = spark.sql(f"select id, ({others}) as others from rows")
    assert sorted(map(tuple, found.collect())) == [(1, 1), (2, 0), (3, 1), (4, 0)]
    plan = spark.sql("select id + 1 as more from rows")._jdf.queryExecution().toString()
    read = re.findall("ReadSchema: (.*)", plan)
    assert len(read) > 1
    assert not [columns for columns in read if "k:" in columns or "n:" in columns]
