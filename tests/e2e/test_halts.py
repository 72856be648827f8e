"""A view whose query fails on the data: it halts alone, names the row, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mview.cli.render import status_text
from mview.config import Config
from mview.errors import UserError
from mview.plan.definition import ViewDefinition
from mview.runtime.status import StoredView, status, verify
from tests.e2e.running import Live, run_once, views_of
from tests.e2e.shop import Shop

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

VIEWS = {
    "bodies": "select id, body from shop.notes",
    "shares": "select id, 100 / cast(body as int) as share from shop.notes",
    "shared": "select count(*) as n, sum(share) as total from shares",
}
#: Other ways to fail: an aggregate's result, a subquery, a table that is joined.
FAILING = {
    "shares": VIEWS["shares"],
    "grouped": "select id % 3 as third, 100 / sum(cast(body as int)) as share from shop.notes"
    " group by id % 3",
    "joined": "select n.id, o.day, 100 / cast(n.body as int) as share from shop.notes n"
    " left join shop.orders o on o.id = n.id",
    "whole": "select (select 100 / cast(max(body) as int) from shop.notes where id = 3) as one",
}


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(tmp_path, size=8)
    shop.insert("notes", {"id": 1, "body": "5"})
    shop.insert("notes", {"id": 2, "body": "10"})
    shop.heartbeat()
    yield shop
    shop.close()


def refused(config: Config, *views: ViewDefinition) -> str:
    with pytest.raises(UserError) as caught:
        run_once(config, *views)
    return str(caught.value)


def check(config: Config, *views: ViewDefinition) -> None:
    for result in verify(config, views):
        assert result.equal, result


def bodies(config: Config) -> set[str]:
    return set(StoredView(config, "bodies").arrow()["body"].to_pylist())


def views_of_epochs(running: Live) -> set[str]:
    return {view for one in running.notes.epochs for view in one.views}


def test_it_halts_alone_and_is_built_anew(shop: Shop) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    run_once(config, *views)
    good = StoredView(config, "shares").epoch
    for number in range(3, 40):
        shop.insert("notes", {"id": number, "body": "0" if number == 17 else f"1{number:02}"})
    said = refused(config, *views)
    assert "view shares fails on the data: DIVIDE_BY_ZERO" in said
    assert "{'id': 17, 'body': '0'}" in said
    assert "shop.notes" in said
    assert len(bodies(config)) == 39
    check(config, views[0])
    for name in ("shares", "shared"):
        with pytest.raises(UserError, match=f"view {name} has halted"):
            StoredView(config, name)
        assert StoredView(config, name, good).arrow().num_rows
    shown = status_text(status(config))
    assert shown.count("HALTED") == 2
    assert "'id': 17" in shown
    assert "reads view shares, which has halted" in shown

    # As a batch, it fails until the row is another.
    shop.insert("notes", {"id": 40, "body": "40"})
    assert "view shares fails on the data: DIVIDE_BY_ZERO" in refused(config, *views)
    assert "40" in bodies(config)
    check(config, views[0])
    shop.update("notes", {"id": 17, "body": "0"}, {"id": 17, "body": "17"})
    run_once(config)
    check(config, *views)
    assert "HALTED" not in status_text(status(config))


def test_the_others_go_on_in_the_same_run(shop: Shop) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    running = Live(config, *views)
    try:
        running.until(lambda: shop.heartbeat() or "shared" in views_of_epochs(running))
        shop.insert("notes", {"id": 3, "body": "0"})
        running.until(lambda: any("halts, alone" in text for text in running.notes.messages))
        shop.insert("notes", {"id": 4, "body": "7"})
        running.until(lambda: bodies(config) == {"5", "10", "0", "7"})
        assert "shares" not in running.notes.epochs[-1].views
    finally:
        running.stop()
    # The end of the run says it once more, for its exit code.
    assert "DIVIDE_BY_ZERO" in str(running.error)
    check(config, views[0])


@pytest.mark.parametrize("name", FAILING)
def test_the_row_is_named(shop: Shop, name: str) -> None:
    config, views = shop.config(), views_of(bodies=VIEWS["bodies"], failing=FAILING[name])
    run_once(config, *views)
    shop.insert("notes", {"id": 3, "body": "0"})
    assert "{'id': 3, 'body': '0'}" in refused(config, *views)
    check(config, views[0])


def test_a_view_that_cannot_be_built_does_not_stop_the_others(shop: Shop) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    shop.insert("notes", {"id": 3, "body": "none"})
    shop.heartbeat()
    assert "CAST_INVALID_INPUT" in refused(config, *views)
    assert bodies(config) == {"5", "10", "none"}
    check(config, views[0])
    shop.delete("notes", {"id": 3, "body": "none"})
    run_once(config, *views)
    check(config, *views)


def test_alone_it_halts_before_the_epoch(shop: Shop) -> None:
    config, views = shop.config(), views_of(shares=VIEWS["shares"])
    run_once(config, *views)
    before = status(config).epoch
    shop.insert("notes", {"id": 3, "body": "0"})
    assert "{'id': 3, 'body': '0'}" in refused(config, *views)
    assert status(config).epoch == before
    assert StoredView(config, "shares").arrow().num_rows == 2
    shop.update("notes", {"id": 3, "body": "0"}, {"id": 3, "body": "50"})
    run_once(config, *views)
    check(config, *views)


def test_a_first_build_is_tried_with_what_has_come_since(shop: Shop) -> None:
    config, views = shop.config(), views_of(shares=VIEWS["shares"])
    shop.insert("notes", {"id": 3, "body": "0"})
    shop.heartbeat()
    assert "DIVIDE_BY_ZERO" in refused(config, *views)
    assert not status(config).views
    shop.update("notes", {"id": 3, "body": "0"}, {"id": 3, "body": "50"})
    run_once(config, *views)
    check(config, *views)
