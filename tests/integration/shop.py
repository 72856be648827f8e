"""A shop in a real database behind a real connector: tables, a writer, and the truth of a cut."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.seeds import daily
from tests.services.debezium import DebeziumServer
from tests.services.kafka import KafkaServer
from tests.services.process import wait_until
from tests.services.registry import RegistryServer

CUSTOMERS, ORDERS, LINES_PER_ORDER = 2_000, 6_000, 2

#: The last so many customers and orders are left alone by the writer.
RESERVED = 10

#: Columns of the tables: name, type of the column in {dialect: SQL} or one for all.
_MOMENT = {"mariadb": "DATETIME(3)", "postgresql": "TIMESTAMPTZ(3)"}
COLUMNS: dict[str, dict[str, str]] = {
    "customers": {"id": "INT", "name": "VARCHAR(100)", "note": "TEXT"},
    "orders": {"id": "BIGINT", "customer_id": "INT", "placed": "moment", "day": "DATE"},
    "order_lines": {
        "order_id": "BIGINT",
        "line": "SMALLINT",
        "amount": "DECIMAL(12,2)",
        "shipped": "DATE",
        "note": "TEXT",
    },
}
KEYS = {"customers": ["id"], "orders": ["id"], "order_lines": ["order_id", "line"]}
_WORDS = ["", "Größe", "東京", "naïve 🚲", "a,b\"c'\\", "two\nlines", "__x", None]


@dataclass
class Shop:
    """A database with the three tables, and the topics of its connector.

    Attributes:
        kind: `mariadb` or `postgresql`.
        server: its server.
        database: its name, which is also the connector's topic prefix.
        kafka: the broker.
        customers: how many customers there are at first.
        orders: how many orders there are at first.
        registry: has the schemas of messages in Avro; None: they are JSON without the envelope.
    """

    kind: str
    server: Any
    database: str
    kafka: KafkaServer
    customers: int = CUSTOMERS
    orders: int = ORDERS
    registry: RegistryServer | None = None

    def connect(self) -> Any:
        """A driver connection with explicit transactions."""
        return self.server.connect(self.database)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run statements and commit."""
        rows: list[tuple[Any, ...]] = self.server.execute(sql, self.database)
        return rows

    @property
    def schema(self) -> str:
        """What stands before the table in a topic's name."""
        return "public" if self.kind == "postgresql" else self.database

    def topic(self, table: str) -> str:
        """The topic of a table."""
        return f"{self.database}.{self.schema}.{table}"

    def changes(self, **more: Any) -> dict[str, Any]:
        """The section `changes.<connection>`."""
        section = {
            "source": "kafka",
            "format": "debezium",
            "T": "2s",
            "bootstrap_servers": self.kafka.bootstrap,
            "topic": f"{self.database}.{self.schema}.{{table}}",
            "heartbeat_topic": f"__debezium-heartbeat.{self.database}",
            "options": {
                "format.time.precision.mode": "adaptive",
                "format.skipped.operations": "none",
            },
        }
        if self.registry is not None:
            told = {"format.encoding": "avro", "format.registry.url": self.registry.url}
            section["options"] = {"format.skipped.operations": "none", **told}
        return section | more

    def create(self) -> None:
        """Create and fill the tables."""
        customers, orders = self.customers, self.orders
        for table, columns in COLUMNS.items():
            parts = [
                f"{n} {_MOMENT.get(self.kind) if t == 'moment' else t}" for n, t in columns.items()
            ]
            key = ", ".join(KEYS[table])
            self.execute(f"CREATE TABLE {table} ({', '.join(parts)}, PRIMARY KEY ({key}))")
        rng = random.Random(1)
        connection = self.connect()
        cursor = connection.cursor()
        insert_many(cursor, "customers", [new_customer(rng, i) for i in range(customers)])
        insert_many(cursor, "orders", [new_order(rng, i, customers) for i in range(orders)])
        lines = [new_line(rng, i, n) for i in range(orders) for n in range(LINES_PER_ORDER)]
        insert_many(cursor, "order_lines", lines)
        connection.commit()
        connection.close()

    def touch(self) -> None:
        """Two changes per table, so that the connector makes the topics."""
        for table, column, values in (
            ("customers", "note", ("one", "two")),
            ("orders", "day", ("2001-01-01", "2002-02-02")),
            ("order_lines", "note", ("one", "two")),
        ):
            for value in values:
                key = KEYS[table][0]
                self.execute(f"UPDATE {table} SET {column} = '{value}' WHERE {key} = 0")


