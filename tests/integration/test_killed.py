"""A database that is killed while its tables are loaded, and while their changes are followed."""

from __future__ import annotations

import pytest

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
