"""Who may read what mview writes: nobody, but for a view's table at a path of the user."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from mview_connectors.sinks.delta import DeltaSink

from mview.cli import main
from mview.connector import SinkTarget
from mview.delta.actions import table_actions
from mview.delta.log import DeltaLog
from mview.delta.parquet import write_parquet
from mview.files.durable import put
from mview.files.modes import private_files
from tests.connectors.sinks_contract import SinkContract, delta_of

SCHEMA = SinkContract.SMALL


@pytest.fixture(params=[0o000, 0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of the user."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> set[tuple[str, int]]:
    """Modes of a folder, and of all in it, by kind."""
    return {
        ("folder" if one.is_dir() else "file", one.lstat().st_mode & 0o777)
        for one in (folder, *folder.rglob("*"))
    }


def fill(folder: Path, epochs: int, *, private: bool) -> None:
    for epoch in range(1, epochs + 1):
        sink = DeltaSink(SinkTarget("v", SCHEMA, "w", {"path": str(folder)}, private=private))
        facts = sink.commit(sink.stage(epoch, delta_of(SCHEMA, {(epoch, "a"): 1})))
    sink.maintain(facts, ())


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs have a checkpoint after ten commits."""
    monkeypatch.setattr("mview.delta.log._CHECKPOINT_EVERY", 10)


@pytest.mark.usefixtures("often")
def test_a_table_of_the_store_is_private(tmp_path: Path, umask: int) -> None:
    with private_files():
        fill(tmp_path / "views" / "v" / "data", 2, private=True)
        log = DeltaLog(tmp_path / "tables" / "t")
        schema = pa.schema([("id", pa.int64())])
        log.commit([], [], {"mview": "x"}, table=table_actions(schema))
        rows = pa.table({"id": [1]}, schema)
        for n in range(15):
            log.commit([write_parquet(log.folder, f"{n}.parquet", rows)], [], {"mview": "x"})
        log.clean(15)
        assert (log.folder / "_delta_log" / "_last_checkpoint").exists()
        put(tmp_path / "specs" / "a.json", b"{}")
    for name in ("views", "tables", "specs"):
        assert modes(tmp_path / name) == {("folder", 0o700), ("file", 0o600)}
    assert os.umask(umask) == umask


@pytest.mark.usefixtures("often")
def test_a_table_elsewhere_is_for_those_whom_the_umask_lets_in(tmp_path: Path, umask: int) -> None:
    with private_files():
        fill(tmp_path / "out" / "v", 13, private=False)
    assert list((tmp_path / "out" / "v" / "_delta_log").glob("*.checkpoint.parquet"))
    folder, file = 0o777 & ~umask, 0o644 & ~umask
    assert modes(tmp_path / "out") == {("folder", folder), ("file", file)}


def test_a_folder_that_was_there_says_who_reads_its_files(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v").chmod(0o750)
    with private_files():
        fill(tmp_path / "v", 2, private=False)
    assert modes(tmp_path / "v") == {("folder", 0o750), ("file", 0o640)}


def test_a_log_folder_that_is_made_again_is_for_the_same_readers(tmp_path: Path) -> None:
    """Somebody has deleted it while a runner had the table open."""
    (tmp_path / "v").mkdir()
    (tmp_path / "v").chmod(0o750)
    with private_files():
        log = DeltaLog(tmp_path / "v")
        log.commit([], [], {"mview": "x"}, table=table_actions(pa.schema([("id", pa.int64())])))
        shutil.rmtree(log.folder / "_delta_log")
        log.commit([], [], {"mview": "y"})
    assert modes(tmp_path / "v") == {("folder", 0o750), ("file", 0o640)}


def test_every_command_writes_private_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def status(config: object, epochs: int) -> None:
        seen.append(os.umask(0o077))
        raise KeyboardInterrupt

    monkeypatch.setattr("mview.admin.status.status", status)
    (tmp_path / "mview.yml").write_text("store: store\n")
    before = os.umask(0o022)
    try:
        CliRunner().invoke(main, ["status", "-c", str(tmp_path / "mview.yml")])
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert seen == [0o077]
