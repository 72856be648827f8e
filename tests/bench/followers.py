"""What a step of a sink costs beside the same rows written without its protocol.

    python -m tests.bench.followers clickhouse sqlite

Each step brings 300 changes (100 rows inserted, 150 updated, 50 deleted) to a table of 100,000
rows, as the thread of a sink does: with its cursor on disk before and after. The plain way writes
the same changes with the target's own statement into a table of the same shape: no mark, no
staging, no cursor, nothing asked; all rows at first by the target's own bulk tool. Both take turns.
CPU is that of this process, and that of the server where it is one.
"""

from __future__ import annotations

import argparse
import io
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from decimal import Decimal
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import orjson
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake
from mview_connectors.followers.clickhouse.follower import ClickhouseFollower, ClickhouseSettings
from mview_connectors.followers.delta.follower import DeltaFollower
from mview_connectors.followers.delta.settings import DeltaSettings
from mview_connectors.followers.files.follower import FilesFollower, FilesSettings
from mview_connectors.followers.hudi.environment import LOCK as HUDI_LOCK
from mview_connectors.followers.hudi.environment import command as hudi_command
from mview_connectors.followers.hudi.follower import HudiFollower
from mview_connectors.followers.hudi.settings import HudiSettings
from mview_connectors.followers.iceberg.follower import IcebergFollower
from mview_connectors.followers.iceberg.settings import IcebergSettings
from mview_connectors.followers.kafka.follower import KafkaFollower, KafkaSettings
from mview_connectors.followers.paimon.environment import interpreter
from mview_connectors.followers.paimon.follower import PaimonFollower
from mview_connectors.followers.paimon.settings import PaimonSettings
from mview_connectors.followers.sql.follower import SqlFollower, SqlSettings
from mview_connectors.followers.sql.sqlite import SqliteFollower
from mview_connectors.followers.starrocks.follower import (
    StarrocksFollower,
    StarrocksSettings,
)
from mview_connectors.followers.starrocks.rows import requests_of
from mview_connectors.formats.written import json_keys, json_rows

from mview.changelog import KIND
from mview.clock import SystemClock
from mview.follow.cursor import CursorLog
from mview.follow.following import Content, Following, ViewChanges, delta_schema, rows_schema
from mview.follower import Follower, FollowerTarget, gone_keys, new_rows
from mview.java.jars import resolve
from mview.rows.match import row_codes
from mview.testing.contract import schema_of
from tests.bench.results import Result
from tests.connectors.test_followers_servers import (
    MariadbHarness,
    PostgresqlHarness,
    ServerHarness,
)
from tests.services.clickhouse import ClickhouseServer
from tests.services.hudi import read_hudi
from tests.services.kafka import KafkaServer
from tests.services.mariadb import MariadbServer
from tests.services.postgresql import PostgresqlServer
from tests.services.process import free_port
from tests.services.s3 import S3Server
from tests.services.starrocks import PASSWORD as STARROCKS_PASSWORD
from tests.services.starrocks import USER as STARROCKS_USER

ROWS = 100_000
INSERTED, UPDATED, DELETED = 100, 150, 50
SCHEMA = schema_of(
    [
        ("k", "bigint"),
        ("name", "string"),
        ("amount", "decimal(18,2)"),
        ("at", "timestamp"),
        ("flag", "boolean"),
        ("d", "double"),
    ]
)


class Bench(NamedTuple):
    """A sink to measure.

    Attributes:
        follower: on an empty place.
        target: what it was made with.
        plain: writes a delta's batch without the protocol; first called with all rows as +I,
            which it loads as the target's users do.
        pids: of the server, where it is a process or more of its own.
        count: the rows that readers see of the two tables, the sink's first.
    """

    follower: Follower
    target: FollowerTarget
    plain: Callable[[pa.RecordBatch], None]
    pids: tuple[int, ...]
    count: Callable[[], tuple[int, int]]


