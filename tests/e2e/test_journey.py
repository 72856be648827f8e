"""A store's whole life: load under change, live, restart, more views, more tables, other views.

After each part every published epoch of every view is held against the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mview.admin.content import StoredView
from mview.admin.drop import drop
from mview.admin.verify import verify
from mview.errors import UserError
from tests.e2e.running import live, run_once, views_of
from tests.e2e.shop import CODES, Shop
from tests.e2e.truth import Truth

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.days(3),
    pytest.mark.timeout(900),
]

LINEAR = "select id, upper(name) as name from shop.customers where segment is not null"
JOINED = (
    "select l.order_id, l.line, c.name, p.price, l.amount from shop.lines l"
    " join shop.orders o on o.id = l.order_id"
    " left join shop.customers c on c.id = o.customer_id"
    " left join shop.products p on p.code = l.product"
)
TOTALS = (
    "select c.segment, count(*) as n, sum(l.amount) as total from shop.customers c"
    " join shop.orders o on o.customer_id = c.id join shop.lines l on l.order_id = o.id"
    " group by c.segment"
)
EXTREMES = (
    "select o.day, min(l.amount) as low, max(l.amount) as high, count(distinct l.product) as codes"
    " from shop.orders o join shop.lines l on l.order_id = o.id group by o.day"
)
#: No key leads from a change to its rank: it is recomputed.
RANKED = "select code, price, rank() over (order by price, code) as place from shop.products"
WHOLE = "select count(*) as n, max(amount) as high from shop.lines"
COPIES = "select segment, name from shop.customers"

STRATEGIES = {
    "linear": "LINEAR",
    "copies": "LINEAR",
    "joined": "AFFECTED_KEYS",
    "totals": "SELF_MAINTAINED",
    "extremes": "AFFECTED_KEYS",
    "ranked": "FULL",
    "whole": "SELF_MAINTAINED",
}


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(tmp_path, size=40)
    yield shop
    shop.close()


@pytest.fixture
def loaded(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    yield shop
    shop.close()


@pytest.mark.parametrize("executor", ["auto", pytest.param("spark", marks=pytest.mark.long)])
def test_load_and_live_under_change(shop: Shop, executor: str) -> None:
    config = shop.config(executor=executor)
    views = views_of(
        linear=LINEAR,
        copies=COPIES,
        joined=JOINED,
        totals=TOTALS,
        extremes=EXTREMES,
        ranked=RANKED,
        whole=WHOLE,
    )
    truth = Truth(config, shop, views)
    with shop.busy(seed=1):
        run_once(config, *views)
    loaded = truth.check()
    assert {name: state.strategy for name, state in loaded.views.items()} == STRATEGIES
    with shop.busy(seed=2), live(config, *views) as running:
        running.epochs("joined", 4)
    went_on = truth.check(loaded.epoch)
    assert went_on.epoch >= loaded.epoch + 4
    run_once(config)  # the store knows its views
    done = truth.check_end(went_on.epoch)
    ran = {name: state.facts["executor"] for name, state in done.views.items()}
    assert executor == "auto" or set(ran.values()) == {"spark"}
    assert executor == "spark" or (ran["joined"], ran["ranked"]) == ("local", "local")
    assert all(result.equal for result in verify(config, views))


@pytest.mark.days(5)
def test_spark_joins_rows_that_never_changed(loaded: Shop) -> None:
    """What a look-up finds in base files only: no changes stand in the tail."""
    shop = loaded
    config, views = shop.config(executor="spark"), views_of(joined=JOINED)
    truth = Truth(config, shop, views)
    shop.heartbeat()
    run_once(config, *views)
    before = truth.check_end()
    shop.insert("lines", {"order_id": 5, "line": 7, "product": CODES[3], "amount": "1.10"})
    shop.heartbeat()
    run_once(config)
    after = truth.check_end(before.epoch)
    assert after.views["joined"].rows == before.views["joined"].rows + 1


@pytest.mark.long
def test_in_process_only(loaded: Shop) -> None:
    shop = loaded
    config = shop.config(executor="local")
    views = views_of(copies=COPIES, joined=JOINED, extremes=EXTREMES)
    truth = Truth(config, shop, views)
    with shop.busy(seed=4):
        run_once(config, *views)
    with shop.busy(seed=5), live(config) as running:
        running.epochs("joined", 4)
    run_once(config)
    done = truth.check_end()
    assert done.views["joined"].facts["executor"] == "local"


@pytest.mark.days(5)
def test_views_and_tables_come_and_go(shop: Shop) -> None:
    """More views over loaded tables, over a new table, over views; other text; drop, and again."""
    config = shop.config()
    first = views_of(linear=LINEAR)
    keyed = "create materialized view {} with (key='id') as select id, {} from {}"
    middle = keyed.format("middle", "name, segment", "shop.customers where id % 2 = 0")
    other = middle.replace("id % 2 = 0", "id % 2 = 1")
    upper = "select segment, count(*) as n from middle group by segment"
    noted = "select n.id, n.body, c.name from shop.notes n join shop.customers c on c.id = n.id"
    second = views_of(middle=middle, copies=COPIES)
    third = views_of(middle=middle, upper=upper, noted=noted)
    changed = views_of(middle=other, upper=upper)
    truth = Truth(config, shop, [*first, *second, *third, *changed])
    run_once(config, *first)

    with live(config, *second) as running:
        with shop.busy(seed=1):
            running.epochs("middle", 3)
        running.to_the_end(shop)
    assert set(truth.check_end().views) == {"linear", "middle", "copies"}
    before = truth.log.latest()

    # The table is loaded while the views that there are go on.
    with live(config, *third) as running:
        with shop.busy(seed=2):
            running.epochs("noted", 2)
        running.to_the_end(shop)
    told = "\n".join(running.notes.messages)
    assert "middle (upper reads it now, so its rows are kept in the store, too)" in told
    now = truth.check_end(before.epoch)
    assert set(now.views) == {"linear", "middle", "copies", "upper", "noted"}
    loading = [
        truth.log.read(epoch)
        for epoch in truth.log.epochs()
        if epoch > before.epoch and "noted" not in truth.log.read(epoch).views
    ]
    assert len({manifest.views["copies"].sink["version"] for manifest in loading}) > 1

    # Another definition is another view: it is built again, with those that read it.
    with shop.busy(seed=3, pause=0.05):
        told = "\n".join(run_once(config, *changed).messages)
    assert "middle (its query changed), upper (it reads middle)" in told
    run_once(config)
    rebuilt = truth.check_end(now.epoch)
    assert rebuilt.views["upper"].built_epoch == rebuilt.views["middle"].built_epoch > now.epoch
    assert rebuilt.views["noted"].built_epoch == now.views["noted"].built_epoch

    # A table that is dropped takes the content of its views along until they are built again.
    with pytest.raises(UserError, match=r"(?s)upper reads middle.*mview drop upper middle"):
        drop(config, ["middle"])
    drop(config, ["middle", "upper", "shop.notes"])
    with pytest.raises(UserError, match="no view 'noted'"):
        StoredView(config, "noted").arrow()
    dropped = truth.log.latest()
    with shop.busy(seed=6, pause=0.05):
        run_once(config)
    run_once(config)
    again = truth.check_end(dropped.epoch)
    assert set(again.views) == {"linear", "copies", "noted"}
    drop(config, ["linear", "copies", "noted"], with_tables=True)
    empty = truth.log.latest()
    assert not empty.views
    assert not empty.tables
    run_once(config, *first)
    assert set(truth.check_end(empty.epoch).views) == {"linear"}
