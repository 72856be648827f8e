"""A store whose tables are loaded and whose views are unchanged goes on without a JVM."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mview.admin.content import published
from mview.errors import ConfigError, ExitCode
from mview.session.lazy import Spark
from mview.store.layout import Store
from tests.chaos.warm import Order, Running, cold
from tests.e2e.conftest import SIZE
from tests.e2e.running import live, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth
from tests.seeds import some_today

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

VIEWS = {
    "names": "select id, name from shop.customers where segment is not null",
    "totals": "select product, count(*) as n, sum(amount) as total, max(amount) as most"
    " from shop.lines group by product",
    "priced": "select l.order_id, l.line, p.price from shop.lines l"
    " left join shop.products p on p.code = l.product",
    "over": "select n, count(*) as products from totals group by n",
    "first": "select order_id, line, amount from shop.lines"
    " order by amount desc, order_id, line limit 5",
}

#: All steps of an epoch and of the recovery of one that was decided.
EPOCH = (
    "after-net", "after-mirrors", "after-views", "after-stage", "after-lease", "after-intent",
    "before-sink", "after-sink", "after-commit", "after-publish", "after-clear",
)  # fmt: skip
RECOVERY = (
    "recover-begin", "recover-decided", "recover-committed", "recover-published", "recover-mirror",
    "recover-fenced",
)  # fmt: skip


def no_spark() -> Any:
    raise ConfigError("Java is needed here", hint="this test has none")


@pytest.fixture(scope="module")
def built_shop(
    tmp_path_factory: pytest.TempPathFactory,
    loaded_shop: Callable[[Path], Shop],
    spark: SparkSession,
) -> Callable[[Path], Shop]:
    """Makes a shop in a folder whose views were built by a run that has started Spark, once."""
    folder = tmp_path_factory.mktemp("built")
    shop = loaded_shop(folder / "first")
    config = shop.config()
    shop.heartbeat()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spark, "of_config", lambda config, say: Spark(lambda: spark, slots=2))
        notes = run_once(config, *views_of(**VIEWS))
    # Spark was there for the load; the builds had no need of it either.
    assert {view.executor for epoch in notes.epochs for view in epoch.views.values()} == {"local"}
    shop.close()
    copied = shop.root.rename(folder / "copied")  # as `loaded_shop` has its own
    return lambda root: Shop(root, SIZE, copied)


@pytest.fixture
def shop(
    tmp_path: Path, built_shop: Callable[[Path], Shop], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    """A shop whose views are built; it is said when a run starts Spark."""
    shop = built_shop(tmp_path)
    monkeypatch.setattr(Spark, "of_config", lambda config, say: Spark(no_spark, say, slots=2))
    yield shop
    shop.close()


def change(shop: Shop, number: int) -> None:
    shop.insert("customers", {"id": 1000 + number, "name": "new", "segment": "gold"})
    (old, *_) = shop.rows("lines")
    shop.update("lines", old, {**old, "amount": f"{90 + number}.10"})
    shop.insert("lines", {"order_id": 500 + number, "line": 1, "product": "x", "amount": "1.00"})
    shop.delete("lines", shop.rows("lines")[-2])
    shop.heartbeat()


def test_changes_are_taken_in_process(shop: Shop) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    before = published(config)
    assert set(before.views) == set(VIEWS)
    executors: set[str] = set()
    for number in range(3):
        change(shop, number)
        notes = run_once(config)
        executors |= {view.executor for epoch in notes.epochs for view in epoch.views.values()}
    assert executors == {"local"}
    after = Truth(config, shop, views).check_end(before.epoch)
    assert not notes.halts
    for name, state in after.views.items():
        assert state.strategy == before.views[name].strategy
        assert state.schema == before.views[name].schema
        assert state.built_epoch == before.views[name].built_epoch


def test_a_live_run_says_that_spark_cannot_start_and_goes_on(shop: Shop) -> None:
    config = shop.config()
    before = published(config)
    with live(config) as running:
        change(shop, 1)
        running.to_the_end(shop)
        running.until(lambda: any("without Spark" in text for text in running.notes.messages))
        change(shop, 2)
        running.to_the_end(shop)
    Truth(config, shop, views_of(**VIEWS)).check_end(before.epoch)


def test_what_needs_spark_ends_the_run_and_no_view_halts(shop: Shop) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    before = published(config)
    with pytest.raises(ConfigError, match="Java is needed"):
        run_once(config, *views_of(more="select count(*) as n from shop.orders"))
    change(shop, 1)
    with pytest.raises(ConfigError, match="Java is needed"):
        run_once(shop.config(executor="spark"))
    assert published(config).views == before.views
    run_once(shop.config())
    Truth(config, shop, views).check_end(before.epoch)


def test_what_was_kept_of_views_is_asked_for_where_it_is_damaged(shop: Shop) -> None:
    config = shop.config()
    kept = Store(config.store).analyses
    kept.write_bytes(kept.read_bytes()[:-20])
    change(shop, 1)
    with pytest.raises(ConfigError, match="Java is needed"):
        run_once(config)


class Apart:
    """Runs in processes that find no Java."""

    def __init__(self, shop: Shop) -> None:
        self._root, self._runs = shop.root, 0
        (shop.root / "views").mkdir()
        (shop.root / "views" / "names.sql").write_text(VIEWS["names"])
        (shop.root / "nowhere").mkdir()

    def run(self, fault: str = "") -> Running:
        """Take what is there; it has ended."""
        self._runs += 1
        nowhere = str(self._root / "nowhere")
        order = Order(self._root, "once", 60_000, fault=fault, java=nowhere)
        running = cold(order, self._root / f"said-{self._runs}")
        running.end()
        return running


@pytest.mark.parametrize("point", some_today([*EPOCH, *RECOVERY], 6))
def test_a_kill_is_recovered_without_java(shop: Shop, point: str) -> None:
    config, apart = shop.config(), Apart(shop)
    before = published(config)
    change(shop, 1)
    if point.startswith("recover-"):
        decided = "after-stage" if point == "recover-begin" else "after-intent"
        assert apart.run(decided).code == -signal.SIGKILL
    killed = apart.run(point)
    assert killed.code == -signal.SIGKILL, killed.said
    recovered = apart.run()
    assert recovered.code == ExitCode.OK, recovered.said
    after = Truth(config, shop, views_of(**VIEWS)).check_end(before.epoch)
    assert not [name for name, state in after.views.items() if state.stale]