def target_of(settings: Any) -> FollowerTarget:
    """The target of a sink in a bench."""
    return FollowerTarget("bench", "s", SCHEMA, settings, "store/bench/s", 1)


class Other:
    """A process that writes the plain way: a step is an Arrow stream, answered by a line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid, self.calls = self._process.pid, self._process.stdin
        self.answers = self._process.stdout

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a step."""
        with pa.ipc.new_stream(self.calls, batch.schema) as stream:
            stream.write_batch(batch)
        self.calls.flush()
        assert self.answers.readline() == b"done\n"

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self.calls.close()
        self.answers.close()


@contextmanager
def clickhouse() -> Iterator[Bench]:
    """A server of version 18; plain: one INSERT into a table of the same engine."""
    with tempfile.TemporaryDirectory() as folder:
        server = ClickhouseServer(Path(folder))
        options = {"timestamps": "micros", "every": 0, "table": "t"}
        target = target_of(ClickhouseSettings(**{**server.settings("default"), **options}))
        follower = ClickhouseFollower(target)
        follower.create()
        (connection,) = follower._servers()
        connection.run(follower._table_ddl("plain"))
        epochs = iter(range(1, 1 << 30))

        def plain(batch: pa.RecordBatch) -> None:
            held, epoch = follower._changed(batch), next(epochs)
            places = pa.array(np.arange(len(held[1]), dtype=np.uint64))
            rows = follower._rows_block(held, epoch, 1, places)
            follower._insert(connection, "plain", follower._block([rows], None))

        def count() -> tuple[int, int]:
            ours, theirs = (
                int(server.execute(f"SELECT count() AS n FROM {rows}")[0][0])
                for rows in ("t", "plain FINAL WHERE _deleted = 0")
            )
            return ours, theirs

        try:
            yield Bench(follower, target, plain, (server.pid,), count)
        finally:
            follower.close()
            server.stop()


