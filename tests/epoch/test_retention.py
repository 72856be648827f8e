"""What stays readable: by time, thinned out, and what readers need of the views' tables."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from mview_connectors.sinks.delta import DeltaSink

from mview.admin.content import manifest_at
from mview.catalog.definitions import digest_of, save_definition
from mview.clock import DAY_MS, WallMs
from mview.config import EngineSettings
from mview.connector import SinkTarget
from mview.delta import log as delta_log
from mview.epoch.retention import Retention, outdated
from mview.errors import CorruptionError, UserError
from mview.files.numbered import numbered
from mview.notebook.project import Project
from mview.plan.definition import parse_view
from mview.store.history import ManifestLog
from mview.store.identity import claim_store, store_id
from mview.store.layout import Store
from mview.store.manifest import Manifest, ViewState
from tests.conftest import small_config
from tests.connectors.sinks_contract import SinkContract, delta_of

MINUTE, HOUR = 60_000, 3_600_000
NOW = 1_800_000_000_000
SCHEMA = SinkContract.SMALL


def test_every_epoch_then_one_a_minute_then_one_an_hour() -> None:
    rng = random.Random(7)
    times, ms = {}, NOW - 9 * DAY_MS
    while ms < NOW:
        times[len(times) + 1] = ms
        ms += rng.randrange(1, 20_000)
    gone = outdated(times, NOW, 2 * HOUR, 7 * DAY_MS)
    kept = {epoch: at for epoch, at in times.items() if epoch not in gone}
    assert all(epoch in kept for epoch, at in times.items() if at > NOW - 10 * MINUTE)
    dense = sum(at > NOW - 10 * MINUTE for at in kept.values())
    assert len(kept) <= dense + 113 + 7 * 24 + 2
    # As of any whole hour of the last week there is the epoch that was true then.
    for hours in range(1, 7 * 24):
        asked = (NOW // HOUR - hours) * HOUR
        true = max(epoch for epoch, at in times.items() if at < asked)
        assert max(epoch for epoch, at in kept.items() if at < asked) == true
    for minutes in range(11, 119):
        asked = (NOW // MINUTE - minutes) * MINUTE
        true = max(epoch for epoch, at in times.items() if at < asked)
        assert max(epoch for epoch, at in kept.items() if at < asked) == true
    # What was true a week ago is kept, and nothing before it.
    assert sum(at < NOW - 7 * DAY_MS for at in kept.values()) == 1
    # Again and again is the same as once, and time goes on.
    assert not outdated(kept, NOW, 2 * HOUR, 7 * DAY_MS)
    assert outdated(kept, NOW + 30 * DAY_MS, 2 * HOUR, 7 * DAY_MS) == set(kept) - {
        max(kept),
        sorted(kept)[-2],
    }


def test_the_only_epoch_stays_however_old() -> None:
    assert outdated({1: 0}, NOW, 0, 0) == set()
    assert outdated({1: 0, 2: 1}, NOW, 0, 0) == set()
    assert outdated({1: 0, 2: 1, 3: 2}, NOW, 0, 0) == {1}


class World:
    """A store with one view whose rows say the epoch, one epoch every `step` of its own time."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.config = small_config(folder, engine=EngineSettings(**settings))
        self.log = ManifestLog(self.config.store / "manifest")
        self.settings = self.config.engine
        self.folder = folder / "v"
        self.sink = self.opened()
        self.retention = Retention(self.log, self.settings)
        self.epoch, self.now = 0, NOW

    def opened(self) -> DeltaSink:
        return DeltaSink(
            SinkTarget(
                "v", SCHEMA, "w", {"path": str(self.folder)}, history_ms=self.settings.history
            )
        )

    def run(self, step: int) -> None:
        self.epoch += 1
        self.now += step
        weights = {(1, str(self.epoch)): 1}
        if self.epoch > 1:
            weights[(1, str(self.epoch - 1))] = -1
        facts = self.sink.commit(self.sink.stage(self.epoch, delta_of(SCHEMA, weights)))
        view = ViewState("d", "LINEAR", SCHEMA, facts, 1)
        manifest = Manifest(self.epoch, 1, WallMs(self.now), 1, self.epoch, views={"v": view})
        self.log.publish(manifest)
        if self.epoch % 3:  # of those that were not noted, it reads what they say
            self.retention.note(manifest)

    def clean(self) -> int:
        oldest = self.retention.prune(self.now)
        return self.sink.maintain(oldest.views["v"].sink, self.retention.needed("v"))

    def restart(self) -> None:
        self.sink, self.retention = self.opened(), Retention(self.log, self.settings)

    def read(self, when: int | str) -> list[dict[str, Any]]:
        manifest = manifest_at(self.config, when)
        assert self.opened().rows(manifest.views["v"].sink).to_pylist() == [
            {"k": 1, "g": str(manifest.epoch)}
        ]
        return manifest.epoch


