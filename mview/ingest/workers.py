"""Python workers of Spark that are there before a burst of changes needs them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import SparkSession

from mview.ingest.spec import open_changelog, open_format, read_spec
from mview.session.worker import settle_worker

#: Spark ends workers that had nothing to do for a minute; a new one takes 3 s to start and import.
_AWAKE_S = 45.0


class WakefulWorkers:
    """Gives every core's worker something to do, now and then, in a thread of its own.

    Args:
        spark: the session.
        spec: of the query whose changes the workers will read.
    """

    def __init__(self, spark: SparkSession, spec: str) -> None:
        self._spark, self._spec = spark, spec
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="mview-workers", daemon=True)

    def start(self) -> None:
        """Begin; the workers start at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; waits for a task that runs."""
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        spec, cores = self._spec, self._spark.sparkContext.defaultParallelism

        def wake(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import_readers(spec)
            yield from batches

        while not self._ended.is_set():
            # A worker that cannot start fails the batch that needs it, with a better message.
            with suppress(PySparkException, Py4JError, OSError):
                woken = self._spark.range(cores, numPartitions=cores).mapInArrow(wake, "id long")
                woken.write.format("noop").mode("overwrite").save()
            self._ended.wait(_AWAKE_S)


def import_readers(spec: str) -> None:
    """Import in this worker what reading changes takes."""
    query, config = read_spec(spec)
    for name in query.start:
        open_format(config, name)
        open_changelog(config, name, []).close()
    settle_worker()
