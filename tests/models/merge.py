"""The merge of one table in plain Python: the specification that rules.py and net.py are held to.

Whole rows, whole sets, no files, no bytes: what each rule says and nothing else. Each rule is a
method, so that a test can switch one off and show that it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mview.changelog import RowKind
from mview.errors import UserError

Key = tuple[Any, ...]
Row = tuple[Any, ...]
ChangelogRow = tuple[RowKind, Key, Row]


@dataclass(frozen=True)
class Event:
    """One change as the source logged it. A truncate has no key, no row, and meets every chunk."""

    kind: Literal["c", "u", "d", "truncate"]
    chunk: int
    key: Key
    row: Row | None
    position: int
    partition: str


@dataclass(frozen=True)
class Read:
    """One read of a chunk: its rows by key, and the source's clock after it."""

    chunk: int
    file: str
    rows: Mapping[Key, Row]
    high_ms: int


@dataclass
class Chunk:
    """What is known of a chunk: unread (no read), buffered (a read), released."""

    seen: set[Key] = field(default_factory=set)
    read: Read | None = None
    released: bool = False
    emptied: bool = False


def watermark(stamps: Iterable[int | None]) -> int | None:
    """The latest stamp read of each partition -> every change up to the result has been read."""
    known = list(stamps)
    return None if None in known else min(stamp for stamp in known if stamp is not None)


class TableModel:
    """The merge of one table.

    Args:
        chunks: number of snapshot chunks.
        delay: T.
        begin: by partition, the position of the last change in it before reading began: all up to
            it was committed before any chunk was read.
    """

    def __init__(self, chunks: int, delay: int, begin: Mapping[str, int]) -> None:
        self.chunks = [Chunk() for _ in range(chunks)]
        self.delay = delay
        self.begin = begin
        self.floor = 0
        self.high: dict[str, int] = {}
        self.mirror: dict[Key, Row] = {}

    @property
    def loaded(self) -> bool:
        """True when every chunk is released: from now on the mirror is the table."""
        return all(chunk.released for chunk in self.chunks)

    def epoch(
        self, events: Sequence[Event], reads: Sequence[Read], watermark: int
    ) -> list[ChangelogRow]:
        """One epoch: its changes in any order, its chunk reads, the watermark before it."""
        buffered = [chunk for chunk in self.chunks if chunk.read and not chunk.released]
        for event in events:
            self.remember(event)
        for read in sorted(reads, key=lambda read: read.file):
            self.buffer(self.chunks[read.chunk], read)
        before = dict(self.mirror)
        for event in self.in_order(self.fresh(events)):
            self.apply(event)
        changes = _difference(before, self.mirror)
        return changes + self.release(buffered, watermark)

    # --- a chunk ---------------------------------------------------------------------------------

    def remember(self, event: Event) -> None:
        """The version-0 row of a key that was touched is out of date, or will be.

        A truncate touches all: what was read before it is gone, and what was read after it came
        into the table after it, so that the changes bring it.
        """
        if self.is_old_news(event):
            return
        if event.kind == "truncate":
            self.empty()
        elif not self.chunks[event.chunk].released:
            self.chunks[event.chunk].seen.add(event.key)

    def empty(self) -> None:
        """No version-0 row counts any more."""
        for chunk in self.chunks:
            chunk.emptied = True

    def buffer(self, chunk: Chunk, read: Read) -> None:
        """The first read counts, later ones are ignored."""
        if not chunk.read and not chunk.released:
            chunk.read = read

    def release(self, buffered: Sequence[Chunk], watermark: int) -> list[ChangelogRow]:
        """Version-0 rows count when every change up to their read was seen, but never at once."""
        rows: list[ChangelogRow] = []
        for chunk in buffered:
            if chunk.read and watermark > chunk.read.high_ms + self.delay:
                for key, row in chunk.read.rows.items():
                    if not self.is_seen(chunk, key):
                        self.mirror[key] = row
                        rows.append((RowKind.INSERT, key, row))
                chunk.released, chunk.seen, chunk.read = True, set(), None
        return rows

    def is_seen(self, chunk: Chunk, key: Key) -> bool:
        """Whether the key's version-0 row is dropped."""
        return chunk.emptied or key in chunk.seen

    # --- changes ---------------------------------------------------------------------------------

    def fresh(self, events: Sequence[Event]) -> list[Event]:
        """The events not taken before; a truncate makes everything before it old in any partition.

        One position may hold several changes, of different keys: those at the highest one count
        again, which changes nothing if they were taken.

        Raises:
            UserError: a truncate comes after later changes of another partition were taken.
        """
        marks = dict(self.high)
        taken = [
            e
            for e in events
            if e.position > self.floor and not self.is_old(e, marks) and not self.is_old_news(e)
        ]
        for event in taken:
            others = [mark for name, mark in marks.items() if name != event.partition]
            if event.kind == "truncate" and event.position < max(others, default=0):
                raise UserError("a truncate behind other partitions: what it spares is not known")
            self.high[event.partition] = max(self.high.get(event.partition, 0), event.position)
            if event.kind == "truncate":
                self.floor = max(self.floor, event.position)
        return taken

    def is_old(self, event: Event, marks: Mapping[str, int]) -> bool:
        """Whether the event was taken before, for certain."""
        return event.position < marks.get(event.partition, 0)

    def is_old_news(self, event: Event) -> bool:
        """Whether the event is from before reading began: its transaction is in every chunk."""
        return event.position <= self.begin.get(event.partition, 0)

    def in_order(self, events: Sequence[Event]) -> list[Event]:
        """As the source committed them."""
        return sorted(events, key=lambda event: event.position)

    def apply(self, event: Event) -> None:
        """The row after the event replaces the one in the mirror, whatever the event's kind."""
        if event.kind == "truncate":
            self.mirror.clear()
        elif event.kind == "d" or event.row is None:
            self.mirror.pop(event.key, None)
        else:
            self.mirror[event.key] = event.row


def _difference(before: Mapping[Key, Row], after: Mapping[Key, Row]) -> list[ChangelogRow]:
    rows: list[ChangelogRow] = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if new is None and old is not None:
            rows.append((RowKind.DELETE, key, old))
        elif old is None and new is not None:
            rows.append((RowKind.INSERT, key, new))
        elif old is not None and new is not None:
            rows += [(RowKind.UPDATE_BEFORE, key, old), (RowKind.UPDATE_AFTER, key, new)]
    return rows
