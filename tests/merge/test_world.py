"""rules.py and net.py, driven without Spark, against the truth and against the model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mview.snapshot import ChunkPlan
from tests.merge.real import RealSubject
from tests.merge.world import Run, Subject, World, WrongMergeError, random_world
from tests.models.merge import ChangelogRow, Event, Read
from tests.models.test_merge import make
from tests.seeds import seeds

SEEDS = int(os.environ.get("MVIEW_SEEDS", "24"))


class BothSubject:
    """The model and the real rules side by side: the same changelog, epoch by epoch."""

    def __init__(self, model: Subject, real: Subject) -> None:
        self.model, self.real = model, real

    def epoch(
        self, events: Sequence[tuple[Event, int]], reads: Sequence[Read], watermark: int
    ) -> list[ChangelogRow]:
        expected = self.model.epoch(events, reads, watermark)
        got = self.real.epoch(events, reads, watermark)
        if set(got) != set(expected) or len(got) != len(expected):
            raise WrongMergeError(f"changelogs differ: {set(got) ^ set(expected)}")
        return got

    def released(self) -> set[int]:
        if self.real.released() != self.model.released():
            raise WrongMergeError("different chunks are released")
        return self.real.released()

    def copy(self) -> BothSubject:
        return BothSubject(self.model.copy(), self.real.copy())


def make_both(world: World, plan: ChunkPlan, begin: Mapping[str, int]) -> BothSubject:
    return BothSubject(make()(world, plan, begin), RealSubject(world, plan, begin))


def test_rules_and_netting_equal_the_model_and_the_truth() -> None:
    for seed in seeds(SEEDS):
        world = random_world(seed)
        try:
            Run(world, make_both).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {world}") from error
