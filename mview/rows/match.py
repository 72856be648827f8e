"""Equal rows (mview/rows/equality.py) of tables: numbered, paired, indexed; vectorised."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mview.rows.equality import Flags, canonical, flat, same_rows
from mview.rows.hashing import Hashes, hash_rows, is_exact, maybe_null, tells
from mview.rows.sorted_index import SortedIndex, in_order, order_of
from mview.rows.values import Row, are_few, row_values

Positions = npt.NDArray[np.int64]
Same = Callable[[Sequence[pa.ChunkedArray], Sequence[pa.ChunkedArray]], Flags]
T = TypeVar("T")
V = TypeVar("V")

#: Among so many times as many rows the wanted ones are few: to sort all takes longer than to search
#: without, and to put a few in order takes less than to go through all. Nor are rows sorted that
#: stand in runs of so many: those of a table in memory, say.
_FEW = 8

#: Rows from which on to have them hashed, sorted and compared on all cores saves more than threads
#: take: these calls of numpy and Arrow are long, and leave the interpreter to others.
_MANY = 1 << 18


def row_codes(parts: Sequence[pa.Table]) -> list[Positions]:
    """One integer per row, equal for equal rows, over tables of the same columns.

    The integers are dense enough to index arrays, but carry no order.
    """
    sizes = [part.num_rows for part in parts]
    if not any(sizes) or not parts[0].num_columns:
        codes = np.zeros(sum(sizes), dtype=np.int64)
    elif are_few(sum(sizes), parts[0].schema.types):
        codes = _codes_by_value(parts)
    else:
        hashes = np.concatenate([hash_rows(part.columns) for part in parts if part.num_rows])
        codes = _hash_codes(parts, hashes)
    return list(np.split(codes, np.cumsum(sizes)[:-1])) if len(parts) > 1 else [codes]


def _codes_by_value(parts: Sequence[pa.Table]) -> Positions:
    known: dict[Row, int] = {}
    rows = (row for part in parts for row in row_values(part))
    return np.array([known.setdefault(row, len(known)) for row in rows], np.int64)


def _hash_codes(parts: Sequence[pa.Table], hashes: Hashes) -> Positions:
    codes = _codes_by_hash(parts, hashes)
    return _codes_by_column(parts) if codes is None else codes


@dataclass(frozen=True)
class KeyCodes:
    """The keys of rows: what is asked of them is worked out once, and must not be changed."""

    keys: pa.Table

    @cached_property
    def hashes(self) -> Hashes:
        """Of each row; of no columns there are none."""
        return hash_rows(self.keys.columns)

    @cached_property
    def codes(self) -> Positions:
        """See `row_codes`."""
        keys = self.keys
        if not keys.num_columns or are_few(keys.num_rows, keys.schema.types):
            return row_codes([keys])[0]
        return _hash_codes([keys], self.hashes)


#: Of tables that are there, by their id and key.
_coded: dict[tuple[int, tuple[str, ...]], tuple[weakref.ref[pa.Table], KeyCodes]] = {}


def key_codes(rows: pa.Table, key: Sequence[str]) -> KeyCodes:
    """The keys of a table's rows, the same for as long as somebody has the table.

    Who counts the changes of a view asks the same as who writes them.

    Args:
        rows: the table.
        key: columns of it; none: all rows are the same.
    """
    place = id(rows), tuple(key)
    known = _coded.get(place)
    if known is not None and known[0]() is rows:
        return known[1]
    coded = KeyCodes(rows.select(list(key)))
    forget = _coded.pop  # the table is gone before its id is another's
    _coded[place] = weakref.ref(rows, lambda _: forget(place, None)), coded
    return coded


def _codes_by_hash(parts: Sequence[pa.Table], hashes: Hashes) -> Positions | None:
    """Codes by the order of the hashes; None where two rows that differ have one hash."""
    order = order_of(hashes)
    ranked = hashes if order is None else hashes[order]
    other = ranked[1:] != ranked[:-1]
    if not other.all() and (not is_exact(parts[0].schema.types) or maybe_null(hashes)):
        again = np.flatnonzero(~other)
        rows = pa.concat_tables(parts) if len(parts) > 1 else parts[0]
        places = (again + step if order is None else order[again + step] for step in (0, 1))
        pairs = (rows.take(pa.array(place)).columns for place in places)
        if not same_rows(*pairs).all():
            return None
    ranks = np.zeros(len(hashes), dtype=np.int64)
    ranks[1:] = _running_count(other)
    if order is None:
        return ranks
    codes = np.empty(len(order), dtype=np.int64)
    codes[order] = ranks
    return codes


def _codes_by_column(parts: Sequence[pa.Table]) -> Positions:
    codes = np.zeros(sum(part.num_rows for part in parts), dtype=np.int64)
    for name in parts[0].column_names:
        column = _column_codes(pa.chunked_array([c for p in parts for c in p[name].chunks]))
        width = int(column.max()) + 1
        # Re-numbering keeps the product of the columns' cardinalities within 64 bits.
        codes = np.unique(codes * width + column, return_inverse=True)[1].astype(np.int64)
    return codes


def all_differ(rows: pa.Table) -> bool:
    """Whether no two rows are equal; it may say no where two that differ have one hash."""
    hashes = in_order(hash_rows(rows.columns))  # a third of what it takes to number them
    return bool((hashes[1:] != hashes[:-1]).all())


def first_rows(codes: Positions) -> tuple[Positions, Positions]:
    """For codes: the position of each code's first row, and for every row its group number."""
    first = np.full(codes.max(initial=-1) + 1, -1, dtype=np.int64)
    # Of several rows the one that is assigned last stays.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    there = first >= 0
    if there.all():
        return first, codes
    return first[there], (_running_count(there) - 1)[codes]


