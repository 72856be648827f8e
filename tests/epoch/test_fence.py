"""A runner that was paused anywhere, for any time, shows nothing and deletes nothing of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mview.admin.drop import drop
from mview.errors import CorruptionError, ExitCode, FencedError, TargetError
from mview.failpoints import armed
from mview.files import durable
from mview.follow.cursor import Cursor, CursorLog, Intent
from mview.follower import Step
from mview.store.history import IntentLog, ManifestLog
from mview.store.mirror import Mirror
from tests.epoch.runners import (
    SCHEMA,
    TABLE,
    TTL_MS,
    VIEW,
    CrashError,
    Paused,
    Runner,
    SetClock,
    check,
    crash,
    offset_of,
    target_of,
)
from tests.epoch.walk import walk
from tests.relations import rel
from tests.seeds import seeds

#: Steps of an epoch, and which hit of it.
EPOCH = [
    ("after-mirrors", 1),
    ("log-committed", 1),
    ("after-stage", 1),
    ("after-lease", 1),
    ("file-linked", 1),
    ("after-intent", 1),
    ("before-sink", 1),
    ("log-committed", 2),
    ("after-sink", 1),
    ("after-commit", 1),
    ("file-linked", 2),
    ("after-publish", 1),
    ("after-clear", 1),
]
#: The first step behind which the epoch will be published, whatever happens.
DECIDED = ("file-linked", 1)
#: From here on the epoch is published, and the old runner right to believe so.
PUBLISHED = [("file-linked", 2), ("after-publish", 1), ("after-clear", 1)]
UPKEEP = [("log-committed", 1), ("after-compact", 1), ("after-prune", 1), ("in-clean", 1)]
RECOVERY = [
    ("recover-begin", 1),
    ("recover-decided", 1),
    ("recover-committed", 1),
    ("file-linked", 1),
    ("recover-published", 1),
    ("log-committed", 1),
    ("recover-sink", 1),
    ("log-committed", 2),
    ("recover-mirror", 1),
    ("recover-fenced", 1),
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    # Processes are stopped here, not the power: what is written is there without being forced.
    monkeypatch.setattr(durable, "force", lambda path: None)
    return SetClock()


def started(tmp_path: Path, clock: SetClock, epochs: int = 4) -> Runner:
    runner = Runner(tmp_path, clock).start()
    for _ in range(epochs):
        runner.epoch()
    return runner


def taken_over(old: Runner, tmp_path: Path, clock: SetClock) -> Runner:
    """A successor that has done a lot by the time the old one wakes."""
    old.die()
    new = Runner(tmp_path, clock).start()
    for _ in range(3):
        new.epoch()
    new.upkeep_round()
    new.epoch()
    return new


def check_after(new: Runner, tmp_path: Path, clock: SetClock) -> None:
    """The successor goes on as if there had been nobody, and so does the next start."""
    taken = check(new)
    new.epoch()
    new.upkeep_round()
    new.epoch()
    assert check(new) == taken + 2
    new.stop()
    again = started(tmp_path, clock, 1)
    assert check(again) == taken + 3
    again.stop()


@pytest.mark.days(3)  # so of the next ones; the random life meets some of them every day
@pytest.mark.parametrize(("point", "nth"), EPOCH)
@pytest.mark.parametrize("before", [0, 4])
def test_paused_in_an_epoch(
    tmp_path: Path, clock: SetClock, point: str, nth: int, before: int
) -> None:
    old = started(tmp_path, clock, before)
    old_epoch = Paused(old.epoch, point, nth)
    with old_epoch.paused() as hit:
        assert hit, "not reached"
        new = taken_over(old, tmp_path, clock)
    assert new.engine.manifest.token == new.lease.token
    if (point, nth) in PUBLISHED:
        assert old_epoch.error is None
    else:
        assert isinstance(old_epoch.error, FencedError)
        assert "taken this store over" in str(old_epoch.error)
        assert old_epoch.error.exit_code is ExitCode.ALREADY_RUNNING
    with pytest.raises(FencedError):
        old.epoch()
    if before:
        with pytest.raises(FencedError):
            old.upkeep_round()
    old.stop()
    check_after(new, tmp_path, clock)


@pytest.mark.parametrize(("point", "nth"), UPKEEP)
def test_paused_in_upkeep(tmp_path: Path, clock: SetClock, point: str, nth: int) -> None:
    old = started(tmp_path, clock)
    upkeep = Paused(old.upkeep_round, point, nth)
    with upkeep.paused() as hit:
        assert hit, "not reached"
        new = taken_over(old, tmp_path, clock)
    assert upkeep.error is None or isinstance(upkeep.error, FencedError)
    check_after(new, tmp_path, clock)


@pytest.mark.long  # the random life meets some of them every day
@pytest.mark.parametrize(("point", "nth"), RECOVERY)
@pytest.mark.parametrize("crashed", [("after-stage", 1), ("after-intent", 1), ("after-sink", 1)])
def test_paused_in_recovery(
    tmp_path: Path, clock: SetClock, crashed: tuple[str, int], point: str, nth: int
) -> None:
    """Three runners: one crashes, one hangs while it recovers from that, one takes over."""
    first = started(tmp_path, clock)
    with armed(crashed[0], crash, crashed[1]) as crash_hit, pytest.raises(CrashError):
        first.epoch()
    assert crash_hit.is_set()
    first.die()
    old = Runner(tmp_path, clock)
    start = Paused(old.start, point, nth)
    with start.paused() as hit:
        if hit:
            new = taken_over(old, tmp_path, clock)
    if not hit:  # an intent says it, or there is none
        assert point in ("recover-begin", "recover-committed"), "not reached"
        old.stop()
        return
    assert isinstance(start.error, FencedError)
    check_after(new, tmp_path, clock)


@pytest.mark.long  # the random life meets some of them every day
@pytest.mark.parametrize(("point", "nth"), RECOVERY)
@pytest.mark.parametrize("crashed", [("after-stage", 1), ("after-intent", 1)])
def test_crash_in_recovery(
    tmp_path: Path, clock: SetClock, crashed: tuple[str, int], point: str, nth: int
) -> None:
    first = started(tmp_path, clock)
    with armed(crashed[0], crash, crashed[1]), pytest.raises(CrashError):
        first.epoch()
    first.die()
    second = Runner(tmp_path, clock)
    with armed(point, crash, nth) as hit:
        try:
            second.start()
        except CrashError:
            assert hit.is_set()
            second.die()
        else:
            second.stop()
    third = Runner(tmp_path, clock).start()
    taken = check(third)
    assert taken in (4, 5)
    check_after(third, tmp_path, clock)


@pytest.mark.days(3)
@pytest.mark.parametrize(("point", "nth"), EPOCH)
def test_a_commit_that_is_reported_as_failed(
    tmp_path: Path, clock: SetClock, point: str, nth: int
) -> None:
    """The error ends the run; whether the commit was made, the next start sees for itself."""

    def fail() -> None:
        raise OSError("the network is down")

    runner = started(tmp_path, clock)
    # A sink is asked once more, and says that it was.
    ends = (
        nullcontext()
        if (point, nth) == ("log-committed", 2)
        else pytest.raises(OSError, match="network")
    )
    with armed(point, fail, nth), ends:
        runner.epoch()
    runner.stop()
    after = Runner(tmp_path, clock).start()
    assert check(after) == (4 if EPOCH.index((point, nth)) < EPOCH.index(DECIDED) else 5)
    check_after(after, tmp_path, clock)


def test_an_epoch_that_was_decided_is_published_by_its_successor(
    tmp_path: Path, clock: SetClock
) -> None:
    """Two carry out one intent at the same time: it counts once, whoever is first."""
    old = started(tmp_path, clock)
    old_epoch = Paused(old.epoch, "before-sink")
    with old_epoch.paused():
        old.die()
        new = Runner(tmp_path, clock)
        start = Paused(new.start, "before-sink", 2)
        # The successor waits just before the same commit, the old one makes it.
        with start.paused():
            pass
    assert isinstance(old_epoch.error, FencedError)
    assert check(new) == 5
    check_after(new, tmp_path, clock)


def test_a_lease_that_was_given_back_needs_no_take_over(tmp_path: Path, clock: SetClock) -> None:
    runner = started(tmp_path, clock, 2)
    epoch = runner.engine.manifest.epoch
    runner.stop()
    versions = log_versions(runner)
    again = Runner(tmp_path, clock).start()
    assert (again.engine.manifest.epoch, log_versions(again)) == (epoch, versions)
    again.die()
    third = Runner(tmp_path, clock).start()
    assert third.engine.manifest.epoch == epoch + 1
    assert offset_of(third.engine.manifest) == 2
    assert all(now == then + 1 for now, then in zip(log_versions(third), versions, strict=True))
    third.stop()


@pytest.mark.days(3)
@pytest.mark.parametrize(("point", "nth"), [("after-lease", 1), ("file-linked", 1)])
@pytest.mark.parametrize("failed", ["recover-begin", "recover-published", "recover-sink"])
def test_a_take_over_that_fails_half_way(
    tmp_path: Path, clock: SetClock, point: str, nth: int, failed: str
) -> None:
    """Its runner ends in order, but whom it has taken over from may still wake."""

    def fail() -> None:
        raise OSError("the network is down")

    old = started(tmp_path, clock)
    old_epoch = Paused(old.epoch, point, nth)
    with old_epoch.paused():
        old.die()
        second = Runner(tmp_path, clock)
        with armed(failed, fail) as hit, suppress(OSError):
            second.start()
        assert hit.is_set() or point == "file-linked"  # an intent says what the epoch is
        second.stop()
        epoch = ManifestLog(second.store.manifests).epochs()[-1]
        new = Runner(tmp_path, clock).start()
        assert new.engine.manifest.epoch == epoch + (1 if hit.is_set() else 0)
        new.epoch()
    assert isinstance(old_epoch.error, FencedError)
    check_after(new, tmp_path, clock)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_random_life(seed: int, clock: SetClock) -> None:
    walk(seed, 40)


def log_versions(runner: Runner) -> list[int]:
    folders = [*runner.store.mirror(TABLE).iterdir(), target_of(runner)]
    return [DeltaTable(folder).version() for folder in sorted(folders)]


@pytest.mark.parametrize("point", ["drop-published", "drop-sink", "file-linked"])
@pytest.mark.parametrize("damaged", [False, True])
def test_killed_in_a_drop(tmp_path: Path, clock: SetClock, point: str, damaged: bool) -> None:
    """What is dropped in the manifest is deleted by the next start, however damaged it is."""
    runner = started(tmp_path, clock)
    target = target_of(runner)
    runner.stop()
    if damaged:
        runner = Runner(tmp_path, clock)
        newest = DeltaTable(target).version()
        (target / "_delta_log" / f"{newest:020d}.json").write_bytes(b"{ torn")
    with armed(point, crash) as hit, pytest.raises(CrashError):
        drop(runner.config, [VIEW], with_tables=True)
    assert hit.is_set()
    after = Runner(tmp_path, clock).start()
    assert VIEW not in after.engine.manifest.views
    assert not target.exists()
    after.epoch()
    assert check(after) == 1
    after.stop()


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("drop-published", 1),
        ("taken-away", 1),
        ("taken-away", 3),
        ("drop-sink", 1),
        ("forget-folder", 1),
    ],
)
def test_paused_in_a_drop(tmp_path: Path, clock: SetClock, point: str, nth: int) -> None:
    """It wakes when there is a view and a table of these names again."""
    runner = started(tmp_path, clock)
    runner.stop()
    dropping = Paused(lambda: drop(runner.config, [VIEW], with_tables=True), point, nth)
    with dropping.paused() as hit:
        assert hit, "not reached"
        clock.ms += TTL_MS + 1
        new = Runner(tmp_path, clock).start()
        for _ in range(5):
            new.epoch()
    assert isinstance(dropping.error, FencedError)
    assert check(new) == 5
    check_after(new, tmp_path, clock)


def test_what_a_sleeper_takes_from_its_successor_gets_its_name_back(tmp_path: Path) -> None:
    for name in ("file", "folder"):
        path, taken = tmp_path / name, tmp_path / f"{name}-taken"
        looks = iter((True, False))

        def check(path: Path = path, looks: Iterator[bool] = looks) -> None:
            if not next(looks):
                raise FencedError("another runner has taken this store over")
            path.touch() if path.name == "file" else path.mkdir()  # behind the look

        with pytest.raises(FencedError):
            durable.take_away(path, taken, check)
        assert path.exists()
        assert not taken.exists()


def test_a_sleeper_gives_no_name_back_that_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps once more between its look for the name and its renaming."""
    path, looks = tmp_path / "file", iter((True, False))
    path.write_text("old")

    def check() -> None:
        if not next(looks):
            path.write_text("the successor's")
            raise FencedError("another runner has taken this store over")

    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(FencedError):
        durable.take_away(path, tmp_path / "taken", check)
    assert path.read_text() == "the successor's"


