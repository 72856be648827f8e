"""Light mode against a plain model: lagging logs, stale and overlapping chunks, faults, kills."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner, Result

from mview.admin.lights import light_statuses
from mview.catalog.definitions import KeptLight, save_light
from mview.catalog.followers import open_follower
from mview.changelog import KIND
from mview.cli import main
from mview.cli.render import _light_lines
from mview.clock import WallMs
from mview.config.file import load_config
from mview.errors import DecodeError
from mview.failpoints import FaultError
from mview.files.fence import Unfenced
from mview.follow.cursor import CursorLog
from mview.follow.following import Following
from mview.follow.light import seen
from mview.follow.light import source as light
from mview.follow.light.progress import ProgressLog
from mview.follow.light.source import LightSource
from mview.follow.light.view import open_light
from mview.follow.waiting import Wait, note_wait
from mview.follower import Step, Token
from mview.ingest import changelogs, rhythm
from mview.ingest.spec import open_database
from mview.plan.definition import parse_view
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.requests.paused import pause, resume
from mview.testing.faults import CALLS, Faulty
from tests.e2e.shop import Shop
from tests.relations import keyed, rel
from tests.seeds import seeds

#: The version of a row is the number of the change that made it.
SQL = (
    "CREATE MATERIALIZED VIEW v WITH (mode = 'light', sinks = 's') AS"
    " SELECT customer_id AS version, day, id AS number, id * 2 AS twice"
    " FROM shop.orders WHERE customer_id % 5 <> 0"
)

Row = tuple[Any, ...]


class LaggingShop(Shop):
    """A shop whose log comes later than the changes, and has some of them twice."""

    def __init__(self, root: Path) -> None:
        self.held: list[str] = []
        self.sent: list[str] = []
        super().__init__(root)

    def append(self, line: str) -> None:
        self.held.append(line)

    def flush(self, most: int = 1 << 30) -> None:
        for line in self.held[:most]:
            super().append(line)
        self.sent += self.held[:most]
        del self.held[:most]

    def send_again(self, count: int) -> None:
        """As a connector does after a restart: from an older place on, all up to the newest."""
        self.held[:0] = self.sent[-count:]


class Watched(Faulty):
    """A sink of which each change that is committed is seen."""

    def __init__(self, world: LightWorld, follower: Any) -> None:
        super().__init__(follower)
        self.world = world

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        whole = delta.read_all()
        self.world.staged = whole.select([KIND, "version", "number"]).to_pylist()
        return super().stage(step, whole.to_reader())


class LightWorld:
    """A table that changes, and a SQLite file that follows it in light mode."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.shop = LaggingShop(folder)
        self.shop.config(chunk_rows=7)
        file = folder / "mview.yml"
        settings = yaml.safe_load(file.read_text())
        settings["changes"]["shop"]["T"] = "1ms"
        settings["sinks"] = {"s": {"type": "sqlite", "url": f"sqlite:///{folder}/sink.db"}}
        file.write_text(yaml.safe_dump(settings))
        self.folder, self.config = folder, load_config(file)
        self.store = Store(self.config.store)
        claim_store(self.store.root)
        database = open_database(self.config, "shop")
        tables = {"shop.orders": database.describe("orders")}
        database.close()
        self.view = open_light(parse_view(SQL, "v"), keyed(tables))
        self.version, self.fence, self.staged = 1000, 0, list[dict[str, Any]]()
        self.history = [self.truth()]
        self.at = 0
        self.changed: dict[int, int] = {}
        self.load = 0
        self.faulty: Watched | None = None
        self.start()

    def start(self) -> None:
        """A new process; the one before has died in whatever moment."""
        if self.faulty is not None:
            self.faulty.close()
        self.fence += 1
        follower, target = open_follower(
            self.config, self.store, self.view.definition, "s", self.view.schema, self.fence
        )
        self.faulty = Watched(self, follower)
        folder, fence = self.store.follower("v", "s", light=True), Unfenced(self.fence)
        self.source = LightSource(
            self.config, self.view, "s", folder, fence, False, lambda text: None
        )
        cursors = CursorLog(folder, fence)
        self.following = Following(
            self.faulty, target, self.source, cursors, lambda: None, lambda: 1
        )

    # --- the table -------------------------------------------------------------------------------

    def change(self) -> None:
        """One change of the table."""
        r, shop = self.random, self.shop
        rows, self.version = shop.rows("orders"), self.version + 1
        taken, act = {row["id"] for row in rows}, r.random()
        new = {
            "id": r.randrange(70),
            "customer_id": self.version,
            "day": r.choice([None, "2024-02-29"]),
        }
        if act < 0.03:
            shop.truncate("orders")
        elif not rows or (new["id"] not in taken and act < 0.5):
            if new["id"] not in taken:
                shop.insert("orders", new)
        elif act < 0.7:
            shop.delete("orders", r.choice(rows))
        elif act < 0.8 and new["id"] not in taken:
            shop.update("orders", r.choice(rows), new)
        else:
            old = r.choice(rows)
            shop.update("orders", old, {**new, "id": old["id"]})
        self.history.append(self.truth())

    def truth(self) -> set[Row]:
        """What the full mode would show: the batch query."""
        return {
            (row["customer_id"], row["day"], row["id"], 2 * row["id"])
            for row in self.shop.rows("orders")
            if row["customer_id"] is not None and row["customer_id"] % 5
        }

    # --- the sink --------------------------------------------------------------------------------

    def rows(self) -> set[Row]:
        """What readers see."""
        connection = sqlite3.connect(self.folder / "sink.db")
        try:
            listed = connection.execute("SELECT version, day, number, twice FROM v").fetchall()
            assert len(set(listed)) == len(listed)
            return set(listed)
        finally:
            connection.close()

    def step(self) -> bool:
        """Follow a little; whether a step was brought."""
        self.staged = []
        done = self.following.advance()
        if done is None:
            self.source.look(self.following.cursor.epoch or 0)
            return False
        if done.way == "difference":
            self.staged = []  # what a truncate leaves, against what was there
        self.check()
        return True

    def check(self) -> None:
        """After a commit: no version comes after a newer one; once loaded, rows are of one cut."""
        progress = ProgressLog(self.store.follower("v", "s", light=True)).steps()
        here = progress[self.following.cursor.epoch or 0]
        if here.load != self.load:
            self.load, self.changed = here.load, {}
        for change in self.staged:
            key, version = change["number"], change["version"]
            if change[KIND] == "+I":
                assert key not in self.changed, "a chunk overrides a change"
            else:
                newest = self.changed.get(key, 0)
                assert version is None or version >= newest, "a row goes back"
                self.changed[key] = max(newest, version or 0)
        if here.loaded:
            rows = self.rows()
            cuts = [n for n in range(self.at, len(self.history)) if self.history[n] == rows]
            assert cuts, "the rows are of no cut, or of one that is older than the last"
            self.at = cuts[0]
            assert not here.seen


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[LightWorld]:
    monkeypatch.setattr(changelogs, "WAIT_MS", 0)
    monkeypatch.setattr(rhythm, "LONGEST_S", 0)
    monkeypatch.setattr(light, "HELD_S", 0)
    world = LightWorld(tmp_path, request.param)
    # Touched keys in the progress alone, or in files of their own with nearly each step.
    monkeypatch.setattr(seen, "MOST", world.random.choice([30, 1 << 16]))
    stale = tmp_path / "stale.db"
    planned, read = light.plan_load, light.chunk_rows

    def plan(*args: Any) -> Any:
        shutil.copy(world.shop.database, stale)
        shutil.copy(f"{world.shop.database}-wal", f"{stale}-wal")
        return planned(*args)

    def chunk(config: Any, *args: Any) -> Any:
        """Read from a replica, which is as far as the log was when the load began."""
        if world.random.random() < 0.5:
            there = config.connections["shop"]
            replica = there.model_copy(update={"database": str(stale)})
            config = config.model_copy(update={"connections": {"shop": replica}})
        return read(config, *args)

    monkeypatch.setattr(light, "plan_load", plan)
    monkeypatch.setattr(light, "chunk_rows", chunk)
    yield world
    if world.faulty is not None:
        world.faulty.close()
    world.shop.close()


