"""Forcing files to the disk: together, and only before something names them.

A file that no manifest names may be lost with the power; one that is named may not. A forced write
costs 0.2 to 7 ms (measured) and an epoch writes dozens of files, so they wait for each other here:
`settle` runs before an intent or a manifest is written. Small files of the store are written aside
and get their name when they are whole: nobody ever reads half of one.
"""

from __future__ import annotations

import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from mview.failpoints import failpoint
from mview.files.modes import share
from mview.files.waiting import Waiting

#: Forced writes at once: the file system joins those that wait for its journal.
_THREADS = 8

#: How names of files end that are not whole yet.
ASIDE = ".tmp"

_ASIDE = re.compile(rf"_[0-9a-f]{{32}}{re.escape(ASIDE)}")

_pool = ThreadPoolExecutor(_THREADS, "mview-force")

#: What forced writes wait for the disk.
_waiting_for_disk = Waiting(0.0004)

#: A file of more bytes the disk has begun with by itself, and parts of it may be forgotten here.
_SMALL = 1 << 20

_lock = threading.Lock()
_files: set[Path] = set()
_folders: set[Path] = set()


def later(file: Path) -> None:
    """Have a new file, and its name in its folder, on disk after the next `settle`."""
    with _lock:
        _files.add(file)
        _folders.add(file.parent)


def write_whole(file: Path, content: bytes | memoryview) -> None:
    """Write a new file in as few calls of the system as can be, and its folder where there is none.

    A stream would write in parts, and ask before what kind of file it is: that takes three times as
    long for a small one, and an epoch writes dozens.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with naming(file):
        try:
            handle = os.open(file, flags, 0o666)
        except FileNotFoundError:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, flags, 0o666)
        try:
            left = memoryview(content)
            while left.nbytes:
                left = left[os.write(handle, left) :]
        finally:
            os.close(handle)


def settle() -> None:
    """Force all that waits to the disk.

    The disk begins with all files before the first one is waited for. So the journal's first
    record has them all, and those behind find theirs done: 64 take 5 ms instead of 10 (ext4).
    """
    with _lock:
        files, folders = list(_files), list(_folders)
        _files.clear()
        _folders.clear()
    try:
        if _waiting_for_disk.is_long:
            list(_pool.map(_begin, files))
        else:
            for file in files:
                _begin(file)
        left = iter([*files, *folders])
        # One after the other, until the disk is known to let wait.
        while not _waiting_for_disk.is_long and (path := next(left, None)) is not None:
            _waiting_for_disk.timed(force, path)
        if rest := list(left):
            _waiting_for_disk.fade()
            # A part for each thread: to hand a file over takes about as long as to force it.
            parts = [rest[number::_THREADS] for number in range(min(_THREADS, len(rest)))]
            list(_pool.map(_force_all, parts))
    except BaseException:
        with _lock:
            _files.update(files)
            _folders.update(folders)
        raise


def _begin(file: Path) -> None:
    """Have the disk begin with a small new file, where the system can be asked to."""
    if not hasattr(os, "posix_fadvise"):
        return
    with suppress(OSError):  # it is deleted, or cannot be: forcing it will tell
        handle = os.open(file, os.O_RDONLY)
        try:
            if os.fstat(handle).st_size <= _SMALL:
                # What was written and not yet on disk is sent there, and stays at hand meanwhile.
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _force_all(paths: Iterable[Path]) -> None:
    for path in paths:
        force(path)


def force(path: Path) -> None:
    """Force one file or folder to the disk; one that was deleted meanwhile needs nothing."""
    with suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDONLY)
        try:
            with naming(path):
                os.fsync(handle)
        finally:
            os.close(handle)


def put(file: Path, content: bytes, *, check: Callable[[Path], None] | None = None) -> None:
    """Make or replace a file; before and after a crash it is the old one or the new one, whole.

    Args:
        file: its name.
        content: all of it.
        check: called with the new file when only the name is missing; what it raises is raised.
    """
    with _aside(file, content) as staged:
        if check is not None:
            check(staged)
        force(staged)
        staged.replace(file)
    force(file.parent)


def put_if_absent(
    file: Path,
    content: bytes,
    *,
    check: Callable[[], None] | None = None,
    at_once: bool = True,
    readers: int = 0,
) -> bool:
    """Make a file, whole, unless there is one of that name.

    Args:
        file: its name.
        content: all of it.
        check: called when only the name is missing; what it raises is raised.
        at_once: have it on disk now, else after the next `settle`.
        readers: who else may read it; see `mview.files.modes`.

    Returns:
        Whether it was made: of several who try, one is told so.
    """
    with _aside(file, content) as staged:
        share(staged, readers)
        if at_once:
            force(staged)
        if check is not None:
            check()
        try:
            # A link is put-if-absent and all-or-nothing.
            os.link(staged, file)
        except FileExistsError:
            # Of a network file system the answer may be lost, and the client asks again.
            if not _is_same(staged, file):
                return False
        except FileNotFoundError:
            if check is not None:
                check()  # swept away: somebody has taken over
            raise
    if at_once:
        force(file.parent)
    else:
        later(file)
    return True


def _is_same(staged: Path, file: Path) -> bool:
    """Whether a name is the staged file's; what is gone again is nobody's."""
    with suppress(FileNotFoundError):
        return staged.samefile(file)
    return False


def is_aside(name: str) -> bool:
    """Whether a file was written aside, by its name; its writer may be at it, or dead."""
    return _ASIDE.fullmatch(name) is not None


def sweep(folder: Path, check: Callable[[], None]) -> None:
    """Delete what was written aside in a folder and did not get its name.

    A writer that is still at it fails: for who takes over, it was too late.

    Args:
        folder: where to look.
        check: called when it is known what would be deleted; what it raises is raised.
    """
    leftovers = sorted(folder.glob(f"_*{ASIDE}"))
    check()
    for staged in leftovers:
        staged.unlink(missing_ok=True)


def take_away(path: Path, to: Path, check: Callable[[], None]) -> None:
    """Rename what is to be deleted: under its own name a successor may have made another one.

    A look before cannot tell, for a pause may come after it; so the look comes after, and what was
    not ours to take gets its name back.

    Args:
        path: a file or folder; it may be gone.
        to: a name that nothing has.
        check: what it raises is raised.
    """
    check()
    with suppress(FileNotFoundError):
        path.rename(to)
    failpoint("taken-away")
    try:
        check()
    except Exception:
        with suppress(OSError):  # the successor has deleted it, or has a new one
            if to.is_dir():
                if not path.exists():
                    to.rename(path)
            else:
                os.link(to, path)  # never over the successor's, however long a pause before
                to.unlink()
        raise


def delete_named(file: Path, check: Callable[[], None]) -> None:
    """Delete a file whose name may be given again; see `take_away`."""
    taken = file.with_name(f"_{uuid.uuid4().hex}{ASIDE}")
    take_away(file, taken, check)
    taken.unlink(missing_ok=True)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Have what the system refuses name the file: of a full disk it does not."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(file)
        raise


@contextmanager
def _aside(file: Path, content: bytes) -> Iterator[Path]:
    """The content under another name, hidden from who lists data files."""
    staged = file.with_name(f"_{uuid.uuid4().hex}{ASIDE}")
    try:
        write_whole(staged, content)
        yield staged
    finally:
        staged.unlink(missing_ok=True)
