"""Workers of Spark that are there before a burst of changes needs them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.base import PySparkException

from mview.ingest.changelogs import import_readers
from mview.session.lazy import Spark

#: Spark ends workers that had nothing to do for a minute; a new one takes 3 s to start and import.
_AWAKE_S = 45.0


class WakefulWorkers:
    """Gives every core's worker something to do, now and then, in a thread of its own.

    Args:
        spark: is started for it, where nobody has.
        spec: of the query whose changes the workers will read.
        begin: set when there is time for that: a start takes longer than an epoch.
    """

    def __init__(self, spark: Spark, spec: str, begin: threading.Event) -> None:
        self._spark, self._spec, self._begin = spark, spec, begin
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="mview-workers", daemon=True)

    def start(self) -> None:
        """Begin; the workers start when there is time."""
        self._thread.start()

    def stop(self) -> None:
        """End; waits for a task that runs, or a start."""
        self._ended.set()
        self._begin.set()
        self._thread.join()

    def _keep(self) -> None:
        self._begin.wait()
        if not self._ended.is_set():
            self._spark.begin()
            self._spark.settle()
        if (spark := self._spark.running) is None:
            return
        spec, cores = self._spec, self._spark.slots

        def wake(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import_readers(spec)
            yield from batches

        while not self._ended.is_set():
            # A worker that cannot start fails the batch that needs it, with a better message.
            with suppress(PySparkException, Py4JError, OSError):
                woken = spark.range(cores, numPartitions=cores).mapInArrow(wake, "id long")
                woken.write.format("noop").mode("overwrite").save()
            self._ended.wait(_AWAKE_S)
