"""Waiting for a server: visible, longer and longer, bounded, and ended by a stop."""

from __future__ import annotations

from threading import Event

import pytest

from mview.clock import AwakeClock, awake_s
from mview.errors import AwayError
from mview.run.patience import Patience

AWAY = AwayError("Kafka at k:9092 does not answer")


class Stop(Event):
    """Time that passes by waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds += timeout or 0
        return self.is_set()


def test_it_waits_longer_and_longer_and_not_for_ever() -> None:
    stop, said = Stop(), []
    patience = Patience(stop, said.append, lambda: stop.seconds)

    def wait_for_ever() -> None:
        while True:
            patience.wait(AWAY)

    with pytest.raises(AwayError) as caught:
        wait_for_ever()
    assert caught.value is AWAY
    assert 600 <= stop.seconds < 700
    assert "does not answer: waiting for it, attempt 1; once more in 1 s" in said[0]
    assert "attempt 7; once more in 30 s" in said[6]


def test_what_fails_after_an_epoch_is_a_new_trouble() -> None:
    stop, said = Stop(), []
    patience = Patience(stop, said.append, lambda: stop.seconds)
    for _ in range(20):
        patience.wait(AWAY)
    patience.renew()
    before = stop.seconds
    for _ in range(20):
        patience.wait(AWAY)
    assert "attempt 1;" in said[20]
    assert stop.seconds < before + 600


def test_what_fails_after_a_long_silence_is_a_new_trouble() -> None:
    """A source without changes publishes nothing, however well it answers."""
    stop, said = Stop(), []
    patience = Patience(stop, said.append, lambda: stop.seconds)
    patience.wait(AWAY)
    stop.seconds += 3_600
    patience.wait(AWAY)
    assert "attempt 1;" in said[1]


def test_while_this_process_is_stopped_nothing_is_waited_for() -> None:
    class Stopped(Stop):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(3600)

    stop, said = Stopped(), []
    clock = AwakeClock(lambda: stop.seconds)
    assert Patience(stop, said.append)._now is awake_s
    patience = Patience(stop, said.append, clock.now)
    for _ in range(20):
        patience.wait(AWAY)
    assert stop.seconds > 19 * 3600
