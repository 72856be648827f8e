"""The bytes of `engine.memory`, shared out: whatever holds rows on the driver has a share of them.

Shares are upper bounds of what is held at once, and all of them together are the budget. One row
that is larger than its share goes through all the same: it is its own bound. So messages have one:
a small one costs nothing that a share does not have, a large one several times its size for the
time of its epoch.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Hashable

#: DuckDB gets so many bytes at least: with less it cannot sort a few thousand rows.
_LEAST_QUERIES = 64 << 20

#: A message may have so many bytes at least: what brokers take unless they are told otherwise.
_LEAST_MESSAGE = 1 << 20

#: Bytes of the rows of a file: with less there would be too many files, with more a change of a
#: row would only be dearer.
_LEAST_FILE, _LARGEST_FILE = 4 << 20, 64 << 20

#: Messages up to this part of the budget are taken. Decoded, netted, written and shown, one takes
#: some six times as much at once.
MESSAGE_PART = 32

#: Freed blocks from this part of the budget on go back to the system at once, of this size at least
#: and at most: smaller ones are used again anyway, and larger ones glibc lets nobody keep.
_BLOCK_PART, _LEAST_BLOCK, _LARGEST_BLOCK = 256, 128 << 10, 32 << 20

#: Of smaller ones, this part of the budget may be left at the end of a heap.
_KEPT_PART = 64

#: So many large blocks at once at the most; the system allows a process 65,530 mappings.
_MOST_BLOCKS = 32_768

#: Parameters of glibc's `mallopt`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4


def use_the_systems_allocator() -> None:
    """Have Arrow take memory from where `give_back_what_is_freed` has a say, if there is such.

    To be called before pyarrow is imported: it chooses its allocator once. Processes that are
    started are not concerned.
    """
    name = "ARROW_DEFAULT_MEMORY_POOL"
    if _mallopt() is None or name in os.environ:
        return
    os.environ[name] = "system"
    try:
        import pyarrow  # noqa: F401
    finally:
        del os.environ[name]


def give_back_what_is_freed(total: int) -> None:
    """Let this process give blocks that are large for its budget back as soon as they are freed.

    Allocators keep what was freed, in pieces that the next rows do not fit into: shares would
    bound what is held and not what the process has. With wide rows through a budget of 32 MB, of
    which Arrow held 45 MB at the most, a driver without Spark grew by 155 MB with Arrow's own
    allocator, by 245 MB with that of the system, and by 80 MB with that of the system after this.

    It has a price: each page that is taken anew is cleared. To write a file of 60,000 rows took
    34 ms of CPU instead of 15 where blocks of 128 kB went back, and 14 where those of 4 MB did. So
    only blocks that count go back: with a small budget others than with a large one.

    Where the C library is not glibc, nothing changes.

    Args:
        total: bytes of `engine.memory`.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return
    block = min(_LARGEST_BLOCK, max(_LEAST_BLOCK, total // _BLOCK_PART))
    kept = min(_LARGEST_BLOCK, max(_LEAST_BLOCK, total // _KEPT_PART))
    # Any of these also stops glibc from raising the sizes by itself.
    mallopt(_MMAP_THRESHOLD, block)
    mallopt(_MMAP_MAX, _MOST_BLOCKS)
    mallopt(_TRIM_THRESHOLD, kept)


def _mallopt() -> Callable[[int, int], int] | None:
    try:
        mallopt: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return None
    return mallopt


class Memory:
    """The shares of a budget.

    Args:
        total: bytes, all shares together.
    """

    def __init__(self, total: int) -> None:
        #: Resident tables with their indexes, and what the merge of one needs for a moment.
        self.tables = total * 7 // 16
        #: What is remembered of the files of views and mirrors, see `mview.delta.recent`.
        self.files = total // 16
        #: Tails of tables that are not resident; what does not fit is looked up on disk.
        self.tails = Share(total // 16)
        #: Old and new rows of one view that is computed as a whole; a piece of a comparison.
        self.whole = total * 2 // 16
        #: What a query over whole tables may read part by part in one thread; beyond, Spark's
        #: cores are faster. Nothing of it is held.
        self.streamed = total
        #: All that DuckDB holds; it sorts and groups the rest on disk.
        self.queries = max(_LEAST_QUERIES, total * 2 // 16)
        #: Rows that one look-up of a view brings to the driver; where they are more, the view is
        #: computed as a whole instead.
        self.found = total // 16
        #: A tail that is folded into its base: keys, order and old rows take as much again.
        self.folded = total // 16
        #: Messages of a batch as they are read: decoded, netted and written they take some four
        #: times as much, and the next batch is read while one is worked on.
        self.batch = max(1, total // 64)
        #: Rows of one file of a table or view: where one of them changes, the file is read and
        #: written anew, and takes some four times as much.
        self.file = min(_LARGEST_FILE, max(_LEAST_FILE, total // 64))
        #: A message; a larger one is refused.
        self.message = max(_LEAST_MESSAGE, total // MESSAGE_PART)
        self._total = total

    def beside(self) -> Memory:
        """The 16th for views that are built beside the epochs, with no table resident."""
        # Without the resident ones, the shares of a budget are half of it.
        memory = Memory(self._total // 8)
        memory.tables = 0
        return memory


class Share:
    """Bytes that several holders may have together.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that are held."""
        with self._lock:
            return sum(self._held.values())

    def room(self, holder: Hashable) -> int:
        """Bytes that a holder may have at the most now."""
        with self._lock:
            others = sum(size for name, size in self._held.items() if name != holder)
            return self.limit - others

    def hold(self, holder: Hashable, nbytes: int) -> bool:
        """Say how much a holder has from now on; where there is no room, it must have nothing."""
        with self._lock:
            self._held.pop(holder, None)
            fits = sum(self._held.values()) + nbytes <= self.limit
            if fits:
                self._held[holder] = nbytes
            return fits

    def free(self, holder: Hashable) -> None:
        """Say that a holder has nothing any more."""
        with self._lock:
            self._held.pop(holder, None)


class Demand:
    """How often keys were asked for lately: which of two to keep where there is no room for both.

    Who goes through more keys than there is room for, again and again, would always miss if the
    newest took the place of the oldest. What is asked for as often as the newest stays instead, so
    as many are found as there is room for. Counts are halved now and then: what was asked for often
    once gives way to what is asked for now.
    """

    #: Asks per key that is kept after which all counts are halved, and for how many keys at least.
    _LATELY, _LEAST = 10, 16

    def __init__(self) -> None:
        self._times: dict[Hashable, int] = {}
        self._asks = 0

    def note(self, key: Hashable, kept: int) -> None:
        """Note that a key was asked for; so many are kept."""
        self._times[key] = self._times.get(key, 0) + 1
        self._asks += 1
        if self._asks >= self._LATELY * max(self._LEAST, kept):
            self._times = {key: times // 2 for key, times in self._times.items() if times > 1}
            self._asks = 0

    def outranks(self, key: Hashable, other: Hashable) -> bool:
        """Whether a key was asked for more often than another one.

        By one alone is as often: within a round one has had its turn, and the other not yet.
        """
        return self._times.get(key, 0) > self._times.get(other, 0) + 1
