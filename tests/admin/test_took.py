"""What epochs took is kept for people: within bounds, and nothing fails by it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mview.admin.explore import took
from mview.admin.explore.took import KeptTook, TookLog
from mview.clock import WallMs
from mview.epoch.report import EpochReport
from mview.store.layout import Store


class SetClock:
    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now(self) -> WallMs:
        return WallMs(self.ms)


CLOCK = SetClock(1_700_000_000_000)


def note(log: TookLog, *epochs: int) -> None:
    for epoch in epochs:
        log.on_epoch(EpochReport(epoch, 10 * epoch, None, {"shop.orders": 1}, stages={"net": 0.5}))


def kept(store: Store, *epochs: int) -> list[int]:
    """Those of which it is known."""
    told = KeptTook(store)
    return [epoch for epoch in epochs if told.of(epoch, CLOCK.ms) is not None]


def test_the_newest_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    log = TookLog(store, CLOCK)
    note(log, 1)
    (file,) = (tmp_path / "logs").iterdir()
    monkeypatch.setattr(took, "_FULL", 3 * file.stat().st_size - 1)
    note(log, *range(2, 8))
    assert kept(store, *range(1, 9)) == [4, 5, 6, 7]
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "logs").iterdir()} == {0}


def test_an_epoch_of_before_is_another_one(tmp_path: Path) -> None:
    note(TookLog(Store(tmp_path), CLOCK), 3)
    told = KeptTook(Store(tmp_path))
    for published, known in ((0, True), (-59_000, True), (-61_000, False), (1, False)):
        assert (told.of(3, CLOCK.ms + published) is not None) is known, published


def test_a_line_that_was_torn_hides_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    note(TookLog(store, CLOCK), 1)
    with (tmp_path / "logs" / "epochs.jsonl").open("ab") as file:
        file.write(b'{"epoch": 2, "no\n{"epoch": "x"}\n\xff\n')
    note(TookLog(store, CLOCK), 3)
    with (tmp_path / "logs" / "epochs.jsonl").open("ab") as file:
        file.write(b'{"epoch": 4, "no')
    note(TookLog(store, CLOCK), 5, 6)
    assert kept(store, 1, 2, 3, 4, 5, 6) == [1, 3, 5, 6]


def test_a_store_that_was_taken_away_is_not_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    note(TookLog(store, CLOCK), 1)
    assert not store.root.exists()
    store.root.mkdir()
    (store.root / "logs").touch()
    note(TookLog(store, CLOCK), 1)
    assert kept(store, 1) == []
    shutil.rmtree(store.root)


def test_only_the_newest_are_looked_at_where_that_is_asked(tmp_path: Path) -> None:
    store = Store(tmp_path)
    note(TookLog(store, CLOCK), *range(1, 101))
    told = KeptTook(store, 10)
    known = [epoch for epoch in range(1, 101) if told.of(epoch, CLOCK.ms) is not None]
    assert known == [*range(known[0], 101)]
    assert 5 < len(known) <= 10
