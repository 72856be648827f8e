"""Deletion vectors: rows of a data file that count as deleted, told in the log and not in the file.

Only the inline form of the Delta protocol is written: a 64-bit roaring bitmap after a magic number,
as Z85 text in the `add` action. Whoever would delete more rows than fit there rewrites the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from mview.errors import CorruptionError

#: Storage type of positions that stand in the log.
_INLINE = "i"

_MAGIC = (1681511377).to_bytes(4, "little")
_Z85 = np.frombuffer(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    dtype=np.uint8,
)
_POWERS = 85 ** np.arange(4, -1, -1, dtype=np.int64)


@dataclass(frozen=True)
class Deleted:
    """The deleted rows of one file: how many, and their positions as text.

    Others may keep positions in files; those are named, and put back, but not read.
    """

    rows: int
    size: int
    text: str
    kind: str = _INLINE
    offset: int | None = None

    @classmethod
    def at(cls, positions: npt.NDArray[np.int64]) -> Deleted:
        """Positions from 0 on, distinct, in any order; at least one."""
        data = _MAGIC + BitMap64(positions.tolist()).serialize()
        return cls(len(positions), len(data), _encode(data))

    @classmethod
    def of_action(cls, action: Mapping[str, Any] | None) -> Deleted | None:
        """From the `deletionVector` of an `add`."""
        if action is None:
            return None
        return cls(
            action["cardinality"],
            action["sizeInBytes"],
            action["pathOrInlineDv"],
            action["storageType"],
            action.get("offset"),
        )

    def action(self) -> dict[str, Any]:
        """The `deletionVector` field of an `add` or `remove`."""
        return {
            "storageType": self.kind,
            "pathOrInlineDv": self.text,
            "sizeInBytes": self.size,
            "cardinality": self.rows,
            **({} if self.offset is None else {"offset": self.offset}),
        }

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """The deleted positions, ascending. Must not be changed.

        Raises:
            CorruptionError: they are in a form that mview does not write.
        """
        if self.kind != _INLINE:
            raise CorruptionError(
                "a Delta table that mview keeps has a deletion vector that is not mview's",
                got=f"storage type {self.kind!r}",
                hint="end the other writer; `mview repair` of the view takes back what it wrote",
            )
        return _positions(self.text, self.size)


@lru_cache(maxsize=256)
def _positions(text: str, size: int) -> npt.NDArray[np.int64]:
    data = _decode(text)[:size]
    if data[:4] != _MAGIC:
        raise CorruptionError("a deletion vector in a Delta log is damaged", got=text[:40])
    return np.frombuffer(BitMap64.deserialize(data[4:]).to_array(), np.uint64).astype(np.int64)


def _encode(data: bytes) -> str:
    words = np.frombuffer(data + bytes(-len(data) % 4), dtype=">u4").astype(np.int64)
    coded: bytes = _Z85[words[:, None] // _POWERS % 85].tobytes()
    return coded.decode("ascii")


def _decode(text: str) -> bytes:
    digits = np.zeros(256, dtype=np.int64)
    digits[_Z85] = np.arange(85)
    coded = digits[np.frombuffer(text.encode("ascii"), dtype=np.uint8)].reshape(-1, 5)
    return (coded @ _POWERS).astype(">u4").tobytes()
