"""Lines of one change file by byte: how far some lines reach, the lines, the last lines."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

_BLOCK = 1 << 20

#: Bytes at either end that tell one file from another.
_MARKED = 1 << 10

#: The newest time stamp before an offset is looked for in steps of this many bytes...
_TAIL = 1 << 16

#: ... and so far back: a log without any time stamps must not be read from its beginning.
_LOOK_BACK = 16 << 20


class ReachedLines(NamedTuple):
    """How far some lines reach: their end, their number, and whether a limit ended them."""

    end: int
    lines: int
    is_full: bool


def reach(path: Path, start: int, stop: int, limit: int, most: int) -> ReachedLines:
    """The end of up to `limit` complete lines and `most` bytes in [start, stop).

    One line is taken in any case, however long it is.
    """
    end, lines = start, 0
    with path.open("rb") as file:
        file.seek(start)
        at = start
        while lines < limit and at < stop:
            block = file.read(min(_BLOCK, stop - at))
            if not block:
                break
            breaks = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)[: limit - lines]
            # What ends within the bytes; the first line of all may be longer.
            fits = int(np.searchsorted(breaks, most - (at - start), side="left"))
            taken = breaks[: max(fits, 0 if lines else 1)]
            if taken.size:
                lines += taken.size
                end = at + int(taken[-1]) + 1
            if taken.size < breaks.size or (lines and at + len(block) - start > most):
                return ReachedLines(end, lines, True)
            at += len(block)
    return ReachedLines(end, lines, lines >= limit)


def between(path: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines of [start, end) without their line breaks, each with its first byte.

    Raises:
        EOFError: the file ends before `end`.
    """
    at = start
    with path.open("rb") as file:
        file.seek(start)
        while at < end:
            line = file.readline(end - at)
            if not line:
                raise EOFError(path.name)
            text = line.rstrip(b"\r\n")
            if text and not text.isspace():
                yield at, text
            at += len(line)


def backwards(path: Path, end: int) -> Iterator[bytes]:
    """The lines before byte `end`, last first, as far as some megabytes back."""
    at, rest = end, b""
    with path.open("rb") as file:
        while at > max(0, end - _LOOK_BACK):
            start = max(0, at - _TAIL)
            file.seek(start)
            rest, *texts = (file.read(at - start) + rest).split(b"\n")
            yield from (text for text in reversed(texts) if text.strip())
            at = start
    if at == 0 and rest.strip():
        yield rest


def mark(path: Path, end: int) -> str:
    """A digest of the first and the last bytes before `end`; lines that are appended keep it."""
    with path.open("rb") as file:
        digest = zlib.crc32(file.read(min(_MARKED, end)))
        file.seek(max(0, end - _MARKED))
        return f"{zlib.crc32(file.read(min(_MARKED, end)), digest):08x}"


def complete(path: Path, size: int) -> int:
    """The end of the last complete line within the first `size` bytes."""
    with path.open("rb") as file:
        at = size
        while at > 0:
            start = max(0, at - _BLOCK)
            file.seek(start)
            newline = file.read(at - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            at = start
    return 0
