"""Flink SQL as a process: fetched once, one job over files and topics or over a database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from mview.config import ConnectionSettings
from mview.java.jars import cache_folder
from mview.java.runtime import find_java
from mview.secrets import reveal
from tests.bench.running import Meter
from tests.bench.w1 import KEYS, VIEW, Tables
from tests.services.process import ServerProcess

PACKAGE = "apache-flink==2.3.0"
#: What older versions of Flink ask for without saying so.
_OLD = "setuptools<81"
LOCK = Path(__file__).with_name("flink.lock")

#: The topic and table of the view, and the columns that make its key.
OUT = "order_revenue"
GROUP = ("o_orderkey", "c_nationkey", "o_orderdate")

_TYPES = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.string(): "STRING"}


@dataclass(frozen=True)
class Mode:
    """How Flink commits."""

    name: str
    checkpoint: str
    sink: str
    isolation: str
    #: Seconds without output after which a phase is over: longer than between two commits.
    idle: float


MODES = {
    "exactly-once": Mode(
        "exactly-once",
        "1 s",
        "'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'w1',"
        " 'properties.transaction.timeout.ms' = '600000',",
        "read_committed",
        25.0,
    ),
    "at-least-once": Mode("at-least-once", "10 s", "", "read_uncommitted", 12.0),
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
    """The Python that has Flink, in an environment of its own in the cache folder."""
    folder = cache_folder().parent / package.replace("==", "-")
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        print(f"installing {package} into {folder}", flush=True)
        uv = str(Path(sys.executable).with_name("uv"))
        for arguments in (
            ["venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            ["pip", "install", "--quiet", "--python", str(python), package, _OLD],
        ):
            subprocess.run([uv, *arguments], check=True)
        ready.touch()
    return python


@contextmanager
def flink(
    folder: Path, job: dict[str, object], python: Path, heap: str
) -> Iterator[tuple[ServerProcess, Meter, float]]:
    """The job in a process of its own: the process, its meter, and when it was started."""
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    environment = os.environ | {
        "JAVA_HOME": str(find_java().resolve().parents[1]),
        "JVM_ARGS": f"-Xmx{heap}",
    }
    start = time.time()
    command = [python, Path(__file__).with_name("flink_job.py"), file]
    process = ServerProcess("Flink", command, folder / "flink.log", env=environment)
    meter = Meter(process.pid)
    try:
        yield process, meter, start
    finally:
        meter.close()
        process.kill()
