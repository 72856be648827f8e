"""Killed while tables are loaded: their database, and the run itself, whose batch is replayed."""

from __future__ import annotations

import pytest

from mview.epoch.report import EpochReport
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.scenario import VIEWS
from tests.integration.shop import open_shop
from tests.integration.truth import Copy, check_all_epochs
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
]

#: Have the connectors come back soon after their database.
CONNECTOR = {
    "mariadb": {"connect.keep.alive.interval.ms": "1000"},
    "postgresql": {"retriable.restart.connector.wait.ms": "500"},
}


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_it_is_waited_for_and_every_epoch_is_right(spark, request, kind, kafka, debezium, tmp_path):
    server = request.getfixturevalue(kind)
    size = {"customers": 60, "orders": 200}
    with open_shop(kind, server, kafka, debezium, **size, **CONNECTOR[kind]) as shop:
        copy = Copy(shop)
        engine = {"chunk_rows": 20, "chunks_per_epoch": 1}
        config, views = make_project(tmp_path, {"shop": shop}, VIEWS, engine=engine)

        def change(number: int) -> None:
            """Changes of all tables, of keys too; then wait until the connector has sent them."""
            before = {table: ends(table) for table in ("customers", "orders", "order_lines")}
            shop.execute(f"UPDATE customers SET name = 'after {number}' WHERE id % 7 = {number}")
            shop.execute(f"UPDATE order_lines SET amount = {number} WHERE order_id % 9 = {number}")
            shop.execute(f"DELETE FROM order_lines WHERE order_id = {number + 20}")
            shop.execute(f"UPDATE orders SET id = {number + 5_000} WHERE id = {number + 40}")
            for table, count in before.items():
                debezium.wait_for(shop.topic(table), count + 1)

        def ends(table: str) -> int:
            return sum(kafka.end_offsets(shop.topic(table)).values())

        def waits() -> int:
            return sum("waiting for it, attempt" in text for text in run.messages)

        with Running(config, views) as run:
            run.until_reading()
            change(1)
            server.kill()
            wait_until(waits, "an attempt", PATIENCE, run.check)
            assert len(run.loaded) < 3, "it was killed after the load"
            server.restart()
            change(2)
            run.until_live()
            for number in (3, 4, 5, 6):
                if number == 5:
                    server.kill()
                    server.restart()
                change(number)
                run.until_all_is_read({"shop": shop})
        # Each wait is told; they are few, for a server that was away for seconds.
        assert 1 <= waits() <= 12
        told = next(text for text in run.messages if "waiting for it" in text)
        assert "failed while" in told
        assert "until 10 minutes are over" in told
        assert check_all_epochs(config, [copy], views) > 3


class FailsInItsLoad(Running):
    """Runs something when a load is planned; fails when a batch is published that has changes.

    Spark does not know of it then, as after a kill, and replays it.

    Args:
        planned: called before the first table is planned.
        batches: it fails in the last of so many.
    """

    def __init__(self, *given, planned, batches, **more):
        super().__init__(*given, **more)
        self._planned, self._left = planned, batches

    def on_message(self, text: str) -> None:
        super().on_message(text)
        if text.startswith("planning the load of") and not self._is_planned:
            self._is_planned = True
            self._planned()

    _is_planned = False

    def on_epoch(self, epoch: EpochReport) -> None:
        super().on_epoch(epoch)
        self._left -= bool(epoch.changes)
        if not self._left:
            raise RuntimeError("published, but Spark does not know")


@pytest.mark.parametrize("batches", [1, 3])
def test_a_load_from_a_broker_that_is_killed_is_replayed(
    spark, postgresql, kafka, debezium, tmp_path, batches
):
    """What the batch held is in the merge's state again: the rows of chunks do not come over it."""
    with open_shop("postgresql", postgresql, kafka, debezium, customers=60, orders=200) as shop:
        copy = Copy(shop)
        engine = {"chunk_rows": 40, "chunks_per_epoch": 2, "max_changes": 40}
        config, views = make_project(tmp_path, {"shop": shop}, VIEWS, engine=engine)

        def change() -> None:
            tables = ("customers", "orders", "order_lines")
            before = {table: sum(kafka.end_offsets(shop.topic(table)).values()) for table in tables}
            shop.execute("UPDATE customers SET name = 'overtaken'")
            shop.execute("UPDATE orders SET id = id + 5000 WHERE id % 50 = 7")
            shop.execute("DELETE FROM order_lines WHERE order_id % 20 = 3")
            for table, count in before.items():
                debezium.wait_for(shop.topic(table), count + 1)

        with FailsInItsLoad(config, views, planned=change, batches=batches) as run:
            error = run.failure()
        assert "Spark does not know" in str(error)
        assert len(run.loaded) < 3, "it failed after the load"
        assert any(epoch.changes for epoch in run.epochs)
        # No view was built, so the store has none yet.
        with Running(config, views) as run:
            run.until_all_is_read({"shop": shop})
        assert check_all_epochs(config, [copy], views) >= 1