@contextmanager
def sqlite() -> Iterator[Bench]:
    """A file; plain: the same statements in a transaction of their own, without the mark."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sink.db"
        settings = SqlSettings(type="sqlite", url=f"sqlite:///{file}", table="t")
        target = target_of(settings)
        follower = SqliteFollower(target)
        connection = sqlite3.connect(Path(folder) / "plain.db", isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(follower._table_ddl())

        def plain(batch: pa.RecordBatch) -> None:
            connection.execute("BEGIN IMMEDIATE")
            if (keys := gone_keys(batch, SCHEMA.key)).num_rows:
                follower.delete(connection, pa.Table.from_batches([keys]))
            follower.upsert(connection, pa.Table.from_batches([new_rows(batch)]))
            connection.execute("COMMIT")

        def count() -> tuple[int, int]:
            counted = "SELECT count(*) FROM t"
            with sqlite3.connect(file) as other:
                ours = other.execute(counted).fetchone()[0]
            return ours, connection.execute(counted).fetchone()[0]

        try:
            yield Bench(follower, target, plain, (), count)
        finally:
            follower.close()
            connection.close()


@contextmanager
def postgresql() -> Iterator[Bench]:
    """A server; plain: the same statements in a transaction without the mark; all rows by COPY."""

    def load(connection: Any, rows: pa.Table) -> None:
        text = io.BytesIO()
        csv.write_csv(rows, text)
        with connection.cursor() as cursor, cursor.copy("COPY plain FROM STDIN CSV HEADER") as copy:
            copy.write(text.getvalue())

    with _database(PostgresqlServer, PostgresqlHarness, load) as bench:
        yield bench


@contextmanager
def mariadb() -> Iterator[Bench]:
    """A server; plain: the same statements in a transaction without the mark; all rows by LOAD
    DATA."""

    def load(connection: Any, rows: pa.Table) -> None:
        # As LOAD DATA reads them: 1 and 0, and instants without a zone.
        rows = rows.set_column(4, "flag", rows["flag"].cast(pa.int8()))
        rows = rows.set_column(3, "at", rows["at"].cast(pa.timestamp("us")))
        with tempfile.NamedTemporaryFile(suffix=".csv") as file, connection.cursor() as cursor:
            csv.write_csv(rows, file, csv.WriteOptions(include_header=False))
            file.flush()
            cursor.execute(
                f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE plain "
                "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"'"
            )

    with _database(MariadbServer, MariadbHarness, load, "?local_infile=1") as bench:
        yield bench


@contextmanager
def _database(
    start: Callable[[Path], Any],
    harness_of: Callable[[Any, str], ServerHarness],
    load: Callable[[Any, pa.Table], None],
    query: str = "",
) -> Iterator[Bench]:
    """A server of a SQL database.

    Args:
        start: starts it in a folder.
        harness_of: the harness of a database of it.
        load: loads all rows into the table `plain`.
        query: of the URL of the connection that does.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = start(Path(folder))
        try:
            with server.new_database() as database:
                harness = harness_of(server, database)
                target = target_of(harness.settings(table="t"))
                settings = harness.settings(table="plain")
                loading = settings.model_copy(update={"url": settings.url + query})
                follower, other = harness.open(target), harness.open(target_of(loading))
                assert isinstance(other, SqlFollower)
                with closing(other._connect(other._connected().dialect)) as connection:
                    other._execute(connection, other._table_ddl())
                    loaded: list[bool] = []

                    def plain(batch: pa.RecordBatch) -> None:
                        rows = pa.Table.from_batches([new_rows(batch)])
                        other._execute(connection, other.begin)
                        if not loaded:
                            loaded.append(True)
                            load(connection, rows)
                        else:
                            gone = pa.Table.from_batches([gone_keys(batch, SCHEMA.key)])
                            other.delete(connection, gone)
                            other.upsert(connection, rows)
                        other._execute(connection, "COMMIT")

                    def count() -> tuple[int, int]:
                        ours, theirs = (
                            server.execute(f"SELECT count(*) FROM {name}", database)[0][0]
                            for name in ("t", "plain")
                        )
                        return ours, theirs

                    yield Bench(follower, target, plain, (server.pid,), count)
                follower.close()
                other.close()
        finally:
            server.stop()


