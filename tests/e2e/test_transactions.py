"""Transactions over two tables are in one epoch or not at all: SQLite, by its triggers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.changelogs.sqlite.changelog import SqliteChangelog
from pyspark.sql import SparkSession

from mview.ingest.spec import open_changelog
from tests.e2e.bank import VIEWS, Bank, check_totals
from tests.e2e.running import live, run_once, views_of
from tests.seeds import daily

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.days(2), pytest.mark.timeout(900)]


class SqliteBank(Bank):
    @property
    def file(self) -> Path:
        return self.root / "bank.db"

    def execute(self, statements: Sequence[str]) -> None:
        with closing(sqlite3.connect(self.file, isolation_level=None, timeout=60)) as database:
            for statement in ("begin immediate", *statements, "commit"):
                database.execute(statement)

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        return {
            "connections": {"bank": {"drivername": "sqlite", "database": "bank.db"}},
            "changes": {"bank": {"source": "sqlite", "T": "200ms"}},
        }


def test_the_total_is_the_same_at_every_epoch(spark: SparkSession, tmp_path: Path) -> None:
    bank = SqliteBank(tmp_path, daily())
    with closing(sqlite3.connect(bank.file)) as database:
        database.execute("pragma journal_mode = wal")
    bank.create()
    config, views = bank.config(), views_of(**VIEWS)
    log = open_changelog(config, "bank", ["checking", "savings"])
    assert isinstance(log, SqliteChangelog)
    log.install()
    log.close()
    with bank.busy():
        run_once(config, *views)
    with bank.busy(), live(config, *views) as running:
        running.epochs("accounts", 8)
    for _ in range(100):  # while nobody reads
        bank.transfer()
    run_once(config)
    assert check_totals(bank, config) > 8
