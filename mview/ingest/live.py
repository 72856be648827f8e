"""Following the changes when nothing is being loaded: batches without a streaming query.

There is no state to keep and the manifest says where to go on, so Spark's checkpoint would only
cost: planning and logging a micro-batch took 0.27 of a core at five epochs per second (measured),
and most of the time that a change waited. Few changes are read where the epoch runs, many by tasks
of Spark, if it is there: nothing waits for its start.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.base import PySparkException

from mview.changelog import STREAM_DDL
from mview.errors import (
    AwayError,
    DataLostError,
    MviewError,
    RetryableError,
    UserError,
    of_the_system,
)
from mview.files.records import fields
from mview.ingest.batches import CHANGES, Batch, BatchOffsets, OnBatch, Sorted, sorted_rows
from mview.ingest.changelogs import Changelogs, Piece, marks_of
from mview.ingest.mending.rereads import Rereads
from mview.ingest.rhythm import Rhythm
from mview.ingest.spec import QuerySpec, open_changelog, open_format, read_spec
from mview.session.lazy import Spark
from mview.session.spark_errors import SPARK_ERRORS, translate_failure
from mview.session.worker import settle_worker, settled, short_turns, without_collections
from mview.store.quarantine import MendLog

#: Spark ends workers that had nothing to do for a minute; a new one takes 3 s to start and import.
_AWAKE_S = 45.0

#: Messages that are read beside a running epoch; fewer would only wait for it.
WORTH_READING_BESIDE = 5_000

#: Messages that are read here at once, where more wait: enough that what an epoch costs whatever it
#: has is little of it, few enough that its reading and the epoch before go side by side.
ENOUGH = 40_000

#: Messages that pay for jobs of Spark: these cost half as much CPU again, which pays where there
#: are many cores, or the format is a slow one, and where it is no matter of a second or two.
WORTH_A_JOB = 200_000

#: Messages that pay for a start of Spark: it costs as much CPU as to decode so many.
_WORTH_A_START = 500_000


class LiveQuery:
    """Hands the changes to epochs, batch by batch; many are read while the last epoch runs.

    Args:
        spec: what to read.
        folder: the query's folder: its spec lives in it.
        on_batch: takes a batch, in a thread of its own.
        most: tells how many changes a batch may have at this time.
        rereads: folder of the requests to read chunks anew.
        say: is told of their progress.
        mends: folder of the requests about changes in quarantine.
    """

    def __init__(
        self,
        spark: Spark,
        spec: QuerySpec,
        folder: Path,
        on_batch: OnBatch,
        most: Callable[[], int] = lambda: sys.maxsize,
        rereads: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
        mends: Path | None = None,
    ) -> None:
        self._spark, self._spec, self._on_batch, self._most = spark, spec, on_batch, most
        self._spec_file = folder / "spec.json"
        self._rereads, self._say = rereads or folder / "rereads", say
        self._mends = MendLog(mends or folder / "mends")
        self._caught_up = threading.Event()

    def run(self, until: Callable[[], bool]) -> None:
        """Run until `until()` is true, all is read (bounded), or an epoch fails.

        The running epoch is always finished or given up whole: `until` is looked at between epochs.

        Raises:
            MviewError: what an epoch or a source raised.
        """
        spec = self._spec.write(self._spec_file)
        with short_turns(), settled(), self._workers(spec), Epochs(self._on_batch) as epochs:
            logs = Changelogs(spec)
            rereads = Rereads(self._spec, self._rereads, self._say, self._mends)
            try:
                self._follow(logs, rereads, epochs, until)
            finally:
                rereads.close()
                logs.close()

    @contextmanager
    def _workers(self, spec: str) -> Iterator[None]:
        """Workers for a burst of changes, once all that was there has been taken.

        A bounded run starts those that it needs.
        """
        if self._spec.once:
            yield
            return
        workers = WakefulWorkers(self._spark, spec, self._caught_up)
        workers.start()
        try:
            yield
        finally:
            workers.stop()

    def _follow(
        self, logs: Changelogs, rereads: Rereads, epochs: Epochs, until: Callable[[], bool]
    ) -> None:
        with _reading():
            at = logs.begin()
        rhythm = Rhythm()
        batch, ends = 0, False
        while not until():
            with _reading():
                mends = self._mends.of(self._spec.tables)
                rereads.read_again({m.table for m in mends.values() if m.action == "retry"})
            read: Sorted = Sorted({}, {}, {}, [])
            lost: AwayError | DataLostError | UserError | None = None
            try:
                with _reading():
                    rereads.look()
                    if self._spec.once and not ends and rereads.may_end():
                        logs.finish()
                        rereads.end()
                        ends = True
                end, pieces, by_tasks = self._next(logs, at, epochs, rhythm)
                if end != at:
                    rhythm.begin()
                    with _reading():
                        read = self._read(logs, pieces, by_tasks)
            except (AwayError, DataLostError, UserError) as error:
                if logs.goes_on(error):
                    continue
                if not mends:
                    raise
                # Of a source; and what is asked of the quarantine needs none.
                end, lost = at, error
            marks = marks_of(end["cuts"])
            if end != at or rereads.is_due(marks) or mends or rereads.halts:
                if end == at:
                    rhythm.begin()
                with _reading():
                    changes = rereads.without_snapshots(read.changes)
                    anew = rereads.step(changes, marks)
                    halts = {**read.halts, **rereads.halts}
                offsets = BatchOffsets(**fields(end, CHANGES), chunks={})
                number, wanted = (self._spec.generation, batch), [*mends.values()]
                epochs.begin(
                    Batch(changes, {}, offsets, *number, anew, halts, read.rejects, wanted)
                )
                at, batch = end, batch + 1
                if batch > 1 and not logs.backlog:
                    self._caught_up.set()
                if anew or mends or rereads.halts:
                    epochs.finish()
                    rereads.published()
                for file in mends:
                    file.unlink(missing_ok=True)
                if lost is not None:
                    raise lost
            elif ends:
                return
            else:
                epochs.check()
                if not epochs.running:
                    self._caught_up.set()

    def _next(
        self, logs: Changelogs, at: dict[str, Any], epochs: Epochs, rhythm: Rhythm
    ) -> tuple[dict[str, Any], list[Piece], bool]:
        """How far the next epoch goes, what it reads, and whether tasks of Spark do."""
        self._keep(rhythm)
        with _reading():
            end, pieces, by_tasks = self._planned(logs, at)
        if end == at or not epochs.running or _messages(pieces) > WORTH_READING_BESIDE:
            return end, pieces, by_tasks
        # Few changes would only wait for the running epoch: those that come meanwhile join them.
        epochs.finish()
        self._keep(rhythm)  # only now it is known what that one has cost
        with _reading():
            return self._planned(logs, at)

    def _planned(
        self, logs: Changelogs, at: dict[str, Any]
    ) -> tuple[dict[str, Any], list[Piece], bool]:
        """As `_next`, at this moment: a part of what waits, or as much as may be by tasks."""
        most = self._most()
        end = logs.advance(at, most, ENOUGH)
        pieces = logs.pieces(at, end) if end != at else []
        waiting = _messages(pieces) + logs.backlog
        if waiting > _WORTH_A_START:
            self._spark.begin()
        if waiting <= WORTH_A_JOB or self._spark.running is None:
            return end, pieces, False
        if logs.backlog:
            end = logs.advance(at, most)
            pieces = logs.pieces(at, end)
        return end, pieces, True

    def _keep(self, rhythm: Rhythm) -> None:
        if not self._spec.once:
            time.sleep(rhythm.left_s())

    def _read(self, logs: Changelogs, pieces: list[Piece], by_tasks: bool) -> Sorted:
        """Changes by table, the tables that halt, and what goes into quarantine."""
        spark = self._spark.running if by_tasks else None
        if spark is None:
            near = Sorted({}, {}, {}, [])
            for piece in pieces:
                for decoded in logs.changes(piece, near.halts, near.rejects):
                    near.changes.setdefault(decoded.table, []).append(decoded.changes)
            return near

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in (n for batch in numbers for n in batch["id"].to_pylist()):
                yield from logs.rows(pieces[number])
            settle_worker()

        tasks = spark.range(len(pieces), numPartitions=len(pieces))
        return sorted_rows(tasks.mapInArrow(read, STREAM_DDL).toArrow())


def _messages(pieces: list[Piece]) -> int:
    return sum(piece.messages for piece in pieces)


class Epochs:
    """Runs one epoch at a time, in a thread of its own.

    Args:
        on_batch: runs an epoch.
    """

    def __init__(self, on_batch: OnBatch) -> None:
        self._on_batch = on_batch
        self._thread = ThreadPoolExecutor(1, "mview-epoch")
        self._running: Future[None] | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Epochs:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Finish the running epoch; what it raises comes after what was raised before."""
        try:
            # A source is waited for: the next query goes on after the epoch that runs.
            if error is None or isinstance(error, AwayError):
                self.finish()
        finally:
            self._thread.shutdown()

    def begin(self, batch: Batch) -> None:
        """Begin an epoch, after the one before; raises what that one raised.

        None comes after one that failed, also where that was told before: its changes would be
        passed over.
        """
        self.finish()
        if self._failure is not None:
            raise self._failure
        self._running = self._thread.submit(self._on_batch, batch)

    def check(self) -> None:
        """Raise what an epoch raised that has ended."""
        if self._running is not None and self._running.done():
            self.finish()

    @property
    def running(self) -> bool:
        """Whether an epoch is running."""
        return self._running is not None and not self._running.done()

    def finish(self) -> None:
        """Wait for the epoch that runs; raises what it raised."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.result()
        except SPARK_ERRORS as error:
            self._failure = translate_failure(str(error))
            raise self._failure from error
        except BaseException as error:
            self._failure = error
            raise


@contextmanager
def _reading() -> Iterator[None]:
    """Errors of clients and of Spark as ours; and no collections, see there."""
    try:
        with without_collections():
            yield
    except MviewError:
        raise
    except SPARK_ERRORS as error:
        raise translate_failure(str(error)) from error
    except Exception as error:
        raise of_the_system(error) or RetryableError(
            "the changelogs cannot be read",
            got=f"{type(error).__name__}: {error}"[:2000],
            safe="published epochs are untouched",
            hint="run the same command again; add --debug for the place",
        ) from error


# --- workers that are there before a burst of changes needs them --------------------------------


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


def import_readers(spec: str) -> None:
    """Import in this worker what reading changes takes."""
    query = read_spec(spec)
    for name in query.start:
        open_format(query.config, name)
        open_changelog(query.config, name, []).close()
    settle_worker()