@contextmanager
def kafka() -> Iterator[Bench]:
    """A broker; plain: an idempotent producer of the same messages, flushed, without transactions.

    Rows are counted as keys whose last message has a value.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = KafkaServer(Path(folder))
        settings = KafkaSettings(type="kafka", bootstrap_servers=server.bootstrap, table="t")
        target = target_of(settings)
        follower = KafkaFollower(target)
        server.create_topic("plain")
        sizes = {"linger.ms": 5, "compression.type": "lz4", "enable.idempotence": True}
        producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0, **sizes})

        def send(key: bytes, value: bytes | None) -> None:
            while True:
                try:
                    producer.produce("plain", value=value, key=key)
                    return
                except BufferError:
                    producer.poll(0.1)

        def plain(batch: pa.RecordBatch) -> None:
            for key in json_keys(gone_keys(batch, SCHEMA.key), SCHEMA.key):
                send(key, None)
            rows = new_rows(batch)
            keys = json_keys(rows, SCHEMA.key)
            for key, row in zip(keys, json_rows(rows, SCHEMA.names), strict=True):
                send(key, orjson.dumps(row))
            assert producer.flush(60) == 0

        def count() -> tuple[int, int]:
            time.sleep(1)  # a commit is answered before readers see it
            ours = [value for value in dict(follower._content()).values() if value is not None]
            client = KafkaFollower(target_of(settings.model_copy(update={"table": "plain"})))
            theirs = [value for value in dict(client._content()).values() if value is not None]
            return len(ours), len(theirs)

        try:
            yield Bench(follower, target, plain, (server.pid,), count)
        finally:
            follower.close()
            server.stop()


@contextmanager
def files() -> Iterator[Bench]:
    """Parquet, one bucket; plain: the same file read, merged and replaced, nothing forced."""
    with tempfile.TemporaryDirectory() as folder:
        target = target_of(FilesSettings(type="files", path=folder, table="t"))
        follower = FilesFollower(target)
        file, schema, key = Path(folder) / "plain.parquet", rows_schema(target), list(SCHEMA.key)

        def plain(batch: pa.RecordBatch) -> None:
            parts = [pa.Table.from_batches([new_rows(batch)]).cast(schema)]
            if file.exists():
                old = pq.read_table(file).cast(schema)
                changed = pa.Table.from_batches([batch]).select(key)
                there, gone = row_codes([old.select(key), changed])
                parts.append(old.filter(pa.array(~np.isin(there, gone))))
            pq.write_table(pa.concat_tables(parts), file.with_suffix(".new"), compression="zstd")
            file.with_suffix(".new").replace(file)

        def count() -> tuple[int, int]:
            return follower.read().read_all().num_rows, pq.read_metadata(file).num_rows

        try:
            yield Bench(follower, target, plain, (), count)
        finally:
            follower.close()


@contextmanager
def iceberg(upsert: bool = False) -> Iterator[Bench]:
    """A SQLite catalog in a folder; plain: pyiceberg's own delete and append in one transaction."""
    with tempfile.TemporaryDirectory() as folder:
        settings = IcebergSettings(type="iceberg", warehouse=folder, table="t")
        target = target_of(settings)
        follower = IcebergFollower(target)
        follower.create()
        schema = rows_schema(target)
        place = ("default", "plain")
        follower._connected().create_table(place, schema)

        def plain(batch: pa.RecordBatch) -> None:
            from pyiceberg.expressions import In

            table = follower._connected().load_table(place)
            rows = pa.Table.from_batches([new_rows(batch)], schema)
            with table.transaction() as transaction:
                gone = gone_keys(batch, SCHEMA.key)["k"].to_pylist()
                if upsert and gone:
                    transaction.delete(In("k", gone))
                    transaction.upsert(rows, join_cols=["k"])
                    return
                if gone:
                    transaction.delete(In("k", gone + rows["k"].to_pylist()))
                transaction.append(rows)

        def count() -> tuple[int, int]:
            tables = (
                follower._connected().load_table(("default", name)) for name in ("t", "plain")
            )
            ours, theirs = (table.scan().to_arrow().num_rows for table in tables)
            return ours, theirs

        try:
            yield Bench(follower, target, plain, (), count)
        finally:
            follower.close()


@contextmanager
def iceberg_upsert() -> Iterator[Bench]:
    """The same beside pyiceberg's own upsert."""
    with iceberg(upsert=True) as bench:
        yield bench


@contextmanager
def delta(server: S3Server | None = None) -> Iterator[Bench]:
    """A folder; plain: delta-rs's own merge, and for all rows its write."""
    with tempfile.TemporaryDirectory() as folder:
        place = folder if server is None else f"s3://{server.bucket}/bench"
        options = {} if server is None else server.options(plain=True)
        given = {} if server is None else server.options()
        settings = DeltaSettings(type="delta", path=place, options=given, table="t")
        target = target_of(settings)
        follower = DeltaFollower(target)
        other = f"{place}/plain"
        values = {name: f"s.{name}" for name in SCHEMA.names}

        def plain(batch: pa.RecordBatch) -> None:
            changed = batch.filter(pc.not_equal(batch[KIND], "-U"))
            rows = pa.Table.from_batches([changed])
            if not DeltaTable.is_deltatable(other, options):
                write_deltalake(other, rows.drop_columns([KIND]), storage_options=options)
                return
            table = DeltaTable(other, storage_options=options)
            merge = table.merge(rows, "t.k = s.k", source_alias="s", target_alias="t")
            gone = f"s.{KIND} = '-D'"
            merge = merge.when_matched_delete(gone).when_matched_update(values)
            merge.when_not_matched_insert(values).execute()

        def count() -> tuple[int, int]:
            return follower.read().read_all().num_rows, DeltaTable(
                other, storage_options=options
            ).to_pyarrow_table().num_rows

        try:
            pids = (server.pid,) if server else ()
            yield Bench(follower, target, plain, pids, count)
        finally:
            follower.close()


