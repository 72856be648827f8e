"""Views that are kept through parts of their own, and views that stay FULL, end to end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.e2e.running import run_once, views_of
from tests.e2e.shop import Changes, Shop
from tests.e2e.truth import Truth
from tests.seeds import daily

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

#: Expressions as keys have an index, NOT IN has values of its own.
REWRITTEN = {
    "thirds": "select distinct month(day) as m, customer_id % 3 as third from shop.orders",
    "named": "select upper(name) as name, count(distinct segment) as n, max(id) as last"
    " from shop.customers group by upper(name)",
    "unsold": "select code from shop.products"
    " where code not in (select product from shop.lines where amount > 20)",
    "alike": "select o.id as o, c.id as c from shop.orders o"
    " join shop.customers c on o.customer_id % 5 = c.id + 1",
}
FULL = {
    "places": "select order_id, line, rank() over (order by amount, order_id, line) as place"
    " from shop.lines",
    "reached": "with recursive r(n) as (select 1 union all select n + 1 from r where n < 4)"
    " select r.n, count(o.id) as orders from r left join shop.orders o on o.customer_id = r.n"
    " group by r.n",
}


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(tmp_path, size=24)
    yield shop
    shop.close()


def follow(shop: Shop, sql: Mapping[str, str], seed: int, runs: int) -> None:
    config = shop.config()
    views = views_of(**sql)
    truth = Truth(config, shop, views)
    changes = Changes(shop, random.Random(daily(seed)))
    for _ in range(runs):
        shop.heartbeat()
        run_once(config, *views)
        truth.check_end()
        for _ in range(12):
            changes.one()


@pytest.mark.long
def test_every_epoch_equals_the_batch_query(shop: Shop) -> None:
    follow(shop, REWRITTEN | FULL, seed=5, runs=4)


#: The same text several times: their queries may not get into each other's rows.
ALIKE = {
    **{
        f"spent_{number}": "select product, count(*) as n, sum(amount) as total from shop.lines"
        " group by product"
        for number in range(3)
    },
    **{
        f"bought_{number}": "select c.name, l.product, l.amount, o.day from shop.lines l"
        " join shop.orders o on o.id = l.order_id join shop.customers c on c.id = o.customer_id"
        for number in range(3)
    },
    "over": "select n, count(*) as products from spent_1 group by n",
    "both": "select s.product, s.n, o.products from spent_0 s join over o on o.n = s.n",
}


@pytest.mark.long
def test_views_that_are_maintained_at_a_time(shop: Shop) -> None:
    follow(shop, ALIKE, seed=7, runs=8)
