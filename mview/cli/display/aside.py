"""What a run says, written by a thread of its own: who does not read it does not hold it up."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable

from mview.errors import counted

#: Lines that wait to be read; further ones are left out, and counted.
_LINES = 10_000

#: Seconds that lines may take to be written when an interrupt ends the run.
_WORD_S = 1.0


class AsideWriter:
    """Writes lines in their order; `put` never waits.

    Args:
        write: writes a line, to standard error where asked; may wait for as long as it likes.
        lines: how many may wait.
    """

    def __init__(self, write: Callable[[str, bool], None], *, lines: int = _LINES) -> None:
        self._write, self._lines = write, lines
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, bool]] = deque()
        self._left_out = 0
        self._error: Exception | None = None
        self._ended = False
        self._hurried = False
        self._thread = threading.Thread(target=self._work, name="output", daemon=True)
        self._thread.start()

    def put(self, text: str, err: bool) -> None:
        """Have a line written.

        Raises:
            Exception: why one of those before could not be.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            if len(self._waiting) < self._lines:
                self._waiting.append((text, err))
            else:
                self._left_out += 1
            self._changed.notify_all()

    def hurry(self) -> None:
        """From now on `close` waits for a moment only: an interrupt ends the run."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def close(self, code: int) -> Exception | None:
        """Wait until all is written; where that is hurried, not for long.

        Args:
            code: that the process will end with.

        Returns:
            Why something could not be.
        """
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self._thread.join(_WORD_S)
            if self._hurried and self._thread.is_alive():
                # Python's own end would wait for the line that nobody reads, and then abort.
                atexit.register(os._exit, code)
                break
        return self._error

    def _work(self) -> None:
        try:
            while (line := self._next()) is not None:
                self._write(*line)
        except Exception as error:  # raised by what is printed next, or at the end
            with self._changed:
                self._error = error
                self._waiting.clear()

    def _next(self) -> tuple[str, bool] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._left_out or self._ended)
            if self._waiting:
                return self._waiting.popleft()
            if self._left_out:
                text = f"{counted(self._left_out, 'line')} left out here, as nobody read them"
                self._left_out = 0
                return text, True
            return None
