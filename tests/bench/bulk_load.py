"""Bulk load against Spark's own JDBC reader: the same table, the same number of partitions.

    python -m tests.bench.bulk_load --rows 1000000

mview: plan the chunks, read and stage each in a Spark task, register all in the mirror's base.
Spark: `read.jdbc` with as many partitions over the key, written as Parquet.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from pyspark.sql import SparkSession

from mview.config import Config, ConnectionSettings, SparkSettings
from mview.ingest.chunks import stage_chunk
from mview.ingest.spec import TableSpec, open_database
from mview.java.jars import resolve
from mview.secrets import reveal
from mview.session.spark import spark_session
from mview.snapshot import Chunk, Marker
from mview.store.manifest import TableState
from mview.store.mirror import Mirror
from tests.bench.results import Result
from tests.relations import rel
from tests.services.kafka import LOCK
from tests.services.mariadb import MariadbServer
from tests.services.postgresql import PostgresqlServer

_ROUNDS = 3
_COLUMNS = (
    "id bigint primary key, customer int not null, amount decimal(12,2), day date, note {text}"
)
_DRIVERS = {
    "postgresql": "org.postgresql.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlite": "org.sqlite.JDBC",
}
#: By the scheme of MariaDB's own URLs, Spark does not know how to quote a column there. SQLite's
#: driver is told how dates are written.
_URLS = {
    "postgresql": "jdbc:postgresql://{host}:{port}/{database}",
    "mariadb": "jdbc:mysql://{host}:{port}/{database}?permitMysqlScheme",
    "sqlite": "jdbc:sqlite:{database}?date_string_format=yyyy-MM-dd",
}


def make_rows(count: int) -> pa.Table:
    """The rows of the table."""
    rng = np.random.default_rng(7)
    cents = rng.integers(0, 10_000_000, count)
    notes = pa.array([f"note {n} of the bench" for n in range(5000)])
    return pa.table(
        {
            "id": np.arange(1, count + 1),
            "customer": rng.integers(0, 100_000, count).astype(np.int32),
            "amount": [f"{value // 100}.{value % 100:02d}" for value in cents.tolist()],
            "day": pa.array(rng.integers(15_000, 20_000, count).astype(np.int32), pa.date32()),
            "note": notes.take(pa.array(rng.integers(0, 5000, count))),
        }
    )


def fill_postgresql(server: PostgresqlServer, database: str, name: str, rows: pa.Table) -> None:
    """Copy rows into an existing table."""
    settings = ConnectionSettings(**server.settings(database))
    assert settings.password is not None
    with psycopg.connect(
        host=settings.host,
        port=int(settings.port or 0),
        user=settings.username,
        password=reveal(settings.password, ""),
        dbname=database,
        autocommit=True,
    ) as connection:
        sql = f"COPY {name} FROM STDIN (FORMAT csv)"
        with connection.cursor().copy(sql.encode()) as copy:
            for batch in rows.to_batches(200_000):
                text = io.BytesIO()
                options = pa_csv.WriteOptions(include_header=False)
                pa_csv.write_csv(pa.Table.from_batches([batch]), text, options)
                copy.write(text.getvalue())
        connection.execute(f"ANALYZE {name}".encode())


def fill_mariadb(server: MariadbServer, database: str, name: str, rows: pa.Table) -> None:
    """Insert rows, without quotes in their texts, into an existing table."""
    columns = [
        column.to_pylist()
        if pa.types.is_integer(column.type)
        else [f"'{value}'" for value in column.to_pylist()]
        for column in rows.columns
    ]
    for start in range(0, rows.num_rows, 20_000):
        part = zip(*(column[start : start + 20_000] for column in columns), strict=True)
        values = ",".join(f"({','.join(map(str, row))})" for row in part)
        server.execute(f"INSERT INTO {name} VALUES {values}", database)
    server.execute(f"ANALYZE TABLE {name}", database)


def fill_sqlite(file: Path, rows: pa.Table) -> Path:
    """A new file with the table `big`; returns it."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"CREATE TABLE big ({_COLUMNS.format(text='text')})")
        columns = [column.to_pylist() for column in rows.set_column(3, "day", _iso(rows)).columns]
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO big VALUES ({marks})", zip(*columns, strict=True))
        connection.commit()
    return file


def _iso(rows: pa.Table) -> pa.ChunkedArray:
    return rows["day"].cast(pa.string())


