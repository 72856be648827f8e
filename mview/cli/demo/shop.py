"""The database of the demo: customers, orders and order lines, the same on every machine."""

from __future__ import annotations

import datetime as dt
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Every demo has the same rows.
_SEED = 7
CUSTOMERS = 10_000
ORDERS = 60_000

REGIONS = ("north", "south", "east", "west", "overseas")
STATUSES = ("new", "paid", "shipped", "cancelled")
PRODUCTS = ("lamp", "chair", "desk", "shelf", "mirror", "carpet", "clock", "vase")

#: Primary keys by table: what the change writer needs, too.
KEYS = {
    "customers": ("customer_id",),
    "orders": ("order_id",),
    "order_lines": ("order_id", "line_no"),
}

_FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jon")
_LAST = ("Adler", "Berg", "Costa", "Duarte", "Ekman", "Fischer", "Gold", "Holm", "Ito", "Jansen")
_DAY_ONE = dt.date(2024, 1, 1)

_DDL = """
CREATE TABLE customers (
    customer_id INTEGER NOT NULL PRIMARY KEY,
    name        VARCHAR(60) NOT NULL,
    region      VARCHAR(10) NOT NULL
);
CREATE TABLE orders (
    order_id    INTEGER NOT NULL PRIMARY KEY,
    customer_id INTEGER NOT NULL,
    ordered_on  DATE NOT NULL,
    status      VARCHAR(10) NOT NULL
);
CREATE TABLE order_lines (
    order_id INTEGER NOT NULL,
    line_no  INTEGER NOT NULL,
    product  VARCHAR(20) NOT NULL,
    quantity INTEGER NOT NULL,
    price    DECIMAL(10,2) NOT NULL,
    PRIMARY KEY (order_id, line_no)
);
CREATE INDEX orders_by_customer ON orders (customer_id);
"""

Row = dict[str, Any]


def customer(rng: random.Random, customer_id: int) -> Row:
    """A customer as a row."""
    return {
        "customer_id": customer_id,
        "name": f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
        "region": rng.choice(REGIONS),
    }


def order(rng: random.Random, order_id: int, customers: int) -> Row:
    """An order as a row, of one of the first `customers` customers."""
    day = _DAY_ONE + dt.timedelta(days=rng.randrange(500))
    return {
        "order_id": order_id,
        "customer_id": rng.randint(1, customers),
        "ordered_on": day.isoformat(),
        "status": rng.choice(STATUSES),
    }


def order_lines(rng: random.Random, order_id: int) -> list[Row]:
    """The lines of an order as rows, one to six."""
    return [
        {
            "order_id": order_id,
            "line_no": number,
            "product": rng.choice(PRODUCTS),
            "quantity": rng.randint(1, 5),
            "price": rng.randrange(500, 20_000) / 100,
        }
        for number in range(1, rng.randint(1, 6) + 1)
    ]


def create(file: Path, *, customers: int = CUSTOMERS, orders: int = ORDERS) -> None:
    """Create and fill the database; always with the same rows."""
    rng = random.Random(_SEED)
    database = sqlite3.connect(file)
    try:
        # Write-ahead logging: the load reads while the writer commits.
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(_DDL)
        numbers = range(1, orders + 1)
        _fill(database, "customers", (customer(rng, n) for n in range(1, customers + 1)))
        _fill(database, "orders", (order(rng, n, customers) for n in numbers))
        _fill(database, "order_lines", (line for n in numbers for line in order_lines(rng, n)))
        database.commit()
    finally:
        database.close()


def _fill(database: sqlite3.Connection, table: str, rows: Iterator[Row]) -> None:
    first = next(rows)
    places = ", ".join("?" for _ in first)
    insert = f"INSERT INTO {table} VALUES ({places})"
    database.execute(insert, tuple(first.values()))
    database.executemany(insert, (tuple(row.values()) for row in rows))
