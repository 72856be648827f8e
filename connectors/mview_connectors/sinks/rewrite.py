"""Which files a view delta touches, and the files that stand in their place.

Copy on write: a file with a row that goes is written anew. With deletion vectors it stays, and the
log says which of its rows count no more, until there are so many that writing it anew pays.

Rows are matched as SQL groups them (NULL = NULL, NaN = NaN): by key, or by all columns where a view
has no key and equal rows are counted. In a file that is written anew a changed row stays at its
place, so files stay in key order.
"""

from __future__ import annotations

import json
import os
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mview.connector import WEIGHT
from mview.delta.deletion import Deleted
from mview.delta.log import DeltaLog
from mview.delta.parquet import (
    DataFile,
    Range,
    column_range,
    comparable,
    describe,
    live_positions,
    read_footer,
    read_parquet,
    write_rows,
)
from mview.delta.recent import Recent
from mview.delta.tiers import TARGET_BYTES, TARGET_ROWS, crowded, pieces
from mview.errors import CorruptionError, UserError
from mview.rows.hashing import hash_rows, is_hashable
from mview.rows.match import Positions, confirmed, first_rows, match, row_codes
from mview.rows.sorted_index import SortedIndex
from mview.schema import as_schema

#: Bytes of a view's rows that are remembered at the most: rows that were just written are read
#: again soon, and all keys are looked through in most epochs (some 30 bytes per row with their
#: index). All views together have a share of `engine.memory`, see `mview.delta.recent`.
_WRITTEN, _LOOKED = 64 << 20, 256 << 20

#: Deleted rows that a file may have: about 2 bytes each in every commit that touches it. Files have
#: different limits from half of it on, so that they are not all written anew in one epoch.
_MOST_DELETED = 2048


#: Shared by all views: threads cost more to start than most files to look into.
_pool = ThreadPoolExecutor(os.cpu_count(), "mview-rewrite")

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Rewrite:
    """What a delta comes to: files to add, live files to remove."""

    adds: list[DataFile]
    removes: list[str]


@dataclass(frozen=True)
class _Sought:
    """Rows by which others are looked for, and an index over all columns that can be in one."""

    rows: pa.Table
    hashed: list[str]
    index: SortedIndex | None

    @classmethod
    def of(cls, rows: pa.Table) -> _Sought:
        """Index rows; without a column that can be indexed every row is compared."""
        hashed = [field.name for field in rows.schema if is_hashable(field.type)]
        columns = [rows[name] for name in hashed]
        return cls(rows, hashed, SortedIndex.build(hash_rows(columns)) if hashed else None)

    def match(self, wanted: _Sought) -> tuple[Positions, Positions]:
        """See `mview.rows.match.match`."""
        if self.index is None or wanted.index is None:
            return match(self.rows, wanted.rows)
        ours, theirs = self.index.common(wanted.index)
        if not len(ours):
            return ours, theirs
        if len(self.hashed) < self.rows.num_columns:
            ours, theirs = np.unique(ours), np.unique(theirs)
            place, found = match(self.rows.take(pa.array(ours)), wanted.rows.take(pa.array(theirs)))
            return ours[place], theirs[found]
        return confirmed(self.rows, wanted.rows, ours, theirs)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        index = 0 if self.index is None else self.index.nbytes(None)
        return int(self.rows.nbytes) + index


@dataclass(frozen=True)
class _Wanted:
    """Distinct rows to look for, how many of each go, and the row that replaces each (or -1)."""

    sought: _Sought
    goes: Positions
    replacement: Positions

    @property
    def rows(self) -> pa.Table:
        """The rows."""
        return self.sought.rows


@dataclass(frozen=True)
class _Hits:
    """Rows of one file that go, and for each the number of its wanted row."""

    file: DataFile
    positions: Positions
    wanted: Positions


