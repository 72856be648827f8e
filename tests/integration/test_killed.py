"""Killed while tables are loaded: their database, and the run itself, whose batch is replayed."""

from __future__ import annotations

import random
import signal
from collections import Counter

import pytest

from mview.epoch.report import EpochReport
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.mirror import Mirror
from tests.chaos.warm import Order, Warm
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.scenario import VIEWS
from tests.integration.shop import COLUMNS, open_shop
from tests.integration.truth import Copy, check_all_epochs, plain
from tests.relations import rel
from tests.seeds import daily, of_today
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


@pytest.mark.parametrize("kind", of_today(["mariadb", "postgresql"], 2))
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


@pytest.mark.parametrize("batches", of_today([1, 3], 2))
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


#: Milliseconds of the lease of drivers that are killed: the next one has it soon.
_TTL_MS = 1500

#: A kill there takes the epoch back.
_TAKEN_BACK = ("after-mirrors", "after-stage", "after-lease")

#: Two tables, one of which is loaded long before the other.
_SMALL_AND_LARGE = {
    "names": "SELECT id, name, note FROM shop.customers",
    "sums": "SELECT order_id, count(*) AS n, sum(amount) AS total FROM shop.order_lines"
    " GROUP BY order_id",
}


def test_a_load_that_is_killed_in_each_of_its_epochs(postgresql, kafka, debezium, tmp_path):
    """Each driver is killed behind its first epoch, some already before it; the load goes on."""
    chosen = random.Random(daily())
    with (
        open_shop("postgresql", postgresql, kafka, debezium, customers=10, orders=15) as shop,
        Warm(tmp_path / "warm") as warm,
    ):
        copy = Copy(shop)
        engine = {"chunk_rows": 10, "chunks_per_epoch": 1}
        config, views = make_project(tmp_path, {"shop": shop}, _SMALL_AND_LARGE, engine=engine)
        (tmp_path / "views").symlink_to("sql")
        log, killed = ManifestLog(Store(config.store).manifests), []

        def phases():
            latest = log.latest()
            return {} if latest is None else {n: t.phase for n, t in latest.source_tables.items()}

        def run(fault=""):
            order = Order(tmp_path, "once", _TTL_MS, fault=fault)
            return warm.start(order, tmp_path / f"said-{len(killed)}")

        def kill(point):
            number = len(killed)
            shop.execute(
                f"UPDATE customers SET name = 'after {number}' WHERE id % 5 = {number % 5}"
            )
            shop.execute(f"UPDATE order_lines SET amount = {number} WHERE order_id = {number % 15}")
            shop.execute(f"INSERT INTO order_lines VALUES ({100 + number}, 0, 1.5, NULL, 'new')")
            running = run(point)
            assert running.end() == -signal.SIGKILL, f"{point} was not reached: {running.said}"
            killed.append(phases())

        kill("after-plan")
        kill("after-plan>after-publish")
        while "loading" in phases().values():
            assert len(killed) < 100, "the load does not get on"
            if len(killed) % 4 == 0:
                kill(f"after-net>{chosen.choice(_TAKEN_BACK)}")
            kill("after-net>after-publish")
        half = {rel("shop.customers"): "loaded", rel("shop.order_lines"): "loading"}
        assert half in killed, "they were loaded together"

        topics = [shop.topic(table) for table in ("customers", "order_lines")]
        before = {topic: sum(kafka.end_offsets(topic).values()) for topic in topics}
        shop.execute("UPDATE customers SET name = 'last' WHERE id = 1")
        shop.execute("DELETE FROM order_lines WHERE order_id = 2")
        for topic, count in before.items():
            debezium.wait_for(topic, count + 1)
        last = run()
        assert last.end() == 0, last.said
        assert check_all_epochs(config, [copy], views) >= 1
        for relation, state in log.latest().source_tables.items():
            table = relation.name
            mirror = Mirror(Store(config.store).mirror(relation), state.schema)
            names = [name for name in COLUMNS[table] if name in state.schema.names]
            rows = mirror.scan(state).select(names).to_pylist()
            kept = Counter(tuple(map(plain, row.values())) for row in rows)
            there = shop.execute(f"SELECT {', '.join(names)} FROM {table}")
            assert kept == Counter(tuple(map(plain, row)) for row in there)
