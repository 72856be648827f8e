"""Internal consistency: views over each other agree at every epoch, while money moves.

Transfers between accounts are made, corrected and cancelled all the time. Each takes from one
account what it gives to another, so the total of all balances is zero in every state the database
ever had; a view that took in one side of a transfer before the other would show another total.
The sinks are read as a stranger would: each Delta table at the version that the manifest names.
"""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mview.config import Config
from mview.config.file import load_config
from mview.plan.definition import ViewDefinition
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest
from tests.e2e.running import live, run_once, views_of
from tests.ivm.world import to_rows
from tests.seeds import daily

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ACCOUNTS = 10
#: Each reads those before it. `balance` and `total` are joins of views, not of tables.
VIEWS = {
    "credits": "select to_account as account, sum(amount) as credits from bank.transfers"
    " group by to_account",
    "debits": "select from_account as account, sum(amount) as debits from bank.transfers"
    " group by from_account",
    # What another view reads has a key; Spark cannot know that of a full outer join.
    "balance": "create materialized view balance with (key='account') as"
    " select coalesce(c.account, d.account) as account, c.credits, d.debits,"
    " coalesce(c.credits, 0) - coalesce(d.debits, 0) as balance"
    " from credits c full outer join debits d on c.account = d.account",
    "total": "select coalesce(sum(balance), 0) as total from balance",
}
_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("from_account", pa.int64()),
        ("to_account", pa.int64()),
        ("amount", pa.decimal128(12, 2)),
    ]
)
Row = dict[str, Any]


class Bank:
    """A database of transfers with its log: every change is committed, then logged."""

    def __init__(self, root: Path, seed: int, transfers: int) -> None:
        self.root, self.random = root, random.Random(seed)
        self.log = root / "changes" / "000.jsonl"
        self.log.parent.mkdir()
        self.log.touch()
        self.transfers: dict[int, Row] = {}
        self._position = 0
        self._db = sqlite3.connect(root / "bank.db", check_same_thread=False, isolation_level=None)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute(
            "create table transfers(id integer primary key, from_account integer not null,"
            " to_account integer not null, amount decimal(12,2) not null)"
        )
        for number in range(transfers):
            self._write(self._transfer(number))
        self.first = list(self.transfers.values())

    def close(self) -> None:
        self._db.close()

    def config(self) -> Config:
        """Small chunks, so that loading takes several epochs."""
        file = self.root / "mview.yml"
        settings = {
            "store": "store",
            "connections": {"bank": {"drivername": "sqlite", "database": "bank.db"}},
            "changes": {
                "bank": {"source": "files", "format": "unified", "path": "changes", "T": "200ms"}
            },
            "sinks": {"delta": {"path": "tables"}},
            "engine": {"chunk_rows": 25, "chunks_per_epoch": 2},
            "spark": {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "1"}},
        }
        file.write_text(yaml.safe_dump(settings))
        return load_config(file)

    def change(self) -> None:
        """One transaction: a transfer is made, corrected (also to other accounts), or undone."""
        known = self.random.choice(list(self.transfers)) if self.transfers else None
        act = self.random.random()
        if known is None or act < 0.5:
            number = self.random.randrange(10_000)  # numbers come back after they were undone
            if number not in self.transfers:
                new = self._transfer(number)
                self._write(new)
                self._append(op="insert", after=new)
        elif act < 0.8:
            new = self._transfer(known)
            self._write(new)
            self._append(op="update", before={"id": known}, after=new)
        else:
            del self.transfers[known]
            self._db.execute("delete from transfers where id = ?", (known,))
            self._append(op="delete", key={"id": known})

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Change the database all the time, in a thread."""
        stop, failures = threading.Event(), []

        def work() -> None:
            try:
                while not stop.wait(0.004):
                    self.change()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert not failures, failures[0]

    def upto(self, byte: int) -> pa.Table:
        """The transfers as they were at a byte of the log."""
        rows = {row["id"]: row for row in self.first}
        for line in self.log.read_bytes()[:byte].splitlines():
            change = json.loads(line)
            for gone in (change.get("key"), change.get("before")):
                if gone:
                    rows.pop(gone["id"], None)
            if "after" in change:
                rows[change["after"]["id"]] = change["after"]
        exact = [{**row, "amount": Decimal(row["amount"])} for row in rows.values()]
        return pa.Table.from_pylist(exact, _SCHEMA)

    def _transfer(self, number: int) -> Row:
        one, other = self.random.sample(range(ACCOUNTS), 2)
        amount = f"{self.random.randrange(1, 100_000) / 100:.2f}"
        return {"id": number, "from_account": one, "to_account": other, "amount": amount}

    def _write(self, row: Row) -> None:
        self.transfers[row["id"]] = row
        self._db.execute(
            "insert or replace into transfers values (:id, :from_account, :to_account, :amount)",
            row,
        )

    def _append(self, **change: Any) -> None:
        self._position += 1
        change |= {"table": "transfers", "position": self._position}
        with self.log.open("a") as out:
            out.write(json.dumps({**change, "ts": time.time_ns() // 1_000_000}) + "\n")


def batch(views: list[ViewDefinition], transfers: pa.Table) -> dict[str, pa.Table]:
    """The views by the batch query over one cut."""
    found = {}
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.execute("create schema bank")
        connection.register("rows", transfers)
        connection.execute("create table bank.transfers as select * from rows")
        for view in views:
            found[view.name] = connection.sql(view.sql).to_arrow_table()
            connection.register(view.name, found[view.name])
    return found


def sink(root: Path, name: str, manifest: Manifest) -> pa.Table:
    """A view's Delta table at the version that the manifest names."""
    version = manifest.views[name].sink["version"]
    return DeltaTable(str(root / "tables" / name), version=version).to_pyarrow_table()


def check(bank: Bank, config: Config, views: list[ViewDefinition]) -> int:
    """Hold every published epoch against the batch query over its cut; returns their number."""
    log = ManifestLog(Store(config.store).manifests)
    epochs = 0
    for manifest in map(log.read, log.epochs()):
        if not manifest.views:
            continue  # the table was still being loaded
        epochs += 1
        assert set(manifest.views) == set(VIEWS)
        _, byte, _ = manifest.offsets["bank"]["log"]
        want = batch(views, bank.upto(byte))
        for name, rows in want.items():
            have = sink(bank.root, name, manifest).select(rows.column_names)
            place = f"{name} at epoch {manifest.epoch}"
            assert Counter(to_rows(have)) == Counter(to_rows(rows)), place
        assert to_rows(sink(bank.root, "total", manifest)) == [(0,)], manifest.epoch
    return epochs


@pytest.fixture
def bank(tmp_path: Path, spark: SparkSession) -> Iterator[Bank]:
    bank = Bank(tmp_path, daily(), transfers=150)
    yield bank
    bank.close()


@pytest.mark.days(2)
def test_the_total_is_zero_at_every_epoch(bank: Bank) -> None:
    config = bank.config()
    views = views_of(**VIEWS)
    with bank.busy():
        run_once(config, *views)
    with bank.busy(), live(config, *views) as running:
        running.epochs("balance", 8)
    run_once(config)
    assert check(bank, config, views) > 8
