"""`mview maintain`: the sinks of a store's views, beside a run and without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog.sql import SqlCatalog

from mview.catalog.definitions import digest_of, save_definition
from mview.cli import main
from mview.clock import SystemClock
from mview.config import Config
from mview.config.file import load_config
from mview.follow.followers import Followers
from mview.plan.definition import ViewDefinition, parse_view
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest
from tests.follow.test_source import published
from tests.relations import rel
from tests.store.mirrors import MirrorDriver


class World:
    """A store with a view, a table of Iceberg and a file of SQLite that follow it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lake = f"lake: {{type: iceberg, warehouse: {folder}/lake, every: 0s}}"
        cache = f"cache: {{type: sqlite, url: 'sqlite:///{folder}/cache.db'}}"
        text = f"store: {folder}/data\nsinks:\n  {lake}\n  {cache}\n"
        (folder / "mview.yml").write_text(text)
        self.config: Config = load_config(str(folder / "mview.yml"))
        self.store = Store(self.config.store)
        claim_store(self.store.root)
        sql = "CREATE MATERIALIZED VIEW v WITH (sinks = 'lake, cache') AS SELECT 1"
        self.definition: ViewDefinition = parse_view(sql, "v")
        save_definition(self.store, self.definition)
        self.driver = MirrorDriver(self.store.mirror(rel("v")), 1, chunks=0)
        self.log = ManifestLog(self.store.manifests)

    def publish(self) -> Manifest:
        before = self.driver.state
        while self.driver.state == before:
            self.driver.publish(self.driver.epoch_once())
        manifest = published(self.driver, self.driver.epoch)
        view = replace(manifest.views["v"], definition=digest_of(self.definition))
        latest = self.log.latest()
        self.log.publish(
            replace(manifest, epoch=1 if latest is None else latest.epoch + 1, views={"v": view})
        )
        return manifest

    @contextmanager
    def running(self) -> Iterator[Followers]:
        with Lease(self.store.lease) as lease:
            followers = Followers(
                self.config, [self.definition], lease, SystemClock(), Mask(()), self.fail
            )
            followers.start(self.publish())
            try:
                yield followers
                assert followers.finish() == []
            finally:
                followers.close()

    def fail(self, text: str) -> None:
        raise AssertionError(text)

    def files(self) -> int:
        uri = f"sqlite:///{self.folder}/lake/catalog.db"
        with SqlCatalog("mview", uri=uri) as catalog:
            return int(catalog.load_table(("default", "v")).inspect.files().num_rows)

    def maintain(self, *names: str) -> Result:
        config = str(self.folder / "mview.yml")
        return CliRunner().invoke(main, ["maintain", *names, "-c", config])


def test_sinks_are_maintained_beside_a_run_and_without(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.running() as followers:
        for _ in range(12):
            followers.published(world.publish())
            assert followers.finish() == []
        before = world.files()
        result = world.maintain()
        assert result.exit_code == 0, result.output
        lake, cache = result.stdout.splitlines()
        assert lake.startswith("v, sink lake: files replaced ")
        assert cache == "v, sink cache: nothing was to be done"
        assert world.files() < before
        followers.published(world.publish())
        assert followers.finish() == []
    assert world.maintain("v").exit_code == 0
    shown = json.loads(world.maintain("--json").stdout)
    assert [one["sink"] for one in shown] == ["lake", "cache"]


def test_what_cannot_be_maintained_is_told_and_the_others_are(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert "nothing was published yet" in world.maintain().output
    world.publish()
    result = world.maintain()
    assert result.exit_code == 1
    assert result.stdout.count("is not filled yet") == 2
    with world.running():
        pass
    text, data = (tmp_path / "mview.yml").read_text(), str(world.store.root)
    shutil.copytree(data, tmp_path / "copy")
    (tmp_path / "copy.yml").write_text(text.replace(data, f"{tmp_path}/copy"))
    copy = CliRunner().invoke(main, ["maintain", "-c", str(tmp_path / "copy.yml")])
    assert copy.exit_code == 1
    assert copy.stdout.count("belongs to the store that this one is a copy of") == 2
    (tmp_path / "lake" / "catalog.db").unlink()
    result = world.maintain()
    assert result.exit_code == 1
    lake, *_, cache = result.stdout.splitlines()
    assert lake.startswith("v, sink lake: NOT MAINTAINED: ")
    assert cache == "v, sink cache: nothing was to be done"
    assert "did you mean 'v'?" in world.maintain("vv").output


def test_a_runner_that_begins_meanwhile_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mview.admin.mending import maintain as admin

    world = World(tmp_path)
    with world.running():
        pass
    opened: list[int] = []
    real = admin.open_follower

    def opening(*args: Any) -> Any:
        if not opened:  # after the token was read
            with world.running():
                pass
        opened.append(args[-1])
        return real(*args)

    monkeypatch.setattr(admin, "open_follower", opening)
    result = world.maintain()
    assert result.exit_code == 0, result.output
    assert opened[:2] == [1, 2]
