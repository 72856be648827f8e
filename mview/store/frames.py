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

#: The last epoch in which a key changed. No mirror has such a column.
_LAST = "__mark"


def mirror_dataframe(spark: SparkSession, mirror: Mirror, state: TableState) -> DataFrame:
    """The rows of a table at an epoch, without the numbers of rows that have no key.

    Reads the Parquet files that the Delta versions name: no log replay per query. The tail is small
    beside the base (compaction bounds it): one shuffle of its keys finds the last epoch of each,
    which is broadcast to the base and to the tail itself. A tail of a tenth of the rows may make a
    query half as dear again; to find the last row of each key, and not only its epoch, more so.
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
    key, names = list(mirror.schema.key), list(mirror.schema.names)
    tail = tail.where(F.col(EPOCH) > state.folded)
    keys = [_column(name).alias(f"__key_{name}") for name in key]
    last = F.broadcast(tail.groupBy(*keys).agg(F.max(EPOCH).alias(_LAST)))
    same = [_equals(mirror, name) for name in key]
    kept = base.join(last, on=same, how="left_anti")
    # As every change of a row carries the row before, the last epoch of a key decides alone.
    newest = [*same, F.col(EPOCH) == F.col(_LAST)]
    come = tail.where(F.substring(KIND, 1, 1) == "+").join(last, on=newest, how="left_semi")
    return kept.select(*map(_column, names)).unionByName(come.select(*map(_column, names)))


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
