from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from mview.clock import WallMs
from mview.errors import (
    AlreadyRunningError,
    CorruptionError,
    ExitCode,
    FencedError,
    LostStoreError,
    RetryableError,
)
from mview.files.jsonfile import checked
from mview.store import lease as module
from mview.store.identity import claim_store
from mview.store.lease import Lease, insist
from tests.patience import wait_for

#: Takes the lease when told to, says how it went, then holds it until it is told to end.
HOLDER = """
import sys
from pathlib import Path
from mview.errors import AlreadyRunningError, FencedError
from mview.store.lease import Lease
from tests.patience import wait_for
lease = Lease(Path(sys.argv[1]), ttl_ms=int(sys.argv[2]))
print("ready", flush=True)
for line in sys.stdin:
    try:
        getattr(lease, line.strip())()
        print("ok", lease.token, flush=True)
    except (AlreadyRunningError, FencedError) as error:
        print(type(error).__name__, flush=True)
"""


class Holder:
    """Another process with a lease."""

    def __init__(self, folder: Path, ttl_ms: int = 60_000) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder), str(ttl_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []

    def start(ttl_ms: int = 60_000) -> Holder:
        started.append(Holder(tmp_path / "lease", ttl_ms))
        return started[-1]

    yield start
    for one in started:
        one.end()


class FakeClock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now(self) -> WallMs:
        return WallMs(self.ms)


def test_one_runner_at_a_time(tmp_path: Path) -> None:
    with Lease(tmp_path / "s" / "lease") as lease:
        assert lease.token == 1
        lease.check()
        with pytest.raises(AlreadyRunningError) as caught:
            Lease(tmp_path / "s" / "lease").acquire()
        assert f"process {os.getpid()} on" in str(caught.value)
        assert f"kill {os.getpid()} on" in str(caught.value)
        assert caught.value.exit_code is ExitCode.ALREADY_RUNNING
    with Lease(tmp_path / "s" / "lease") as lease:
        assert lease.token == 2


def test_tokens_grow_and_old_files_go(tmp_path: Path) -> None:
    for token in range(1, 15):
        with Lease(tmp_path) as lease:
            assert lease.token == token
    assert len(list(tmp_path.iterdir())) < 8


def test_an_expired_lease_is_taken_over_and_its_holder_fenced(tmp_path: Path) -> None:
    clock = FakeClock()
    old, new = Lease(tmp_path, clock, ttl_ms=600_000), Lease(tmp_path, clock, ttl_ms=600_000)
    old.acquire()
    clock.ms += 600_000
    with pytest.raises(AlreadyRunningError):
        new.acquire()
    clock.ms += 1
    new.acquire()
    assert new.token == 2
    with pytest.raises(FencedError, match="has taken this store over"):
        old.check()
    old.release()
    new.check()
    new.release()


def _said(file: Path) -> dict[str, Any]:
    said: dict[str, Any] = orjson.loads(file.read_bytes().splitlines()[1])
    return said


def test_another_host_is_not_judged_by_its_process_id(tmp_path: Path) -> None:
    with Lease(tmp_path):
        pass
    file = tmp_path / f"{1:020d}.json"
    owner = _said(file)
    file.write_bytes(checked({**owner, "host": "elsewhere", "expires_ms": 2**50}))
    with pytest.raises(AlreadyRunningError, match="on elsewhere"):
        Lease(tmp_path).acquire()
    file.write_bytes(checked({**owner, "started": "0", "expires_ms": 2**50}))
    with Lease(tmp_path) as lease:
        assert lease.token == 2


def test_renewal_keeps_the_lease(tmp_path: Path) -> None:
    with Lease(tmp_path, ttl_ms=300) as lease:
        file = tmp_path / f"{1:020d}.json"
        first = _said(file)["expires_ms"]
        renewed = wait_for(lambda: _said(file)["expires_ms"] > first + 300, 20)
        assert renewed, "the lease was not renewed"
        lease.check()


def test_an_unreadable_lease(tmp_path: Path) -> None:
    with Lease(tmp_path):
        pass
    (tmp_path / f"{1:020d}.json").write_text("{")
    with pytest.raises(CorruptionError, match="make sure that no mview runs"):
        Lease(tmp_path).acquire()


def taken(folder: Path) -> Lease:
    """A lease that another process lets go of, one way or another."""
    lease = Lease(folder)

    def is_free() -> bool:
        try:
            lease.acquire()
        except AlreadyRunningError:
            return False
        return True

    assert wait_for(is_free, 20), "the lease of the other process never ends"
    return lease


def test_two_processes_race(holder: Callable[..., Holder]) -> None:
    racers = [holder(), holder()]
    for racer in racers:
        assert racer.hear() == "ready"
    for racer in racers:
        racer.tell("acquire")
    assert sorted(racer.hear() for racer in racers) == ["AlreadyRunningError", "ok 1"]


def test_a_killed_holder_is_taken_over_at_once(
    tmp_path: Path, holder: Callable[..., Holder]
) -> None:
    other = holder()
    assert other.hear() == "ready"
    other.tell("acquire")
    assert other.hear() == "ok 1"
    with pytest.raises(AlreadyRunningError, match=f"process {other.process.pid} "):
        Lease(tmp_path / "lease").acquire()
    other.process.kill()
    # Not waited for: a dead process that its parent has not looked at is dead all the same.
    lease = taken(tmp_path / "lease")
    assert lease.token == 2
    lease.release()


def test_a_paused_holder_is_fenced(tmp_path: Path, holder: Callable[..., Holder]) -> None:
    other = holder(ttl_ms=200)
    assert other.hear() == "ready"
    other.tell("acquire")
    assert other.hear() == "ok 1"
    other.process.send_signal(signal.SIGSTOP)
    lease = taken(tmp_path / "lease")
    other.process.send_signal(signal.SIGCONT)
    other.tell("check")
    assert other.hear() == "FencedError"
    other.tell("release")
    assert other.hear() == "ok 1"
    lease.check()
    lease.release()


def test_a_lease_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "lease").write_text("a file where the folder should be")
    with pytest.raises(RetryableError, match=r"(?s)the lease of the store cannot be written.*disk"):
        Lease(tmp_path / "lease").acquire()


