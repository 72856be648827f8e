"""Sinks in threads of their own: throttled, down, beyond what is kept for them, and hurried."""

from __future__ import annotations

import errno
import re
import shutil
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.sql.sqlite import SqliteFollower

from mview.admin.status import SinkStatus, status
from mview.catalog.definitions import digest_of, save_definition
from mview.clock import SystemClock
from mview.config import Config
from mview.errors import FencedError, RetryableError
from mview.files.durable import put
from mview.files.fence import UNFENCED
from mview.files.jsonfile import checked
from mview.follow.cursor import CursorLog, Intent
from mview.follow.followers import Followers, Problem, read_problem
from mview.follower import Step
from mview.plan.definition import ViewDefinition, parse_view
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Manifest
from tests.conftest import small_config
from tests.follow.test_source import published
from tests.patience import wait_for
from tests.relations import rel
from tests.store.mirrors import MirrorDriver

#: Seconds.
PATIENCE = 60


class World:
    """A store with a view that changes, and a SQLite file that follows it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.file = folder / "place" / "sink.db"
        sink = {"type": "sqlite", "url": f"sqlite:///{self.file}", **options}
        self.config: Config = small_config(folder, sinks={"s": sink})
        self.store = Store(self.config.store)
        claim_store(self.store.root)
        text = "CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1"
        self.definition: ViewDefinition = parse_view(text, "v")
        self.driver = MirrorDriver(self.store.mirror(rel("v")), 1, chunks=0)
        self.messages: list[str] = []
        self.change()

    def change(self, times: int = 1) -> Manifest:
        for _ in range(times):
            before = self.driver.state
            while self.driver.state == before:
                self.driver.publish(self.driver.epoch_once())
        self.manifest = published(self.driver, self.driver.epoch)
        return self.manifest

    def place(self) -> None:
        self.file.parent.mkdir(exist_ok=True)

    @contextmanager
    def followed(self) -> Iterator[Followers]:
        followers = Followers(
            self.config, [self.definition], UNFENCED, SystemClock(), Mask(()), self.messages.append
        )
        try:
            followers.start(self.manifest)
            yield followers
        finally:
            followers.close()

    def rows(self) -> Counter[Any]:
        if not self.file.exists():
            return Counter()
        connection = sqlite3.connect(self.file, timeout=PATIENCE)
        try:
            return Counter(connection.execute("SELECT v, id, part, n FROM v"))
        except sqlite3.OperationalError:
            return Counter()
        finally:
            connection.close()

    def is_there(self) -> bool:
        return self.rows() == Counter(self.driver.truth.values())

    def is_noted(self) -> bool:
        cursor = self.cursors.latest()
        return self.is_there() and cursor.epoch == self.driver.epoch

    @property
    def cursors(self) -> CursorLog:
        return CursorLog(self.store.follower("v", "s"))


def test_it_follows_while_epochs_are_published(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.place()
    with world.followed() as followers:
        assert wait_for(world.is_there, PATIENCE)
        for _ in range(20):
            followers.published(world.change())
        assert wait_for(world.is_there, PATIENCE)
        assert followers.finish() == []
        assert followers.floor("v") == sys.maxsize
        assert followers.floor("w") == sys.maxsize
    assert world.cursors.latest().epoch == world.driver.epoch
    assert world.messages == []


class Fenced:
    """A run that another one has taken over from, while it was stopped."""

    token, takes_over = 1, False

    def check(self) -> None:
        raise FencedError("another runner has taken this store over")


def test_a_run_that_was_taken_over_from_notes_nothing_about_a_sink(tmp_path: Path) -> None:
    """It would stand there for ever: the newer one gets on, and looks for no word of others."""
    world = World(tmp_path)
    world.place()
    fence, clock = Fenced(), SystemClock()
    followers = Followers(
        world.config, [world.definition], fence, clock, Mask(()), world.messages.append
    )
    followers.start(world.manifest)
    (thread,) = followers._threads
    thread.join(PATIENCE)
    assert thread.is_over()
    assert read_problem(world.store.follower("v", "s")) is None
    assert world.messages == []
    followers.close()


def test_what_a_run_noted_that_was_stopped_meanwhile_goes_with_the_next_step(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.place()
    folder = world.store.follower("v", "s")
    with world.followed() as followers:
        assert wait_for(world.is_noted, PATIENCE)
        put(folder / "problem.json", checked(asdict(Problem("taken over", 1, 1))))
        assert read_problem(folder) is not None
        followers.published(world.change())
        assert wait_for(lambda: read_problem(folder) is None, PATIENCE)
    assert world.messages == []


def test_what_a_killed_run_was_writing_goes_with_the_next_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.place()
    folder = world.store.follower("v", "s")
    names = [f"_{'0' * 32}.tmp", f"light/_{'1' * 32}.tmp"]
    others = ["theirs.tmp", "light/notes.txt"]
    (folder / "light").mkdir(parents=True)
    for name in names + others:
        (folder / name).write_bytes(b"{")
    with world.followed() as followers:
        assert followers.finish() == []
    assert not any((folder / name).exists() for name in names)
    assert all((folder / name).exists() for name in others)


def test_an_epoch_that_changes_another_view_wakes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of sinks are asked so, several times a second."""
    world = World(tmp_path)
    world.place()
    with world.followed() as followers:
        assert wait_for(world.is_noted, PATIENCE)
        (thread,) = followers._threads
        assert wait_for(thread._idle.is_set, PATIENCE)
        asked: list[Any] = []
        monkeypatch.setattr(type(thread), "_follow", lambda self: asked.append(self))
        for more in range(1, 4):
            followers.published(replace(world.manifest, epoch=world.manifest.epoch + more))
        assert not thread._wake.is_set()
        followers.published(world.change())
        assert wait_for(lambda: asked, PATIENCE)
        assert asked == [thread]


