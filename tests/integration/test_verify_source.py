"""`verify --source --repair` on real servers: what went past the log is named, and comes right."""

from __future__ import annotations

from contextlib import closing, contextmanager

import pytest

from mview.admin.against_source import verify_tables
from mview.admin.content import published
from mview.relation import RelationId
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.scenario import VIEWS
from tests.integration.shop import Writer, open_shop
from tests.integration.test_own_log import is_equal
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

TABLES = [RelationId("table", name, "shop") for name in ("customers", "orders", "order_lines")]

#: Rows lost, rows more, rows otherwise; the writer leaves the last customers alone.
FAULTS = (
    "DELETE FROM order_lines WHERE order_id % 17 = 3",
    "UPDATE order_lines SET amount = amount + 1 WHERE order_id % 13 = 5",
    "INSERT INTO order_lines VALUES (900000, 1, 7.25, NULL, 'behind')",
    "UPDATE customers SET name = 'behind' WHERE id >= 55",
)


@contextmanager
def opened(kind, request):
    """A shop, and what runs statements that the connector does not get."""
    servers = map(request.getfixturevalue, (kind, "kafka", "debezium"))
    with open_shop(kind, *servers, customers=60, orders=200) as shop:
        if kind == "mariadb":
            yield shop, ["SET sql_log_bin = 0"], []
            return
        of = f"ALTER PUBLICATION {shop.database} SET (publish = '{{}}')"
        yield shop, [of.format("truncate")], [of.format("insert, update, delete, truncate")]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_what_went_past_the_log_comes_right(spark, request, tmp_path, kind):
    with opened(kind, request) as (shop, before, after):
        config, views = make_project(tmp_path, {"shop": shop}, VIEWS, engine={"chunk_rows": 100})
        with Running(config, views) as run:
            run.until_live()
            built = {name: view.built_epoch for name, view in published(config).views.items()}
            # Before others write: in PostgreSQL their changes would go past the log, too.
            with closing(shop.connect()) as connection, closing(connection.cursor()) as cursor:
                for statement in (*before, *FAULTS, *after):
                    cursor.execute(statement)
                    connection.commit()
            with Writer(shop) as writer:
                first = verify_tables(config, TABLES)
                assert [result.equal for result in first] == [False, True, False], first
                assert [result.undecided for result in first] == [0, 0, 0]
                assert first[0].differing == 5
                mended = verify_tables(config, TABLES, repair=True)
                assert all(result.equal for result in mended), mended
                assert mended[0].repaired == 5
                writer.stop()
            wait_until(lambda: is_equal(shop, config), "the views", PATIENCE, run.check)
            now = {name: view.built_epoch for name, view in published(config).views.items()}
        assert now == built