def _running_count(flags: npt.NDArray[np.bool_]) -> Positions:
    """How many are true up to each place.

    Integers are added up without the interpreter. Flags are made integers with it: six million took
    it for 0.13 s at once, and with it the epochs beside a compaction.
    """
    counts = flags.astype(np.int64)
    np.cumsum(counts, out=counts)
    return counts


def rows_at(rows: pa.Table, places: Positions) -> pa.Table:
    """The rows at these places; they are not copied where they lie side by side."""
    if len(places) and (np.diff(places) == 1).all():
        return rows.slice(places[0], len(places))
    return rows.take(pa.array(places))


def match(rows: pa.Table, wanted: pa.Table) -> tuple[Positions, Positions]:
    """Pairs (row of `rows`, row of `wanted`) for all rows that equal a wanted one.

    Args:
        rows: any number of rows; may hold equal ones.
        wanted: the same columns; no two rows equal.

    Returns:
        Two arrays of one length, ascending in the rows of `rows`.
    """
    empty = np.empty(0, dtype=np.int64)
    if not rows.num_rows or not wanted.num_rows:
        return empty, empty
    if rows.num_columns == 1 and not pa.types.is_nested(rows.schema.types[0]):
        places = pc.index_in(canonical(rows[0]), value_set=flat(canonical(wanted[0])))
        positions = np.flatnonzero(places.is_valid().to_numpy())
        return positions, places.drop_null().to_numpy().astype(np.int64)
    if are_few(rows.num_rows + wanted.num_rows, rows.schema.types):
        return _matched_by_value(rows, wanted)
    here, there = hash_rows(rows.columns), SortedIndex.build(hash_rows(wanted.columns))
    falls = np.count_nonzero(here[1:] < here[:-1])
    if len(here) > _FEW * len(there.hashes) or 0 < _FEW * falls < len(here):
        ours, theirs = there.find(here)
    else:
        ours, theirs = SortedIndex.build(here).common(there)
    if tells(rows.columns) and tells(wanted.columns):
        return _ascending(ours, theirs, rows.num_rows)
    return confirmed(rows, wanted, ours, theirs)


def _matched_by_value(rows: pa.Table, wanted: pa.Table) -> tuple[Positions, Positions]:
    place = {row: number for number, row in enumerate(row_values(wanted))}
    partner = np.array([place.get(row, -1) for row in row_values(rows)], np.int64)
    positions = np.flatnonzero(partner >= 0)
    return positions, partner[positions]


