"""What a changelog can bring, and what must halt a run: with place and reason, nothing lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mview.admin.content import StoredView
from mview.admin.drop import drop
from mview.admin.status import status
from mview.admin.verify import verify
from mview.errors import AlreadyRunningError, DecodeError, UserError
from mview.ingest import live as following
from mview.run.pipeline import Pipeline
from mview.store.history import ManifestLog
from mview.store.layout import Store
from tests.e2e.running import Live, live, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth
from tests.relations import rel

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

VIEWS = {
    "codes": "select code, price from shop.products",
    "spent": "select product, count(*) as n, count(amount) as known, sum(amount) as total"
    " from shop.lines group by product",
    "bodies": "select body, count(*) as n from shop.notes group by body",
    "sold": "select l.order_id, l.line, p.price from shop.lines l"
    " join shop.products p on p.code = l.product",
}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    yield shop
    shop.close()


def test_every_kind_of_change(shop: Shop) -> None:
    """One epoch each, on tables that were loaded without a single change."""
    config = shop.config()
    views = views_of(**VIEWS)
    truth = Truth(config, shop, views)
    shop.heartbeat()
    run_once(config, *views)
    truth.check_end()

    product, line = shop.rows("products")[0], shop.rows("lines")[0]
    steps = [
        lambda: shop.insert("notes", {"id": 1, "body": None}),  # the table was empty
        lambda: shop.update("notes", {"id": 1}, {"id": 2, "body": ""}),
        lambda: shop.delete("products", product),
        lambda: shop.insert("products", {**product, "price": None}),
        lambda: shop.update("products", product, {**product, "code": "ü'\"\\\n☃"}),
        lambda: shop.update("lines", line, {**line, "amount": None, "product": None}),
        lambda: shop.update("lines", line, {**line, "line": 9, "amount": "-99999999.99"}),
        lambda: shop.truncate("lines"),
        lambda: shop.insert("lines", {**line, "amount": "0.01"}),
        lambda: (shop.truncate("products"), shop.insert("products", product)),
        lambda: [shop.append(text) for text in sent_again(shop)],
    ]
    with live(config) as running:
        for step in steps:
            before = shop.file.stat().st_size
            step()
            assert shop.file.stat().st_size > before
            running.to_the_end(shop)
    newest = truth.check_end()
    assert newest.tables[rel("shop.lines")].rows == 1


def sent_again(shop: Shop) -> list[str]:
    """Every change so far, as a connector that was restarted sends them."""
    lines = shop.file.read_text().splitlines()
    return [line for line in lines if json.loads(line)["op"] != "heartbeat"]


@pytest.mark.days(5)
@pytest.mark.parametrize(
    ("line", "what", "few"),
    [
        ('{"table": "products", "op": "insert", "after": {"code": "x", "pri', "JSON", 1000),
        (
            '{"table": "products", "op": "insert", "after": {"code": "x", "price": "much"},'
            ' "position": 999, "ts": 1}',
            "price",
            0,
        ),
    ],
    ids=["read where the epoch runs", "read by tasks of Spark"],
)
def test_a_bad_line_halts_the_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, line: str, what: str, few: int
) -> None:
    monkeypatch.setattr(following, "WORTH_A_JOB", few)
    config = shop.config()
    views = views_of(codes=VIEWS["codes"])
    truth = Truth(config, shop, views)
    with shop.busy(seed=1, pause=0.05):
        run_once(config, *views)
    good = truth.log.latest()
    shop.insert("products", {"code": "before", "price": "1.00"})
    place = shop.file.stat().st_size
    shop.append(line)
    shop.insert("products", {"code": "after", "price": "2.00"})
    with pytest.raises(UserError, match=what) as error:
        run_once(config)
    assert f"000.jsonl, byte {place}" in str(error.value) or f"offset {place}" in str(error.value)
    if what != "JSON":  # its table is known: that is loaded anew
        run_once(config)
        assert [result.equal for result in verify(config, views)] == [True]
        return
    assert truth.log.latest().epoch == good.epoch
    with pytest.raises(DecodeError):
        run_once(config)

    # Corrected in place: the line keeps its length.
    text = '{"op": "heartbeat", "ts": 1}'.ljust(len(line))
    shop.file.write_text(shop.file.read_text().replace(line, text))
    run_once(config)
    truth.check_end()


@pytest.mark.long
def test_the_log_of_another_server_halts_until_the_table_is_loaded_anew(new_shop: Shop) -> None:
    """After a failover the positions begin anew: below what was in the log before the load."""
    shop = new_shop
    config = shop.config()
    for number in range(3):
        shop.insert("products", {"code": f"before{number}", "price": "1.00"})
    shop.heartbeat()
    run_once(config, *views_of(codes=VIEWS["codes"]))
    good = status(config)
    assert good.failure is None
    time.sleep(0.3)  # longer than T: clocks may differ by that
    shop.restart_positions()
    shop.insert("products", {"code": "after", "price": "2.00"})
    with pytest.raises(UserError, match="the log of another server"):
        run_once(config)

    halted = status(config)
    assert halted.epoch == good.epoch
    assert halted.failure is not None
    assert halted.failure.subject == "table shop.products"
    assert "mview drop" in str(halted.failure.hint)
    drop(config, ["shop.products"])
    run_once(config)
    shop.insert("products", {"code": "later", "price": "3.00"})
    notes = run_once(config)
    assert status(config).failure is None
    codes = StoredView(config, "codes").arrow()["code"].to_pylist()
    assert sorted(codes) == sorted(row["code"] for row in shop.rows("products"))
    assert (notes.epochs[-1].dropped, notes.epochs[-1].changes) == (0, {"shop.products": 1})


@pytest.mark.days(5)
def test_what_is_sent_again_is_told_and_is_no_lag(shop: Shop) -> None:
    config = shop.config()
    shop.heartbeat()
    run_once(config, *views_of(codes=VIEWS["codes"]))
    for number in range(3):
        shop.insert("products", {"code": f"n{number}", "price": "1.00"})
    shop.heartbeat()
    run_once(config)
    for text in sent_again(shop)[:2]:
        shop.append(text)
    (again,) = [epoch for epoch in run_once(config).epochs if epoch.dropped]
    assert (again.dropped, again.lag_ms, again.changes) == (2, None, {})


@pytest.mark.long
def test_a_declared_key_that_is_not_unique(new_shop: Shop) -> None:
    shop = new_shop
    config = shop.config()
    text = "create materialized view {} with (key='{}') as select {} from shop.lines"
    double = views_of(double=text.format("double", "order_id", "order_id, amount"))
    with (
        shop.busy(seed=1, pause=0.05),
        pytest.raises(UserError, match=r"key .* is not unique|two rows have one key"),
    ):
        run_once(config, *double)
    # A view that could not be built stays asked for, and halted, until it is dropped.
    drop(config, ["double"])
    dropped = ManifestLog(Store(config.store).manifests).latest()
    assert dropped is not None

    # Unique while it was built, and not any more later on.
    single = views_of(
        single="create materialized view single with (key='price') as"
        " select price, code from shop.products where code > 'z'"
    )
    truth = Truth(config, shop, single)
    shop.insert("products", {"code": "za", "price": "7.77"})
    shop.heartbeat()
    run_once(config, *single)
    good = truth.check_end(dropped.epoch)
    assert good.views["single"].rows == 1
    shop.insert("products", {"code": "zb", "price": "7.77"})
    with pytest.raises(UserError, match=r"key .* is not unique|two rows have one key"):
        run_once(config)
    assert truth.log.latest().epoch == good.epoch
    shop.update("products", {"code": "zb"}, {"code": "zb", "price": "8.88"})
    run_once(config)
    assert truth.check_end(dropped.epoch).views["single"].rows == 2


def test_a_drop_leaves_the_rows_that_other_views_read(shop: Shop) -> None:
    config = shop.config()
    views = views_of(
        lower="create materialized view lower as select code, price from shop.products",
        upper="create materialized view upper as select price, count(*) as n from lower"
        " group by price",
        other="create materialized view other as select code from lower where code > 'm'",
    )
    truth = Truth(config, shop, views)
    run_once(config, *views)
    drop(config, ["other"])
    shop.insert("products", {"code": "after", "price": "1.00"})
    shop.heartbeat()
    notes = run_once(config)
    assert not [text for text in notes.messages if text.startswith("building")]
    assert StoredView(config, "upper").arrow()["n"].to_pylist()
    before = status(config)
    # Nobody reads it any more: its rows are let go of, and built anew for who reads them again.
    drop(config, ["upper"])
    run_once(config)
    shop.insert("products", {"code": "later", "price": "1.00"})
    shop.heartbeat()
    notes = run_once(config, *views[:2])
    assert [text for text in notes.messages if text.startswith("building")]
    assert truth.check_end(before.epoch).views.keys() == {"lower", "upper"}


@pytest.mark.days(5)
def test_two_runs_at_once(shop: Shop) -> None:
    config = shop.config()
    views = views_of(codes=VIEWS["codes"])
    truth = Truth(config, shop, views)
    running = Live(config, *views)
    try:
        running.until(lambda: status(config).running is not None)
        with pytest.raises(AlreadyRunningError, match="runs on this store already"):
            Pipeline(config, views).run(once=True)
        with shop.busy(seed=1):
            running.epochs("codes", 2)
    finally:
        running.stop()
    assert running.error is None
    truth.check()
