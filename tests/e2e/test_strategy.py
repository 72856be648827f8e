"""Followed or computed as a whole, epoch by epoch: the views and all that is kept beside them are
the same, also when a run is killed between the two.
"""

from __future__ import annotations

import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mview.admin import verify as stored
from mview.admin.content import StoredView
from mview.admin.status import status
from mview.config import Config
from mview.epoch.views import cost, in_process, whole
from mview.epoch.views.cost import FULL, INCREMENTAL, runs_of
from mview.execute import executors
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import TTL_MS
from mview.store.manifest import Manifest
from mview.store.mirror import Mirror
from tests.chaos.warm import Order, cold
from tests.e2e.running import run_once, views_of
from tests.e2e.shop import Changes, Shop
from tests.e2e.truth import Truth
from tests.ivm.world import Row, to_rows
from tests.seeds import daily

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

VIEWS = {
    # A state table, and a view over it.
    "spent": "select upper(product) as product, count(*) as n, sum(amount) as total"
    " from shop.lines group by upper(product)",
    "sizes": "select n, count(*) as products from spent group by n",
    # The first rows of a part.
    "first_lines": "select order_id, line, amount from shop.lines"
    " order by amount desc, order_id, line limit 5",
    # A part with one value; an index; look-ups; a policy.
    "dearest": "select order_id, line from shop.lines"
    " where amount = (select max(amount) from shop.lines)",
    "thirds": "select distinct month(day) as m, customer_id % 3 as third from shop.orders",
    "named": "select o.id, c.name from shop.orders o join shop.customers c on c.id = o.customer_id",
    "only": "create materialized view only with (policy='incremental_only') as"
    " select product, sum(amount) as total from shop.lines group by product",
}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    (tmp_path / "views").mkdir()
    yield shop
    shop.close()


def kept(config: Config, manifest: Manifest) -> dict[RelationId, Counter[Row]]:
    """What is kept beside the sinks: views that are read, parts, state tables.

    The sum of a group without values is NULL when it is new, and 0 when its values went away.
    """
    store = Store(config.store)
    found = {}
    for name, state in manifest.tables.items():
        rows = to_rows(Mirror(store.mirror(name), state.schema).scan(state))
        if name.kind == "state":
            rows = [tuple(0 if value is None else value for value in row) for row in rows]
        if not name.is_table:
            found[name] = Counter(rows)
    return found


def strategies(manifest: Manifest, epoch: int) -> dict[str, str]:
    """How views and parts were brought up to an epoch."""
    ran = [one for state in manifest.views.values() for one in runs_of(state).items()]
    return {plan: one.strategy for plan, one in ran if one.epoch == epoch}


def change_all(shop: Shop, price: int) -> None:
    """Another amount in every line, and all customers renamed."""
    for number, line in enumerate(shop.rows("lines")):
        shop.update("lines", line, {**line, "amount": f"{price + number % 9}.25"})
    for one in shop.rows("customers"):
        shop.update("customers", one, {**one, "name": f"{one['name']}{price}"})
    shop.heartbeat()


