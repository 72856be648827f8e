"""One life of a streaming query: start it, hand its batches to the epoch, stop it between two."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mview.errors import MviewError, RetryableError
from mview.merge.rules import LoadingTable
from mview.merge.stateful import merge_stream
from mview.runtime.offsets import BatchOffsets, batch_offsets
from mview.runtime.sources import CHANGELOG, SNAPSHOT, ChangelogReader
from mview.runtime.spec import QuerySpec
from mview.runtime.workers import WakefulWorkers

#: Handles one batch: rows (STREAM_ARROW), end offsets, batch number. Returns when it is published;
#: never runs twice at once.
OnBatch = Callable[[pa.Table, BatchOffsets, int], None]


#: Spark's words for it.
_NO_WORKER = "Python worker failed to connect back"


class WorkerStartError(RetryableError):
    """Spark waits ten seconds for a Python worker to start, which no setting changes."""


class _StoppingError(Exception):
    """Raised in a batch that must not be committed because the query is being stopped."""


class EpochQuery:
    """A streaming query whose batches are epochs.

    Args:
        spark: the session.
        spec: what to read.
        folder: the query's folder: spec and checkpoint live in it.
        loading: the tables that are being loaded; none: the live query.
        on_batch: takes a batch. While tables are loaded its return makes Spark commit the batch;
            else Spark goes on at once, by one batch at the most.
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
        # Spark reads the next batch while the epoch of this one runs. Only where Spark's own notes
        # do not count: a live query always starts from the manifest.
        self._beside = None if loading else ThreadPoolExecutor(1, "mview-epoch")
        self._running: Future[None] | None = None
        # And the few changes that one task would read are read here, without a Spark job: it takes
        # longer to start a task than to read them.
        self._here = None if loading else ChangelogReader(str(self._spec_file))
        self._read_to: dict[str, Any] = {}

    @property
    def _spec_file(self) -> Path:
        return self._folder / "spec.json"

    @property
    def _is_endless(self) -> bool:
        return not self._loading and not self._spec.once

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint folder of this query."""
        return self._folder / "checkpoint"

    def run(self, until: Callable[[], bool]) -> None:
        """Run until `until()` is true, all is read (bounded), or an epoch fails.

        The running epoch is always finished or given up whole: `until` is looked at between epochs.

        Raises:
            MviewError: what an epoch or a source raised.
        """
        self._spec.write(self._spec_file)
        query = self._start("load" if self._loading else "live")
        workers = WakefulWorkers(self._spark, str(self._spec_file)) if self._is_endless else None
        if workers is not None:
            workers.start()
        try:
            while query.isActive and not self._failed() and not until():
                query.awaitTermination(0.1)  # type: ignore[arg-type]  # seconds; the stub says int
        except PySparkException:
            pass  # looked at below: our own error, if there is one, says more
        finally:
            with self._lock:
                self._stopping = True
                failure = query.exception()
            if workers is not None:
                workers.stop()
            # Outside the lock: stopping waits for a batch that has just begun, and that one for
            # the lock, to see that it must not run.
            query.stop()
            self._finish_last()
        if self._error is not None:
            raise self._error
        if failure is not None:
            raise translate_failure(str(failure))

    def _start(self, mode: Literal["load", "live"]) -> StreamingQuery:
        def stream(source: str) -> DataFrame:
            reader = self._spark.readStream.format(source)
            return reader.option("spec", str(self._spec_file)).load()

        frame = stream(CHANGELOG)
        if mode == "load":
            frame = merge_stream(stream(SNAPSHOT).unionByName(frame), self._loading)
        writer = (
            frame.writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", str(self.checkpoint))
            .queryName(f"mview {mode} {self._spec.generation}")
        )
        if mode == "live" and self._spec.once:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _batch(self, frame: DataFrame, batch: int) -> None:
        with self._lock:
            if self._stopping:
                raise _StoppingError
            try:
                offsets = batch_offsets(self.checkpoint, batch)
                rows = self._rows(frame, offsets)
                if self._beside is None:
                    self._on_batch(rows, offsets, batch)
                else:
                    self._join()
                    self._running = self._beside.submit(self._on_batch, rows, offsets, batch)
            except BaseException as error:
                # Spark would flatten it to text: keep the object for the main thread.
                if not isinstance(error, PySparkException):
                    self._error = error
                self._stopping = True
                raise

    def _rows(self, frame: DataFrame, offsets: BatchOffsets) -> pa.Table:
        if self._here is None:
            return frame.toArrow()
        start = self._read_to or self._here.initialOffset()
        end = {"connections": offsets.connections, "watermark": offsets.watermark}
        self._read_to = end
        rows = self._here.read_here(start, end)
        return frame.toArrow() if rows is None else rows

    # --- the epoch that runs beside --------------------------------------------------------------

    def _join(self) -> None:
        """Wait for the epoch that runs beside; raises what it raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def _failed(self) -> bool:
        running = self._running
        return running is not None and running.done() and running.exception() is not None

    def _finish_last(self) -> None:
        try:
            self._join()
        except PySparkException as error:
            self._error = self._error or translate_failure(str(error))
        except BaseException as error:
            self._error = self._error or error
        finally:
            if self._beside is not None:
                self._beside.shutdown()
            if self._here is not None:
                self._here.stop()


def translate_failure(text: str) -> MviewError:
    """An error that came through Spark as text: the block our own worker printed, or the head."""
    marker = "mview.errors."
    if marker in text:
        name, _, rest = text.split(marker, 1)[1].partition(": ")
        kind = getattr(__import__("mview.errors", fromlist=[name]), name.strip(), RetryableError)
        lines = rest.partition(" SQLSTATE:")[0].splitlines()
        block = [lines[0]]
        fields: dict[str, str] = {}
        labels = {
            "where": "where",
            "got": "got",
            "allowed": "allowed",
            "data": "safe",
            "next": "hint",
        }
        for line in lines[1:]:
            label, separator, value = line.strip().partition(":")
            if not separator or label not in labels or not line.startswith("  "):
                break
            fields[labels[label]] = value.strip()
        error: MviewError = kind(block[0], **fields)
        return error
    if _NO_WORKER in text:
        return WorkerStartError(
            "a Python worker of Spark did not start in time",
            safe="published epochs are untouched; the failed one was not published",
            hint="the machine is overloaded, or out of memory: run the same command again",
        )
    return RetryableError(
        "the streaming query failed",
        got=text[:2000],
        safe="published epochs are untouched; the failed one was not published",
        hint="run the same command again; add --debug for Spark's own words",
    )
