"""Hudi as a sink: the contract, read by hudi-rs, which shares no code with what writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.hudi.follower import HudiFollower
from mview_connectors.followers.hudi.settings import HudiSettings

from mview.follower import Follower, FollowerSettings, FollowerTarget
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.view import Row
from tests.connectors.worker_followers import WorkerFollowerContract, WorkerHarness
from tests.services.hudi import read_hudi, slices_of

pytestmark = [pytest.mark.service, pytest.mark.usefixtures("hudi")]


class HudiHarness(WorkerHarness):
    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options = folder, options

    def settings(self, **options: Any) -> FollowerSettings:
        return HudiSettings(
            type="hudi", path=str(self.folder), **{"history": "0s", **self.options, **options}
        )

    def open(self, target: FollowerTarget) -> Follower:
        return HudiFollower(target)

    def place(self, target: FollowerTarget) -> Path:
        return self.folder / target.table

    def read(self, target: FollowerTarget) -> list[Row] | None:
        return read_hudi(self.place(target), target.schema.arrow)

    def foreign(self, target: FollowerTarget) -> bool:
        other = HudiFollower(target)
        other._call("make", options={})
        other.close()
        return True

    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        copy = self.folder.with_suffix(".copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)

        def restore() -> None:
            shutil.rmtree(self.folder)
            shutil.copytree(copy, self.folder)

        return restore

    def pieces(self, target: FollowerTarget) -> int:
        return slices_of(self.place(target))

    def files(self, target: FollowerTarget) -> set[Path]:
        return {
            file
            for file in self.place(target).iterdir()
            if file.suffix == ".parquet" or ".log." in file.name
        }

    def drop(self, target: FollowerTarget) -> bool:
        shutil.rmtree(self.place(target))
        return True


class TestHudi(WorkerFollowerContract, FollowerContract):
    steps, share = 20, 4

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return HudiHarness(tmp_path / "lake")
