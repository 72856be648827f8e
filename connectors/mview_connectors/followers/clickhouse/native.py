"""ClickHouse's Native format: blocks of columns, as the server has them in memory.

Text formats lose the last bit of a floating-point number in old servers, and Arrow's own format
came with version 20; Native is exact and in every version. See "Native" in
https://clickhouse.com/docs/interfaces/formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: NumPy's type of a column's bytes.
_FIXED = {
    "UInt8": "<u1",
    "UInt16": "<u2",
    "UInt32": "<u4",
    "UInt64": "<u8",
    "Int8": "<i1",
    "Int16": "<i2",
    "Int32": "<i4",
    "Int64": "<i8",
    "Float32": "<f4",
    "Float64": "<f8",
    "Date": "<u2",
    "Date32": "<i4",
    "DateTime64(6, 'UTC')": "<i8",
}


class NativeColumn(Protocol):
    """What a block's column is of: its name, ClickHouse's type, and the rows."""

    @property
    def name(self) -> str:
        """The name."""
        ...

    @property
    def type(self) -> str:
        """ClickHouse's type."""
        ...

    @property
    def rows(self) -> pa.Array:
        """Integers, floating-point numbers, decimals of that scale, texts or bytes."""
        ...


def block(columns: Sequence[NativeColumn], rows: int) -> bytes:
    """A block. NULL in a column that has none is written as 0 or the empty text."""
    parts = [_varint(len(columns)), _varint(rows)]
    for column in columns:
        parts += [_text(column.name), _text(column.type)]
        parts += _column(column.type, column.rows)
    return b"".join(parts)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _text(value: str) -> bytes:
    content = value.encode()
    return _varint(len(content)) + content


def inner(kind: str) -> str:
    """The type in a `Nullable(…)`, or the type itself."""
    return kind[9:-1] if kind.startswith("Nullable(") else kind


def _column(kind: str, rows: pa.Array) -> Iterator[bytes]:
    if kind.startswith("Nullable("):
        yield np.asarray(rows.is_null().cast(pa.uint8())).tobytes()
    kind = inner(kind)
    if kind == "String":
        yield _strings(rows)
    elif kind.startswith("Decimal("):
        yield _decimals(kind, rows)
    else:
        filled = rows.fill_null(0) if rows.null_count else rows
        yield np.asarray(filled).astype(_FIXED[kind], copy=False).tobytes()


def _strings(rows: pa.Array) -> bytes:
    """Each text's size as a varint, then its bytes."""
    rows = rows.cast(pa.binary())
    rows = rows.fill_null(b"") if rows.null_count else rows
    if not len(rows):
        return b""
    _, offsets_buffer, data_buffer = rows.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[rows.offset : rows.offset + len(rows) + 1]
    sizes = offsets[1:].astype(np.int64) - offsets[:-1]
    heads = np.ones(len(sizes), np.int64)
    for bits in (7, 14, 21, 28):
        heads += sizes >= 1 << bits
    begins = np.concatenate([[0], np.cumsum(heads + sizes)[:-1]])
    out = np.empty(int((heads + sizes).sum()), np.uint8)
    is_data = np.ones(len(out), bool)
    for place in range(int(heads.max())):
        of = np.flatnonzero(heads > place)
        at = begins[of] + place
        more = np.where(heads[of] > place + 1, 0x80, 0)
        out[at] = (sizes[of] >> (7 * place)) & 0x7F | more
        is_data[at] = False
    if data_buffer is not None:
        out[is_data] = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    return out.tobytes()


def _precision(kind: str) -> int:
    return int(kind[8:-1].partition(",")[0])


def _decimals(kind: str, rows: pa.Array) -> bytes:
    if rows.null_count:
        rows = rows.fill_null(pa.scalar(Decimal(0), rows.type))
    words = np.frombuffer(rows.buffers()[1], np.int64)
    words = words[2 * rows.offset : 2 * (rows.offset + len(rows))]
    precision = _precision(kind)
    if precision <= 9:
        return words[::2].astype(np.int32).tobytes()
    return words[::2].tobytes() if precision <= 18 else words.tobytes()


# --- reading -------------------------------------------------------------------------------------


class Stream(Protocol):
    """What is read from."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, fewer at the end."""
        ...


class Truncated(Exception):  # noqa: N818
    """The stream ends within a block: the server failed while it answered."""


def blocks(stream: Stream) -> Iterator[list[pa.Array]]:
    """Blocks of a stream: the columns in order, by the types of the block.

    Decimals, integers, floating-point numbers, and bytes for String; dates and times as the
    integers that they are.
    """
    reader = _Reader(stream)
    while (width := reader.varint(at_end=True)) is not None:
        rows = reader.varint() or 0
        columns = []
        for _ in range(width):
            reader.text()
            columns.append(_read(reader, reader.text().decode(), rows))
        if rows:
            yield columns


def _read(reader: _Reader, kind: str, rows: int) -> pa.Array:
    valid = None
    if kind.startswith("Nullable("):
        valid = pa.array(np.frombuffer(reader.take(rows), np.uint8) == 0)
    kind = inner(kind)
    if kind == "String":
        column = pa.array([reader.text() for _ in range(rows)], pa.binary())
    elif kind.startswith("Decimal("):
        column = _read_decimals(reader, kind, rows)
    else:
        dtype = np.dtype(_FIXED[kind])
        column = pa.array(np.frombuffer(reader.take(rows * dtype.itemsize), dtype))
    return column if valid is None else pc.if_else(valid, column, pa.scalar(None, column.type))


def _read_decimals(reader: _Reader, kind: str, rows: int) -> pa.Array:
    precision, _, scale = kind[8:-1].partition(",")
    words = np.empty((rows, 2), np.int64)
    if int(precision) > 18:
        words[:] = np.frombuffer(reader.take(16 * rows), np.int64).reshape(rows, 2)
    else:
        dtype = np.dtype("<i4" if int(precision) <= 9 else "<i8")
        words[:, 0] = np.frombuffer(reader.take(rows * dtype.itemsize), dtype)
        words[:, 1] = words[:, 0] >> 63
    kind_of = pa.decimal128(int(precision), int(scale))
    return pa.Array.from_buffers(kind_of, rows, [None, pa.py_buffer(words.tobytes())])


class _Reader:
    """Reads a stream in pieces."""

    _PIECE = 1 << 20

    def __init__(self, stream: Stream) -> None:
        self._stream, self._piece, self._at = stream, b"", 0

    def take(self, size: int) -> bytes:
        """Exactly so many bytes."""
        if len(self._piece) - self._at < size:
            parts = [self._piece[self._at :]]
            missing = size - len(parts[0])
            while missing > 0:
                part = self._stream.read(max(missing, self._PIECE))
                if not part:
                    raise Truncated
                parts.append(part)
                missing -= len(part)
            self._piece, self._at = b"".join(parts), 0
        self._at += size
        return self._piece[self._at - size : self._at]

    def varint(self, *, at_end: bool = False) -> int | None:
        """A number; None: the stream ends here, which is allowed `at_end`."""
        value = shift = 0
        while True:
            try:
                byte = self.take(1)[0]
            except Truncated:
                if at_end and not shift:
                    return None
                raise
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self) -> bytes:
        """A size and so many bytes."""
        return self.take(self.varint() or 0)
