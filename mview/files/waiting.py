"""How long a file system lets wait: whether files are written one by one, or several at once.

On a disk at hand a thread takes longer to wake up than a small file to be written or forced. Behind
a network it does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

V = TypeVar("V")

#: How much of a mean each further call leaves, and each that was not timed.
_KEPT, _FADED = 0.8, 0.98

#: A call counts for so many long ones at the most: who was paused in it has waited for nobody.
_MOST = 20


class Waiting:
    """How long calls have waited lately, beyond what they have computed.

    What was not timed lets it fade, so that it is tried again.

    Args:
        long: seconds from which on it is better to wait for several at once.
    """

    def __init__(self, long: float) -> None:
        self._long, self._mean = long, 0.0

    @property
    def is_long(self) -> bool:
        """Whether several should be waited for at once."""
        return self._mean > self._long

    def timed(self, call: Callable[..., V], *args: object) -> V:
        """Call a function that waits for files."""
        began, computed = time.monotonic(), time.thread_time()
        try:
            return call(*args)
        finally:
            waited = time.monotonic() - began - (time.thread_time() - computed)
            counted = min(waited, _MOST * self._long)
            self._mean = _KEPT * self._mean + (1 - _KEPT) * counted

    def fade(self) -> None:
        """It was called where it is not timed."""
        self._mean *= _FADED
