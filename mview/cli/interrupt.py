"""Ctrl-C, SIGTERM, a terminal that closes: once drains the running epoch, twice kills."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Protocol

from mview.errors import ExitCode

#: Seconds between two looks for signals, beside those that wake the main thread.
_LOOK_S = 0.5

#: Seconds that the word of an interrupt may take to be written when all else is done.
_WORD_S = 1.0


class Drainable(Protocol):
    """What can be run and asked to stop; see `mview.run.pipeline.Pipeline`."""

    def run(self, *, once: bool) -> None:
        """Block until the work is finished or `stop` was called."""
        ...

    def stop(self) -> None:
        """Finish the running epoch, then return from `run`."""
        ...


def run_until_interrupted(pipeline: Drainable, *, once: bool, on_drain: Callable[[], None]) -> bool:
    """Run a pipeline; the first SIGINT or SIGTERM drains it, the second ends this process at once.

    A terminal that closes (SIGHUP) drains it, too, and never ends it at once: the shell and the
    system both send it.

    The pipeline runs in a thread of its own: on the main thread pyspark would replace our signal
    handler by one that cancels all Spark jobs, and the epoch would be lost instead of drained.

    Args:
        pipeline: what to run.
        once: see `Pipeline.run`.
        on_drain: called at the first interrupt, in a thread of its own.

    Returns:
        Whether it was interrupted.
    """
    failures: list[BaseException] = []
    draining = threading.Event()

    def work() -> None:
        try:
            pipeline.run(once=once)
        except BaseException as error:  # handed to the main thread, which prints it
            failures.append(error)

    def tell() -> None:
        with suppress(OSError):  # nobody may be there to read it
            on_drain()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        if draining.is_set():
            if number != signal.SIGHUP:
                _die()
            return
        draining.set()
        # Both may wait, for the epoch and for who reads what is said; a signal handler must not.
        threading.Thread(target=pipeline.stop, daemon=True).start()
        telling.start()

    handled = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else the user wants to go on: nohup
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in handled}
    worker = threading.Thread(target=work, name="pipeline")
    telling = threading.Thread(target=tell, daemon=True)
    try:
        worker.start()
        while worker.is_alive():
            # Not for ever: a signal that comes just before the main thread falls asleep is not seen
            # until it wakes.
            worker.join(_LOOK_S)
        if draining.is_set():
            telling.join(_WORD_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failures:
        raise failures[0]
    return draining.is_set()


def _leave_terminal() -> None:
    """Print to nowhere what was for the terminal, which is gone: each write to it would fail."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        # Not isatty: of a terminal that is gone it says no.
        if stat.S_ISCHR(os.fstat(number).st_mode):
            os.dup2(nowhere, number)
    os.close(nowhere)


def _die() -> None:
    # The store survives this by design, so nothing is cleaned up but the terminal: a live display
    # has hidden the cursor. The JVM ends when its standard input closes with us.
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h\n")
    os._exit(ExitCode.INTERRUPTED)
