"""Keeps a JVM for drivers that come and go: `python -m tests.chaos.keeper FOLDER`.

Prints where it is. For every line that it gets it ends what the last driver has left behind, and
says so; at the end of its input the JVM ends.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from mview.config.file import load_config
from mview.session.spark import spark_session
from tests.patience import Patience

#: Seconds in which what a dead driver has asked for ends.
_FORGET_S = 120

#: Milliseconds that a query may take to end.
_STOP_MS = "20000"


def main(folder: Path) -> None:
    config = load_config(folder / "mview.yml")
    session = spark_session(config)
    session.conf.set("spark.sql.streaming.stopTimeout", _STOP_MS)
    parameters = SparkContext._gateway.java_parameters
    place = {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
    }
    own = connections(session)
    print(json.dumps(place), flush=True)
    for _ in sys.stdin:
        forget(session, own)
        print("done", flush=True)
    session.stop()
    # The JVM ends with its input; it may have something to write.
    jvm = SparkContext._gateway.proc
    jvm.stdin.close()
    jvm.wait()


def forget(session: SparkSession, own: int) -> None:
    """End and forget all that is as if the JVM were a new one.

    What the dead driver has asked for last goes on in the JVM, and may begin more: only when its
    connections are gone nothing of it can reach the next driver.

    Args:
        session: of the JVM.
        own: connections of this process.
    """
    patience = Patience(_FORGET_S)
    while True:
        for query in session.streams.active:
            with suppress(Exception):  # it fails at the driver that is gone
                query.stop()
        session.sparkContext.cancelAllJobs()
        if connections(session) <= own:
            break
        if patience.is_over():
            raise RuntimeError("what a dead driver has asked for does not end")
        time.sleep(0.02)
    session.catalog.clearCache()
    getattr(session.sparkContext._jvm, "org.apache.spark.sql.delta.DeltaLog").clearCache()


def connections(session: SparkSession) -> int:
    """Threads of the JVM that serve a Python process, or do what one has asked for."""
    management = session.sparkContext._jvm.java.lang.management.ManagementFactory
    threads = management.getThreadMXBean().dumpAllThreads(False, False)
    stacks = [thread.getStackTrace() for thread in threads if thread is not None]
    # The frame above the thread's own says what the thread is for.
    return sum(
        len(stack) > 1 and stack[len(stack) - 2].getClassName() == "py4j.ClientServerConnection"
        for stack in stacks
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
