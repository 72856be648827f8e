"""Tables that memory had no room for come back to it beside the epochs, when there is room again.

Such a table is read as one epoch has left it, which may take seconds. What the epochs change
meanwhile is kept and taken in afterwards, so at the end it is as the newest epoch has left it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from mview.execute.local.index import ResidentTable
from mview.relation import RelationId

#: Seconds until a table that has left memory may come back, at first and at most. Each time it
#: leaves, or cannot come back, doubles them: at the edge of the budget it would come and go.
_FIRST, _LONGEST = 60.0, 3600.0

#: So many epochs at the most are left to be taken in while an epoch waits: milliseconds each.
_FEW = 2


class Absent:
    """The tables that memory has no room for, and when each may come back.

    Args:
        now: seconds that never go back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pauses: dict[RelationId, float] = {}
        self._due: dict[RelationId, float] = {}

    def add(self, name: RelationId) -> None:
        """A table has left memory, or could not come to it."""
        pause = min(_LONGEST, 2 * self._pauses.get(name, _FIRST / 2))
        self._pauses[name], self._due[name] = pause, self._now() + pause

    def remove(self, name: RelationId) -> None:
        """A table is in memory; should it leave again, its pause is longer."""
        self._due.pop(name, None)

    def forget(self, name: RelationId) -> None:
        """A table is gone, or begins anew."""
        self._due.pop(name, None)
        self._pauses.pop(name, None)

    def due(self) -> list[RelationId]:
        """The tables that may be tried now, those that wait for the longest time first."""
        if not self._due:
            return []
        now = self._now()
        return sorted((n for n, due in self._due.items() if due <= now), key=self._due.__getitem__)


class Returning:
    """One table on its way back to memory.

    `run` is for a thread beside the epochs; all else is for the thread of the epochs.

    Args:
        name: the relation.
        key: its primary key.
        read: its rows as they are published when this is made; None: they are too large.
        indexed: what rows will be looked up by.
        most: bytes that the changes meanwhile may take; with more it is given up.
    """

    def __init__(
        self,
        name: RelationId,
        key: Sequence[str],
        read: Callable[[], pa.Table | None],
        indexed: Iterable[tuple[str, ...]],
        most: int,
    ) -> None:
        self.name = name
        self._key, self._read, self._indexed, self._most = key, read, [*indexed], most
        self._changes: deque[tuple[pa.Table, pa.Table]] = deque()
        self._table: ResidentTable | None = None
        self._over = threading.Event()
        self._ended = threading.Event()
        #: Why it could not be read, if it could not.
        self.error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        """Whether `table` has an answer."""
        return self._over.is_set() or self._ended.is_set()

    def note(self, old: pa.Table, new: pa.Table) -> None:
        """Keep what an epoch has changed; arguments as for `ResidentTable.apply`."""
        # Of what goes only the keys are needed; as a part of the change they would keep all of it.
        keys = old.select(list(self._key)).take(pa.array(np.arange(old.num_rows)))
        self._changes.append((keys, new))
        if sum(rows.nbytes for change in [*self._changes] for rows in change) > self._most:
            self.give_up()

    def give_up(self) -> None:
        """Do without it: `run` ends soon, and there will be no table."""
        self._over.set()
        self._changes.clear()

    def run(self) -> None:
        """Read the table, and take in what has been changed since."""
        try:
            rows = self._read()
            if rows is None or self._over.is_set():
                return
            table = ResidentTable(self.name, self._key, rows)
            for columns in self._indexed:
                table.prepare(columns)
            while len(self._changes) > _FEW and not self._over.is_set():
                table.apply(*self._changes.popleft())
            self._table = table
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()

    def table(self) -> ResidentTable | None:
        """The table as the newest epoch has left it; None: it cannot come back now.

        Raises:
            CorruptionError: an epoch changed what is not in it.
        """
        if self._over.is_set() or self._table is None:
            return None
        while self._changes:
            self._table.apply(*self._changes.popleft())
        return self._table
