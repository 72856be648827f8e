"""Receives PostgreSQL's log in a thread of its own: the server wants answers at any time.

The thread stops receiving when enough waits to be taken; it goes on to answer.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable
from typing import Any

from mview.errors import MviewError
from mview_connectors.changelogs.ownlog.runs import Place, Wanted
from mview_connectors.changelogs.ownlog.stream import LogStream
from mview_connectors.formats.ownlog.blocks import EPOCH_2000_MS

#: Seconds between two answers, and between two questions for the server's place. A server ends a
#: connection that has not answered for `wal_sender_timeout`, a minute by default.
_ANSWER_S, _ASK_S = 5.0, 0.05

#: Seconds for which the socket is waited for.
_WAIT_S = 0.05

#: Seconds without a word after which the server counts as gone, although it is asked for one: while
#: it decodes a large transaction of other tables, older ones say nothing for minutes.
_SILENCE_S = 600.0

#: Kinds of messages around those of the plug-in: data, and "I am alive".
_DATA, _ALIVE = b"wk"
_HEADER = 25
_alive = struct.Struct(">xQqB").unpack_from
_answer = struct.Struct(">cQQQqB").pack


class WalStream(LogStream):
    """What the server sends from a place on.

    Args:
        connection: a driver's connection for replication, to be closed with the stream.
        start: where it begins.
        command: the statement that begins it.
        wanted: which tables are read.
        lost: makes an error of what the server said when it ended the stream.
    """

    def __init__(
        self,
        connection: Any,
        start: Place,
        command: str,
        wanted: Wanted,
        lost: Callable[[str], MviewError],
    ) -> None:
        super().__init__(start, wanted, lost)
        self._connection = connection
        self._confirmed = 0
        self._begin(command)
        self._thread.start()

    def confirm(self, end: int) -> None:
        """Tell the server that nobody needs what was committed before a place."""
        self._confirmed = max(self._confirmed, end)

    # --- the thread ------------------------------------------------------------------------------

    def _begin(self, command: str) -> None:
        from psycopg.generators import execute
        from psycopg.pq import ExecStatus

        pgconn = self._connection.pgconn
        pgconn.send_query(command.encode())
        result = self._connection.wait(execute(pgconn))[-1]
        if result.status != ExecStatus.COPY_BOTH:
            raise self._lost(_said(result.error_message))

    def _follow(self) -> None:
        pgconn = self._connection.pgconn
        answered = asked = heard = time.monotonic()
        while not self._ended:
            now = time.monotonic()
            wants = self._asked > self._runs.at.end and now - asked >= _ASK_S
            if wants or now - answered >= _ANSWER_S:
                self._answer(pgconn, wants or now - heard >= _ANSWER_S)
                answered, asked = now, now if wants else asked
            if self._is_full:
                time.sleep(_WAIT_S)
                heard = now
                continue
            if self._take(pgconn):
                heard = now
            elif now - heard > _SILENCE_S:
                raise self._lost(f"no sign of it for {_SILENCE_S:.0f} s")
            else:
                select.select([pgconn.socket], [], [], _WAIT_S)
                pgconn.consume_input()
        # A short run ends before the next answer is due: the server would never hear of its place.
        self._answer(pgconn, False)

    def _take(self, pgconn: Any) -> bool:
        """Take what has come; whether anything had."""
        taken = 0
        with self._news:
            # With the lock for as many as come together, but not for long.
            while taken < 1_000:
                size, data = pgconn.get_copy_data(1)
                if size <= 0:
                    break
                taken += 1
                if data[0] == _DATA:
                    self._runs.add(bytes(data[_HEADER:]))
                elif data[0] == _ALIVE:
                    end, _, wants = _alive(data)
                    self._runs.pass_to(end)
                    if wants:
                        self._answer(pgconn, False)
            if taken:
                self._collect()
                self._news.notify_all()
        if size == -1:
            raise self._lost(_said(pgconn.get_result().error_message) or "it ended the stream")
        return taken > 0

    def _away(self) -> tuple[type[Exception], ...]:
        import psycopg

        return psycopg.Error, OSError

    def _disconnect(self) -> None:
        self._connection.close()

    def _answer(self, pgconn: Any, wants: bool) -> None:
        """Say what was received and what nobody needs; and, if wanted, ask for an answer."""
        micros = int(time.time() * 1_000_000) - EPOCH_2000_MS * 1000
        received = max(self._runs.at.end, self._confirmed)
        done = self._confirmed
        pgconn.put_copy_data(_answer(b"r", received, done, done, micros, wants))
        pgconn.flush()


def _said(message: bytes | None) -> str:
    return (message or b"").decode("utf-8", "replace").strip()
