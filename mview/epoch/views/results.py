"""The result of a batch query, in parts: at once where it is small, else through files."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from mview.delta.parquet import read_parquet
from mview.store.manifest import TableState
from mview.store.mirror import Mirror

#: Rows of a file that is read whole, when a result comes through files.
_FILE_ROWS = 32_768


def is_small(inputs: Iterable[tuple[Mirror, TableState]], most: int) -> bool:
    """Whether the rows that a query reads have at most so many bytes: then so has its result.

    A product of tables may be larger than they are; it is then its own bound.
    """
    return sum(mirror.nbytes(state) for mirror, state in inputs) <= most


def result_parts(
    frame: DataFrame, schema: pa.Schema, folder: Path, small: bool
) -> Iterator[pa.Table]:
    """The rows of a query, in no order.

    Args:
        frame: the query.
        schema: its columns as they are to be typed.
        folder: for files of a large result, where executors can write; it is gone afterwards.
        small: the result may be held at once.
    """
    if small:
        yield frame.toArrow().cast(schema)
        return
    # What Parquet would hold as INT96 otherwise.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        writer = frame.write.mode("overwrite").option("maxRecordsPerFile", _FILE_ROWS)
        writer.parquet(str(folder))
        for file in sorted(folder.glob("*.parquet")):
            yield read_parquet(file, schema)
            file.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
