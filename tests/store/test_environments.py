"""What an environment has of production's mirrors, and what production keeps for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mview.clock import WallMs
from mview.delta.log import DeltaLog
from mview.epoch.tails import changes_since
from mview.errors import AlreadyRunningError, CorruptionError, UserError
from mview.execute.delta import delta_of
from mview.store.environments import (
    Followed,
    check_name,
    followed,
    followed_by_environments,
    names_of,
    needed_by_environments,
    remove,
    remove_dead,
)
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import TTL_MS, Lease
from mview.store.manifest import Manifest, TableState
from mview.store.mirror import Mirror
from tests.relations import rel
from tests.seeds import seeds
from tests.store.mirrors import SCHEMA, MirrorDriver, Row
from tests.store.mirrors import delta_of as changes_of


class SetClock:
    """A clock that goes by hand."""

    ms = 10_000

    def now(self) -> WallMs:
        return WallMs(self.ms)


def rows_of(mirror: Mirror, state: TableState) -> Counter[Row]:
    table = mirror.scan(state)
    columns = [table[name].to_pylist() for name in SCHEMA.names]
    return Counter(zip(*columns, strict=True))


@pytest.mark.parametrize("seed", seeds(4))
def test_a_copy_follows_through_all_that_happens(tmp_path: Path, seed: int) -> None:
    """Compactions that were never taken over, crashes, cleaning up to what was taken."""
    driver = MirrorDriver(tmp_path / "m", seed)
    while driver.unread:
        driver.publish(driver.epoch_once())
    read, own = Mirror(tmp_path / "m", SCHEMA), Mirror(tmp_path / "copy", SCHEMA)
    state, at, anew = None, 0, 0
    for epoch in range(1, 40):
        for _ in range(driver.rng.randrange(3)):
            fate = driver.rng.random()
            if fate < 0.1:
                driver.crash()
            elif fate < 0.4:
                driver.compact()
            elif fate < 0.5:
                driver.compact_beside()
            else:
                driver.publish(driver.epoch_once())
        read.base.refresh()
        read.changelog.refresh()
        if state is None or read.cleaned > at or driver.rng.random() < 0.1:
            most = driver.rng.choice([0, 20_000, 1 << 30])
            state, anew = own.copy(read, driver.state, epoch, most), anew + 1
        else:
            delta = delta_of(read.changes(driver.state, at), SCHEMA.key)
            state = replace(state, changelog_version=own.append(epoch, delta.changelog))
        at = driver.epoch
        assert rows_of(own, state) == Counter(driver.truth.values()), epoch
        # Production never cleans what is to be taken; now and then nobody holds it.
        held = at if driver.rng.random() < 0.9 else 1 << 40
        driver.mirror.maintain(driver.state, driver.state, generation=1, after=held)
        if driver.rng.random() < 0.3:
            version, folded = own.compact(state)
            state = replace(state, base_version=version, folded=folded)
            own.maintain(state, state, generation=1)
        assert rows_of(own, state) == Counter(driver.truth.values()), epoch
    assert anew < 30


def test_files_are_linked_and_stay(tmp_path: Path) -> None:
    driver = MirrorDriver(tmp_path / "m", 1)
    for _ in range(6):
        driver.publish(driver.epoch_once())
    driver.forget()
    own = Mirror(tmp_path / "copy", SCHEMA)
    state = own.copy(Mirror(tmp_path / "m", SCHEMA), driver.state, 1, 1 << 30)
    files = own.files(state).base
    assert files
    assert all(Path(path).stat().st_nlink == 2 for path, _ in files)
    DeltaLog(tmp_path / "m" / "base").drop()
    assert rows_of(own, state) == Counter(driver.truth.values())


def test_far_behind_old_epochs_are_read_from_the_files_of_the_newest(tmp_path: Path) -> None:
    """What an old epoch's state names was merged into other files and deleted meanwhile."""
    mirror, log, table = (
        Mirror(tmp_path / "m", SCHEMA),
        ManifestLog(tmp_path / "log"),
        rel("shop.t"),
    )
    log.folder.mkdir()
    state = replace(mirror.create(), phase="loaded")
    for epoch in range(1, 12):
        rows = [
            ("+I", ("x", 10_000 * epoch + n, "a", None)) for n in range(2000 if epoch > 9 else 1)
        ]
        state = replace(state, changelog_version=mirror.append(epoch, changes_of(rows)))
        newest = Manifest(epoch, 1, WallMs(epoch), 1, epoch, tables={table: state})
        log.publish(newest)
    log.prune(range(3, 11))
    mirror.maintain(state, state, generation=1, after=0)
    with pytest.raises(CorruptionError):
        mirror.changes(log.read(2).tables[table], 0)
    upto, deltas, is_all = changes_since(0, newest, log, {table: mirror}, 1)
    assert (upto.epoch, is_all) == (2, False)
    assert sorted(deltas[table].rows["id"].to_pylist()) == [10_000, 20_000]
    upto, deltas, is_all = changes_since(2, newest, log, {table: mirror}, 1 << 30)
    assert (upto.epoch, is_all) == (11, True)
    assert deltas[table].rows.num_rows == 7 + 4000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    claim_store(tmp_path / "store")
    return Store(tmp_path / "store")


