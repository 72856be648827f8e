"""What a run tells the page beside it: events as lines of JSON through a pipe."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from mview.cli.display.progress import JsonDisplay
from mview.cli.output import Output

#: Events that wait for a page that does not read: further ones are left out.
_WAITING = 1_000

#: Messages that are kept.
_MESSAGES = 100


class _EventLines(Output):
    """An output whose lines go to a queue."""

    def __init__(self, hide: Callable[[str], str], put: Callable[[str], None]) -> None:
        super().__init__(as_json=True)
        self._hide, self._put = hide, put

    def mask(self, text: str) -> str:
        return self._hide(text)

    def _echo(self, text: str, *, err: bool = False) -> None:
        self._put(text)


class RunEvents(JsonDisplay):
    """Writes the events of a run into a pipe. The run never waits for who reads there.

    Args:
        pipe: closed at the end.
        mask: hides secrets.
        lost: called once when nobody reads any more, in a thread of its own.
    """

    def __init__(self, pipe: IO[str], mask: Callable[[str], str], lost: Callable[[], None]) -> None:
        super().__init__(_EventLines(mask, self.line))
        self._pipe, self._lost = pipe, lost
        self._queue: queue.Queue[str | None] = queue.Queue(_WAITING)
        self._writer = threading.Thread(target=self._write, name="mview-watch", daemon=True)
        self._writer.start()

    def line(self, line: str) -> None:
        """Write a line, in its turn."""
        with suppress(queue.Full):
            self._queue.put_nowait(line)

    def _write(self) -> None:
        try:
            while (line := self._queue.get()) is not None:
                self._pipe.write(line + "\n")
                self._pipe.flush()
        except OSError:
            self._lost()

    def close(self, seconds: float) -> None:
        """Write what waits, as far as that takes no longer, and close the pipe."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._writer.join(seconds)
        if not self._writer.is_alive():
            with suppress(OSError):
                self._pipe.close()


@dataclass
class RunHeard:
    """What is kept of the events of a run.

    Attributes:
        loads: the last event of each table's load.
        messages: the newest messages, and views that have halted.
        heard: time of the last event.
        stages: milliseconds of each stage of an epoch, since the run began.
        changes: changed rows of each table, since the run began.
        dropped: changes that were sent again, since the run began.
        count, took_ms: epochs, and their milliseconds, since the run began.
    """

    loads: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MESSAGES))
    heard: str = ""
    stages: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    count: int = 0
    took_ms: int = 0

    def take(self, event: dict[str, Any]) -> None:
        """Keep an event."""
        self.heard = event["time"]
        kind = event["event"]
        if kind == "load":
            self.loads[event["table"]] = event
        elif kind in ("message", "halt"):
            self.messages.append(event)
        elif kind == "epoch" and event["stages"]:  # else a first build: no batch has brought it
            self.count += 1
            self.took_ms += event["duration_ms"]
            self.dropped += event["dropped"]
            self.stages.update(event["stages"])
            self.changes.update(event["changes"])

    def as_json(self) -> dict[str, Any]:
        """What the page is sent."""
        return {
            "heard": self.heard,
            "loads": list(self.loads.values()),
            "messages": list(self.messages),
        }


class RunTold:
    """`RunHeard`, for several threads."""

    def __init__(self) -> None:
        self._told, self._lock = RunHeard(), threading.Lock()

    def follow(self, lines: Iterable[str]) -> None:
        """Take events until there are no more."""
        for line in lines:
            event = json.loads(line)
            with self._lock:
                self._told.take(event)

    def read(self, of: Callable[[RunHeard], Any]) -> Any:
        """Something of it, while nobody writes."""
        with self._lock:
            return of(self._told)
