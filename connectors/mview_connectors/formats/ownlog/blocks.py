"""Blocks: a database's own log of changes as messages of changelogs.

A block is as many of the log's messages as were received, one after the other. The first byte of
each says what it is: B the begin of a transaction, C its commit, R a table, I U D a row, T a
truncate, - a change of a table that is not read. Where they are written in small letters, the
number of the change in its transaction stands in it; else each counts one.

The key of a block is what must be known before the first of them: the number of changes of its
transaction that stand in earlier blocks (8 bytes), the tables, and the transaction's begin.

The first parts of these messages are those of PostgreSQL's `pgoutput`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from mview.clock import SourceMs

#: Stands for a change of a table that is not read: it counts in its transaction.
PASSED_OVER = b"-"

#: Milliseconds from 1970 to 2000, where PostgreSQL's times begin.
EPOCH_2000_MS = 946_684_800_000

#: Kinds of changes whose messages have their number.
_NUMBERED = frozenset(b"iudt")

_u32 = struct.Struct(">I").unpack_from
_begin = struct.Struct(">xQqI")
_end = struct.Struct(">xxQQ")
_before = struct.Struct(">Q")
_number = struct.Struct(">5xQ").unpack_from

#: Bytes of the number in front of a key.
NUMBER_SIZE = _before.size


class Begin(NamedTuple):
    """The begin of a transaction: the place of its commit, the time of that (ms), its number."""

    commit: int
    ms: SourceMs
    transaction: int

    @classmethod
    def of(cls, body: bytes, at: int = 0) -> Begin:
        """The parts of a message."""
        commit, micros, number = _begin.unpack_from(body, at)
        return cls(commit, SourceMs(micros // 1000 + EPOCH_2000_MS), number)

    def message(self) -> bytes:
        """The message that it is the parts of."""
        micros = (self.ms - EPOCH_2000_MS) * 1000
        return b"B" + _begin.pack(self.commit, micros, self.transaction)[1:]


def truncated(body: bytes, at: int = 0) -> tuple[tuple[int, ...], int]:
    """The relations of a `Truncate`, and where it ends."""
    (count,) = _u32(body, at + 1)
    return struct.unpack_from(f">{count}I", body, at + 6), at + 6 + 4 * count


def number_after(message: bytes, before: int) -> int:
    """The number of a change in its transaction, after that of the change before it."""
    return int(_number(message)[0]) if message[0] in _NUMBERED else before + 1


def relation_of(message: bytes) -> tuple[int, str, str]:
    """The number, schema and name of a table that a message describes."""
    schema, name, _ = message[5:].split(b"\0", 2)
    return _u32(message, 1)[0], str(schema, "utf-8"), str(name, "utf-8")


def under_name(message: bytes, schema: str, name: str) -> bytes:
    """The description of a table, under another name."""
    *_, rest = message[5:].split(b"\0", 2)
    return message[:5] + b"\0".join([schema.encode(), name.encode(), rest])


def commit_message(end: int) -> bytes:
    """The end of a transaction, after which the log goes on at a place."""
    return b"C" + _end.pack(0, end)[1:]


def end_of(message: bytes) -> int:
    """Where the log goes on after a commit."""
    return int(_end.unpack_from(message)[1])


def block_key(before: int, known: Iterable[bytes]) -> bytes:
    """The key of a block; see the module."""
    return _before.pack(before) + b"".join(known)


def number_of(key: bytes) -> int:
    """The number of changes that stand before a block in its transaction, of its key."""
    return int(_before.unpack_from(key)[0])
