"""The pilot's tables (W2): contract versions, customers and tariffs, each in another database.

Each database has one table and one writer. A writer commits a transaction, then sends its changes
to Kafka in the order of the commits, as a connector would; heartbeats follow what they vouch for.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from mview.config import ConnectionSettings
from tests.bench.bulk_load import fill_mariadb, fill_postgresql
from tests.services.mariadb import MariadbServer
from tests.services.postgresql import PostgresqlServer

#: Latest version per contract, with its customer and tariff; `{more}` are more options.
VIEW = """
CREATE MATERIALIZED VIEW current_contracts WITH (key='contract_id'{more}) AS
SELECT v.contract_id, v.version, v.amount, c.name, c.region, t.title, t.price
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY contract_id ORDER BY version DESC) AS place
    FROM billing.contract_versions
) AS v
JOIN crm.customers AS c ON c.customer_id = v.customer_id
JOIN catalog.tariffs AS t ON t.tariff_id = v.tariff_id
WHERE v.place = 1 AND v.amount > 0
"""

#: Versions that a contract has at first.
VERSIONS = 4

_REGIONS = ("north", "east", "south", "west")

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Pilot:
    """Sizes: rows of each table at first. Contracts have VERSIONS versions each."""

    versions: int
    customers: int
    tariffs: int

    @property
    def contracts(self) -> int:
        """How many contracts there are at first."""
        return self.versions // VERSIONS


@dataclass(frozen=True)
class Source:
    """One table in one database.

    Attributes:
        connection: its name in the configuration.
        table: its name.
        columns: names and SQL types; the key comes first.
        key: number of key columns.
        share: of all changes.
        settings: of the connection, for the configuration.
        connect: opens a connection with explicit transactions.
        mark: the placeholder of its driver.
    """

    connection: str
    table: str
    columns: dict[str, str]
    key: int
    share: float
    settings: dict[str, Any]
    connect: Callable[[], Any]
    mark: str = "%s"

    @property
    def topic(self) -> str:
        """Its topic."""
        return f"{self.connection}.{self.table}"

    def ddl(self) -> str:
        """The statement that creates it."""
        columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in self.columns.items())
        key = ", ".join(list(self.columns)[: self.key])
        return f"CREATE TABLE {self.table} ({columns}, PRIMARY KEY ({key}))"


def make_contract_versions(pilot: Pilot) -> pa.Table:
    """The rows of the large table."""
    rng = np.random.default_rng(7)
    count = pilot.contracts * VERSIONS
    return pa.table(
        {
            "contract_id": np.repeat(np.arange(1, pilot.contracts + 1), VERSIONS),
            "version": np.tile(np.arange(1, VERSIONS + 1), pilot.contracts),
            "customer_id": rng.integers(1, pilot.customers + 1, count),
            "tariff_id": rng.integers(1, pilot.tariffs + 1, count),
            "amount": rng.integers(-10_000, 1_000_000, count),
        }
    )


def make_customers(pilot: Pilot) -> pa.Table:
    """The customers."""
    regions = np.random.default_rng(8).integers(0, len(_REGIONS), pilot.customers)
    numbers = np.arange(1, pilot.customers + 1)
    return pa.table(
        {
            "customer_id": numbers,
            "name": [f"customer {number}" for number in numbers.tolist()],
            "region": pa.array(_REGIONS).take(pa.array(regions)),
        }
    )


def make_tariffs(pilot: Pilot) -> pa.Table:
    """The tariffs."""
    numbers = np.arange(1, pilot.tariffs + 1)
    return pa.table(
        {
            "tariff_id": numbers,
            "title": [f"tariff {number}" for number in numbers.tolist()],
            "price": np.random.default_rng(9).integers(1, 10_000, pilot.tariffs),
        }
    )


# --- sources -------------------------------------------------------------------------------------


def billing(server: PostgresqlServer, database: str, pilot: Pilot) -> Source:
    """Make and fill the table in PostgreSQL."""
    columns = dict.fromkeys(
        ("contract_id", "version", "customer_id", "tariff_id", "amount"), "bigint"
    )
    source = Source(
        "billing",
        "contract_versions",
        columns,
        2,
        0.7,
        server.settings(database),
        lambda: server.connect(database),
    )
    server.execute(source.ddl(), database)
    fill_postgresql(server, database, source.table, make_contract_versions(pilot))
    return source


def crm(server: MariadbServer, database: str, pilot: Pilot) -> Source:
    """Make and fill the table in MariaDB."""
    columns = {"customer_id": "bigint", "name": "varchar(100)", "region": "varchar(20)"}
    source = Source(
        "crm",
        "customers",
        columns,
        1,
        0.2,
        server.settings(database),
        lambda: server.connect(database),
    )
    server.execute(source.ddl(), database)
    fill_mariadb(server, database, source.table, make_customers(pilot))
    return source


def catalog(file: Path, pilot: Pilot) -> Source:
    """Make and fill the table in SQLite."""
    columns = {"tariff_id": "bigint", "title": "text", "price": "bigint"}
    settings = {"drivername": "sqlite", "database": str(file)}
    source = Source(
        "catalog",
        "tariffs",
        columns,
        1,
        0.1,
        settings,
        lambda: sqlite3.connect(file, timeout=60, check_same_thread=False),
        "?",
    )
    connection = source.connect()
    # Otherwise a reader and the writer would wait for each other.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(source.ddl())
    columns_of = (column.to_pylist() for column in make_tariffs(pilot).columns)
    insert = f"INSERT INTO {source.table} VALUES (?, ?, ?)"
    connection.executemany(insert, zip(*columns_of, strict=True))
    connection.commit()
    connection.close()
    return source


def password_file(source: Source, folder: Path, secret: str) -> dict[str, Any]:
    """The settings with the password in a file, which Spark's workers can read at any time."""
    if "password" not in source.settings:
        return source.settings
    file = folder / f"{source.connection}.secret"
    file.write_text(secret)
    file.chmod(0o600)
    settings = source.settings | {"password": f"${{file:{file}}}"}
    return ConnectionSettings(**settings).model_dump(
        include={"drivername", "host", "port", "username", "password", "database"}
    )


