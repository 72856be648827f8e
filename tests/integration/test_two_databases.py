"""One view over two databases: the watermark and the cut span both connections."""

from __future__ import annotations

import pytest

from tests.integration.running import Running, make_project
from tests.integration.shop import Writer, open_shop
from tests.integration.truth import Copy, check_all_epochs

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    # A minute or so on a quiet machine, many times that on a busy one.
    pytest.mark.timeout(900),
]

BOTH = """
CREATE MATERIALIZED VIEW both_shops WITH (key='id') AS
SELECT c.id, c.name, count(*) AS orders, max(o.placed) AS newest
FROM crm.customers c JOIN shop.orders o ON o.customer_id = c.id
GROUP BY c.id, c.name
"""


@pytest.mark.long
def test_every_epoch_is_right_over_both_databases(
    spark, mariadb, postgresql, kafka, debezium, tmp_path
):
    size = {"customers": 300, "orders": 2_000}
    with (
        open_shop("mariadb", mariadb, kafka, debezium, **size) as shop,
        open_shop("postgresql", postgresql, kafka, debezium, **size) as crm,
    ):
        copies = [Copy(shop, "shop"), Copy(crm, "crm")]
        shops = {"shop": shop, "crm": crm}
        engine = {"chunk_rows": 500}
        config, views = make_project(tmp_path, shops, {"both_shops": BOTH}, engine=engine)
        with Writer(shop) as one, Writer(crm, rate=10) as two, Running(config, views) as run:
            run.until_live()
            run.until_epochs(4)
            one.stop()
            run.until_epochs(2)  # one silent database does not stop the other
            two.stop()
            run.until_all_is_read(shops, {"shop": ["orders"], "crm": ["customers"]})
        assert check_all_epochs(config, copies, views) > 5
