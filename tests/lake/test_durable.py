from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from mview.lake import durable
from mview.lake.actions import table_actions
from mview.lake.log import DeltaLog
from mview.lake.parquet import write_parquet
from mview.store.history import IntentLog, ManifestLog
from mview.store.manifest import Manifest


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    durable.settle()
    done: list[Path] = []
    monkeypatch.setattr(durable, "force", done.append)
    return done


@pytest.mark.parametrize("named_by", ["intent", "manifest"])
def test_files_are_on_disk_before_they_are_named(
    tmp_path: Path, forced: list[Path], named_by: str
) -> None:
    log = DeltaLog(tmp_path / "t")
    name = log.new_file("f")
    file = write_parquet(log.folder, name, pa.table({"k": [1]}))
    log.commit([file], [], {"mview": "x"}, table=table_actions(pa.schema([("k", pa.int64())])))
    assert forced == []
    manifest = Manifest(1, 1, 0, 0, 0)
    if named_by == "intent":
        IntentLog(tmp_path / "intent.json").write(manifest, {})
    else:
        ManifestLog(tmp_path / "manifest").publish(manifest)
    commit = log.folder / "_delta_log" / f"{0:020d}.json"
    assert {log.folder / name, log.folder, commit, commit.parent} <= set(forced)
    forced.clear()
    durable.settle()
    assert forced == []


def test_a_file_that_is_gone_needs_nothing(tmp_path: Path) -> None:
    durable.later(tmp_path / "gone" / "x")
    durable.settle()
