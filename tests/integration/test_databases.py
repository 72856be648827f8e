"""A database -> Debezium -> Kafka -> mview, all real: by turns in the everyday lane."""

from __future__ import annotations

import pytest

from tests.integration import scenario
from tests.integration.shop import open_shop
from tests.seeds import some_today

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.days(2),
    # A minute or so on a quiet machine, many times that on a busy one.
    pytest.mark.timeout(900),
]


@pytest.mark.parametrize("kind", some_today(["mariadb", "postgresql"], 2))
def test_every_epoch_is_right_while_tables_change(spark, request, kind, kafka, debezium, tmp_path):
    with open_shop(kind, request.getfixturevalue(kind), kafka, debezium) as shop:
        scenario.every_epoch_is_right_while_tables_change(shop, tmp_path)
