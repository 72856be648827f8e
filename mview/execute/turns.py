"""Threads that take turns: one computes in Python while others wait for what is not Python.

Two threads that both compute hand the interpreter's lock to each other at every call into a
library, which takes as long as it saves (measured). Here a thread keeps its turn until it says that
it waits: for a query of DuckDB, or for Spark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Own(threading.local):
    has_turn = False
    waited = 0.0


_turn = threading.Lock()
_own = _Own()


@contextmanager
def turn() -> Iterator[None]:
    """Compute in this thread; other threads that want a turn wait."""
    _take()
    try:
        yield
    finally:
        _give()


@contextmanager
def aside() -> Iterator[None]:
    """Let other threads compute while this one waits; nothing for a thread without a turn."""
    if not _own.has_turn:
        yield
        return
    _give()
    try:
        yield
    finally:
        _take()


def seconds() -> float:
    """A clock that stands still while this thread waits for its turn, in seconds."""
    return time.monotonic() - _own.waited


def _take() -> None:
    began = time.monotonic()
    _turn.acquire()
    _own.waited += time.monotonic() - began
    _own.has_turn = True


def _give() -> None:
    _own.has_turn = False
    _turn.release()
