"""The lease of a store: one runner at a time, and a token that tells an old runner from a new one.

Every holder has its own file, named by its token. Taking the lease is making the file after the
newest one, which succeeds for one process only; keeping it is rewriting one's own file. So nobody
ever writes another's file, and the holder is whoever has the highest token.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

import orjson

from mview.clock import Clock, SystemClock
from mview.errors import AlreadyRunningError, CorruptionError, FencedError

#: A runner that does not renew for this long is taken over. Longer than any pause of a healthy
#: process and than the clock difference of two hosts, shorter than a person's patience.
TTL_MS = 30_000

#: Renewals per TTL: two may fail in a row.
_RENEWALS = 3

#: Files of former holders that are kept, for people who look for what happened.
_KEPT = 5

_FILE = re.compile(r"^(\d{20})\.json$")


@dataclass(frozen=True)
class Owner:
    """Who holds a lease.

    Attributes:
        host: host name.
        space: what process ids are unique in: a container has its own.
        pid: process id.
        started: start time of the process, as the kernel counts it; tells a re-used pid.
        since_ms: wall time of taking the lease.
        expires_ms: wall time after which anybody may take it; 0: given back.
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
    """

    def __init__(self, folder: Path, clock: Clock | None = None, ttl_ms: int = TTL_MS) -> None:
        self.folder = folder
        self._clock = clock or SystemClock()
        self._ttl_ms = ttl_ms
        self._token = 0
        self._owner: Owner | None = None
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every runner before."""
        return self._token

    def holder(self) -> Owner | None:
        """Who runs on the store now; None when nobody does."""
        newest = self._newest() if self.folder.is_dir() else 0
        owner = self._read(newest) if newest else None
        return None if owner is None or self._is_free(owner) else owner

    def acquire(self) -> None:
        """Take the lease: free, given back, expired, or held by a process that is gone.

        Raises:
            AlreadyRunningError: somebody holds it; the message has who and what to do.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        newest = self._newest()
        if newest and (owner := self._read(newest)) and not self._is_free(owner):
            raise self._held(owner)
        now = self._clock.now()
        self._owner = Owner(
            socket.gethostname(),
            _pid_space(),
            os.getpid(),
            _started(os.getpid()) or "",
            now,
            now + self._ttl_ms,
        )
        staged = self._stage(self._owner)
        try:
            os.link(staged, self._file(newest + 1))
        except FileExistsError:
            raise self._held(self._read(newest + 1)) from None
        finally:
            staged.unlink()
        self._token = newest + 1
        for token in self._tokens():
            if token <= newest - _KEPT:
                self._file(token).unlink(missing_ok=True)
        self._renewer = threading.Thread(target=self._renew, name="mview-lease", daemon=True)
        self._renewer.start()

    def check(self) -> None:
        """Make sure that the lease is still ours; cheap, called before everything that shows.

        Raises:
            FencedError: another runner has taken it over.
        """
        newest = self._newest()
        if newest != self._token:
            owner = self._read(newest)
            raise FencedError(
                "another runner has taken this store over",
                where=str(self.folder),
                got=_describe(owner) if owner else None,
                safe="nothing of the running epoch is visible",
                hint="stop this runner: it was paused for longer than its lease",
            )

    def release(self) -> None:
        """Give the lease back; the next runner takes it at once."""
        self._stop.set()
        if self._renewer is not None:
            self._renewer.join()
        if self._owner is not None and self._newest() == self._token:
            self._stage(replace(self._owner, expires_ms=0)).replace(self._file(self._token))
        self._owner = None

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
            if owner is None or self._newest() != self._token:
                return
            # A full disk or a lost mount: try again; `check` speaks up if somebody took over.
            with suppress(OSError):
                renewed = replace(owner, expires_ms=self._clock.now() + self._ttl_ms)
                self._stage(renewed).replace(self._file(self._token))

    def _is_free(self, owner: Owner) -> bool:
        return owner.expires_ms < self._clock.now() or owner.is_dead()

    def _file(self, token: int) -> Path:
        return self.folder / f"{token:020d}.json"

    def _tokens(self) -> list[int]:
        found = [_FILE.match(file.name) for file in self.folder.iterdir()]
        return [int(match.group(1)) for match in found if match]

    def _newest(self) -> int:
        return max(self._tokens(), default=0)

    def _stage(self, owner: Owner) -> Path:
        staged = self.folder / f"{uuid.uuid4().hex}.tmp"
        with staged.open("wb") as out:
            out.write(orjson.dumps(asdict(owner)))
            out.flush()
            os.fsync(out.fileno())
        return staged

    def _read(self, token: int) -> Owner:
        file = self._file(token)
        try:
            return Owner(**orjson.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise CorruptionError(
                "the lease of the store cannot be read",
                where=str(file),
                got=str(error),
                safe="nothing was changed",
                hint="make sure that no mview runs on this store, then delete this file",
            ) from None

    def _held(self, owner: Owner) -> AlreadyRunningError:
        left = max(0, owner.expires_ms - self._clock.now()) // 1000
        return AlreadyRunningError(
            "mview runs on this store already",
            where=str(self.folder.parent),
            got=_describe(owner),
            safe="nothing was changed",
            hint=f"stop it (kill {owner.pid} on {owner.host}), or use another store; "
            f"if that host is gone, wait {left + 1} seconds",
        )


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
