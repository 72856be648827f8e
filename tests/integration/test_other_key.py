"""A table gets another key while no run reads it, and no log tells of that: files of changes."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import mview
from mview.admin.status import status
from mview.config.file import load_config
from mview.errors import MviewError
from mview.plan.definition import parse_view
from tests.conftest import small_config
from tests.integration.running import PATIENCE, Running
from tests.services.process import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

VIEW = "CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT id, shop, x FROM shop.t"
LIGHT = VIEW.replace("VIEW v", "VIEW l").replace("sinks", "mode = 'light', sinks")


class Table:
    """A table of a SQLite file, and the files that a program writes its changes into."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.position = folder, 0
        self.db = sqlite3.connect(folder / "shop.db", isolation_level=None)
        self.make("id")
        (folder / "changes").mkdir()
        for number in range(5):
            self.insert(number, 1, 10 * number)
        given = {
            "store": "store",
            "connections": {"shop": {"drivername": "sqlite", "database": "shop.db"}},
            "changes": {
                "shop": {"source": "files", "format": "unified", "path": "changes", "T": "300ms"}
            },
            "sinks": {"s": {"type": "sqlite", "url": f"sqlite:///{folder}/sink.db"}},
            "spark": small_config(folder).spark.model_dump(),
        }
        (folder / "mview.yml").write_text(yaml.safe_dump(given))
        self.config = load_config(folder / "mview.yml")

    def make(self, key: str) -> None:
        """The table as it is, by another key."""
        self.db.executescript(
            f"""
            CREATE TABLE new (id INT NOT NULL, shop INT NOT NULL, x INT, PRIMARY KEY ({key}));
            CREATE TABLE IF NOT EXISTS t AS SELECT * FROM new;
            INSERT INTO new SELECT * FROM t;
            DROP TABLE t;
            ALTER TABLE new RENAME TO t;
            """
        )

    def insert(self, number: int, shop: int, x: int) -> None:
        row = {"id": number, "shop": shop, "x": x}
        self.db.execute("INSERT INTO t VALUES (:id, :shop, :x)", row)
        self.position += 1
        self.write({"table": "t", "op": "insert", "after": row, "position": self.position})

    def write(self, line: dict[str, Any]) -> None:
        ts = time.time_ns() // 1_000_000  # SQLite's clock is this machine's
        with (self.folder / "changes" / "1.jsonl").open("a") as file:
            file.write(json.dumps({**line, "ts": ts}) + "\n")

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.db.execute("SELECT id, shop, x FROM t").fetchall())

    def in_view(self) -> list[tuple[Any, ...]]:
        self.write({"op": "heartbeat"})
        try:
            rows = mview.connect(self.config.path)["v"].arrow().to_pylist()
        except MviewError:
            return []
        return sorted(tuple(row.values()) for row in rows)

    def in_sink(self, name: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "sink.db")) as sink:
            return sorted(sink.execute(f"SELECT id, shop, x FROM {name}").fetchall())


def test_its_rows_never_become_one(spark: Any, tmp_path: Path) -> None:
    """The full view is loaded anew in the same run; the light one says what to do, and waits."""
    table = Table(tmp_path)
    views = [parse_view(VIEW, "v"), parse_view(LIGHT, "l")]
    with Running(table.config, views) as run:
        wait_until(lambda: table.in_view() == table.rows(), "the view", PATIENCE, run.check)
        wait_until(
            lambda: table.in_view() and status(table.config).lights[0].phase == "live",
            "the light view",
            PATIENCE,
            run.check,
        )
    before = table.rows()
    table.make("id, shop")
    for number in range(5):
        table.insert(number, 2, 1000 + number)
    with Running(table.config, views) as run:
        wait_until(lambda: table.in_view() == table.rows(), "the view", PATIENCE, run.check)
        wait_until(
            lambda: "no longer the key (id)" in status(table.config).lights[0].error,
            "the light view to halt",
            PATIENCE,
            run.check,
        )
        said = "\n".join(run.messages)
        assert "table shop.t halts: table shop.t has no longer the key (id) that told" in said
        table.insert(7, 2, 1)
        wait_until(lambda: table.in_view() == table.rows(), "the change", PATIENCE, run.check)
    assert len(table.rows()) == 11
    assert table.in_sink("l") == before
    assert "`mview drop l` and run again" in status(table.config).lights[0].error
