"""A SQLite database with its change files, written as a careful application writes them."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from mview.config import Config
from mview.config.file import load_config
from tests.conftest import SMALL
from tests.seeds import daily

Row = dict[str, Any]

#: DDL, primary key and the rows a shop begins with, by table.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "customers": ("id integer primary key, name text not null, segment text", ("id",)),
    "orders": ("id integer primary key, customer_id integer, day date", ("id",)),
    "lines": (
        "order_id integer, line integer, product text, amount decimal(10,2),"
        " primary key(order_id, line)",
        ("order_id", "line"),
    ),
    "products": ("code text primary key, price decimal(10,2)", ("code",)),
    "notes": ("id integer primary key, body text", ("id",)),
}

SEGMENTS = ("gold", "silver", None)
CODES = tuple(f"p-{n:02d}é" for n in range(12))


def first_rows(size: int) -> dict[str, list[Row]]:
    """What the tables begin with; `notes` is empty."""
    return {
        "customers": [
            {"id": n, "name": f"c{n}", "segment": SEGMENTS[n % 3]} for n in range(size // 4)
        ],
        "orders": [
            {"id": n, "customer_id": n % (size // 4) if n % 7 else None, "day": "2024-02-29"}
            for n in range(size)
        ],
        "lines": [
            {"order_id": n, "line": k, "product": CODES[(n + k) % 12], "amount": f"{n}.{k}0"}
            for n in range(size)
            for k in range(2)
        ],
        "products": [{"code": code, "price": "9.99"} for code in CODES[:8]],
        "notes": [],
    }


class Shop:
    """The database, its log, and what the tables held at the start.

    Every change is committed first and then appended to the log, one at a time.

    Args:
        root: its folder.
        size: orders at the start; the other tables go by it.
        copied: another shop's folder, of the same size, that it begins as a copy of, with the
            store; nothing was changed there, and nobody uses it.
    """

    def __init__(self, root: Path, size: int = 60, copied: Path | None = None) -> None:
        self.root = root
        #: More options of the JVM.
        self.java = ""
        self.folder = root / "changes"
        if copied is None:
            self.folder.mkdir(parents=True)
        else:
            shutil.copytree(copied, root, dirs_exist_ok=True)
        self.first = first_rows(size)
        self.file = self.folder / "000.jsonl"
        self.file.touch()
        self._lock = threading.RLock()
        self._position = 0
        self.database = root / "shop.db"
        self._db = sqlite3.connect(self.database, check_same_thread=False, isolation_level=None)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=off")
        if copied is not None:
            return
        for name, (ddl, _) in TABLES.items():
            self._db.execute(f"create table {name}({ddl})")
            for row in self.first[name]:
                self._insert(name, row)

    def close(self) -> None:
        self._db.close()

    def config(self, **engine: Any) -> Config:
        """Write `mview.yml` and read it."""
        file = self.root / "mview.yml"
        options = "spark.driver.extraJavaOptions"
        settings = {
            "store": "store",
            "connections": {"shop": {"drivername": "sqlite", "database": "shop.db"}},
            "changes": {
                "shop": {"source": "files", "format": "unified", "path": "changes", "T": "200ms"}
            },
            "engine": {"chunk_rows": 25, "chunks_per_epoch": 4, **engine},
            "spark": {
                "master": "local[2]",
                "conf": {
                    **SMALL,
                    options: f"{SMALL[options]} {self.java}",
                    "spark.driver.memory": "1g",
                    "spark.sql.shuffle.partitions": "1",
                },
            },
        }
        file.write_text(yaml.safe_dump(settings))
        return load_config(file)

    # --- changes ---------------------------------------------------------------------------------

    def rows(self, table: str) -> list[Row]:
        with self._lock:
            cursor = self._db.execute(f"select * from {table}")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def insert(self, table: str, row: Row) -> None:
        with self._lock:
            self._insert(table, row)
            self.log(table=table, op="insert", after=row)

    def update(self, table: str, old: Row, new: Row) -> None:
        """Change a row; another key is fine."""
        key = TABLES[table][1]
        with self._lock:
            cells = ", ".join(f"{name}=:{name}" for name in new)
            where = " and ".join(f"{name}=:old_{name}" for name in key)
            values = {**new, **{f"old_{name}": old[name] for name in key}}
            self._db.execute(f"update {table} set {cells} where {where}", values)
            before = {name: old[name] for name in key}
            self.log(table=table, op="update", before=before, after=new)

    def delete(self, table: str, old: Row) -> None:
        key = {name: old[name] for name in TABLES[table][1]}
        with self._lock:
            where = " and ".join(f"{name}=:{name}" for name in key)
            self._db.execute(f"delete from {table} where {where}", key)
            self.log(table=table, op="delete", key=key)

    def truncate(self, table: str) -> None:
        with self._lock:
            self._db.execute(f"delete from {table}")
            self.log(table=table, op="truncate")

    def heartbeat(self) -> None:
        self.log(op="heartbeat")

    def log(self, **change: Any) -> None:
        """Append a line, with the next position and the time."""
        with self._lock:
            if change["op"] != "heartbeat":
                self._position += 1
                change = {**change, "position": self._position}
            self.append(json.dumps({**change, "ts": time.time_ns() // 1_000_000}))

    def restart_positions(self) -> None:
        """From now on the log is that of another server, which counts for itself."""
        with self._lock:
            self._position = 0

    def append(self, line: str) -> None:
        """Append a line as it is."""
        with self._lock, self.file.open("a") as out:
            out.write(line + "\n")

    def _insert(self, table: str, row: Row) -> None:
        marks = ", ".join(f":{name}" for name in row)
        self._db.execute(f"insert into {table} values ({marks})", row)

    @contextmanager
    def busy(
        self, seed: int = 0, pause: float = 0.01, random_: random.Random | None = None
    ) -> Iterator[None]:
        """Change the database all the time, in a thread; by a seed of the day, or as given."""
        stop = threading.Event()
        changes = Changes(self, random_ or random.Random(daily(seed)))
        failures: list[BaseException] = []

        def work() -> None:
            try:
                while not stop.wait(pause):
                    changes.one()
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


class Changes:
    """Random changes of a shop; keys come back after they were deleted, and change."""

    def __init__(self, shop: Shop, random_: random.Random) -> None:
        self.shop, self.random = shop, random_

    def one(self) -> None:
        """One change, or a heartbeat."""
        if self.random.random() < 0.2:
            self.shop.heartbeat()
            return
        table = self.random.choice(["customers", "orders", "lines", "lines", "products", "notes"])
        rows = self.shop.rows(table)
        old = self.random.choice(rows) if rows else None
        new = self._row(table)
        key = TABLES[table][1]
        taken = {tuple(row[name] for name in key) for row in rows}
        wanted = tuple(new[name] for name in key)
        act = self.random.random()
        if old is None or (act < 0.4 and wanted not in taken):
            if wanted not in taken:
                self.shop.insert(table, new)
        elif act < 0.6:
            self.shop.delete(table, old)
        elif act < 0.7 and wanted not in taken:
            self.shop.update(table, old, new)  # to another key
        else:
            self.shop.update(table, old, {**new, **{name: old[name] for name in key}})

    def _row(self, table: str) -> Row:
        r = self.random
        make: Mapping[str, Callable[[], Row]] = {
            "customers": lambda: {
                "id": r.randrange(20),
                "name": f"n{r.randrange(9)}",
                "segment": r.choice(SEGMENTS),
            },
            "orders": lambda: {
                "id": r.randrange(70),
                "customer_id": r.choice([None, r.randrange(20)]),
                "day": r.choice([None, "2024-02-29", "1969-12-31"]),
            },
            "lines": lambda: {
                "order_id": r.randrange(70),
                "line": r.randrange(3),
                "product": r.choice([None, *CODES]),
                "amount": r.choice([None, f"{r.randrange(-900, 9000) / 100:.2f}"]),
            },
            "products": lambda: {"code": r.choice(CODES), "price": f"{r.randrange(900) / 100:.2f}"},
            "notes": lambda: {"id": r.randrange(5), "body": r.choice([None, "", "ä", "x" * 50])},
        }
        return make[table]()
