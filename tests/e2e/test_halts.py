"""A view whose query fails on the data: it halts alone, names the row, and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from mview.admin.content import StoredView
from mview.admin.mending.repair import repair
from mview.admin.status import status
from mview.admin.verify import verify
from mview.cli.render import status_text, verified_text
from mview.config import Config
from mview.errors import UserError
from mview.plan.definition import ViewDefinition
from mview.run.pipeline import Pipeline
from mview.store.layout import Store
from tests.e2e.running import Live, Notes, run_once, views_of
from tests.e2e.shop import Shop

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.days(3),
    pytest.mark.timeout(600),
]

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
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    write_notes(shop)
    yield shop
    shop.close()


def write_notes(shop: Shop) -> None:
    shop.insert("notes", {"id": 1, "body": "5"})
    shop.insert("notes", {"id": 2, "body": "10"})
    shop.heartbeat()


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
    assert "id=17, body='0'" in said
    assert "shop.notes" in said
    assert len(bodies(config)) == 39
    check(config, views[0])
    for name in ("shares", "shared"):
        with pytest.raises(UserError, match=f"view {name} has halted"):
            StoredView(config, name)
        assert StoredView(config, name, good).arrow().num_rows
    compared = verified_text(verify(config, views))
    assert compared.count("NOT COMPARED") == 2
    assert "bodies: OK, 39 rows equal" in compared
    shown = status_text(status(config))
    assert shown.count("HALTED") == 2
    assert "id=17" in shown
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
        running.until(lambda: "shares" in running.notes.halts)
        shop.insert("notes", {"id": 4, "body": "7"})
        running.until(lambda: bodies(config) == {"5", "10", "0", "7"})
        assert "shares" not in running.notes.epochs[-1].views
    finally:
        running.stop()
    # The end of the run says it once more, for its exit code.
    assert "DIVIDE_BY_ZERO" in str(running.error)
    check(config, views[0])


@pytest.mark.days(5)
@pytest.mark.parametrize(
    "name", ["joined", *(pytest.param(n, marks=pytest.mark.long) for n in FAILING if n != "joined")]
)
def test_the_row_is_named(shop: Shop, name: str) -> None:
    config, views = shop.config(), views_of(bodies=VIEWS["bodies"], failing=FAILING[name])
    run_once(config, *views)
    shop.insert("notes", {"id": 3, "body": "0"})
    assert "id=3, body='0'" in refused(config, *views)
    check(config, views[0])


@pytest.mark.days(5)
def test_a_view_that_cannot_be_built_does_not_stop_the_others(shop: Shop) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    shop.insert("notes", {"id": 3, "body": "none"})
    shop.heartbeat()
    run_once(config, views[0])
    assert "CAST_INVALID_INPUT" in refused(config, *views)
    assert bodies(config) == {"5", "10", "none"}
    check(config, views[0])
    shop.delete("notes", {"id": 3, "body": "none"})
    run_once(config, *views)
    check(config, *views)


@pytest.mark.days(5)
def test_alone_it_halts_before_the_epoch(shop: Shop) -> None:
    config, views = shop.config(), views_of(shares=VIEWS["shares"])
    run_once(config, *views)
    before = status(config).epoch
    shop.insert("notes", {"id": 3, "body": "0"})
    assert "id=3, body='0'" in refused(config, *views)
    assert status(config).epoch == before
    assert StoredView(config, "shares").arrow().num_rows == 2
    shop.update("notes", {"id": 3, "body": "0"}, {"id": 3, "body": "50"})
    run_once(config, *views)
    check(config, *views)


@pytest.mark.days(5)
def test_a_first_build_is_tried_with_what_has_come_since(new_shop: Shop) -> None:
    shop = new_shop
    config, views = shop.config(), views_of(shares=VIEWS["shares"])
    write_notes(shop)
    shop.insert("notes", {"id": 3, "body": "0"})
    shop.heartbeat()
    assert "DIVIDE_BY_ZERO" in refused(config, *views)
    assert "HALTED" in status_text(status(config))
    shop.update("notes", {"id": 3, "body": "0"}, {"id": 3, "body": "50"})
    run_once(config, *views)
    check(config, *views)


@pytest.mark.days(5)
def test_what_only_spark_refuses_halts_alone_at_the_start(shop: Shop) -> None:
    config = shop.config()
    views = views_of(
        bodies=VIEWS["bodies"],
        keys="select map_keys(body) as k from shop.notes",
        over="select count(*) as n from keys",
    )
    assert "Spark refuses view keys" in refused(config, *views)
    check(config, views[0])
    shown = status_text(status(config))
    assert shown.count("HALTED") == 2
    assert "view over reads view keys, which has halted" in shown
    # What `check` tells refuses the start, and all of it is told.
    epoch = status(config).epoch
    said = refused(
        config,
        *views_of(
            bodies="select id from shop.notes",
            one="select nope from shop.notes",
            two="select id, null as n from shop.notes",
        ),
    )
    assert "2 views are refused" in said
    assert "nope" in said
    assert "column 'n' of view 'two'" in said
    assert status(config).epoch == epoch


#: A view that is computed as a whole, one that a tick fails, readers of both.
KINDS = {
    "bodies": VIEWS["bodies"],
    "whole": "select id, filter(array(cast(100 / cast(body as int) as int)),"
    " d -> d < day(current_date)) as days from shop.notes",
    "over_whole": "select count(*) as n from whole",
    "due": "select id, 100 / (length(body) - 10) as share from shop.notes"
    " where cast(body as bigint) <= unix_timestamp()",
    "over_due": "select sum(share) as total from due",
    "counted": "select length(body) as size, count(*) as n from shop.notes group by length(body)",
}


def halted(config: Config) -> set[str]:
    return {view.name for view in status(config).views if view.halted}


@pytest.mark.long
def test_views_of_every_kind_halt_alone_and_come_back(shop: Shop) -> None:
    config, views = shop.config(tick="1 second"), views_of(**KINDS)
    run_once(config, *views)
    assert {v.name: v.strategy for v in status(config).views}["whole"] == "FULL"
    running = Live(config, *views)
    try:
        # A time that comes: nothing is read in the epoch in which it fails.
        soon = str(int(time.time()) + 5)
        shop.insert("notes", {"id": 3, "body": soon})
        running.until(lambda: soon in bodies(config))
        running.until(lambda: halted(config) == {"due", "over_due"})
        assert "DIVIDE_BY_ZERO" in status_text(status(config))
        shop.insert("notes", {"id": 4, "body": "0"})
        running.until(lambda: halted(config) == {"due", "over_due", "whole", "over_whole"})
        shop.insert("notes", {"id": 5, "body": "77"})
        running.until(lambda: "77" in bodies(config))
        assert {"bodies", "counted"} <= set(running.notes.epochs[-1].views)
    finally:
        running.stop()
    assert "DIVIDE_BY_ZERO" in str(running.failure())
    check(config, views[0])
    # Two are mended, one by its row and one by its text; a view is added and another is edited.
    shop.delete("notes", {"id": 4, "body": "0"})
    edited = {
        **KINDS,
        "due": "select id, length(body) as share from shop.notes"
        " where cast(body as bigint) <= unix_timestamp()",
        "counted": "select id, 100 / (cast(body as int) - 77) as n from shop.notes",
        "added": "select id, 100 / (cast(body as int) - 10) as n from shop.notes",
        "over_added": "select count(*) as n from added",
    }
    assert "DIVIDE_BY_ZERO" in refused(config, *views_of(**edited))
    assert halted(config) == {"counted", "added", "over_added"}
    good = [view for view in views_of(**edited) if view.name not in halted(config)]
    assert {view.name for view in good} == {"bodies", "whole", "over_whole", "due", "over_due"}
    check(config, *good)
    shop.insert("notes", {"id": 6, "body": "8"})
    shop.delete("notes", {"id": 2, "body": "10"})
    shop.delete("notes", {"id": 5, "body": "77"})
    run_once(config, *views_of(**edited))
    assert not halted(config)
    check(config, *views_of(**edited))
    # Somebody else changes rows of one table.
    with running_to_the_end(config) as notes:
        DeltaTable(Store(config.store).view_target("added")).delete("id = 6")
        shop.insert("notes", {"id": 7, "body": "9"})
    assert "somebody else changed rows" in str(notes.halts["added"])
    assert halted(config) == {"added", "over_added"}
    assert repair(config, ["added"]) == ["added"]
    run_once(config)
    check(config, *views_of(**edited))


@contextmanager
def running_to_the_end(config: Config) -> Iterator[Notes]:
    """A bounded run after the block, which may end with the error of a view."""
    notes = Notes()
    yield notes
    with suppress(UserError):
        Pipeline(config, [], listener=notes).run(once=True)
