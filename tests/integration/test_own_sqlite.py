"""SQLite -> mview, by triggers: a load while a program writes, a restart, REPLACE."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
from click.testing import CliRunner

import mview
from mview.cli import main
from mview.config.file import load_config
from mview.plan.definition import load_views
from tests.integration.running import PATIENCE, Running
from tests.services.process import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

VIEW = "SELECT kind, count(*) AS n, sum(amount) AS total FROM shop.items GROUP BY kind"


class Writer:
    """Writes rows, one after the other, until it is stopped."""

    def __init__(self, file):
        self.file, self.written = file, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._stop.set()
        self._thread.join(PATIENCE)

    def _write(self):
        with closing(sqlite3.connect(self.file, isolation_level=None, timeout=60)) as database:
            while not self._stop.wait(0.01):
                n = self.written
                database.execute(
                    "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)",
                    (n * 7 % 900, n * 11 % 700, f"k{n % 5}", n / 4),
                )
                database.execute("DELETE FROM items WHERE id = ?", (n * 3 % 900,))
                self.written += 1


def test_a_load_under_changes_and_a_restart(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, code BIGINT UNIQUE, kind TEXT, "
            "amount DECIMAL(12, 2))"
        )
        rows = [(n, n, f"k{n % 5}", n / 4) for n in range(600)]
        database.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
        database.commit()
    made = CliRunner().invoke(main, ["init", "sqlite:///shop.db", "--triggers"])
    assert made.exit_code == 0, made.output
    (tmp_path / "kinds.sql").write_text(VIEW)
    with (tmp_path / "mview.yml").open("a") as file:
        file.write("engine: {chunk_rows: 100, chunks_per_epoch: 2, max_changes: 60}\n")
    config, views = load_config("mview.yml"), load_views([tmp_path / "kinds.sql"])

    def is_equal():
        with closing(sqlite3.connect("shop.db")) as database:
            query = "SELECT kind, count(*), sum(amount) FROM items GROUP BY kind ORDER BY kind"
            expected = database.execute(query).fetchall()
        rows = mview.connect(config.path)["kinds"].arrow().to_pylist()
        shown = sorted((row["kind"], row["n"], float(row["total"])) for row in rows)
        return shown == expected

    with Writer("shop.db") as writer:
        with Running(config, views) as run:
            run.until_live()
            run.until_epochs(3)
        before = writer.written  # while nobody reads
        wait_until(lambda: writer.written > before + 20, "changes", PATIENCE, run.check)
        with Running(config, views) as run:
            run.until_epochs(2)
            writer.stop()
            wait_until(is_equal, "the view", PATIENCE, run.check)