class Loads:
    """Both ways to load one table."""

    def __init__(self, spark: SparkSession, config: Config, connection: str, rows: int) -> None:
        self._spark, self._config = spark, config
        self._connection, self._rows = connection, rows
        self.partitions = 0

    def mview(self, place: Path) -> tuple[float, TableState]:
        """Plan, read, stage and register in a mirror; returns the seconds, and what it is then."""
        config, name = self._config, f"{self._connection}.big"
        start = time.perf_counter()
        database = open_database(config, self._connection)
        schema = database.describe("big")
        engine = config.engine
        plan = database.plan("big", schema, engine.chunk_rows, engine.chunk_bytes)
        database.close()
        mirror = Mirror(place, schema)
        state = mirror.create()
        stage = mirror.stage_folder(1).relative_to(mirror.base.folder)
        spec = TableSpec(rel(name), schema, mirror.base.folder, str(stage), plan)

        def load(chunk: Chunk) -> Marker:
            source = open_database(config, spec.connection)
            try:
                batches = source.read("big", schema, plan, chunk)
                facts: dict[str, Any] = stage_chunk(batches, spec, chunk)
            finally:
                source.close()
            return Marker(name, chunk.number, high_ms=0, **facts)

        chunks = plan.chunks
        markers = self._spark.sparkContext.parallelize(chunks, len(chunks)).map(load).collect()
        version = mirror.register(1, markers, {})
        seconds = time.perf_counter() - start
        assert sum(marker.rows for marker in markers) == self._rows
        self.partitions = len(chunks)
        return seconds, replace(
            state,
            base_version=version,
            rows=self._rows,
            released=tuple(range(len(chunks))),
            phase="loaded",
        )

    def jdbc(self, folder: Path) -> float:
        """Spark's reader to Parquet, with the same number of partitions; returns the seconds."""
        settings = self._config.connections[self._connection]
        kind = settings.drivername
        options = {
            "url": _URLS[kind].format(**settings.model_dump()),
            "dbtable": "big",
            "driver": _DRIVERS[kind],
            "fetchsize": "10000",
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(self._rows + 1),
            "numPartitions": str(self.partitions),
        }
        if settings.password is not None:
            options["user"] = settings.username or ""
            options["password"] = reveal(settings.password, "")
        start = time.perf_counter()
        frame = self._spark.read.format("jdbc").options(**options).load()
        frame.write.mode("overwrite").parquet(str(folder / "jdbc"))
        seconds = time.perf_counter() - start
        assert self._spark.read.parquet(str(folder / "jdbc")).count() == self._rows
        return seconds


def _compare(loads: Loads, connection: str, rows: int, temp: Path, result: Result) -> None:
    ours, theirs = [], []
    for _ in range(_ROUNDS + 1):
        folder = Path(tempfile.mkdtemp(dir=temp))
        ours.append(loads.mview(folder / "mirror")[0])
        theirs.append(loads.jdbc(folder))
        shutil.rmtree(folder)
    mine, jdbc = median(ours[1:]), median(theirs[1:])
    result.add(connection, rows, loads.partitions, rows / mine, rows / jdbc, jdbc / mine)


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--databases", default="postgresql,mariadb,sqlite")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    result = Result(
        "bulk_load",
        f"Bulk load of {options.rows:,} rows against Spark's JDBC reader to Parquet",
        ["database", "rows", "partitions", "mview rows/s", "Spark JDBC rows/s", "ratio"],
    )
    rows = make_rows(options.rows)
    with session(options.databases.split(","), rows, options.master) as (spark, config):
        for kind in config.connections:
            loads = Loads(spark, config, kind, rows.num_rows)
            _compare(loads, kind, rows.num_rows, config.path.parent, result)
    result.notes.append(f"median of {_ROUNDS} rounds after one to warm up, both in turns")
    result.save()


def filled(stack: ExitStack, temp: Path, kind: str, rows: pa.Table) -> dict[str, Any]:
    """A server with the table `big`, until the end of the stack; returns its settings."""
    folder = temp / kind
    folder.mkdir()
    if kind == "sqlite":
        return {"drivername": kind, "database": str(fill_sqlite(folder / "big.db", rows))}
    server: Any = (PostgresqlServer if kind == "postgresql" else MariadbServer)(folder)
    stack.callback(server.stop)
    database = stack.enter_context(server.new_database())
    text = "text" if kind == "postgresql" else "varchar(100)"
    server.execute(f"CREATE TABLE big ({_COLUMNS.format(text=text)})", database)
    fill = fill_postgresql if kind == "postgresql" else fill_mariadb
    fill(server, database, "big", rows)
    settings: dict[str, Any] = server.settings(database)
    return settings


@contextmanager
def session(
    kinds: Sequence[str], rows: pa.Table, master: str
) -> Iterator[tuple[SparkSession, Config]]:
    """Spark, and a configuration with a connection to a filled server of each kind."""
    drivers = ",".join(str(jar) for jar in resolve("jdbc", LOCK))
    with ExitStack() as stack:
        temp = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mview-bench-")))
        temp.chmod(0o755)
        # All servers before Spark: its workers get the passwords by the environment it starts in.
        connections = {
            kind: ConnectionSettings(name=kind, **filled(stack, temp, kind, rows)) for kind in kinds
        }
        config = Config(
            path=temp / "mview.yml",
            store=temp / "store",
            connections=connections,
            spark=SparkSettings(master=master, conf={"spark.jars": drivers}),
        )
        yield spark_session(config), config


if __name__ == "__main__":
    main()
