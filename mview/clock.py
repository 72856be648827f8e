"""Two clocks that must never be mixed, ours (wall) and the source database's; and durations."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable
from functools import cache
from threading import Lock, Thread
from typing import NewType, Protocol

#: Milliseconds since the epoch on the machine that runs mview: display and leases only.
WallMs = NewType("WallMs", int)

#: Milliseconds since the epoch on the source database's clock: watermarks and release times.
SourceMs = NewType("SourceMs", int)

#: A bounded changelog that was read to its end: every later question "is it read?" is yes.
END_OF_TIME = SourceMs(253_402_300_799_000)  # 9999-12-31, the largest value Spark can hold

_DURATION = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)"
)

#: A day of `current_date`; the session's time zone is always UTC.
DAY_MS = 86_400_000

#: What a clock may go ahead at once, and how long more than that must last.
_LEAP_MS, _DOUBT_MS = DAY_MS, 3_600_000

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}

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


#: Counts while the machine sleeps: by this name on Linux, by the other one on macOS.
_WITH_SLEEP: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SteadyClock:
    """A clock whose leaps ahead are not believed before they have lasted an hour.

    A machine's clock that is wrong for a moment must not let `now()`, which never goes back, and
    the ages of what is kept go ahead by years. Steps of up to a day, and all steps back, are taken
    as they are.

    Args:
        clock: the one to follow.
        begin_ms: what it showed before; None: its first reading is believed.
        elapsed_ms: milliseconds that no setting of a clock changes; sleeping counts.
    """

    def __init__(
        self,
        clock: Clock,
        begin_ms: int | None = None,
        elapsed_ms: Callable[[], int] = lambda: time.clock_gettime_ns(_WITH_SLEEP) // 1_000_000,
    ) -> None:
        self._clock, self._elapsed_ms = clock, elapsed_ms
        self._lock = Lock()
        self._last = (clock.now() if begin_ms is None else begin_ms, elapsed_ms())
        self._leapt_at: int | None = None

    def now(self) -> WallMs:
        """Wall time in milliseconds; as it would be without a leap while that is not believed."""
        with self._lock:
            shown, elapsed = self._clock.now(), self._elapsed_ms()
            last, at = self._last
            expected = last + elapsed - at
            if shown <= expected + _LEAP_MS:
                self._leapt_at = None
            elif self._leapt_at is None:
                self._leapt_at = elapsed
            if self._leapt_at is not None and elapsed - self._leapt_at < _DOUBT_MS:
                return WallMs(expected)
            self._last, self._leapt_at = (shown, elapsed), None
            return shown

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last reading was a leap that is not believed yet."""
        return self._leapt_at is not None


@cache
def steady_clock() -> SteadyClock:
    """The machine's clock, without leaps since this process first asked for it."""
    return SteadyClock(SystemClock())


#: Seconds between two readings of an `AwakeClock`, and what passes between two at the most.
_READ_S, _AWAKE_S = 0.5, 1.0


class AwakeClock:
    """Seconds in which this process ran; it stands still while that is stopped.

    For how long others may be silent: a process that was stopped itself (SIGSTOP, a frozen
    container) has not listened. Who reads it twice a second tells such a pause by the reading that
    comes late; up to a second of it counts.

    Args:
        elapsed: seconds, growing.
    """

    def __init__(self, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._elapsed, self._lock = elapsed, Lock()
        self._awake, self._read = 0.0, elapsed()

    def now(self) -> float:
        """Seconds since it was made."""
        with self._lock:
            at = self._elapsed()
            self._awake += min(at - self._read, _AWAKE_S)
            self._read = at
            return self._awake

    def keep_reading(self) -> None:
        """Read it for as long as this process lives."""
        while True:
            time.sleep(_READ_S)
            self.now()


@cache
def _awake_clock() -> AwakeClock:
    clock = AwakeClock()
    Thread(target=clock.keep_reading, name="mview-awake", daemon=True).start()
    return clock


def awake_s() -> float:
    """Seconds in which this process ran, since it first asked for them."""
    return _awake_clock().now()


def last_tick(now_ms: int, tick_ms: int) -> int:
    """The newest whole tick up to now.

    >>> last_tick(61_250, 60_000)
    60000
    """
    return now_ms - now_ms % tick_ms


def utc_text(ms: int) -> str:
    """Milliseconds since the epoch for people: `2026-01-31 13:05:09`, in UTC."""
    return dt.datetime.fromtimestamp(ms // 1000, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def parse_time(text: str) -> int | None:
    """A time such as `2026-11-20 10:00` in milliseconds, in UTC unless it says otherwise.

    >>> parse_time("1970-01-01 00:01"), parse_time("1970-01-01T01:01+01:00"), parse_time("noon")
    (60000, 60000, None)
    """
    try:
        moment = dt.datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.timezone.utc)
        return int(moment.astimezone(dt.timezone.utc).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def last_time_of_day(text: str, now_ms: int) -> int | None:
    """The last time up to now when it was `10:00` or `10:00:30`, in UTC, in milliseconds.

    >>> last_time_of_day("10:00", 36_000_000), last_time_of_day("10:00", 122_399_999)
    (36000000, 36000000)
    """
    try:
        of_day = dt.time.fromisoformat(text.strip())
    except ValueError:
        return None
    if of_day.tzinfo is not None or ":" not in text:
        return None
    seconds = of_day.hour * 3600 + of_day.minute * 60 + of_day.second
    passed = now_ms - (seconds * 1000 + of_day.microsecond // 1000)
    return now_ms - passed % DAY_MS if passed >= 0 else None


#: What to write for a moment, for messages.
MOMENT_EXAMPLES = (
    "'2026-11-20 10:00' or '10:00' (the last time it was ten), in UTC; '10 min' (so long ago)"
)


def moment_of(text: str, now_ms: int) -> int | None:
    """A time, a time of day or how long ago, as people write them, in milliseconds.

    The one reading of all that asks for a moment of the past; None if it is none.

    >>> moment_of("1970-01-01 00:01", 0), moment_of("10:00", 122_399_999)
    (60000, 36000000)
    >>> moment_of("10 min", 900_000), moment_of("10 min ago", 900_000), moment_of("noon", 900_000)
    (300000, 300000, None)
    """
    if (ms := parse_time(text)) is not None:
        return ms
    if (ms := last_time_of_day(text, now_ms)) is not None:
        return ms
    ago = parse_duration(text.strip().lower().removesuffix(" ago"))
    return None if ago is None else now_ms - ago


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
