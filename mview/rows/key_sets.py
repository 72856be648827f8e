"""Sets of primary keys in a few bytes per key: the seen keys of a chunk that is being loaded.

A single integer-like key column is kept exactly (sorted int64, deltas, zlib: about a byte per key);
any other key as a 16-byte digest, so that wide and composite keys cost the same.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mview.errors import CorruptionError, UserError
from mview.rows.equality import canonical, flat

#: Bytes of a digest. With 10^9 keys two of them collide with probability 10^-21.
_DIGEST = 16
_EXACT, _HASHED = b"i", b"h"
#: Little-endian on every machine: the bytes outlive the process.
_INT, _HASH = np.dtype("<i8"), np.dtype(f"S{_DIGEST}")

Values = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class KeySet:
    """A set of primary keys of one table.

    Attributes:
        values: the members, sorted and distinct: int64 (exact) or fixed-width digests.
    """

    values: Values

    @classmethod
    def empty(cls, key: pa.Schema) -> KeySet:
        """No keys; `key` is the schema of the table's key columns, in key order."""
        return cls(np.empty(0, _INT if _is_exact(key) else _HASH))

    @classmethod
    def of(cls, rows: pa.Table, key: pa.Schema) -> KeySet:
        """The keys of `rows`, which has at least the key columns.

        Raises:
            UserError: a key column is NULL.
        """
        return cls(np.unique(_members(rows, key)))

    def union(self, other: KeySet) -> KeySet:
        """The keys of both."""
        return KeySet(np.union1d(self.values, other.values)) if len(other) else self

    def contains(self, rows: pa.Table, key: pa.Schema) -> npt.NDArray[np.bool_]:
        """For each row of `rows` whether its key is in the set."""
        if not len(self) or not rows.num_rows:
            return np.zeros(rows.num_rows, np.bool_)
        wanted = _members(rows, key)
        at = np.minimum(np.searchsorted(self.values, wanted), len(self.values) - 1)
        there: npt.NDArray[np.bool_] = self.values[at] == wanted
        return there

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]

    def to_bytes(self) -> bytes:
        """A compact form; see `from_bytes`."""
        if self.values.dtype == _HASH:
            return _HASHED + self.values.tobytes()
        # Byte planes: the high bytes of the deltas are all zero and then cost nothing.
        deltas = np.diff(self.values.view("<u8"), prepend=np.zeros(1, "<u8"))
        planes = deltas.view(np.uint8).reshape(-1, 8).T
        return _EXACT + zlib.compress(planes.tobytes(), 6)

    @classmethod
    def from_bytes(cls, data: bytes) -> KeySet:
        """The set of a form written by `to_bytes`.

        Raises:
            CorruptionError: the bytes are not such a form.
        """
        kind, body = data[:1], data[1:]
        if kind == _HASHED and len(body) % _DIGEST == 0:
            return cls(np.frombuffer(body, _HASH))
        if kind != _EXACT:
            raise CorruptionError("a set of seen keys cannot be read", got=repr(data[:16]))
        planes = np.frombuffer(zlib.decompress(body), np.uint8).reshape(8, -1)
        deltas = np.ascontiguousarray(planes.T).view("<u8").reshape(-1)
        return cls(np.cumsum(deltas, dtype="<u8").view(_INT))


def _is_exact(key: pa.Schema) -> bool:
    if len(key) != 1:
        return False
    kind = key.field(0).type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    )


def _members(rows: pa.Table, key: pa.Schema) -> Values:
    columns = [_typed(rows.column(field.name), field) for field in key]
    if _is_exact(key):
        return _integers(columns[0])
    parts = [_encoded(column, alone=len(columns) == 1) for column in columns]
    whole = map(b"".join, zip(*parts, strict=True))
    digests = b"".join([blake2b(text, digest_size=_DIGEST).digest() for text in whole])
    return np.frombuffer(digests, _HASH)


def _typed(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    if column.null_count:
        raise UserError(f"primary key column {field.name!r} is NULL", got="NULL", allowed="a value")
    # One type for one key, whoever wrote it: a Parquet file may say large_string or another zone.
    return flat(canonical(column.cast(field.type)))


def _integers(array: pa.Array) -> Values:
    if pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    values: Values = array.cast(pa.int64()).to_numpy().astype(_INT, copy=False)
    return values


def _encoded(array: pa.Array, *, alone: bool) -> list[bytes]:
    """Each value as bytes, equal exactly for equal values; prefix-free unless it stands alone."""
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        texts: list[bytes] = array.cast(pa.binary()).to_pylist()
        return texts if alone else [struct.pack("<I", len(text)) + text for text in texts]
    if pa.types.is_decimal(array.type) or pa.types.is_nested(array.type):
        return [repr(value).encode() + b"\0" for value in array.to_pylist()]
    if pa.types.is_boolean(array.type):
        return [b"\1" if value else b"\0" for value in array.to_pylist()]
    packed = _integers(array).tobytes()
    return [packed[at : at + _INT.itemsize] for at in range(0, len(packed), _INT.itemsize)]