def environment(store: Store, name: str, epoch: int, created_ms: int = 1_000) -> Store:
    """An environment that has followed production up to an epoch."""
    own, table = Store(store.environment(name)), rel("shop.t")
    claim_store(own.root)
    at = Followed(epoch, 500, {table: "the-id"})
    state = TableState(SCHEMA, 0, 0, phase="loaded")
    manifest = Manifest(
        1, 1, created_ms, 1, -1, positions=at.positions, newest=at.newest, tables={table: state}
    )
    ManifestLog(own.manifests).publish(manifest)
    assert followed(manifest) == at
    return own


def test_what_production_keeps_for_environments(store: Store) -> None:
    """As long as somebody runs one: a dead one keeps nothing longer than its lease."""
    clock = SetClock()
    assert needed_by_environments(store, 1_000, clock) is None
    dev, other = environment(store, "dev", 41), environment(store, "other", 7)
    assert names_of(store) == ["dev", "other"]
    assert followed_by_environments(store) == {41, 7}
    assert needed_by_environments(store, 1_000, clock) is None
    with Lease(dev.lease, clock):
        assert needed_by_environments(store, 1_000, clock) == 41
        with Lease(other.lease, clock):
            assert needed_by_environments(store, 1_000, clock) == 7
            # One that waits for long keeps nothing, either.
            assert needed_by_environments(store, 1_001, clock) is None
        assert needed_by_environments(store, 1_000, clock) == 41
    paused = Lease(dev.lease, clock)
    paused.acquire()
    assert needed_by_environments(store, 1_000, clock) == 41
    clock.ms += 2 * TTL_MS
    assert needed_by_environments(store, 1_000, clock) is None
    paused.release()
    # One that begins keeps all until it has linked, but not for ever.
    fresh = Store(store.environment("fresh"))
    claim_store(fresh.root)
    assert needed_by_environments(store, 1_000, clock) is None
    with Lease(fresh.lease, clock):
        assert needed_by_environments(store, clock.ms, clock) == 0
        assert needed_by_environments(store, clock.ms + 1, clock) is None
        with Lease(dev.lease, clock):
            assert needed_by_environments(store, 1_000, clock) == 0
    # One that cannot be read, or that nobody runs, keeps nothing, and is in nobody's way.
    (dev.manifests / "00000000000000000002.json").write_text("{")
    with Lease(dev.lease, clock):
        assert needed_by_environments(store, 1_000, clock) is None


def test_one_that_nobody_runs_goes_in_time(store: Store) -> None:
    clock = SetClock()
    environment(store, "old", 1, created_ms=1_000)
    environment(store, "new", 1, created_ms=5_000)
    runs = environment(store, "runs", 1, created_ms=1_000)
    with Lease(runs.lease, clock):
        assert remove_dead(store, 3_000, clock) == ["old"]
        assert names_of(store) == ["new", "runs"]
        with pytest.raises(AlreadyRunningError):
            remove(store, "runs", clock)
    remove(store, "runs", clock)
    assert names_of(store) == ["new"]
    assert [folder.name for folder in store.environments.iterdir()] == ["new"]


def test_what_a_killed_removal_has_left_goes_with_the_next_round(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock()
    environment(store, "old", 1, created_ms=1_000)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mview.store.environments.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(store, "old", clock)
    assert names_of(store) == []
    assert [*store.environments.iterdir()]
    assert remove_dead(store, 0, clock) == []
    assert not [*store.environments.iterdir()]


@pytest.mark.parametrize("name", ["", "Dev", "../dev", "a/b", ".dev", "-dev", "a" * 64, "ä", "a b"])
def test_what_no_environment_may_be_called(name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of an environment"):
        check_name(name)
