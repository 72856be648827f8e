"""What an epoch is made of: stages, each of which makes its own value of that of the one before.

The list is built first and run second, so the order of an epoch is data: `steps.py` has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from mview.failpoints import failpoint
from mview.files.waiting import Waiting

V = TypeVar("V")

#: What is written while views are maintained: it waits for files more than it computes.
WRITERS = ThreadPoolExecutor(8, "mview-write")

#: Many changes of tables, one table after the other: each takes several times its bytes meanwhile.
MIRRORS = ThreadPoolExecutor(1, "mview-mirror")

#: What is known of the file systems that views are written to. A thread that writes takes the
#: interpreter from the one that computes with every call into a library: it must save more.
_waiting = Waiting(0.005)


@dataclass(frozen=True)
class Stage:
    """One step of an epoch.

    Attributes:
        run: makes its value of that of the stage before; no stage changes a value.
        name: what its time is told under.
        behind: the fail point that is passed when it is done; empty: none.
        only: whether there is anything to be done with a value; else it goes on as it is.
    """

    run: Callable[[Any], Any]
    name: str
    behind: str = ""
    only: Callable[[Any], bool] = lambda value: True


def run_stages(
    stages: Sequence[Stage],
    value: Any,
    took: Callable[[str, float], object] = lambda name, seconds: None,
) -> Any:
    """The value of the last stage.

    Args:
        took: told the seconds of each stage.
    """
    for stage in stages:
        if stage.only(value):
            began = time.monotonic()
            value = stage.run(value)
            failpoint(stage.behind)
            took(stage.name, time.monotonic() - began)
    return value


class Begun:
    """What an epoch has begun in other threads. Leaving it waits for all of that, also after an
    error: a roll-back must not overtake a writer."""

    def __init__(self) -> None:
        self._futures: list[Future[Any]] = []

    def submit(self, pool: ThreadPoolExecutor, call: Callable[..., V], *args: Any) -> Future[V]:
        """Call a function in a thread of a pool."""
        future = pool.submit(call, *args)
        self._futures.append(future)
        return future

    def write(self, few: bool, call: Callable[..., V], *args: Any) -> Future[V]:
        """Have something written while views are maintained; of few rows, at once.

        Args:
            few: few rows are written. In threads, those of ten views took 219 ms and 256 CPU ms
                instead of 181 and 180.
        """
        if not few or _waiting.is_long:
            _waiting.fade()
            return self.submit(WRITERS, call, *args)
        future: Future[V] = Future()
        try:
            future.set_result(_waiting.timed(call, *args))
        except Exception as error:
            future.set_exception(error)
        return future

    def wait(self) -> None:
        """Wait for all of it, and for what it begins meanwhile."""
        for future in self._futures:
            wait([future])

    def __enter__(self) -> Begun:
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()
