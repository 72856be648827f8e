"""Where the row of a key lies: an index from hashes of keys to numbers of rows.

Rows are numbered through the data files in the order in which these are added. The index is held
in sorted layers, each at least twice as large as the next newer one, so that adding rows costs a
logarithm (as in O'Neil et al., "The log-structured merge-tree", 1996). It takes 16 bytes per row,
and twice that for a moment when layers are merged.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mview.rows.hashing import Hashes
from mview.rows.sorted_index import SortedIndex

Numbers = NDArray[np.int64]

#: Bytes of one row in the index: its hash and its number.
ROW_BYTES = 16

#: The number of a row that is gone.
_GONE = -1

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Layer:
    """Rows of some files: their hashes, sorted, and at the same places their numbers."""

    hashes: SortedIndex
    rows: Numbers

    @classmethod
    def of(cls, hashes: Hashes, rows: Numbers) -> Layer:
        """A layer of rows in any order."""
        order = np.argsort(hashes)
        return cls(SortedIndex(hashes[order], None), rows[order])

    def joined(self, other: Layer) -> Layer:
        """The rows of both that are not gone."""
        rows = np.concatenate([self.rows, other.rows])
        hashes = np.concatenate([self.hashes.hashes, other.hashes.hashes])
        live = rows != _GONE
        return Layer.of(hashes[live], rows[live])


@dataclass
class KeyIndex:
    """The rows of a table by the hash of their keys."""

    _files: list[Any] = field(default_factory=list)
    _firsts: list[int] = field(default_factory=list)
    _next: int = 0
    _layers: list[Layer] = field(default_factory=list)

    def add(self, file: Any, size: int, positions: Numbers, hashes: Hashes) -> None:
        """Add rows of a file.

        Args:
            file: what `places` gives back.
            size: rows of the file, gone ones too.
            positions: of the rows in the file.
            hashes: of their keys.
        """
        if not len(positions):
            return
        self._files.append(file)
        self._firsts.append(self._next)
        layer = Layer.of(hashes, positions + self._next)
        self._next += size
        self._layers.append(layer)
        while len(self._layers) > 1 and self._is_heavy():
            newer = self._layers.pop()
            self._layers.append(self._layers.pop().joined(newer))

    def _is_heavy(self) -> bool:
        return len(self._layers[-2].rows) < 2 * len(self._layers[-1].rows)

    def pack(self) -> None:
        """Forget the rows that are gone."""
        while len(self._layers) > 1:
            newer = self._layers.pop()
            self._layers.append(self._layers.pop().joined(newer))
        self._layers = [layer.joined(Layer.of(_NONE, _NONE)) for layer in self._layers]

    def find(self, hashes: Hashes) -> tuple[Numbers, Numbers]:
        """All (number of the hash, number of the row) pairs, by hash and then by row."""
        numbers, rows = [_NONE], [_NONE]
        for layer in self._layers:
            number, place = layer.hashes.find(hashes)
            row = layer.rows[place]
            live = row != _GONE
            numbers.append(number[live])
            rows.append(row[live])
        number, row = np.concatenate(numbers), np.concatenate(rows)
        order = np.lexsort((row, number))
        return number[order], row[order]

    def remove(self, hashes: Hashes, rows: Numbers) -> None:
        """Remove rows, given their hashes."""
        for layer in self._layers:
            _, places = layer.hashes.find(hashes)
            layer.rows[places[np.isin(layer.rows[places], rows)]] = _GONE

    def places(self, rows: Numbers) -> list[tuple[Any, Numbers]]:
        """Rows as files and the sorted positions in them."""
        ordered = np.sort(rows)
        result, begin = [], 0
        while begin < len(ordered):
            number = bisect_right(self._firsts, int(ordered[begin])) - 1
            first = self._firsts[number]
            end = len(ordered)
            if number + 1 < len(self._firsts):
                end = int(np.searchsorted(ordered, self._firsts[number + 1]))
            result.append((self._files[number], ordered[begin:end] - first))
            begin = end
        return result

    def __len__(self) -> int:
        return sum(int((layer.rows != _GONE).sum()) for layer in self._layers)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the layers take."""
        return sum(len(layer.rows) for layer in self._layers) * ROW_BYTES
