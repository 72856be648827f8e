"""A database -> mview, by the server's own log, all real: no Kafka, no connector."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import pytest

import mview
from mview.admin.content import published
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.scenario import VIEWS
from tests.integration.shop import Shop, Writer
from tests.seeds import of_today
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


#: Rows of one statement of a burst: so many are read while the epoch before runs.
_ROWS = 8_000

_SERIES = {
    "postgresql": f"generate_series(1, {_ROWS}) AS s(n)",
    "mariadb": f"(SELECT seq AS n FROM seq_1_to_{_ROWS}) AS s",
}


def burst(shop, number):
    """Five transactions, each over the rows of the one before."""
    first = 10_000 * number
    rows = f"order_id BETWEEN {first} AND {first + _ROWS}"
    insert = f"INSERT INTO order_lines SELECT {first} + n, 1, n, NULL, '' FROM {_SERIES[shop.kind]}"
    for statement in (
        insert,
        f"UPDATE order_lines SET amount = amount + 1 WHERE {rows}",
        f"UPDATE order_lines SET note = 'twice' WHERE {rows}",
        f"DELETE FROM order_lines WHERE {rows} AND amount > 100",
        f"UPDATE order_lines SET line = 2 WHERE {rows}",
    ):
        shop.execute(statement)


@contextmanager
def killed_at_the_end(folder):
    """A run that is killed."""
    with (folder / "said").open("a") as said:
        program = "from mview.cli import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", program, "run", "sql", "-c", "mview.yml"],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.parametrize("shop", of_today(["postgresql", "mariadb"], 2), indirect=True)
def test_a_kill_in_a_burst_loses_nothing(shop, tmp_path):
    """What is read while an epoch runs is not told to the server as published."""
    config, _ = make_project(
        tmp_path, {"shop": shop}, VIEWS, engine={"chunk_rows": 100, "max_changes": _ROWS}
    )

    def is_alive():
        assert process.poll() is None, (tmp_path / "said").read_text()[-3000:]

    def has_epoch(number):
        return published(config).epoch >= number

    for number in (1, 2, 3):
        with killed_at_the_end(tmp_path) as process:
            wait_until(lambda: published(config).views, "the views", 2 * PATIENCE, is_alive)
            before = published(config).epoch
            burst(shop, number)
            # One epoch more of the burst in every life.
            wait_until(partial(has_epoch, before + number), "epochs", PATIENCE, is_alive)
            if number == 3:
                wait_until(lambda: is_equal(shop, config), "the views", PATIENCE, is_alive)
