"""`mview lineage`: what views are made of."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.cli.demo import shop
from mview.cli.explore.lineage import ViewLineage, columns_mermaid_text

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


def test_a_diagram_of_columns(lineage):
    """Of tables those that views are made of; a name may have a quote or the separator in it."""
    upper = 'SELECT state, sum(n) AS n, count(*) AS `a "b".c` FROM lower_view GROUP BY state'
    drawn = lineage("sql", "--mermaid", "--columns", lower_view=LOWER, upper_view=upper)
    assert drawn.splitlines() == [
        "graph LR",
        '  subgraph r0["shop.orders"]',
        '    r0c0["customer_id"]',
        '    r0c1["order_id"]',
        '    r0c2["status"]',
        "  end",
        '  subgraph r1["lower_view"]',
        '    r1c0["order_id"]',
        '    r1c1["customer_id"]',
        '    r1c2["state"]',
        '    r1c3["n"]',
        "  end",
        "  r0c1 --> r1c0",
        "  r0c0 --> r1c1",
        "  r0c2 --> r1c2",
        '  subgraph r2["upper_view"]',
        '    r2c0["state"]',
        '    r2c1["n"]',
        '    r2c2["a #quot;b#quot;.c"]',
        "  end",
        "  r1c2 --> r2c0",
        "  r1c3 --> r2c1",
    ]


def test_a_diagram_of_columns_that_only_spark_can_tell():
    """Such a view is one box, which its tables lead to; so is the one that reads it."""
    views = [
        ViewLineage("v", "v.sql", ("shop.a",), ("w",), ("delta",), None),
        ViewLineage("w", "w.sql", ("shop.b.c", "v"), (), (), {"x": ("shop.b.c.d.e", "v.y")}),
    ]
    assert columns_mermaid_text(views).splitlines() == [
        "graph LR",
        '  r0[("shop.a")]',
        '  subgraph r1["shop.b.c"]',
        '    r1c0["d.e"]',
        "  end",
        '  r2["v"]',
        "  r0 --> r2",
        '  subgraph r3["w"]',
        '    r3c0["x"]',
        "  end",
        "  r1c0 --> r3c0",
        "  r2 --> r3c0",
    ]


def test_columns_are_of_the_diagram(lineage):
    assert "--mermaid" in lineage("sql", "--columns", code=2, lower_view=LOWER)
    two = lineage("sql", "--json", "--mermaid", code=2, lower_view=LOWER)
    assert "--json and --mermaid: ask for one of them" in two


def test_what_is_wrong_is_told_and_an_empty_store(lineage):
    assert "unknown column" in lineage("sql", code=1, bad="SELECT nothing FROM shop.orders")
    assert "the store has no views yet" in lineage(code=1)