@pytest.mark.parametrize("world", seeds(2), indirect=True)
def test_it_becomes_what_the_batch_query_says(world: LightWorld) -> None:
    r, steps, hit = world.random, 0, 0
    while steps < 150:
        fate = r.random()
        if fate < 0.4:
            world.change()
        elif fate < 0.5:
            world.shop.heartbeat()
        elif fate < 0.6:
            world.shop.flush(r.randrange(1, 9))
        elif fate < 0.62:
            world.shop.send_again(r.randrange(1, 30))
        elif fate < 0.63:
            world.start()
        elif fate < 0.67:
            assert world.faulty is not None
            world.faulty.fail(r.choice(CALLS), r.choice(["before", "after"]))
        elif fate < 0.7:
            pause(world.store, rel("shop.orders"), 0)
        elif fate < 0.75:
            resume(world.store, rel("shop.orders"))
        else:
            steps += 1
            try:
                world.step()
            except FaultError:
                hit += 1
                if r.random() < 0.5:
                    world.start()
    assert hit > 0
    resume(world.store, rel("shop.orders"))
    world.shop.heartbeat()
    for _ in range(100):
        world.shop.flush()
        with suppress(FaultError):
            if not world.step() and world.rows() == world.history[-1]:
                break
    assert world.rows() == world.history[-1] == world.truth()
    folder = world.store.follower("v", "s", light=True) / "light"
    kept = ProgressLog(folder.parent).steps().values()
    assert {file.name for file in folder.glob(f"*{seen.SUFFIX}")} == {
        name for progress in kept for name in seen.files_of(progress.seen)
    }


