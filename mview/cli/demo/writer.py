"""A process that keeps changing the demo's database and writes its changelog, as a connector would.

Run as `python -m mview.cli.demo.writer FOLDER`. It ends when its standard input closes, so never
later than the process that started it, and prints what it did as one line of JSON.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from mview.cli.demo import shop

#: Transactions per second; a transaction changes one to seven rows.
RATE = 30
#: Seconds after which the writer ends by itself, whatever happens to its parent.
LIMIT = 600
#: Seconds between heartbeats: they move the watermark while no row changes.
HEARTBEAT = 0.25
#: Lines per change file, so that the folder shows more than one.
FILE_LINES = 2_000

Row = dict[str, Any]


@dataclass(frozen=True)
class ShopChange:
    """One changed row."""

    table: str
    op: str
    before: Row | None
    after: Row | None


class Shop:
    """The database as the shop's staff uses it: every method is the work of one transaction."""

    def __init__(self, file: Path, rng: random.Random) -> None:
        self.database = sqlite3.connect(file, isolation_level=None, timeout=30)
        self.database.row_factory = sqlite3.Row
        self.rng = rng

    def transaction(self) -> Iterator[ShopChange]:
        """Do one random thing and yield its changes."""
        works: list[tuple[Callable[[], Iterator[ShopChange]], int]] = [
            (self.place_order, 40),
            (self.move_order_on, 25),
            (self.change_quantity, 20),
            (self.delete_order, 5),
            (self.new_customer, 5),
            (self.customer_moves, 5),
        ]
        chosen = self.rng.choices([work for work, _ in works], [weight for _, weight in works])
        yield from chosen[0]()

    def place_order(self) -> Iterator[ShopChange]:
        """A customer orders."""
        number = self._next("orders", "order_id")
        customers = self._next("customers", "customer_id") - 1
        yield self._insert("orders", shop.order(self.rng, number, customers))
        for line in shop.order_lines(self.rng, number):
            yield self._insert("order_lines", line)

    def move_order_on(self) -> Iterator[ShopChange]:
        """An order gets another status."""
        if order := self._any("orders", "order_id"):
            yield self._update("orders", order, {"status": self.rng.choice(shop.STATUSES)})

    def change_quantity(self) -> Iterator[ShopChange]:
        """A customer wants more or less of something."""
        if line := self._any("order_lines", "order_id"):
            yield self._update("order_lines", line, {"quantity": self.rng.randint(1, 9)})

    def delete_order(self) -> Iterator[ShopChange]:
        """An order is deleted with its lines."""
        if order := self._any("orders", "order_id"):
            lines = self.database.execute(
                "SELECT * FROM order_lines WHERE order_id = ?", (order["order_id"],)
            ).fetchall()
            for line in lines:
                yield self._delete("order_lines", dict(line))
            yield self._delete("orders", order)

    def new_customer(self) -> Iterator[ShopChange]:
        """Somebody signs up."""
        number = self._next("customers", "customer_id")
        yield self._insert("customers", shop.customer(self.rng, number))

    def customer_moves(self) -> Iterator[ShopChange]:
        """A customer moves to another region: all their orders show it."""
        if customer := self._any("customers", "customer_id"):
            yield self._update("customers", customer, {"region": self.rng.choice(shop.REGIONS)})

    def _next(self, table: str, column: str) -> int:
        (highest,) = self.database.execute(f"SELECT max({column}) FROM {table}").fetchone()
        return int(highest) + 1

    def _any(self, table: str, column: str) -> Row | None:
        start = self.rng.randrange(self._next(table, column))
        row = self.database.execute(
            f"SELECT * FROM {table} WHERE {column} >= ? ORDER BY {column} LIMIT 1", (start,)
        ).fetchone()
        return None if row is None else dict(row)

    def _insert(self, table: str, row: Row) -> ShopChange:
        places = ", ".join("?" for _ in row)
        self.database.execute(f"INSERT INTO {table} VALUES ({places})", tuple(row.values()))
        return ShopChange(table, "insert", None, row)

    def _update(self, table: str, row: Row, new: Row) -> ShopChange:
        sets = ", ".join(f"{name} = ?" for name in new)
        self.database.execute(
            f"UPDATE {table} SET {sets} WHERE {_where(table)}", (*new.values(), *_key(table, row))
        )
        return ShopChange(table, "update", row, {**row, **new})

    def _delete(self, table: str, row: Row) -> ShopChange:
        self.database.execute(f"DELETE FROM {table} WHERE {_where(table)}", _key(table, row))
        return ShopChange(table, "delete", row, None)


def _where(table: str) -> str:
    return " AND ".join(f"{name} = ?" for name in shop.KEYS[table])


def _key(table: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in shop.KEYS[table])


class ChangeFiles:
    """A folder of change files in the `unified` format: JSON lines, appended and flushed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: TextIO | None = None
        self._lines = 0
        self.position = 0

    def changes(self, changes: list[ShopChange], ts: int) -> None:
        """Append the changes of a committed transaction."""
        for change in changes:
            self.position += 1
            self._write({**change.__dict__, "ts": ts, "position": self.position})
        self._flush()

    def heartbeat(self, ts: int) -> None:
        """Append the promise that every change up to `ts` stands before this line."""
        self._write({"op": "heartbeat", "ts": ts})
        self._flush()

    def _write(self, line: Row) -> None:
        if self._file is None or self._lines % FILE_LINES == 0:
            self.close()
            name = f"shop-{self._lines // FILE_LINES + 1:05d}.jsonl"
            self._file = (self._folder / name).open("a", encoding="utf-8")
        self._lines += 1
        self._file.write(json.dumps(line) + "\n")

    def _flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the current file."""
        if self._file is not None:
            self._file.close()


def write(folder: Path, stop: threading.Event, *, rate: float = RATE, seed: int = 11) -> Row:
    """Change the database of `folder` until `stop` is set.

    Returns:
        `{"transactions", "changes", "ts"}`; ts is the last heartbeat: everything stands before it.
    """
    staff = Shop(folder / "shop.db", random.Random(seed))
    files = ChangeFiles(folder / "changes")
    files.heartbeat(_now())
    transactions, ends, beat = 0, time.monotonic() + LIMIT, time.monotonic()
    while not stop.wait(1 / rate) and time.monotonic() < ends:
        staff.database.execute("BEGIN IMMEDIATE")
        changes = list(staff.transaction())
        ts = _now()
        staff.database.execute("COMMIT")
        # Only now: a changelog has what is committed, never what might still be rolled back.
        files.changes(changes, ts)
        transactions += 1
        if time.monotonic() - beat > HEARTBEAT:
            beat = time.monotonic()
            files.heartbeat(_now())
    last = _now()
    files.heartbeat(last)
    files.close()
    staff.database.close()
    return {"transactions": transactions, "changes": files.position, "ts": last}


def _now() -> int:
    return time.time_ns() // 1_000_000


def _main() -> None:
    stop = threading.Event()

    def wait_for_the_end_of_input() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=wait_for_the_end_of_input, daemon=True).start()
    print(json.dumps(write(Path(sys.argv[1]), stop)), flush=True)


if __name__ == "__main__":
    _main()
