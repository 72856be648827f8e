"""Files of lines for whoever looks later: each line stands whole, or is the torn end of a write."""

from __future__ import annotations

import os
from pathlib import Path


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, which is made where it is missing; nothing is forced to the disk.

    It is opened each time: it may be moved away meanwhile, as logs are.

    Args:
        path: in a folder that is there.
        line: without its end.

    Raises:
        OSError: it could not be written; a part of it may be.
    """
    begin = b"\n" if _is_torn(path) else b""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(file, "ab") as lines:
        lines.write(begin + line + b"\n")


def _is_torn(path: Path) -> bool:
    """Whether a file ends within a line: its writer was killed, or the disk was full."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as lines:
        lines.seek(-1, os.SEEK_END)
        return lines.read() != b"\n"
