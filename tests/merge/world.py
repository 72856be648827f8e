"""A random world around the merge: a database, its log, a connector, partitions, reads, crashes.

It knows the truth for every cut (a vector of offsets) without any merge rule, and drives a subject
(the model, or the real rules) through epochs, holding every published epoch against the truth.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Protocol

from mview.changelog import RowKind
from mview.errors import UserError
from mview.snapshot import ChunkPlan
from tests.models import merge as model
from tests.models.merge import ChangelogRow, Event, Key, Read, Row, TableModel


class WrongMergeError(AssertionError):
    """A published epoch differs from the truth."""


@dataclass(frozen=True)
class World:
    """What is true around the merge. The defaults are what mview promises to handle."""

    seed: int
    composite: bool = False
    partitions: int = 2
    #: every clock reading and every stamp in the log is off by up to this
    jitter: int = 4
    #: chunks are read from a replica that is behind by up to this
    lag: int = 25
    delay: int | None = None
    watermark: Callable[[list[int | None]], int | None] = model.watermark
    #: an idle partition is stamped by the wall clock (wrong; for the mutation check)
    wall_clock: bool = False
    #: what was sent before reading began is known
    begin_known: bool = True
    #: truncates also with several partitions, where they can be impossible to order
    truncates: bool = False

    @property
    def t(self) -> int:
        """T as a careful user sets it."""
        return 2 * self.jitter if self.delay is None else self.delay


def random_world(seed: int, **changes: Any) -> World:
    rng = random.Random(seed)
    world: dict[str, Any] = {
        "composite": rng.random() < 0.4,
        "partitions": rng.randint(1, 3),
        "jitter": rng.choice([0, 4, 8]),
        "lag": rng.choice([0, 25]),
        "truncates": rng.random() < 0.4,
    }
    return World(seed, **(world | changes))


@dataclass(frozen=True)
class Entry:
    kind: str  # c u d truncate heartbeat
    key: Key
    row: Row | None
    position: int
    time: int
    stamp: int


@dataclass
class Source:
    """A database with its log, and a connector that sends the log to partitions, at least once."""

    rng: random.Random
    world: World
    rows: dict[Key, Row] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)
    states: list[dict[Key, Row]] = field(default_factory=list)
    clock: int = 1_000
    sent: int = 0
    partitions: list[list[Entry]] = field(default_factory=list)
    calm: bool = False

    def __post_init__(self) -> None:
        self.partitions = [[] for _ in range(self.world.partitions)]
        for number in range(24):
            if self.rng.random() < 0.6:
                key = self.key(number)
                self.rows[key] = self.row(key)
        self.states.append(dict(self.rows))

    def key(self, number: int) -> Key:
        return (f"r{number % 4}", number // 4) if self.world.composite else (number,)

    def row(self, key: Key) -> Row:
        return (*key, self.rng.randint(0, 3), self.rng.choice(["a", "b", None]))

    @property
    def position(self) -> int:
        return len(self.log)

    def read_clock(self) -> int:
        return self.clock + self.rng.randint(-self.world.jitter, self.world.jitter)

    def _log(
        self, kind: str, key: Key = (), row: Row | None = None, position: int | None = None
    ) -> None:
        position = self.position + 1 if position is None else position
        self.log.append(Entry(kind, key, row, position, self.clock, self.read_clock()))
        self.states.append(dict(self.rows))

    def write(self, *, truncate: bool) -> None:
        """One random transaction; heartbeats are rows of the same log."""
        self.clock += self.rng.randint(1, 5)
        dice, key = self.rng.random(), self.key(self.rng.randrange(32))
        other = self.key(self.rng.randrange(32))
        if dice < 0.2:
            self._log("heartbeat")
        elif dice < 0.21 and truncate:
            self.rows.clear()
            self._log("truncate")
        elif dice < 0.3:
            # One statement, several rows, one position (PostgreSQL's COPY).
            position = self.position + 1
            for same in dict.fromkeys((key, other, self.key(self.rng.randrange(32)))):
                kind = "u" if same in self.rows else "c"
                self.rows[same] = self.row(same)
                self._log(kind, same, self.rows[same], position)
        elif key not in self.rows:
            self.rows[key] = self.row(key)
            self._log("c", key, self.rows[key])
        elif dice < 0.5:
            del self.rows[key]
            self._log("d", key)
        elif dice < 0.6 and other not in self.rows:
            # A key change is one transaction and two entries.
            row = self.rows.pop(key)
            self.rows[other] = (*other, *row[len(other) :])
            self._log("d", key)
            self._log("c", other, self.rows[other])
        else:
            self.rows[key] = self.row(key)
            self._log("u", key, self.rows[key])

    def send(self, count: int) -> None:
        """The connector moves on, or falls back and sends a run of the log again."""
        if not self.calm and self.rng.random() < 0.12:
            self.sent = max(0, self.sent - self.rng.randint(1, 15))
        for entry in self.log[self.sent : self.sent + count]:
            if entry.kind == "heartbeat":
                for partition in self.partitions:
                    partition.append(entry)
            else:
                self.partitions[self.partition_of(entry)].append(entry)
        self.sent = min(len(self.log), self.sent + count)

    def partition_of(self, entry: Entry) -> int:
        if entry.kind == "truncate":
            return 0
        return sum(map(ord, repr(entry.key))) % len(self.partitions)


class Subject(Protocol):
    def epoch(
        self, events: Sequence[tuple[Event, int]], reads: Sequence[Read], watermark: int
    ) -> list[ChangelogRow]: ...
    def released(self) -> set[int]: ...
    def copy(self) -> Subject: ...


class ModelSubject:
    """The specification."""

    def __init__(self, model: TableModel) -> None:
        self.model = model

    def epoch(
        self, events: Sequence[tuple[Event, int]], reads: Sequence[Read], watermark: int
    ) -> list[ChangelogRow]:
        return self.model.epoch([event for event, _ in events], reads, watermark)

    def released(self) -> set[int]:
        return {n for n, chunk in enumerate(self.model.chunks) if chunk.released}

    def copy(self) -> ModelSubject:
        return ModelSubject(deepcopy(self.model))


MakeSubject = Callable[[World, ChunkPlan, Mapping[str, int]], Subject]


class Run:
    """One run of a subject through a world."""

    def __init__(self, world: World, make: MakeSubject) -> None:
        self.world, self.rng = world, random.Random(world.seed)
        self.source = Source(self.rng, world)
        for _ in range(self.rng.randint(0, 25)):
            self.source.write(truncate=False)
        self.source.send(self.rng.randint(0, self.source.position))
        self.ends = [len(partition) for partition in self.source.partitions]
        self.starts = list(self.ends)
        for _ in range(self.rng.randint(0, 3)):
            self.source.write(truncate=False)
        self.begin = self.source.position
        self.plan = self._plan()
        self.unread = list(range(len(self.plan.chunks)))
        known = enumerate(self.source.partitions if world.begin_known else ())
        sent = {f"p{n}": [e.position for e in log if e.kind != "heartbeat"] for n, log in known}
        # The last change in each partition, not the highest: the connector may just send again.
        before = {partition: positions[-1] for partition, positions in sent.items() if positions}
        self.subject = make(world, self.plan, before)
        self.watermark = -1
        self.files = 0
        self.mirror: dict[Key, Row] = {}

    def _plan(self) -> ChunkPlan:
        keys = [self.source.key(number) for number in range(24)]
        columns = ("region", "id") if self.world.composite else ("id",)
        bounds = sorted(self.rng.sample(sorted(keys)[1:], self.rng.randint(0, 4)))
        maximum = max(self.source.rows, default=None)
        if maximum is not None:
            bounds = [bound for bound in bounds if bound <= maximum]
        return ChunkPlan("db.t", columns, tuple(bounds), maximum, 24)

    def chunk_of(self, key: Key) -> int:
        return sum(key >= bound for bound in self.plan.bounds)

    # --- epochs ----------------------------------------------------------------------------------

    def run(self) -> str:
        """The whole run; "undecided" when it had to halt, where `World` says that it may."""
        try:
            for _ in range(self.rng.randint(15, 40)):
                self._epoch(self.rng.randint(0, 12))
            self._finish()
        except UserError:
            if self.world.truncates and self.world.partitions > 1:
                return "undecided"
            raise
        return "loaded"

    def _loaded(self) -> bool:
        return len(self.subject.released()) == len(self.plan.chunks)

    def _finish(self) -> None:
        """Liveness: when the connector catches up and time goes on, the load ends."""
        self.source.calm = True
        for _ in range(3):
            self.source.clock += 10 * (self.world.t + self.world.jitter + 1)
            self.source._log("heartbeat")
            self.source.send(self.source.position)
            self._epoch(0, everything=True)
        if not self._loaded():
            raise WrongMergeError("the table was never loaded")
        if self.mirror != self.source.rows:
            raise WrongMergeError("the mirror is not the table at the end")

    def _write(self, count: int) -> None:
        truncate = self.world.truncates or self.world.partitions == 1
        for _ in range(0 if self.source.calm else count):
            self.source.write(truncate=truncate)

    def _epoch(self, writes: int, *, everything: bool = False) -> None:
        rng, source = self.rng, self.source
        self._write(writes)
        source.send(rng.randint(0, 14))
        ends = [
            len(log) if everything or rng.random() < 0.4 else rng.randint(end, len(log))
            for end, log in zip(self.ends, source.partitions, strict=True)
        ]
        events = self._events(ends)
        chunks = self.unread if everything else [c for c in self.unread if rng.random() < 0.2]
        published = None
        for attempt in range(1 if rng.random() < 0.8 else rng.randint(2, 3)):
            if attempt:
                self._write(rng.randint(0, 8))  # the time it takes to start again
            trial = self.subject.copy()
            changes = trial.epoch(
                rng.sample(events, len(events)), self._reads(chunks), self.watermark
            )
            mirror = apply_changelog(self.mirror, changes)
            if published is not None and mirror != published:
                raise WrongMergeError("a replayed epoch differs from the published one")
            published = mirror
        assert published is not None
        self.subject, self.mirror, self.ends = trial, published, ends
        self.unread = [chunk for chunk in self.unread if chunk not in chunks]
        self._check()
        self._stamp()

    def _events(self, ends: list[int]) -> list[tuple[Event, int]]:
        events = []
        for number, (start, end) in enumerate(zip(self.ends, ends, strict=True)):
            for offset in range(start, end):
                entry = self.source.partitions[number][offset]
                if entry.kind != "heartbeat":
                    chunk = self.chunk_of(entry.key) if entry.key else -1
                    event = Event(
                        entry.kind,  # type: ignore[arg-type]
                        chunk,
                        entry.key,
                        entry.row,
                        entry.position,
                        f"p{number}",
                    )
                    events.append((event, offset))
        return events

    def _reads(self, chunks: list[int]) -> list[Read]:
        reads = [self._read(chunk) for chunk in chunks]
        if chunks and self.rng.random() < 0.2:
            reads.append(self._read(self.rng.choice(chunks)))
        if self.rng.random() < 0.1:
            done = [c for c in range(len(self.plan.chunks)) if c not in self.unread]
            reads += [self._read(chunk) for chunk in done[:1]]
        return reads

    def _read(self, chunk: int) -> Read:
        source, rng = self.source, self.rng
        self._write(rng.randint(0, 2))
        seen_until = source.clock - rng.randint(0, self.world.lag)
        position = max(self.begin, sum(entry.time <= seen_until for entry in source.log))
        rows = {
            key: row
            for key, row in source.states[position].items()
            if self.chunk_of(key) == chunk
            and self.plan.maximum is not None
            and key <= self.plan.maximum
        }
        self._write(rng.randint(0, 2))
        self.files += 1
        name = f"{rng.randrange(10**6):06d}-{self.files}"
        return Read(chunk, name, rows, source.read_clock())

    def _stamp(self) -> None:
        """The watermark after the epoch, as the planner computes it."""
        stamps: list[int | None] = []
        for start, end, log in zip(self.starts, self.ends, self.source.partitions, strict=True):
            stamp = max((entry.stamp for entry in log[start:end]), default=None)
            if self.world.wall_clock and end == len(log):
                stamp = self.source.read_clock()
            stamps.append(stamp)
        mark = self.world.watermark(stamps)
        self.watermark = max(self.watermark, -1 if mark is None else mark)

    # --- the truth -------------------------------------------------------------------------------

    def truth(self) -> dict[Key, Row]:
        """The table at the cut `ends`: each key's latest entry read, or its row at the begin."""
        latest: dict[Key, Entry] = {}
        floor = self.begin
        for start, end, log in zip(self.starts, self.ends, self.source.partitions, strict=True):
            for entry in log[start:end]:
                if entry.kind == "truncate":
                    floor = max(floor, entry.position)
                elif entry.kind != "heartbeat":
                    known = latest.get(entry.key)
                    if known is None or known.position < entry.position:
                        latest[entry.key] = entry
        table = dict(self.source.states[self.begin]) if floor == self.begin else {}
        for key, entry in latest.items():
            if entry.position > floor:
                table.pop(key, None)
                if entry.row is not None:
                    table[key] = entry.row
        return table

    def _check(self) -> None:
        released = self.subject.released()
        truth = {k: r for k, r in self.truth().items() if self.chunk_of(k) in released}
        mirror = {k: r for k, r in self.mirror.items() if self.chunk_of(k) in released}
        if mirror != truth:
            missing = sorted(set(truth.items()) - set(mirror.items()), key=repr)
            extra = sorted(set(mirror.items()) - set(truth.items()), key=repr)
            raise WrongMergeError(f"{self.world}: missing {missing[:3]}, wrong {extra[:3]}")


def apply_changelog(
    mirror: dict[Key, Row], changes: Sequence[tuple[RowKind, Key, Row]]
) -> dict[Key, Row]:
    """The mirror after changelog rows, each of which must be valid for its key."""
    table = dict(mirror)
    # Within an epoch the rows have no order but this one: what goes, goes first.
    for kind, key, row in sorted(changes, key=lambda change: change[0].weight):
        if kind.weight < 0:
            if table.pop(key, None) != row:
                raise WrongMergeError(f"{kind.value} of a row that was not sent: {row}")
        elif key in table:
            raise WrongMergeError(f"{kind.value} of a key that is there: {row}")
        else:
            table[key] = row
        if kind is RowKind.INSERT and key in mirror:
            raise WrongMergeError(f"+I of a key that is there: {row}")
    return table
