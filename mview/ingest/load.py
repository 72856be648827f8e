"""One life of the load query: start it, hand its batches to the epoch, stop it between two.

It is a streaming query of Spark with a stateful operator, and its checkpoint counts: the chunks
that were read and the merge's state are in it. What follows the changes afterwards is ingest/live.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mview.errors import RetryableError
from mview.ingest.batches import Batch, OnBatch, batch_offsets, sorted_rows
from mview.ingest.sources import CHANGELOG, SNAPSHOT
from mview.ingest.spec import QuerySpec
from mview.merge.rules import LoadingTable
from mview.merge.stateful import merge_stream
from mview.session.spark_errors import SPARK_ERRORS, translate_failure


class _StoppingError(Exception):
    """Raised in a batch that must not be committed because the query is being stopped."""


class LoadQuery:
    """A streaming query whose batches are epochs: chunks and changes, merged.

    Args:
        spec: what to read.
        folder: the query's folder: spec and checkpoint live in it.
        loading: the tables that are being loaded.
        on_batch: takes a batch; its return makes Spark commit the batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        spec: QuerySpec,
        folder: Path,
        loading: Sequence[LoadingTable],
        on_batch: OnBatch,
    ) -> None:
        self._spark, self._spec, self._folder = spark, spec, folder
        self._loading, self._on_batch = loading, on_batch
        self._lock = threading.Lock()
        self._stopping = False
        self._error: BaseException | None = None

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint folder of this query."""
        return self._folder / "checkpoint"

    def run(self, until: Callable[[], bool]) -> None:
        """Run until `until()` is true, or an epoch fails.

        The running epoch is always finished or given up whole: `until` is looked at between epochs.

        Raises:
            MviewError: what an epoch or a source raised.
        """
        try:
            query = self._start(self._spec.write(self._folder / "spec.json"))
        except SPARK_ERRORS as error:
            raise translate_failure(str(error)) from error
        done = False
        try:
            while query.isActive and not (done := until()):
                query.awaitTermination(0.1)  # type: ignore[arg-type]  # seconds; the stub says int
        except SPARK_ERRORS:
            pass  # looked at below: our own error, if there is one, says more
        finally:
            with self._lock:
                self._stopping = True
                failure = query.exception()
            # Outside the lock: stopping waits for a batch that has just begun, and that one for
            # the lock, to see that it must not run.
            query.stop()
        if self._error is not None:
            raise self._error
        if failure is not None:
            raise translate_failure(str(failure))
        if not done and not until():
            raise RetryableError(
                "the query that loads was ended by somebody else",
                got="Spark says neither that it failed nor why it stopped",
                safe="published epochs are untouched; the load goes on where it was",
                hint="run the same command again; leave the queries of this session to mview",
            )

    def _start(self, spec: str) -> StreamingQuery:
        def stream(source: str) -> DataFrame:
            reader = self._spark.readStream.format(source)
            return reader.option("spec", spec).load()

        merged = merge_stream(stream(SNAPSHOT).unionByName(stream(CHANGELOG)), self._loading)
        writer = merged.writeStream.foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.queryName(f"mview load {self._spec.generation}").start()

    def _batch(self, frame: DataFrame, batch: int) -> None:
        with self._lock:
            if self._stopping:
                raise _StoppingError
            try:
                offsets = batch_offsets(self.checkpoint, batch)
                changes, releases, halts, rejects = sorted_rows(frame.toArrow())
                number = self._spec.generation, batch
                self._on_batch(
                    Batch(changes, releases, offsets, *number, halts=halts, rejects=rejects)
                )
            except BaseException as error:
                # Spark would flatten it to text: keep the object for the main thread.
                if not isinstance(error, SPARK_ERRORS):
                    self._error = error
                self._stopping = True
                raise
