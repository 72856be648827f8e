"""Text files that people write: read whole, as UTF-8, with the place of what is no text."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from mview.errors import UserError

#: What no editor writes into a text: control characters but tab and the ends of lines.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
#: Bytes: what is larger is another file by mistake.
_LARGEST = 1 << 19
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_text(file: Path, what: str, kind: type[UserError], *, hint: str) -> str:
    """The text of a file, without a byte order mark.

    Args:
        what: what it is, for messages.
        kind: of the error.
        hint: what to do when it cannot be read.

    Raises:
        UserError: it cannot be read, is larger, or is no text; with its line and column.
    """
    try:
        content = first_bytes(file, _LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not the name of a file"
        raise kind(
            f"{what} {file} cannot be read: {reason}", where=f"{file}:1", hint=hint
        ) from None
    if len(content) > _LARGEST:
        raise kind(f"{what} {file} is larger than {_LARGEST >> 10} KB", where=f"{file}:1")
    if content.startswith(_UTF16):
        raise kind(f"{what} {file} is UTF-16", where=f"{file}:1", hint="save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _place(file, content[: error.start].decode("utf-8", errors="replace"))
        raise kind(f"{what} {file} is not UTF-8", where=place, hint="save it as UTF-8") from None
    if wrong := _NO_TEXT.search(text):
        raise kind(
            f"{what} {file} is no text: it has the character U+{ord(wrong.group()):04X}",
            where=_place(file, text[: wrong.start()]),
        )
    return text


def first_bytes(file: Path, most: int) -> bytes:
    """The first bytes of a regular file; anything else of its name (a pipe) may never give one.

    Raises:
        OSError: it is none, or cannot be read.
        ValueError: what is given is no name of a file.
    """
    try:
        with open(file, "rb", opener=_without_waiting) as source:
            if stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                return source.read(most)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket, or a device that is not there
            raise
    raise OSError(errno.EINVAL, "it is no regular file, but a pipe, socket or device")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _place(file: Path, before: str) -> str:
    line = before.count("\n") + 1
    return f"{file}:{line}:{len(before) - before.rfind(chr(10))}"
