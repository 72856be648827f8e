"""Views in light mode: alone, without Spark, by the program; and beside a view in the full mode."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from mview.admin.content import StoredView
from mview.admin.status import status
from mview.admin.verify import verify
from mview.cli import main
from mview.config import Config
from mview.config.file import load_config
from mview.errors import UserError
from mview.plan.definition import parse_view
from mview.store.layout import Store
from tests.e2e.running import live, run_once
from tests.e2e.shop import Shop

QUERY = (
    "SELECT order_id, line, product, amount * 2 AS twice FROM shop.lines"
    " WHERE product <> 'p-03é' AND order_id % 4 <> 1"
)
VIEW = f"CREATE MATERIALIZED VIEW cheap WITH (mode = 'light', sinks = 'there') AS {QUERY}"


def config_with(shop: Shop, **engine: Any) -> Config:
    shop.config(**engine)
    file = shop.root / "mview.yml"
    there = {"type": "sqlite", "url": f"sqlite:///{shop.root}/there.db"}
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "sinks": {"there": there}}))
    return load_config(file)


def rows_of(shop: Shop, table: str) -> set[tuple[Any, ...]]:
    connection = sqlite3.connect(shop.root / "there.db")
    try:
        return set(connection.execute(f"select order_id, line, product, twice from {table}"))
    finally:
        connection.close()


def expected(shop: Shop) -> set[tuple[Any, ...]]:
    """The query in plain Python; a decimal is text in SQLite."""
    return {
        (row["order_id"], row["line"], row["product"], twice(row["amount"]))
        for row in shop.rows("lines")
        if row["product"] not in (None, "p-03é") and row["order_id"] % 4 != 1
    }


def twice(amount: float | None) -> str | None:
    return None if amount is None else f"{2 * Decimal(str(amount)):.2f}"


def says(shop: Shop, *words: str) -> str:
    """What the program says."""
    done = CliRunner().invoke(main, [*words, "-c", str(shop.root / "mview.yml")])
    assert done.exit_code == 0, done.output
    return done.output


def run_without_spark(shop: Shop, *words: str) -> None:
    """A run in a process of its own; Spark must not be there."""
    code = (
        "import sys; from mview.cli import main; main(standalone_mode=False);"
        "from pyspark import SparkContext; assert SparkContext._gateway is None"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=shop.root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout


def test_it_runs_by_itself_without_spark(tmp_path: Path) -> None:
    """Load, follow, say how it is, compare, forget."""
    shop = Shop(tmp_path, size=24)
    config = config_with(shop)
    file = tmp_path / "cheap.sql"
    file.write_text(VIEW)
    said = json.loads(says(shop, "check", str(file), "--json"))
    assert said[0]["ok"]
    assert "light" in said[0]["strategies"]
    shop.heartbeat()
    run_without_spark(shop, "run", "--once", str(file), "-c", "mview.yml")
    assert rows_of(shop, "cheap") == expected(shop)
    with live(config) as running, shop.busy(seed=1, pause=0.005):
        before = status(config).lights[0].rows
        running.until(lambda: status(config).lights[0].rows > before + 20)
    run_once(config)
    assert rows_of(shop, "cheap") == expected(shop)
    (now,) = status(config).lights
    assert (now.view, now.sink, now.phase, now.error) == ("cheap", "there", "live", "")
    assert "cheap  sink there  cheap  live" in says(shop, "status")
    assert "OK" in says(shop, "verify", str(file))
    there, copy = tmp_path / "there.db", tmp_path / "copy.db"
    shutil.copy(there, copy)
    shop.insert("lines", {"order_id": 998, "line": 1, "product": "newer", "amount": "1.00"})
    run_once(config)
    shutil.copy(copy, there)
    (told,) = verify(config, [parse_view(VIEW, "cheap")])
    assert "sink there of view cheap has gone back" in told.error
    run_once(config)
    assert rows_of(shop, "cheap") == expected(shop)
    store = Store(config.store)
    assert not [one for one in (store.mirrors, store.views, store.manifests) if one.exists()]
    says(shop, "drop", "-y", "cheap")
    assert status(config).lights == ()
    assert rows_of(shop, "cheap") == expected(shop)
    shop.close()


def test_a_table_of_which_only_some_rows_and_columns_are_there(tmp_path: Path) -> None:
    shop = Shop(tmp_path, size=24)
    # In a column that nobody reads, in the table and in its changes.
    shop._db.execute("update orders set day = 'no day'")
    file = config_with(shop).path
    settings = yaml.safe_load(file.read_text())
    settings["connections"]["shop"]["tables"] = {
        "orders": {"where": "customer_id IN (1, 2) OR customer_id IS NULL"}
    }
    file.write_text(yaml.safe_dump(settings))
    config = load_config(file)
    text = "CREATE MATERIALIZED VIEW few WITH (mode = 'light', sinks = 'there') AS "
    view = parse_view(f"{text}SELECT id FROM shop.orders WHERE id <> 3", "few")

    def is_right() -> None:
        connection = sqlite3.connect(shop.root / "there.db")
        there = {number for (number,) in connection.execute("select id from few")}
        connection.close()
        rows = [row for row in shop.rows("orders") if row["customer_id"] in (1, 2, None)]
        assert there == {row["id"] for row in rows} - {3}
        assert there

    shop.heartbeat()
    run_once(config, view)
    is_right()
    for old in shop.rows("orders")[::2]:
        move = {0: 1, 1: 3, 2: None, 3: 2}.get(old["id"] % 4)
        shop.update("orders", old, {**old, "customer_id": move, "id": old["id"] + 100})
    for old in shop.rows("orders")[1::3]:
        shop.update("orders", old, {**old, "customer_id": 4})
    shop.delete("orders", shop.rows("orders")[-1])
    shop.insert("orders", {"id": 999, "customer_id": 2, "day": "never"})
    run_once(config)
    is_right()
    assert all(result.equal for result in verify(config, [view]))
    shop.close()


@pytest.mark.days(3)
@pytest.mark.spark
@pytest.mark.slow
def test_it_equals_the_full_mode_beside_it(
    tmp_path: Path, loaded_shop: Callable[[Path], Shop]
) -> None:
    shop = loaded_shop(tmp_path)
    shop.heartbeat()
    config = config_with(shop)
    full = parse_view(f"CREATE MATERIALIZED VIEW dear WITH (sinks = 'there') AS {QUERY}", "dear")
    light = parse_view(VIEW, "cheap")
    with live(config, full, light) as running, shop.busy(seed=2, pause=0.02):
        running.epochs("dear", 3)
    run_once(config)
    assert rows_of(shop, "cheap") == rows_of(shop, "dear") == expected(shop)
    assert StoredView(config, "dear").arrow().num_rows == len(expected(shop))
    results = verify(config, [full, light])
    assert [(r.view, r.sink, r.equal) for r in results] == [
        ("dear", "", True), ("dear", "there", True), ("cheap", "there", True)
    ]  # fmt: skip
    for changed, told in (
        (parse_view(QUERY, "cheap"), "is kept in the light mode"),
        (parse_view(VIEW.replace("cheap", "dear"), "dear"), "is kept in the full mode"),
        (parse_view("select order_id, line from cheap", "reads"), "cheap"),
    ):
        with pytest.raises(UserError, match=told):
            run_once(config, changed)
    shop.close()
