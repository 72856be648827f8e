"""Reading while a run commits, compacts and deletes, and while another one takes the store over."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mview.notebook.project import Project
from tests.epoch import runners
from tests.epoch.runners import Runner, SetClock, offset_of

#: Epochs of each runner.
EPOCHS = 60


def work(root: Path, failures: list[BaseException]) -> None:
    """Two runners one after the other: the first one dies, the second one takes over."""
    try:
        clock = SetClock()
        for _ in range(2):
            runner = Runner(root, clock).start()
            for number in range(EPOCHS):
                clock.ms += 10
                runner.epoch()
                if number % 7 == 6:
                    runner.upkeep_round()
            runner.upkeep.close()
            runner.die()
    except BaseException as error:
        failures.append(error)


def test_every_reader_has_one_cut_and_every_change_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "TTL_MS", 20_000)  # else all that was is old when one has died
    first = Runner(tmp_path, SetClock()).start()
    project, failures = Project(first.config), []
    for _ in range(6):
        first.epoch()
    first.upkeep.close()
    first.stop()
    begin = project.snapshot()
    thread = threading.Thread(target=work, args=[tmp_path, failures])
    thread.start()
    seen: list[int] = []
    cuts = 0
    steps = begin["v"].follow(seconds=0.5)
    following = threading.Thread(
        target=lambda: seen.extend(key for step in steps for key in step.arrow["id"].to_pylist())
    )
    following.start()
    while thread.is_alive():
        now = project.snapshot()
        rows = offset_of(now._manifest)
        expected = [*range(1, rows + 1)]
        table = now.table("shop.t")
        assert sorted(now["v"].arrow()["id"].to_pylist()) == expected
        assert sorted(table.arrow()["id"].to_pylist()) == expected
        assert len(now["v"]) == len(table) == rows
        older = project.at(max(now.epoch - 5, begin.epoch))
        since = offset_of(older._manifest)
        log = table.changes(older.epoch)
        came = sorted(now["v"].changes(older.epoch)["id"])
        assert log["id"].tolist() == came == expected[since:]
        assert set(log["__kind"]) <= {"+I"}
        cuts += 1
    thread.join()
    following.join()
    assert not failures, failures[0]
    assert cuts > 3
    assert seen == [*range(7, 2 * EPOCHS + 7)]
    assert begin["v"].arrow()["id"].to_pylist() == [*range(1, 7)]
