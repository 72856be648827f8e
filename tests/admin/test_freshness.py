"""Which stage makes a view older than it promised."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from mview.admin.explore.freshness import cause_of_age
from mview.epoch.views.cost import Costs, Ran, with_run
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.store.manifest import Cut, Manifest, TableState, ViewState

NOW = 1_700_000_100_000
SCHEMA = TableSchema((Column("id", pa.int64()),), ("id",))
VIEW = ViewState("digest", "LINEAR", SCHEMA, {"version": 3}, 1)
MANIFEST = Manifest(7, 1, NOW - 500, 1, 0, views={"v": VIEW}, cuts={"shop": Cut(NOW - 900, True)})


def cause(manifest: Manifest, *, is_running: bool = True) -> str:
    return cause_of_age(manifest, manifest.cuts, 2_000, NOW, is_running=is_running)


def test_nobody_runs_it() -> None:
    assert cause(MANIFEST, is_running=False) == "nobody runs the store"


def test_nothing_was_published() -> None:
    old = replace(MANIFEST, created_ms=NOW - 30_000)
    assert cause(old).startswith("run: no epoch was published for 30.0 s: no change and no")
    loading = {RelationId.of("shop.lines"): TableState(SCHEMA, 0, 0)}
    assert "for 30.0 s, shop.lines being loaded" in cause(replace(old, tables=loading))


def test_a_source_is_late() -> None:
    cuts = {"shop": Cut(NOW - 900, True), "crm": Cut(NOW - 8_500, None)}
    said = cause(replace(MANIFEST, cuts=cuts))
    assert said.startswith("source: crm was read up to 8.0 s before")


def test_an_epoch_took_long() -> None:
    cuts = {"shop": Cut(NOW - 8_500, True)}

    def ran(epoch: int, seconds: float) -> Manifest:
        run = Ran(epoch, "FULL", "", "spark", 5, 5, 5, seconds)
        facts = with_run({}, RelationId("view", "v"), run, Costs())
        return replace(MANIFEST, cuts=cuts, views={"v": replace(VIEW, facts=facts)})

    assert cause(ran(7, 6.5)) == "epoch: view v took 6.5 s of the newest one"
    assert cause(ran(7, 0.5)).startswith("source: shop")
    assert cause(ran(6, 6.5)).startswith("source: shop"), "an epoch before is not the reason"


def test_the_time_of_a_source_is_not_known() -> None:
    cuts = {"shop": Cut(None, None), "crm": Cut(NOW, None)}
    assert cause(replace(MANIFEST, cuts=cuts)).startswith("source: how far shop was read")
    assert cause(replace(MANIFEST, cuts={})).startswith("source: how far a connection was")
