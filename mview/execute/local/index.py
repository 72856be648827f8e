"""Resident tables: an in-memory copy of a mirror, looked up by key values in milliseconds.

A table is a list of immutable segments (the base first, then what epochs added), each with a
bitmap of the rows that still live and sorted hash indexes made on first use. A change costs what it
touches; segments are merged so that their number stays small.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mview.errors import CorruptionError, rows_text
from mview.relation import RelationId
from mview.rows.equality import same_rows
from mview.rows.hashing import Hashes, hash_rows, is_exact, maybe_null, tells
from mview.rows.lookup_keys import first_duplicate, typed_keys
from mview.rows.match import match, rows_at
from mview.rows.parts import Parts
from mview.rows.ranges import Range
from mview.rows.sorted_index import Rows, SortedIndex, order_of
from mview.rows.values import Row, are_few, first_places, row_values

#: Segments up to this many rows are merged while an epoch waits: some 10 ms at the most.
_SMALL = 1 << 16
#: Of such segments, each has at least so many times the rows of the next: a look-up visits few.
_RATIO = 8
#: Look-ups whose rows are remembered: a table that never changes forgets none by itself. Of each
#: so many bytes, or so small a part of the table's: nobody counts them.
_LAST = 16
_REMEMBERED, _PART = 1 << 20, 64
#: Rows that are handed out at once where all are asked for.
_PART_ROWS = 1 << 20
#: So many segments of that size make the merge into the base due (in the background).
_FULL_SEGMENTS = 8


#: Rows by segment.
_Places = list[tuple["Segment", Rows]]
#: Columns and number of keys.
_Asked = tuple[tuple[str, ...], int]
#: Of a segment: numbers of keys, and the row of each; only rows where they are not primary keys.
_Hit = tuple["Segment", Rows, Rows]
_NONE = np.empty(0, np.int64)


@dataclass
class _Found:
    """What a look-up has found: rows, and those of their columns that were asked for so far."""

    keys: pa.Table
    hits: list[_Hit]
    columns: dict[str, pa.ChunkedArray] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum(len(rows) for _, _, rows in self.hits)

    @property
    def places(self) -> _Places:
        """The rows."""
        return [(segment, rows) for segment, _, rows in self.hits]


@dataclass(frozen=True)
class _Located:
    """What a look-up of many keys by the primary key has found; `asked` is what it was given."""

    asked: pa.Table
    keys: pa.Table
    hits: list[_Hit]

    @property
    def numbers(self) -> Rows:
        """Of each row, in the order they were handed out, the number of its key."""
        return np.concatenate([np.empty(0, np.int64), *(numbers for _, numbers, _ in self.hits)])

    def going(self, old: pa.Table, new: pa.Table, codes: Rows) -> _Places | None:
        """Where the rows of a delta stand that go.

        Args:
            old: as for `apply`.
            new: the same.
            codes: of the old rows, then of the new ones; perhaps the numbers of their keys.

        Returns:
            None: they are not, or it is not sure that the delta is one of the table.
        """
        count = self.keys.num_rows
        if len(codes) != old.num_rows + new.num_rows or codes.max(initial=-1) >= count:
            return None
        goes, comes = np.split(codes, [old.num_rows])
        for rows, numbers in ((old, goes), (new, comes)):
            if (np.bincount(numbers) > 1).any():
                return None
            mine = rows.select(self.keys.column_names).columns
            if not same_rows(mine, self.keys.take(pa.array(numbers)).columns).all():
                return None
        there, going = np.zeros((2, count), np.bool_)
        there[self.numbers], going[goes] = True, True
        if (going & ~there).any() or (there & ~going)[comes].any():
            return None
        return [(segment, rows[going[numbers]]) for segment, numbers, rows in self.hits]


@dataclass(frozen=True)
class _Foreseen:
    """Where the rows of a delta stand that go, as long as the segments are these."""

    old: pa.Table
    new: pa.Table
    segments: list[Segment]
    going: _Places

    def holds(self, old: pa.Table, new: pa.Table, segments: list[Segment]) -> bool:
        """Whether it is of this delta, and of these segments: what is in them never moves."""
        same = len(segments) == len(self.segments) and all(map(is_, segments, self.segments))
        return same and self.old is old and self.new is new


@dataclass
class Segment:
    """Rows that never move, the bitmap of those that live, and their indexes."""

    rows: pa.Table
    alive: NDArray[np.bool_]
    dead: int = 0
    indexes: dict[tuple[str, ...], SortedIndex] = field(default_factory=dict)
    #: By columns, whether their hash tells what they are.
    told: dict[tuple[str, ...], bool] = field(default_factory=dict)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of the rows: they never move, and each epoch asks."""
        return int(self.rows.nbytes)

    @classmethod
    def of(cls, rows: pa.Table) -> Segment:
        """A segment of rows that all live."""
        return cls(rows, np.ones(rows.num_rows, np.bool_))

    @property
    def live(self) -> int:
        """Number of live rows."""
        return len(self.alive) - self.dead

    def columns(self, names: Iterable[str]) -> list[pa.ChunkedArray]:
        """The named columns."""
        return [self.rows.column(name) for name in names]

    def index(self, names: tuple[str, ...]) -> SortedIndex:
        """The index over some columns."""
        index = self.indexes.get(names)
        if index is None:
            index = self.indexes[names] = SortedIndex.build(hash_rows(self.columns(names)))
        return index

    def tells(self, names: tuple[str, ...]) -> bool:
        """Whether the hash of some columns tells what they are."""
        if names not in self.told:
            self.told[names] = tells(self.columns(names))
        return self.told[names]

    def between(self, name: str, low: int, high: int) -> Rows:
        """The live rows whose hashes of a column are in a range."""
        rows = self.index((name,)).between(low, high)
        return rows[self.alive[rows]] if self.dead else rows

    def find(self, names: tuple[str, ...], needles: Hashes) -> tuple[Rows, Rows]:
        """All (needle number, live row) pairs whose hashes are equal."""
        numbers, rows = self.index(names).find(needles)
        if self.dead:
            living = self.alive[rows]
            numbers, rows = numbers[living], rows[living]
        return numbers, rows

    def find_few(self, names: tuple[str, ...], wanted: Mapping[Row, int]) -> tuple[Rows, Rows]:
        """The numbers of the values that live rows have, and these rows; of a small segment."""
        if not self.live:
            return _NONE, _NONE
        values = zip(row_values(self.rows.select(names)), self.alive.tolist(), strict=True)
        pairs = [
            (wanted[row], place)
            for place, (row, lives) in enumerate(values)
            if lives and row in wanted
        ]
        numbers, rows = np.array(pairs, np.int64).reshape(-1, 2).T
        return numbers, rows

    def kill(self, rows: Rows) -> None:
        """Mark live rows as dead."""
        self.alive[rows] = False
        self.dead += len(rows)

    def living(self) -> Rows:
        """The numbers of the live rows, in order."""
        return np.flatnonzero(self.alive)

    @property
    def nbytes(self) -> int:
        """Bytes of rows, bitmap and indexes."""
        indexes = sum(
            index.nbytes(self.rows.column(names[0]) if len(names) == 1 else None)
            for names, index in list(self.indexes.items())
        )
        return self.row_bytes + self.alive.nbytes + indexes


