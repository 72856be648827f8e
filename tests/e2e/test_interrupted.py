"""A load that is stopped between two of its tables goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mview.admin.content import StoredView
from mview.admin.drop import drop
from mview.admin.pauses import pause_loads, resume_loads
from mview.admin.status import status
from mview.admin.verify import verify
from mview.errors import DecodeError, UserError
from mview.run.pipeline import EpochReport, Pipeline
from mview.store.history import ManifestLog
from mview.store.layout import Store
from tests.e2e.running import Notes, live, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth
from tests.relations import rel

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

VIEWS = {
    "bodies": "select id, body from shop.notes",
    "totals": "select product, count(*) as n from shop.lines group by product",
}


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(tmp_path, size=24)
    yield shop
    shop.close()


@pytest.mark.parametrize("views", [{}, {"one": "select 1 as one"}])
def test_without_any_table_there_is_nothing_to_keep(shop: Shop, views: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"nothing to keep fresh.*reads a table"):
        run_once(shop.config(), *views_of(**views))


@pytest.mark.long
def test_a_small_table_is_loaded_when_the_load_is_stopped(shop: Shop) -> None:
    config = shop.config(chunk_rows=4, chunks_per_epoch=1)
    views = views_of(**VIEWS)
    truth = Truth(config, shop, views)
    log = ManifestLog(Store(config.store).manifests)

    def phases() -> list[str]:
        latest = log.latest()
        return [] if latest is None else [t.phase for _, t in sorted(latest.tables.items())]

    with shop.busy(pause=0.02):
        with live(config, *views) as running:
            running.until(lambda: phases() == ["loading", "loaded"])
        assert phases() == ["loading", "loaded"], "it was stopped too late to show anything"
        loading = log.latest()
        assert set(loading.views) <= {"bodies"}, "it may be built by now"
        run_once(config, *views)
    assert set(truth.check().views) == set(VIEWS)
    assert status(config).epoch > loading.epoch


@pytest.mark.long
def test_a_load_that_is_paused_stays_so_over_a_restart_and_ends_right(shop: Shop) -> None:
    """Changes are followed on meanwhile, and the rest is read when it goes on."""
    config = shop.config(chunk_rows=4, chunks_per_epoch=1)
    views, lines = views_of(**VIEWS), rel("shop.lines")
    truth, log = Truth(config, shop, views), ManifestLog(Store(config.store).manifests)

    def released() -> int:
        latest = log.latest()
        return (
            0
            if latest is None or lines not in latest.tables
            else len(latest.tables[lines].released)
        )

    def handed(notes: Notes) -> list[str]:
        return [load.held for load in notes.loads if load.table == "shop.lines"]

    with shop.busy(pause=0.02):
        with live(config, *views) as running:
            running.until(lambda: released() > 1)
            pause_loads(config, ["shop.lines"], print)
            running.until(lambda: any(handed(running.notes)))
            epochs = len(running.notes.epochs)
            running.until(lambda: len(running.notes.epochs) > epochs + 3)
        before = released()
        with live(config, *views) as running:
            running.until(lambda: any(handed(running.notes)))
            # What reads other tables keeps nobody waiting: it is built, and followed.
            running.until(lambda: set(log.latest().views) == {"bodies"})  # type: ignore[union-attr]
            running.epochs("bodies", 2)
            epochs = len(running.notes.epochs)
            running.until(lambda: len(running.notes.epochs) > epochs + 8)
            # What was read before the pause counts in time; nothing more is read.
            assert before <= released() <= before + 2
            (told,) = [table for table in status(config).tables if table.name == "shop.lines"]
            assert (told.phase, told.held[:7]) == ("loading", "paused;")
            resume_loads(config, ["shop.lines"])
            running.until(lambda: "totals" in log.latest().views)  # type: ignore[union-attr]
        assert "shop.lines: read on" in running.notes.messages
    run_once(config, *views)
    assert set(truth.check().views) == set(VIEWS)


@pytest.mark.long
def test_what_the_errors_of_messages_advise_helps(shop: Shop) -> None:
    """A bad message stays in its log: only what begins after it gets past it."""
    config = shop.config()
    views = views_of(**VIEWS)
    shop.heartbeat()
    run_once(config, *views)

    # A value that does not fit: the other table goes on where it was.
    shop.log(table="notes", op="insert", after={"id": 1, "body": 5})
    shop.insert("notes", {"id": 1, "body": "five"})
    shop.insert("lines", {"order_id": 99, "line": 0, "product": "p", "amount": "1.00"})
    with pytest.raises(UserError, match="cannot hold the value"):
        run_once(config)
    run_once(config, *views)
    assert StoredView(config, "bodies").arrow().to_pylist() == [{"id": 1, "body": "five"}]
    assert [result.equal for result in verify(config, views)] == [True, True]

    # A message of which nobody knows the table: all that the log brings is loaded anew.
    shop.append("{oops")
    shop.insert("notes", {"id": 2, "body": "two"})
    with pytest.raises(DecodeError, match="not JSON") as caught:
        run_once(config)
    assert "`mview drop` the tables that it brings" in str(caught.value.hint)
    drop(config, ["shop.notes", "shop.lines"])
    run_once(config, *views)
    shop.insert("notes", {"id": 3, "body": "three"})
    run_once(config)
    assert set(StoredView(config, "bodies").arrow()["id"].to_pylist()) == {1, 2, 3}
    assert [result.equal for result in verify(config, views)] == [True, True]


class FailsAfterItsFirstBatch(Notes):
    """Changes a table when its load is planned, and fails when the first batch is published."""

    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self._shop = shop

    def on_message(self, text: str) -> None:
        super().on_message(text)
        if text == "planning the load of shop.lines":
            line = self._shop.rows("lines")[0]
            self._shop.update("lines", line, {**line, "amount": "7.77"})

    def on_epoch(self, epoch: EpochReport) -> None:
        super().on_epoch(epoch)
        if "shop.lines" in epoch.changes:
            raise RuntimeError("published, but Spark does not know")


@pytest.mark.days(5)
def test_the_first_batch_of_a_load_is_replayed_after_it_was_published(shop: Shop) -> None:
    """What it held is in the merge's state again: rows of chunks that it overtook stay out."""
    config, views = shop.config(), views_of(**VIEWS)
    notes = FailsAfterItsFirstBatch(shop)
    with pytest.raises(RuntimeError, match="published, but Spark"):
        Pipeline(config, views, listener=notes).run(once=True)
    assert notes.epochs[-1].changes["shop.lines"] == 1
    shop.heartbeat()
    run_once(config, *views)
    Truth(config, shop, views).check_end()
