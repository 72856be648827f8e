"""`mview lineage`: what views are made of."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.cli.demo import shop

CONFIG = """
store: data
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
"""

LOWER = "SELECT order_id, customer_id, upper(status) AS state, 1 AS n FROM shop.orders"
UPPER = "SELECT state, sum(n) AS n FROM lower_view GROUP BY state"


@pytest.fixture
def lineage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shop.create(tmp_path / "shop.db", customers=5, orders=10)
    (tmp_path / "changes").mkdir()
    (tmp_path / "sql").mkdir()
    (tmp_path / "mview.yml").write_text(CONFIG)

    def run(*options, code=0, **views):
        for name, sql in views.items():
            (tmp_path / f"sql/{name}.sql").write_text(sql)
        result = CliRunner().invoke(main, ["lineage", "-c", "mview.yml", *options])
        assert result.exit_code == code, result.output
        return result.output if code else result.stdout

    return run


def test_tables_views_and_columns(lineage):
    assert lineage("sql", lower_view=LOWER, upper_view=UPPER).splitlines() == [
        "lower_view  (sql/lower_view.sql)",
        "  reads    shop.orders",
        "  read by  upper_view",
        "  sinks    delta",
        "  columns",
        "    order_id     shop.orders.order_id",
        "    customer_id  shop.orders.customer_id",
        "    state        shop.orders.status",
        "    n            -",
        "",
        "upper_view  (sql/upper_view.sql)",
        "  reads    lower_view",
        "  sinks    delta",
        "  columns",
        "    state  lower_view.state",
        "    n      lower_view.n",
    ]


def test_json(lineage):
    (view,) = json.loads(lineage("sql", "--json", lower_view=LOWER))
    assert view["reads"] == ["shop.orders"]
    assert view["columns"]["state"] == ["shop.orders.status"]
    assert view["columns"]["n"] == []


def test_a_diagram(lineage):
    assert lineage("sql", "--mermaid", lower_view=LOWER, upper_view=UPPER).splitlines() == [
        "graph LR",
        '  r0[("shop.orders")]',
        '  r1["lower_view"]',
        "  r0 --> r1",
        '  r1 --> r1s0[/"delta"/]',
        '  r2["upper_view"]',
        "  r1 --> r2",
        '  r2 --> r2s0[/"delta"/]',
    ]


def test_what_is_wrong_is_told_and_an_empty_store(lineage):
    assert "unknown column" in lineage("sql", code=1, bad="SELECT nothing FROM shop.orders")
    assert "the store has no views yet" in lineage(code=1)
