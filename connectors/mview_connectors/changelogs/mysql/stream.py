"""Receives the binary log in a thread of its own."""

from __future__ import annotations

import socket
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

from mview.errors import MviewError
from mview_connectors.changelogs.mysql.events import BinlogEvents, Gtid
from mview_connectors.changelogs.mysql.layouts import Layout
from mview_connectors.changelogs.mysql.server import events_of
from mview_connectors.changelogs.ownlog.runs import Place, Runs, Wanted
from mview_connectors.changelogs.ownlog.stream import LogStream

#: Seconds for which it rests when enough waits to be taken.
_REST_S = 0.05


class BinlogStream(LogStream):
    """What the server sends from a place on.

    Args:
        connection: a driver's connection that is sent the log, to be closed with the stream.
        start: where it begins.
        events: makes what takes events, of the runs that get them.
        wanted: which tables are read.
        lost: makes an error of what the server said when it ended the stream.
    """

    def __init__(
        self,
        connection: Any,
        start: Place,
        events: Callable[[Runs], BinlogEvents],
        wanted: Wanted,
        lost: Callable[[str], MviewError],
    ) -> None:
        super().__init__(start, wanted, lost)
        self._connection, self._events = connection, events(self._runs)
        self._thread.start()

    @property
    def births(self) -> dict[int, int]:
        """By file of the log, when it was begun, in seconds."""
        return self._events.births

    def gtids(self, start: int, end: int) -> list[Gtid]:
        """MariaDB's transactions between two places, in order.

        Args:
            start: a place; nobody asks of one before it any more.
            end: a place after it, or the same.
        """
        with self._news:
            ends = self._events.ends
            del ends[: bisect_right(ends, start, key=itemgetter(0))]
            return [gtid for _, gtid in ends[: bisect_right(ends, end, key=itemgetter(0))]]

    def has_ended_one(self, end: int) -> bool:
        """Whether a transaction of MariaDB has come that was committed before a place."""
        with self._news:
            return bool(self._events.ends) and self._events.ends[0][0] <= end

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The columns of the tables at the newest event; one that was altered has none."""
        return self._events.layouts

    @property
    def moved(self) -> Sequence[tuple[int, str, Layout]]:
        """Where the columns of a table have become others: after which place, and which."""
        with self._news:
            return [*self._events.moved]

    def _follow(self) -> None:
        for event in events_of(self._connection):
            with self._news:
                self._events.take(event)
                self._collect()
                self._news.notify_all()
            while self._is_full and not self._ended:
                time.sleep(_REST_S)
            if self._ended:
                return
        raise self._lost("it ended the stream")

    def _away(self) -> tuple[type[Exception], ...]:
        from pymysql.err import MySQLError

        return MySQLError, OSError

    def _hang_up(self) -> None:
        # A server that is silent would be waited for; TLS has nothing to say about it.
        if (opened := self._connection._sock) is None:
            return  # the server has hung up before
        with suppress(OSError):
            socket.socket.shutdown(opened, socket.SHUT_RDWR)

    def _disconnect(self) -> None:
        self._connection._force_close()
