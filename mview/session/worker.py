"""Python's garbage collection, which costs more than it finds where much is decoded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


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


@cache
def settle_worker() -> None:
    """For a worker of Spark whose first task ends: leave collections to Spark.

    By then all is imported, and Spark runs a full collection in the worker after every task.

    Over all imported modules that takes 35 ms, five times a small task: they are left out of it.
    Python's own collections take a quarter of the time to decode changes.
    """
    gc.freeze()
    gc.disable()