def test_a_disk_that_is_away_for_a_while_does_not_end_the_renewal(tmp_path: Path) -> None:
    folder, away = tmp_path / "lease", tmp_path / "away"
    lease = Lease(folder, ttl_ms=30)
    lease.acquire()
    file = folder / f"{1:020d}.json"
    folder.rename(away)
    time.sleep(0.1)  # it is missed at least once
    away.rename(folder)
    before = file.read_bytes()
    assert wait_for(lambda: file.read_bytes() != before, 60)
    lease.release()


@pytest.mark.parametrize("copied", [False, True])
def test_a_store_that_is_taken_away_ends_its_runner(tmp_path: Path, copied: bool) -> None:
    """Also where a copy of it, made in this very run, stands in its place: it lacks what came."""
    folder, away = tmp_path / "store" / "lease", tmp_path / "away"
    lease = Lease(folder, ttl_ms=60)
    lease.acquire()
    folder.parent.rename(away)
    if copied:
        shutil.copytree(away, folder.parent)
    seen = {file: file.read_bytes() for file in tmp_path.rglob("*.json")}
    with pytest.raises(LostStoreError, match=r"(?s)was taken away.*store\n.*next: +put it back"):
        lease.check()
    time.sleep(0.1)  # it would have been renewed
    lease.release()
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json")} == seen
    assert folder.exists() == copied


@pytest.mark.parametrize("whole", [True, False])
def test_a_lease_that_is_deleted_is_told_as_that(tmp_path: Path, whole: bool) -> None:
    folder = tmp_path / "store" / "lease"
    lease = Lease(folder, ttl_ms=60)
    lease.acquire()
    if whole:
        shutil.rmtree(folder)
    else:
        (folder / f"{1:020d}.json").unlink()
    with pytest.raises(LostStoreError, match=r"(?s)lease of the store was deleted.*is gone"):
        lease.check()
    lease.release()
    assert list(tmp_path.rglob("*.json")) == []
    with Lease(folder, above=1) as after:
        assert after.token == 2


