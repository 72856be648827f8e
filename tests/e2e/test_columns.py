"""Columns that no view uses are not read; a view that uses one more has its table loaded anew."""

from __future__ import annotations

import pytest

from mview.admin.content import StoredView
from mview.admin.drop import drop
from mview.errors import UserError
from mview.plan.definition import ViewDefinition
from mview.schema import TableSchema
from mview.store.history import ManifestLog
from mview.store.layout import Store
from tests.e2e.running import live, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth
from tests.relations import rel

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def shop(new_shop: Shop) -> Shop:
    return new_shop


def views(names: str) -> list[ViewDefinition]:
    every = views_of(
        ids="select id from shop.orders where id % 2 = 0",
        each="select id, customer_id from shop.orders",
        days="select day, count(*) as n from shop.orders group by day",
        bodies="select * from shop.notes",
    )
    return [view for view in every if view.name in names.split()]


def test_a_column_more_loads_its_table_anew_and_nothing_else(shop: Shop) -> None:
    config = shop.config()

    def schema(table: str) -> TableSchema:
        manifest = ManifestLog(Store(config.store).manifests).latest()
        assert manifest is not None
        return manifest.tables[rel(table)].schema

    shop.heartbeat()
    run_once(config, *views("ids bodies"))
    assert (schema("shop.orders").names, schema("shop.orders").unread) == (
        ("id",),
        ("customer_id", "day"),
    )
    assert schema("shop.notes").unread == ()
    # What is not read may have any value, also in the changelog.
    order = shop.rows("orders")[0]
    odd = {**order, "id": 99_999, "day": "0000-00-00"}
    with live(config) as running:
        shop.log(table="orders", op="insert", after=odd)
        shop.log(table="orders", op="delete", key={"id": 99_999})
        shop.update("orders", order, {**order, "customer_id": 7})
        shop.delete("orders", shop.rows("orders")[3])
        running.to_the_end(shop)
    before = ManifestLog(Store(config.store).manifests).latest()
    assert before is not None

    # A text that Spark refuses changes nothing.
    with pytest.raises(UserError):
        run_once(config, *views_of(bad="select day + struct(1) as x from shop.orders"))
    assert schema("shop.orders").unread == ("customer_id", "day")
    drop(config, ["bad"])

    every = views("ids each days bodies")
    truth = Truth(config, shop, every)
    shop.heartbeat()
    notes = run_once(config, *views("each days"))
    (told,) = [text for text in notes.messages if "is loaded anew: " in text]
    assert told == ("shop.orders is loaded anew: view each uses customer_id, not kept so far")
    newest = truth.check_end()
    assert schema("shop.orders").unread == ()
    assert newest.views["bodies"].built_epoch == before.views["bodies"].built_epoch
    with live(config) as running:
        shop.insert("orders", {"id": 100_000, "customer_id": 1, "day": None})
        shop.delete("orders", shop.rows("orders")[0])
        running.to_the_end(shop)
    truth.check_end()

    # A column that the table got later is there for a new view.
    shop._db.execute("alter table orders add column later integer default 3")
    shop.heartbeat()
    notes = run_once(config, *views_of(newer="select id, later from shop.orders"))
    told = "shop.orders is loaded anew: view newer uses later, not kept so far"
    assert told in notes.messages
    rows = StoredView(config, "newer").arrow().to_pylist()
    assert sorted(row["id"] for row in rows) == sorted(row["id"] for row in shop.rows("orders"))
    assert {row["later"] for row in rows} == {3}
