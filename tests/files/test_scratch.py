"""Folders that a process writes to for itself, and what is left of those that were killed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mview.files.scratch import ScratchFolder

_PREFIX = "mview-test-scratch-"
_HOLDER = f"""
import sys, time
from mview.files.scratch import ScratchFolder
folder = ScratchFolder({_PREFIX!r})
(folder.path / "spilled").write_bytes(b"x" * 1000)
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_only_its_user_may_look_into_it_and_it_goes_with_what_is_in_it() -> None:
    folder = ScratchFolder(_PREFIX)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "more").mkdir()
    folder.close()
    assert not folder.path.exists()


def test_those_in_use_stay_and_that_of_a_killed_process_goes(tmp_path: Path) -> None:
    mine = ScratchFolder(_PREFIX)
    with subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        other = Path(holder.stdout.readline().decode().strip())
        assert other.parent == tmp_path
        ScratchFolder(_PREFIX).close()
        assert mine.path.exists()
        assert (other / "spilled").exists()
        holder.send_signal(signal.SIGKILL)
    ScratchFolder(_PREFIX).close()
    assert not other.exists()
    assert mine.path.exists()
    mine.close()


def test_a_fork_deletes_nothing() -> None:
    folder = ScratchFolder(_PREFIX)
    if (child := os.fork()) == 0:
        folder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.path.exists()
    folder.close()


def test_a_name_that_is_not_of_a_scratch_folder_stays(tmp_path: Path) -> None:
    (tmp_path / f"{_PREFIX}notes").mkdir()
    (tmp_path / f"{_PREFIX}linked").mkdir()
    (tmp_path / "kept").write_text("kept")
    (tmp_path / f"{_PREFIX}linked" / "in-use").symlink_to(tmp_path / "kept")
    ScratchFolder(_PREFIX).close()
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{_PREFIX}notes",
        f"{_PREFIX}linked",
        "kept",
    }


def test_without_locks_there_is_a_folder_that_nobody_else_deletes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        folder = ScratchFolder(_PREFIX)
    ScratchFolder(_PREFIX).close()
    assert folder.path.exists()
    folder.close()
    assert not folder.path.exists()
