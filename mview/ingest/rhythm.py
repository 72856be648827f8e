"""How soon a live epoch may follow the one before: as soon as what that cost is paid for."""

from __future__ import annotations

import time
from collections.abc import Callable

#: What the epochs may take of one core, while they keep up with the changes.
_SHARE = 0.35

#: Seconds after which an epoch may begin in any case: dear ones must not wait longer than that, as
#: the changes that have come meanwhile would only make the next one dearer.
LONGEST_S = 0.18


class Rhythm:
    """Has epochs begin as often as their share of a core pays for.

    Cheap epochs so come more often than dear ones, and the first after a pause at once. The CPU
    time is that of the whole process: a compaction or sinks beside the epochs count as well.

    Args:
        elapsed: seconds, growing.
        used: CPU seconds, growing.
    """

    def __init__(
        self,
        elapsed: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        self._elapsed, self._used = elapsed, used
        self._began, self._before = float("-inf"), 0.0

    def begin(self) -> None:
        """Note that an epoch begins."""
        self._began, self._before = self._elapsed(), self._used()

    def left_s(self) -> float:
        """Seconds until the next one may begin, by what was used since; 0: now."""
        paid = (self._used() - self._before) / _SHARE
        return max(0.0, self._began + min(paid, LONGEST_S) - self._elapsed())
