"""How Python shares its time, where much is decoded: between threads, and with collections."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

#: Seconds after which a thread of Python lets another on that waits.
_TURN_S = 0.0005


@contextmanager
def short_turns() -> Iterator[None]:
    """Threads of Python take turns ten times as often as they do by themselves.

    An epoch leaves the interpreter for a moment hundreds of times, to compute or to write, and
    waits for a whole turn of the thread that reads before it may go on: a burst of changes took a
    tenth longer, in epochs of 20,000 changes a third.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def without_collections() -> Iterator[None]:
    """No collections: what is decoded lives to the end, and would be looked through ever again.

    That takes a third of the time to decode. Not for two threads at once.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def settled() -> Iterator[None]:
    """What is there by now stays to the end, and is left out of collections until then.

    A full collection over all that is imported, planned and in memory takes 0.1 s of CPU with ten
    views, in the middle of an epoch; over what came since, 2 ms.
    """
    gc.collect()  # what an epoch that failed has left would stay, too
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@cache
def settle_worker() -> None:
    """For a worker of Spark whose first task ends: leave collections to Spark.

    By then all is imported, and Spark runs a full collection in the worker after every task.

    Over all imported modules that takes 35 ms, five times a small task: they are left out of it.
    Python's own collections take a quarter of the time to decode changes.
    """
    gc.freeze()
    gc.disable()