@pytest.mark.long
def test_forced_ways_keep_the_same(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is computed as a whole counts as large here: it comes through files, in pieces."""
    for module in (in_process, whole, stored):
        monkeypatch.setattr(module, "is_small", lambda read, most: False)
    views = views_of(**VIEWS)
    follows = shop.config(strategy="incremental")
    engine = follows.engine.model_copy(update={"strategy": "full"})
    computes = follows.model_copy(update={"store": shop.root / "other", "engine": engine})
    shop.heartbeat()
    changes = Changes(shop, random.Random(daily(11)))
    for _ in range(2):
        newest = []
        for config in (follows, computes):
            run_once(config, *views)
            newest.append(Truth(config, shop, views).check_end())
        one, other = kept(follows, newest[0]), kept(computes, newest[1])
        # Of first rows more are kept than are shown, after a FULL as many as when they were new.
        states = {str(name) for name in one if name.kind == "state"}
        assert {"spent:state", "first_lines:state"} < states
        shown = dict.fromkeys(one.keys() - {RelationId.of("first_lines:state")})
        assert {name: one[name] for name in shown} == {name: other[name] for name in shown}
        for _ in range(12):
            changes.one()
        # Chance may leave a table alone.
        order = shop.rows("orders")[0]
        shop.update("orders", order, {**order, "day": "2031-12-24"})
        shop.heartbeat()
    ran = strategies(newest[1], newest[1].epoch)
    assert {ran.pop(name) for name in [*ran] if name.startswith("only")} == {INCREMENTAL}
    assert set(ran.values()) == {FULL}
    assert {"spent", "sizes", "first_lines", "first_lines:1", "dearest:1", "thirds"} <= set(ran)
    assert set(strategies(newest[0], newest[0].epoch).values()) == {INCREMENTAL}
    for found in stored.verify(computes, views[:2]):
        assert (found.equal, found.rows) == (True, newest[1].views[found.view].rows)
    assert not list((shop.root / "other" / "comparisons").iterdir())


@pytest.mark.days(3)
@pytest.mark.parametrize(
    ("rule", "why"),
    [
        pytest.param({"MANY_ROWS": 10}, "not measured yet", marks=pytest.mark.long),
        (
            {"MANY_ROWS": 1, "REACH": 10**9, "MARGIN": 0.0},
            r"estimated \d+\.\d+ s against \d+\.\d+ s",
        ),
    ],
    ids=["from shares", "from measured times"],
)
def test_most_rows_change_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, rule: Mapping[str, float], why: str
) -> None:
    """Small tables count as large ones here, and a few rows as many.

    Of so few rows a FULL is never cheaper: what was measured decides, but with another margin.
    """
    for name, value in {"SMALL_ROWS": 10, "UNMEASURED_ROWS": 10, **rule}.items():
        monkeypatch.setattr(cost, name, value)
    taken: list[RelationId] = []
    rows_after = executors.Executors.rows_after

    def noted(self: executors.Executors, relation: RelationId, *args: Any) -> pa.Table | None:
        rows = rows_after(self, relation, *args)
        taken.extend([] if rows is None else [relation])
        return rows

    monkeypatch.setattr(executors.Executors, "rows_after", noted)
    config, views = shop.config(), views_of(**VIEWS)
    truth = Truth(config, shop, views)
    shop.heartbeat()
    run_once(config, *views)
    found = {}
    for epochs, what in enumerate(["few", "most", "few again"]):
        line = shop.rows("lines")[epochs]
        if what == "most":
            change_all(shop, 20)
        else:
            shop.update("lines", line, {**line, "amount": "777.25", "product": "new"})
            shop.heartbeat()
        notes = run_once(config)
        newest = truth.check_end()
        found[what] = strategies(newest, newest.epoch)
        told = notes.epochs[-1].views
        assert {name for name, one in told.items() if one.chosen} == {
            name for name in told if found[what][name] == FULL
        }
    assert set(found["few"].values()) == set(found["few again"].values()) == {INCREMENTAL}
    full = {name for name, one in found["most"].items() if one == FULL}
    assert {"spent", "first_lines:1", "dearest:1"} <= full
    assert "only" not in full
    assert newest.views["spent"].facts["costs"]["spent"]["full_rows"] == 48

    (spent,) = [one for one in status(config, epochs=9).views if one.name == "spent"]
    assert [one.strategy for one in spent.runs] == [INCREMENTAL, FULL, INCREMENTAL]
    assert re.fullmatch(rf"100 % of shop\.lines changed, {why}", spent.runs[1].why)
    assert (spent.runs[1].changed, spent.runs[1].read) == (48, 48)
    # It was in memory, and not read again for that.
    assert RelationId.of("shop.lines") in taken


@pytest.mark.days(3)
def test_a_table_that_is_needed_whole(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as large here: the epoch is a full one although `incremental` is forced."""
    monkeypatch.setattr(executors, "WHOLE_ROWS", 3)
    views = views_of(
        below="select o.id as o, c.id as c from shop.orders o"
        " join shop.customers c on c.id < o.customer_id"
    )
    config = shop.config(strategy="incremental")
    truth = Truth(config, shop, views)
    shop.heartbeat()
    run_once(config, *views)
    shop.delete("orders", shop.rows("orders")[3])
    shop.heartbeat()
    notes = run_once(config)
    truth.check_end()
    assert notes.epochs[-1].views["below"].chosen == (
        "FULL this epoch: all rows of shop.customers are needed, too many for the driver"
    )


@pytest.mark.days(3)
def test_rows_that_are_equal_in_order_by(shop: Shop) -> None:
    """A LIMIT may take any of them; what was published and what is kept take the same."""
    config = shop.config(strategy="full")
    views = views_of(some="select order_id, line from shop.lines order by line limit 4")
    shop.heartbeat()
    run_once(config, *views)
    for forced in ("incremental", "full", "incremental"):
        config = shop.config(strategy=forced)
        for row in StoredView(config, "some").arrow().to_pylist()[:2]:
            shop.delete("lines", row)
        shop.heartbeat()
        run_once(config)
        lines = {(row["order_id"], row["line"]) for row in shop.rows("lines")}
        shown = {tuple(row.values()) for row in StoredView(config, "some").arrow().to_pylist()}
        assert len(shown) == 4
        assert shown <= lines
        assert all(line == 0 for _, line in shown)


@pytest.mark.parametrize("point", ["after-views", "after-intent"])
@pytest.mark.long
def test_killed_in_a_full_epoch(shop: Shop, point: str) -> None:
    """The epoch is done again the other way, or goes forward as it was."""
    texts = {name: VIEWS[name] for name in ("spent", "sizes", "first_lines", "dearest")}
    views = views_of(**texts)
    for name, text in texts.items():
        (shop.root / "views" / f"{name}.sql").write_text(text)
    config = shop.config(strategy="incremental")
    truth = Truth(config, shop, views)
    shop.heartbeat()
    run_once(config, *views)
    change_all(shop, 30)
    shop.config(strategy="full")
    killed = cold(Order(shop.root, "once", TTL_MS, fault=point), shop.root / "said")
    assert killed.end() == -signal.SIGKILL, killed.said
    before = ManifestLog(Store(config.store).manifests).latest()
    assert before is not None
    config = shop.config(strategy="incremental")
    run_once(config)
    log = ManifestLog(Store(config.store).manifests)
    # Without a decided epoch, the runner that takes over publishes one without a change first.
    done = next(m for e in log.epochs() if e > before.epoch and strategies(m := log.read(e), e))
    assert strategies(done, done.epoch)["spent"] == (
        FULL if point == "after-intent" else INCREMENTAL
    )
    Changes(shop, random.Random(daily(3))).one()
    change_all(shop, 40)
    run_once(config)
    truth.check_end()
