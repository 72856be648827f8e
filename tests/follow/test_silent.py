"""A target that goes silent in a call: nobody waits for ever, and nothing is written twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.sql.sqlite import SqliteFollower

from mview.catalog.followers import open_follower
from mview.clock import SystemClock, WallMs
from mview.errors import RetryableError
from mview.files.fence import UNFENCED
from mview.follow.followers import Followers, read_problem
from mview.follow.waiting import Wait, note_wait, read_wait
from mview.secrets import Mask
from tests.follow.test_followers import PATIENCE, World
from tests.patience import wait_for


class Silence:
    """Holds the calls of a method of all followers, until it is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.entered, self.over = threading.Event(), threading.Event()
        self.calls = 0
        call = getattr(SqliteFollower, method)

        def held(*arguments: Any) -> Any:
            self.calls += 1
            self.entered.set()
            assert self.over.wait(PATIENCE)
            return call(*arguments)

        monkeypatch.setattr(SqliteFollower, method, held)


@pytest.fixture(params=["create", "position", "fill", "commit"])
def silence(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Silence]:
    held = Silence(monkeypatch, request.param)
    yield held
    held.over.set()


def made(world: World) -> Followers:
    return Followers(
        world.config, [world.definition], UNFENCED, SystemClock(), Mask(()), world.messages.append
    )


def test_a_bounded_run_ends_without_a_silent_one(tmp_path: Path, silence: Silence) -> None:
    world = World(tmp_path, patience="300 ms")
    world.place()
    with world.followed() as followers:
        assert silence.entered.wait(PATIENCE)
        began = time.monotonic()
        (behind,) = followers.finish()
        assert time.monotonic() - began < 10
        assert "has not caught up" in behind.what
        assert "the target of sink s of view v is silent" in str(behind.got)
        problem = read_problem(world.store.follower("v", "s"))
        assert problem is not None
        assert "sinks.s.patience" in problem.text
        (said,) = world.messages
        assert "silent" in said
        silence.over.set()
        assert wait_for(world.is_noted, PATIENCE)
        assert followers.finish() == []
    assert read_problem(world.store.follower("v", "s")) is None
    assert world.messages[1:] == ["sink s of view v gets on again"]


