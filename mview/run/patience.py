"""Waiting for a database or broker that is away: visibly, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from mview.clock import awake_s
from mview.errors import AwayError
from mview.ingest.away import PAUSES_S

#: Seconds after which a server that is away ends the run: longer than restarts and failovers take,
#: short enough that somebody is told by a process that ends.
_LIMIT_S = 600


class Patience:
    """How often and how long a run has waited since it last got on.

    Args:
        stop: set when the run shall end: no more waiting then.
        say: tells the user.
        now: seconds, growing; while this process is stopped, nothing is waited for.
    """

    def __init__(
        self, stop: Event, say: Callable[[str], None], now: Callable[[], float] = awake_s
    ) -> None:
        self._stop, self._say, self._now = stop, say, now
        self._attempts = 0
        self._since: float | None = None
        self._tried = float("-inf")

    def renew(self) -> None:
        """Something was published: what fails from now on is a new trouble."""
        self._attempts, self._since = 0, None

    def wait(self, error: AwayError) -> None:
        """Wait before the next attempt.

        Raises:
            AwayError: the one that was given: the server has been away for too long.
        """
        now = self._now()
        if now - self._tried > _LIMIT_S:
            self.renew()  # it has answered all the time, but there was nothing to publish
        self._since = now if self._since is None else self._since
        if now - self._since > _LIMIT_S:
            raise error
        delay = PAUSES_S[min(self._attempts, len(PAUSES_S) - 1)]
        self._attempts += 1
        self._say(
            f"{error.what}: waiting for it, attempt {self._attempts}; once more in {delay} s, "
            f"until {_LIMIT_S // 60} minutes are over"
        )
        self._stop.wait(delay)
        self._tried = self._now()
