"""The specification against the truth; and each of its rules is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.merge.world import MakeSubject, ModelSubject, Run, WrongMergeError, random_world
from tests.models.merge import ChangelogRow, Chunk, Event, Key, Read, TableModel, watermark
from tests.seeds import seeds

SEEDS = int(os.environ.get("MVIEW_SEEDS", "100"))


def make(kind: type[TableModel] = TableModel) -> MakeSubject:
    return lambda world, plan, begin: ModelSubject(kind(len(plan.chunks), world.t, begin))


def test_every_published_epoch_equals_the_table_at_its_cut() -> None:
    ends = []
    for seed in seeds(SEEDS):
        world = random_world(seed)
        try:
            ends.append(Run(world, make()).run())
        except Exception as error:
            raise AssertionError(f"seed {seed}: {world}") from error
    assert ends.count("loaded") > 0.8 * SEEDS
    assert SEEDS < 100 or "undecided" in ends


class Version0IsNotDropped(TableModel):
    def is_seen(self, chunk: Chunk, key: Key) -> bool:
        return False


class FirstEventIsNotMarked(TableModel):
    def remember(self, event: Event) -> None:
        if event.key in self.mirror:
            super().remember(event)


class FirstEventIsNotSent(TableModel):
    def fresh(self, events: Sequence[Event]) -> list[Event]:
        fresh = super().fresh(events)
        return [e for e in fresh if e.chunk < 0 or self.sent(e)]

    def sent(self, event: Event) -> bool:
        return self.chunks[event.chunk].released or event.key in self.mirror


class UnreadChunksForget(TableModel):
    def remember(self, event: Event) -> None:
        if event.chunk < 0 or self.chunks[event.chunk].read:
            super().remember(event)

    def fresh(self, events: Sequence[Event]) -> list[Event]:
        return [
            e
            for e in super().fresh(events)
            if e.chunk < 0 or self.chunks[e.chunk].read or self.chunks[e.chunk].released
        ]


class NoDedupe(TableModel):
    def fresh(self, events: Sequence[Event]) -> list[Event]:
        self.high.clear()
        return super().fresh(events)


class TiesAreOld(TableModel):
    def is_old(self, event: Event, marks: Mapping[str, int]) -> bool:
        return event.position <= marks.get(event.partition, 0)


class OldNewsCount(TableModel):
    """Changes from before the begin mark their keys, and are dropped as duplicates all the same."""

    def remember(self, event: Event) -> None:
        begin, self.begin = self.begin, {}
        super().remember(event)
        self.begin = begin


class ReleasedInTheSameEpoch(TableModel):
    def epoch(
        self, events: Sequence[Event], reads: Sequence[Read], watermark: int
    ) -> list[ChangelogRow]:
        changes = super().epoch(events, reads, watermark)
        fresh = [self.chunks[read.chunk] for read in reads]
        return changes + self.release([c for c in fresh if not c.released], 10**9)


class ArrivalOrder(TableModel):
    def in_order(self, events: Sequence[Event]) -> list[Event]:
        return list(events)


class TruncateForgetsLaggards(TableModel):
    def fresh(self, events: Sequence[Event]) -> list[Event]:
        fresh = super().fresh(events)
        self.floor = 0
        return fresh


class TruncateKeepsVersion0(TableModel):
    def empty(self) -> None:
        pass


class LastReadCounts(TableModel):
    def buffer(self, chunk: Chunk, read: Read) -> None:
        if not chunk.released:
            chunk.read = replace(read, high_ms=chunk.read.high_ms if chunk.read else read.high_ms)


def latest(stamps: list[int | None]) -> int | None:
    return max((stamp for stamp in stamps if stamp is not None), default=None)


MUTATIONS: list[tuple[type[TableModel], dict[str, Any]]] = [
    (Version0IsNotDropped, {}),
    (FirstEventIsNotMarked, {}),
    (FirstEventIsNotSent, {}),
    (UnreadChunksForget, {}),
    (NoDedupe, {}),
    (TiesAreOld, {}),
    (TableModel, {"begin_known": False}),
    (OldNewsCount, {}),
    (ReleasedInTheSameEpoch, {}),
    (ArrivalOrder, {}),
    (TruncateForgetsLaggards, {}),
    (TruncateKeepsVersion0, {}),
    (LastReadCounts, {}),
    (TableModel, {"wall_clock": True}),
    (TableModel, {"watermark": latest, "jitter": 0}),
    (TableModel, {"delay": 0, "jitter": 20, "lag": 0}),
]


@pytest.mark.parametrize(
    ("kind", "changes"),
    MUTATIONS,
    ids=lambda v: v.__name__ if isinstance(v, type) else str(list(v)),
)
def test_a_merge_without_this_rule_is_wrong(
    kind: type[TableModel], changes: dict[str, Any]
) -> None:
    for seed in seeds(max(SEEDS, 1000)):
        try:
            Run(random_world(seed, **changes), make(kind)).run()
        except WrongMergeError:
            return
    pytest.fail("the property test does not notice that the rule is missing")


def test_watermark_is_the_slowest_partition() -> None:
    assert watermark([5, 3, 9]) == 3
    assert watermark([5, None]) is None
