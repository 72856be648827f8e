"""An index over the hashes of rows that never move: sorted, looked into by binary search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mview.rows.hashing import Hashes, is_exact

Rows = NDArray[np.int64]

#: So many runs that are in order are merged faster than all is sorted: three in a sixth of the
#: time, eight in half of it. Rows of a table in memory are some: of its base, and of what epochs
#: added.
_RUNS = 8


def order_of(hashes: Hashes) -> Rows | None:
    """The numbers of hashes in their order; None: they stand in it."""
    falls = _falls(hashes)
    if not falls:
        return None
    return np.argsort(hashes, kind="stable" if falls < _RUNS else None)


def in_order(values: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """Whole numbers, sorted."""
    return np.sort(values, kind="stable" if _falls(values) < _RUNS else None)


def _falls(values: NDArray[np.integer[Any]]) -> int:
    """How many times a value is less than the one before."""
    return int(np.count_nonzero(values[1:] < values[:-1]))


@dataclass(frozen=True)
class SortedIndex:
    """Hashes in order, and the row of each; `rows` None: row i has hash i."""

    hashes: Hashes
    rows: NDArray[np.int32] | NDArray[np.int64] | None

    @classmethod
    def build(cls, hashes: Hashes) -> SortedIndex:
        """The index of rows with these hashes."""
        order = order_of(hashes)
        if order is None:
            return cls(hashes, None)
        ordered = hashes[order]
        return cls(ordered, order.astype(np.int32) if len(order) < 1 << 31 else order)

    def find(self, needles: Hashes) -> tuple[Rows, Rows]:
        """All (needle number, row) pairs of equal hashes; sorted needles are faster."""
        if not len(self.hashes):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        last = len(self.hashes) - 1
        low = np.searchsorted(self.hashes, needles, side="left")
        numbers = np.flatnonzero(self.hashes[np.minimum(low, last)] == needles)
        places = low[numbers]
        there = needles[numbers]
        if (self.hashes[np.minimum(places + 1, last)] == there)[places < last].any():
            counts = np.searchsorted(self.hashes, there, side="right") - places
            starts = np.repeat(places - (np.cumsum(counts) - counts), counts)
            numbers = np.repeat(numbers, counts)
            places = np.arange(len(numbers)) + starts
        return numbers, self.at(places)

    def at(self, ranks: Rows) -> Rows:
        """The rows of hashes, by their places in the order."""
        return ranks if self.rows is None else self.rows[ranks].astype(np.int64)

    def between(self, low: int, high: int) -> Rows:
        """The rows whose hashes are in a range, both ends included."""
        first = int(np.searchsorted(self.hashes, low, side="left"))
        last = int(np.searchsorted(self.hashes, high, side="right"))
        if self.rows is None:
            return np.arange(first, last)
        return self.rows[first:last].astype(np.int64)

    def common(self, other: SortedIndex) -> tuple[Rows, Rows]:
        """All (row, row of the other) pairs of equal hashes, in any order."""
        if len(self.hashes) < len(other.hashes):
            theirs, ours = other.common(self)
            return ours, theirs
        numbers, ours = self.find(other.hashes)
        return ours, other.at(numbers)

    def nbytes(self, column: pa.ChunkedArray | None) -> int:
        """Bytes held beside the table; `column` is given where the hashes may be its buffer."""
        shared = (
            column is not None
            and is_exact([column.type])
            and column.type.bit_width == 64
            and not column.null_count
        )
        own = 0 if self.rows is None and shared else self.hashes.nbytes
        return own + (0 if self.rows is None else self.rows.nbytes)
