"""What is remembered of files: rows that were just written are read again soon."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Container
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from mview.memory import Demand


class _Sized(Protocol):
    @property
    def nbytes(self) -> int:
        """Bytes in memory."""


_Content = TypeVar("_Content", bound=_Sized)


class Pool:
    """Bytes that all `Recent` of a process have together.

    Args:
        limit: bytes; beyond, what was not asked for the longest is forgotten, whosever it is.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.lock = threading.Lock()
        self._demand = Demand()
        self._order: OrderedDict[tuple[int, str], tuple[dict[str, Any], int]] = OrderedDict()
        self._gone: deque[int] = deque()

        self._numbers = count()

    def enter(self, owner: object) -> int:
        """A number for an owner; what it has is forgotten when it is freed itself."""
        number = next(self._numbers)
        # Noted only: garbage is collected at any moment, also while the order is changed.
        weakref.finalize(owner, self._gone.append, number)
        return number

    def touch(self, owner: int, path: str) -> None:
        """Note that a content was asked for, whether it is there or not."""
        self._demand.note((owner, path), len(self._order))
        if (owner, path) in self._order:
            self._order.move_to_end((owner, path))

    def has_room(self, owner: int, path: str, nbytes: int) -> bool:
        """Whether there is room for a content, if what is asked for less often goes."""
        self._sweep()
        free = self.limit - self.used
        for key, (_, size) in self._order.items():
            if free >= nbytes:
                break
            if not self._demand.outranks((owner, path), key):
                return False
            free += size
        return free >= nbytes

    def keep(self, owner: int, path: str, kept: dict[str, Any], nbytes: int) -> None:
        """Count a content that its owner has in `kept`."""
        self._sweep()
        self._order[owner, path] = kept, nbytes
        self.used += nbytes
        while self.used > self.limit:
            (_, oldest), (where, size) = self._order.popitem(last=False)
            where.pop(oldest, None)
            self.used -= size

    def free(self, owner: int, path: str) -> None:
        """Count a content no more."""
        self.used -= self._order.pop((owner, path), ({}, 0))[1]

    def _sweep(self) -> None:
        while self._gone:
            owner = self._gone.popleft()
            for whose, path in [key for key in self._order if key[0] == owner]:
                self.free(whose, path)


#: The pool of this process; a run sets its limit to the share of `engine.memory`.
POOL = Pool(512 << 20)


class Recent(Generic[_Content]):
    """Contents of files by path, up to a limit of bytes; the oldest go first.

    Where all files are gone through again and again (`scanned`), those would always have gone that
    come next. So a content takes the place of what is asked for less often only, and as many of
    them stay as there is room for.

    Several threads may ask and add at once. What is asked for may be forgotten a moment later.

    Args:
        limit: bytes, of those of the pool.
        pool: what is shared with others.
        scanned: see above.
    """

    def __init__(self, limit: int, pool: Pool | None = None, *, scanned: bool = False) -> None:
        self._limit, self._scanned = limit, scanned
        self._pool = POOL if pool is None else pool
        self._number = self._pool.enter(self)
        self._kept: dict[str, tuple[_Content, int]] = {}
        #: Bytes of what is kept here, some more where the pool has let go of it.
        self._bytes = 0

    def __contains__(self, path: str) -> bool:
        return path in self._kept

    def get(self, path: str) -> _Content | None:
        """What is remembered of a file; None: nothing."""
        with self._pool.lock:
            self._pool.touch(self._number, path)
            kept = self._kept.get(path)
            return None if kept is None else kept[0]

    def add(self, path: str, content: _Content) -> None:
        """Remember a file, unless it alone is beyond the limit."""
        nbytes = content.nbytes
        if nbytes > min(self._limit, self._pool.limit):
            return
        with self._pool.lock:
            self._forget(path)
            if self._scanned and not self._pool.has_room(self._number, path, nbytes):
                return
            self._kept[path] = content, nbytes
            self._bytes += nbytes
            self._pool.keep(self._number, path, self._kept, nbytes)
            if self._bytes <= self._limit:
                return
            self._bytes = sum(nbytes for _, nbytes in self._kept.values())
            for oldest in list(self._kept):
                if self._bytes <= self._limit:
                    break
                self._forget(oldest)

    def forget(self, live: Container[str]) -> None:
        """Forget files that are gone."""
        with self._pool.lock:
            for path in [path for path in self._kept if path not in live]:
                self._forget(path)

    def _forget(self, path: str) -> None:
        if (kept := self._kept.pop(path, None)) is not None:
            self._bytes -= kept[1]
            self._pool.free(self._number, path)
