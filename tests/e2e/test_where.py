"""A table of which only some rows are there: views, the copy and its comparison know no others."""

from __future__ import annotations

from random import Random

import pytest
import yaml

from mview.admin.against_source import verify_tables
from mview.admin.content import StoredView
from mview.config import Config
from mview.config.file import load_config
from mview.errors import ConfigError
from tests.e2e.running import live, run_once, views_of
from tests.e2e.shop import Shop
from tests.relations import rel
from tests.seeds import daily

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

WHERE = "customer_id IN (1, 2, 3) AND NOT day = '2024-03-01'"


@pytest.fixture
def shop(new_shop: Shop) -> Shop:
    return new_shop


def configured(shop: Shop, where: str) -> Config:
    settings = yaml.safe_load(shop.config().path.read_text())
    settings["connections"]["shop"]["tables"] = {"orders": {"where": where}}
    file = shop.root / "mview.yml"
    file.write_text(yaml.safe_dump(settings))
    return load_config(file)


def test_rows_that_move_in_and_out(shop: Shop) -> None:
    config = configured(shop, WHERE)
    shop.heartbeat()
    run_once(config, *views_of(some="select id, customer_id as c from shop.orders"))

    def is_right() -> None:
        every = shop.rows("orders")
        inside = [r for r in every if r["customer_id"] in (1, 2, 3) and r["day"] is not None]
        wanted = {(r["id"], r["customer_id"]) for r in inside if r["day"] != "2024-03-01"}
        shown = StoredView(config, "some").arrow().to_pylist()
        assert sorted((r["id"], r["c"]) for r in shown) == sorted(wanted)

    is_right()
    assert StoredView(config, "some").arrow().num_rows
    random = Random(daily())
    with live(config) as running:
        for _ in range(3):
            for _ in range(30):
                old = random.choice(shop.rows("orders"))
                new = {
                    "id": random.choice([old["id"], old["id"], 1000 + random.randrange(9999)]),
                    "customer_id": random.choice([None, 1, 2, 3, 4]),
                    "day": random.choice([None, "2024-02-29", "2024-03-01"]),
                }
                taken = {row["id"] for row in shop.rows("orders")} - {old["id"]}
                kind = random.random()
                if kind < 0.1:
                    shop.delete("orders", old)
                elif kind < 0.3 and new["id"] not in {*taken, old["id"]}:
                    shop.insert("orders", new)
                elif new["id"] not in taken:
                    shop.update("orders", old, new)
            running.to_the_end(shop)
            is_right()
        (result,) = verify_tables(config, [rel("shop.orders")])
        assert result.equal, result
    with pytest.raises(ConfigError, match="another condition"):
        run_once(configured(shop, "customer_id = 1"))