def test_the_last_holders_are_kept_for_who_looks(tmp_path: Path) -> None:
    for _ in range(8):
        with Lease(tmp_path):
            pass
    kept = sorted(int(file.stem) for file in tmp_path.glob("*.json"))
    assert kept == [3, 4, 5, 6, 7, 8]


def test_who_was_overtaken_does_not_insist(tmp_path: Path) -> None:
    """An older runner writes once before it is stopped; a newer one is not to be written over."""
    tries = []

    def refused_twice() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise FencedError("an older runner was faster")
        return len(tries)

    with Lease(tmp_path) as lease:
        assert insist(lease, refused_twice) == 3
        (tmp_path / f"{2:020d}.json").write_bytes((tmp_path / f"{1:020d}.json").read_bytes())
        tries.clear()
        with pytest.raises(FencedError, match="has taken this store over"):
            insist(lease, refused_twice)
        assert len(tries) == 1


def test_a_lost_lease_folder_does_not_take_tokens_back(tmp_path: Path) -> None:
    with Lease(tmp_path, above=41) as lease:
        assert lease.token == 42
        assert lease.takes_over  # who had the 41st may still be there
        lease.all_fenced()
    with Lease(tmp_path, above=41) as lease:
        assert lease.token == 43
        assert not lease.takes_over


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_the_clock_jumps(tmp_path: Path, jump_ms: int) -> None:
    """Forward, the lease seems to have ended: its holder is fenced. Back: it lasts too long."""
    clock = FakeClock()
    clock.ms = 10_000_000
    old, new = Lease(tmp_path, clock, 60_000), Lease(tmp_path, clock, 60_000)
    old.acquire()
    clock.ms += jump_ms
    if jump_ms > 0:
        new.acquire()
        with pytest.raises(FencedError):
            old.check()
        assert new.takes_over
        new.release()
    else:
        with pytest.raises(AlreadyRunningError, match=r"clock is ahead of this one: delete .*001"):
            new.acquire()
        old.check()
        (tmp_path / f"{1:020d}.json").unlink()
        new = Lease(tmp_path, clock, 60_000, above=1)
        new.acquire()
        assert new.token == 2
        new.release()
    old.release()


def test_a_lease_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    link, fsync = os.link, os.fsync

    def forced(handle: int) -> None:
        done.append("forced")
        fsync(handle)

    def named(old: Path, new: Path) -> None:
        done.append("named")
        link(old, new)

    monkeypatch.setattr(os, "fsync", forced)
    monkeypatch.setattr(os, "link", named)
    with Lease(tmp_path / "lease"):
        assert done[:2] == ["forced", "named"]


@pytest.mark.parametrize("fenced", [False, True])
def test_a_take_over_that_was_not_finished_is_left_to_the_next(
    tmp_path: Path, fenced: bool
) -> None:
    clock = FakeClock()
    paused, second, third = (Lease(tmp_path, clock, ttl_ms=600_000) for _ in range(3))
    paused.acquire()
    clock.ms += 600_001
    second.acquire()
    if fenced:
        second.all_fenced()
    second.release()
    assert third.holder() is None
    third.acquire()
    assert third.takes_over is not fenced
    third.all_fenced()
    third.release()
    with Lease(tmp_path, clock) as fourth:
        assert not fourth.takes_over
    paused.release()


def test_it_is_given_back_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    first = Lease(tmp_path / "lease")
    first.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(module, "put", full)
        first.release()
    second = Lease(tmp_path / "lease")
    second.acquire()
    assert (second.token, second.takes_over) == (2, False)
    second.release()


def test_a_copy_beside_a_run_is_not_told_to_end_that(tmp_path: Path) -> None:
    original, copy = tmp_path / "store", tmp_path / "copy"
    claim_store(original)
    with Lease(original / "lease"):
        shutil.copytree(original, copy)
        with pytest.raises(AlreadyRunningError) as error:
            Lease(copy / "lease").check_free()
        with pytest.raises(AlreadyRunningError) as told:
            Lease(original / "lease").check_free()
    hint = str(error.value.hint)
    assert hint.startswith(f"this is a copy of {original}: if the process runs that one, wait ")
    assert str(told.value.hint).startswith("stop it (kill ")
