"""Spark of one run: it starts when it is first needed, or beside what does not need it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark import SparkContext
from pyspark.sql import SparkSession

from mview.config import Config
from mview.errors import MviewError
from mview.session.jvm import jvm_errors
from mview.session.spark import cores_of, spark_session


class Spark:
    """The Spark session of a run, which may not be there yet; for any thread.

    One that cannot start is not tried again in the same run: whoever needs it is told the same.

    Args:
        start: makes the session.
        say: is told when it starts, and when it could not be started beside the run.
        slots: the tasks that it runs at once; None: only it knows.
        is_ours: whether its settings are those of the configuration alone.
    """

    def __init__(
        self,
        start: Callable[[], SparkSession],
        say: Callable[[str], None] = lambda _: None,
        *,
        slots: int | None = None,
        is_ours: bool = True,
    ) -> None:
        self._start, self._say, self._slots, self.is_ours = start, say, slots, is_ours
        self._lock = threading.RLock()
        self._running: SparkSession | None = None
        self._error: Exception | None = None
        self._prepare: list[Callable[[SparkSession], None]] = []
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, session: SparkSession) -> Spark:
        """One that runs already, with whatever settings."""
        spark = cls(lambda: session, is_ours=False)
        spark.session()
        return spark

    @classmethod
    def of_config(cls, config: Config, say: Callable[[str], None]) -> Spark:
        """One that starts when it is needed; that of this process is taken where there is one."""
        if SparkContext._active_spark_context is not None:
            return cls.of(spark_session(config))

        def start() -> SparkSession:
            say("starting Spark")
            return spark_session(config)

        return cls(start, say, slots=cores_of(config))

    def beside(self) -> Spark:
        """The same Spark with a session of its own, by the settings and functions of this one.

        What it names a temporary view, nobody else sees.
        """

        def start() -> SparkSession:
            session = self.session()
            return SparkSession(session.sparkContext, session._jsparkSession.cloneSession())

        return Spark(start, self._say, slots=self._slots, is_ours=self.is_ours)

    @property
    def running(self) -> SparkSession | None:
        """The session, if it has started."""
        return self._running

    def is_to_blame(self, error: Exception) -> bool:
        """Whether an error says that it could not start, or it has ended by now."""
        if error is self._error:
            return True
        if self._running is None:
            return False
        try:
            return bool(self._running.sparkContext._jsc.sc().isStopped())
        except Exception:
            return True  # a JVM that is gone does not answer

    @property
    def slots(self) -> int:
        """The tasks that run at once; of a cluster only its session knows."""
        if self._slots is None:
            self._slots = max(1, self.session().sparkContext.defaultParallelism)
        return self._slots

    def session(self) -> SparkSession:
        """The session; starts it, or waits until it has started.

        Raises:
            MviewError: it cannot start, see `spark_session`; or its JVM has ended meanwhile.
        """
        if self._running is not None:
            return self._running
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._running is None:
                try:
                    with jvm_errors():
                        session = self._start()
                        for prepare in self._prepare:
                            prepare(session)
                except Exception as error:
                    self._error = error
                    raise
                self._running = session
            return self._running

    def once_started(self, prepare: Callable[[SparkSession], None]) -> None:
        """Have something done with the session before anybody uses it: now, if it runs."""
        with self._lock:
            if self._running is not None:
                prepare(self._running)
            else:
                self._prepare.append(prepare)

    def begin(self) -> None:
        """Start it beside the caller, if nobody has; what fails is told, and to who needs it."""
        if self._running is None and self._error is None and self._thread is None:
            self._thread = threading.Thread(target=self._beside, name="mview-spark", daemon=True)
            self._thread.start()

    def _beside(self) -> None:
        try:
            self.session()
        except Exception as error:
            told = error.render() if isinstance(error, MviewError) else error
            self._say(
                "views in process go on without Spark; the run ends where a view needs it. "
                f"Why it is not there: {told}"
            )

    def settle(self) -> None:
        """Wait for a start beside the caller: the session stays, for others of this process."""
        if self._thread is not None:
            self._thread.join()
