"""A database -> mview, by the server's own log, all real: no Kafka, no connector."""

from __future__ import annotations

import pytest

import mview
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.scenario import VIEWS
from tests.integration.shop import Shop, Writer
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


class OwnShop(Shop):
    """A shop whose server sends its log itself."""

    def changes(self, **more):
        return {"source": self.kind, "T": "2s", **more}


@pytest.fixture(params=["postgresql", "mariadb"])
def shop(request):
    server = request.getfixturevalue(request.param)
    with server.new_database() as database:
        shop = OwnShop(request.param, server, database, None, customers=60, orders=200)
        shop.create()
        yield shop


def shown(config, view, columns):
    pipeline = mview.connect(config.path)
    rows = pipeline[view].arrow().select(columns).to_pylist()
    return sorted(tuple(map(str, row.values())) for row in rows)


def is_equal(shop, config):
    """Whether the views are what the database has now."""
    lines = "SELECT order_id, line, amount, shipped, note FROM order_lines"
    columns = ["order_id", "line", "amount", "shipped", "note"]
    expected = sorted(tuple(map(str, row)) for row in shop.execute(lines))
    totals = (
        "SELECT o.id, count(*), sum(l.amount) FROM orders o JOIN customers c"
        " ON o.customer_id = c.id JOIN order_lines l ON l.order_id = o.id GROUP BY o.id"
    )
    sums = sorted(tuple(map(str, row)) for row in shop.execute(totals))
    return (
        shown(config, "lines", columns) == expected
        and shown(config, "revenue", ["id", "lines", "total"]) == sums
    )


@pytest.mark.long
def test_a_load_under_changes_a_restart_of_both_and_a_truncate(spark, shop, tmp_path):
    config, views = make_project(
        tmp_path, {"shop": shop}, VIEWS, engine={"chunk_rows": 100, "max_changes": 60}
    )
    with Writer(shop) as writer:
        with Running(config, views) as run:
            run.until_live()
            run.until_epochs(3)
        writer.until(writer.transactions + 20)  # while nobody reads
        with Running(config, []) as run:
            run.until_epochs(2)
            writer.stop()
            wait_until(lambda: is_equal(shop, config), "the views", PATIENCE, run.check)
            shop.server.kill()
            shop.server.restart()
            shop.execute("TRUNCATE order_lines")
            shop.execute("INSERT INTO order_lines VALUES (1, 1, 1.5, NULL, 'after')")
            wait_until(lambda: is_equal(shop, config), "the views", PATIENCE, run.check)
    if shop.kind == "mariadb":
        return
    assert shop.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(1,)]
