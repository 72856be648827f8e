"""A bank with two tables: money moves between them, each time in one transaction.

In every state that the database ever had the total is the same; a view that took in one part of a
transaction before the other would show another one.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable

from mview.config import Config
from mview.config.file import load_config
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest
from tests.ivm.world import to_rows

#: Of each table; what each has at first.
ACCOUNTS, EACH = 30, 1000
TOTAL = 2 * ACCOUNTS * EACH

#: One view over both tables; and two over one each, which must be of the same cut.
VIEWS = {
    "total": "select sum(balance) as total from"
    " (select balance from bank.checking union all select balance from bank.savings) as t",
    "in_checking": "select sum(balance) as total from bank.checking",
    "in_savings": "select sum(balance) as total from bank.savings",
    "accounts": "select c.id, c.balance as checking, s.balance as savings"
    " from bank.checking c join bank.savings s on c.id = s.id",
}


class Bank(ABC):
    """A bank in some database."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.random, self.transfers = root, random.Random(seed), 0

    @abstractmethod
    def execute(self, statements: Sequence[str]) -> None:
        """Run statements in one transaction."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, dict[str, Any]]:
        """The sections `connections` and `changes`."""

    def create(self) -> None:
        """The accounts, in both tables."""
        for table in ("checking", "savings"):
            rows = ", ".join(f"({n}, {EACH})" for n in range(ACCOUNTS))
            make = f"create table {table} (id bigint not null primary key, balance bigint not null)"
            self.execute([make])
            self.execute([f"insert into {table} values {rows}"])

    def config(self, **engine: Any) -> Config:
        """Small chunks and batches: loading takes several epochs, and so does what is left."""
        file = self.root / "mview.yml"
        settings = {
            "store": "store",
            **self.settings,
            "sinks": {"delta": {"path": "tables"}},
            "engine": {"chunk_rows": 20, "chunks_per_epoch": 1, "max_changes": 5, **engine},
            "spark": {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "1"}},
        }
        file.write_text(yaml.safe_dump(settings))
        views = self.root / "views"
        views.mkdir(exist_ok=True)
        for name, sql in VIEWS.items():
            (views / f"{name}.sql").write_text(sql)
        return load_config(file)

    def transfer(self) -> None:
        """Move money between some accounts, of all in one case of twenty."""
        self.transfers += 1
        if self.random.random() < 0.05:
            amount = self.random.randrange(-50, 50)
            there, back = f"balance = balance + {amount}", f"balance = balance - {amount}"
            self.execute([f"update checking set {there}", f"update savings set {back}"])
            return
        statements = []
        for _ in range(self.random.choice([1, 1, 2, 4])):
            amount, tables = self.random.randrange(1, 100), ["checking", "savings"]
            self.random.shuffle(tables)
            for table, sign in zip(tables, "-+", strict=True):
                number = self.random.randrange(ACCOUNTS)
                statements.append(
                    f"update {table} set balance = balance {sign} {amount} where id = {number}"
                )
        self.execute(statements)

    @contextmanager
    def busy(self, pause: float = 0.01) -> Iterator[None]:
        """Move money all the time, in a thread, with so many seconds between two transactions."""
        stop, failures = threading.Event(), []

        def work() -> None:
            try:
                while not stop.wait(pause):
                    self.transfer()
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


def _sum_of(root: Path, name: str, manifest: Manifest) -> list[tuple[Any, ...]]:
    version = manifest.views[name].sink["version"]
    return to_rows(DeltaTable(str(root / "tables" / name), version=version).to_pyarrow_table())


def check_totals(bank: Bank, config: Config) -> int:
    """Hold every published epoch against the total; returns how many have all views."""
    log = ManifestLog(Store(config.store).manifests)
    epochs = 0
    for manifest in map(log.read, log.epochs()):
        if set(manifest.views) != set(VIEWS):
            continue  # the tables were still being loaded
        epochs += 1
        place = f"epoch {manifest.epoch} at {manifest.offsets}"
        assert _sum_of(bank.root, "total", manifest) == [(TOTAL,)], place
        parts = [_sum_of(bank.root, name, manifest)[0][0] for name in ("in_checking", "in_savings")]
        assert sum(parts) == TOTAL, place
        version = manifest.views["accounts"].sink["version"]
        rows = DeltaTable(str(bank.root / "tables" / "accounts"), version=version)
        sums = rows.to_pyarrow_table().select(["checking", "savings"]).to_pydict()
        assert [sum(sums["checking"]), sum(sums["savings"])] == parts, place
    return epochs