@pytest.mark.parametrize("every", [10, pytest.param(150, marks=pytest.mark.long)])
def test_all_that_is_kept_can_be_read(
    tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "_CHECKPOINT_EVERY", 20)
    world = World(tmp_path, history="3 hours", keep_files="30 min")
    rng = random.Random(every)
    for number in range(1, 300):
        world.run(rng.choice([500, 20_000, 90_000, 200_000]))
        if number % every == 0:
            world.clean()
        if rng.random() < 0.03:
            world.restart()
    world.clean()
    kept = world.log.epochs()
    assert len(kept) < 60
    assert [world.read(epoch) for epoch in kept] == kept
    # Files that a reader of the last half hour has begun with are there, by any reader's way.
    begun = [e for e in kept if world.log.read(e).created_ms > world.now - 30 * MINUTE]
    for epoch in begun:
        version = world.log.read(epoch).views["v"].sink["version"]
        for number in range(version, world.sink._log.head.version + 1):
            table = DeltaTable(tmp_path / "v", version=number)
            assert table.to_pyarrow_table().num_rows == 1
    files = list((tmp_path / "v").glob("*.parquet"))
    assert len(files) < 120
    gone = next(e for e in range(kept[0], kept[-1]) if e not in kept)
    with pytest.raises(UserError, match=rf"(?s)epoch {gone} is not kept.*epoch {kept[0]} \("):
        world.read(gone)


def test_what_is_spared_stays_however_old(tmp_path: Path) -> None:
    world = World(tmp_path, history="3 hours", keep_files="30 min")
    for _ in range(10):
        world.run(1_000)
    world.run(30 * DAY_MS)
    world.retention.prune(world.now, {4})
    assert world.log.epochs() == [4, 10, 11]
    assert world.read(4) == 4
    world.clean()
    assert world.log.epochs() == [10, 11]


def test_a_time_is_the_newest_epoch_up_to_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(4):
        world.run(MINUTE)  # NOW is 2027-01-15 08:00
    assert world.read("2027-01-15 08:02") == 2
    assert world.read("2027-01-15 08:02:59.999") == 2
    assert world.read("2027-01-15T10:03:00+02:00") == 3
    with pytest.raises(UserError, match=r"(?s)2030-01-01 00:00:00 UTC is yet to come"):
        world.read("2030-01-01")
    with pytest.raises(UserError, match=r"(?s)an epoch of 2027-01-15 07:00:00 UTC is not kept"):
        world.read("2027-01-15 07:00")
    with pytest.raises(UserError, match="neither an epoch nor a time"):
        world.read("yesterday")


def test_a_damaged_old_manifest_ends_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(4):
        world.run(MINUTE)
    file = tmp_path / "store" / "manifest" / f"{2:020d}.json"
    file.write_bytes(file.read_bytes().replace(b'"token":1', b'"token":2'))
    world.clean()
    with pytest.raises(CorruptionError, match=r"(?s)0002\.json.*only as_of\(\)"):
        world.read(2)
    assert world.read(4) == 4


