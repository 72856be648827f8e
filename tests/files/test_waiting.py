"""What is known of a file system that lets wait: a mean that follows it, up and down."""

from __future__ import annotations

from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest

from mview.files import waiting
from mview.files.waiting import Waiting


def clocks(monkeypatch: pytest.MonkeyPatch, waited: float, computed: float) -> None:
    """Calls of a second or so, of which some is computing."""
    wall, own = count(0, waited + computed), count(0, computed)
    clock = SimpleNamespace(monotonic=partial(next, wall), thread_time=partial(next, own))
    monkeypatch.setattr(waiting, "time", clock)


def test_waits_make_it_long_and_it_fades(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Waiting(0.5)
    assert not disk.is_long
    clocks(monkeypatch, waited=1, computed=0)
    assert [disk.timed(str, 7) for _ in range(3)] == ["7"] * 3
    assert not disk.is_long
    disk.timed(str, 7)
    assert disk.is_long
    for _ in range(9):
        disk.fade()
    assert not disk.is_long


def test_one_that_is_quick_again_is_known_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Waiting(0.5)
    clocks(monkeypatch, waited=10, computed=0)
    disk.timed(str)
    clocks(monkeypatch, waited=0, computed=0)
    for _ in range(7):
        assert disk.is_long
        disk.timed(str)
    assert not disk.is_long


def test_computing_is_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Waiting(0.5)
    clocks(monkeypatch, waited=0.1, computed=100)
    for _ in range(9):
        disk.timed(str)
    assert not disk.is_long


def test_what_fails_has_waited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Waiting(0.5)
    clocks(monkeypatch, waited=9, computed=0)
    with pytest.raises(ValueError, match="x"):
        disk.timed(int, "x")
    assert disk.is_long


def test_a_pause_is_soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour in which the process was stopped, in the middle of a call."""
    disk = Waiting(0.5)
    clocks(monkeypatch, waited=3600, computed=0)
    disk.timed(str)
    for _ in range(80):
        disk.fade()
    assert not disk.is_long