@pytest.mark.parametrize("killed", [False, True])
def test_a_damaged_table_halts_its_view_alone(
    tmp_path: Path, clock: SetClock, killed: bool
) -> None:
    runner = started(tmp_path, clock)
    runner.die() if killed else runner.stop()
    newest = target_of(runner) / "_delta_log" / f"{3:020d}.json"
    newest.write_bytes(b"{ torn")
    for _ in range(2):
        again = Runner(tmp_path, clock).start()
        manifest = again.engine.manifest
        state = manifest.views[VIEW]
        assert state.stale
        assert str(newest) in state.halted
        assert manifest.epoch == (6 if killed else 5)
        kept = Mirror(again.store.mirror(TABLE), SCHEMA).scan(manifest.tables[TABLE])
        assert sorted(kept["id"].to_pylist()) == [1, 2, 3, 4]
        again.stop()


def test_an_epoch_that_is_taken_back_takes_its_compactions_along(
    tmp_path: Path, clock: SetClock
) -> None:
    """A source was away: the tables go back, and what was folded into them is folded again."""
    runner = started(tmp_path, clock)
    upkeep, relation = runner.upkeep, runner.engine.relations[TABLE]

    def compact() -> None:
        done = upkeep._worker.submit(upkeep._compact, TABLE, relation.mirror, relation.state)
        upkeep._compactions[TABLE] = done
        done.result()

    compact()
    upkeep.take_back()
    runner.epoch()
    check(runner)
    compact()
    upkeep.finish()
    assert runner.engine.manifest.tables[TABLE].folded
    assert check(runner) == 5
    runner.stop()


