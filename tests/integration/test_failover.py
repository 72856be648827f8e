"""A MariaDB that fails over to its replica, and one that lacks what was read; all real."""

from __future__ import annotations

import pytest

from mview.errors import DataLostError
from mview.ingest.mending.rereads import RereadLog, RereadRequest
from mview.relation import RelationId
from mview.store.layout import Store
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.scenario import VIEWS
from tests.integration.shop import Writer
from tests.integration.test_own_log import OwnShop, is_equal
from tests.services.mariadb import MariadbServer
from tests.services.process import free_port, wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
]


@pytest.fixture
def two(tmp_path):
    servers = [MariadbServer(tmp_path / str(number), number) for number in (1, 2)]
    servers[1].follow(servers[0])
    yield servers
    for server in servers:
        server.kill()


def written(shop, seed):
    with Writer(shop, seed) as writer:
        writer.until(30)


def test_a_run_and_a_new_start_go_on_by_gtid(spark, two, tmp_path):
    """The primary dies and its replica answers at its address, then at another one."""
    first, second = two
    first.execute("CREATE DATABASE shop")
    shop = OwnShop("mariadb", first, "shop", None, customers=60, orders=200)
    shop.create()

    def project():
        return make_project(tmp_path, {"shop": shop}, VIEWS, engine={"chunk_rows": 100})

    config, views = project()
    address = first.port
    with Running(config, views) as run:
        run.until_live()
        written(shop, 1)
        wait_until(lambda: is_equal(shop, config), "the views", PATIENCE, run.check)
        epochs = len(run.epochs)
        second.until_at(first)
        second.promote()
        first.kill()
        second.restart_at(address)
        shop.server = second
        written(shop, 2)
        wait_until(lambda: is_equal(shop, config), "the views", PATIENCE, run.check)
        assert len(run.epochs) > epochs
        assert not run.loaded - {"shop.customers", "shop.orders", "shop.order_lines"}
    told = [text for text in run.messages if "halt" in text]
    assert told == []
    # The old primary, without what was written since, is no replacement.
    first.port = free_port()
    first.restart()
    shop.server = first
    config, _ = project()
    with Running(config, []) as run:
        error = run.failure()
    assert isinstance(error, DataLostError)
    assert "which was read, is not in its log" in str(error)
    assert "mview drop" in str(error)
    # As soon as it has all of it, a new start goes on there.
    first.execute("SET GLOBAL gtid_slave_pos = @@gtid_binlog_pos")
    first.follow(second)
    first.until_at(second)
    first.promote()
    RereadLog(Store(config.store).rereads).ask(RereadRequest(RelationId.of("shop.orders")))
    with Running(config, []) as run:
        written(shop, 3)
        wait_until(lambda: is_equal(shop, config), "the views", PATIENCE, run.check)
        wait_until(
            lambda: any("as its database has it" in text for text in run.messages),
            "the chunks",
            PATIENCE,
            run.check,
        )
        assert is_equal(shop, config)
        assert not run.loaded
