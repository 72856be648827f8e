"""Lines of one change file by byte: how far some lines reach, the lines, the last lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

_BLOCK = 1 << 20

#: The newest time stamp before an offset is looked for in steps of this many bytes...
_TAIL = 1 << 16

#: ... and so far back: a log without any time stamps must not be read from its beginning.
_LOOK_BACK = 16 << 20


def reach(path: Path, start: int, stop: int, limit: int) -> tuple[int, int]:
    """The end of up to `limit` complete lines in [start, stop), and their number."""
    end, lines = start, 0
    with path.open("rb") as file:
        file.seek(start)
        at = start
        while lines < limit and at < stop:
            block = file.read(min(_BLOCK, stop - at))
            if not block:
                break
            breaks = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)[: limit - lines]
            if breaks.size:
                lines += breaks.size
                end = at + int(breaks[-1]) + 1
            at += len(block)
    return end, lines


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


def complete(path: Path, size: int) -> int:
    """The end of the last complete line within the first `size` bytes."""
    with path.open("rb") as file:
        at = size
        while at > 0:
            start = max(0, at - _BLOCK)
            file.seek(start)
            found = file.read(at - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            at = start
    return 0
