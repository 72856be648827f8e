"""Which values are the same: the one rule that hashes, matches, sets of keys and netting share.

Two relations, at any depth of a list, and NULL is NULL in both:

- *equal*, as Spark groups, joins and tells distinct rows: NaN = NaN, -0.0 = 0.0;
- *identical*, as what is shown: the texts of -0.0 and 0.0 differ, those of two NaNs do not.

Both are equality of bits between canonical values, where floats are integers of their bits: every
NaN has the same, and where rows are to be equal both zeros have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Flags = npt.NDArray[np.bool_]


def canonical(column: pa.ChunkedArray, *, signs: bool = False) -> pa.ChunkedArray:
    """A column of which equal values have the same bits; itself where it has no floats.

    Args:
        column: of any type a table can have.
        signs: keep the signs of zeros: identical values have the same bits.
    """
    if not has_floats(column.type):
        return column
    chunks = [canonical_array(chunk, signs=signs) for chunk in column.chunks]
    return pa.chunked_array(chunks, None if chunks else _canonical_type(column.type))


def canonical_array(array: pa.Array, *, signs: bool = False) -> pa.Array:
    """The same of one array."""
    kind = array.type
    if not has_floats(kind):
        return array
    if pa.types.is_list(kind):
        offsets = np.append(np.int32(0), np.cumsum(sizes(array), dtype=np.int32))
        values = canonical_array(array.flatten(), signs=signs)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=array.is_null())
    # The buffers are those of the whole array, whatever slice of it this is.
    valid, data = array.buffers()
    length = array.offset + len(array)
    bits = np.frombuffer(data or b"", f"f{kind.bit_width // 8}", length if data else 0)
    bits = bits.copy() if signs else bits + bits.dtype.type(0)  # -0.0 + 0.0 is 0.0
    bits[np.isnan(bits)] = np.nan
    wanted = _canonical_type(kind)
    return pa.Array.from_buffers(wanted, len(array), [valid, pa.py_buffer(bits)], -1, array.offset)


def has_floats(kind: pa.DataType) -> bool:
    """Whether values of this type may be equal and have other bits."""
    return has_floats(kind.value_type) if pa.types.is_list(kind) else pa.types.is_floating(kind)


def _canonical_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_canonical_type(kind.value_type))
    return pa.int64() if kind.bit_width == 64 else pa.int32()


def same_rows(left: Sequence[pa.ChunkedArray], right: Sequence[pa.ChunkedArray]) -> Flags:
    """Whether row i of `left` equals row i of `right`; columns of the same types."""
    return _same_rows(left, right, signs=False)


def identical_rows(left: Sequence[pa.ChunkedArray], right: Sequence[pa.ChunkedArray]) -> Flags:
    """The same for identical ones: what is shown of a row is its own."""
    return _same_rows(left, right, signs=True)


def _same_rows(
    left: Sequence[pa.ChunkedArray], right: Sequence[pa.ChunkedArray], *, signs: bool
) -> Flags:
    same = np.ones(len(left[0]) if left else 0, np.bool_)
    for ours, theirs in zip(left, right, strict=True):
        if has_floats(ours.type):
            ours, theirs = canonical(ours, signs=signs), canonical(theirs, signs=signs)
        same &= _same_bits(ours, theirs)
    return same


def as_shown(rows: pa.Table) -> pa.Table:
    """Rows that are equal where these are identical: to be numbered or matched by their looks."""
    columns = [canonical(column, signs=True) for column in rows.columns]
    return pa.table(columns, names=rows.column_names)


def _same_bits(left: Any, right: Any) -> Flags:
    """Row by row, of two arrays or chunked arrays."""
    if pa.types.is_list(left.type):
        return _same_lists(flat(left), flat(right))
    same = pc.equal(left, right)
    if left.null_count or right.null_count:
        nulls = pc.and_(pc.is_null(left), pc.is_null(right))
        same = pc.or_(pc.fill_null(same, False), nulls)
    flags: Flags = flat(same).to_numpy(zero_copy_only=False)
    return flags


def _same_lists(left: pa.Array, right: pa.Array) -> Flags:
    """Lists are the same where they are as long and so is what stands at each place."""
    lengths = sizes(left)
    same: Flags = (lengths == sizes(right)) & (nulls(left) == nulls(right))
    rows = np.flatnonzero(same & (lengths > 0))
    if len(rows):
        mine, theirs = (side.take(pa.array(rows)).flatten() for side in (left, right))
        starts = np.cumsum(lengths[rows]) - lengths[rows]
        same[rows] = np.logical_and.reduceat(_same_bits(mine, theirs), starts)
    return same


def sizes(lists: pa.Array) -> npt.NDArray[np.int64]:
    """How many values of `lists.flatten()` are those of each list: none of NULL."""
    counts: npt.NDArray[np.int64] = (
        pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return counts


def nulls(array: pa.Array) -> Flags:
    """Which values are NULL."""
    flags: Flags = array.is_null().to_numpy(zero_copy_only=False)
    return flags


def flat(column: Any) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
