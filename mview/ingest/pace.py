"""Which chunks of tables may be read now: priorities, side by side, windows, pauses, rates.

A choice of chunks is never wrong, only early or late: what was handed out is noted by who reads,
and each chunk counts by the rules of the load, whenever it was read. So all of this may be changed
between two choices, and what is remembered here may be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mview.clock import SystemClock
from mview.config import Config, LoadSettings
from mview.errors import typed
from mview.ingest.spec import TableSpec
from mview.relation import RelationId
from mview.snapshot import Chunk
from mview.store.layout import Store
from mview.store.requests.paused import paused_tables

#: Seconds before it is asked again whether a chunk may be read: little beside a chunk, and each
#: question is a batch of Spark that finds nothing.
HELD_S = 0.2

#: A chunk of a table that waits to be read.
Waiting = tuple[TableSpec, Chunk]


def held(
    config: Config, tables: Iterable[RelationId], paused: Collection[RelationId], now_ms: int
) -> dict[RelationId, str]:
    """Why no more of tables is read now, for people; those that may be read are left out.

    Args:
        paused: tables that somebody has paused.
        now_ms: wall time.
    """
    told = {}
    for table in tables:
        shut = [
            load.window
            for load in _limits(config, table)
            if load.window is not None and not load.window.is_open(now_ms)
        ]
        if table in paused:
            told[table] = f"paused; on it goes with: mview resume {typed(table)}"
        elif shut:
            told[table] = f"read in its window only, {shut[0]}"
    return told


@dataclass
class Pacer:
    """Chooses chunks. For one thread; what it remembers may be lost with its process.

    Attributes:
        config: the configuration.
        elapsed: seconds, growing.
        wall_ms: wall time.
        due: seconds at which the next chunk of a table (or of a connection, by its name) may be
            read, where there is a rate.
    """

    config: Config
    elapsed: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = SystemClock().now
    due: dict[RelationId | str, float] = field(default_factory=dict)

    def take(self, waiting: Sequence[Waiting], most: int) -> list[Waiting]:
        """The chunks that are read next; none: none may be.

        Args:
            waiting: chunks that were not handed out, those of a table by number; of several tables
                with one priority in this order.
            most: so many at the most.

        Raises:
            CorruptionError: a request to pause a table is damaged.
        """
        paused = paused_tables(Store(self.config.store))
        tables = list(dict.fromkeys(table.name for table, _ in waiting))
        shut = held(self.config, tables, paused, self.wall_ms())
        begun = {table.name: chunk.number > 0 for table, chunk in reversed(waiting)}
        beside = self._side_by_side([name for name in tables if name not in shut], begun)
        eligible = [(table, chunk) for table, chunk in waiting if table.name in beside]
        eligible.sort(key=lambda entry: -self._priority(entry[0].name))
        taken: list[Waiting] = []
        for table, chunk in eligible:
            if len(taken) == most:
                break
            if self._is_due(table):
                taken.append((table, chunk))
        return taken

    def _priority(self, table: RelationId) -> int:
        return self.config.connections[table.connection].table(table.name).load.priority

    def _side_by_side(
        self, tables: Sequence[RelationId], begun: Mapping[RelationId, bool]
    ) -> set[RelationId]:
        """Of each connection as many tables as may be read side by side.

        Those of a higher priority first, then those that have begun: they end before others begin.
        """
        order = sorted(tables, key=lambda name: (-self._priority(name), not begun[name]))
        places: dict[str, int] = {}
        chosen = set()
        for name in order:
            most = self.config.connections[name.connection].load.tables_at_once
            place = places[name.connection] = places.get(name.connection, 0) + 1
            if most is None or place <= most:
                chosen.add(name)
        return chosen

    def _is_due(self, table: TableSpec) -> bool:
        """Whether a chunk more keeps within the rates; it is counted if so."""
        assert table.plan is not None
        now = self.elapsed()
        owners: tuple[RelationId | str, ...] = (table.name, table.connection)
        limits = _limits(self.config, table.name)
        rates = {
            owner: load.rows_per_second
            for owner, load in zip(owners, limits, strict=True)
            if load.rows_per_second is not None
        }
        if any(self.due.get(owner, now) > now for owner in rates):
            return False
        rows = table.plan.rows / len(table.plan.chunks)
        self.due |= {owner: now + rows / rate for owner, rate in rates.items()}
        return True


def _limits(config: Config, table: RelationId) -> tuple[LoadSettings, LoadSettings]:
    """What is said of a table, and of its connection."""
    connection = config.connections[table.connection]
    return connection.table(table.name).load, connection.load
