"""Two clocks that must never be mixed, ours (wall) and the source database's; and durations."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import NewType, Protocol

#: Milliseconds since the epoch on the machine that runs mview: display and leases only.
WallMs = NewType("WallMs", int)

#: Milliseconds since the epoch on the source database's clock: watermarks and release times.
SourceMs = NewType("SourceMs", int)

#: A bounded changelog that was read to its end: every later question "is it read?" is yes.
END_OF_TIME = SourceMs(253_402_300_799_000)  # 9999-12-31, the largest value Spark can hold

_DURATION = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|sec|seconds?|m|min|minutes?|h|hours?)"
)
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}

#: A day of `current_date`; the session's time zone is always UTC.
DAY_MS = 86_400_000

#: What to write for a duration, for messages.
DURATION_EXAMPLES = "e.g. '10 seconds', '500ms', '2 min'"


class Clock(Protocol):
    """Where wall time comes from; tests pass their own."""

    def now(self) -> WallMs:
        """Wall time in milliseconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> WallMs:
        """Wall time in milliseconds."""
        return WallMs(time.time_ns() // 1_000_000)


def last_tick(now_ms: int, tick_ms: int) -> int:
    """The newest whole tick up to now.

    >>> last_tick(61_250, 60_000)
    60000
    """
    return now_ms - now_ms % tick_ms


def utc_text(ms: int) -> str:
    """Milliseconds since the epoch for people: `2026-01-31 13:05:09`, in UTC."""
    return dt.datetime.fromtimestamp(ms // 1000, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def parse_duration(text: str) -> int | None:
    """A duration such as `10 seconds`, `500ms`, `2 min` in milliseconds; None if it is none.

    >>> parse_duration("1.5 min"), parse_duration("10")
    (90000, None)
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if not match:
        return None
    number, unit = match.groups()
    return int(float(number) * (1 if unit.startswith(("ms", "mil")) else _UNIT_MS[unit[0]]))