@contextmanager
def delta_s3() -> Iterator[Bench]:
    """The same on moto's S3 server."""
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(Path(folder))
        try:
            with delta(server) as bench:
                yield bench
        finally:
            server.stop()


@contextmanager
def paimon() -> Iterator[Bench]:
    """A folder, one bucket; plain: pypaimon's own write and commit, in the same process, on a table
    that has a column of kinds, as it takes them from there."""
    with tempfile.TemporaryDirectory() as folder:
        target = target_of(PaimonSettings(type="paimon", warehouse=folder, table="t", history="1h"))
        follower = PaimonFollower(target)
        follower.create()
        place = Path(__file__).with_name("paimon_plain.py")
        assert follower._worker is not None
        with closing(Other([interpreter(), "-I", str(place), folder])) as other:

            def count() -> tuple[int, int]:
                ours = follower.read().read_all().num_rows
                other.calls.close()
                return ours, int(other.answers.readline())

            pids = (follower._worker.pid, other.pid)
            yield Bench(follower, target, other.write, pids, count)
        follower.close()


@contextmanager
def hudi() -> Iterator[Bench]:
    """A folder, one bucket; plain: the upsert of Hudi's own client for Java, in a process of the
    same kind; all rows by its bulk insert."""
    with tempfile.TemporaryDirectory() as folder:
        target = target_of(HudiSettings(type="hudi", path=folder, table="t", every=0))
        follower = HudiFollower(target)
        follower.create()
        assert follower._worker is not None
        *java, jars, _ = hudi_command()
        (compiler,) = resolve("compiler", HUDI_LOCK)
        classes, table = Path(folder) / "classes", Path(folder) / "plain"
        source = Path(__file__).with_name("HudiPlain.java")
        options = ("-17", "-nowarn", "-proc:none", "-classpath", jars, "-d", classes)
        subprocess.run([java[0], "-jar", compiler, *options, source], check=True)
        command = [*java, f"{jars}:{classes}", "worker.HudiPlain", str(table)]
        with closing(Other(command)) as other:

            def plain(batch: pa.RecordBatch) -> None:
                other.write(batch.rename_columns(["kind", *SCHEMA.names]))

            def count() -> tuple[int, int]:
                ours, theirs = (
                    len(read_hudi(Path(folder) / name, SCHEMA.arrow) or ())
                    for name in ("t", "plain")
                )
                return ours, theirs

            yield Bench(follower, target, plain, (follower._worker.pid, other.pid), count)
        follower.close()


