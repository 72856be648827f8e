"""Mirrors as Spark DataFrames: the only file of the store that imports Spark."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mview.schema import quoted, type_name
from mview.store.manifest import TableState
from mview.store.mirror import EPOCH, KIND, ROW, Mirror

#: What has a meaning in a pattern of Hadoop.
_PATTERN = re.compile(r"[\[\]{}*?\\]")


def mirror_dataframe(spark: SparkSession, mirror: Mirror, state: TableState) -> DataFrame:
    """The rows of a table at an epoch, without the numbers of rows that have no key.

    Reads the Parquet files that the Delta versions name: no log replay per query. The tail is small
    (compaction bounds it): one small shuffle finds the last change per key, and its keys are
    broadcast to the base.
    """
    return _rows(spark, mirror, state).drop(ROW)


def _rows(spark: SparkSession, mirror: Mirror, state: TableState) -> DataFrame:
    files = mirror.files(state)
    base = _read(spark, mirror, [path for path, _ in files.base])
    if not files.tail:
        return base
    tail = _read(
        spark, mirror, [path for path, _ in files.tail], f"{EPOCH} bigint, {KIND} string, "
    )
    later = F.col(EPOCH) > state.folded
    key, names = list(mirror.schema.key), list(mirror.schema.names)
    positive = F.substring(F.col(KIND), 1, 1) == "+"
    # An update has -U and +U in one epoch: the row is there afterwards, so + comes last.
    order = F.struct(F.col(EPOCH), positive)
    content = F.struct(positive.alias(KIND), *map(_column, names))
    last = tail.where(later).groupBy(*map(_column, key)).agg(F.max_by(content, order).alias("last"))
    keys = F.broadcast(last.select(*(_column(name).alias(f"__key_{name}") for name in key)))
    same = [_equals(mirror, name) for name in key]
    kept = base.join(keys, on=same, how="left_anti")
    rows = last.where(F.col(f"last.{KIND}")).select("last.*").drop(KIND)
    return kept.select(*map(_column, names)).unionByName(rows.select(*map(_column, names)))


def _equals(mirror: Mirror, name: str) -> Column:
    ours, theirs = _column(name), _column(f"__key_{name}")
    # Group keys of an aggregate's state may be NULL; primary keys are not, and join faster by `=`.
    nullable = mirror.schema.column(name).nullable
    return ours.eqNullSafe(theirs) if nullable else ours == theirs


def _read(spark: SparkSession, mirror: Mirror, paths: Sequence[str], meta: str = "") -> DataFrame:
    ddl = meta + ", ".join(f"{quoted(c.name)} {type_name(c.type)}" for c in mirror.schema.columns)
    return read_files(spark, paths, ddl) if paths else spark.createDataFrame([], ddl)


def read_files(spark: SparkSession, paths: Sequence[str], ddl: str | None = None) -> DataFrame:
    """Parquet files, or a folder of them; in their names, `[`, `{` and `*` are letters.

    Args:
        paths: files, or a folder.
        ddl: the columns; None: those of the files.
    """
    # Spark takes paths for patterns: some would match nothing, or the files of others.
    literal = [_PATTERN.sub(r"\\\g<0>", path) for path in paths]
    return (spark.read if ddl is None else spark.read.schema(ddl)).parquet(*literal)


def _column(name: str) -> Column:
    return F.col(quoted(name))