# --- changes -------------------------------------------------------------------------------------


class Supply:
    """Changes of one table, each valid after those before it: (op, key, row or None)."""

    def __init__(self, source: Source, pilot: Pilot) -> None:
        self._rng = np.random.default_rng(len(source.table))
        self._pilot = pilot
        self._make = {"billing": self._version, "crm": self._customer, "catalog": self._tariff}[
            source.connection
        ]
        self._newest: dict[int, int] = {}

    def next(self) -> tuple[str, Row, Row | None]:
        """The next change."""
        return self._make()

    def _below(self, end: int) -> int:
        return int(self._rng.integers(1, end + 1))

    def _version(self) -> tuple[str, Row, Row | None]:
        """A new version, a new amount of the latest one, or the latest one withdrawn."""
        contract = self._below(self._pilot.contracts)
        newest = self._newest.get(contract, VERSIONS)
        draw = self._rng.random()
        if draw < 0.15 and newest > 1:
            self._newest[contract] = newest - 1
            return "delete", (contract, newest), None
        op = "insert" if draw < 0.6 else "update"
        version = newest + (op == "insert")
        self._newest[contract] = version
        more = self._below(self._pilot.customers), self._below(self._pilot.tariffs)
        row = (contract, version, *more, self._below(1_000_000) - 10_000)
        return op, (contract, version), row

    def _customer(self) -> tuple[str, Row, Row | None]:
        number = self._below(self._pilot.customers)
        region = _REGIONS[self._below(len(_REGIONS)) - 1]
        return "update", (number,), (number, f"customer {number}", region)

    def _tariff(self) -> tuple[str, Row, Row | None]:
        number = self._below(self._pilot.tariffs)
        return "update", (number,), (number, f"tariff {number}", self._below(10_000))


class Writer:
    """Transactions on one table at a rate, and the changelog of them, in a thread of its own.

    Args:
        source: the table.
        pilot: its sizes.
        rate: changes per second.
        send: sends a message to a topic.
    """

    #: Transactions per second: ten changes or so each at the rates of the pilot.
    _TRANSACTIONS = 10.0

    def __init__(
        self, source: Source, pilot: Pilot, rate: float, send: Callable[[str, bytes], None]
    ) -> None:
        self._source, self._supply = source, Supply(source, pilot)
        self._rate, self._send = rate, send
        self._connection = source.connect()
        self._position = 0
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for count in self._due():
                self._transaction(count)
        except BaseException as error:
            self._error = error
        finally:
            self._connection.close()

    def _due(self) -> Iterator[int]:
        """How many changes are due, a few times a second."""
        start, done = time.monotonic(), 0
        while not self._stop.wait(1 / self._TRANSACTIONS):
            due = int((time.monotonic() - start) * self._rate)
            yield due - done
            done = due

    def _transaction(self, count: int) -> None:
        changes = [self._supply.next() for _ in range(count)]
        cursor = self._connection.cursor()
        for _, key, row in changes:
            self._write(cursor, key, row)
        self._connection.commit()
        cursor.close()
        stamp = int(time.time() * 1000)
        for op, key, row in changes:
            self._position += 1
            self._send(self._source.topic, self._message(op, key, row, stamp))
        beat = orjson.dumps({"op": "heartbeat", "ts": stamp})
        self._send(f"{self._source.connection}.heartbeat", beat)

    def _write(self, cursor: Any, key: Sequence[Any], row: Row | None) -> None:
        names, mark = list(self._source.columns), self._source.mark
        where = " AND ".join(f"{name} = {mark}" for name in names[: self._source.key])
        cursor.execute(f"DELETE FROM {self._source.table} WHERE {where}", key)
        if row is not None:
            marks = ", ".join(mark for _ in row)
            cursor.execute(f"INSERT INTO {self._source.table} VALUES ({marks})", row)

    def _message(self, op: str, key: Row, row: Row | None, stamp: int) -> bytes:
        names = list(self._source.columns)
        body = {"table": self._source.table, "op": op, "ts": stamp, "position": self._position}
        if row is None:
            image = {"before": dict(zip(names, key, strict=False))}
        else:
            image = {"after": dict(zip(names, row, strict=True))}
        return orjson.dumps(body | image)

    def check(self) -> None:
        """Raise what the thread raised."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread after its transaction."""
        self._stop.set()
        self._thread.join()
        self.check()