def test_one_that_is_down_is_tried_again_and_told_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    folder = world.store.follower("v", "s")
    with world.followed() as followers:
        assert wait_for(lambda: (p := read_problem(folder)) and p.tries > 1, PATIENCE)
        (behind,) = followers.finish()
        assert "sink s of view v has not caught up" in str(behind)
        assert len(world.messages) == 1
        assert "unable to open database file" in world.messages[0]
        world.place()
        assert wait_for(world.is_there, PATIENCE)
        assert followers.finish() == []
    assert read_problem(folder) is None
    assert world.messages[1:] == ["sink s of view v gets on again"]


def test_what_passes_with_the_next_try_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, tries = World(tmp_path), list[int]()
    world.place()
    create = SqliteFollower.create

    def once(follower: SqliteFollower) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RetryableError("away for a moment")
        create(follower)

    monkeypatch.setattr(SqliteFollower, "create", once)
    with world.followed() as followers:
        assert wait_for(world.is_noted, PATIENCE)
        assert followers.finish() == []
    assert world.messages == []


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (("away: <object at 0x7f10>, 3.5ms", "away: <object at 0x8e2c>, 12ms"), 1),
        (("away: no route", "away: refused"), 3),
    ],
    ids=["same", "another"],
)
def test_what_differs_in_numbers_alone_is_told_once(
    texts: tuple[str, str], told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what passes by itself: a target that is away for a day is tried thousands of times."""
    world, tries = World(tmp_path), list[int]()
    world.place()
    create = SqliteFollower.create

    def fail(follower: SqliteFollower) -> None:
        tries.append(1)
        if len(tries) < 5:
            raise RetryableError(texts[len(tries) % 2])
        create(follower)

    monkeypatch.setattr(SqliteFollower, "create", fail)
    with world.followed() as followers:
        assert wait_for(world.is_noted, PATIENCE)
        assert followers.finish() == []
    assert len(world.messages) == told + 1


def test_a_full_disk_is_told_with_the_sink_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Arrow tells of it: without the file."""
    world, tries = World(tmp_path), list[int]()
    world.place()
    create = SqliteFollower.create

    def fail(follower: SqliteFollower) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "Error writing bytes. Detail: No space left on device")
        create(follower)

    monkeypatch.setattr(SqliteFollower, "create", fail)
    with world.followed() as followers:
        assert wait_for(world.is_noted, PATIENCE)
        assert followers.finish() == []
    told = world.messages[0]
    assert "the disk is full" in told
    assert "sinks.s" in told
    assert "make room on it; then the sink goes on by itself" in told