def test_a_store_that_goes_back_forgets_what_sinks_had_of_lost_epochs(
    tmp_path: Path, clock: SetClock
) -> None:
    """The way out of a damaged manifest: newer ones are moved away; their numbers come again."""
    runner = started(tmp_path, clock)
    store, newest = runner.store, runner.engine.manifest.epoch
    runner.stop()
    stand = {
        "behind": Cursor(epoch=newest - 1, step="a"),
        "lost": Cursor(epoch=newest, step="b", tried=7, rows=9),
        "begun": Cursor(newest - 1, "c", intent=Intent(Step("d", newest, newest - 1), {})),
        "new": Cursor(),
    }
    logs = {name: CursorLog(store.follower(VIEW, name)) for name in stand}
    for name, cursor in stand.items():
        logs[name].write(cursor)
    damaged = store.follower(VIEW, "damaged")
    damaged.mkdir()
    (damaged / f"{1:020d}.json").write_text("half")

    file = ManifestLog(store.manifests)._file(newest)
    file.write_bytes(b"half")
    IntentLog(store.intents).write(runner.engine.manifest, {})  # not deleted yet, as after a kill
    refused = Runner(tmp_path, clock)
    with pytest.raises(CorruptionError, match=f"goes on from epoch {newest - 1}"):
        refused.start()
    refused.stop()
    assert {name: logs[name].latest() for name in stand} == stand
    file.unlink()
    (store.intents / f"{newest + 3:020d}.json").write_text("of a lost epoch")
    again = started(tmp_path, clock, 5)
    there = {name: logs[name].latest() for name in stand}
    left = replace(stand["begun"].intent, way="lost") if stand["begun"].intent else None
    assert there == {
        **stand,
        "lost": Cursor(tried=7, rows=9),
        "begun": replace(stand["begun"], intent=left),
    }
    again.stop()


