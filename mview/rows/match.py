"""Which rows are equal, as SQL groups them: NULL = NULL, NaN = NaN, -0.0 = 0.0; vectorised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mview.rows.hashing import hash_rows, is_exact, is_hashable, maybe_null, same_rows
from mview.rows.sorted_index import SortedIndex

Positions = npt.NDArray[np.int64]

#: To sort so many times as many rows as are wanted takes longer than to search without.
_FEW = 8


def row_codes(parts: Sequence[pa.Table]) -> list[Positions]:
    """One integer per row, equal for equal rows, over tables of the same columns.

    The integers are dense enough to index arrays, but carry no order.
    """
    sizes = [part.num_rows for part in parts]
    codes = np.zeros(sum(sizes), dtype=np.int64)
    if len(codes) and parts[0].num_columns:
        found = _codes_by_hash(parts) if _are_hashable(parts[0].schema) else None
        codes = _codes_by_column(parts) if found is None else found
    return list(np.split(codes, np.cumsum(sizes)[:-1]))


def _are_hashable(schema: pa.Schema) -> bool:
    return all(is_hashable(kind) for kind in schema.types)


def _codes_by_hash(parts: Sequence[pa.Table]) -> Positions | None:
    """Codes by the order of the hashes; None where two rows that differ have one hash."""
    hashes = np.concatenate([hash_rows(part.columns) for part in parts if part.num_rows])
    order = np.argsort(hashes)  # not stable: that takes four times as long
    ranked = hashes[order]
    other = ranked[1:] != ranked[:-1]
    if not other.all() and (not is_exact(parts[0].schema.types) or maybe_null(hashes)):
        again, rows = np.flatnonzero(~other), pa.concat_tables(parts)
        pairs = (rows.take(pa.array(order[again + step])).columns for step in (0, 1))
        if not same_rows(*pairs).all():
            return None
    codes = np.empty(len(order), dtype=np.int64)
    codes[order] = np.concatenate([[0], np.cumsum(other)])
    return codes


def _codes_by_column(parts: Sequence[pa.Table]) -> Positions:
    codes = np.zeros(sum(part.num_rows for part in parts), dtype=np.int64)
    for name in parts[0].column_names:
        column = _column_codes(pa.chunked_array([c for p in parts for c in p[name].chunks]))
        width = int(column.max()) + 1
        # Re-numbering keeps the product of the columns' cardinalities within 64 bits.
        codes = np.unique(codes * width + column, return_inverse=True)[1].astype(np.int64)
    return codes


def first_rows(codes: Positions) -> tuple[Positions, Positions]:
    """For codes: the position of each code's first row, and for every row its group number."""
    first = np.full(codes.max(initial=-1) + 1, -1, dtype=np.int64)
    # Of several rows the one that is assigned last stays.
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    there = first >= 0
    if there.all():
        return first, codes
    return first[there], (np.cumsum(there) - 1)[codes]


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
    if rows.num_columns == 1 and is_hashable(rows.schema.types[0]):
        found = pc.index_in(_normal(rows[0]), value_set=_normal(wanted[0]).combine_chunks())
        positions = np.flatnonzero(found.is_valid().to_numpy())
        return positions, found.drop_null().to_numpy().astype(np.int64)
    if _are_hashable(rows.schema):
        return _matches(rows, wanted)
    # Column by column first: few rows survive, and only those are compared in full.
    mask = _maybe_wanted(rows, wanted)
    candidates = np.flatnonzero(mask) if mask is not None else np.arange(rows.num_rows)
    ours, theirs = row_codes([rows.take(candidates), wanted])
    order = np.argsort(theirs, kind="stable")
    ranked = theirs[order]
    place = np.minimum(np.searchsorted(ranked, ours), len(ranked) - 1)
    hit = ranked[place] == ours
    return candidates[hit].astype(np.int64), order[place[hit]].astype(np.int64)


