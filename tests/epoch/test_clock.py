"""A clock that goes wrong for a moment: nothing that cannot go back goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mview.clock import DAY_MS, AwakeClock, SteadyClock, WallMs
from mview.epoch.retention import last_ended_ms
from tests.epoch.runners import SetClock
from tests.epoch.test_retention import HOUR, MINUTE, World

YEARS = 3650 * DAY_MS


class Machine:
    """A machine whose clock is set by hand, and the clock without leaps over it."""

    def __init__(self, begin_ms: int | None = None) -> None:
        self.wall, self.elapsed = SetClock(), 0
        self.clock = SteadyClock(self.wall, begin_ms, lambda: self.elapsed)

    def passes(self, ms: int) -> WallMs:
        self.elapsed += ms
        self.wall.ms += ms
        return self.clock.now()


def test_time_passes_and_steps_of_a_day_and_back_are_taken() -> None:
    machine = Machine()
    for step in (1, MINUTE, 40 * DAY_MS):
        assert machine.passes(step) == machine.wall.ms
    for step in (DAY_MS, -YEARS, -5, DAY_MS - 1):
        machine.wall.ms += step
        assert machine.clock.now() == machine.wall.ms
        assert not machine.clock.is_in_doubt


def test_a_leap_is_not_believed_before_it_has_lasted_an_hour() -> None:
    machine = Machine()
    right = machine.passes(MINUTE)
    machine.wall.ms += YEARS
    assert machine.clock.now() == right
    assert machine.passes(59 * MINUTE) == right + 59 * MINUTE
    assert machine.clock.is_in_doubt
    machine.wall.ms -= YEARS  # and back: nothing has happened
    assert machine.passes(MINUTE) == machine.wall.ms == right + HOUR
    assert not machine.clock.is_in_doubt
    machine.wall.ms += YEARS  # the hour begins anew
    assert machine.passes(59 * MINUTE) == right + HOUR + 59 * MINUTE
    assert machine.passes(59 * MINUTE) < right + YEARS
    assert machine.passes(MINUTE) == machine.wall.ms > right + YEARS
    assert not machine.clock.is_in_doubt
    assert machine.passes(MINUTE) == machine.wall.ms


@pytest.mark.parametrize("runner", ["the run", "the next run"])
def test_a_leap_prunes_nothing_and_leaves_the_history_in_order(tmp_path: Path, runner: str) -> None:
    world = World(tmp_path)
    for _ in range(20):
        world.run(MINUTE)
    token = 1 if runner == "the run" else 2
    ended = last_ended_ms(world.log, token)
    assert ended == (None if token == 1 else world.now)
    machine = Machine(ended)
    machine.wall.ms = world.now
    if ended is None:
        machine.clock = SteadyClock(machine.wall, None, lambda: machine.elapsed)
    machine.wall.ms += YEARS
    world.retention.prune(machine.clock.now())
    kept = world.log.epochs()
    assert len(kept) == 20
    assert [world.read(epoch) for epoch in kept] == kept
    world.retention.prune(machine.wall.ms)  # what it would have done
    assert world.log.epochs() == [19, 20]


def test_a_process_that_was_stopped_was_not_awake() -> None:
    elapsed = 100.0
    clock = AwakeClock(lambda: elapsed)
    assert clock.now() == 0
    for _ in range(20):
        elapsed += 0.5
        clock.now()
    assert clock.now() == 10
    elapsed += 3600
    assert clock.now() == 11, "up to a second of it counts"
    elapsed += 0.25
    assert clock.now() == 11.25
