"""Who may read what mview writes: nobody but who runs it, whatever the umask.

The table of a view at a path that the user gave is the exception: it is for others. Its folder is
made with the umask of the user, or was there before; whoever may list it may read its files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Nothing for others.
PRIVATE = 0o077

#: The umask of the user while ours is set.
_users: int | None = None


@contextmanager
def private_files() -> Iterator[None]:
    """Make files and folders in the block private, also those of processes that are started."""
    global _users
    before, known = os.umask(PRIVATE), _users
    _users = before if known is None else known
    try:
        yield
    finally:
        _users = known
        os.umask(before)


def make_shared_folder(folder: Path) -> None:
    """Make a folder, and those above it, as the user's umask has it; one that is there stays."""
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        made.chmod(0o777 & ~users_umask())


def readers_of(folder: Path) -> int:
    """Which others may list a folder, as bits of a file's mode; 0: nobody."""
    return folder.stat().st_mode & 0o044


def share(file: Path, readers: int) -> None:
    """Let readers of a folder read a file in it; what others have made they have decided."""
    if readers:
        with suppress(PermissionError, FileNotFoundError):
            file.chmod(0o600 | readers)


def users_umask() -> int:
    """The umask with which the user has started us."""
    if _users is not None:
        return _users
    now = os.umask(PRIVATE)
    os.umask(now)
    return now
