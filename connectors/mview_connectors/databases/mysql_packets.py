"""Rows of the MySQL text protocol as Arrow arrays, without a Python object per value.

A row is a packet of length-prefixed texts. Only the packets are found one by one; then each column
is found in all rows at once, and the values become views into the received bytes. What a server
claims of lengths is never believed: every value must lie in its own packet, and fill it with the
others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Bytes received before they become one batch.
_BLOCK = 4 << 20
#: Bytes asked of the socket at once.
_READ = 1 << 18
#: Bytes in front of a packet: three of its length, one of its number.
_HEADER = 4
#: A packet of this length goes on in the next one.
_FULL = 0xFFFFFF
#: First bytes of the packets that end a result.
_END, _ERROR = 0xFE, 0xFF
#: First byte of a NULL, and of lengths in 2, 3 and 8 more bytes.
_NULL = 251
_LONG = {252: 2, 253: 3, 254: 8}
#: Bytes of a row at the most: more than `max_allowed_packet` may be, and what a view can refer to.
_ROW = (1 << 30) + (1 << 16)
#: Bytes that fit into an Arrow view itself; longer values are referred to.
_INLINE = 12

_header = struct.Struct("<I").unpack_from

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class MysqlServerError(Exception):
    """The server ended the rows with an error; `packet` is its message in protocol form."""

    def __init__(self, packet: bytes) -> None:
        self.packet = packet
        super().__init__("the server ended the result with an error")


class MalformedRowError(Exception):
    """What the server sent as a row is none."""


def row_blocks(read: Callable[[int], bytes], columns: int) -> Iterator[list[pa.Array]]:
    """The rows of a result set, column by column, as arrays of bytes.

    Args:
        read: reads what is there, at most that many bytes; empty at the end of the stream.
        columns: columns per row.

    Raises:
        ServerError: the server could not finish.
        MalformedRowError: a row that breaks the protocol; nothing of its block was yielded.
        ConnectionResetError: the stream ended before the result.
    """
    received = bytearray()
    starts: list[int] = []
    position = 0
    while True:
        data = read(_READ)
        if not data:
            raise ConnectionResetError("the server closed the connection while sending rows")
        received += data
        position = _find_packets(received, position, starts)
        if len(received) - position > _ROW:
            raise MalformedRowError(f"a row is longer than {_ROW:,} bytes")
        last = received[starts[-1]] if starts and starts[-1] < position else 0
        if last == _ERROR:
            raise MysqlServerError(bytes(received[starts[-1] : position]))
        # 0xFE also begins a value of 16 MB or more, but then the packet is longer.
        ended = last == _END and position - starts[-1] < 9
        end = starts.pop() - _HEADER if ended else position
        if starts and (ended or position >= _BLOCK):
            yield _columns(received[:end], np.array(starts, np.int64), columns)
            del received[:position]
            starts, position = [], 0
        if ended:
            return


def _find_packets(received: bytearray, position: int, starts: list[int]) -> int:
    """Append the starts of the complete packets' bodies; returns where the first other begins."""
    end = len(received)
    while position + 4 <= end:
        length = _header(received, position)[0] & _FULL
        body = position + 4
        if length == _FULL:
            whole = _joined(received, position)
            if whole is None:
                break
            starts.append(body)
            position, end = whole, len(received)
            continue
        if body + length > end:
            break
        starts.append(body)
        position = body + length
    return position


def _joined(received: bytearray, position: int) -> int | None:
    """Remove the headers inside a row of several packets; where it ends, None if incomplete."""
    inner: list[int] = []
    at = position
    while True:
        if at + 4 > len(received):
            return None
        length = int(_header(received, at)[0]) & _FULL
        if at + 4 + length > len(received):
            return None
        if at != position:
            inner.append(at)
        at += 4 + length
        if length < _FULL:
            break
    for header in reversed(inner):
        del received[header : header + 4]
    return at - 4 * len(inner)


def _columns(block: bytearray, starts: Integers, columns: int) -> list[pa.Array]:
    # Padding: views copy 12 bytes from the start of every value, also from the last, and a length
    # that stands at the end of the block is read before it is known to be too long.
    buffer = bytes(block) + bytes(_INLINE)
    data = np.frombuffer(buffer, np.uint8)
    # A row ends where the header of the next one begins.
    ends = np.append(starts[1:] - _HEADER, len(block))
    arrays = []
    for _ in range(columns):
        if np.any(starts >= ends):
            raise MalformedRowError(f"a row has fewer than {columns} values")
        begin, lengths, valid = _lengths(data, starts)
        # Not `begin + lengths > ends`: a length near 2^63 would wrap around.
        if np.any((lengths < 0) | (lengths > ends - begin)):
            raise MalformedRowError("a value is longer than its row")
        arrays.append(_views(buffer, data, begin, lengths, valid))
        starts = begin + lengths
    if np.any(starts != ends):
        raise MalformedRowError(f"a row has more than {columns} values")
    return arrays


def _lengths(data: Bytes, at: Integers) -> tuple[Integers, Integers, npt.NDArray[np.bool_]]:
    """Where the values begin, their lengths, and which are not NULL."""
    first = data[at]
    lengths = first.astype(np.int64)
    valid = first != _NULL
    begin = at + 1
    if first.max() >= _NULL:
        if first.max() == _ERROR:
            raise MalformedRowError("a value has no length")
        lengths[~valid] = 0
        for code, width in _LONG.items():
            rows = np.flatnonzero(first == code)
            places = at[rows] + 1
            lengths[rows] = sum(data[places + n].astype(np.int64) << (8 * n) for n in range(width))
            begin[rows] += width
    return begin, lengths, valid


def _views(
    buffer: bytes, data: Bytes, starts: Integers, lengths: Integers, valid: npt.NDArray[np.bool_]
) -> pa.Array:
    """An Arrow binary array of values that lie anywhere in the buffer."""
    rows = len(starts)
    windows = np.lib.stride_tricks.sliding_window_view(data, _INLINE)
    views = np.empty((rows, 16), np.uint8)
    views[:, :4] = lengths.astype("<i4").view(np.uint8).reshape(rows, 4)
    # The bytes after a short value are not cleared: the cast below copies `length` bytes only.
    views[:, 4:] = windows[starts]
    long = np.flatnonzero(lengths > _INLINE)
    # Layout of a long value: length, first four bytes, number of the buffer, offset in it.
    views[long, 8:12] = 0
    views[long, 12:] = starts[long].astype("<i4").view(np.uint8).reshape(len(long), 4)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    parts = [bitmap, pa.py_buffer(views), pa.py_buffer(buffer)]
    return pa.Array.from_buffers(pa.binary_view(), rows, parts).cast(pa.binary())
