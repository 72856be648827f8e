"""A table whose changes cannot be taken halts alone, with the views that need it; it comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from mview.admin.content import StoredView
from mview.admin.status import status
from mview.admin.verify import verify
from mview.cli.render import status_text
from mview.config import Config
from mview.errors import UserError
from mview.failpoints import FaultError, armed
from mview.plan.definition import ViewDefinition
from tests.e2e.running import Live, run_once, views_of
from tests.e2e.shop import Shop

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

VIEWS = {
    "bodies": "select id, body from shop.notes",
    "lengths": "select id, length(body) as n from bodies",
    "codes": "select code, price from shop.products",
    "both": "select p.code, n.id from shop.products p join shop.notes n on n.body = p.code",
}
NEED_NOTES = {"bodies", "lengths", "both"}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    shop.insert("notes", {"id": 1, "body": "one"})
    shop.heartbeat()
    yield shop
    shop.close()


def halted(config: Config) -> set[str]:
    return {view.name for view in status(config).views if view.halted}


def are_right(config: Config, *views: ViewDefinition) -> None:
    for result in verify(config, views):
        assert result.equal, result


def poison(shop: Shop) -> None:
    shop.log(table="notes", op="insert", after={"id": 2, "body": 5})


def test_a_value_that_does_not_fit_halts_what_needs_its_table(shop: Shop) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    running = Live(config, *views)
    try:
        running.until(lambda: shop.heartbeat() or (not halted(config) and _is_built(config)))
        good = StoredView(config, "bodies").epoch
        poison(shop)
        shop.insert("notes", {"id": 2, "body": "two"})
        running.until(lambda: halted(config) == NEED_NOTES)
        shop.insert("products", {"code": "after", "price": "1.00"})
        shop.insert("notes", {"id": 3, "body": "three"})
        running.until(lambda: "after" in _codes(config))
        assert halted(config) == NEED_NOTES
        # Nothing is emptied, and what is told names message, table and view.
        (path,) = (view.path for view in status(config).views if view.name == "bodies")
        assert DeltaTable(path).to_pyarrow_table()["id"].to_pylist() == [1]
        assert StoredView(config, "bodies", good).arrow().num_rows == 1
        shown = status_text(status(config))
        wrong = "column shop.notes.body (string) cannot hold the value"
        assert f"HALTED: {wrong}" in shown
        # So the epoch says in which it halted; and so the next query, as a start would.
        again = f"view bodies reads table shop.notes, which has halted: {wrong}"
        assert "view bodies, which reads shop.notes" in shown or again in shown
        running.until(lambda: shop.heartbeat() or again in status_text(status(config)))
        assert [t.phase for t in status(config).tables if t.name == "shop.notes"] == ["halted"]
    finally:
        running.stop()
    assert isinstance(running.error, UserError)
    assert "cannot hold the value" in str(running.error)
    assert "log, offset" in str(running.error)
    run_once(config)
    assert halted(config) == set()
    assert StoredView(config, "bodies").arrow().num_rows == 3
    are_right(config, *views)


def _is_built(config: Config) -> bool:
    rows = {view.name: view.rows for view in status(config).views}
    return set(rows) == set(VIEWS) and rows["bodies"] == 1


def _codes(config: Config) -> list[str]:
    return StoredView(config, "codes").arrow()["code"].to_pylist()


@pytest.mark.long
@pytest.mark.parametrize("place", ["after-net", "after-intent", "after-publish", "after-clear"])
def test_a_run_that_ends_anywhere_in_the_epoch_that_halts(shop: Shop, place: str) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    run_once(config, *views)
    poison(shop)
    shop.insert("notes", {"id": 2, "body": "two"})
    shop.insert("products", {"code": "after", "price": "1.00"})

    def end() -> None:
        raise FaultError

    with armed(place, end), pytest.raises(FaultError):
        run_once(config, *views)
    with suppress(UserError):  # before its end the epoch does not exist: it halts now
        run_once(config, *views)
    assert halted(config) in (set(), NEED_NOTES)
    assert "after" in _codes(config)
    run_once(config, *views)
    assert halted(config) == set()
    are_right(config, *views)
    assert "after" in _codes(config)


@pytest.mark.long
def test_a_column_that_goes_is_only_missed_by_who_uses_it(shop: Shop) -> None:
    """No message tells of it but those that lack the column."""
    texts = {
        "named": "select id, name from shop.customers",
        "all_of_them": "select count(*) as n, max(segment) as most from shop.customers",
        "codes": VIEWS["codes"],
    }
    config, views = shop.config(), views_of(**texts)
    run_once(config, *views)
    shop._db.execute("alter table customers drop column segment")
    running = Live(config)
    try:
        shop.log(table="customers", op="insert", after={"id": 900, "name": "new"})
        shop._db.execute("insert into customers values (900, 'new')")
        running.until(lambda: shop.heartbeat() or halted(config) == {"all_of_them"})
        running.until(lambda: shop.heartbeat() or 900 in _ids(config))
    finally:
        running.stop()
    assert "needs column 'segment' of table shop.customers" in str(running.error)
    with pytest.raises(UserError, match=r"all_of_them needs column .* of table shop\.customers"):
        run_once(config)
    shop._db.execute("alter table customers add column segment text")
    run_once(config)
    assert halted(config) == set()
    are_right(config, *views)


def _ids(config: Config) -> list[int]:
    try:
        return StoredView(config, "named").arrow()["id"].to_pylist()
    except UserError:
        return []


@pytest.mark.long
def test_a_table_that_is_gone_at_the_start_does_not_keep_the_others(shop: Shop) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    run_once(config, *views)
    poison(shop)
    with pytest.raises(UserError, match=r"shop\.notes"):
        run_once(config, *views)
    rows = shop.rows("notes")
    shop._db.execute("alter table notes rename to elsewhere")
    shop.insert("products", {"code": "after", "price": "1.00"})
    for given in (views, ()):  # also where the files are given again
        with pytest.raises(UserError, match=r"needs table shop\.notes, which cannot be read"):
            run_once(config, *given)
        assert halted(config) == NEED_NOTES
        assert "after" in _codes(config)
    shop._db.execute("alter table elsewhere rename to notes")
    run_once(config)
    are_right(config, *views)
    assert StoredView(config, "bodies").arrow().num_rows == len(rows)
