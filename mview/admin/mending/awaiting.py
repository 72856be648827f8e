"""Waiting for the run of a store to do what it was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mview.clock import SystemClock
from mview.store.failure import last_failure
from mview.store.layout import Store
from mview.store.lease import Lease

#: Seconds between two looks at whether it is done.
_LOOK_S = 0.2


def is_run(store: Store) -> bool:
    """Whether somebody runs a store, so that there is something to wait for."""
    return Lease(store.lease, SystemClock()).holder() is not None


def wait_for_run(store: Store, request: Path, is_vain: Callable[[], bool] = lambda: False) -> None:
    """Wait until a request is done, as long as somebody runs the store.

    Args:
        is_vain: whether it will not be done.
    """
    lease = Lease(store.lease, SystemClock())
    while request.exists() and lease.holder() is not None and not is_vain():
        time.sleep(_LOOK_S)


def why_ended(store: Store, epoch: int, asked_ms: int) -> str:
    """By which error the run has ended since something was asked for; empty: by none.

    Args:
        store: the store.
        epoch: the newest one that is published.
        asked_ms: wall time when it was asked for.
    """
    failure = last_failure(store, epoch)
    if failure is None or failure.at_ms < asked_ms:
        return ""
    return f"the run ended by an error: {failure.what}"
