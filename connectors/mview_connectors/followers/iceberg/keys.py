"""Where the rows of keys lie in a table: an index that follows its commits, or a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mview.errors import TargetError
from mview.follower import FollowerTarget
from mview.rows.equality import same_rows
from mview.rows.hashing import Hashes, hash_rows
from mview_connectors.followers.iceberg.files import gone_positions, live_rows
from mview_connectors.followers.iceberg.index import ROW_BYTES, KeyIndex, Numbers
from mview_connectors.followers.iceberg.rows import as_types
from mview_connectors.followers.iceberg.snapshots import Commit, current, entries

_NONE = np.empty(0, np.int64)


@dataclass
class _Staged:
    """What a step does to the index, once it is committed."""

    snapshot: int
    is_fill: bool
    hashes: Hashes
    rows: Numbers
    #: New files with the hashes of their keys; None: no index is to be held.
    added: list[tuple[Any, Hashes]] | None


class KeyPlaces:
    """The places of the keys of one table.

    In memory while they fit; read from the key columns of all files when a process begins, and in
    every step where they do not fit. Each key that changes is in the table exactly once, so a hash
    that is there once is enough; keys of one hash are told apart by the files.

    Args:
        target: the view and the sink.
    """

    def __init__(self, target: FollowerTarget) -> None:
        self._target = target
        self._key, self._types = target.schema.key, target.schema.key_arrow
        self._limit: int = target.settings.index_bytes
        #: The index, and the snapshot whose rows it has.
        self._index: tuple[int, KeyIndex] | None = None
        self._staged: _Staged | None = None
        self._hashes, self._rows = _NONE, _NONE

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are held."""
        return 0 if self._index is None else self._index[1].nbytes

    def located(self, table: Any, keys: pa.Table | None) -> list[tuple[Any, Numbers]]:
        """The places of keys in the current snapshot: data files, and positions in them.

        What was found goes with the next `staged`.

        Raises:
            TargetError: a key is not there once: the table is not what its mark says.
        """
        self._hashes, self._rows = _NONE, _NONE
        if keys is None:
            return []
        hashes = hash_rows(keys.columns)
        index = self._current(table, hashes)
        rows = self._found(table, index, keys, hashes)
        self._hashes, self._rows = hashes, rows
        return index.places(rows)

    def staged(
        self, snapshot: int, added: list[tuple[Any, Hashes]] | None, *, is_fill: bool
    ) -> None:
        """Remember what a snapshot will have done: the rows that were located go, files come."""
        self._staged = _Staged(snapshot, is_fill, self._hashes, self._rows, added)

    def committed(self, commit: Commit) -> None:
        """Follow a commit; one that was not staged here has other rows at other places."""
        staged, index = self._staged, self._index
        self._staged = self._index = None
        if staged is None or staged.snapshot != commit.snapshot or staged.added is None:
            return
        if staged.is_fill:
            index = (commit.snapshot, KeyIndex())
        elif index is None or index[0] != commit.base:
            return
        index[1].remove(staged.hashes, staged.rows)
        for file, hashes in staged.added:
            index[1].add(file, len(hashes), np.arange(len(hashes)), hashes)
        if index[1].nbytes > self._limit:
            index[1].pack()
        if index[1].nbytes <= self._limit:
            self._index = (commit.snapshot, index[1])

    def _current(self, table: Any, hashes: Hashes) -> KeyIndex:
        """An index that has all rows with these hashes."""
        now = current(table).snapshot_id
        if self._index is not None and self._index[0] == now:
            return self._index[1]
        self._index = None
        data, deletes = entries(table)
        files = [entry.data_file for entry in data]
        live = sum(file.record_count for file in files)
        live -= sum(entry.data_file.record_count for entry in deletes)
        is_kept = live * ROW_BYTES <= self._limit
        gone = gone_positions(table, (entry.data_file for entry in deletes))
        index = self._built(table, files, gone, None if is_kept else hashes)
        if is_kept:
            self._index = (now, index)
        return index

    def _built(
        self, table: Any, files: Sequence[Any], gone: dict[str, Numbers], only: Hashes | None
    ) -> KeyIndex:
        """Read the keys of all files; `only`: of rows with these hashes."""
        index = KeyIndex()
        for file in files:
            positions, hashes = [_NONE], [_NONE]
            for at, rows in live_rows(table, file, self._key, gone.get(file.file_path)):
                hashes_of = hash_rows(as_types(rows, self._types).columns)
                if only is not None:
                    wanted = np.isin(hashes_of, only)
                    at, hashes_of = at[wanted], hashes_of[wanted]
                positions.append(at)
                hashes.append(hashes_of)
            index.add(file, file.record_count, np.concatenate(positions), np.concatenate(hashes))
        return index

    def _found(self, table: Any, index: KeyIndex, keys: pa.Table, hashes: Hashes) -> Numbers:
        numbers, rows = index.find(hashes)
        counts = np.bincount(numbers, minlength=len(hashes))
        if (doubt := counts[numbers] > 1).any():
            kept = ~doubt
            asked = keys.take(pa.array(numbers[doubt]))
            kept[doubt] = self._are(table, index, rows[doubt], asked)
            numbers, rows = numbers[kept], rows[kept]
            counts = np.bincount(numbers, minlength=len(hashes))
        if (counts != 1).any():
            raise TargetError(
                f"the table {self._target.table} of sink {self._target.sink} does not have the "
                "rows that its mark stands for",
                got=f"{counts[counts != 1][0]} rows of a key that changes",
                allowed="one",
                safe="nothing of the step was written",
                hint="drop the table there: it is filled anew",
            )
        return rows

    def _are(
        self, table: Any, index: KeyIndex, rows: Numbers, keys: pa.Table
    ) -> npt.NDArray[np.bool_]:
        """Whether the keys of rows, read from their files, are these, one by one."""
        distinct, places = np.unique(rows, return_inverse=True)
        read = [
            rows.filter(pa.array(np.isin(at, positions)))
            # In the order of the numbers of rows, as files and positions are.
            for file, positions in index.places(distinct)
            for at, rows in live_rows(table, file, self._key, None)
        ]
        there = as_types(pa.concat_tables(read), self._types).take(pa.array(places))
        return same_rows(there.columns, as_types(keys, self._types).columns)
