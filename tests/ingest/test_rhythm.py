"""Live epochs come as often as their share of a core pays for."""

from __future__ import annotations

import pytest

from mview.ingest.rhythm import LONGEST_S, Rhythm


class Machine:
    """A clock and what has been used of the CPU."""

    now, cpu = 100.0, 7.0

    def rhythm(self) -> Rhythm:
        return Rhythm(lambda: self.now, lambda: self.cpu)

    def works(self, cpu: float) -> None:
        """An epoch runs, on one core."""
        self.cpu += cpu
        self.now += cpu


def test_the_first_epoch_waits_for_nothing() -> None:
    assert Machine().rhythm().left_s() == 0


@pytest.mark.parametrize("cost", [0.001, 0.01, 0.04])
def test_epochs_take_their_share_of_a_core(cost: float) -> None:
    machine = Machine()
    rhythm, began = machine.rhythm(), machine.now
    for _ in range(20):
        rhythm.begin()
        machine.works(cost)
        machine.now += rhythm.left_s()
    assert 20 * cost / (machine.now - began) == pytest.approx(0.35)


def test_a_dear_epoch_does_not_delay_the_next_one_for_long() -> None:
    machine = Machine()
    rhythm = machine.rhythm()
    rhythm.begin()
    machine.works(0.1)
    assert rhythm.left_s() == pytest.approx(LONGEST_S - 0.1)
    machine.works(5.0)
    assert rhythm.left_s() == 0


def test_after_a_pause_the_next_epoch_begins_at_once() -> None:
    machine = Machine()
    rhythm = machine.rhythm()
    rhythm.begin()
    machine.works(0.02)
    assert rhythm.left_s() > 0
    machine.now += 0.1
    assert rhythm.left_s() == 0
