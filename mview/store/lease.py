"""The lease of a store: one runner at a time, and a token that tells an old runner from a new one.

Every holder has its own file, named by its token. Taking the lease is making the file after the
newest one, which succeeds for one process only; keeping it is rewriting one's own file. So nobody
ever writes another's file, and the holder is whoever has the highest token.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from mview.clock import Clock, SystemClock
from mview.errors import (
    AlreadyRunningError,
    CorruptionError,
    FencedError,
    LostStoreError,
    MviewError,
    RetryableError,
    of_the_system,
)
from mview.files.durable import put, put_if_absent
from mview.files.jsonfile import checked, read_checked
from mview.files.numbered import numbered, numbers
from mview.files.records import record
from mview.store.identity import copied_from

#: A runner that does not renew for this long is taken over. Longer than any pause of a healthy
#: process and than the clock difference of two hosts, shorter than a person's patience.
TTL_MS = 30_000

#: Renewals per TTL: two may fail in a row.
_RENEWALS = 3

#: Files of former holders that are kept, for people who look for what happened.
_KEPT = 5

#: End of a lease that is free, while an older runner may still wake.
_LONG_AGO = 1


@dataclass(frozen=True)
class Owner:
    """Who holds a lease.

    Attributes:
        host: host name.
        space: what process ids are unique in: a container has its own.
        pid: process id.
        started: start time of the process, as the kernel counts it; tells a re-used pid.
        since_ms: wall time of taking the lease.
        expires_ms: wall time after which anybody may take it; 0: given back, and no older runner
            can write any more.
    """

    host: str
    space: str
    pid: int
    started: str
    since_ms: int
    expires_ms: int

    def is_dead(self) -> bool:
        """Whether the process is known to be gone; False when that cannot be told from here."""
        here = (socket.gethostname(), _pid_space())
        return (self.host, self.space) == here and _started(self.pid) != self.started


class Lease:
    """The lease on a store folder; a context manager.

    Args:
        folder: folder of the lease files.
        clock: wall time; every runner of a store must agree on it within TTL_MS.
        ttl_ms: see TTL_MS.
        above: a token that was used, should the lease files be lost.
    """

    def __init__(
        self, folder: Path, clock: Clock | None = None, ttl_ms: int = TTL_MS, above: int = 0
    ) -> None:
        self.folder, self._above = folder, above
        self._clock = clock or SystemClock()
        self._ttl_ms = ttl_ms
        self._token = 0
        self._takes_over = False
        self._fenced = False
        self._owner: Owner | None = None
        self._handle: int | None = None
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every runner before."""
        return self._token

    @property
    def takes_over(self) -> bool:
        """Whether the runner before did not give the lease back: it may be paused, and wake."""
        return self._takes_over

    def all_fenced(self) -> None:
        """Say that no older runner can write any more: the next runner need not take over.

        Without it, giving the lease back leaves the take-over to the next one.
        """
        self._fenced = True

    def holder(self) -> Owner | None:
        """Who runs on the store now; None when nobody does."""
        newest = self.newest() if self.folder.is_dir() else 0
        owner = self._read(newest) if newest else None
        return None if owner is None or self._is_free(owner) else owner

    def check_free(self) -> None:
        """Refuse what a runner would refuse later, before anybody is asked about it.

        Raises:
            AlreadyRunningError: somebody holds it; the message has who and what to do.
        """
        if (owner := self.holder()) is not None:
            raise self._held(owner)

    def acquire(self) -> None:
        """Take the lease: free, given back, expired, or held by a process that is gone.

        Raises:
            AlreadyRunningError: somebody holds it; the message has who and what to do.
            RetryableError: it cannot be written.
        """
        try:
            self._acquire()
        except OSError as error:
            raise of_the_system(error, str(self.folder)) or RetryableError(
                "the lease of the store cannot be written",
                where=str(self.folder),
                got=str(error),
                safe="nothing was changed",
                hint="look at the disk (full? read-only?) and the rights on this folder, and run "
                "the same command again",
            ) from error

    def _acquire(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        newest = self.newest()
        before = self._read(newest) if newest else None
        if before is not None and not self._is_free(before):
            raise self._held(before)
        lost = newest < self._above  # nobody knows whether that runner gave it back
        self._takes_over = lost or (before is not None and before.expires_ms > 0)
        now = self._clock.now()
        self._owner = Owner(
            socket.gethostname(),
            _pid_space(),
            os.getpid(),
            _started(os.getpid()) or "",
            now,
            now + self._ttl_ms,
        )
        token = max(newest, self._above) + 1
        if not put_if_absent(self._file(token), _content(self._owner)):
            raise self._held(self._read(token))
        # Open until the release: a number of an inode is its own for so long, on any file system.
        self._handle = os.open(self.folder, os.O_RDONLY)
        self._token = token
        for token in numbers(self.folder):
            if token <= newest - _KEPT:
                self._file(token).unlink(missing_ok=True)
        self._renewer = threading.Thread(target=self._renew, name="mview-lease", daemon=True)
        self._renewer.start()

    def check(self) -> None:
        """Make sure that the lease is still ours; cheap, called before everything that shows.

        Raises:
            FencedError: another runner has taken it over.
            LostStoreError: the store is not where it was, another one is, or its lease is gone.
        """
        self._check_place()
        newest = self.newest()
        if newest < self._token:
            raise self._deleted(f"{self._file(self._token)} is gone")
        if newest > self._token:
            owner = self._read(newest)
            raise FencedError(
                "another runner has taken this store over",
                where=str(self.folder),
                got=_describe(owner) if owner else None,
                safe="nothing is lost: what it had decided of its running epoch the other one has "
                "published, the rest it does again",
                hint="stop this runner: it was paused for longer than its lease, or a clock was "
                "set",
            )

    def release(self) -> None:
        """Give the lease back, when nothing writes any more; the next runner takes it at once."""
        self._stop.set()
        if self._renewer is not None:
            self._renewer.join()
        if self._owner is not None:
            ended = 0 if self._fenced or not self._takes_over else _LONG_AGO
            with suppress(MviewError, OSError):
                self.check()
                self._give_back(_content(replace(self._owner, expires_ms=ended)))
        self._owner = None
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _give_back(self, content: bytes) -> None:
        file = self._file(self._token)
        # What ended the run is told, not that the disk is full now.
        with suppress(OSError):
            try:
                put(file, content)
            except OSError:  # in its place: a full disk has room for what is there already
                with file.open("r+b") as out:
                    out.write(content.ljust(file.stat().st_size))

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _renew(self) -> None:
        while not self._stop.wait(self._ttl_ms / 1000 / _RENEWALS):
            owner = self._owner
            # A full disk or a lost mount: try again; `check` speaks up if somebody took over.
            with suppress(OSError, LostStoreError):
                self._check_place()
                if owner is None or self.newest() != self._token:
                    return
                renewed = replace(owner, expires_ms=self._clock.now() + self._ttl_ms)
                put(self._file(self._token), _content(renewed))

    def _is_free(self, owner: Owner) -> bool:
        return owner.expires_ms < self._clock.now() or owner.is_dead()

    def _file(self, token: int) -> Path:
        return numbered(self.folder, token)

    def newest(self) -> int:
        """The token of the newest holder, whether it holds it still; 0: there was none."""
        return max(numbers(self.folder), default=0)

    def _check_place(self) -> None:
        """Raise unless the folder is the one in which the lease was taken."""
        if self._handle is None:
            return
        try:
            if os.path.samestat(os.fstat(self._handle), self.folder.stat()):
                return
            how = "is another folder now"
        except (FileNotFoundError, NotADirectoryError):
            how = "is gone"
            if self.folder.parent.is_dir():
                raise self._deleted(f"{self.folder} {how}") from None
        raise LostStoreError(
            "the folder of the store was taken away under a run",
            where=str(self.folder.parent),
            got=f"{self.folder} {how}",
            safe="every published epoch is where the folder is now; nothing was published since",
            hint="put it back, or mount its disk: what may stand at its name now is to go first; "
            "then run the same command again; it makes an environment that was dropped anew",
        )

    def _deleted(self, got: str) -> LostStoreError:
        return LostStoreError(
            "the lease of the store was deleted under a run",
            where=str(self.folder.parent),
            got=got,
            safe="every published epoch is there, if no more than the lease was deleted; nothing "
            "was published since",
            hint="leave the store's files alone while a run is there; then run the same command "
            "again: it makes a new lease",
        )

    def _read(self, token: int) -> Owner:
        file = self._file(token)
        return read_checked(
            file,
            partial(record, Owner),
            "the lease of the store cannot be read",
            "make sure that no mview runs on this store, then delete this file",
        )

    def _held(self, owner: Owner) -> AlreadyRunningError:
        left = max(0, owner.expires_ms - self._clock.now()) // 1000 + 1
        gone = f"wait {left} seconds"
        if left > self._ttl_ms // 1000 + 1:
            # Nobody takes a lease for so long: it was written by another clock.
            gone = f"its clock is ahead of this one: delete {self._file(self.newest())}"
        copied = ""
        with suppress(CorruptionError):
            if (original := copied_from(self.folder.parent)) is not None:
                # The lease was copied, too, beside a run that need not end.
                copied = (
                    f"this is a copy of {original}: if the process runs that one, {gone}; else "
                )
        return AlreadyRunningError(
            "mview runs on this store already",
            where=str(self.folder.parent),
            got=_describe(owner),
            safe="nothing was changed",
            hint=f"{copied}stop it (kill {owner.pid} on {owner.host}), or use another store; "
            f"if that process is gone, {gone}",
        )


T = TypeVar("T")

#: Tries against an older runner that is just writing: it writes once before it sees the token.
_TRIES = 5


def insist(lease: Lease, step: Callable[[], T]) -> T:
    """Do a step again where an older runner was faster: it writes once before it is stopped.

    Raises:
        FencedError: a newer runner took over, or somebody who is no runner writes.
    """
    for _ in range(_TRIES):
        try:
            return step()
        except FencedError as error:
            lease.check()
            refused = error
    raise refused


@contextmanager
def fenced(lease: Lease) -> Iterator[None]:
    """Who has taken the store over says more than what it stopped in the block."""
    try:
        yield
    except Exception as error:
        try:
            lease.check()
        except FencedError as overtaken:
            raise overtaken from error
        raise


def _content(owner: Owner) -> bytes:
    return checked(asdict(owner))


def _describe(owner: Owner) -> str:
    return f"process {owner.pid} on {owner.host}"


def _pid_space() -> str:
    # Two containers may share a host name, but not their process ids.
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def _started(pid: int) -> str | None:
    """Start time of a process; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    else:
        # The command may hold spaces and brackets: fields count from the last bracket.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""
