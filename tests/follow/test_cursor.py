"""Cursors: put if absent, so that of two runners one is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mview.errors import CorruptionError, FencedError
from mview.follow.cursor import Cursor, CursorLog, Intent
from mview.follower import Step


def test_what_is_written_is_read(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "c")
    assert log.latest() == Cursor()
    intent = Intent(Step("a-1", 5, 3, 10), {"id": "a-1", "files": ["x"]})
    for cursor in (Cursor(3, "a", 1), Cursor(3, "a", 2, intent=intent), Cursor(5, "a-1", 2, 9, 8)):
        log.write(cursor)
        assert CursorLog(tmp_path / "c").latest() == cursor
    assert len(log.numbers()) == 3
    log.write(Cursor())
    assert log.numbers() == [2, 3, 4]


def test_a_runner_that_was_paused_is_told(tmp_path: Path) -> None:
    old, new = CursorLog(tmp_path), CursorLog(tmp_path)
    old.write(Cursor(1))
    new.latest()
    for epoch in range(2, 8):
        new.write(Cursor(epoch))
    with pytest.raises(FencedError, match="another runner"):
        old.write(Cursor(2))  # its number is free again, and is not the newest
    assert CursorLog(tmp_path).latest().epoch == 7
    newest = CursorLog(tmp_path)
    newest.latest()
    newest.write(Cursor(8))
    with pytest.raises(FencedError, match="another runner"):
        new.write(Cursor(9))


def test_steps_are_known_within_bounds_and_not_of_a_time_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mview.follow.cursor._STEPS_BYTES", 40)
    log = CursorLog(tmp_path)
    log.write(Cursor(9))
    assert [*log.noted()] == []
    for number in range(20):
        log.note(f"step-{number:02}")
    # At least the last one of the two files is full.
    assert [*log.noted()] == [f"step-{number}" for number in (18, 19, 12, 13, 14, 15, 16, 17)]
    log.go_back(log.latest(), 9)
    assert [*log.noted()]
    log.go_back(log.latest(), 8)
    assert [*log.noted()] == []
    assert log.latest() == Cursor()


def test_a_torn_file_counts_for_nothing(tmp_path: Path) -> None:
    log = CursorLog(tmp_path)
    log.write(Cursor(1))
    log.write(replace(Cursor(2), rows=5))
    newest = sorted(tmp_path.glob("*.json"))[-1]
    newest.write_bytes(newest.read_bytes()[:20])
    again = CursorLog(tmp_path)
    assert again.latest().epoch == 1
    again.write(Cursor(3))
    assert CursorLog(tmp_path).latest().epoch == 3
    for file in tmp_path.glob("*.json"):
        file.write_bytes(b"")
    with pytest.raises(CorruptionError, match="no cursor"):
        CursorLog(tmp_path).latest()


def test_who_looks_on_finds_newer_files_than_it_has_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run beside it: a commit of a sink writes two, and three are kept."""
    sink, reader = CursorLog(tmp_path), CursorLog(tmp_path)
    for epoch in range(4):
        sink.write(Cursor(epoch))
    numbers, more = CursorLog.numbers, iter([4, 5, 6, 7])

    def late(log: CursorLog) -> list[int]:
        listed = numbers(log)
        if log is reader:
            for epoch in more:
                sink.write(Cursor(epoch))
        return listed

    monkeypatch.setattr(CursorLog, "numbers", late)
    assert reader.latest().epoch == 7
