"""PostgreSQL -> Debezium -> Kafka -> light mode -> PostgreSQL, all real, without Spark."""

from __future__ import annotations

import pytest

from mview.admin.status import status
from mview.admin.verify import verify
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.scenario import Held
from tests.integration.shop import Writer, open_shop
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
]

VIEW = """
CREATE MATERIALIZED VIEW shipped WITH (mode = 'light', sinks = 'there') AS
SELECT line AS nr, order_id AS number, amount * 100 AS cents, shipped, note
FROM shop.order_lines WHERE shipped IS NOT NULL OR amount > 0
"""


def test_a_table_is_synchronised_while_it_changes(postgresql, kafka, debezium, tmp_path):
    """Loads under a writer and open transactions; the connector is killed and sends all again."""
    with (
        postgresql.new_database() as serving,
        open_shop("postgresql", postgresql, kafka, debezium, customers=60, orders=1500) as shop,
    ):
        offsets = debezium.note_offsets()
        given = postgresql.settings(serving)
        url = f"postgresql://{given['username']}@{given['host']}:{given['port']}/{serving}"
        there = {"type": "postgresql", "url": url, "password": f"${{file:{tmp_path}/shop.secret}}"}
        config, views = make_project(
            tmp_path,
            {"shop": shop},
            {"shipped": VIEW},
            engine={"chunk_rows": 200, "max_changes": 60},
            sinks={"there": there},
        )

        def phase() -> str:
            lights = status(config).lights
            return lights[0].phase if lights else ""

        with Writer(shop, rate=100) as writer:
            early, late = (Held(shop, number) for number in range(2))
            with Running(config, views) as run:
                wait_until(lambda: phase() == "loading", "the load", PATIENCE, run.check)
                early.commit()
                wait_until(lambda: phase() == "live", "the end of the load", PATIENCE, run.check)
                live_after = writer.transactions
                late.commit()
                debezium.crash(offsets)
                writer.until(live_after + 100)
        assert live_after > 20, "nothing was written while the table was loaded"
        with Running(config, views) as run:
            wait_until(lambda: verify(config, views)[0].equal, "all changes", PATIENCE, run.check)
        assert status(config).lights[0].error == ""
