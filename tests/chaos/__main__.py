"""Faults at every step, the truth after each: `make chaos`, `make chaos ARGS='--seed 7'`.

First runners in this process, on stores without Spark: they crash, hang, wake and fail at random,
several at a time. Then processes that bring a view to all sinks (`tests.chaos.sinks`), and those
with Spark that load, build, follow, compact and drop while source and views change: killed, hung,
stopped and failed at every fail point, and from outside at any moment. Ends with 1 at the first row
that is lost, repeated or wrong. The seed makes the same choices again; at which moment a signal
from outside comes is up to the machine.

`--everywhere kill-jvm kill-tree` goes to every place instead of random ones, in everything that
passes it (load, first build, added view, recovery, …; `points.py` lists them), with each of these
faults; `--kills 0 --minutes 0 --sinks 0` leaves the rest out, and `--scenes recover drop` the other
scenes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from mview.files import durable
from tests.chaos import sinks
from tests.chaos.points import SCENES, meet_at, places_of
from tests.chaos.processes import COLD, FAULTS, Life
from tests.chaos.warm import Warm
from tests.epoch.walk import walk
from tests.seeds import daily

#: Steps of one walk: about a quarter of them meet a fault.
_STEPS = 100

#: Runs of one store with Spark: later ones would only follow.
_RUNS = 25

Faults = Counter[tuple[str, str, str]]


@dataclass
class Done:
    """What was done.

    Attributes:
        faults: that were hit, by kind, action and place.
        compared: epochs of processes that were held against the truth, row by row.
    """

    faults: Faults = field(default_factory=Counter)
    compared: int = 0

    def add(self, other: Done) -> None:
        """More was done."""
        self.faults += other.faults
        self.compared += other.compared

    def of(self, *kinds: str) -> int:
        """How many faults there were of some kinds."""
        return sum(number for (kind, _, _), number in self.faults.items() if kind in kinds)

    def __str__(self) -> str:
        kinds = sorted({kind for kind, _, _ in self.faults})
        return ", ".join(f"{self.of(kind)} {kind}" for kind in kinds) or "no fault"


def stores(seed: int, kills: int) -> Done:
    """Walks until so many runners were killed."""
    forced, durable.force = durable.force, lambda path: None  # the power stays on
    done = Done()
    number = 0
    try:
        while done.of("crash") < kills:
            done.add(Done(walk(seed + number, _STEPS)))
            number += 1
            print(f"stores: {number} walks, {done}", flush=True)
    finally:
        durable.force = forced
    return done


def processes(seed: int, kills: int, minutes: float) -> Done:
    """Stores with Spark for so long, until so many processes were killed."""
    end = time.monotonic() + minutes * 60
    done = Done()
    number = 0
    root = Path(tempfile.mkdtemp(prefix="mview-chaos-"))
    with Warm(root / "spark") as warm:
        while time.monotonic() < end or done.of("kill", "SIGKILL") < kills:
            done.add(one_life(root / f"{number}", seed + number, warm, _RUNS))
            shutil.rmtree(root / f"{number}")
            number += 1
            told = f"processes: {number} stores, {done}; {done.compared} epochs compared"
            print(told, flush=True)
    shutil.rmtree(root)  # what was found wrong stays, to be looked at
    return done


def one_life(root: Path, seed: int, warm: Warm, runs: int) -> Done:
    """One store from its first load on."""
    life = Life(root, random.Random(seed), warm)
    try:
        for number in range(runs):
            began = time.monotonic()
            life.step()
            took = time.monotonic() - began
            print(f"  {root.name}.{number}: {life.last}, {took:.1f} s", flush=True)
        life.end()
    except BaseException:
        options = f"--seed {seed} --kills 0 --sinks 0"
        print(f"store {root}, after {life.last}; replay: make chaos ARGS='{options}'")
        raise
    finally:
        life.close()
    return Done(life.faults, life.truth.compared)


def everywhere(seed: int, faults: Sequence[str], scenes: Sequence[str]) -> Done:
    """Each of these faults at every place of some scenes, on a store per fault, two at a time."""
    done = Done()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=2) as pool:
        java = learnt(Path(folder)) if set(faults) & set(COLD) else ""
        for met in pool.map(lambda fault: through(seed, fault, scenes, java), faults):
            done.add(met)
    return done


def learnt(root: Path) -> str:
    """The option for JVMs to take their classes as another one has left them.

    Hundreds of JVMs are started and killed: so each takes half the CPU until its first query is
    done (10 and 9 seconds, 4.7 and 5.3 with it).
    """
    archive = root / "classes.jsa"
    with (
        Warm(root / "spark", f"-XX:ArchiveClassesAtExit={archive}") as warm,
        closing(Life(root / "life", random.Random(0), warm)) as life,
    ):
        for _ in range(2):
            life.perform("once")
            life.change_all()
    return f"-XX:SharedArchiveFile={archive}"


def through(seed: int, fault: str, scenes: Sequence[str], java: str) -> Done:
    """One store that meets a fault at every place of some scenes."""
    root = Path(tempfile.mkdtemp(prefix=f"mview-{fault}-"))
    places = [place for place in places_of(fault) if place.scene in scenes]
    done = Done()
    random.Random(seed).shuffle(places)
    with (
        Warm(root / "spark") as warm,
        closing(Life(root / "0", random.Random(seed), warm, java)) as life,
    ):
        life.perform("once")
        for number, place in enumerate(places, 1):
            began = time.monotonic()
            try:
                meet_at(life, place, fault)
            except BaseException:
                print(f"store {root}, {place}, after {life.last}", flush=True)
                raise
            done.faults[fault, place.scene, place.text] += 1
            took = time.monotonic() - began
            told = f"{fault} {number}/{len(places)}: {place.scene}, {place.text}, {took:.1f} s"
            print(f"  {told}; {life.truth.compared} epochs compared", flush=True)
        life.end()
    done.compared = life.truth.compared
    shutil.rmtree(root)  # what was found wrong stays, to be looked at
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=daily())
    parser.add_argument("--kills", type=int, default=300, help="at least so many, without and with")
    parser.add_argument("--sinks", type=int, default=100, help="kills over the sinks")
    parser.add_argument("--minutes", type=float, default=20, help="at least so long with Spark")
    parser.add_argument(
        "--everywhere", nargs="+", choices=(*FAULTS, *COLD), default=(), help="at every place"
    )
    parser.add_argument(
        "--scenes", nargs="+", choices=SCENES, default=[*SCENES], help="and only there"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}; replay: make chaos ARGS='--seed {options.seed}'", flush=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # no orphans
    done = Done()
    try:
        done.add(stores(options.seed, options.kills))
        if options.sinks and not sinks.series(options.seed, options.sinks):
            return 1
        done.add(processes(options.seed, options.kills, options.minutes))
        done.add(everywhere(options.seed, options.everywhere, options.scenes))
    except Exception:
        traceback.print_exc()
        return 1
    for (kind, action, place), number in sorted(done.faults.items()):
        print(f"{number:5}  {kind:9} {action:14} {place}")
    print(f"{done}; {done.compared} epochs compared: 0 lost, 0 repeated, 0 wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
