"""Flink SQL as a process: fetched once, one job over files and topics or over a database.

One JVM, parallelism 2, state on the heap, mini-batches of 200 ms. exactly-once: checkpoints every
second, and a reader sees only what is committed. at-least-once: checkpoints every 10 s, and a
reader sees at once what is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv

from mview.config import ConnectionSettings
from mview.java.jars import resolve
from mview.java.runtime import find_java
from mview.secrets import reveal
from tests.bench.peer import GROUP, OUT, Feed, Peer, Running, Shown, python_with, running
from tests.bench.w1 import KEYS, VIEW, Change, Tables

PACKAGE = "apache-flink==2.3.0"
#: What older versions of Flink ask for without saying so.
_OLD = "setuptools<81"
LOCK = Path(__file__).with_name("flink.lock")

_TYPES = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.string(): "STRING"}


@dataclass(frozen=True)
class Mode:
    """How Flink commits."""

    name: str
    checkpoint: str
    sink: str
    isolation: str
    idle: float


MODES = {
    "exactly-once": Mode(
        "exactly once, checkpoints every second",
        "1 s",
        "'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'w1',"
        " 'properties.transaction.timeout.ms' = '600000',",
        "read_committed",
        25.0,
    ),
    "at-least-once": Mode("at least once", "10 s", "", "read_uncommitted", 12.0),
}


def files_and_topics(tables: Tables, folder: Path, servers: str) -> list[str]:
    """The tables in SQL: each is its CSV file and then its topic."""
    found = []
    for name, rows in tables.items():
        columns = _columns(rows)
        found += [
            f"CREATE TABLE {name}_file ({columns}) WITH ('connector' = 'filesystem',"
            f" 'path' = 'file://{folder}/{name}.csv', 'format' = 'csv')",
            f"CREATE TABLE {name}_topic ({columns}) WITH ('connector' = 'kafka',"
            f" 'properties.bootstrap.servers' = '{servers}', 'topic' = '{name}',"
            " 'scan.startup.mode' = 'earliest-offset', 'format' = 'debezium-json')",
            f"CREATE VIEW {name} AS SELECT * FROM {name}_file UNION ALL SELECT * FROM {name}_topic",
        ]
    return found


def postgresql(tables: Tables, settings: ConnectionSettings) -> list[str]:
    """The tables in SQL: each is read from the database by Flink CDC, and followed."""
    assert settings.password is not None
    place = (
        f"'hostname' = '{settings.host}', 'port' = '{settings.port}',"
        f" 'username' = '{settings.username}', 'password' = '{reveal(settings.password, '')}',"
        f" 'database-name' = '{settings.database}', 'schema-name' = 'public'"
    )
    return [
        f"CREATE TABLE {name} ({_columns(rows)}, PRIMARY KEY ({', '.join(KEYS[name])})"
        f" NOT ENFORCED) WITH ('connector' = 'postgres-cdc', {place}, 'table-name' = '{name}',"
        f" 'slot.name' = 'flink_{name}', 'decoding.plugin.name' = 'pgoutput',"
        " 'scan.incremental.snapshot.enabled' = 'true')"
        for name, rows in tables.items()
    ]


def view_into_topic(servers: str, mode: Mode) -> list[str]:
    """The view over the tables, written into a topic."""
    return [
        f"CREATE TABLE {OUT} (o_orderkey BIGINT, c_nationkey INT, o_orderdate INT,"
        f" n_lines BIGINT, revenue BIGINT, PRIMARY KEY ({', '.join(GROUP)}) NOT ENFORCED)"
        f" WITH ('connector' = 'upsert-kafka',"
        f" 'properties.bootstrap.servers' = '{servers}', 'topic' = '{OUT}',"
        f" {mode.sink} 'key.format' = 'json', 'value.format' = 'json')",
        f"INSERT INTO {OUT} {VIEW.format(**{name: name for name in KEYS})}",
    ]


def _columns(rows: pa.Table) -> str:
    return ", ".join(f"{field.name} {_TYPES[field.type]}" for field in rows.schema)


def settings(folder: Path, jars: Sequence[Path], mode: Mode) -> dict[str, str]:
    """The job's settings."""
    return {
        "pipeline.jars": ";".join(f"file://{jar}" for jar in jars),
        "pipeline.object-reuse": "true",
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "state.backend.type": "hashmap",
        "execution.checkpointing.interval": mode.checkpoint,
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        # The same before Flink 1.20.
        "state.checkpoint-storage": "filesystem",
        "state.checkpoints.dir": f"file://{folder}/checkpoints",
        "execution.checkpointing.timeout": "10 min",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "200 ms",
        "table.exec.mini-batch.size": "5000",
    }


def flink_python(package: str = PACKAGE) -> Path:
    """The Python that has Flink."""
    return python_with(package, _OLD)


def flink(
    folder: Path, job: dict[str, object], python: Path, heap: str
) -> AbstractContextManager[Running]:
    """The job in a process of its own."""
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    environment = os.environ | {
        "JAVA_HOME": str(find_java().resolve().parents[1]),
        "JVM_ARGS": f"-Xmx{heap}",
    }
    command = [python, Path(__file__).with_name("flink_job.py"), file]
    return running("Flink", command, folder / "flink.log", environment)


class FlinkPeer(Peer):
    """Flink SQL over CSV files and the topics after them.

    Args:
        mode: how it commits.
        heap: of its JVM.
        python: a Python that has it; None: it is fetched.
        jars: of its Kafka connector; none: they are fetched.
    """

    loads_from = "CSV"

    def __init__(
        self, mode: Mode, heap: str, python: Path | None = None, jars: Sequence[Path] = ()
    ) -> None:
        self.name = f"Flink SQL, {mode.name}"
        self.isolation, self.idle = mode.isolation, mode.idle
        self._mode, self._heap = mode, heap
        self._python = python or flink_python()
        self._jars = [*jars] or resolve("flink", LOCK)
        self.note = (
            f"{PACKAGE}, {self._jars[0].stem}, heap {heap}, checkpoints every {mode.checkpoint}"
        )

    def fill(self, tables: Tables, folder: Path, feed: Feed) -> None:
        """See `Peer`."""
        for name, rows in tables.items():
            options = pa_csv.WriteOptions(include_header=False)
            pa_csv.write_csv(rows, folder / f"{name}.csv", options)

    def run(self, tables: Tables, folder: Path, servers: str) -> AbstractContextManager[Running]:
        """See `Peer`."""
        job: dict[str, object] = {
            "settings": settings(folder, self._jars, self._mode),
            "statements": [
                *files_and_topics(tables, folder, servers),
                *view_into_topic(servers, self._mode),
            ],
        }
        return flink(folder, job, self._python, self._heap)

    def message(self, change: Change) -> tuple[bytes | None, bytes]:
        """See `Peer`: as Debezium writes it, without its schema."""
        op = {"insert": "c", "update": "u", "delete": "d"}[change.op]
        return None, orjson.dumps({"before": change.before, "after": change.after, "op": op})

    def shown(self, key: bytes, value: bytes | None) -> Shown:
        """See `Peer`."""
        group = orjson.loads(key)
        place = tuple(group[name] for name in GROUP)
        if value is None:
            return Shown(place, None, False)
        row = orjson.loads(value)
        return Shown(place, (row["n_lines"], row["revenue"]), True)
