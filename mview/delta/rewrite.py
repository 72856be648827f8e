"""Which files a change by key touches, and the files that stand in their place.

Copy on write: a file with a row that goes is written anew. With deletion vectors it stays, and the
log says which of its rows count no more, until there are so many that writing it anew pays.

Rows are matched by what is equal in SQL (mview/rows/equality.py): by key, or by all columns where
there is no key and rows are counted; of these the identical ones go, and only where there are none
others that are equal. In a file that is written anew a changed row stays at its
place, so files stay in key order.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.delta.deletion import Deleted
from mview.delta.parquet import (
    DataFile,
    Ranges,
    comparable,
)
from mview.delta.recent import Recent
from mview.delta.tiers import crowded, is_full, is_small, pieces
from mview.errors import CorruptionError, UserError, rows_text
from mview.rows.equality import as_shown, has_floats, identical_rows, same_rows
from mview.rows.hashing import Hashes
from mview.rows.match import (
    IndexedRows,
    KeyCodes,
    Positions,
    Same,
    first_rows,
    key_codes,
    row_codes,
    rows_at,
)

#: Bytes of a table's rows that are remembered at the most: rows that were just written are read
#: again soon. All keys are looked through in most epochs (some 30 bytes per row with their index).
#: All tables together have a share of `engine.memory`, see `mview.delta.recent`.
_WRITTEN, _LOOKED = 64 << 20, sys.maxsize

#: Deleted rows that a file may have: about 2 bytes each in every commit that touches it. Files have
#: different limits from half of it on, so that they are not all written anew in one epoch.
_MOST_DELETED = 2048

#: So many values are sorted as a list: it is fast to look into. Python makes and sorts more of them
#: in one hold of the interpreter, 2 s for three million, and the epochs beside a compaction wait.
_LISTED = 100_000

#: Up to so many keys are found in remembered rows by the thread that asks: it takes some 0.1 ms per
#: file, and to hand the file to another thread takes as long.
_FEW_KEYS = 1 << 12

#: In place of the path of a file, for the rows that come and have none yet.
_NEW = ""
_NONE = np.empty(0, np.int64)

#: Shared by all tables: threads cost more to start than most files to look into.
_pool = ThreadPoolExecutor(os.cpu_count(), "mview-rewrite")

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Upsert:
    """Rows that go and rows that come.

    Attributes:
        keys: distinct rows of the columns by which rows are found.
        goes: how many rows of each key go; None: all that are there, if any.
        comes: the rows that come, of all columns.
        instead: for each key the number of the row that comes for it, or -1.
        hashes: of the keys, where they are known.
    """

    keys: pa.Table
    goes: Positions | None
    comes: pa.Table
    instead: Positions
    hashes: Hashes | None = None

    def hashes_of_comes(self) -> Hashes:
        """Of the rows that come, by the hashes of the keys: each has one."""
        assert self.hashes is not None
        there = np.flatnonzero(self.instead >= 0)
        hashes = np.empty(len(there), np.int64)
        hashes[self.instead[there]] = self.hashes[there]
        return hashes


@dataclass(frozen=True)
class Rewrite:
    """What an upsert comes to: files to add, live files to remove."""

    adds: list[DataFile]
    removes: list[str]


class _Part(NamedTuple):
    """A live file and what becomes of it, or (file None) rows that come and have no file yet.

    Attributes:
        file: the file.
        gone: positions of rows that go, and have not gone before.
        keys: for each the number of its key.
        added: numbers of rows that come, beside those that come in place of one that goes.
    """

    file: DataFile | None
    gone: Positions = _NONE
    keys: Positions = _NONE
    added: Positions = _NONE

    def planned(self, upsert: Upsert) -> DataFile:
        """About what will be written, to see which files are small."""
        rows = int(len(self.added) + np.count_nonzero(upsert.instead[self.keys] >= 0))
        if self.file is None:
            nbytes = upsert.comes.get_total_buffer_size()
            return DataFile(_NEW, nbytes * rows // upsert.comes.num_rows, rows, "")
        rows += self.file.live - len(self.gone)
        return DataFile(self.file.path, self.file.size * rows // self.file.rows, rows, "")

    @property
    def deleted(self) -> Positions:
        """Positions of the rows that go or have gone before, each once, in any order."""
        before = self.file.deleted if self.file else None
        return self.gone if before is None else np.concatenate([before.positions, self.gone])

    @property
    def dead(self) -> int:
        """How many rows go or have gone before."""
        before = self.file.deleted if self.file else None
        return len(self.gone) + (before.rows if before else 0)

    def marked(self) -> DataFile:
        """The file with the rows that go marked as deleted."""
        assert self.file is not None
        file, deleted = self.file, Deleted.at(self.deleted)
        return DataFile(file.path, file.size, file.rows, _loose(file.stats), deleted)


class Files(Protocol):
    """The data files of one table, wherever they lie."""

    @property
    def where(self) -> str:
        """The table's place, for messages."""
        ...

    def read_file(
        self, path: str, schema: pa.Schema, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of a file, without regard to deletion vectors; see `read_parquet`."""
        ...

    def ranges(self, file: DataFile, names: Sequence[str]) -> Ranges:
        """Bounds of columns of a file."""
        ...

    def write_file(
        self, prefix: str, rows: pa.Table, names: Sequence[str], told: Sequence[str]
    ) -> tuple[DataFile, Ranges]:
        """Write rows as a new file, invisible until it is committed.

        Args:
            prefix: of its name.
            rows: all of it.
            names: columns whose bounds are returned.
            told: those of them whose bounds the log tells.
        """
        ...


class Rewriter:
    """Turns upserts into file changes of one table.

    Args:
        files: the table's.
        schema: the table's columns, all nullable.
        key: the table's key; empty for multiset semantics.
        owner: whose table it is, for messages.
        ordered: for rare and large upserts. Files keep to ranges of the first key column, as far
            as they did; one file is read at a time, and nothing of it is remembered. Else rows that
            have no place make new files, and threads share the work.
    """

    def __init__(
        self,
        files: Files,
        schema: pa.Schema,
        key: Sequence[str],
        owner: str,
        *,
        ordered: bool = False,
    ) -> None:
        self._files, self._schema, self._owner = files, schema, owner
        self._ordered = ordered
        self._key = tuple(key)
        self._names = list(key) or list(schema.names)
        self._ranges: dict[str, Ranges] = {}
        #: Rows of files that were just written, without regard to deletion vectors.
        self._written: Recent[pa.Table] = Recent(0 if ordered else _WRITTEN)
        self._looked: Recent[IndexedRows] = Recent(0 if ordered else _LOOKED, scanned=True)

    def weighted(self, rows: pa.Table, weight: Positions, coded: KeyCodes | None = None) -> Upsert:
        """What rows with weights come to.

        Args:
            rows: the table's columns; no two rows equal.
            weight: for each row how many come; negative: go.
            coded: the keys of the rows, where they are known.

        Raises:
            UserError: two rows come for one key: it is none.
        """
        gone, coming = np.flatnonzero(weight < 0), np.flatnonzero(weight > 0)
        if (weight[coming] > 1).any():
            coming = np.repeat(coming, weight[coming])
        comes = rows.take(pa.array(coming))
        if not self._key:
            looked = as_shown(rows.take(pa.array(gone)))
            first, group = first_rows(row_codes([looked])[0])
            goes = np.bincount(group, -weight[gone], len(first)).astype(np.int64)
            keys = rows.take(pa.array(gone[first]))
            return Upsert(keys, goes, comes, np.full(len(first), -1, dtype=np.int64))
        # Rows that come are looked for too: such a key must not be there already.
        coded = coded or key_codes(rows, self._key)
        first, group = first_rows(coded.codes)
        goes = np.bincount(group[gone], -weight[gone], len(first)).astype(np.int64)
        instead = np.full(len(first), -1, dtype=np.int64)
        keys, come = rows.select(self._names).take(pa.array(first)), group[coming]
        double = np.flatnonzero(np.bincount(come) > 1)
        if len(double):
            raise self._not_a_key(keys.take(double))
        instead[come] = np.arange(comes.num_rows)
        return Upsert(keys, goes, comes, instead, coded.hashes[first])

    def plan(
        self,
        prefix: str,
        upsert: Upsert,
        live: Mapping[str, DataFile],
        *,
        vectors: bool = False,
    ) -> Rewrite:
        """Write the files that make an upsert true.

        Args:
            prefix: of the names of the files.
            upsert: what goes and comes.
            live: the table's files.
            vectors: rows that go are marked as deleted where that pays.

        Raises:
            UserError: two rows for one key: the declared key is none.
            CorruptionError: a row to be removed is not in the table.
        """
        self._forget(live)
        hits = self._hits(upsert, live.values())
        marked = {path: h for path, h in hits.items() if vectors and _is_marked(path, h)}
        anew = {path: hit for path, hit in hits.items() if path not in marked}
        others = {path: file for path, file in live.items() if path not in marked}
        groups = self._groups(upsert, self._place(upsert, anew, others), others)
        written = self._each(lambda group: self._write(prefix, group, upsert), groups)
        adds = [file for files in written for file in files]
        adds += [hit.marked() for path, hit in marked.items() if hit.dead < live[path].rows]
        removes = [part.file.path for group in groups for part in group if part.file]
        return Rewrite(adds, [*marked, *removes])

    # --- which rows ------------------------------------------------------------------------------

    def _hits(self, upsert: Upsert, live: Iterable[DataFile]) -> dict[str, _Part]:
        """The rows that go, by file."""
        if not self._key and any(has_floats(kind) for kind in self._schema.types):
            with suppress(CorruptionError):
                return self._select(upsert, self._look(live, upsert, identical_rows))
            # Which of 0.0 and -0.0 a value is may be chance: min has another each time.
            first, group = first_rows(row_codes([upsert.keys])[0])
            goes = np.bincount(group, upsert.goes).astype(np.int64)
            upsert = replace(upsert, keys=upsert.keys.take(first), goes=goes)
        return self._select(upsert, self._look(live, upsert))

    def _look(
        self, live: Iterable[DataFile], upsert: Upsert, same: Same = same_rows
    ) -> list[_Part]:
        """The rows that have a key, by file."""
        keys = upsert.keys
        if not keys.num_rows:
            return []
        values = {n: (_orderly(keys[n]), bool(keys[n].null_count)) for n in self._names}
        # Small files first: where equal rows are in several files, the cheap one is rewritten.
        files = sorted((f for f in live if self._may_hold(f, values)), key=lambda file: file.rows)
        wanted = IndexedRows.of(keys, upsert.hashes)
        if keys.num_rows <= _FEW_KEYS and all(map(self._remembers, files)):
            return [self._find(file, wanted, same) for file in files]
        return self._each(lambda file: self._find(file, wanted, same), files)

    def _remembers(self, file: DataFile) -> bool:
        """Whether the rows of a file are in memory, or their index is."""
        return file.path in self._looked or file.path in self._written

    def _find(self, file: DataFile, wanted: IndexedRows, same: Same) -> _Part:
        indexed = self._looked.get(file.path)
        if indexed is None:
            rows = self._written.get(file.path)
            if rows is None:
                rows = self._files.read_file(file.path, self._schema, self._names)
            indexed = IndexedRows.of(rows.select(self._names))
            self._looked.add(file.path, indexed)
        positions, keys = indexed.match(wanted, same)
        if file.deleted and len(positions) and len(gone := file.deleted.positions):
            place = np.minimum(np.searchsorted(gone, positions), len(gone) - 1)
            counts = gone[place] != positions
            positions, keys = positions[counts], keys[counts]
        return _Part(file, positions, keys)

    def _select(self, upsert: Upsert, parts: Sequence[_Part]) -> dict[str, _Part]:
        """Of all rows that match, those that go: as many of each as the upsert says."""
        left = None if upsert.goes is None else upsert.goes.copy()
        selected = {}
        for part in parts:
            if left is not None:
                order = np.argsort(part.keys, kind="stable")
                ranked = part.keys[order]
                rank = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)
                goes = np.zeros(len(ranked), dtype=bool)
                goes[order] = rank < left[ranked]
                if self._key and not goes.all():
                    raise self._not_a_key(upsert.keys.take(part.keys[~goes]))
                part = _Part(part.file, part.gone[goes], part.keys[goes])
                left -= np.bincount(part.keys, minlength=len(left))
            if part.file and len(part.gone):
                selected[part.file.path] = part
        if left is not None and left.any():
            raise CorruptionError(
                f"{self._owner}: a row that is to be removed is not in its table",
                where=self._files.where,
                got=rows_text(upsert.keys.take(np.flatnonzero(left)[:1]).to_pylist()),
                safe="the view's table keeps the rows of its last good epoch",
                hint="compare with `mview verify`; `mview drop` the view and build it again",
            )
        return selected

    # --- which files -----------------------------------------------------------------------------

    def _place(
        self, upsert: Upsert, anew: Mapping[str, _Part], live: Mapping[str, DataFile]
    ) -> dict[str, _Part]:
        """What changes, by file; rows that come go where the row was that they replace."""
        parts = dict(anew)
        free = np.ones(upsert.comes.num_rows, dtype=bool)
        for part in anew.values():
            instead = upsert.instead[part.keys]
            free[instead[instead >= 0]] = False
        left = np.flatnonzero(free)
        if self._ordered:
            column = upsert.comes[self._names[0]].take(pa.array(left))
            # NULL and NaN are sorted last, so the values still fit the rows by position.
            left = left[pc.sort_indices(column).to_numpy()]
            values, done = _orderly(column), 0
            for file in self._in_order(live.values()):
                bounds = self._bounds(file)[self._names[0]]
                upto = bisect_right(values, bounds.high, done) if bounds else done
                if upto > done:
                    part = parts.get(file.path, _Part(file))
                    parts[file.path] = part._replace(added=left[done:upto])
                    done = upto
            left = left[done:]
        return {**parts, _NEW: _Part(None, added=left)} if len(left) else parts

    def _groups(
        self, upsert: Upsert, changed: Mapping[str, _Part], live: Mapping[str, DataFile]
    ) -> list[list[_Part]]:
        """The parts that are written; those in one group make files of a size together."""
        if self._ordered:
            files = self._in_order(f for f in live.values() if f.path in changed or is_small(f))
            paths = [*(file.path for file in files), *({_NEW} & changed.keys())]
        else:
            planned = [part.planned(upsert) for part in changed.values()]
            same = [file for path, file in live.items() if path not in changed]
            paths = [file.path for file in crowded([*same, *planned])]
        together = [changed[path] if path in changed else _Part(live[path]) for path in paths]
        alone = [[part] for path, part in changed.items() if path not in set(paths)]
        return [*alone, together] if together else alone

    def _write(self, prefix: str, group: Sequence[_Part], upsert: Upsert) -> list[DataFile]:
        files = []
        for rows in self._packed(group, upsert):
            file, ranges = self._files.write_file(prefix, rows, self._names, self._key)
            self._written.add(file.path, rows)
            self._ranges[file.path] = ranges
            files.append(file)
        new = group[0]
        if len(group) == len(files) == 1 and new.file is None and upsert.hashes is not None:
            # The next change looks through it, and what it looks for was hashed just now.
            hashes = upsert.hashes_of_comes()[new.added]
            self._looked.add(files[0].path, IndexedRows.of(rows.select(self._names), hashes))
        return files

    def _packed(self, group: Sequence[_Part], upsert: Upsert) -> Iterator[pa.Table]:
        """The rows of parts in tables of a file's size; not many more are held at a time."""
        held: list[pa.Table] = []
        for part in group:
            held += self._after(part, upsert)
            if part is group[-1] or is_full(
                sum(rows.num_rows for rows in held), sum(rows.nbytes for rows in held)
            ):
                rows = pa.concat_tables(held)
                if self._key and len(held) > 1:
                    rows = rows.sort_by([(name, "ascending") for name in self._key])
                held = []
                yield from pieces(rows)

    def _after(self, part: _Part, upsert: Upsert) -> list[pa.Table]:
        """The rows of a part: what a file has after the upsert, and what comes beside."""
        added = [_some(upsert.comes, part.added)] if len(part.added) else []
        if part.file is None:
            return added
        rows = self._written.get(part.file.path)
        if rows is None:
            rows = self._files.read_file(part.file.path, self._schema)
        if not part.dead:
            return [rows, *added]
        instead = upsert.instead[part.keys]
        there = instead >= 0
        source = np.arange(rows.num_rows)
        source[part.deleted] = -1
        source[part.gone[there]] = rows.num_rows + np.arange(np.count_nonzero(there))
        both = pa.concat_tables([rows, upsert.comes.take(pa.array(instead[there]))])
        return [both.take(pa.array(source[source >= 0])), *added]

    # --- bounds ----------------------------------------------------------------------------------

    def _may_hold(self, file: DataFile, columns: Mapping[str, tuple[Sequence[Any], bool]]) -> bool:
        """Whether a row of a file may have, in each column, one of its values (or NULL)."""
        for name, bounds in self._bounds(file).items():
            values, null = columns[name]
            if bounds is not None and not (null and bounds.nulls):
                place = bisect_left(values, bounds.low)
                if place == len(values) or values[place] > bounds.high:
                    return False
        return True

    def _in_order(self, files: Iterable[DataFile]) -> list[DataFile]:
        """By the first column that is looked through; first those whose bounds are not known."""
        bounds = [(self._bounds(file)[self._names[0]], file) for file in files]
        ranged = sorted(((b.low, n) for n, (b, _) in enumerate(bounds) if b))
        return [*(file for b, file in bounds if not b), *(bounds[n][1] for _, n in ranged)]

    def _bounds(self, file: DataFile) -> Ranges:
        """What a file's footer says of the columns that are looked through."""
        known = self._ranges.get(file.path)
        if known is None:
            known = self._ranges[file.path] = self._files.ranges(file, self._names)
        return known

    def _forget(self, live: Mapping[str, DataFile]) -> None:
        self._written.forget(live)
        self._looked.forget(live)
        self._ranges = {path: known for path, known in self._ranges.items() if path in live}

    def _each(self, call: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """The results of a call per item; one alone needs no other thread."""
        if self._ordered or len(items) < 2:
            return [call(item) for item in items]
        return list(_pool.map(call, items))

    def _not_a_key(self, keys: pa.Table) -> UserError:
        return UserError(
            f"{self._owner}: two rows have one key ({', '.join(self._names)})",
            got=rows_text(keys.slice(0, 3).to_pylist()),
            safe="the view's table keeps the rows of its last good epoch",
            hint="declare a key that is unique in the result, or none: WITH (key='…')",
        )


def _some(rows: pa.Table, places: Positions) -> pa.Table:
    """Rows at some places; a part of them is a copy: it is remembered, and would hold all."""
    return rows_at(rows, places) if len(places) == rows.num_rows else rows.take(pa.array(places))


@lru_cache(maxsize=1 << 10)
def _loose(stats: str) -> str:
    """Statistics of a file with deleted rows: the bounds are true, but no row may have them."""
    return json.dumps({**json.loads(stats), "tightBounds": False})


def _is_marked(path: str, part: _Part) -> bool:
    """Whether the rows of a file that go are only marked as deleted."""
    limit = _MOST_DELETED // 2 + zlib.crc32(path.encode()) % (_MOST_DELETED // 2)
    return part.dead <= limit


class _Ordered(Sequence[Any]):
    """A sorted column, of which values are made as they are looked at."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, place: Any) -> Any:
        (value,) = comparable(self._column.slice(place, 1))
        return value


def _orderly(column: pa.ChunkedArray) -> Sequence[Any]:
    """The values that have a place in an order, sorted: no NULL, no NaN, no list."""
    if pa.types.is_nested(column.type):
        return []
    values = column.drop_null()
    if len(values) <= _LISTED:
        return sorted(value for value in comparable(values) if value == value)
    values = values.filter(pc.equal(values, values))
    return _Ordered(values.take(pc.sort_indices(values)))