def test_epochs_between_two_commits_are_brought_as_one(tmp_path: Path) -> None:
    world = World(tmp_path, every="1 hour")
    world.place()
    with world.followed() as followers:
        assert wait_for(world.is_noted, PATIENCE)
        first = world.cursors.latest()
        for _ in range(5):
            followers.published(world.change())
        assert followers.floor("v") == first.epoch
        assert world.cursors.latest() == first
        assert followers.finish() == []  # hurried
        assert world.is_there()
    assert world.cursors.latest().tried == first.tried + 1


@pytest.mark.parametrize("bound", [{"spool_bytes": 1}, {"spool_age": "1 ms"}])
def test_one_that_is_too_far_behind_is_compared(tmp_path: Path, bound: dict[str, Any]) -> None:
    world = World(tmp_path, every="1 hour", **bound)
    world.place()
    with world.followed() as followers:
        assert wait_for(world.is_noted, PATIENCE)
        followers.published(world.change(3))
        assert wait_for(lambda: followers.floor("v") == sys.maxsize, PATIENCE)
        assert any("too far behind" in text for text in world.messages)
        world.driver.forget()
        world.change()
        followers.published(world.manifest)
        assert followers.finish() == []
        assert world.is_there()
        assert any("was compared with its view and brought right" in m for m in world.messages)


