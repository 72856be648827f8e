"""Row hashes: one int64 per row of a set of key columns, computed by numpy on Arrow buffers.

A single integer-like column is its own hash, so it orders and compares as the values do. Two small
ones stand side by side in it, so rows in the order of such a key have their hashes in order, too:
they need no sorting, and what is found by them lies close together. Everything else is mixed; equal
keys always hash equal, unequal keys may collide.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mview.rows.equality import canonical_array, flat, nulls, sizes

Words = NDArray[np.uint64]
Hashes = NDArray[np.int64]

#: What stands for NULL; a value that hashes to it only makes a slice larger.
_NULL = np.uint64(0x6A09E667F3BCC909)
# Odd constants with well spread bits, for the two multiply-and-shift rounds of the mixer.
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)
#: So many values take as long as the calls that it takes to hash them: chunks are joined first.
_FEW = 1 << 12
#: Bytes from which on a value is hashed by itself: a round for each of its words would take longer
#: than its words together.
_LONG = 1 << 12
#: Bits of a hash for each of two words.
_HALF = np.uint64(32)
_LOW_HALF = np.uint64((1 << 32) - 1)
#: What keeps so many bytes of a word.
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)


def is_exact(types: list[pa.DataType]) -> bool:
    """Whether equal hashes mean equal values (of rows without NULL)."""
    return len(types) == 1 and _is_integer_like(types[0])


def tells(columns: list[pa.ChunkedArray]) -> bool:
    """Whether the hash of a row is its values: equal ones mean equal rows, also of other tables.

    Args:
        columns: those of the rows.
    """
    if any(column.null_count for column in columns):
        return False
    if len(columns) == 1:
        return is_exact([columns[0].type])
    return len(columns) == 2 and all(map(_has_room, columns))


def _has_room(column: pa.ChunkedArray) -> bool:
    """Whether each of its values stands in half of a word."""
    if not pa.types.is_signed_integer(column.type):
        return False
    ends = pc.min_max(column).as_py()
    return ends["min"] is None or (ends["min"] >= 0 and ends["max"] <= int(_LOW_HALF))


def maybe_null(hashes: Hashes) -> bool:
    """Whether a row of one column may be NULL, judging by the hashes."""
    return bool((hashes.view(np.uint64) == _NULL).any())


def hash_rows(columns: list[pa.ChunkedArray]) -> Hashes:
    """One hash per row; equal rows (mview/rows/equality.py) have the same.

    Args:
        columns: at least one column, all of one length.
    """
    if len(columns) == 1:
        return _words(columns[0]).view(np.int64)
    if len(columns) == 2:
        return _pair(*map(_words, columns)).view(np.int64)
    total: Words | None = None
    for column in columns:
        words = _words(column)
        total = _mix(words) if total is None else _mix_pair(total, words)
    assert total is not None
    return total.view(np.int64)


def _pair(first: Words, second: Words) -> Words:
    """One word of two, row by row: side by side where both have room."""
    wide = (first | second) > _LOW_HALF
    if wide.all():
        return _mix_pair(_mix(first), second)
    words: Words = (first << _HALF) | second
    if wide.any():
        words[wide] = _mix_pair(_mix(first[wide]), second[wide])
    return words


def _mix_pair(mixed: Words, words: Words) -> Words:
    return _mix(words ^ (mixed * _STEP))


def _is_integer_like(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind)
    )


def _words(column: pa.ChunkedArray) -> Words:
    if column.num_chunks > 1 and len(column) > _FEW:
        # Chunk by chunk: strings of one column may exceed what one 32-bit offset can address.
        return np.concatenate([_array_words(canonical_array(chunk)) for chunk in column.chunks])
    return _array_words(canonical_array(flat(column)))


def _array_words(array: pa.Array) -> Words:
    kind = array.type
    if _is_integer_like(kind):
        words = _integer_words(array)
    elif pa.types.is_decimal128(kind):
        words = _decimal_words(array)
    elif pa.types.is_list(kind):
        words = _list_words(array)
    else:
        words = _string_words(array)
    if array.null_count:
        words = np.where(nulls(array), _NULL, words)
    return words


def _integer_words(array: pa.Array) -> Words:
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    values = _values(array, np.dtype(f"i{array.type.bit_width // 8}"))
    return values.astype(np.int64, copy=False).view(np.uint64)


def _decimal_words(array: pa.Array) -> Words:
    pairs = _values(array, np.dtype("u8"), width=2)
    return _mix(pairs[0::2] ^ (pairs[1::2] * _STEP))


def _list_words(array: pa.Array) -> Words:
    """Hash each value with its place, and add those of a list up."""
    counts = sizes(array)
    sums = np.zeros(len(array), np.uint64)
    filled = np.flatnonzero(counts)
    if len(filled):
        ends = np.cumsum(counts[filled])
        starts = ends - counts[filled]
        places = np.arange(ends[-1]) - np.repeat(starts, counts[filled])
        items = _array_words(array.flatten()) ^ (places.astype(np.uint64) * _STEP)
        sums[filled] = np.add.reduceat(_mix(items), starts)
    return _mix(sums ^ (counts.astype(np.uint64) * _STEP))


def _values(array: pa.Array, dtype: np.dtype[Any], width: int = 1) -> NDArray[Any]:
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.empty(0, dtype)
    start = array.offset * width
    return np.frombuffer(buffer, dtype, count=start + len(array) * width)[start:]


def _string_words(array: pa.Array) -> Words:
    """Hash the bytes eight at a time: round r takes the r-th word of all rows that long."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets_buffer, data = array.buffers()
    if len(array) == 0:
        return np.empty(0, np.uint64)
    dtype = np.dtype(np.int64 if wide else np.int32)
    stop = array.offset + len(array) + 1
    offsets = np.frombuffer(offsets_buffer, dtype, count=stop)[array.offset :].astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if array.null_count:
        lengths = np.where(nulls(array), 0, lengths)
    size = 0 if data is None else data.size
    padded = np.zeros(size + 8, np.uint8)
    if size:
        padded[:size] = np.frombuffer(data, np.uint8)
    windows: Words = np.ndarray((size + 1,), "<u8", padded, strides=(1,))
    words: Words = lengths.astype(np.uint64) * _STEP
    long = lengths >= _LONG
    for row in np.flatnonzero(long):
        words[row] = _long_word(padded, int(starts[row]), int(lengths[row]))
    rows = np.flatnonzero((lengths > 0) & ~long)
    position = 0
    while rows.size:
        every = rows.size == words.size
        left = (lengths if every else lengths[rows]) - position
        word = windows[(starts if every else starts[rows]) + position]
        word &= _FIRST_BYTES[np.minimum(left, 8)]
        if every:
            words = _mix(words ^ word)
        else:
            words[rows] = _mix(words[rows] ^ word)
        position += 8
        rows = rows[left > 8]
    return words


def _long_word(padded: NDArray[np.uint8], start: int, length: int) -> np.uint64:
    """The hash of a value: its words are mixed with their places, and added up."""
    count = -(-length // 8)
    content = np.zeros(8 * count, np.uint8)
    content[:length] = padded[start : start + length]
    places = np.arange(count, dtype=np.uint64) * _STEP
    total = np.add.reduce(_mix(content.view("<u8") ^ places), keepdims=True)
    word: np.uint64 = _mix(total ^ np.uint64(length))[0]
    return word


def _mix(words: Words) -> Words:
    mixed: Words = words + _STEP
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX_A
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_B
    mixed ^= mixed >> np.uint64(31)
    return mixed
