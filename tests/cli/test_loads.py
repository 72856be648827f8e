"""`pause` and `resume`: what they may be asked for, what `status` then says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from mview.cli import main
from mview.clock import SourceMs
from mview.config.file import load_config
from mview.ingest.load_plan import LoadPlan, LoadStart, write_plan
from mview.schema import Column, TableSchema
from mview.snapshot import ChunkPlan
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState
from tests.relations import rel

SCHEMA = TableSchema((Column("id", pa.int64()),), ("id",))


def mview(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "-c", "mview.yml"])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that has one table loaded, and loads another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mview.yml").write_text(
        "store: data\nconnections:\n  shop:\n    drivername: sqlite\n    database: shop.db\n"
        "    load: {tables_at_once: 2, rows_per_second: 9000}\n    tables:\n"
        "      lines: {load: {rows_per_second: 1000, window: 00:00-23:59, priority: 3}}\n"
    )
    store = Store(load_config("mview.yml").store)
    claim_store(store.root)
    tables = {
        rel("shop.orders"): TableState(SCHEMA, 0, 0, phase="loaded", rows=1234),
        rel("shop.lines"): TableState(SCHEMA, 0, 0, rows=20, released=(0,)),
    }
    ManifestLog(store.manifests).publish(Manifest(1, 1, 0, 4, 0, tables=tables))
    file = store.plan(4, 1, rel("shop.lines"))
    file.parent.mkdir(parents=True)
    chunks = ChunkPlan("shop.lines", ("id",), ((5,), (9,)), (12,), 60)
    write_plan(file, LoadPlan(LoadStart({}, -1, 0), chunks, {}, {}, SourceMs(0)))
    return store


def lines_of(told: Any, name: str) -> dict[str, Any]:
    (table,) = [table for table in told["tables"] if table["name"] == name]
    return dict(table)


def test_a_load_is_paused_and_goes_on(store: Store) -> None:
    before = lines_of(json.loads(mview("status", "--json").stdout), "shop.lines")
    assert before == {
        "name": "shop.lines",
        "phase": "loading",
        "rows": 20,
        "chunks_released": 1,
        "chunks": 3,
        "rows_expected": 60,
        "held": "",
        "load": {
            "rows_per_second": 1000,
            "window": "00:00-23:59 UTC",
            "priority": 3,
            "connection_rows_per_second": 9000,
            "tables_at_once": 2,
        },
        "quarantined": 0,
        "refused": "",
        "next": "",
    }
    told = mview("pause", "shop.lines")
    assert (told.exit_code, told.stdout) == (0, "shop.lines: paused\n")
    assert mview("pause", "shop.lines").stdout == "shop.lines: was paused\n"
    after = lines_of(json.loads(mview("status", "--json").stdout), "shop.lines")
    assert after == {**before, "held": "paused; on it goes with: mview resume shop.lines"}
    (line,) = [line for line in mview("status").stdout.splitlines() if "shop.lines" in line]
    assert "loading, 1 of 3 chunks done, about 60 rows in all; 1,000 rows/s at the most" in line
    assert line.endswith("paused; on it goes with: mview resume shop.lines")
    assert json.loads(mview("resume", "shop.lines", "--json").stdout) == {"shop.lines": True}
    assert mview("resume", "shop.lines").stdout == "shop.lines: was not paused\n"
    assert lines_of(json.loads(mview("status", "--json").stdout), "shop.lines") == before


def test_a_table_that_will_be_loaded_may_be_paused(store: Store) -> None:
    paused = mview("pause", "shop.later")
    assert paused.exit_code == 0
    assert "shop.later is not in the store: its load will wait when it begins" in paused.stderr
    told = lines_of(json.loads(mview("status", "--json").stdout), "shop.later")
    assert (told["phase"], told["rows"]) == ("absent", 0)
    assert "shop.later   0 rows      not begun; 9,000 rows/s of its" in mview("status").stdout


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shop.orders", "shop.orders is loaded: there is nothing to be paused"),
        ("shp.lines", "shp.lines is not a table of a connection"),
        ("totals", "totals is not a table of a connection"),
        ("shop.../../x", "cannot be the name of a table"),
    ],
)
def test_what_cannot_be_paused_is_told_and_nothing_is(store: Store, name: str, why: str) -> None:
    told = mview("pause", "shop.lines", name)
    assert told.exit_code != 0
    assert why in told.stderr
    assert not store.paused.exists() or not [*store.paused.iterdir()]


def test_without_a_store_there_is_nothing_to_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mview.yml").write_text(
        "store: data\nconnections: {shop: {drivername: sqlite, database: a.db}}\n"
    )
    assert "there is no store yet" in mview("pause", "shop.lines").stderr
    assert not (tmp_path / "data").exists()
