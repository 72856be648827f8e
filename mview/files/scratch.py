"""Folders for what a process writes for itself alone; what a killed one has left is deleted."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_LOCK = "in-use"


class ScratchFolder:
    """A folder of this process among the temporary files, which only its user may look into.

    A lock that ends with the process tells that it is in use; by a number of its process it could
    not be told, as containers may share the folder above, and do not see each other's processes.
    When one is made, those of the same prefix that nobody uses any more are deleted.

    Args:
        prefix: what names of such folders begin with.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, prefix: str) -> None:
        self._delete_unused(prefix)
        self._process = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        fresh = self.path / f"{_LOCK}.new"
        self._file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Some file systems have no locks: then nobody can tell, and nobody deletes it.
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX)
            # By this name it is locked from its first moment.
            fresh.rename(self.path / _LOCK)

    def close(self) -> None:
        """Delete the folder with all that is in it; a fork of its process leaves it."""
        if os.getpid() == self._process:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._file)

    @staticmethod
    def _delete_unused(prefix: str) -> None:
        for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
            try:
                if lock.parent.lstat().st_uid == os.getuid():
                    _delete_unless_locked(lock)
            except OSError:  # another process was quicker
                continue


def _delete_unless_locked(lock: Path) -> None:
    file = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent, ignore_errors=True)
    finally:
        os.close(file)
