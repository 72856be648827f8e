"""Connections that do not wait for ever for a server that is silent.

A server that is gone says so, and TCP finds out about a way that is gone. One that has taken the
connection and says nothing, or a balancer in front of it, is known by the time that passes alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator
from functools import cache
from typing import Any

#: Seconds for a connection to be made, and for one that has been idle to say that it is there.
GREETING_S = 30.0

#: Seconds for a server to answer how far its log is: it is asked all the time, and who ends a run
#: waits for it.
QUESTION_S = 30.0

#: TCP finds out within a minute that nobody acknowledges, whether something is sent or not.
_TCP = {
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


def connect_postgresql(*arguments: Any, **options: Any) -> Any:
    """A connection of psycopg; see `wait_postgresql` for how long it waits.

    Args:
        arguments: of the driver.
        options: of the driver; what a URL says of these is told as one of them.
    """
    return _patient_class().connect(
        *arguments, **{**_TCP, "connect_timeout": int(GREETING_S), **options}
    )


def wait_postgresql(connection: Any, seconds: float) -> None:
    """Have a connection wait so long for the next sign of the server, each time.

    What it is used for then fails with `psycopg.OperationalError`, and it is closed.
    """
    connection.silence_s = seconds


#: Options of pymysql: seconds for a byte to come, and to be taken.
_MYSQL = ("read_timeout", "write_timeout")


def mysql_options(given: Container[str]) -> dict[str, Any]:
    """Options of pymysql with which a new connection waits `GREETING_S`; but those given."""
    return {name: GREETING_S for name in _MYSQL if name not in given}


def wait_mysql(connection: Any, seconds: float, given: Container[str] = ()) -> None:
    """Have a connection wait so long for the next sign of the server, each time.

    Args:
        connection: of pymysql, which looks at it before each packet.
        seconds: how long.
        given: options that a user has set: they stay as they are.
    """
    for name in _MYSQL:
        if name not in given:
            setattr(connection, f"_{name}", seconds)


@cache
def _patient_class() -> Any:
    import psycopg

    class Patient(psycopg.Connection[Any]):
        silence_s = GREETING_S

        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            try:
                wanted = next(gen)
            except StopIteration as done:
                return done.value  # it has come already, as most rows of a COPY have
            bounded = _bounded(gen, wanted, self._seconds, self._silent)
            return super().wait(bounded, *arguments, **options)

        def _seconds(self) -> float:
            return self.silence_s

        def _silent(self) -> Exception:
            self.close()  # whatever else is asked of it would wait, too
            return psycopg.OperationalError(f"no sign of the server for {self.silence_s:g} s")

    return Patient


def _bounded(
    waiting: Generator[Any, Any, Any],
    wanted: Any,
    seconds: Callable[[], float],
    silent: Callable[[], Exception],
) -> Generator[Any, Any, Any]:
    """What the driver waits for, until nothing has come for too long.

    Args:
        waiting: yields what it waits for, and is sent whether that is ready, also when it is not.
        wanted: what it has yielded.
        seconds: how long nothing may come.
        silent: makes the error then.
    """
    until = time.monotonic() + seconds()
    while True:
        ready = yield wanted
        now = time.monotonic()
        if ready:
            until = now + seconds()
        elif now > until:
            raise silent()
        try:
            wanted = waiting.send(ready)
        except StopIteration as done:
            return done.value
