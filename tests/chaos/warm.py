"""Processes that are real and cheap: forked with all modules, on a JVM that is there already.

A run that starts by itself needs ten seconds, one of these a tenth of a second: what is killed is a
whole driver process, but its JVM lives on. As a JVM ends with its driver, all that a dead driver
has left running in it is ended before the next one begins. Where the JVM is to be killed, too, it
is the driver's own (`cold`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.shop import Shop
from tests.patience import Patience

#: Seconds in which a process does what it has to do, on a quiet machine.
PATIENCE = 240

#: Starts processes that have imported all of this.
fork = multiprocessing.get_context("forkserver")
fork.set_forkserver_preload(
    [
        *("tests.e2e.program", "tests.follow.child", "tests.connectors.every_sink"),
        *("deltalake", "duckdb", "pandas", "psycopg", "pymysql", "confluent_kafka"),
    ]
)


@dataclass(frozen=True)
class Order:
    """What a process does.

    Attributes:
        folder: of the store and its configuration.
        action: see `tests.e2e.program`.
        ttl_ms: of its lease.
        names: what is dropped.
        fault: see `mview.failpoints`; "" for none.
        note: is made when the fault is hit.
        java: where it looks for Java; "": where this process does.
    """

    folder: Path
    action: str
    ttl_ms: int
    names: Sequence[str] = ()
    fault: str = ""
    note: str = ""
    java: str = ""


class Running:
    """A process that runs.

    Args:
        process: it.
        said: the file with all that it says.
    """

    def __init__(self, process: Any, said: Path) -> None:
        self.pid: int = process.pid
        self._process, self._said = process, said

    @property
    def said(self) -> str:
        """What it has said until now."""
        return self._said.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code; negative: the signal that ended it; None: it runs."""
        code: int | None = self._process.exitcode
        return code

    def check(self) -> None:
        """Raise with what it has said where it has ended."""
        assert self.code is None, f"it ended with {self.code}: {self.said[-3000:]}"

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        with suppress(ProcessLookupError):
            if self.code is None:
                os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        patience = Patience(PATIENCE)
        while self.code is None:
            if patience.is_over():
                self.stop()
                raise AssertionError(f"hangs: {self.said}")
            time.sleep(0.01)
        return self.code

    def stop(self) -> None:
        """Kill it and all of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join()


def cold(order: Order, said: Path) -> Running:
    """Start a driver whose JVM is its own, or that needs none."""
    return _forked(order, said, None)


def _forked(order: Order, said: Path, gateway: dict[str, str] | None) -> Running:
    process = fork.Process(target=_driver, args=(order, gateway, str(said)))
    process.start()
    return Running(process, said)


class Spark:
    """A JVM with a session that outlives the drivers which use it, one after the other.

    Args:
        folder: with an `mview.yml`; for what Spark writes about itself.
    """

    def __init__(self, folder: Path) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.keeper", str(folder)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._gateway: dict[str, str] = json.loads(self._answer())
        self._user: Running | None = None

    @property
    def is_free(self) -> bool:
        """Whether no driver uses it."""
        return self._user is None or self._user.code is not None

    def start(self, order: Order, said: Path) -> Running:
        """Start a driver."""
        assert self.is_free
        self._ask("end what is left")
        self._user = _forked(order, said, self._gateway)
        return self._user

    def close(self) -> None:
        """End the JVM."""
        if self._user is not None and self._user.code is None:
            self._user.stop()
        self._keeper.communicate()  # the end of its input

    def _ask(self, text: str) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(text + "\n")
        self._keeper.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._keeper.stdout is not None
        answer = self._keeper.stdout.readline()
        assert answer, "the keeper of the JVM has ended"
        return answer


class Warm:
    """As many JVMs as drivers run at the same time; they begin when they are needed.

    Args:
        folder: for their configuration, and for what Spark writes about itself; it is made.
        java: more options of the JVMs.
    """

    def __init__(self, folder: Path, java: str = "") -> None:
        shop = Shop(folder)
        shop.java = java
        shop.config()
        shop.close()
        self._folder, self._sparks = folder, list[Spark]()

    def start(self, order: Order, said: Path) -> Running:
        """Start a driver; a drop needs no JVM."""
        if order.action == "drop":
            return cold(order, said)
        spark = next((one for one in self._sparks if one.is_free), None)
        if spark is None:
            spark = Spark(self._folder)
            self._sparks.append(spark)
        return spark.start(order, said)

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all of them."""
        for spark in self._sparks:
            spark.close()


def _driver(order: Order, gateway: dict[str, str] | None, said: str) -> None:
    """What the forked process does, with a JVM that is there, or one of its own."""
    os.setsid()
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    from mview import failpoints
    from tests.e2e import program

    code = program.UNEXPECTED
    if order.java:
        os.environ |= {"JAVA_HOME": order.java, "PATH": order.java}
    try:
        if gateway is not None:
            _attach(gateway)
        elif order.fault:
            # Spark's workers meet it, too: they have the environment of their JVM.
            os.environ |= {
                "MVIEW_FAILPOINT": order.fault,
                "MVIEW_FAILPOINT_HIT": order.note,
                "MVIEW_FAILPOINT_ROOT": str(os.getpid()),
            }
        if order.fault:
            failpoints.arm(order.fault, order.note)
        code = program.main(order.folder, order.action, order.ttl_ms, order.names)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _attach(gateway: dict[str, str]) -> None:
    """Make the JVM's session the one of this process."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ |= gateway | {"PYSPARK_PYTHON": sys.executable}
    opened = launch_gateway()
    java = getattr(opened.jvm, "org.apache.spark.SparkContext").getOrCreate()
    context = opened.jvm.JavaSparkContext.fromSparkContext(java)
    conf = SparkConf(_jconf=java.conf())
    SparkSession(SparkContext(gateway=opened, jsc=context, conf=conf))