class Rewriter:
    """Turns deltas of one view into file changes of its table.

    Args:
        log: the view's table; new files are written into its folder, invisible until committed.
        schema: the view's columns, all nullable.
        key: the view's key; empty for multiset semantics.
        view: the view's name, for messages.
        vectors: use deletion vectors.
    """

    def __init__(
        self, log: DeltaLog, schema: pa.Schema, key: Sequence[str], view: str, vectors: bool
    ) -> None:
        self._log, self._schema, self._view, self._vectors = log, schema, view, vectors
        self._key = tuple(key)
        self._names = list(key) or list(schema.names)
        self._ranges: dict[str, Mapping[str, Range | None]] = {}
        #: Rows of files that were just written, without regard to deletion vectors.
        self._written: Recent[pa.Table] = Recent(_WRITTEN)
        self._looked: Recent[_Sought] = Recent(_LOOKED)

    def plan(self, epoch: int, delta: pa.Table, live: Mapping[str, DataFile]) -> Rewrite:
        """Write the files that make a delta true.

        Args:
            epoch: for the names of the files.
            delta: the view's columns and WEIGHT, consolidated.
            live: the table's files.

        Raises:
            UserError: two rows for one key: the declared key is none.
            CorruptionError: a row to be removed is not in the table.
        """
        self._forget(live)
        weight = delta[WEIGHT].to_numpy()
        rows = as_schema(delta, self._schema)
        inserted = rows.take(np.repeat(np.arange(rows.num_rows), np.maximum(weight, 0)))
        wanted = self._wanted(rows, weight, inserted)
        found = self._look(self._candidates(live, wanted.rows), wanted.sought)
        hits = self._select(wanted, found)
        marked = [hit for hit in hits if self._is_marked(hit)]
        anew = [hit for hit in hits if not self._is_marked(hit)]
        after = _each(lambda hit: self._without(epoch, hit, wanted, inserted), anew)
        small = [part for _, part in after if part is not None]
        small.append(self._unplaced(inserted, [wanted.replacement[h.wanted] for h in anew]))
        removes = [hit.file.path for hit in hits]
        untouched = [file for path, file in live.items() if path not in set(removes)]
        parts, merged = self._merge(small, untouched)
        written = _each(lambda part: self._write(epoch, part), parts)
        adds = [file for files, _ in after for file in files]
        adds += [_mark(hit) for hit in marked if _deleted_after(hit) < hit.file.rows]
        return Rewrite(adds + written, removes + merged)

    # --- which rows ------------------------------------------------------------------------------

    def _wanted(self, rows: pa.Table, weight: Positions, inserted: pa.Table) -> _Wanted:
        removed = rows.filter(pa.array(weight < 0)).select(self._names)
        gone = -weight[weight < 0]
        # By key, inserted rows are looked for too: such a key must not be there already.
        parts = [removed, inserted.select(self._names)] if self._key else [removed]
        looked = pa.concat_tables(parts)
        first, group = first_rows(row_codes([looked])[0])
        goes = np.bincount(group[: removed.num_rows], weights=gone, minlength=len(first)).astype(
            np.int64
        )
        replacement = np.full(len(first), -1, dtype=np.int64)
        distinct = looked.take(first)
        if self._key:
            comes = group[removed.num_rows :]
            double = np.flatnonzero(np.bincount(comes) > 1)
            if len(double):
                raise self._not_a_key(distinct.take(double))
            replacement[comes] = np.arange(inserted.num_rows)
        sought = _Sought.of(distinct)
        return _Wanted(sought, goes, replacement)

    def _candidates(self, live: Mapping[str, DataFile], wanted: pa.Table) -> list[DataFile]:
        values = {
            name: sorted(comparable(wanted[name]))
            for name in wanted.column_names
            if wanted[name].null_count == 0 and not pa.types.is_list(wanted[name].type)
        }
        found = [f for f in live.values() if wanted.num_rows and self._may_hold(f, values)]
        # Small files first: where equal rows are in several files, the cheap one is rewritten.
        return sorted(found, key=lambda file: file.rows)

    def _may_hold(self, file: DataFile, values: Mapping[str, Sequence[Any]]) -> bool:
        ranges = self._ranges.get(file.path)
        if ranges is None:
            ranges = self._learn(file.path, read_footer(self._log.folder / file.path))
        for name, listed in values.items():
            bounds = ranges[name]
            if bounds is None:
                continue
            place = bisect_left(listed, bounds.low)
            if place == len(listed) or listed[place] > bounds.high:
                return False
        return True

    def _look(self, files: Sequence[DataFile], wanted: _Sought) -> list[_Hits]:
        """Look the wanted rows up; of files that are not remembered, a few are held at a time."""
        known = {file.path: self._looked.get(file.path) for file in files}

        def read(file: DataFile) -> _Hits:
            sought = self._sought(file)
            self._looked.add(file.path, sought)
            return _find(file, sought, wanted)

        unknown = [file for file in files if known[file.path] is None]
        found = dict(zip((file.path for file in unknown), _each(read, unknown), strict=True))
        for file in files:
            if (sought := known[file.path]) is not None:
                found[file.path] = _find(file, sought, wanted)
        return [found[file.path] for file in files]

    def _sought(self, file: DataFile) -> _Sought:
        rows = self._written.get(file.path)
        if rows is None:
            rows = read_parquet(self._log.folder / file.path, self._schema, self._names)
        return _Sought.of(rows.select(self._names))

    def _select(self, wanted: _Wanted, found: Sequence[_Hits]) -> list[_Hits]:
        """Of all rows that match, those that go: as many of each as the delta says."""
        left = wanted.goes.copy()
        selected = []
        for hits in found:
            order = np.argsort(hits.wanted, kind="stable")
            ranked = hits.wanted[order]
            rank = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)
            goes = np.zeros(len(ranked), dtype=bool)
            goes[order] = rank < left[ranked]
            if self._key and not goes.all():
                raise self._not_a_key(wanted.rows.take(hits.wanted[~goes]))
            left -= np.bincount(hits.wanted[goes], minlength=len(left))
            if goes.any():
                selected.append(_Hits(hits.file, hits.positions[goes], hits.wanted[goes]))
        if left.any():
            missing = wanted.rows.take(np.flatnonzero(left)[:1]).to_pylist()[0]
            raise CorruptionError(
                f"view {self._view}: a row that is to be removed is not in its table",
                where=str(self._log.folder),
                got=missing,
                safe="the view's table keeps the rows of its last good epoch",
                hint="compare with `mview verify`; `mview drop` the view and build it again",
            )
        return selected

    # --- which files -----------------------------------------------------------------------------

    def _is_marked(self, hits: _Hits) -> bool:
        """Whether the rows of a file that go are only marked as deleted."""
        path = hits.file.path.encode()
        limit = _MOST_DELETED // 2 + zlib.crc32(path) % (_MOST_DELETED // 2)
        return self._vectors and _deleted_after(hits) <= limit

    def _without(
        self, epoch: int, hits: _Hits, wanted: _Wanted, inserted: pa.Table
    ) -> tuple[list[DataFile], pa.Table | None]:
        """A file after the delta: written at once when it is large, else its rows to be merged."""
        rows = self._rows(hits.file)
        source = np.arange(rows.num_rows)
        if hits.file.deleted is not None:
            source[hits.file.deleted.positions] = -1
        replacement = wanted.replacement[hits.wanted]
        source[hits.positions] = np.where(replacement < 0, -1, rows.num_rows + replacement)
        after = pa.concat_tables([rows, inserted]).take(source[source >= 0])
        if after.num_rows < TARGET_ROWS // 2 and after.nbytes < TARGET_BYTES // 4:
            return [], after
        return [self._write(epoch, part) for part in pieces(after)], None

    def _unplaced(self, inserted: pa.Table, placed: Sequence[Positions]) -> pa.Table:
        if not placed:
            return inserted
        free = np.ones(inserted.num_rows, dtype=bool)
        for positions in placed:
            free[positions[positions >= 0]] = False
        return inserted.filter(pa.array(free))

    def _merge(
        self, small: Sequence[pa.Table], untouched: Sequence[DataFile]
    ) -> tuple[list[pa.Table], list[str]]:
        """The small parts, with others of their size in one where those are many.

        Returns:
            Tables to write, and the live files that are in them.
        """
        parts = {f"new {n}": part for n, part in enumerate(small) if part.num_rows}
        planned = [DataFile(name, part.nbytes, part.num_rows, "") for name, part in parts.items()]
        merged = crowded([*untouched, *planned])
        together = [
            parts.pop(file.path) if file.path in parts else self._live_rows(file) for file in merged
        ]
        removes = [file.path for file in merged if file in untouched]
        if together:
            return [*parts.values(), *pieces(self._sorted(together))], removes
        return list(parts.values()), removes

    def _sorted(self, parts: Sequence[pa.Table]) -> pa.Table:
        rows = pa.concat_tables(parts)
        return rows.sort_by([(name, "ascending") for name in self._key]) if self._key else rows

    def _write(self, epoch: int, rows: pa.Table) -> DataFile:
        name = self._log.new_file(f"{epoch:012d}")
        self._written.add(name, rows)
        footer = write_rows(self._log.folder / name, rows)
        self._learn(name, footer)
        return describe(self._log.folder, name, self._key, footer)

    def _learn(self, path: str, footer: pq.FileMetaData) -> Mapping[str, Range | None]:
        """Remember what a file's footer says of the columns that are looked through."""
        found = self._ranges[path] = {name: column_range(footer, name) for name in self._names}
        return found

    def _rows(self, file: DataFile) -> pa.Table:
        rows = self._written.get(file.path)
        return read_parquet(self._log.folder / file.path, self._schema) if rows is None else rows

    def _live_rows(self, file: DataFile) -> pa.Table:
        rows = self._rows(file)
        return rows if file.deleted is None else rows.take(live_positions(file))

    def _forget(self, live: Mapping[str, DataFile]) -> None:
        self._written.forget(live)
        self._looked.forget(live)
        self._ranges = {path: found for path, found in self._ranges.items() if path in live}

    def _not_a_key(self, keys: pa.Table) -> UserError:
        return UserError(
            f"view {self._view}: two rows have one key ({', '.join(self._names)})",
            got=keys.slice(0, 3).to_pylist(),
            safe="the view's table keeps the rows of its last good epoch",
            hint="declare a key that is unique in the result, or none: WITH (key='…')",
        )