def test_what_is_no_folder_of_ours_stays_in_the_store(tmp_path: Path, clock: SetClock) -> None:
    runner = started(tmp_path, clock)
    store = runner.store
    foreign = [
        folder / name
        for folder in (store.root, store.mirrors, store.views, store.checkpoints, store.manifests)
        for name in ("notes.txt", "mine/x.sql")
    ]
    forgotten = [
        store.view("w") / "data",
        store.mirror(rel("shop.w")) / "base",
        store.checkpoint(7, 1),
    ]
    for file in foreign:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    for folder in forgotten:
        folder.mkdir(parents=True)
    runner.stop()
    after = Runner(tmp_path, clock).start()
    assert all(file.read_text() == "mine" for file in foreign)
    assert not any(folder.exists() for folder in forgotten)
    assert not store.view("w").exists()
    after.epoch()
    assert check(after) == 5
    after.stop()


@pytest.mark.parametrize("anew", [False, True])
def test_a_commit_that_is_refused_leaves_what_was_said_of_the_view(
    tmp_path: Path, clock: SetClock, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    """Also where it was to be built anew, and whether or not the commit has come through."""
    runner = started(tmp_path, clock)
    before = runner.engine.manifest
    commit = runner.sink.commit

    def refuse(token: dict[str, Any]) -> None:
        commit(token)
        raise TargetError("the answer is lost")

    monkeypatch.setattr(runner.sink, "commit", refuse)
    state = before.views[VIEW]
    views = {VIEW: replace(state, sink={} if anew else state.sink, rows=0)}
    token = runner.sink.stage_full(before.epoch + 1, [])
    refused = runner.engine.commit(runner.engine.next_manifest(views=views), {VIEW: token}).halted
    assert set(refused) == {VIEW}
    said = runner.engine.manifest.views[VIEW]
    assert (said.sink, said.rows, said.stale) == (state.sink, 4, True)
    runner.stop()
    again = Runner(tmp_path, clock).start()
    assert check(again) == 4
    again.stop()


def test_a_table_that_cannot_be_cleaned_ends_nothing(
    tmp_path: Path, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = started(tmp_path, clock)

    def damaged(*args: object) -> None:
        raise CorruptionError("version 1 cannot be read", where="v/_delta_log")

    monkeypatch.setattr(runner.sink, "maintain", damaged)
    runner.upkeep_round()
    runner.upkeep_round()
    (said,) = runner.upkeep.news()
    assert "view v goes on" in said
    assert "version 1 cannot be read (v/_delta_log)" in said
    runner.epoch()
    assert check(runner) == 5
    clock.ms += TTL_MS + 1
    new = Runner(tmp_path, clock).start()
    with pytest.raises(FencedError, match="taken this store over"):
        runner.upkeep_round()
    new.stop()
