"""How long tests wait: seconds of a quiet machine, which pass more slowly on a busy one.

A limit is for what hangs. At a load of 40 on two cores all takes twenty times as long and is right.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

_POLL_S = 0.05


class Patience:
    """A limit that begins now.

    Args:
        seconds: on a machine that does nothing else.
    """

    def __init__(self, seconds: float) -> None:
        self._left, self._at = seconds, time.monotonic()

    def is_over(self) -> bool:
        """Whether the time is up; to be asked now and then, as the load is looked at then."""
        now = time.monotonic()
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        self._left -= (now - self._at) / busy
        self._at = now
        return self._left < 0


def wait_for(
    condition: Callable[[], object], seconds: float, check: Callable[[], None] = lambda: None
) -> bool:
    """Wait until a condition holds; returns whether it does.

    Args:
        condition: asked 20 times a second.
        seconds: see `Patience`.
        check: raises when there is no point in waiting any longer.
    """
    patience = Patience(seconds)
    while not condition():
        check()
        if patience.is_over():
            return False
        time.sleep(_POLL_S)
    return True


def end_of(process: subprocess.Popen[Any], seconds: float) -> int | None:
    """Wait for the end of a process; returns its exit code, None: it runs on."""
    wait_for(lambda: process.poll() is not None, seconds)
    return process.returncode


def join(thread: threading.Thread, seconds: float) -> None:
    """Wait for the end of a thread; whether it came is for the caller to see."""
    wait_for(lambda: not thread.is_alive(), seconds)
