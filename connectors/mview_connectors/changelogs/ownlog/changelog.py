"""A changelog that a database sends itself: what PostgreSQL and MySQL have in common.

In offsets the log's own entry is `[end, commit, number]`: a place (see `runs`). The others say what
must be as it was: another server, or a table that was made anew or altered, has other changes.

The watermark: the server's clock and the end of its log are asked for together; when everything up
to that end has come, every change up to that time has. So it moves without any change, and needs
nothing to be written at the source.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NoReturn, Protocol

from mview.clock import END_OF_TIME, SourceMs
from mview.config import ChangesSettings
from mview.connector import (
    ALL,
    NO_LIMIT,
    Align,
    Message,
    Offsets,
    Progress,
    Split,
    TableHalt,
    unknown_offsets,
)
from mview.errors import ConfigError, UserError, shown
from mview_connectors.changelogs.ownlog.runs import (
    ChangeRun,
    Limits,
    Place,
    committed_before,
    up_to,
    whole_ones,
)
from mview_connectors.changelogs.ownlog.stream import ROOM, LogStream

#: In front of a table's name.
TABLE = "table/"

#: The server's clock is asked for so often, in seconds, when nothing comes.
_BEAT_S = 0.25

#: When nothing comes, the place is moved so often: else the server keeps what others write.
_MOVE_S, _MOVE_BYTES = 30.0, 16 << 20

#: Changes of one split: a task's worth.
_SPLIT = 10_000


class LogState(Protocol):
    """A server at a moment: its clock, and the end of its log then or later."""

    @property
    def clock(self) -> SourceMs:
        """Its clock, in milliseconds."""
        ...

    @property
    def end(self) -> int:
        """Where its log ends."""
        ...


class OwnLog(ABC):
    """Follows the log of a server; see the module.

    Args:
        settings: the connection's `changes` section.
        tables: names of the tables that are read.
        known: the names of options.
    """

    #: The one partition, and the entry of its place in offsets.
    log: ClassVar[str]

    def __init__(
        self, settings: ChangesSettings, tables: Sequence[str], known: Sequence[str]
    ) -> None:
        self._settings, self._tables = settings, list(tables)
        for name in settings.options:
            if name not in known and not name.startswith("format."):
                self._refuse(name, settings.options[name], f"options {', '.join(known)}")
        self._columns: Mapping[str, Collection[str]] = {}
        self._loading: Collection[str] = ()
        self._stream: LogStream | None = None
        self._start: Offsets = {}
        self._before: Place | None = None
        self._beat: tuple[SourceMs, int] | None = None
        self._beaten = float("-inf")
        self._moved = time.monotonic()
        self._vouched: list[tuple[Place, SourceMs]] = []
        self._bounded: int | None = None
        self._planned: tuple[Place, Place, list[ChangeRun]] | None = None
        #: Tables that are not any more as they were loaded.
        self._halts: dict[str, TableHalt] = {}
        self._said: set[str] = set()

    def only(self, columns: Mapping[str, Collection[str]], loading: Collection[str] = ()) -> None:
        """See `mview.ingest.spec.open_changelog`."""
        self._columns, self._loading = columns, loading

    def _is_used(self, table: str, column: str) -> bool:
        """Whether a column of a table is read; what happens to another does not matter."""
        return table not in self._columns or column in self._columns[table]

    def _new(self, known: Offsets | None) -> list[str]:
        """The tables of which a load begins: all but those that are followed already."""
        return [name for name in self._tables if f"{TABLE}{name}" not in (known or {})]

    def _check_followed(self, start: Offsets, check: Callable[[str], object]) -> None:
        """Halt the tables that cannot be followed any more; no other waits for them.

        Args:
            start: from where on the log is read; tables whose load begins were looked at before.
            check: raises a UserError where a table cannot be followed.
        """
        for name in self._tables:
            if f"{TABLE}{name}" in start:
                try:
                    check(name)
                except ConfigError:
                    continue  # settings may name columns that are gone, and that nobody reads
                except UserError as error:
                    self._halts[name] = TableHalt.of(error, altered=True)

    # --- what a server adds ----------------------------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Refuse a server or tables whose changes cannot be followed; makes nothing."""

    @abstractmethod
    def begin(self, known: Offsets | None = None) -> Offsets:
        """The log's end now; what is missing at the server is made."""

    @abstractmethod
    def _end(self) -> int:
        """Where the server's log ends now."""

    @abstractmethod
    def _check(self, start: Offsets) -> LogState:
        """The server's state; raises unless it is the one that was read so far.

        Tables that are others than were read so far halt.
        """

    @abstractmethod
    def _opened(self, start: Offsets) -> LogStream:
        """A stream from a place on, that has begun."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connections; the stream has ended."""

    def _offsets(self, start: Offsets, end: Place) -> Offsets:
        """The offsets of a place after `start`."""
        return {**start, self.log: list(end)}

    # --- Changelog -------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether an entry is of the log, or of one of these tables."""
        return not name.startswith(TABLE) or name[len(TABLE) :] in self._tables

    def first(self, offsets: Offsets) -> dict[str, int]:
        """The place of the first commit that is not taken, or one before it."""
        return {self.log: self._place(offsets).end}

    def sent(self, table: str, before: Offsets) -> dict[str, tuple[int, ...]]:
        """Nothing: the server sends nothing again that stands before a place."""
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
            DataLostError: the server does not have what comes after `start` any more.
        """
        at = self._place(start)
        stream = self._following(start)
        self._confirm(stream, at)
        deadline = time.monotonic() + wait_ms / 1000
        until = END_OF_TIME if align.until is None else align.until
        limits = Limits(max(max_rows, 1), min(max_bytes, ROOM), until)
        room = Limits(
            max(limits.changes, align.whole_changes),
            max(limits.size, min(align.whole_bytes, ROOM)),
        )
        while True:
            runs, reached, beat, error = self._received(stream, at, start)
            if self._bounded is not None and runs:
                whole, runs = runs, committed_before(runs, self._bounded)
                if runs != whole:  # of what comes later nothing is known
                    reached, beat = Place(self._bounded), None
            taken, to, waits = whole_ones(runs, reached, limits, room)
            left = sum(run.changes for run in runs) - sum(run.changes for run in taken)
            if waits and error is not None:  # the rest of the first one does not come
                raise error
            if not runs and beat is not None:  # it holds for whatever comes next
                self._vouched.append((at, beat))
            if taken or (left and not waits) or self._is_over(reached, deadline):
                break
            if self._halts.keys() - self._said:
                break
            rest = _BEAT_S if self._bounded is not None else deadline - time.monotonic()
            stream.wait(max(0.0, min(_BEAT_S, rest)))
        end = at if to is None else to
        known = [self._vouched_at(at), *([] if left else [beat])]
        if taken:
            # After they came: they are of the tables as they were then.
            clock = self._check(start).clock
            newest = max(run.newest for run in taken)
            # A session may give its changes any time (MySQL: SET timestamp); a clock is set back.
            if newest <= clock:
                known.append(SourceMs(newest - 1))
        watermark = max((ms for ms in known if ms is not None), default=None)
        if not left and self._bounded is None:
            end = self._moved_to(end, reached)
        self._planned = at, end, taken
        if watermark is not None:
            self._vouched.append((end, watermark))
        self._said |= self._halts.keys()
        return Progress(
            self._offsets(start, end), watermark, left, not end.commit, dict(self._halts)
        )

    def finish(self) -> None:
        """Stop at the end that the log has now."""
        self._bounded = self._end()

    def splits(self, start: Offsets, end: Offsets) -> Sequence[Split]:
        """What was received between two places, with its bytes: the log has one reader."""
        first, last = self._place(start), self._place(end)
        if first == last:
            return []
        if self._planned is not None and self._planned[:2] == (first, last):
            runs = self._planned[2]
        else:
            runs = self._again(start, first, last)
        parts: list[list[ChangeRun]] = [[]]
        for run in runs:
            if sum(other.changes for other in parts[-1]) >= _SPLIT:
                parts.append([])
            parts[-1].append(run)
        return [
            Split(
                self.log,
                list(part[0].start),
                [(run.start.commit, run.key, run.value) for run in part],
                sum(run.changes for run in part),
            )
            for part in parts
            if part
        ]

    def read(self, splits: Sequence[Split]) -> Iterator[Message]:
        """The messages that splits carry."""
        for split in splits:
            for commit, key, value in split.end:
                yield Message(split.partition, commit, key, value)

    def caution(self) -> str | None:
        """None: the connection of the database says it."""
        return None

    def close(self) -> None:
        """End the stream; may be called more than once."""
        self._end_stream()
        self._disconnect()

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # --- the stream ------------------------------------------------------------------------------

    def _following(self, start: Offsets) -> LogStream:
        """The stream, from a place on that is not after `start`."""
        if self._stream is not None and self._place(start) < self._place(self._start):
            self._end_stream()
        if self._stream is None:
            self._stream = self._opened(start)
        self._start = start
        return self._stream

    def _confirm(self, stream: LogStream, at: Place) -> None:
        """The log is needed from the batch on before the one that ends here."""
        if self._before is not None and self._before < at:
            stream.confirm(self._before.end)
        self._before = at

    def _received(
        self, stream: LogStream, at: Place, start: Offsets
    ) -> tuple[list[ChangeRun], Place, SourceMs | None, BaseException | None]:
        """What waits, up to where everything has come, the time up to which it has, and the end."""
        if self._beat is None and time.monotonic() - self._beaten >= _BEAT_S:
            state = self._check(start)
            self._beat, self._beaten = (state.clock, state.end), time.monotonic()
            stream.ask(state.end)
        known = self._beat is not None and stream.has_reached(self._beat[1])
        runs, reached, error = stream.waiting(at)
        beat = self._beat[0] if self._beat is not None and known else None
        if known:
            self._beat = None
        return runs, reached, beat, error

    def _vouched_at(self, at: Place) -> SourceMs | None:
        """The watermark at a place; what was said of later ones, which were not taken, goes."""
        self._vouched = [(place, mark) for place, mark in self._vouched if place <= at]
        self._vouched = self._vouched[-1:]
        return self._vouched[0][1] if self._vouched else None

    def _is_over(self, reached: Place, deadline: float) -> bool:
        """Whether nothing is to be waited for."""
        if self._bounded is not None:
            return reached.end >= self._bounded
        return time.monotonic() >= deadline

    def _moved_to(self, end: Place, reached: Place) -> Place:
        """The place after which nothing has come: moved now and then, as an epoch notes it."""
        if reached.commit or reached <= end:
            return end
        if end.commit:  # all of that transaction was taken before its commit came
            return reached
        now, far = time.monotonic(), reached.end - end.end
        if now - self._moved >= _MOVE_S or far >= _MOVE_BYTES:
            self._moved = now
            return reached
        return end

    def _again(self, start: Offsets, first: Place, last: Place) -> list[ChangeRun]:
        """What a process has planned that is no more, received again."""
        stream = self._following(start)
        while True:
            runs, reached, error = stream.waiting(first)
            if reached >= last:
                break
            if error is not None:
                raise error
            stream.ask(last.end)
            stream.wait(_BEAT_S)
        taken: list[ChangeRun] = []
        for run in runs:
            if run.end <= last:
                taken.append(run)
            elif run.start < last and (part := up_to(run, last)) is not None:
                taken.append(part)
        return taken

    # --- settings --------------------------------------------------------------------------------

    def _refuse(self, option: str, value: str, allowed: str) -> NoReturn:
        raise ConfigError(
            f"option {option!r} is none, or has no such value",
            where=f"{self._settings.section}.options",
            got=shown(value),
            allowed=allowed,
        )

    def _place(self, offsets: Offsets) -> Place:
        match offsets.get(self.log):
            case [int(end), int(commit), int(number)]:
                return Place(end, commit, number)
        raise unknown_offsets(offsets)


def text_of(offsets: Offsets, name: str) -> str:
    """A text of offsets."""
    value = offsets.get(name)
    if not isinstance(value, str):
        raise unknown_offsets(offsets)
    return value
