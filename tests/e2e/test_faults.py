"""Whole processes that are killed, hung, stopped and failed, and started again without flags.

A store goes through a chain of runs, each of which meets a fault at another fail point or is killed
from outside; the next run recovers and is killed in turn. After each, the published epochs are held
against the truth: nothing lost, nothing twice. What is chosen comes from the day's seed;
`make chaos` does the same for longer.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mview.errors import ExitCode
from mview.failpoints import FAILPOINTS
from mview.store.layout import Store
from mview.store.lease import Lease
from tests import patience
from tests.chaos.__main__ import one_life
from tests.chaos.points import POINTS, Place, meet_at
from tests.chaos.processes import Life
from tests.chaos.warm import Running, Warm
from tests.e2e.running import PATIENCE
from tests.seeds import daily, is_of_today

# One worker: the JVMs of these tests are shared.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("kill"),
]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with Warm(tmp_path_factory.mktemp("warm") / "spark") as warm:
        yield warm


@pytest.fixture
def life(tmp_path: Path, warm: Warm) -> Iterator[Life]:
    life = Life(tmp_path / "life", random.Random(daily()), warm)
    yield life
    life.close()


@pytest.mark.long
def test_a_life_full_of_faults(tmp_path: Path, warm: Warm) -> None:
    """A small part of `make chaos`: a store that is killed, hung, stopped and failed at random."""
    done = one_life(tmp_path / "life", daily(), warm, runs=8)
    assert done.faults, "no fault was hit"
    assert done.compared, "no epoch was compared"


def meet_all(life: Life, met: Sequence[tuple[Place, str]]) -> None:
    """Meet faults, one after the other, on one store."""
    life.perform("once")
    for place, fault in met:
        meet_at(life, place, fault)
    life.end()


@pytest.mark.days(3)
def test_a_fail_point(life: Life) -> None:
    """With a fault that leaves nobody behind: one JVM is enough. Another scene every day."""
    chosen = random.Random(daily())
    warm = [place for place in POINTS.values() if place.point != "in-chunk"]
    scene = chosen.choice(sorted({place.scene for place in warm}))
    place = chosen.choice([place for place in warm if place.scene == scene])
    meet_all(life, [(place, chosen.choice(("kill", "raise")))])


@pytest.mark.long
def test_every_fail_point(life: Life) -> None:
    """Each that there is in the code is hit, by one of the faults, and by another one every day.

    `tests/epoch` has all faults at every step of an epoch and of recovery, without Spark; `make
    chaos ARGS='--everywhere kill raise pause'` has them here.
    """
    assert set(POINTS) == set(FAILPOINTS)
    meet_all(life, [(place, fault_of_today(n)) for n, place in enumerate(POINTS.values())])


def fault_of_today(place: int) -> str:
    """Each point has its days of kills and of errors; a pause, which takes two runs, is rarer."""
    return next(
        (fault for fault, days in (("pause", 5), ("raise", 2)) if is_of_today(place, days)), "kill"
    )


@pytest.mark.long
def test_a_paused_runner_is_fenced(life: Life) -> None:
    lease = Lease(Store(life.config.store).lease)
    with life.busy():
        old = life.begin("live")
        wait_for(lambda: (latest := life.log.latest()) and latest.views and latest.batch >= 1, old)
        old.send(signal.SIGSTOP)
        wait_for(lambda: lease.holder() is None)
        paused = life.log.latest()
        new = life.begin("live")
        wait_for(lambda: life.log.latest().token > paused.token, new)
        old.send(signal.SIGCONT)
        assert old.end() == ExitCode.ALREADY_RUNNING, old.said
        # Also where it was stopped just after it had asked, and a table's log stops it first.
        assert "taken this store over" in old.said
        epoch = life.log.latest().epoch
        wait_for(lambda: life.log.latest().epoch > epoch + 1, new)
        new.send(signal.SIGTERM)
        assert new.end() == ExitCode.INTERRUPTED, new.said
    newest = life.truth.check()
    tokens = [life.log.read(epoch).token for epoch in life.log.epochs()]
    assert tokens == sorted(tokens)
    assert newest.token > paused.token


def wait_for(condition: Callable[[], object], running: Running | None = None) -> None:
    def check() -> None:
        if running is not None and running.code is not None and not condition():
            raise AssertionError(f"the run ended: {running.said}")

    assert patience.wait_for(condition, 2 * PATIENCE, check), "waited too long"