def _find(file: DataFile, looked: _Sought, wanted: _Sought) -> _Hits:
    """The rows of a file that equal a wanted one, those that count as deleted left out."""
    positions, found = looked.match(wanted)
    if file.deleted is not None and len(positions):
        counts = ~_among(file.deleted.positions, positions)
        positions, found = positions[counts], found[counts]
    return _Hits(file, positions, found)


def _each(call: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """The results of a call per item; one alone needs no other thread."""
    return [call(item) for item in items] if len(items) < 2 else list(_pool.map(call, items))


def _among(ordered: Positions, wanted: Positions) -> npt.NDArray[np.bool_]:
    """Which of the wanted numbers stand in a list in order, which is not empty."""
    place = np.searchsorted(ordered, wanted)
    found: npt.NDArray[np.bool_] = ordered[np.minimum(place, len(ordered) - 1)] == wanted
    return found


def _deleted_after(hits: _Hits) -> int:
    return len(hits.positions) + (hits.file.deleted.rows if hits.file.deleted else 0)


def _mark(hits: _Hits) -> DataFile:
    """The file with the rows that go marked as deleted."""
    before = hits.file.deleted
    gone = hits.positions if before is None else np.union1d(before.positions, hits.positions)
    # Bounds stay true, but no row may be left that has one of them.
    stats = json.dumps({**json.loads(hits.file.stats), "tightBounds": False})
    return replace(hits.file, stats=stats, deleted=Deleted.at(gone))
