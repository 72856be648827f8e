"""`mview preview`: a query over the databases as they are, with and without a sample."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mview.cli import main

CONFIG = """
store: store
connections: {shop: {drivername: sqlite, database: shop.db}}
changes: {shop: {source: files, format: unified, path: changes, T: 1s}}
"""
TOTALS = """CREATE MATERIALIZED VIEW totals AS
SELECT c.region, sum(o.amount) AS total FROM shop.orders o JOIN shop.customers c
ON o.customer = c.id GROUP BY c.region
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mview.yml").write_text(CONFIG)
    (tmp_path / "changes").mkdir()
    (tmp_path / "totals.sql").write_text(TOTALS)
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.executescript(
            """
            CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER);
            CREATE TABLE customers (id INTEGER PRIMARY KEY, region TEXT);
            INSERT INTO customers VALUES (1, 'north'), (2, 'south');
            """
        )
        rows = [(number, number % 2 + 1, 10) for number in range(50)]
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    database.close()
    return tmp_path


def mview(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["preview", *arguments, "-c", "mview.yml"])


def test_a_file(shop: Path) -> None:
    result = mview("totals.sql")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:3] == ["shop.customers: all 2 rows", "shop.orders: all 50 rows", ""]
    assert sorted(" ".join(line.split()) for line in lines[3:6]) == [
        "north 250",
        "region total",
        "south 250",
    ]
    assert lines[-1].startswith("2 rows in ")
    assert "SAMPLE" not in result.stdout
    assert not (shop / "store").exists(), "nothing is written"


def test_a_query_and_its_result_as_json() -> None:
    told = json.loads(
        mview("SELECT id, amount FROM shop.orders WHERE id < 3", "--json", "-n", "2").stdout
    )
    assert told["columns"] == [["id", "bigint"], ["amount", "bigint"]]
    assert (len(told["rows"]), told["count"], told["sampled"]) == (2, 3, False)


def test_nested_values_are_told_without_python(shop: Path) -> None:
    query = "SELECT id, array(CAST(id AS DECIMAL(9,1)), NULL) AS a FROM shop.orders WHERE id = 3"
    assert "3   [3.0, NULL]\n" in mview(query).stdout


def test_the_time_is_that_of_now() -> None:
    query = "SELECT id FROM shop.orders WHERE now() > TIMESTAMP '2020-01-01' AND id = 3"
    told = json.loads(mview(query, "--json").stdout)
    assert (told["rows"], told["on_spark"]) == ([{"id": 3}], "")
    assert json.loads(mview(query.replace(">", "<", 1), "--json").stdout)["count"] == 0


def test_a_sample_is_said_to_be_one() -> None:
    result = mview("totals.sql", "--sample", "10", "--json")
    told = json.loads(result.stdout)
    assert told["sampled"]
    assert {table["table"]: (table["rows"], table["sampled"]) for table in told["tables"]} == {
        "shop.orders": (10, True),
        "shop.customers": (2, False),
    }
    assert sum(row["total"] for row in told["rows"]) == 100
    text = mview("totals.sql", "--sample", "10").stdout
    assert "shop.orders: the first 10 rows of about 50" in text
    assert "OF A SAMPLE" in text
    exact = json.loads(mview("totals.sql", "--sample", "50", "--json").stdout)
    assert not exact["sampled"], "it has no more than that"


def test_a_view_on_a_view(shop: Path) -> None:
    (shop / "large.sql").write_text("SELECT region FROM totals WHERE total > 100")
    alone = mview("large.sql")
    assert alone.exit_code == 1
    assert "view 'totals' is not known" in alone.stderr
    both = json.loads(mview("large.sql", "--with", "totals.sql", "--json").stdout)
    assert sorted(row["region"] for row in both["rows"]) == ["north", "south"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("SELECT nope FROM shop.orders", "unknown column 'nope'"),
        ("SELECT id FROM shop.order", "did you mean"),
        ("totals", "is no file, no view of the store and no query"),
        ("DROP TABLE shop.orders", "Error:"),
        ("none.sql", "none.sql"),
    ],
)
def test_what_is_wrong_is_told(what: str, said: str) -> None:
    result = mview(what)
    assert result.exit_code == 1, result.output
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_names_with_large_letters(shop: Path) -> None:
    with sqlite3.connect(shop / "shop.db") as database:
        database.execute('CREATE TABLE "Old" ("Id" INTEGER PRIMARY KEY, "Word" TEXT)')
        database.execute("INSERT INTO \"Old\" VALUES (7, 'x')")
    database.close()
    for sql, heading in [
        ("select * from shop.`Old`", "Id Word"),
        ("select `Id`, `Word` as W from shop.`Old`", "Id W"),
    ]:
        told = mview(sql)
        assert told.exit_code == 0, told.output
        lines = [" ".join(line.split()) for line in told.stdout.splitlines()]
        assert lines[2:4] == [heading, "7 x"]