@contextmanager
def starrocks() -> Iterator[Bench]:
    """The conformance server, which is no StarRocks; plain: begin, load, commit, and no question.

    What it tells is what the protocol costs here and how many requests; nothing of a cluster.
    """
    ports = [free_port() for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.services.starrocks", *map(str, ports)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            secret = Path(folder) / "password"
            secret.write_text(STARROCKS_PASSWORD)
            settings = StarrocksSettings(
                type="starrocks",
                url=f"http://127.0.0.1:{ports[0]}",
                query_port=ports[3],
                user=STARROCKS_USER,
                password=f"${{file:{secret}}}",
                database="shop",
                table="t",
            )
            follower = StarrocksFollower(target_of(settings))
            follower._statements().run(follower._table_ddl("plain"))
            labels = iter(range(1 << 30))
            loading = {"table": "plain", "format": "json", "strip_outer_array": "true"}

            def plain(batch: pa.RecordBatch) -> None:
                label = f"plain-{next(labels)}"
                rows = chain(
                    follower._rows.json(gone_keys(batch, SCHEMA.key), 1),
                    follower._rows.json(new_rows(batch), 0),
                )
                follower._loads()._ask("begin", label, {"table": "plain"})
                for _, content in requests_of(rows):
                    follower._loads()._ask("load", label, loading, content)
                follower._loads()._ask("commit", label, {"table": "plain"})

            def count() -> tuple[int, int]:
                run = follower._statements().run
                ours, theirs = (
                    int(run(f"SELECT count(*) FROM shop.{name}")[0][0]) for name in ("t", "plain")
                )
                return ours, theirs

            try:
                yield Bench(follower, follower.target, plain, (process.pid,), count)
            finally:
                follower.close()
                process.stdin.close()


BENCHES: dict[str, Callable[[], AbstractContextManager[Bench]]] = {
    "clickhouse": clickhouse,
    "sqlite": sqlite,
    "postgresql": postgresql,
    "mariadb": mariadb,
    "kafka": kafka,
    "files": files,
    "iceberg": iceberg,
    "iceberg-upsert": iceberg_upsert,
    "delta": delta,
    "delta-s3": delta_s3,
    "paimon": paimon,
    "hudi": hudi,
    "starrocks": starrocks,
}


class Changes:
    """Rows by key, and random changes of them."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)
        self._version = dict.fromkeys(range(ROWS), 0)
        self._next = ROWS

    def first(self) -> pa.RecordBatch:
        """All rows as they begin, as inserts."""
        return self._batch([("+I", k, v) for k, v in self._version.items()])

    def next(self, epoch: int) -> pa.RecordBatch:
        """The changes of an epoch."""
        keys = np.array(list(self._version))
        chosen = self._random.choice(keys, UPDATED + DELETED, replace=False).tolist()
        rows: list[tuple[str, int, int]] = []
        for key in chosen[:UPDATED]:
            rows += [("-U", key, self._version[key]), ("+U", key, epoch)]
            self._version[key] = epoch
        rows += [("-D", key, self._version.pop(key)) for key in chosen[UPDATED:]]
        for key in range(self._next, self._next + INSERTED):
            rows.append(("+I", key, epoch))
            self._version[key] = epoch
        self._next += INSERTED
        return self._batch(rows)

    def _batch(self, rows: Sequence[tuple[str, int, int]]) -> pa.RecordBatch:
        columns: list[Any] = [
            [kind for kind, _, _ in rows],
            [key for _, key, _ in rows],
            [f"name-{key}-{version}" for _, key, version in rows],
            [Decimal(key * 7 + version).scaleb(-2) for _, key, version in rows],
            [1_767_225_600_000_000 + key * 1_000_000 + version for _, key, version in rows],
            [bool((key + version) % 2) for _, key, version in rows],
            [key / 3 + version for _, key, version in rows],
        ]
        types = [pa.string(), *(column.type for column in SCHEMA.columns)]
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        return pa.record_batch(arrays, [KIND, *SCHEMA.names])


class OneView:
    """What a store has published of a view: all rows at first, then epochs one by one."""

    def __init__(self, first: pa.RecordBatch) -> None:
        self._first, self._newest, self._changes = first, 1, first

    def publish(self, epoch: int, changes: pa.RecordBatch) -> None:
        """Publish an epoch."""
        self._newest, self._changes = epoch, changes

    def newest(self) -> int:
        """The last epoch."""
        return self._newest

    def begins(self) -> int:
        """The first one is brought as a whole."""
        return 1

    def changes(self, after: int, most_bytes: int, most_rows: int | None) -> ViewChanges:
        """Those of the last epoch."""
        return ViewChanges(self._newest, pa.Table.from_batches([self._changes]))

    def rows(self) -> Content:
        """All rows of the first one."""
        return Content(1, iter([pa.Table.from_batches([self._first])]))


class Clock:
    """Milliseconds, and CPU milliseconds here and in the server."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._here, self._there = [psutil.Process()], [psutil.Process(pid) for pid in pids]

    def _cpu(self) -> list[float]:
        # A server may have a process per connection.
        there = [[one, *one.children(recursive=True)] for one in self._there]
        return [
            sum(1000 * (one.user + one.system) for one in map(psutil.Process.cpu_times, processes))
            for processes in (self._here, list(chain.from_iterable(there)))
        ]

    def measure(self, work: Callable[[], object], into: list[list[float]]) -> None:
        """Run something and add what it took: milliseconds, CPU here, CPU of the server."""
        cpu, began = self._cpu(), time.perf_counter()
        work()
        took = 1000 * (time.perf_counter() - began)
        spent = [after - before for after, before in zip(self._cpu(), cpu, strict=True)]
        into.append([took, *spent])


def measure(name: str, result: Result, steps: int) -> None:
    """Measure one sink and add its rows."""
    with BENCHES[name]() as bench, tempfile.TemporaryDirectory() as store:
        changes, clock, target = Changes(), Clock(bench.pids), bench.target
        first = changes.first()
        view = OneView(first.cast(delta_schema(target)))
        now = SystemClock().now
        cursors = CursorLog(Path(store))
        following = Following(bench.follower, target, view, cursors, lambda: None, now)
        bench.follower.create()
        fills: list[list[float]] = []
        plain_fills: list[list[float]] = []
        clock.measure(following.advance, fills)
        clock.measure(lambda: bench.plain(first), plain_fills)
        ours: list[list[float]] = []
        plain: list[list[float]] = []
        for epoch in range(2, steps + 2):
            delta = changes.next(epoch).cast(delta_schema(target))
            view.publish(epoch, delta)
            clock.measure(following.advance, ours)
            clock.measure(lambda delta=delta: bench.plain(delta), plain)  # type: ignore[misc]
        assert following.cursor.epoch == steps + 1
        assert len(set(bench.count())) == 1, bench.count()
    _add(result, f"{name}: {ROWS:,} rows", fills, plain_fills, _rows_a_second)
    _add(result, f"{name}: 300 changes", ours, plain, _more_of_a_second)


#: Milliseconds, CPU here, CPU of the server.
Took = tuple[float, float, float]


def _add(
    result: Result,
    what: str,
    with_it: list[list[float]],
    without: list[list[float]],
    comes_to: Callable[[Took, Took], str],
) -> None:
    ours, plain = (
        # Means of CPU: the clock of processes ticks in 10 ms.
        (
            median(one[0] for one in took),
            sum(one[1] for one in took) / len(took),
            sum(one[2] for one in took) / len(took),
        )
        for took in (with_it, without)
    )
    cells = chain.from_iterable(zip(ours, plain, strict=True))
    result.add(what, *cells, comes_to(ours, plain))


def _rows_a_second(ours: Took, plain: Took) -> str:
    return f"{1000 * ROWS / ours[0]:,.0f} rows/s beside {1000 * ROWS / plain[0]:,.0f}"


def _more_of_a_second(ours: Took, plain: Took) -> str:
    """What is more than the plain way's, at one commit per second."""
    cpu = (sum(ours[1:]) - sum(plain[1:])) / 10
    return f"{cpu:+.1f} % of a core, {(ours[0] - plain[0]) / 10:+.1f} % of the time"


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(BENCHES), help=", ".join(BENCHES))
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    for name in options.names:
        columns = ["sink", "ms", "plain ms", "CPU ms", "plain", "server's CPU ms", "plain server"]
        columns.append("comes to, at one commit per second")
        title = f"A step of the sink {name} beside a plain write"
        result = Result("followers", title, columns, name)
        measure(name, result, options.steps)
        result.notes.append(f"median of {options.steps} steps in turns; CPU: the mean")
        result.save()


if __name__ == "__main__":
    main()