@pytest.mark.parametrize("world", seeds(1, first=7), indirect=True)
def test_a_change_that_cannot_be_taken_says_what_gets_past_it(world: LightWorld) -> None:
    """As of a table that was altered: whichever finds it, the log or who decodes it."""
    while not world.step():
        pass
    world.shop.log(table="orders", op="insert", after={"id": "many", "customer_id": 1, "day": None})
    world.shop.flush()
    with pytest.raises(DecodeError) as caught:
        until_refused(world)
    assert caught.value.safe == "the table in the sink stays as it is"
    assert str(caught.value.hint).endswith(
        "`mview drop v` and run again: its tables in sinks are filled anew"
    )


def until_refused(world: LightWorld) -> None:
    for _ in range(20):
        world.step()


@pytest.mark.parametrize("world", seeds(1, first=6), indirect=True)
def test_for_whom_a_sink_waits_is_told(world: LightWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not answer while it reads is the source; else it is the target."""
    reading, read = list[bool](), light.chunk_rows

    def chunk(*args: Any) -> Any:
        reading.append(world.source.is_reading)
        return read(*args)

    monkeypatch.setattr(light, "chunk_rows", chunk)
    save_light(world.store, KeptLight(world.view.definition, world.view.source))
    world.change()
    world.shop.flush()
    while not reading:
        world.step()
    assert reading[0]
    assert not world.source.is_reading
    folder = world.store.follower("v", "s", light=True)
    note_wait(folder, Wait(7, "source", WallMs(1_000)))
    for token, lines in ((None, 1), (6, 1), (7, 2)):
        told = _light_lines(light_statuses(world.config, world.store, 2_000, token))
        assert told[:2] == ["", "light views"]
        assert len(told) == 2 + lines
    assert told[-1].strip() == (
        "waits for its source, which has not answered since 1970-01-01 00:00:01 UTC"
    )


@pytest.mark.parametrize("world", seeds(1, first=5), indirect=True)
def test_its_sinks_are_maintained(world: LightWorld) -> None:
    def maintain(*names: str) -> Result:
        return CliRunner().invoke(main, ["maintain", *names, "-c", str(world.folder / "mview.yml")])

    save_light(world.store, KeptLight(world.view.definition, world.view.source))
    empty = maintain()
    assert (empty.exit_code, empty.stdout.split(":")[0]) == (1, "v, sink s"), empty.output
    assert "sink s of view v is not filled yet" in empty.output
    world.change()
    world.shop.flush()
    while not world.step():
        pass
    for names in ([], ["v"]):
        done = maintain(*names)
        assert (done.exit_code, done.stdout) == (0, "v, sink s: nothing was to be done\n"), done
    wrong = maintain("w")
    assert wrong.exit_code == 1
    assert "there is no view 'w'" in wrong.output


@pytest.mark.parametrize("world", seeds(1, first=10), indirect=True)
def test_what_is_lost_or_other_is_filled_anew(world: LightWorld) -> None:
    def settle() -> int:
        world.shop.heartbeat()
        world.shop.flush()
        # A change that the view leaves out makes no difference: that rows are right is not enough.
        while world.step() or world.following.is_behind or world.rows() != world.history[-1]:
            pass
        assert world.following.cursor.epoch is not None
        return world.following.cursor.epoch

    first = settle()
    shutil.rmtree(world.store.follower("v", "s", light=True) / "light")
    world.start()
    world.change()
    assert settle() > first
    definition = parse_view(SQL.replace("% 5", "% 5 + 0"), "v")
    world.view = replace(world.view, definition=definition)
    world.start()
    second = settle()
    assert world.load > first
    world.start()
    assert settle() >= second