def confirmed(
    rows: pa.Table, wanted: pa.Table, ours: Positions, theirs: Positions, same: Same = same_rows
) -> tuple[Positions, Positions]:
    """Of pairs of one hash those that are the same rows, ascending in the rows of `rows`."""
    equal = same(rows.take(pa.array(ours)).columns, wanted.take(pa.array(theirs)).columns)
    return _ascending(ours[equal], theirs[equal], rows.num_rows)


def _ascending(ours: Positions, theirs: Positions, size: int) -> tuple[Positions, Positions]:
    """Pairs in the order of `ours`: different numbers below `size`."""
    if (ours[1:] > ours[:-1]).all():
        return ours, theirs
    if _FEW * len(ours) < size:
        order = np.argsort(ours)
        return ours[order], theirs[order]
    partner = np.full(size, -1, dtype=np.int64)
    partner[ours] = theirs
    hit = np.flatnonzero(partner >= 0)
    return hit, partner[hit]


def some_pairs(rows: pa.Table, others: pa.Table, same: Same) -> tuple[Positions, Positions]:
    """Pairs of a row and one of the others that is the same, no row in two of them.

    Rows of one hash are paired by their order on either side. So where a hash is that of rows that
    differ, some stay without the partner that they have.

    Returns:
        Two arrays of one length, ascending in the rows of `rows`.
    """
    cores = os.cpu_count() or 1 if rows.num_rows > _MANY else 1
    ours, theirs = _each(cores, _indexed, (rows, others))
    needles = np.array_split(ours.hashes, cores)
    places = np.concatenate([*_each(cores, theirs.hashes.searchsorted, needles)])
    again = np.append(False, ours.hashes[1:] == ours.hashes[:-1])[: rows.num_rows]
    if again.any():
        ranks = np.arange(len(again))
        places += ranks - np.maximum.accumulate(np.where(again, 0, ranks))
    ranks = np.flatnonzero(places < len(theirs.hashes))
    ranks = ranks[theirs.hashes[places[ranks]] == ours.hashes[ranks]]
    partner = np.full(rows.num_rows, -1, dtype=np.int64)
    partner[ours.at(ranks)] = theirs.at(places[ranks])

    def which_are(places: Positions) -> Positions:
        there = others.take(pa.array(partner[places]))
        return places[same(rows_at(rows, places).columns, there.columns)]

    parts = np.array_split(np.flatnonzero(partner >= 0), cores)
    paired = np.concatenate([*_each(cores, which_are, parts)])
    return paired, partner[paired]


def _indexed(rows: pa.Table) -> SortedIndex:
    return SortedIndex.build(hash_rows(rows.columns))


def _each(cores: int, call: Callable[[T], V], of: Iterable[T]) -> Iterator[V]:
    """What a function makes of each of some things, on so many cores."""
    if cores == 1:
        return map(call, of)
    with ThreadPoolExecutor(cores) as pool:
        return pool.map(call, of)


@dataclass(frozen=True)
class IndexedRows:
    """Rows with an index over all their columns: to be matched more than once."""

    rows: pa.Table
    index: SortedIndex

    @classmethod
    def of(cls, rows: pa.Table, hashes: Hashes | None = None) -> IndexedRows:
        """Index rows; `hashes`: theirs, where they are known."""
        known = hash_rows(rows.columns) if hashes is None else hashes
        return cls(rows, SortedIndex.build(known))

    def match(self, wanted: IndexedRows, same: Same = same_rows) -> tuple[Positions, Positions]:
        """See `match`; `same` may be `identical_rows`."""
        ours, theirs = self.index.common(wanted.index)
        if not len(ours):
            return ours, theirs
        if is_exact(wanted.rows.schema.types) and not maybe_null(wanted.index.hashes):
            return _ascending(ours, theirs, self.rows.num_rows)
        return confirmed(self.rows, wanted.rows, ours, theirs, same)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.rows.nbytes) + self.index.nbytes(None)


def _column_codes(column: pa.ChunkedArray) -> Positions:
    column = canonical(column)
    if pa.types.is_nested(column.type):
        column = pa.chunked_array([[repr(value) for value in column.to_pylist()]], pa.string())
    codes: Positions = flat(column).dictionary_encode(null_encoding="encode").indices.to_numpy()
    return codes.astype(np.int64)
