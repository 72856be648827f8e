"""Receives a database's own log in a thread of its own.

The thread stops receiving when enough waits to be taken.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from mview.errors import AwayError, DecodeError, MviewError
from mview_connectors.changelogs.ownlog.runs import ChangeRun, Place, Runs, Wanted, tail_of

#: Bytes that wait to be taken: more than a batch has by default.
_WAITING = 128 << 20

#: What waits for a transaction that is still coming must be less than that: else it never comes.
ROOM = _WAITING // 2


class LogStream(ABC):
    """What the server sends from a place on; begins with `start`.

    Args:
        start: where it begins.
        wanted: which tables are read.
        lost: makes an error of what the server said when it ended the stream.
    """

    def __init__(self, start: Place, wanted: Wanted, lost: Callable[[str], MviewError]) -> None:
        self._lost = lost
        self._runs = Runs(Place(start.end), start, wanted)
        self._news = threading.Condition()
        self._ready: list[ChangeRun] = []
        self._size = 0
        self._error: BaseException | None = None
        self._asked = 0
        self._ended = False
        self._thread = threading.Thread(target=self._receive, name="mview-log", daemon=True)

    # --- what a server adds ----------------------------------------------------------------------

    @abstractmethod
    def _follow(self) -> None:
        """Receive until `_ended`; give messages to `_runs`, with the lock `_news`, then `_collect`.

        What it raises ends the stream.
        """

    @abstractmethod
    def _away(self) -> tuple[type[Exception], ...]:
        """What is raised when the server or the way to it is gone."""

    def _hang_up(self) -> None:  # noqa: B027
        """Have the thread wait for the server no longer; its connection is still open."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection; the thread has ended."""

    # --- asked by who reads ----------------------------------------------------------------------

    def waiting(self, start: Place) -> tuple[list[ChangeRun], Place, BaseException | None]:
        """The runs from a place on, and the place up to which everything has come.

        The third is why nothing more will come; None: more may.

        Raises:
            MviewError: the stream has ended, and nothing is left of it.
        """
        with self._news:
            self._close()
            while self._ready and self._ready[0].end <= start:
                self._size -= self._ready.pop(0).size
            runs = list(self._ready)
            if not runs and self._error is not None:
                raise self._error
            reached, error = max(self._runs.at, start), self._error
        if runs and runs[0].start < start and (rest := tail_of(runs[0], start)) is not None:
            runs[0] = rest
        return runs, reached, error

    def has_reached(self, end: int) -> bool:
        """Whether everything that was committed before a place has come."""
        with self._news:
            return self._runs.at.end >= end

    def confirm(self, end: int) -> None:  # noqa: B027
        """Nobody needs what was committed before a place."""

    def ask(self, end: int) -> None:
        """Ask the server for its place until it is this one, or a later one."""
        self._asked = max(self._asked, end)

    def wait(self, seconds: float) -> None:
        """Wait for news, or for so long."""
        with self._news:
            if self._error is None:
                self._news.wait(seconds)

    def close(self) -> None:
        """End it; may be called more than once."""
        self._ended = True
        self._hang_up()
        if self._thread.is_alive():
            self._thread.join()
        self._disconnect()

    # --- the thread ------------------------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        """Whether enough waits to be taken."""
        return self._size >= _WAITING

    def _receive(self) -> None:
        error: BaseException | None = None
        try:
            self._follow()
        except MviewError as known:
            error = known
        except Exception as unforeseen:
            error = self._lost(f"{type(unforeseen).__name__}: {unforeseen}")
            if isinstance(error, AwayError) and not isinstance(unforeseen, self._away()):
                error = _unreadable(error)  # it would be the same in the next attempt
        with self._news:
            self._error = error
            self._news.notify_all()

    def _close(self) -> None:
        self._runs.close()
        self._collect()

    def _collect(self) -> None:
        self._size += sum(run.size for run in self._runs.closed)
        self._ready += self._runs.closed
        self._runs.closed.clear()


def away(kind: str, server: str, where: str, text: str) -> AwayError:
    """The error of a server that ended the stream; `kind` is e.g. PostgreSQL."""
    return AwayError(
        f"{kind} at {server} does not send its log any more",
        where=where,
        got=text[:500],
        safe="nothing is lost: reading goes on where it was",
        hint="check that the server runs and can be reached, then run the same command again",
    )


def _unreadable(error: AwayError) -> DecodeError:
    """What was sent could not be taken, for a reason that nobody foresaw."""
    return DecodeError(
        "the server's log cannot be read on",
        where=error.where,
        got=error.got,
        safe="nothing after it was taken; published epochs are untouched",
        hint="run the same command again with --debug; if it says the same, report it, and "
        "`mview drop` the tables of this connection: a new run loads them from after it",
    )
