"""The stages of an epoch: in order, those with nothing to do left out, each with its time."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from mview.epoch import stages
from mview.epoch.stages import Begun, Stage, run_stages
from mview.files.waiting import Waiting


def test_each_stage_that_has_something_to_do_is_told():
    told = []
    stages = [
        Stage(lambda value: [*value, 1], "net"),
        Stage(lambda value: [*value, 2], "intent", only=lambda value: False),
        Stage(lambda value: [*value, 3], "publish"),
        Stage(lambda value: [*value, 4], "publish"),
    ]
    value = run_stages(stages, [], lambda name, seconds: told.append((name, seconds >= 0)))
    assert value == [1, 3, 4]
    assert told == [("net", True), ("publish", True), ("publish", True)]


def test_a_stage_that_fails_is_not_told():
    told = []
    stages = [Stage(lambda value: value, "net"), Stage(lambda value: 1 // 0, "views")]
    with pytest.raises(ZeroDivisionError):
        run_stages(stages, 0, lambda name, seconds: told.append(name))
    assert told == ["net"]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """What is known of file systems: nothing yet."""
    known = Waiting(0.005)
    monkeypatch.setattr(stages, "_waiting", known)
    return known


def written(few: bool, seconds: float = 0) -> str:
    """The thread that writes something for which a file system takes so long."""

    def write(after: float) -> str:
        time.sleep(after)
        return threading.current_thread().name

    with Begun() as begun:
        return begun.write(few, write, seconds).result()


@pytest.mark.usefixtures("waiting")
def test_few_rows_are_written_at_once() -> None:
    assert written(few=True) == threading.current_thread().name
    assert written(few=False).startswith("mview-write")


def test_files_that_are_waited_for_are_written_side_by_side(waiting: Waiting) -> None:
    here = threading.current_thread().name
    assert written(few=True, seconds=0.1) == here
    assert waiting.is_long
    assert written(few=True).startswith("mview-write")
    for _ in range(400):
        waiting.fade()
    assert written(few=True) == here


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("few", [True, False])
def test_what_cannot_be_written_is_told_to_who_asks(few: bool) -> None:
    def fail(*args: Any) -> None:
        raise OSError("no space")

    with Begun() as begun:
        future = begun.write(few, fail)
    with pytest.raises(OSError, match="no space"):
        future.result()