class ResidentTable:
    """The rows of one table at one epoch, in memory.

    Look-ups and `apply` may come from several threads; `merge` may run beside them.

    Args:
        name: the relation, for messages.
        key: the primary key columns.
        rows: the rows, with the used columns (the key among them); keys are unique.
    """

    def __init__(self, name: RelationId, key: Sequence[str], rows: pa.Table) -> None:
        self.name, self.key, self.schema = name, tuple(key), rows.schema
        self._segments = [Segment.of(self._ordered(rows))]
        self._lock = threading.RLock()
        self._merging = threading.Lock()
        # What look-ups have found since the last change: several views ask for the same keys.
        self._found: dict[_Asked, _Found] = {}
        # Rows that died while a merge was reading them: (segment, rows).
        self._died: list[tuple[Segment, Rows]] | None = None
        self._foreseen: _Foreseen | None = None
        self._located: _Located | None = None

    @property
    def num_rows(self) -> int:
        """Number of live rows."""
        with self._lock:
            return sum(segment.live for segment in self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of rows, bitmaps and indexes."""
        with self._lock:
            return sum(segment.nbytes for segment in self._segments)

    @property
    def merge_due(self) -> bool:
        """Whether so much has changed that `merge` pays."""
        with self._lock:
            full = sum(len(s.alive) >= _SMALL for s in self._segments[1:])
            base = self._segments[0]
            return full >= _FULL_SEGMENTS or base.dead > max(_SMALL, len(base.alive) // 4)

    def rows(self) -> pa.Table:
        """All live rows."""
        with self._lock:
            return self._gather((segment, segment.living()) for segment in self._segments)

    def prepare(self, columns: Iterable[str]) -> None:
        """Make the index over some columns before it is asked for; look-ups go on meanwhile."""
        wanted = set(columns)
        names = tuple(name for name in self.schema.names if name in wanted)
        self._segments[0].index(names)

    def lookup(
        self,
        columns: Sequence[str],
        keys: pa.Table,
        null_safe: bool = False,
        select: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows whose `columns` hold one of the keys; each row once.

        By the whole primary key the answer is exact; otherwise more rows may come than asked for.

        Args:
            columns: columns of this table.
            keys: one column per name in `columns`, in that order; duplicates are allowed.
            null_safe: NULL in a key matches NULL (`<=>`); otherwise such keys match nothing.
            select: columns to return; None: all.
        """
        names = self.schema.names if select is None else select
        typed = typed_keys(self.schema, columns, keys, null_safe)
        if typed is None:
            return self.rows().select(names)
        with self._lock:
            hits = self._look_up(typed)
            if _SMALL < typed.num_rows == keys.num_rows and set(columns) == set(self.key):
                self._located = _Located(keys, typed, hits.hits)
            if hits.num_rows > _SMALL:
                return self._gather(hits.places, names)
            known = dict(hits.columns)
            missing = [name for name in names if name not in known]
            if missing:
                rows = self._gather(hits.places, missing)
                known.update(zip(missing, rows.columns, strict=True))
                most = max(_REMEMBERED, self._segments[0].row_bytes // _PART)
                if rows.get_total_buffer_size() <= most:
                    hits.columns.update(known)
        return pa.table([known[name] for name in names], self._fields(names))

    def within(self, wanted: Range, select: Sequence[str] | None = None) -> pa.Table:
        """The rows whose column is in a range, each once; rows with NULL there may come, too.

        Args:
            wanted: the range.
            select: columns to return; None: all.
        """
        low, high = wanted.hashes
        with self._lock:
            parts = (
                (segment, segment.between(wanted.column, low, high)) for segment in self._segments
            )
            return self._gather(parts, select)

    def apply(self, old: pa.Table, new: pa.Table) -> None:
        """Take one epoch's delta: rows that go (by primary key) and rows that come.

        Args:
            old: rows with at least the key columns; each is in the table.
            new: rows with the table's columns; none is in the table without `old`.

        Raises:
            CorruptionError: a row to remove is missing, or one to add is already there. Nothing
                was changed.
        """
        with self._lock:
            self._found.clear()
            self._located = None
            foreseen, self._foreseen = self._foreseen, None
            if foreseen is None or not foreseen.holds(old, new, self._segments):
                foreseen = self._foresee(old, new, self._segments)
            going = foreseen.going
            for segment, rows in going:
                segment.kill(rows)
            if self._died is not None:
                self._died += going
            if new.num_rows:
                self._segments.append(Segment.of(new.select(self.schema.names).cast(self.schema)))
                self._merge_small()

    def end_epoch(self) -> None:
        """Forget where many keys were found, in a table that does not change, too."""
        self._located = None

    def key_numbers(self, keys: pa.Table) -> Rows | None:
        """Of each row that `lookup` of these very keys has found, which of them it has.

        Returns:
            None: they were few, or are not of the primary key, or not what was looked up last.
        """
        with self._lock:
            known = self._located
        return known.numbers if known is not None and known.asked is keys else None

    def foresee(self, old: pa.Table, new: pa.Table, codes: Rows | None = None) -> None:
        """Find what `apply` needs to find; look-ups go on meanwhile.

        Args:
            old: as for `apply`, to which the same tables will be given.
            new: the same.
            codes: of the old rows and then of the new ones, the same for the same key. Where they
                are by `key_numbers`, nothing is searched.
        """
        with self._lock:
            segments, known = list(self._segments), self._located
        if known is not None and codes is not None:
            going = known.going(old, new, codes)
            if going is not None:
                self._foreseen = _Foreseen(old, new, segments, going)
                return
        with suppress(CorruptionError):  # `apply` will say so
            self._foreseen = self._foresee(old, new, segments)

    def _foresee(self, old: pa.Table, new: pa.Table, segments: list[Segment]) -> _Foreseen:
        going = self._locate(old, len(old), "removed but is not in the table", segments)
        # A key that goes is free; most that come are such: updates are the rule.
        comes, goes = match(new.select(list(self.key)), old.select(list(self.key)))
        if len(comes) < new.num_rows:
            other = np.delete(np.arange(new.num_rows), comes)
            self._locate(rows_at(new, other), 0, "added but is already in the table", segments)
            self._check_unique(new)
        elif np.bincount(goes).max(initial=0) > 1:
            self._check_unique(new)
        return _Foreseen(old, new, list(segments), going)

    def after(self, change: tuple[pa.Table, pa.Table] | None, select: Sequence[str]) -> Parts:
        """All rows as they will be after a delta that is not taken yet, whatever is taken later.

        Args:
            change: as for `apply`; None: none.
            select: columns to return.

        Raises:
            CorruptionError: a row to remove is missing.
        """
        fields = self._fields(select)
        with self._lock:
            living = [(segment, segment.alive.copy()) for segment in self._segments]
            going = []
            if change is not None:
                old = change[0]
                going = self._locate(
                    old, len(old), "removed but is not in the table", self._segments
                )
        gone = {id(segment): rows for segment, rows in going}
        for segment, alive in living:
            alive[gone.get(id(segment), [])] = False

        def parts() -> Iterator[pa.Table]:
            for segment, alive in living:
                rows = segment.rows.select(fields.names)
                for start in range(0, rows.num_rows, _PART_ROWS):
                    there = alive[start : start + _PART_ROWS]
                    part = rows.slice(start, _PART_ROWS)
                    yield part if there.all() else part.filter(pa.array(there))
            if change is not None:
                yield change[1]

        return Parts(fields, parts)

    def merge(self) -> None:
        """Rewrite all segments into one; look-ups and changes go on meanwhile."""
        with self._merging:
            with self._lock:
                parts = [(segment, segment.living()) for segment in self._segments]
                names = list(self._segments[0].indexes)
                self._died = []
            rows = self._gather(parts)
            order = self._order(rows)
            merged = Segment.of(rows if order is None else rows.take(pa.array(order)))
            for columns in names:
                merged.index(columns)
            with self._lock:
                self._replace(parts, merged, order)
                self._died = None

    def _replace(
        self, parts: list[tuple[Segment, Rows]], merged: Segment, order: Rows | None
    ) -> None:
        self._found.clear()
        self._located = None
        moved = np.empty(len(merged.alive), np.int64)
        moved[order if order is not None else slice(None)] = np.arange(len(moved))
        starts = np.cumsum([0] + [len(rows) for _, rows in parts])
        taken = {id(s): (rows, start) for (s, rows), start in zip(parts, starts, strict=False)}
        for segment, died in self._died or ():
            if id(segment) in taken:
                rows, start = taken[id(segment)]
                merged.kill(moved[start + np.searchsorted(rows, died)])
        self._segments = [merged, *(s for s in self._segments if id(s) not in taken)]

    def _merge_small(self) -> None:
        """Merge the newest segments, so that each stays `_RATIO` times as large as the next."""
        while len(self._segments) > 2:
            before, last = self._segments[-2:]
            if len(before.alive) >= _SMALL or len(before.alive) > _RATIO * len(last.alive):
                return
            if self._died is not None:
                return  # a running merge holds these segments
            pair = [(segment, segment.living()) for segment in (before, last)]
            self._segments[-2:] = [Segment.of(self._gather(pair))]

    def _locate(
        self,
        rows: pa.Table,
        expected: int,
        problem: str,
        segments: Sequence[Segment],
    ) -> _Places:
        """Where the rows with these primary keys are; their number must be as expected.

        Args:
            rows: with the key columns.
            expected: so many are there.
            problem: what is wrong where they are not.
            segments: where they are looked for.
        """
        if rows.num_rows == 0:
            return []
        # Groups of an aggregate's state may be NULL.
        typed = typed_keys(self.schema, self.key, rows.select(list(self.key)), null_safe=True)
        if typed is None or typed.num_rows != rows.num_rows:
            raise CorruptionError(
                "a change has a primary key that does not fit the table", where=str(self.name)
            )
        hits = list(self._find(typed, segments))
        if sum(len(places) for _, _, places in hits) == expected:
            return [(segment, places) for segment, _, places in hits]
        hit = np.zeros(typed.num_rows, np.bool_)
        for _, numbers, _ in hits:
            hit[numbers] = True
        wrong = np.flatnonzero(~hit if expected else hit)
        raise CorruptionError(
            f"a row is {problem}",
            where=str(self.name),
            got=rows_text(typed.slice(int(wrong[0]), 1).to_pylist())
            if len(wrong)
            else "a key given twice",
            hint="run the same command again: what is in memory is read anew; if it stays, "
            "`mview drop` the table, or the view, and run again",
        )

    def _check_unique(self, new: pa.Table) -> None:
        if new.num_rows == 0:
            return
        keys = new.select(list(self.key))
        if (row := first_duplicate(keys)) is not None:
            raise CorruptionError(
                "a change adds a primary key twice",
                where=str(self.name),
                got=rows_text(keys.slice(row, 1).to_pylist()),
            )

    def _look_up(self, typed: pa.Table) -> _Found:
        asked = tuple(typed.column_names), typed.num_rows
        hits = self._found.get(asked)
        if hits is None or not hits.keys.equals(typed):
            hits = _Found(typed, list(self._find(typed, self._segments)))
            if typed.num_rows <= _SMALL:
                self._found.pop(asked, None)
                self._found[asked] = hits
            if len(self._found) > _LAST:
                del self._found[next(iter(self._found))]
        return hits

    def _find(self, typed: pa.Table, segments: Iterable[Segment]) -> Iterator[_Hit]:
        """Per segment: numbers of keys, and rows; by the primary key no false ones."""
        names, types = tuple(typed.column_names), typed.schema.types
        few: list[Segment] = []
        many: list[Segment] = []
        # By a key of which hashes have to be confirmed, few rows are compared at once.
        by_value = set(names) == set(self.key) and not is_exact(types)
        for segment in segments:
            is_small = by_value and are_few(len(segment.alive) + typed.num_rows, types)
            (few if is_small else many).append(segment)
        wanted = first_places(row_values(typed)) if few else {}
        for segment in few:
            numbers, rows = segment.find_few(names, wanted)
            if len(rows):
                yield segment, numbers, rows
        if many:
            yield from self._find_many(names, typed, many)

    def _find_many(
        self, names: tuple[str, ...], typed: pa.Table, segments: Sequence[Segment]
    ) -> Iterator[_Hit]:
        hashes = hash_rows(typed.columns)
        by_key = set(names) == set(self.key)
        order = order_of(hashes)
        if order is None:
            order = np.arange(len(hashes))
        ranked = hashes[order]
        once = np.append(True, ranked[1:] != ranked[:-1])[: len(ranked)]
        needles, firsts = ranked[once], order[once]
        exact = is_exact([column.type for column in typed.columns]) and not maybe_null(hashes)
        checked = by_key and not exact
        is_told = checked and tells(typed.columns)
        if checked and len(needles) < typed.num_rows:
            # Two keys of one hash must both be compared: keep them all.
            needles, firsts = ranked, order
        for segment in segments:
            numbers, rows = segment.find(names, needles)
            numbers = firsts[numbers] if by_key else _NONE
            if checked and len(rows):
                # In the order of the rows: they are read side by side, here and by who asks.
                if (rows[1:] < rows[:-1]).any():
                    by_row = np.argsort(rows)
                    numbers, rows = numbers[by_row], rows[by_row]
                if not (is_told and segment.tells(names)):
                    place = pa.array(rows)
                    there = [column.take(place) for column in segment.columns(names)]
                    same = same_rows(there, typed.take(pa.array(numbers)).columns)
                    if not same.all():
                        numbers, rows = numbers[same], rows[same]
                # A key that is given twice is one.
                other = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
                if not other.all():
                    numbers, rows = numbers[other], rows[other]
            if len(rows):
                yield segment, numbers, rows

    def _gather(
        self, parts: Iterable[tuple[Segment, Rows]], select: Sequence[str] | None = None
    ) -> pa.Table:
        names = list(self.schema.names if select is None else select)
        pieces = []
        for segment, rows in parts:
            content = segment.rows.select(names)
            whole = len(rows) == len(segment.alive)
            pieces.append(content if whole else content.take(pa.array(rows)))
        if not pieces:
            return self._fields(names).empty_table()
        return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces).combine_chunks()

    def _fields(self, names: Iterable[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in names])

    def _ordered(self, rows: pa.Table) -> pa.Table:
        rows = rows.combine_chunks()
        order = self._order(rows)
        return rows if order is None else rows.take(pa.array(order))

    def _order(self, rows: pa.Table) -> Rows | None:
        """Order by the first key column: its index then needs no memory, and ranges lie close."""
        first = rows.column(self.key[0])
        if not is_exact([first.type]):
            return None
        hashes = hash_rows([first])
        if bool(np.all(hashes[1:] >= hashes[:-1])):
            return None
        return np.argsort(hashes, kind="stable")
