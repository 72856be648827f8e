"""What was received of a database's own log: runs of messages, and how much of them a batch takes.

A place in the log is a `Place`: everything that was committed before `end`, and of the transaction
whose commit stands at `commit` (0: of none) the first `number` changes. The server sends
transactions in the order of their commits, each as a whole: whoever goes on inside of one is sent
it from its beginning, and passes over so many changes.

A batch ends between two transactions: see `whole_ones`. Only one that memory has no room for is cut
inside, at any change.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mview.clock import END_OF_TIME, SourceMs
from mview_connectors.formats.ownlog.blocks import (
    PASSED_OVER,
    Begin,
    block_key,
    end_of,
    number_after,
    relation_of,
    truncated,
)

#: A run is closed by so many changes or bytes: it is a message, and most batches are made of whole
#: ones.
_CHANGES, _BYTES = 500, 1 << 16

_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"BCRT"
_CHANGE = frozenset((*b"IUDTiudt", *PASSED_OVER))

#: Where the changed table's number stands in a message.
_relation = struct.Struct(">xI").unpack_from

#: What a message describes a table by that is read, under the name by which it is; None: it is not.
Wanted = Callable[[bytes], bytes | None]


class Place(NamedTuple):
    """A place in the log; see the module. Later ones are greater."""

    end: int
    commit: int = 0
    number: int = 0


class Stop(NamedTuple):
    """What a run has up to the end of a transaction.

    Attributes:
        messages: how many of its messages.
        changes: how many changes.
        size: bytes of them.
        newest: commit time of the newest change.
    """

    messages: int
    changes: int
    size: int
    newest: int


@dataclass
class ChangeRun:
    """Messages in order, and what must be known before the first of them.

    Attributes:
        start: the place of the first message.
        end: the place after the last one.
        known: the relations, and the `Begin` of the first change.
        messages: of a block; the first is a change.
        changes: how many of them are changes.
        size: bytes of them.
        newest: commit time of the newest change.
        stops: where its messages end transactions.
    """

    start: Place
    end: Place
    known: tuple[bytes, ...]
    messages: list[bytes] = field(default_factory=list)
    changes: int = 0
    size: int = 0
    newest: int = 0
    stops: list[Stop] = field(default_factory=list)

    @property
    def extent(self) -> Stop:
        """All of it, as where the transaction of its last message ends."""
        return Stop(len(self.messages), self.changes, self.size, self.newest)

    @property
    def is_full(self) -> bool:
        """Whether the next change begins another one."""
        return self.changes >= _CHANGES or self.size >= _BYTES

    @property
    def key(self) -> bytes:
        """The key of the message that it becomes."""
        return block_key(self.start.number, self.known)

    @property
    def value(self) -> bytes:
        """The value of the message that it becomes."""
        return b"".join(self.messages)


class Runs:
    """Makes runs of messages as they come.

    Args:
        at: the place of the first message; the server may only know the begin of its transaction.
        after: changes up to this place are passed over.
        wanted: which tables are read.

    Attributes:
        at: the place after the last message.
        closed: the runs that are complete.
    """

    def __init__(self, at: Place, after: Place, wanted: Wanted) -> None:
        self._after, self._wanted = after, wanted
        self._relations: dict[int, bytes] = {}
        self._begin: tuple[bytes, Begin] | None = None
        self._open: ChangeRun | None = None
        self.at = at
        self.closed: list[ChangeRun] = []

    def add(self, message: bytes) -> None:
        """Take one message.

        Raises:
            ValueError: a change is in no transaction.
        """
        kind = message[0]
        if kind in _CHANGE:
            self._change(kind, message)
        elif kind == _RELATION:
            if (description := self._wanted(message)) is not None:
                self._relations[relation_of(message)[0]] = description
                self._note(description)
        elif kind == _BEGIN:
            self._begin = message, Begin.of(message)
            self._note(message)
        elif kind == _COMMIT:
            self._begin, self.at = None, Place(end_of(message))
            self._note(message)
            if self._open is not None:
                self._open.end = self.at
                self._open.stops.append(self._open.extent)

    def pass_to(self, end: int) -> None:
        """All that was committed before a place has come."""
        if self._begin is None and end > self.at.end:
            self.at = Place(end)

    def close(self) -> None:
        """Close the run that is open: the next change begins another one."""
        if self._open is not None:
            self.closed.append(self._open)
            self._open = None

    def _change(self, kind: int, message: bytes) -> None:
        if self._begin is None:
            raise ValueError("a change outside of a transaction")
        raw, begin = self._begin
        before = Place(self.at.end, begin.commit, self.at.number)
        self.at = before._replace(number=number_after(message, before.number))
        if self.at <= self._after:
            return
        if not self._is_wanted(kind, message):
            if self._open is None:
                return  # nothing that is read stands before it: its number counts all the same
            message = PASSED_OVER
        if self._open is None:
            self._open = ChangeRun(before, before, (*self._relations.values(), raw))
        run = self._open
        run.end, run.changes = self.at, run.changes + 1
        run.newest = max(run.newest, begin.ms)
        self._note(message)
        if run.is_full:
            self.close()

    def _is_wanted(self, kind: int, message: bytes) -> bool:
        if kind == _TRUNCATE:
            return any(number in self._relations for number in truncated(message)[0])
        return message == PASSED_OVER or _relation(message)[0] in self._relations

    def _note(self, message: bytes) -> None:
        if self._open is not None:
            self._open.messages.append(message)
            self._open.size += len(message)


class Limits(NamedTuple):
    """Of changes: how many, bytes of them, and how new the newest may be."""

    changes: int
    size: int
    until: SourceMs = END_OF_TIME

    def have(self, changes: int, size: int) -> bool:
        """Whether there is room for so many."""
        return changes <= self.changes and size <= self.size


class Taken(NamedTuple):
    """What a batch has of runs.

    Attributes:
        runs: the runs, the last one perhaps in part.
        end: the place after them; None: nothing is taken.
        waits: nothing is taken as the first transaction has not come as a whole yet.
    """

    runs: list[ChangeRun]
    end: Place | None = None
    waits: bool = False


def whole_ones(runs: Sequence[ChangeRun], reached: Place, limits: Limits, room: Limits) -> Taken:
    """As many transactions as a batch may have, each as a whole.

    The first may be larger than the limits, up to the room that there is for it. One that is larger
    than that comes in parts: no batch could hold it.

    Args:
        runs: what there is.
        reached: the place up to which everything has come.
        limits: of the batch. A change that is too large for it comes alone.
        room: of one transaction that is larger; not less than the limits.
    """
    if not runs or Begin.of(runs[0].known[-1]).ms > limits.until:
        return Taken([])
    changes = size = 0
    taken = Taken([])
    for number, run in enumerate(runs):
        after = runs[number + 1].start if number + 1 < len(runs) else reached
        ended = run.end.commit != after.commit or run.end.end < after.end
        stops = [*run.stops, run.extent] if run.end.commit and ended else run.stops
        for stop in stops:
            if stop.newest > limits.until:
                return taken
            ahead = changes + stop.changes, size + stop.size
            if not limits.have(*ahead):
                if taken.end is None and room.have(*ahead):
                    return _until_stop(runs, number, stop, after)
                return _in_parts(runs, limits) if taken.end is None else taken
            taken = _until_stop(runs, number, stop, after)
        changes, size = changes + run.changes, size + run.size
        if taken.end is not None and not limits.have(changes, size):
            return taken
        if not room.have(changes, size):
            return _in_parts(runs, limits)
    return taken if taken.end is not None else Taken([], waits=True)


def _until_stop(runs: Sequence[ChangeRun], number: int, stop: Stop, after: Place) -> Taken:
    """The runs up to the end of a transaction in one of them."""
    run = runs[number]
    if stop.messages < len(run.messages):
        part = _again(run, run.messages[: stop.messages], run.start)
        assert part is not None  # a run begins with a change
        return Taken([*runs[:number], part], part.end)
    # A run that was closed before its commit came ends inside of a transaction that is complete.
    return Taken([*runs[: number + 1]], Place(after.end) if run.end.commit else run.end)


def _in_parts(runs: Sequence[ChangeRun], limits: Limits) -> Taken:
    """As many changes as the limits allow, and one in any case."""
    taken: list[ChangeRun] = []
    changes, size = limits.changes, limits.size
    for run in runs:
        part = head_of(run, changes, size, limits.until)
        if part is None and not taken:
            part = head_of(run, 1, run.size, limits.until)
        taken += [] if part is None else [part]
        if part is not run:
            break
        changes, size = changes - part.changes, size - part.size
    return Taken(taken, taken[-1].end)


def tail_of(run: ChangeRun, after: Place) -> ChangeRun | None:
    """The part of a run after a place; None: there is none."""
    return _again(run, run.messages, after)


def up_to(run: ChangeRun, place: Place) -> ChangeRun | None:
    """The part of a run before a place that a part of it ends at; None: there is none."""
    runs = Runs(run.start, run.start, _any)
    for message in (*run.known, *run.messages):
        if message[0] in _CHANGE and runs.at >= place:
            break
        runs.add(message)
    runs.close()
    return runs.closed[0] if runs.closed else None


def committed_before(runs: list[ChangeRun], end: int) -> list[ChangeRun]:
    """What runs have of transactions whose commit stands before a place in the log."""
    taken: list[ChangeRun] = []
    for run in runs:
        part = head_of(run, run.changes, run.size, END_OF_TIME, end)
        taken += [] if part is None else [part]
        if part is not run:
            break
    return taken


def head_of(
    run: ChangeRun, changes: int, size: int, until: SourceMs, before: int | None = None
) -> ChangeRun | None:
    """The first part of a run.

    Args:
        run: the run.
        changes: it has so many at the most.
        size: and so many bytes.
        until: no change is newer.
        before: no change was committed at this place or after it; None: there is no such place.

    Returns:
        None: not even the first change can be taken.
    """
    begin = Begin.of(run.known[-1])
    taken = length = 0
    for index, message in enumerate(run.messages):
        length += len(message)
        if message[0] == _BEGIN:
            begin = Begin.of(message)
        elif message[0] in _CHANGE:
            too_much = taken == changes or length > size
            is_late = begin.ms > until or (before is not None and begin.commit >= before)
            if too_much or is_late:
                return _again(run, run.messages[:index], run.start) if taken else None
            taken += 1
    return run


def _again(run: ChangeRun, messages: list[bytes], after: Place) -> ChangeRun | None:
    runs = Runs(run.start, after, _any)
    for message in (*run.known, *messages):
        runs.add(message)
    runs.close()
    return runs.closed[0] if runs.closed else None


def _any(message: bytes) -> bytes:
    return message
