"""A part of each day, as a setting: `22:00-06:00`, in UTC or in a named time zone."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_FORM = re.compile(r"(\d\d:\d\d)\s*-\s*(\d\d:\d\d)(?:\s+(\S+))?")

_EXAMPLES = "write it as '22:00-06:00' (UTC) or '22:00-06:00 Europe/Berlin'"


@dataclass(frozen=True)
class DailyWindow:
    """From `begin` (inclusive) to `end` (exclusive), each day; over midnight where it ends earlier.

    Attributes:
        begin: minutes since midnight.
        end: the same; another one than `begin`.
        zone: name of the time zone whose clock counts.
    """

    begin: int
    end: int
    zone: str = "UTC"

    def is_open(self, now_ms: int) -> bool:
        """Whether a time, in milliseconds since the epoch, lies in it."""
        local = dt.datetime.fromtimestamp(now_ms / 1000, ZoneInfo(self.zone))
        minute = 60 * local.hour + local.minute
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end

    def __str__(self) -> str:
        """As it is written in the configuration."""
        begin, end = (f"{minute // 60:02d}:{minute % 60:02d}" for minute in (self.begin, self.end))
        return f"{begin}-{end} {self.zone}"


def parse_window(value: object) -> object:
    """The window of a setting.

    >>> str(parse_window("22:00-06:00"))
    '22:00-06:00 UTC'

    Raises:
        ValueError: it is none; the message says what to write.
    """
    if value is None or isinstance(value, DailyWindow):
        return value
    match = _FORM.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"must be a part of the day; {_EXAMPLES}")
    begin, end = (_minutes(text) for text in match.groups()[:2])
    if begin == end:
        raise ValueError(f"begins and ends at the same time; {_EXAMPLES}")
    zone = match[3] or "UTC"
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{zone!r} is no time zone; {_EXAMPLES}") from None
    return DailyWindow(begin, end, zone)


def _minutes(text: str) -> int:
    hours, minutes = int(text[:2]), int(text[3:])
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text} is no time of a day, 00:00 to 23:59; {_EXAMPLES}")
    return 60 * hours + minutes