def test_a_table_that_was_made_anew_does_not_pass_for_the_old_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(3):
        world.run(MINUTE)
    world.sink.drop()
    again = world.opened()
    for epoch in range(4, 8):
        again.commit(again.stage(epoch, delta_of(SCHEMA, {(epoch, "new"): 1})))
    with pytest.raises(CorruptionError, match="made anew after the epoch"):
        world.read(3)


def test_what_others_vacuum_leaves_the_history(tmp_path: Path) -> None:
    world = World(tmp_path, history="2 days")
    world.run(MINUTE)
    settings = DeltaTable(tmp_path / "v").metadata().configuration
    assert settings["delta.deletedFileRetentionDuration"] == "interval 172800 seconds"
    assert settings["delta.logRetentionDuration"] == "interval 172800 seconds"
    world.sink = DeltaSink(replace(world.sink.target, history_ms=DAY_MS))
    world.run(MINUTE)
    settings = DeltaTable(tmp_path / "v").metadata().configuration
    assert settings["delta.logRetentionDuration"] == "interval 86400 seconds"


def test_a_snapshot_is_one_epoch_of_all_views(tmp_path: Path) -> None:
    world = World(tmp_path)
    claim_store(world.config.store)
    definition = parse_view("SELECT k, g FROM shop.t", "v")
    definition = replace(definition, options={"path": str(world.folder)})
    for name in ("v", "halted"):
        save_definition(Store(world.config.store), replace(definition, name=name))
    target = replace(world.sink.target, store=store_id(world.config.store))
    world.sink = DeltaSink(target)
    world.run(MINUTE)
    digest = digest_of(definition)
    view = replace(manifest_at(world.config, 1).views["v"], definition=digest)
    for epoch in (2, 3):
        weights = {(1, str(epoch - 1)): -1, (1, str(epoch)): 1}
        facts = world.sink.commit(world.sink.stage(epoch, delta_of(SCHEMA, weights)))
        views = {"v": replace(view, sink=facts), "halted": replace(view, stale=True)}
        ms = WallMs(NOW + epoch * MINUTE)
        world.log.publish(Manifest(epoch, 1, ms, 1, epoch, views=views))
        if epoch == 2:
            pinned = Project(world.config).snapshot()
    project = Project(world.config)
    assert project["v"].df()["g"].tolist() == ["3"]
    for snapshot in (pinned, project.at(2), project.at("2027-01-15 08:02:30")):
        assert (snapshot.epoch, list(snapshot)) == (2, ["v"])
        assert snapshot["v"].df()["g"].tolist() == ["2"]
        assert "halted" not in snapshot
    with pytest.raises(UserError, match=r"epoch 9 is not published yet"):
        project.at(9)
    (shown, _) = project.status().views
    assert shown.sink["version"] == 2


def test_what_was_noted_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it count where its file is gone."""
    world = World(tmp_path)
    for _ in range(8):
        world.run(1_000)
    read: list[int] = []

    def noting(epoch: int) -> Manifest:
        read.append(epoch)
        return ManifestLog.read(world.log, epoch)

    monkeypatch.setattr(world.log, "read", noting)
    numbered(world.log.folder, 5).unlink()
    oldest = world.retention.prune(world.now)
    assert read == [3, 6, oldest.epoch]
    assert list(world.retention._kept) == [1, 2, 3, 4, 6, 7, 8]


def test_what_is_noted_does_not_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a sink's cleaning hangs: older ones are read then."""
    monkeypatch.setattr("mview.epoch.retention._NOTED", 2)
    world = World(tmp_path)
    for _ in range(8):
        world.run(1_000)
    assert len(world.retention._noted) == 2
    world.retention.prune(world.now)
    assert list(world.retention._kept) == list(range(1, 9))