def test_changes_are_kept_for_one_that_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since the epoch that it is brought to, but within bounds: it may be away meanwhile."""
    world = World(tmp_path, every="1 hour", spool_age="1 hour")
    world.place()
    with world.followed() as followers:
        assert wait_for(world.is_noted, PATIENCE)
        world.change()
        world.driver.forget()
        world.change()
        begun, go_on = threading.Event(), threading.Event()
        stage = SqliteFollower.stage

        def slow(*arguments: Any) -> Any:
            begun.set()
            assert go_on.wait(PATIENCE)
            return stage(*arguments)

        monkeypatch.setattr(SqliteFollower, "stage", slow)
        epoch = world.driver.epoch
        followers.published(world.manifest)
        ended = threading.Thread(target=followers.finish)
        ended.start()
        try:
            assert begun.wait(PATIENCE)
            followers.published(world.change(3))
            assert followers.floor("v") == epoch
            intent = world.cursors.latest().intent
            assert intent is not None
            assert intent.way == "difference"
            monkeypatch.setattr(SystemClock, "now", lambda _: intent.began_ms + 3_600_001)
            assert followers.floor("v") == sys.maxsize
        finally:
            monkeypatch.undo()
            go_on.set()
            ended.join()
        assert world.is_there()


def test_bounds_hold_before_it_is_opened(tmp_path: Path) -> None:
    """It may lack a secret, or its thread may not have had a turn."""
    world = World(tmp_path, spool_bytes=1)
    world.place()
    with world.followed() as followers:
        assert followers.finish() == []
    world.change(2)
    followers = Followers(
        world.config, [world.definition], UNFENCED, SystemClock(), Mask(()), world.messages.append
    )
    followers.published(world.manifest)
    assert followers.floor("v") == sys.maxsize
    assert any("too far behind" in text for text in world.messages)


def test_one_that_is_away_over_many_short_runs_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, spool_age="1 day")
    world.place()
    with world.followed() as followers:
        assert followers.finish() == []
    epoch = world.driver.epoch
    world.file.parent.rename(tmp_path / "away")
    began = SystemClock().now()
    for hours, kept in ((0, True), (20, True), (25, False)):
        now = began + hours * 3_600_000
        monkeypatch.setattr(SystemClock, "now", lambda _, now=now: now)
        world.change()
        with world.followed() as followers:
            assert followers.finish() != []
            assert followers.floor("v") == (epoch if kept else sys.maxsize)
    (tmp_path / "away").rename(world.file.parent)
    with world.followed() as followers:
        assert followers.finish() == []
    assert world.is_there()


def test_maintenance_comes_in_time_where_runs_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, maintained = World(tmp_path), []
    world.place()
    monkeypatch.setattr(SqliteFollower, "maintain", lambda *_, **how: maintained.append(how))
    began = SystemClock().now()
    for minutes, expected in ((0, 0), (6, 0), (12, 1), (18, 1), (24, 2), (-60, 2), (-49, 3)):
        now = began + minutes * 60_000
        monkeypatch.setattr(SystemClock, "now", lambda _, now=now: now)
        world.change()
        with world.followed() as followers:
            assert followers.finish() == []
        assert maintained == [{"thorough": False}] * expected


def test_a_copy_of_a_store_leaves_its_sinks_to_the_original(tmp_path: Path) -> None:
    """Both have one id and the same tokens: a target cannot tell them apart."""
    world = World(tmp_path)
    world.place()
    with world.followed() as followers:
        assert followers.finish() == []
    rows, original, copy = world.rows(), world.store.root, tmp_path / "copy"
    world.change()
    shutil.copytree(original, copy)
    world.config = world.config.model_copy(update={"store": copy})
    with world.followed() as followers:
        (refused,) = followers.finish()
    assert world.rows() == rows
    told = str(refused.render())
    assert "is a copy of" in told
    assert f"store {original}, which is still there" in told
    shutil.rmtree(original)
    with world.followed() as followers:
        assert followers.finish() == []
    assert world.is_there()


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("ALTER TABLE v DROP COLUMN n", "table v has no column named n"),
        ("DROP TABLE mview_marks", "there is a table v that mview has not made"),
    ],
)
def test_what_others_have_done_to_a_table_is_mended_as_its_error_says(
    tmp_path: Path, deed: str, said: str
) -> None:
    world = World(tmp_path)
    world.place()

    def beside(sql: str) -> None:
        with closing(sqlite3.connect(world.file, timeout=PATIENCE)) as connection, connection:
            connection.execute(sql)

    with world.followed() as followers:
        assert followers.finish() == []
    beside(deed)
    world.change()
    with world.followed() as followers:
        (error,) = followers.finish()
    told = str(error.render())
    assert said in told
    assert re.search("drop it( there)?: it is filled anew", told)
    beside("DROP TABLE v")
    with world.followed() as followers:
        assert followers.finish() == []
    assert world.is_there()


def sink_status(world: World) -> SinkStatus:
    """What `mview status` has of the sink, at what the world has published."""
    view = replace(world.manifest.views["v"], definition=digest_of(world.definition))
    log = ManifestLog(world.store.manifests)
    latest = log.latest()
    number = 1 if latest is None else latest.epoch + 1
    log.publish(replace(world.manifest, epoch=number, views={"v": view}))
    return status(world.config).views[0].sinks[0]


def test_status_says_how_far_it_is(tmp_path: Path) -> None:
    world = World(tmp_path, every="1 hour")
    save_definition(world.store, world.definition)
    assert (sink_status(world).epoch, sink_status(world).waiting) == (None, -1)
    world.place()
    with world.followed() as followers:
        assert followers.finish() == []
    shown = sink_status(world)
    assert shown.waiting == 0
    assert shown.epoch == world.driver.epoch
    before = world.driver.epoch
    world.change(3)
    shown = sink_status(world)
    assert shown.epoch == before
    assert shown.waiting == 3
    assert shown.waiting_bytes > 0
    assert shown.lag_ms > 0
    assert shown.anew == ""
    begun = Intent(Step("a", before + 3, before), None, "difference", 123)
    world.cursors.write(replace(world.cursors.latest(), intent=begun))
    shown = sink_status(world)
    assert (shown.anew, shown.anew_since_ms) == ("difference", 123)
