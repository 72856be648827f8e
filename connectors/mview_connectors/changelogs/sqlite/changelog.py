"""A changelog that triggers write into the SQLite database itself.

Offsets are `{"changes": id, "at_ms": time, "database": identity, "table/<name>": facts}`: the id of
the last change that was taken, and its time, by which another copy of the database is told from
this one. The change itself is kept: pruned is only what stands before the places of all readers.
When the last of them leaves, all goes; what the triggers note from then on stays until one comes.

Who asks for the changes after one batch has published the one before it: up to there they go.

SQLite does not tell transactions apart; but the newest change is always the last of one. So a batch
ends where the newest change was at some look, if there is room for all that stands before it. Where
there is not, transactions may come in parts, which offsets note as `in_part`.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from mview.clock import END_OF_TIME, SourceMs
from mview.config import ChangesSettings, ConnectionSettings
from mview.connector import (
    ALL,
    NO_LIMIT,
    Align,
    Format,
    LogReader,
    Look,
    Message,
    Offsets,
    Progress,
    Split,
    TableHalt,
    unknown_offsets,
)
from mview.connector.halts import SAFE
from mview.errors import ConfigError, DataLostError, UserError
from mview_connectors.changelogs.ownlog.runs import Limits
from mview_connectors.changelogs.sqlite.server import Extent, LogLook, NotedChange, server_of
from mview_connectors.formats.ownlog.noted import noted_message

#: The one partition, and the entry of its place in offsets.
_LOG = "changes"
_TABLE = "table/"

#: How often an idle log is looked at: that takes some 100 microseconds.
_LOOK_S = 0.05

#: How often the place is moved over changes that nobody reads, and what is published is pruned.
_MOVE_S, _PRUNE_S = 30.0, 2.0

#: Changes of one split: a task's worth.
_SPLIT = 10_000

#: So many places are remembered at which a transaction ends; of more, every second.
_ENDS = 256

#: In offsets, where they stand inside of what may be a transaction.
_IN_PART = "in_part"

_SAFE = "what is published stays as it is; nothing after this place was taken"


class SqliteChangelog:
    """Follows the changes of a SQLite database; see the module.

    Args:
        settings: the connection's `changes` section.
        database: where the tables are.
        tables: their names.
        reader: who reads: each has a place of its own.
    """

    def __init__(
        self,
        settings: ChangesSettings,
        database: ConnectionSettings,
        tables: Sequence[str],
        reader: LogReader,
    ) -> None:
        if settings.options:
            raise ConfigError(
                "source 'sqlite' has no options",
                where=f"{settings.section}.options",
                got=", ".join(settings.options),
                hint="leave them out",
            )
        self._settings, self._tables, self._reader = settings, list(tables), reader
        self._database, self._server = database, server_of(database)
        own = f"{settings.connection}_{replace(reader, light='').number:08x}"
        #: Its row in the database.
        self._row = f"{own}/{reader.light}" if reader.light else own
        #: The columns that are read, by table; of other tables: all.
        self._columns: Mapping[str, Collection[str]] = {}
        self._schema: int | None = None
        #: Tables that are not any more as they were loaded.
        self._halts: dict[str, TableHalt] = {}
        self._before: NotedChange | None = None
        self._vouched: list[tuple[int, SourceMs]] = []
        self._bounded: int | None = None
        #: The clock when that was the newest change.
        self._bounded_at: SourceMs | None = None
        self._ends: list[int] = []
        self._moved = time.monotonic()
        self._pruned = float("-inf")

    @classmethod
    def of_database(
        cls,
        settings: ChangesSettings,
        database: ConnectionSettings,
        format: Format,
        tables: Sequence[str],
        reader: LogReader,
    ) -> SqliteChangelog:
        """See `mview.ingest.spec.open_changelog`."""
        return cls(settings, database, tables, reader)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._settings, self._database, self._tables, self._reader)

    # --- Changelog -------------------------------------------------------------------------------

    def only(self, columns: Mapping[str, Collection[str]], loading: Collection[str] = ()) -> None:
        """See `mview.ingest.spec.open_changelog`."""
        self._columns = columns

    def install(self) -> Sequence[str]:
        """Make the triggers of the tables where they are missing; see `Installed`."""
        return self._server.install(self._tables)

    def check(self) -> None:
        """Refuse tables whose triggers are not in place; makes nothing."""
        self._server.check_tables(self._tables, self._columns)

    def looks(self, tables: Sequence[str], load_ms: Callable[[], int] | None) -> Sequence[Look]:
        """The triggers of each table, and how much is kept."""

        def installed(table: str) -> str:
            self._server.check_tables([table], self._columns)
            return "its triggers are in place"

        return [
            *(
                Look(f"{self._server.place(name)}: log", partial(installed, name))
                for name in tables
            ),
            Look(f"{self._settings.section}: changes", self._server.kept),
        ]

    def begin(self, known: Offsets | None = None) -> Offsets:
        """The newest change now."""
        new = [name for name in self._tables if f"{_TABLE}{name}" not in (known or {})]
        self._server.check_tables(new, self._columns)
        database, newest, facts = self._server.begin(self._row, self._tables)
        if known is not None and known.get("database") != database:
            self._lost("it is another database, or its log was made anew")
        tables = {f"{_TABLE}{name}": known for name, known in facts.items()}
        return {_LOG: newest.id, "at_ms": newest.ms, "database": database, **tables}

    def room(self, readers: Mapping[LogReader, Offsets | None]) -> str:
        """See `Retaining`."""
        return "any number may read"

    def leave(self, known: Offsets | None) -> None:
        """See `Retaining`."""
        self._server.leave(self._row)

    def has(self, name: str) -> bool:
        """Whether an entry is of the log, or of one of these tables."""
        return not name.startswith(_TABLE) or name[len(_TABLE) :] in self._tables

    def first(self, offsets: Offsets) -> dict[str, int]:
        """The id of the last change that was taken."""
        return {_LOG: _place(offsets).id}

    def sent(self, table: str, before: Offsets) -> dict[str, tuple[int, ...]]:
        """Nothing: no change has two ids."""
        return {}

    def advance(
        self,
        start: Offsets,
        max_rows: int,
        wait_ms: int,
        max_bytes: int = NO_LIMIT,
        align: Align = ALL,
    ) -> Progress:
        """Up to `max_rows` changes on from `start`, and whole transactions where there is room.

        Raises:
            DataLostError: it is another database, or an older copy of it.
        """
        at = _place(start)
        self._confirm(at)
        deadline = time.monotonic() + wait_ms / 1000
        until = END_OF_TIME if align.until is None else align.until
        limits = Limits(max(max_rows, 1), max_bytes, until)
        room = Limits(
            max(limits.changes, align.whole_changes), max(max_bytes, align.whole_bytes), until
        )
        while True:
            look = self._checked(start)
            to = look.newest.id if self._bounded is None else min(self._bounded, look.newest.id)
            to = max(to, at.id)
            self._note_end(at.id, to)
            comes = bool(self._server.changes(at.id, to, self._tables, 1))
            if comes or self._bounded is not None or self._halts or time.monotonic() >= deadline:
                break
            time.sleep(max(0.0, min(_LOOK_S, deadline - time.monotonic())))
        # Where nothing is left up to the newest change, no transaction is open any more.
        end, whole = at, not comes or not start.get(_IN_PART, False)
        if comes and (reached := self._reached(at.id, limits, room)) is not None:
            end, whole = reached
            self._checked(start)  # after they were read: they are of the tables as they were then
        rest = self._server.changes(end.id, to, self._tables, 1)
        left = self._server.count(end.id, to, self._tables) if rest else 0
        marks = [self._vouched_at(at.id)]
        if left:
            if end != at:  # those that are left were committed later
                mark = SourceMs(min(end.ms, rest[0].ms) - 1)
                if mark < look.clock:  # else the clock was set back
                    marks.append(mark)
        else:
            marks.append(look.clock if self._bounded is None else self._bounded_at)
            if end == at and self._bounded is None:
                end = self._moved_to(at, look.newest)
        watermark = max((mark for mark in marks if mark is not None), default=None)
        if watermark is not None:
            self._vouched.append((end.id, watermark))
        offsets = {**start, _LOG: end.id, "at_ms": end.ms}
        offsets.pop(_IN_PART, None)
        if not whole:
            offsets[_IN_PART] = True
        return Progress(offsets, watermark, left, whole, dict(self._halts))

    def _note_end(self, at: int, end: int) -> None:
        """Remember a place at which a transaction ends; those that are not ahead are forgotten."""
        self._ends = [known for known in self._ends if at < known < end]
        if len(self._ends) >= _ENDS:
            self._ends = self._ends[::2]
        if end > at:
            self._ends.append(end)

    def _reached(self, at: int, limits: Limits, room: Limits) -> tuple[NotedChange, bool] | None:
        """The last change that a batch has, and whether a transaction ends there.

        Args:
            at: it begins after this id.
            limits: of the batch. One that is larger is taken for the sake of whole transactions:
            room: up to this.

        Returns:
            None: what comes first is newer than may be.
        """

        def extent(end: int) -> Extent:
            return self._server.extent(at, end, self._tables, room.changes + 1)

        def is_too_much(end: int) -> bool:
            changes, size, newest, _ = extent(end)
            return not limits.have(changes, size) or newest > limits.until

        fitting = bisect_left(self._ends, True, key=is_too_much)
        best = None if fitting == 0 else extent(self._ends[fitting - 1])
        if best is not None and best.changes:
            return self._server.change(best.last), True
        next_one = extent(self._ends[fitting])
        if room.have(next_one.changes, next_one.size):
            is_late = next_one.newest > limits.until
            return None if is_late else (self._server.change(next_one.last), True)
        known = self._server.changes(at, self._ends[fitting], self._tables, limits.changes)
        parts = _first(known, limits)
        return (parts[-1], False) if parts else None

    def finish(self) -> None:
        """Stop at the newest change that there is now."""
        look = self._server.look(0)
        self._bounded, self._bounded_at = look.newest.id, look.clock
        insort(self._ends, look.newest.id)

    def splits(self, start: Offsets, end: Offsets) -> Sequence[Split]:
        """Ranges of ids, with the number of changes that there are in each."""
        at, last = _place(start).id, _place(end).id
        splits = []
        while at < last:
            changes = self._server.changes(at, last, self._tables, _SPLIT)
            if not changes:
                break
            to = changes[-1].id
            splits.append(Split(_LOG, at, to, len(changes)))
            at = to
        return splits

    def read(self, splits: Sequence[Split]) -> Iterator[Message]:
        """The changes of ranges of ids, as messages of format `noted`."""
        for split in splits:
            count = 0
            for number, ms, op, layout, values in self._server.rows(
                split.start, split.end, self._tables
            ):
                row = dict(zip(layout.columns, values, strict=False))
                if op == "d":
                    row = {name: row[name] for name in layout.key}
                count += 1
                yield noted_message(_LOG, number, ms, layout.table, op, row)
            if count != split.messages:
                self._lost(f"{split.messages - count} changes up to id {split.end} were deleted")

    def caution(self) -> str | None:
        """None: the file is on this machine."""
        return None

    def close(self) -> None:
        """Close the connections; may be called more than once."""
        self._server.close()

    # --- places ----------------------------------------------------------------------------------

    def _confirm(self, at: NotedChange) -> None:
        """The log is needed from the batch on before the one that ends here."""
        before = self._before
        if before is not None and before.id < at.id:
            now = time.monotonic()
            if now - self._pruned >= _PRUNE_S:
                self._pruned = now
                self._server.confirm(self._row, before.id, before.ms)
        self._before = at

    def _vouched_at(self, at: int) -> SourceMs | None:
        """The watermark at a place; what was said of later ones, which were not taken, goes."""
        self._vouched = [(place, mark) for place, mark in self._vouched if place <= at][-1:]
        return self._vouched[0][1] if self._vouched else None

    def _moved_to(self, at: NotedChange, newest: NotedChange) -> NotedChange:
        """Over changes of tables that are not read, now and then: else they would be kept."""
        now = time.monotonic()
        if newest.id > at.id and now - self._moved >= _MOVE_S:
            self._moved = now
            return newest
        return at

    # --- what must be as it was ------------------------------------------------------------------

    def _checked(self, start: Offsets) -> LogLook:
        """The log; raises unless the database is the one that was read so far.

        Tables that are others than were read so far halt.
        """
        at = _place(start)
        look = self._server.look(at.id)
        if look.database != start.get("database"):
            self._lost("it is another database, or its log was made anew")
        if look.newest.id < at.id:
            self._lost(f"its newest change is {look.newest.id}, of {at.id} that were read: older")
        if at.ms and look.at != at.ms:
            self._lost(f"change {at.id} is another one than was read: an older copy that went on")
        if look.schema != self._schema:
            facts = self._server.facts(self._tables)
            for name in self._tables:
                if (then := start.get(f"{_TABLE}{name}")) is not None:
                    self._check_table(name, then, facts.get(name))
            self._schema = look.schema
        return look

    def _check_table(self, name: str, then: dict[str, Any], now: dict[str, Any] | None) -> None:
        place, what = self._server.place(name), ""
        mends: str | None = self._server.command
        if now is None:
            what = "or its triggers were dropped or altered"
        elif now["made"] != then["made"]:
            what, mends = "or its triggers were made anew", None
        else:
            gone = [c for c, kind in then["columns"].items() if now["columns"].get(c) != kind]
            if gone:
                there = gone[0] in now["columns"]
                what = f"has column {gone[0]!r} {'with another type' if there else 'no more'}"
        if what:
            error = UserError(
                f"table {place} {what} since it was loaded",
                where=self._server.server,
                safe=SAFE,
                hint=mends,
            )
            self._halts[name] = TableHalt.of(error, altered=True)

    def _lost(self, got: str) -> NoReturn:
        raise DataLostError(
            f"changes of SQLite {self._server.server} are gone before they were read",
            where=self._settings.section,
            got=got,
            safe=_SAFE,
            hint="`mview drop` the tables of this connection and run again: they are loaded anew",
        )


def _place(offsets: Offsets) -> NotedChange:
    match offsets.get(_LOG), offsets.get("at_ms"):
        case int(number), int(ms):
            return NotedChange(number, SourceMs(ms))
    raise unknown_offsets(offsets)


def _first(changes: Sequence[NotedChange], limits: Limits) -> Sequence[NotedChange]:
    """The changes that a batch has; one that is larger than it may be comes alone."""
    size = limits.size
    for number, change in enumerate(changes):
        size -= change.size
        if change.ms > limits.until or (size < 0 and number):
            return changes[:number]
    return changes
