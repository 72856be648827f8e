"""A process that brings a view to all sinks is killed at any moment, and what is there is counted.

    python -m tests.chaos.sinks --kills 100 --seed 7

The store is made without Spark; a process of its own follows it, as the threads of `mview run` do,
and is killed (-9). After each kill, while nobody writes, each target is read by what is not its
connector. A row of the view says its epoch, so what is read says which epoch it has to be: each
row of that one and no other, not older than what the store has noted, never older than before.
Ends with 1 at the first row that is lost or repeated. The seed makes the same changes and choices
again; where exactly a kill comes is up to the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import yaml

from mview.catalog.definitions import digest_of, save_definition
from mview.catalog.followers import open_follower
from mview.config.file import load_config
from mview.errors import RetryableError
from mview.files import durable
from mview.follow.cursor import Cursor, CursorLog
from mview.plan.definition import parse_view
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import TableState
from mview.testing import FollowerHarness
from mview.testing.contract import normal
from mview.testing.view import Row
from tests.chaos.warm import fork
from tests.connectors.every_sink import PLACES, places, section, table_of, target_of
from tests.follow import child
from tests.follow.test_source import published
from tests.patience import wait_for
from tests.relations import rel
from tests.seeds import daily
from tests.services.fixtures import servers
from tests.store.mirrors import SCHEMA, Key, MirrorDriver

#: Seconds in which all sinks get on, on a quiet machine.
_PATIENCE = 240

#: The key of the row that says the epoch.
_SAYS: Key = (-1, "epoch")

#: Changes of one epoch, and seconds between two.
_CHANGES, _PAUSE_S = 20, 0.1


class Driver(MirrorDriver):
    """A view in a store; each epoch changes it, and one of its rows says which it is.

    Args:
        folder: of its mirror.
        seed: of its changes.
        tell: called after each epoch, which is to be published.
    """

    def __init__(self, folder: Path, seed: int, tell: Callable[[], None]) -> None:
        super().__init__(folder, seed, chunks=0)
        self._tell = tell

    @property
    def changed(self) -> int:
        """The last epoch that has changed the view."""
        return int(str(self.truth[_SAYS][0]))

    def publish(self, state: TableState) -> None:
        """Name a state, and tell."""
        super().publish(state)
        self._tell()

    def _row(self, key: Key) -> Row:
        text, *rest, _ = super()._row(key)
        cents = self.rng.choice([None, self.rng.randrange(-(10**9), 10**9)])
        return (text, *rest, None if cents is None else Decimal(cents).scaleb(-2))

    def _changes(self, keys: Iterable[Key]) -> list[tuple[str, Row]]:
        changes = super()._changes(keys)
        old = self.truth.get(_SAYS)
        new = self.truth[_SAYS] = (str(self.epoch + 1), *_SAYS, None)
        return [*changes, *([] if old is None else [("-U", old)]), ("+U" if old else "+I", new)]

    def change(self) -> None:
        """An epoch with changes."""
        state = self.state
        while state == self.state:
            state = self.epoch_once(_CHANGES)
        self.publish(state)


@dataclass
class Count:
    """What became of one sink.

    Attributes:
        steps: that were begun and came as far as to be noted.
        looks: how often its target was read.
        epochs: different epochs that were read there.
        last: the epoch that was read last.
        rows: of all that was read.
        lost: rows of the epoch that were not there, or epochs that were there before.
        doubled: rows that are not of the epoch.
        begun: kills while a step was being staged, as the store has it.
        decided: kills while a token was on disk and the end was not noted.
    """

    steps: int = 0
    looks: int = 0
    epochs: int = 0
    last: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    begun: int = 0
    decided: int = 0


class Series:
    """A store, sinks that follow its view, and the processes that bring it to them.

    Args:
        folder: an empty one.
        there: the empty places of the sinks, by name.
        seed: of all that is random.
    """

    def __init__(self, folder: Path, there: Mapping[str, FollowerHarness], seed: int) -> None:
        self._folder, self._there = folder, there
        self._random = random.Random(seed)
        sections = {
            name: {**section(harness), "table": table_of(harness, "v"), "every": 0}
            for name, harness in there.items()
        }
        (folder / "mview.yml").write_text(yaml.safe_dump({"store": "store", "sinks": sections}))
        self._config = load_config(folder / "mview.yml")
        self._store = Store(self._config.store)
        claim_store(self._store.root)
        text = f"CREATE MATERIALIZED VIEW v WITH (sinks = '{', '.join(there)}') AS SELECT 1"
        self._definition = parse_view(text, "v")
        save_definition(self._store, self._definition)
        mirror, of_changes = self._store.mirror(rel("v")), self._random.randrange(1 << 30)
        self._driver = Driver(mirror, of_changes, self._publish)
        self._log = ManifestLog(self._store.manifests)
        #: Rows of each epoch that has changed the view, and which that was, of each epoch.
        self._contents: dict[int, Counter[Row]] = {}
        self._says: dict[int, int] = {0: 0}
        self.counts = {name: Count() for name in there}
        self._due = 0.0
        #: What was refused, for people.
        self.wrong: list[str] = []
        self._driver.change()

    def run(self, kills: int) -> None:
        """Kill so many processes, and let the last one come to the end."""
        for token in range(1, kills + 1):
            self._kill_one(token)
            self._look()
            if self._random.random() < 0.1:
                self._maintain(token)
            if self._random.random() < 0.25:  # the next one has to compare
                self._driver.change()
                self._driver.forget()
            if token % 10 == 0:
                print(f"{token} kills, epoch {self._driver.epoch}: {self}", flush=True)
            if self.wrong:
                return
        with self._process(kills + 1) as process:
            last = self._driver.changed

            def behind() -> list[str]:
                return [name for name in self._there if self._noted(name) != last]

            def are_there() -> bool:
                assert process.is_alive(), "the process ended by itself"
                return not behind()

            assert wait_for(are_there, _PATIENCE), f"not there: {behind()}"
        self._look()
        assert all(count.last == last for count in self.counts.values())

    # --- one process -----------------------------------------------------------------------------

    @contextmanager
    def _process(self, token: int) -> Iterator[ForkServerProcess]:
        """Follows until the end of the block, and is killed there."""
        process = fork.Process(
            target=child.main, args=(self._folder, token, dict(os.environ)), name=f"{token}"
        )
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join()

    def _kill_one(self, token: int) -> None:
        """Have a sink get on, and with it those that are faster, and a moment later kill it."""
        # None: it may die while it opens its sinks and finds out where they are.
        awaited = self._random.choice([None, *self._there])
        before = 0 if awaited is None else self._cursor(awaited).tried
        with self._process(token) as process:

            def is_far() -> bool:
                assert process.is_alive(), "the process ended by itself"
                self._change_now_and_then()
                return awaited is None or self._cursor(awaited).tried > before

            assert wait_for(is_far, _PATIENCE), f"{awaited} does not get on: {self}"
            if self._random.random() < 0.1:
                self._maintain(token)
            end = time.monotonic() + self._random.random()
            while (left := end - time.monotonic()) > 0:
                self._change_now_and_then()
                time.sleep(min(left, _PAUSE_S))

    def _change_now_and_then(self) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _PAUSE_S
            self._driver.change()

    def _maintain(self, token: int) -> None:
        """Maintain one sink, as `mview maintain` does in a process of its own."""
        name = self._random.choice(list(self._there))
        follower, _ = open_follower(
            self._config, self._store, self._definition, name, SCHEMA, token
        )
        with suppress(RetryableError):  # steps come between whenever it looks
            follower.maintain(thorough=True)
        follower.close()

    def _publish(self) -> None:
        """Publish the epoch; the view is what it was after the last one that has changed it."""
        driver = self._driver
        self._says[driver.epoch] = driver.changed
        if driver.changed == driver.epoch:
            self._contents[driver.epoch] = Counter(normal(driver.truth.values()))
        manifest = published(driver, driver.changed)
        view = replace(manifest.views["v"], definition=digest_of(self._definition))
        self._log.publish(replace(manifest, views={"v": view}))

    def _cursor(self, name: str) -> Cursor:
        return CursorLog(self._store.follower("v", name)).latest()

    def _noted(self, name: str) -> int:
        """What the store says that a sink shows."""
        return self._says[self._cursor(name).epoch or 0]

    # --- what is there ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Read all targets and hold each against the epoch that it says it is."""
        for name, harness in self._there.items():
            count, cursor = self.counts[name], self._cursor(name)
            count.steps = cursor.tried
            if cursor.intent is not None:
                count.begun += cursor.intent.token is None
                count.decided += cursor.intent.token is not None
            rows = harness.read(target_of(harness, "v", SCHEMA))
            count.looks += 1
            least = max(count.last, self._noted(name))
            if rows:
                self._compare(name, Counter(normal(rows)), least)
            elif least:
                count.lost += 1
                self._refuse(name, f"epoch {least} is gone")

    def _compare(self, name: str, there: Counter[Row], least: int) -> None:
        count = self.counts[name]
        count.rows += there.total()
        said = [row[0] for row in there if row[1:3] == _SAYS]
        if len(said) != 1:
            count.doubled += len(said)
            count.lost += not said
            self._refuse(name, f"it says that it is of the epochs {said}")
            return
        epoch = int(str(said[0]))
        if epoch < least:
            count.lost += 1
            self._refuse(name, f"epoch {epoch}, where {least} was seen or noted")
        lost, doubled = self._contents[epoch] - there, there - self._contents[epoch]
        if lost or doubled:
            count.lost += lost.total()
            count.doubled += doubled.total()
            self._refuse(name, f"epoch {epoch} lacks {list(lost)[:3]}, has {list(doubled)[:3]}")
        count.epochs += epoch != count.last
        count.last = epoch

    def _refuse(self, name: str, why: str) -> None:
        self.wrong.append(f"{name}: {why}")

    def __str__(self) -> str:
        lost = sum(count.lost for count in self.counts.values())
        doubled = sum(count.doubled for count in self.counts.values())
        looks = sum(count.looks for count in self.counts.values())
        return f"{looks} looks at {len(self.counts)} sinks, {lost} lost, {doubled} doubled"


