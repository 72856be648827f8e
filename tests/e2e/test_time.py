"""Views of the time, end to end: rows expire without input, and a crash keeps the pinned time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mview.admin.content import StoredView
from mview.admin.status import status
from mview.admin.verify import verify
from mview.clock import DAY_MS
from mview.config import Config
from mview.failpoints import FaultError, armed
from mview.plan.definition import ViewDefinition
from mview.store.history import IntentLog, ManifestLog
from mview.store.layout import Store
from tests.e2e.running import Live, live, run_once, views_of
from tests.e2e.shop import Shop

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

VIEWS = {
    "alive": "select id, cast(body as bigint) as until from shop.notes"
    " where cast(body as bigint) > unix_timestamp()",
    "alive_now": "select count(*) as n from alive",
    # Spark takes no subquery in a lambda: FULL, at the pinned time all the same.
    "days": "select id, filter(array(day), d -> d < current_date) as past from shop.orders",
    "today": "select current_date as today, count(*) as orders from shop.orders",
}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    yield shop
    shop.close()


def note(shop: Shop, number: int, seconds: float) -> int:
    """Insert a note; returns until when it is alive, in seconds."""
    until = int(time.time() + seconds)
    shop.insert("notes", {"id": number, "body": str(until)})
    return until


def check_epochs(config: Config) -> list[int]:
    """Hold every epoch against its own pinned time; returns these times."""
    log = ManifestLog(Store(config.store).manifests)
    pinned, notes = [], {}
    for epoch in log.epochs():
        manifest = log.read(epoch)
        pinned.append(manifest.pinned_ms)
        if "alive" not in manifest.views:
            continue
        for row in StoredView(config, "alive", epoch).arrow().to_pylist():
            notes[row["id"]] = row["until"]
            assert row["until"] > manifest.pinned_ms // 1000, (epoch, row)
        rows = StoredView(config, "alive", epoch).arrow()["id"].to_pylist()
        if "alive_now" in manifest.views:
            assert StoredView(config, "alive_now", epoch).arrow()["n"].to_pylist() == [len(rows)]
        # What was inserted stays until its time has come.
        expected = {one for one, until in notes.items() if until > manifest.pinned_ms // 1000}
        assert set(rows) == expected, epoch
    assert pinned == sorted(pinned)
    return pinned


def check_verified(config: Config, *views: ViewDefinition) -> None:
    for result in verify(config, views):
        assert result.equal, result


def wait_until(second: int) -> None:
    time.sleep(max(0.0, second + 0.05 - time.time()))


@pytest.mark.long
def test_a_bounded_run_brings_views_to_the_time(shop: Shop) -> None:
    config, views = shop.config(tick="1 second"), views_of(**VIEWS)
    shop.heartbeat()
    began = time.time()
    run_once(config, *views)
    until = note(shop, 1, 5 + 2 * (time.time() - began))  # the next run builds nothing
    run_once(config, *views)
    assert _alive(config) == {1}, "the second run took twice as long as the first"
    check_verified(config, *views)
    wait_until(until)
    notes = run_once(config, *views)
    assert StoredView(config, "alive").arrow().num_rows == 0
    assert StoredView(config, "alive_now").arrow()["n"].to_pylist() == [0]
    assert all(not epoch.changes for epoch in notes.epochs), "there was no input"
    check_verified(config, *views)
    pinned = check_epochs(config)
    assert all(one % 1000 == 0 for one in pinned)


@pytest.mark.days(2)
@pytest.mark.parametrize("executor", ["auto", pytest.param("spark", marks=pytest.mark.long)])
def test_a_tick_reads_the_rows_that_expire(new_shop: Shop, executor: str) -> None:
    """A note per second, so that a tick passes as many rows as seconds."""
    shop = new_shop
    config = shop.config(tick="1 second", chunk_rows=1000, executor=executor)
    views = views_of(
        kept="select id from shop.notes where id > unix_timestamp()",
        kept_now="select count(*) as n from shop.notes where unix_timestamp() < id and body = 'x'",
    )
    now = int(time.time())
    for second in range(now - 5, now + 900):
        shop.insert("notes", {"id": second, "body": "x"})
    shop.heartbeat()
    run_once(config, *views)
    shop.delete("notes", {"id": now + 890, "body": "x"})
    shop.heartbeat()
    run_once(config, *views)
    log = ManifestLog(Store(config.store).manifests)
    before = log.read(log.epochs()[-1]).pinned_ms // 1000
    wait_until(before + 2)
    run_once(config, *views)
    after = log.read(log.epochs()[-1]).pinned_ms // 1000
    left = set(range(after + 1, now + 900)) - {now + 890}
    assert left, "the runs took more than 900 s"
    assert set(StoredView(config, "kept").arrow()["id"].to_pylist()) == left
    for view in status(config).views:
        # Both ends belong to the band.
        assert [(one.strategy, one.read) for one in view.runs] == [
            ("incremental", after - before + 1 + (view.name == "kept_now"))
        ]
    check_verified(config, *views)


@pytest.mark.days(3)
def test_a_live_run_ticks_by_itself(shop: Shop) -> None:
    config, views = shop.config(tick="1 second"), views_of(alive=VIEWS["alive"])
    shop.heartbeat()
    with live(config, *views) as running:
        running.until(lambda: shop.heartbeat() or _changed(running, "alive"))
        note(shop, 1, 60)
        until = note(shop, 2, 4)
        running.until(lambda: {1} == _alive(config) and time.time() > until)
    check_epochs(config)
    check_verified(config, *views)


def _changed(running: Live, view: str) -> bool:
    return any(view in epoch.views for epoch in running.notes.epochs)


def _alive(config: Config) -> set[int]:
    return set(StoredView(config, "alive").arrow()["id"].to_pylist())


@pytest.mark.days(3)
def test_a_view_of_days_has_a_pinned_day(shop: Shop) -> None:
    config, views = shop.config(), views_of(today=VIEWS["today"], all="select id from shop.orders")
    shop.heartbeat()
    run_once(config, views[1])
    log = ManifestLog(Store(config.store).manifests)
    without = log.epochs()
    assert {log.read(epoch).pinned_ms for epoch in without} == {0}
    run_once(config, *views)
    pinned = {log.read(epoch).pinned_ms for epoch in log.epochs() if epoch not in without}
    assert all(one and one % DAY_MS == 0 for one in pinned)
    check_verified(config, *views)


def ending() -> None:
    raise FaultError("a run ends here")


@pytest.mark.days(3)
def test_a_crash_keeps_the_pinned_time(shop: Shop) -> None:
    config, views = shop.config(tick="1 second"), views_of(alive=VIEWS["alive"])
    shop.heartbeat()
    run_once(config, *views)
    store = Store(config.store)
    log = ManifestLog(store.manifests)
    wait_until(log.read(log.epochs()[-1]).pinned_ms // 1000 + 1)  # the next epoch pins another time
    note(shop, 1, 3600)
    # That a kill leaves no less behind is what tests.chaos is about.
    with armed("after-intent", ending) as ended, pytest.raises(FaultError):
        run_once(config)
    assert ended.is_set()
    intent = IntentLog(store.intents).read(log.epochs()[-1] + 1)
    assert intent is not None
    pending, _ = intent
    assert log.epochs()[-1] == pending.epoch - 1
    assert pending.pinned_ms > log.read(pending.epoch - 1).pinned_ms
    wait_until(pending.pinned_ms // 1000 + 2)
    run_once(config, *views)
    assert log.read(pending.epoch).pinned_ms == pending.pinned_ms
    assert log.read(log.epochs()[-1]).pinned_ms > pending.pinned_ms
    check_epochs(config)
    check_verified(config, *views)
