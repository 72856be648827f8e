"""`mview history` and `mview lag`: epochs by time, and how late views were."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from mview.admin.content import StoredView
from mview.admin.explore.took import TookLog
from mview.catalog.definitions import digest_of, save_definition
from mview.cli import main
from mview.clock import SystemClock
from mview.config.file import load_config
from mview.epoch.report import EpochReport
from mview.epoch.views.cost import Costs, Ran, with_run
from mview.plan.definition import parse_view
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Cut, Manifest, TableState, ViewState
from mview.store.requests.asked import keep_asked
from tests.admin.test_took import SetClock

ORDERS = TableSchema((Column("id", pa.int64()),), ("id",))
#: 2023-11-14 22:13:20 UTC.
BEGIN = 1_700_000_000_000


def published(folder: Path, begin: int) -> None:
    """Six epochs, ten seconds apart: v is built in the first, changed in the second and fourth."""
    (folder / "mview.yml").write_text("store: data")
    store = Store(folder / "data")
    claim_store(store.root)
    definitions = {
        name: parse_view(
            f"CREATE MATERIALIZED VIEW {name} {promise} AS SELECT id FROM shop.orders", name
        )
        for name, promise in (("v", "WITH (freshness='2 s')"), ("w", ""))
    }
    for definition in definitions.values():
        save_definition(store, definition)
    log = ManifestLog(store.manifests)
    table = TableState(ORDERS, 0, 0, phase="loaded")
    states = {
        name: ViewState(
            digest_of(definition), "LINEAR", ORDERS, {"version": 1}, 1, facts={"epoch": 1}
        )
        for name, definition in definitions.items()
    }
    for epoch in range(1, 7):
        if epoch in (2, 4):
            ran = Ran(epoch, "incremental", "", "local", 1, 0, 1, epoch / 10)
            facts = with_run(
                {"epoch": epoch, "executor": "local"}, RelationId("view", "v"), ran, Costs()
            )
            states["v"] = ViewState(
                digest_of(definitions["v"]),
                "LINEAR",
                ORDERS,
                {"version": epoch},
                1,
                rows=epoch * 1000,
                inserted=epoch,
                facts=facts,
            )
        at = begin + epoch * 10_000
        cuts = {"shop": Cut(at - 100 * epoch, True)}
        name = RelationId.of("shop.orders")
        log.publish(
            Manifest(
                epoch, 1, at, 1, epoch, {}, {}, at - 100 * epoch, {name: table}, dict(states),
                cuts=cuts,
            )
        )  # fmt: skip


def mview(*arguments: str) -> Any:
    return CliRunner().invoke(main, [*arguments, "-c", "mview.yml"])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    published(tmp_path, BEGIN)
    return tmp_path


def epochs(*arguments: str) -> list[int]:
    return [told["epoch"] for told in json.loads(mview("history", "--json", *arguments).stdout)]


def test_what_epochs_did(store: Path) -> None:
    result = mview("history")
    assert result.exit_code == 0, result.output
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "epoch 1 2023-11-14 22:13:30 UTC lag 0.1 s",
        "v +0 ~0 -0 0 rows built",
        "w +0 ~0 -0 0 rows built",
        "epoch 2 2023-11-14 22:13:40 UTC lag 0.2 s",
        "v +2 ~0 -0 2,000 rows 0.20 s local",
        "epoch 4 2023-11-14 22:14:00 UTC lag 0.4 s",
        "v +4 ~0 -0 4,000 rows 0.40 s local",
    ]


def test_what_epochs_took(store: Path) -> None:
    """Of epochs that a run has noted; of a store that was put back the former ones are others."""
    clock = SetClock(BEGIN + 20_100)
    log = TookLog(Store(store / "data"), clock)
    log.on_epoch(EpochReport(2, 12, None, {"shop.orders": 3}, stages={"net": 0.5}))
    clock.ms = BEGIN + 39_000
    log.on_epoch(EpochReport(4, 13, None, stages={"net": 0.5}))
    log.on_epoch(EpochReport(1, 14, None))
    told = {each["epoch"]: each for each in json.loads(mview("history", "--json").stdout)}
    assert [told[2][name] for name in ("took_ms", "stages", "changes")] == [
        12,
        {"net": 0.5},
        {"shop.orders": 3},
    ]
    for other in (1, 4):
        assert (told[other]["took_ms"], told[other]["stages"]) == (None, {})
    lines = mview("history").stdout.splitlines()
    assert [line for line in lines if "took" in line] == [lines[3]]
    assert "lag 0.2 s, took 0.01 s" in lines[3]


def test_epochs_of_a_time_and_of_a_view(store: Path) -> None:
    assert epochs() == [1, 2, 4]
    assert epochs("--all") == [1, 2, 3, 4, 5, 6]
    assert epochs("-n", "2") == [2, 4]
    assert epochs("w") == [1]
    between = ("--since", "2023-11-14 22:13:40", "--until", "2023-11-14T23:14:00+01:00")
    assert epochs("--all", *between) == [2, 3, 4], "both ends belong to it"
    assert epochs("--since", "2024-01-01") == []
    assert (
        "no epoch that is kept and asked for changed a view"
        in mview("history", "--since", "2024-01-01").stdout
    )


def test_times_are_written_as_everywhere(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time of day and how long ago, for `history` and for `as_of`."""
    monkeypatch.setattr(SystemClock, "now", lambda _: BEGIN + 3_635_000)
    assert epochs("--all", "--since", "1 h") == [4, 5, 6]
    assert epochs("--all", "--until", "1 h ago") == [1, 2, 3]
    assert epochs("--all", "--since", "22:13:55") == [4, 5, 6]
    assert epochs("--all", "--since", "22:15") == []
    config = load_config(store / "mview.yml")
    assert [StoredView(config, "v", when).epoch for when in ("1 h", "22:13:55")] == [3, 3]


