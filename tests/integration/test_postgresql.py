"""PostgreSQL -> Debezium -> Kafka -> mview, all real."""

from __future__ import annotations

import pytest

from tests.integration import scenario
from tests.integration.shop import open_shop

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    # A minute or so on a quiet machine, many times that on a busy one.
    pytest.mark.timeout(900),
]


def _odd_changes(shop):
    # The note is stored out of line (TOAST) and not sent again where it does not change.
    shop.execute("UPDATE customers SET name = 'short' WHERE id < 5")
    shop.execute("UPDATE customers SET name = 'shorter' WHERE id < 5")
    shop.execute("TRUNCATE order_lines")
    shop.execute(
        "INSERT INTO order_lines VALUES (1, 1, 1.5, NULL, 'after'), (2, 1, NULL, NULL, '')"
    )
    # Many rows at one position of the log, more than an epoch takes.
    with (
        shop.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY customers FROM STDIN") as copy,
    ):
        for number in range(10_000, 10_200):
            copy.write_row((number, "copied", None))
    shop.execute("UPDATE orders SET day = NULL WHERE id < 20")


@pytest.mark.long
def test_crashes_and_odd_changes_leave_no_trace(spark, postgresql, kafka, debezium, tmp_path):
    with open_shop("postgresql", postgresql, kafka, debezium, customers=60, orders=200) as shop:
        shop.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        wide = "(SELECT string_agg(md5(n::text || c.id), '') FROM generate_series(1, 200) n)"
        shop.execute(f"UPDATE customers c SET note = {wide} WHERE id < 5")
        scenario.crashes_and_odd_changes_leave_no_trace(
            shop, tmp_path, debezium, _odd_changes, resend=False
        )