def _matches(rows: pa.Table, wanted: pa.Table) -> tuple[Positions, Positions]:
    here, there = hash_rows(rows.columns), SortedIndex.build(hash_rows(wanted.columns))
    if len(here) > _FEW * len(there.hashes):
        ours, theirs = there.find(here)
    else:
        ours, theirs = SortedIndex.build(here).common(there)
    return confirmed(rows, wanted, ours, theirs)


def confirmed(
    rows: pa.Table, wanted: pa.Table, ours: Positions, theirs: Positions
) -> tuple[Positions, Positions]:
    """Of pairs of one hash those that are equal rows, ascending in the rows of `rows`."""
    pairs = rows.take(pa.array(ours)).columns, wanted.take(pa.array(theirs)).columns
    equal = same_rows(*pairs)
    found = np.full(rows.num_rows, -1, dtype=np.int64)
    found[ours[equal]] = theirs[equal]
    hit = np.flatnonzero(found >= 0)
    return hit, found[hit]


@dataclass(frozen=True)
class IndexedRows:
    """Rows with an index over the columns that can be in one: to be matched more than once."""

    rows: pa.Table
    hashed: list[str]
    index: SortedIndex | None

    @classmethod
    def of(cls, rows: pa.Table) -> IndexedRows:
        """Index rows; without a column that can be indexed every row is compared."""
        hashed = [field.name for field in rows.schema if is_hashable(field.type)]
        columns = [rows[name] for name in hashed]
        return cls(rows, hashed, SortedIndex.build(hash_rows(columns)) if hashed else None)

    def match(self, wanted: IndexedRows) -> tuple[Positions, Positions]:
        """See `match`."""
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


def _maybe_wanted(rows: pa.Table, wanted: pa.Table) -> Any:
    mask = None
    for name in rows.column_names:
        if pa.types.is_list(rows.schema.field(name).type):
            continue
        values = _normal(wanted[name]).combine_chunks().unique()
        found = pc.is_in(_normal(rows[name]), value_set=values).to_numpy()
        mask = found if mask is None else mask & found
    return mask


def _normal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # Arrow hashes by bits: -0.0 differs from 0.0 there (NaN and NULL are equal to themselves).
    if pa.types.is_floating(column.type):
        return pc.add(column, pa.scalar(0.0, column.type))
    return column


def _column_codes(column: pa.ChunkedArray) -> Positions:
    if pa.types.is_list(column.type):
        column = pa.chunked_array([[repr(value) for value in column.to_pylist()]], pa.string())
    encoded = _normal(column).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    codes: Positions = encoded.dictionary_encode(null_encoding="encode").indices.to_numpy()
    return codes.astype(np.int64)


def identical_rows(
    left: Sequence[pa.ChunkedArray], right: Sequence[pa.ChunkedArray]
) -> npt.NDArray[np.bool_]:
    """Row by row whether all cells are the same: bit by bit, NaN as NaN, NULL as NULL.

    Unlike to SQL, -0.0 is not 0.0: texts of the two differ, and what is shown of a row is its own.
    """
    same = np.ones(len(left[0]) if left else 0, np.bool_)
    for one, other in zip(left, right, strict=True):
        same &= _identical(one, other)
    return same


def _identical(left: pa.ChunkedArray, right: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    if pa.types.is_nested(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        # repr tells -0.0 from 0.0 and not one NaN from another, at any depth.
        return np.array([repr(a) == repr(b) for a, b in pairs], np.bool_)
    return same_rows([_float_bits(left)], [_float_bits(right)])


def _float_bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats as integers of their bits, every NaN alike; other columns as they are."""
    if not pa.types.is_floating(column.type):
        return column
    nan = pa.scalar(float("nan"), column.type)
    plain = pc.if_else(pc.is_nan(column), nan, column)
    wanted = pa.int64() if column.type.bit_width == 64 else pa.int32()
    return pa.chunked_array([chunk.view(wanted) for chunk in plain.chunks], wanted)
