"""`mview explain`: the tree, a strategy per operator, the reason of every FULL."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.cli.demo import shop

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


def test_an_error_is_told_as_by_check(explain):
    code, out, err = explain("SELECT nothing FROM shop.orders")
    assert code == 1
    assert not out
    assert "v.sql:1:8" in err
