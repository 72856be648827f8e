"""Pools of connections to SQL databases, for sources and sinks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import sqlalchemy as sa

from mview.errors import ConfigError

#: Seconds that a connection of a bounded pool is waited for.
_TURN_S = 30.0


def driver_text(error: BaseException) -> str:
    """What an error of a driver says, in one line: some are a number and a text, as a pair.

    >>> driver_text(Exception(2003, "Can't connect")), driver_text(Exception("no\\nanswer"))
    ("Can't connect (2003)", 'no answer')
    """
    text = str(error)
    if len(error.args) == 2 and text == str(error.args):
        number, text = error.args
        if str(number) not in str(text):
            text = f"{text} ({number})"
    return " ".join(str(text).split())


def pool_of(
    driver: str, connect: Callable[[], Any], place: str, most: int | None = None
) -> sa.Engine:
    """A pool that opens its connections itself; connects to nothing yet.

    Args:
        driver: SQLAlchemy's dialect and driver, e.g. `mysql+pymysql`.
        connect: opens a connection of the driver.
        place: the section of the configuration, for the error.
        most: connections at once; who comes then waits for one. None: a dozen, for one user.

    Raises:
        ConfigError: the driver is not installed.
    """
    bounds: dict[str, Any] = {"pool_size": 2}
    if most is not None:
        bounds = {
            "poolclass": sa.pool.QueuePool,  # SQLite's own has no bound
            "pool_size": most,
            "max_overflow": 0,
            "pool_timeout": _TURN_S,
            "pool_use_lifo": True,
        }
    try:
        return sa.create_engine(f"{driver}://", creator=connect, pool_pre_ping=True, **bounds)
    except ModuleNotFoundError as error:
        extra = driver.partition("+")[0]
        raise ConfigError(
            f"the driver {error.name} is not installed",
            where=place,
            hint=f"pip install 'mview-engine[{extra}]' --find-links DIR, where mview's wheel is",
        ) from None


class SharedPools:
    """Pools of which each has several users, and is closed with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[Hashable, tuple[sa.Engine, int]] = {}

    def join(self, key: Hashable, make: Callable[[], sa.Engine]) -> sa.Engine:
        """The pool of a key, with one user more."""
        with self._lock:
            pool, users = self._pools.get(key) or (make(), 0)
            self._pools[key] = pool, users + 1
            return pool

    def leave(self, key: Hashable) -> None:
        """One user less; what it has taken it has given back."""
        with self._lock:
            pool, users = self._pools.pop(key)
            if users > 1:
                self._pools[key] = pool, users - 1
                return
        pool.dispose()