def series(seed: int, kills: int, names: Iterable[str] = PLACES) -> bool:
    """Kill so many processes over the sinks; print the counts, and whether all is right."""
    forced, durable.force = durable.force, lambda path: None  # the power stays on
    folder = Path(tempfile.mkdtemp(prefix="mview-sinks-"))
    try:
        with servers() as server, places(folder / "places", server, names) as there:
            walk = Series(folder, there, seed)
            walk.run(kills)
    finally:
        durable.force = forced
    heads = ("steps", "looks", "epochs", "rows", "lost", "doubled", "begun", "decided")
    print(f"{'sink':12}" + "".join(f"{head:>10}" for head in heads))
    for name, count in walk.counts.items():
        print(f"{name:12}" + "".join(f"{getattr(count, head):10,}" for head in heads))
    print("\n".join(walk.wrong))
    print(f"{kills} kills, {walk}; last epoch {walk._driver.epoch}")
    return not walk.wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PLACES), help=", ".join(PLACES))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=daily())
    options = parser.parse_args()
    command = f"python -m tests.chaos.sinks --kills {options.kills} --seed {options.seed}"
    print(f"seed {options.seed}; again: {command} {' '.join(options.names)}", flush=True)
    return 0 if series(options.seed, options.kills, options.names) else 1


if __name__ == "__main__":
    sys.exit(main())
