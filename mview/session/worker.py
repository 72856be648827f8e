"""What every Python worker of Spark does when its first task ends: by then all is imported."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle_worker() -> None:
    """Leave garbage collection to Spark, which runs a full one in the worker after every task.

    Over all imported modules that takes 35 ms, five times a small task: they are left out of it.
    Python's own collections take a quarter of the time to decode changes.
    """
    gc.freeze()
    gc.disable()
