"""The logs of a query that cannot be read right now, while others can.

Whoever is away is asked again in a thread: an attempt may last as long as a connection's `timeout`,
and no epoch waits for it. The object that has been answered is the one that reads on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread

from mview.clock import SystemClock, awake_s
from mview.connector import Changelog
from mview.errors import AwayError, DecodeError, MviewError, UserError
from mview.secrets import Mask
from mview.store.away import Away, read_away, write_away
from mview.store.layout import Store

#: Seconds between two attempts: soon at first, as most restarts are short.
PAUSES_S = (1, 2, 4, 8, 15, 30)


def is_passing(error: BaseException) -> bool:
    """Whether a log that raised this may be read later: its server is away, or refuses.

    What it refuses, a password or a right, can be set right there. A message that cannot be taken
    is the same in each attempt.
    """
    return isinstance(error, AwayError | UserError) and not isinstance(error, DecodeError)


@dataclass
class _Waiting:
    """A log that is asked again.

    Attributes:
        told: what people are told of it.
        attempts: how often it was asked again.
        due_s: when it is asked next.
        answer: of the attempt that goes on; None: none does.
        answers: it says how far it goes, but what it has cannot be read.
        is_tried: it has answered again; whether it can be read, the next batch tells.
    """

    told: Away
    attempts: int = 0
    due_s: float = float("-inf")
    answer: Future[Changelog] | None = None
    answers: bool = False
    is_tried: bool = False


class AwayLogs:
    """Who is away, in memory and in the store.

    Args:
        store: keeps it for those who look, and for the next query of the run.
        token: of the runner's lease.
        mask: takes secrets out of errors.
        names: the connections of the query. Where all of them were away, each is asked at once.
    """

    def __init__(self, store: Store, token: int, mask: Mask, names: Collection[str]) -> None:
        self._store, self._token, self._mask = store, token, mask
        known = {n: told for n, told in read_away(store, token).items() if n in names}
        self._waiting: dict[str, _Waiting] = {}
        if len(known) < len(names):
            self._waiting = {name: _Waiting(told) for name, told in known.items()}

    @property
    def names(self) -> set[str]:
        """The connections that are not read."""
        return {name for name, log in self._waiting.items() if not log.is_tried}

    def leave(self, name: str, error: MviewError, *, answers: bool = False) -> None:
        """A log is away from now on, or still.

        Args:
            name: its connection.
            error: why.
            answers: it says how far it goes, but what it has could not be read.
        """
        text = error.what if error.got is None else f"{error.what}: {error.got}"
        text = " ".join(self._mask(text).split())
        log = self._waiting.get(name) or _Waiting(Away(SystemClock().now(), text))
        pause_s = PAUSES_S[min(log.attempts, len(PAUSES_S) - 1)]
        told = replace(log.told, error=text)
        self._waiting[name] = _Waiting(told, log.attempts, awake_s() + pause_s, answers=answers)
        self._write()

    def answered(self, ask: Callable[[str], Changelog]) -> Iterator[tuple[str, Future[Changelog]]]:
        """Those that answer again, with their answer; who is due is asked, for a later call.

        Args:
            ask: gives a changelog that has been answered; called in a thread.
        """
        for name in sorted(self.names):
            log = self._waiting[name]
            if log.answer is None:
                if awake_s() >= log.due_s:
                    log.attempts += 1
                    log.answer = _aside(partial(ask, name))
                continue
            if not log.answer.done():
                continue
            error = log.answer.exception()
            if isinstance(error, MviewError) and is_passing(error):
                self.leave(name, error, answers=log.answers)
                continue
            answer, log.answer, log.is_tried = log.answer, None, True
            if not log.answers:
                self.forget(name)
            yield name, answer

    def forget(self, name: str) -> None:
        """A log is not waited for any more: what it has could be read, or it is asked at once."""
        log = self._waiting.pop(name, None)
        if log is None:
            return
        if log.answer is not None:
            log.answer.add_done_callback(_close)
        self._write()

    def close(self) -> None:
        """Wait for no attempt: what one opens is closed."""
        for log in self._waiting.values():
            if log.answer is not None:
                log.answer.add_done_callback(_close)

    def _write(self) -> None:
        told = {name: log.told for name, log in sorted(self._waiting.items())}
        write_away(self._store, self._token, told)


def _aside(ask: Callable[[], Changelog]) -> Future[Changelog]:
    """What is answered in a thread that nobody waits for, not even the end of the process."""
    answer: Future[Changelog] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, name="mview-away", daemon=True).start()
    return answer


def _close(answer: Future[Changelog]) -> None:
    with suppress(BaseException):
        answer.result().close()
