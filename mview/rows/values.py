"""Few rows as Python values, of which dictionaries tell the same ones.

To set up what works on whole columns takes longer than to go through some hundred rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from mview.rows.equality import canonical, flat, nulls

#: So many rows are few: with twice as many, what works on columns is as fast.
_FEW = 256

Row = tuple[object, ...]


def are_few(count: int, kinds: Sequence[pa.DataType]) -> bool:
    """Whether to take rows of these columns so: never those with lists."""
    return 0 < count <= _FEW and len(kinds) > 0 and not any(map(pa.types.is_nested, kinds))


def row_values(rows: pa.Table, *, signs: bool = False) -> list[Row]:
    """A tuple for each row, the same for equal ones (mview/rows/equality.py).

    Args:
        rows: few of them, see `are_few`.
        signs: the same for identical ones instead.
    """
    columns = (_values(canonical(column, signs=signs)) for column in rows.columns)
    return list(zip(*chain.from_iterable(columns), strict=True))


def first_places(rows: Iterable[Row]) -> dict[Row, int]:
    """Each of the values with the place where it is first."""
    first: dict[Row, int] = {}
    for place, row in enumerate(rows):
        first.setdefault(row, place)
    return first


def whole_numbers(column: pa.ChunkedArray) -> list[int | None]:
    """Whole numbers, and decimals as so many of their last digit."""
    if not pa.types.is_decimal128(column.type):
        numbers: list[int | None] = column.to_pylist()
        return numbers
    halves = zip(*_words(flat(column)), strict=True)
    return [None if low is None else high << 64 | low % (1 << 64) for low, high in halves]


def column_of(numbers: Sequence[int], kind: pa.DataType) -> pa.Array:
    """The opposite of `whole_numbers`.

    Raises:
        pa.ArrowInvalid: one does not fit the type.
    """
    is_decimal = pa.types.is_decimal128(kind)
    bound = 10**kind.precision if is_decimal else 1 << (kind.bit_width - 1)
    for number in numbers:
        if not (-bound < number < bound or (number == -bound and not is_decimal)):
            raise pa.ArrowInvalid(f"{number} does not fit {kind}")
    if not is_decimal:
        return pa.array(numbers, kind)
    words = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(words)])


def _values(column: pa.ChunkedArray) -> list[list[Any]]:
    """Lists by the row, which together are the same where the values are."""
    kind = column.type
    if pa.types.is_temporal(kind):
        # Not all that a column can hold has an object in Python.
        column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Nobody has checked that it is a text.
        column = column.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    elif pa.types.is_decimal128(kind):
        return _words(flat(column))
    return [column.to_pylist()]


def _words(decimals: pa.Array) -> list[list[Any]]:
    """The halves of decimals; of NULL there are none."""
    if not len(decimals):
        return [[], []]
    words = np.frombuffer(decimals.buffers()[1], np.int64)[2 * decimals.offset :]
    halves = [words[half : 2 * len(decimals) : 2].tolist() for half in (0, 1)]
    if decimals.null_count:
        for row in np.flatnonzero(nulls(decimals)):
            halves[0][row] = halves[1][row] = None
    return halves
