from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mview.delta.actions import table_actions
from mview.delta.log import DeltaLog
from mview.delta.parquet import write_parquet
from mview.files import durable
from mview.files.waiting import Waiting
from mview.store.history import IntentLog, ManifestLog
from mview.store.manifest import Manifest


@pytest.fixture(autouse=True, params=["quick", "slow"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that lets wait, or not: files are forced side by side, or one after the other."""
    long = -1 if request.param == "slow" else 1e9
    monkeypatch.setattr(durable, "_waiting_for_disk", Waiting(long))


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
        IntentLog(tmp_path / "intent").write(manifest, {})
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


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system cannot be asked to begin")
def test_the_disk_begins_with_all_small_files_before_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable.settle()
    asked: list[tuple[str, Path]] = []

    def of(handle: int) -> Path:
        return Path(f"/proc/self/fd/{handle}").readlink()

    fsync, advise = os.fsync, os.posix_fadvise
    monkeypatch.setattr(
        os, "fsync", lambda handle: asked.append(("force", of(handle))) or fsync(handle)
    )
    monkeypatch.setattr(
        os,
        "posix_fadvise",
        lambda handle, *rest: asked.append(("begin", of(handle))) or advise(handle, *rest),
    )
    small = [tmp_path / "a" / "1", tmp_path / "b" / "2"]
    large, gone = tmp_path / "b" / "large", tmp_path / "a" / "gone"
    for file in small:
        durable.write_whole(file, b"x")
    durable.write_whole(large, bytes(durable._SMALL + 1))
    for file in [*small, large, gone]:
        durable.later(file)
    durable.settle()
    assert {path for what, path in asked if what == "begin"} == set(small)
    assert [what for what, _ in asked] == ["begin"] * 2 + ["force"] * 5
    assert {path for what, path in asked if what == "force"} == {
        *small, large, tmp_path / "a", tmp_path / "b"
    }  # fmt: skip
    assert large.stat().st_size == durable._SMALL + 1


def test_what_cannot_be_forced_is_waited_for_by_the_next(
    tmp_path: Path, forced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / str(number) for number in range(20)]
    for file in files:
        durable.later(file)

    def refuses(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "force", refuses)
        with pytest.raises(OSError, match="Input/output"):
            durable.settle()
    durable.settle()
    assert sorted(forced) == sorted([tmp_path, *files])


def test_the_rest_is_forced_side_by_side_once_the_disk_lets_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: list[Path]
) -> None:
    class Disk(Waiting):
        def timed(self, call: Any, *args: Any) -> Any:
            call(*args)
            self._mean = 1.0 if len(forced) == 3 else 0.0

    known = Disk(0.5)
    monkeypatch.setattr(durable, "_waiting_for_disk", known)
    threads = []
    monkeypatch.setattr(
        durable, "_force_all", lambda paths: threads.append(list(paths)) or forced.extend(paths)
    )
    files = {tmp_path / str(number) for number in range(9)}
    for file in files:
        durable.later(file)
    durable.settle()
    assert sorted(forced) == sorted({*files, tmp_path})
    assert sum(map(len, threads)) == 7
    assert known._mean < 1


def test_a_file_is_replaced_as_a_whole_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plans" / "t.json"
    durable.put(file, b"old")
    durable.put(file, b"newer")
    assert file.read_bytes() == b"newer"

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "force", full)
    with pytest.raises(OSError, match="No space"):
        durable.put(file, b"newest")
    with pytest.raises(OSError, match="No space"):
        durable.put_if_absent(tmp_path / "plans" / "u.json", b"first")
    assert [(f.name, f.read_bytes()) for f in file.parent.iterdir()] == [("t.json", b"newer")]


def test_who_takes_over_sweeps_what_is_written_aside(tmp_path: Path) -> None:
    """A writer that is between writing and linking fails by it."""
    file = tmp_path / "0.json"

    def taken_over() -> None:
        durable.sweep(tmp_path, lambda: None)

    with pytest.raises(FileNotFoundError):
        durable.put_if_absent(file, b"late", check=taken_over)
    assert list(tmp_path.iterdir()) == []
    assert durable.put_if_absent(file, b"first")
    assert not durable.put_if_absent(file, b"second")
    assert file.read_bytes() == b"first"


def test_a_name_whose_answer_was_lost_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system that asks its server again says that the name is there."""
    link = os.link

    def lost(old: Path, new: Path) -> None:
        link(old, new)
        raise FileExistsError(new)

    monkeypatch.setattr(os, "link", lost)
    assert durable.put_if_absent(tmp_path / "0.json", b"first")
    assert not durable.put_if_absent(tmp_path / "0.json", b"first")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"first"]

    def gone(old: Path, new: Path) -> None:
        raise FileExistsError(new)

    monkeypatch.setattr(os, "link", gone)
    assert not durable.put_if_absent(tmp_path / "1.json", b"other")


def test_nothing_in_the_store_is_written_in_place() -> None:
    """All small files go by `durable`; what else writes has a reason."""
    root = Path(durable.__file__).parents[1]
    allowed = {
        "files/durable.py",
        "epoch/halts.py",  # tries whether the disk is full
        "java/jars.py",  # downloads
        "execute/spark/copies.py",  # copies on executors, not in the store
        "cli/demo/command.py",
        "notebook/svg.py",  # a picture, where its user wants it
        "failpoints.py",  # a test's note that a fault was met, not in the store
    }
    writes = re.compile(r"write_text\(|write_bytes\(|open\(\"[wa]b?\"\)")
    found = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        if writes.search(file.read_text())
    }
    assert found <= allowed
