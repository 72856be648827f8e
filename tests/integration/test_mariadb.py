"""MariaDB -> Debezium -> Kafka -> mview, all real."""

from __future__ import annotations

import pytest

from tests.integration import scenario
from tests.integration.shop import open_shop
from tests.seeds import of_today

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    # A minute or so on a quiet machine, many times that on a busy one.
    pytest.mark.timeout(900),
]


def _odd_changes(shop):
    shop.execute("TRUNCATE order_lines")
    shop.execute(
        "INSERT INTO order_lines VALUES (1, 1, 1.5, NULL, 'after'), (2, 1, NULL, NULL, '')"
    )
    shop.execute("REPLACE INTO customers VALUES (1, 'replaced', NULL)")
    shop.execute(
        "INSERT INTO orders VALUES (2, 3, NULL, NULL) ON DUPLICATE KEY UPDATE customer_id = 4"
    )


@pytest.mark.long
@pytest.mark.parametrize("encoding", of_today(["json", "avro"], 2))
def test_crashes_and_odd_changes_leave_no_trace(
    spark, request, mariadb, kafka, debezium, tmp_path, encoding
):
    if encoding == "avro":
        settings = {"registry": request.getfixturevalue("registry")}
    else:
        json = "org.apache.kafka.connect.json.JsonConverter"
        settings = {
            f"{part}.converter{setting}": value
            for part in ("key", "value")
            for setting, value in (("", json), (".schemas.enable", "true"))
        }
    with open_shop(
        "mariadb", mariadb, kafka, debezium, customers=60, orders=200, **settings
    ) as shop:
        scenario.crashes_and_odd_changes_leave_no_trace(
            shop, tmp_path, debezium, _odd_changes, resend=True
        )