def test_what_cannot_be_asked(store: Path) -> None:
    assert "there is no view 'x'" in mview("history", "x").stderr
    keep_asked(Store(load_config(store / "mview.yml").store), ["x"])
    assert "the run has it, and it is not built yet" in mview("history", "x").stderr
    assert "needs its column: --key COLUMN=VALUE" in mview("why", "v", "-k", "1", "-k", "2").stderr
    refused = mview("history", "--since", "noon").stderr
    assert "'noon' is no time" in refused
    assert "'2026-11-20 10:00' or '10:00'" in refused
    assert "'10 min'" in refused
    assert mview("lag", "--over", "ten").exit_code == 2


def test_how_late_views_are_and_were(store: Path) -> None:
    told = json.loads(mview("lag", "--json", "--over", "900000 h").stdout)
    by_view = {view["view"]: view for view in told["views"]}
    view = by_view["v"]
    assert (view["epochs"], view["median_ms"], view["most_ms"], view["worst_ms"]) == (
        2,
        200,
        400,
        400,
    ), "the build is none of them"
    assert view["changed"] == 6
    assert by_view["w"]["epochs"] == 0
    assert by_view["w"]["worst_ms"] is None
    assert view["lag_ms"] > 1_000_000
    assert view["cause"] == "nobody runs the store"
    assert json.loads(mview("lag", "--json").stdout)["views"][0]["epochs"] == 0, "too long ago"
    assert json.loads(mview("lag", "--json").stdout)["views"][0]["changed"] == 0
    text = mview("lag", "--over", "900000 h").stdout
    assert "2 epochs: half up to 0.2 s, 95 % up to 0.4 s, worst 0.4 s" in text
    assert "of 2.0 s, MISSED" in text
    assert "    nobody runs the store" in text


def test_one_epoch_is_no_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    published(tmp_path, time.time_ns() // 1_000_000 - 60_000)
    assert "  1 epoch: half up to 0.4 s" in mview("lag", "--over", "30 s").stdout


def test_views_in_time_have_no_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    published(tmp_path, time.time_ns() // 1_000_000 - 60_000)
    told = json.loads(mview("lag", "--json").stdout)
    assert [view["cause"] for view in told["views"]] == ["", ""]
    assert told["views"][0]["epochs"] == 2