def test_a_run_that_goes_on_shows_it(
    tmp_path: Path, silence: Silence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mview.follow.followers._LOOK_S", 0.05)
    world = World(tmp_path, patience="100 ms")
    world.place()
    folder = world.store.follower("v", "s")
    with world.followed():
        assert silence.entered.wait(PATIENCE)
        # A slow machine may have been silent before, as it opened the sink.
        assert wait_for(lambda: "silent" in str(read_problem(folder)), PATIENCE)
        time.sleep(0.3)
        problem = read_problem(folder)
        time.sleep(0.3)
        assert read_problem(folder) == problem  # one silence is one
        silence.over.set()
        assert wait_for(world.is_noted, PATIENCE)


def test_for_whom_a_sink_waits_is_noted_long_before(
    tmp_path: Path, silence: Silence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mview.follow.followers._LOOK_S", 0.05)
    monkeypatch.setattr("mview.follow.followers.NOTED_S", 0.05)
    world = World(tmp_path)
    folder, token = world.store.follower("v", "s"), UNFENCED.token
    world.place()
    note_wait(folder, Wait(token, "source", WallMs(1)))  # by a run that was killed
    with world.followed():
        assert silence.entered.wait(PATIENCE)
        assert wait_for(lambda: is_target(read_wait(folder, token)), PATIENCE)
        assert read_wait(folder, token + 1) is None
        assert read_wait(folder, None) is None
        assert read_problem(folder) is None  # it is no error yet
        silence.over.set()
        assert wait_for(world.is_noted, PATIENCE)
        assert wait_for(lambda: read_wait(folder, token) is None, PATIENCE)
    assert world.messages == []


def is_target(wait: Wait | None) -> bool:
    return wait is not None and wait.whom == "target" and wait.since_ms > 1


def test_one_that_hangs_while_it_is_opened_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def held(*arguments: Any) -> Any:
        assert over.wait(PATIENCE)
        return open_follower(*arguments)

    monkeypatch.setattr("mview.follow.followers.open_follower", held)
    monkeypatch.setattr("mview.follow.followers._LOOK_S", 0.05)
    world = World(tmp_path, patience="100 ms")
    world.place()
    with world.followed():
        assert wait_for(lambda: read_problem(world.store.follower("v", "s")), PATIENCE)
        over.set()
        assert wait_for(world.is_noted, PATIENCE)
    assert read_problem(world.store.follower("v", "s")) is None


def test_a_pause_between_two_commits_is_no_silence(tmp_path: Path) -> None:
    world = World(tmp_path, patience="100 ms", every="1 s")
    world.place()
    with world.followed() as followers:
        assert wait_for(world.is_noted, PATIENCE)
        followers.published(world.change())
        (thread,) = followers._threads
        time.sleep(0.3)
        thread.look()
        assert wait_for(world.is_noted, PATIENCE)
    assert world.messages == []


def test_while_this_process_is_stopped_no_target_is_silent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.follow.stopped", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as follower:
        assert follower.stdin is not None
        assert follower.stdout is not None
        try:
            assert follower.stdout.readline() == "in the call\n"
            follower.send_signal(signal.SIGSTOP)
            time.sleep(6)  # longer than `patience`: what is tested is that it counts as nothing
            follower.send_signal(signal.SIGCONT)
            follower.stdin.write("look\n")
            follower.stdin.flush()
            assert follower.stdout.readline() == "not silent\n"
        finally:
            follower.kill()


def test_a_stop_ends_the_waiting(tmp_path: Path, silence: Silence) -> None:
    world = World(tmp_path)
    world.place()
    stop = threading.Event()
    with world.followed() as followers:
        assert silence.entered.wait(PATIENCE)
        threading.Timer(0.2, stop.set).start()
        began = time.monotonic()
        followers.finish(stop)
        assert time.monotonic() - began < 10
        silence.over.set()


def test_who_takes_over_waits_for_the_call_and_brings_the_rest(
    tmp_path: Path, silence: Silence
) -> None:
    """As `mview apply` does: not delayed by it, and the older thread writes nothing any more."""
    world = World(tmp_path, patience="300 ms")
    world.place()
    first = made(world)
    first.start(world.manifest)
    assert silence.entered.wait(PATIENCE)
    began = time.monotonic()
    first.close(0.1)
    second = made(world)
    second.start(world.change(), first)
    second.close(0.1)
    third = made(world)  # waits for the first one, too
    third.start(world.change(), second)
    try:
        assert time.monotonic() - began < 5
        (behind,) = third.finish()
        assert "silent" in str(behind.got)
        assert silence.calls == 1
        silence.over.set()
        assert wait_for(world.is_noted, PATIENCE)
        assert third.finish() == []
        assert third._threads[0]._thread.is_alive()
    finally:
        third.close()
    assert not any("newer runner" in text or "another runner" in text for text in world.messages)


@pytest.mark.parametrize("method", ["position", "fill", "commit"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_left_in_a_step_writes_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, fails: bool
) -> None:
    """The view may be gone when the call comes back, or fails."""

    def fail(*_: Any) -> None:
        raise RetryableError("away")

    if fails:
        monkeypatch.setattr(SqliteFollower, method, fail)
    world, held = World(tmp_path), Silence(monkeypatch, method)
    world.place()
    followers = made(world)
    followers.start(world.manifest)
    assert held.entered.wait(PATIENCE)
    followers.close(0.1)
    folder = world.store.follower("v", "s")
    before = sorted(folder.glob("*"))
    held.over.set()
    assert wait_for(lambda: not followers._left(), PATIENCE)
    assert sorted(folder.glob("*")) == before
