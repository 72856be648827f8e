"""`mview explain`: the tree, a strategy per operator, the reason of every FULL."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.cli.demo import shop
from mview.epoch.views.cost import Costs, Ran, with_run
from mview.schema import Column, TableSchema
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState, ViewState
from tests.relations import keyed, rel

CONFIG = """
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: files, format: unified, path: changes}
"""


@pytest.fixture
def explain(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shop.create(tmp_path / "shop.db", customers=5, orders=10)
    (tmp_path / "changes").mkdir()
    (tmp_path / "mview.yml").write_text(CONFIG)

    def run(sql, *options):
        (tmp_path / "v.sql").write_text(sql)
        result = CliRunner().invoke(main, ["explain", "v.sql", "-c", "mview.yml", *options])
        return result.exit_code, result.stdout, result.stderr

    return run


JOIN = """SELECT o.order_id, c.name FROM shop.orders o
JOIN shop.customers c ON c.customer_id = o.customer_id WHERE o.status = 'paid'"""
NUMBERED = "SELECT order_id, row_number() OVER (ORDER BY order_id) AS place FROM shop.orders"


def test_the_tree_has_a_strategy_per_operator(explain):
    code, out, _ = explain(JOIN)
    assert code == 0
    lines = [line for line in out.splitlines() if "[" in line]
    assert [line.split()[0] for line in lines] == ["Project", "Filter", "Join"]
    assert [line.split("[")[1] for line in lines] == ["LINEAR]", "LINEAR]", "DELTA_JOIN]"]
    assert len(lines[0]) - len(lines[0].lstrip()) < len(lines[2]) - len(lines[2].lstrip())


def test_it_is_told_where_the_epochs_run(explain):
    assert "  runs in process\n" in explain(JOIN)[1]
    _, out, _ = explain("SELECT order_id, soundex(status) AS s FROM shop.orders")
    assert "  runs on Spark: soundex cannot run in process (operator)\n" in out
    whole = "  all rows are computed again: in process while tables are small, else on Spark\n"
    assert whole in explain(NUMBERED)[1]
    (plan,) = json.loads(explain(JOIN, "--json")[1])
    assert plan["place"] == "runs in process"


def test_a_full_recompute_has_a_reason(explain):
    code, out, _ = explain(NUMBERED)
    assert code == 0
    assert "view v: FULL" in out
    (line,) = [line for line in out.splitlines() if "[FULL " in line]
    assert "Window" in line


def test_the_same_as_json(explain):
    code, out, _ = explain(JOIN, "--json")
    (plan,) = json.loads(out)
    assert code == 0
    assert plan["view"] == "v"
    assert plan["key"] == ["order_id"]
    assert [one["strategy"] for one in plan["operators"]][:3] == ["LINEAR", "LINEAR", "DELTA_JOIN"]
    (plan,) = json.loads(explain(NUMBERED, "--json")[1])
    (full,) = [one for one in plan["operators"] if one["strategy"] == "FULL"]
    assert full["reason"]
    assert full["hint"]


def test_the_cost_is_told_once_the_tables_are_in_the_store(explain, tmp_path):
    assert "  cost: not known before its tables are loaded\n" in explain(JOIN)[1]
    schema = TableSchema((Column("order_id", pa.int64()),), ("order_id",))
    tables = {
        f"shop.{name}": TableState(schema, 0, 0, phase="loaded", rows=rows)
        for name, rows in {"orders": 20_000, "customers": 5_000}.items()
    }
    state = ViewState("hash", "DELTA_JOIN", schema, {}, 1)
    claim_store(tmp_path / "mview-data")
    log = ManifestLog(Store(tmp_path / "mview-data").manifests)
    log.publish(Manifest(1, 1, 1, 1, 0, tables=keyed(tables), views={"v": state}))
    assert cost_lines(explain(JOIN)[1]) == [
        "cost, as of epoch 1:",
        "1,000 changed rows of shop.orders: 1 look-up, about 1,000 rows read, not measured yet",
        "1,000 changed rows of shop.customers: 1 look-up, about 4,000 rows read, not measured yet",
        "full: 25,000 rows read, not measured yet",
    ]
    assert cost_lines(explain(NUMBERED)[1])[1:] == ["full: 20,000 rows read, not measured yet"]

    # Half of what was foreseen was read; 0.1 ms a row, and 20 ms more.
    costs = (
        Costs()
        .after_incremental("local", 10_000, 20_000, 10_000, 2.02)
        .after_full("spark", 25_000, 4.0)
    )
    facts = with_run({}, rel("v"), Ran(2, "incremental", "", "local", 1, 1, 1, 0.1), costs)
    views = {"v": replace(state, facts=facts)}
    log.publish(Manifest(2, 1, 1, 1, 1, tables=keyed(tables), views=views))
    assert cost_lines(explain(JOIN)[1]) == [
        "cost, as of epoch 2:",
        "1,000 changed rows of shop.orders: 1 look-up, about 500 rows read, 0.17 s",
        "1,000 changed rows of shop.customers: 1 look-up, about 2,000 rows read, 0.32 s",
        "full: 25,000 rows read, 4 s",
    ]
    (plan,) = json.loads(explain(JOIN, "--json")[1])
    assert plan["cost"]["full_seconds"] == 4.0
    assert plan["cost"]["deltas"][0]["rows_read"] == 500


def cost_lines(out):
    """The lines on the cost of the only plan."""
    lines = [line.strip() for line in out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith("cost"))
    return lines[start : lines.index("strategies:")]


def test_an_error_is_told_as_by_check(explain):
    code, out, err = explain("SELECT nothing FROM shop.orders")
    assert code == 1
    assert not out
    assert "v.sql:1:8" in err
