"""Files that are damaged while nobody runs are found when rows come into memory at the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mview.admin.content import StoredView
from mview.admin.mending.backfill import backfill
from mview.admin.status import status
from mview.config import Config
from mview.errors import CorruptionError
from mview.execute.executors import Executors
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest
from tests.e2e.hidden import Hidden
from tests.e2e.running import run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth
from tests.relations import rel
from tests.seeds import some_today

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

VIEWS = {
    "names": "select id, name from shop.customers",
    "totals": "select customer_id, count(*) as n from shop.orders group by customer_id",
    "over": "select n, count(*) as customers from totals group by n",
}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    shop.heartbeat()
    yield shop
    shop.close()


def newest(config: Config) -> Manifest:
    manifest = ManifestLog(Store(config.store).manifests).latest()
    assert manifest is not None
    return manifest


def damage(config: Config, relation: str) -> list[str]:
    """Cut all files with rows; what the logs say of them stays."""
    files = sorted((Store(config.store).mirror(rel(relation)) / "base").rglob("*.parquet"))
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return [str(file) for file in files]


def change(shop: Shop, number: int) -> None:
    shop.insert("orders", {"id": number, "customer_id": 1, "day": "2024-02-29"})
    shop.insert("customers", {"id": number, "name": "new", "segment": None})
    shop.heartbeat()


@pytest.mark.parametrize("relation", some_today(["totals", "over:state"], 4))
def test_what_is_kept_of_a_view_is_built_anew(shop: Shop, relation: str) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    run_once(config, *views)
    before = newest(config)
    assert rel(relation) in before.tables, sorted(before.tables)
    files = damage(config, relation)
    assert files
    change(shop, 100)
    notes = run_once(config)
    view = RelationId.of(relation).view
    (told,) = [text for text in notes.messages if "is built anew" in text]
    assert told.startswith(f"view {view} is built anew")
    assert any(file in told for file in files)
    after = newest(config)
    assert after.views[view].built_epoch > before.views[view].built_epoch
    assert after.views["names"].built_epoch == before.views["names"].built_epoch
    assert not [one.name for one in status(config).views if one.halted]
    Truth(config, shop, views).check_end()
    change(shop, 200)
    assert not [text for text in run_once(config).messages if "is built anew" in text]
    Truth(config, shop, views).check_end()


def test_a_bounded_run_without_a_change_brings_nothing_into_memory(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    run_once(config, *views)
    warmed: list[Executors] = []
    warm = Executors.warm
    monkeypatch.setattr(Executors, "warm", lambda it, *a: warmed.append(it) or warm(it, *a))
    shop.heartbeat()
    before = newest(config).epoch
    run_once(config)
    assert newest(config).epoch > before
    assert not warmed
    change(shop, 100)
    run_once(config)
    assert warmed
    Truth(config, shop, views).check_end()


def test_what_was_asked_for_is_done_after_what_is_damaged_is_built_anew(shop: Shop) -> None:
    """The batch that meets the damage is read again; a request in it is not done before."""
    config, views = shop.config(), views_of(**VIEWS)
    run_once(config, *views)
    hidden = Hidden(shop)
    hidden.delete("customers", shop.rows("customers")[0])
    hidden.insert("customers", {"id": 900, "name": "unseen", "segment": None})
    assert [told.state for told in backfill(config, ["shop.customers"], str)] == ["asked"]
    assert damage(config, "totals")
    shop.heartbeat()
    notes = run_once(config)
    said = "\n".join(notes.messages)
    assert said.index("view totals is built anew") < said.index("is as its database has it again")
    names = StoredView(config, "names").arrow().to_pylist()
    assert {row["id"] for row in names} == {row["id"] for row in shop.rows("customers")}
    assert not list(Store(config.store).rereads.glob("*"))


@pytest.mark.days(3)
def test_a_table_that_is_damaged_ends_the_start(shop: Shop) -> None:
    config, views = shop.config(), views_of(**VIEWS)
    run_once(config, *views)
    before = newest(config)
    files = damage(config, "shop.orders")
    change(shop, 100)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"mview drop") as caught:
            run_once(config)
        assert caught.value.where in files
        assert caught.value.safe
    assert newest(config).views == before.views
