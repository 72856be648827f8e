"""A drop takes what is named, and our copies of tables only where that is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from mview.admin.drop import drop, going
from mview.admin.status import status
from mview.failpoints import armed
from mview.files import durable
from mview.store.layout import Store
from mview.store.requests.asked import keep_asked
from tests.epoch.runners import TABLE, VIEW, Runner, SetClock

NAME = str(TABLE)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(durable, "force", lambda path: None)
    runner = Runner(tmp_path, SetClock()).start()
    runner.epoch()
    runner.stop()
    return runner


def test_tables_stay_unless_they_are_to_go(runner: Runner) -> None:
    before = status(runner.config)
    (table,), (view,) = before.tables, before.views
    what = going(runner.config, [VIEW])
    assert (what.views, what.tables) == ({VIEW: view.rows}, {})
    assert what.unread == {NAME: table.rows}
    assert status(runner.config).views, "nothing is dropped by asking"
    drop(runner.config, [VIEW])
    left = status(runner.config)
    assert not left.views
    assert [kept.name for kept in left.tables] == [NAME]
    assert going(runner.config, [NAME]).tables == {NAME: table.rows}
    drop(runner.config, [NAME])
    assert not status(runner.config).tables


def test_tables_that_no_view_reads_go_along(runner: Runner) -> None:
    what = going(runner.config, [VIEW], with_tables=True)
    assert set(what.tables) == {NAME}
    assert not what.unread
    drop(runner.config, [VIEW], with_tables=True)
    left = status(runner.config)
    assert not left.views
    assert not left.tables


def test_what_is_built_anew_after_a_table_is_told(runner: Runner) -> None:
    what = going(runner.config, [NAME])
    assert (what.views, set(what.tables), what.rebuilt) == ({}, {NAME}, [VIEW])
    drop(runner.config, [NAME])
    left = status(runner.config)
    assert [view.name for view in left.views] == [VIEW]
    assert not left.tables


def test_a_drop_that_is_cut_short_leaves_no_view_that_is_asked_for(runner: Runner) -> None:
    keep_asked(Store(runner.config.store), [VIEW, "later"])

    def cut() -> None:
        raise InterruptedError

    with armed("drop-published", cut), pytest.raises(InterruptedError):
        drop(runner.config, [VIEW])
    assert status(runner.config).unbuilt == ("later",)