@contextmanager
def open_shop(
    kind: str,
    server: Any,
    kafka: KafkaServer,
    debezium: DebeziumServer,
    *,
    customers: int = CUSTOMERS,
    orders: int = ORDERS,
    registry: RegistryServer | None = None,
    **connector: str,
) -> Iterator[Shop]:
    """A filled shop whose connector streams; all topics are there."""
    with server.new_database() as database:
        shop = Shop(kind, server, database, kafka, customers, orders, registry)
        shop.create()
        settings = server.connector(database, *COLUMNS)
        settings |= {} if registry is None else registry.converters()
        with debezium.connector(settings | {"heartbeat.interval.ms": "200"} | connector):
            shop.touch()
            for table in COLUMNS:
                debezium.wait_for(shop.topic(table), 2)
            yield shop


# --- rows ----------------------------------------------------------------------------------------


def new_customer(rng: random.Random, number: int) -> tuple[Any, ...]:
    return (number, f"{rng.choice(_WORDS)}{number}", rng.choice(_WORDS))


def new_order(rng: random.Random, number: int, customers: int) -> tuple[Any, ...]:
    day = f"20{rng.randrange(10, 30)}-0{rng.randrange(1, 10)}-1{rng.randrange(10)}"
    placed = f"{day} 12:34:56.{rng.randrange(1000):03d}"
    return (
        number,
        rng.randrange(customers),
        rng.choice([placed, placed, None]),
        rng.choice([day, day, None]),
    )


def new_line(rng: random.Random, order: int, line: int) -> tuple[Any, ...]:
    amount = Decimal(rng.randrange(-(10**6), 10**6)).scaleb(-2)
    shipped = f"19{rng.randrange(50, 99)}-12-31"
    return (
        order,
        line,
        rng.choice([amount, amount, None]),
        rng.choice([shipped, None]),
        rng.choice(_WORDS),
    )


def insert_many(cursor: Any, table: str, rows: list[tuple[Any, ...]]) -> None:
    marks = ", ".join(["%s"] * len(COLUMNS[table]))
    for at in range(0, len(rows), 2_000):
        cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[at : at + 2_000])


# --- a writer ------------------------------------------------------------------------------------


class Writer:
    """Random transactions over all three tables in a thread of its own, until the block ends.

    Args:
        shop: where.
        seed: of the random choices.
        rate: transactions per second, about.
    """

    def __init__(self, shop: Shop, seed: int = 7, rate: float = 40.0) -> None:
        self._shop, self._rng, self._pause = shop, random.Random(daily(seed)), 1 / rate
        self._next = 1_000_000 * seed
        self._orders, self._customers = shop.orders - RESERVED, shop.customers - RESERVED
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self.transactions = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def until(self, transactions: int) -> None:
        """Wait until so many transactions are done."""
        wait_until(lambda: self.transactions >= transactions, "transactions", 120)

    def stop(self) -> None:
        """End the thread after its transaction."""
        self._stop.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        connection = self._shop.connect()
        try:
            while not self._stop.is_set():
                cursor = connection.cursor()
                for _ in range(self._rng.choice([1, 1, 1, 3, 8])):
                    self._change(cursor)
                if self._rng.random() < 0.07:
                    connection.rollback()
                else:
                    connection.commit()
                self.transactions += 1
                time.sleep(self._pause)
        except BaseException as error:
            self._error = error
        finally:
            connection.close()

    def _change(self, cursor: Any) -> None:
        rng = self._rng
        order, customer = rng.randrange(self._orders), rng.randrange(self._customers)
        dice = rng.random()
        if dice < 0.3:
            self._new_order(cursor)
        elif dice < 0.5:
            line = new_line(rng, order, 0)
            cursor.execute(
                "UPDATE order_lines SET amount = %s, shipped = %s, note = %s"
                " WHERE order_id = %s AND line = %s",
                (*line[2:], order, rng.randrange(LINES_PER_ORDER)),
            )
        elif dice < 0.6:
            cursor.execute("DELETE FROM order_lines WHERE order_id = %s", (order,))
        elif dice < 0.7:
            # The key changes, and with it the chunk that the row belongs to.
            self._next += 1
            cursor.execute("UPDATE orders SET id = %s WHERE id = %s", (self._next, order))
            cursor.execute(
                "UPDATE order_lines SET order_id = %s WHERE order_id = %s", (self._next, order)
            )
        elif dice < 0.8:
            cursor.execute("DELETE FROM orders WHERE id = %s", (order,))
        elif dice < 0.9:
            _, name, note = new_customer(rng, customer)
            cursor.execute(
                "UPDATE customers SET name = %s, note = %s WHERE id = %s", (name, note, customer)
            )
        else:
            cursor.execute(
                "UPDATE orders SET customer_id = %s, placed = NULL WHERE id = %s", (customer, order)
            )

    def _new_order(self, cursor: Any) -> None:
        self._next += 1
        insert_many(cursor, "orders", [new_order(self._rng, self._next, self._customers)])
        lines = [new_line(self._rng, self._next, n) for n in range(self._rng.randrange(4))]
        insert_many(cursor, "order_lines", lines)
