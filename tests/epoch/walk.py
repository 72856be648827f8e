"""A random life of a store: runners crash, hang, wake and fail anywhere; after each the truth.

`python -m tests.epoch.walk --seed 7 --steps 500` replays one.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

from mview.errors import FencedError
from mview.failpoints import armed
from mview.files import durable
from tests.epoch.runners import CrashError, Paused, Runner, SetClock, check, crash

#: Steps that every runner of the walk comes by.
POINTS = {
    "epoch": [
        "after-mirrors", "log-committed", "after-stage", "after-lease", "file-linked",
        "after-intent", "before-sink", "after-sink", "after-commit", "after-publish", "after-clear",
    ],
    "upkeep_round": ["log-committed", "after-compact", "after-prune", "in-clean"],
    "start": [
        "recover-begin", "recover-decided", "recover-committed", "file-linked", "log-committed",
        "recover-published", "recover-sink", "recover-mirror", "recover-fenced",
    ],
}  # fmt: skip

#: Runners that hang at the same time.
_SLEEPERS = 4


class ReportedError(OSError):
    """What is reported of a step that may have been done."""


def fail() -> None:
    raise ReportedError("reported as failed")


class Walk:
    """One store and all its runners.

    Args:
        root: an empty folder.
        seed: what happens.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self._root, self._random = root, random.Random(seed)
        self._clock = SetClock()
        self._sleepers: list[Paused] = []
        self._runner: Runner | None = None
        self._taken = 0
        #: Faults that were hit, by kind, operation and place.
        self.faults: Counter[tuple[str, str, str]] = Counter()

    def step(self) -> None:
        """One operation of the running runner, or the start of one; perhaps with a fault."""
        choose = self._random
        if self._sleepers and choose.random() < 0.3:
            self._wake(self._sleepers.pop(choose.randrange(len(self._sleepers))))
        runner = self._runner or Runner(self._root, self._clock)
        name = "start" if self._runner is None else choose.choice(["epoch"] * 3 + ["upkeep_round"])
        kind = choose.choice(["none", "none", "crash", "pause", "fail"])
        point, nth = choose.choice(POINTS[name]), choose.randint(1, 3)
        before = self._taken
        alive = self._perform(runner, name, kind, point, nth)
        self._runner = runner if alive else None
        self._look(before)

    def _perform(self, runner: Runner, name: str, kind: str, point: str, nth: int) -> bool:
        """Returns whether the runner lives on."""
        call = getattr(runner, name)
        if kind == "pause":
            sleeper = Paused(call, point, nth)
            if sleeper.begin():
                self.faults[kind, name, point] += 1
                self._sleepers.append(sleeper)
                runner.die()
                if len(self._sleepers) > _SLEEPERS:
                    self._wake(self._sleepers.pop(0))
                return False
            sleeper.wake()
            if sleeper.error is not None:
                raise sleeper.error
            return True
        if kind == "none":
            call()
            return True
        with armed(point, crash if kind == "crash" else fail, nth) as hit:
            try:
                call()
            except (CrashError, ReportedError):
                assert hit.is_set()
                self.faults[kind, name, point] += 1
                runner.die() if kind == "crash" else runner.stop()
                return False
        return True

    def _wake(self, sleeper: Paused) -> None:
        """One that hangs goes on: it ends its step, or finds that it is fenced."""
        sleeper.wake()
        if sleeper.error is not None and not isinstance(sleeper.error, FencedError):
            raise sleeper.error

    def _look(self, before: int) -> None:
        if self._runner is not None and self._runner.engine.manifest.views:
            self._taken = check(self._runner)
            assert self._taken >= before, f"{before} changes were taken, now {self._taken}"

    def end(self) -> None:
        """All that hang wake; then one goes on alone."""
        for sleeper in self._sleepers:
            self._wake(sleeper)
        if self._runner is None:
            self._runner = Runner(self._root, self._clock).start()
        for _ in range(2):
            self._runner.epoch()
        self._runner.upkeep_round()
        before, self._taken = self._taken, check(self._runner)
        assert self._taken >= before + 2
        self._runner.stop()


def walk(seed: int, steps: int) -> Counter[tuple[str, str, str]]:
    """Walk; returns the faults that were hit."""
    with tempfile.TemporaryDirectory(prefix="mview-walk-") as folder:
        life = Walk(Path(folder), seed)
        try:
            for _ in range(steps):
                life.step()
            life.end()
        except BaseException:
            print(f"replay: python -m tests.epoch.walk --seed {seed} --steps {steps}")
            raise
        return life.faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    durable.force = lambda path: None  # processes are stopped here, not the power
    faults = walk(options.seed, options.steps)
    for (kind, operation, point), number in sorted(faults.items()):
        print(f"{number:5}  {kind:6} {operation:13} {point}")
    print(f"{sum(faults.values()):5}  in all; nothing lost, nothing twice, nothing wrong")


if __name__ == "__main__":
    main()
