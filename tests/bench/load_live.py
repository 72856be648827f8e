"""From an empty store and a full PostgreSQL database to a live view, W1.

    python -m tests.bench.load_live --sf 0.1

A real `mview run` process; heartbeats come through Kafka all the while, as from a connector. The
seconds are from the start of the process: with Python, JVM, planning, load, merge and first build.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import orjson
import pyarrow as pa
from confluent_kafka import Producer

from mview.config.file import load_config
from tests.bench.bulk_load import fill_postgresql
from tests.bench.results import Result
from tests.bench.running import Run
from tests.bench.w1 import CONNECTION, KEYS, make_tables, view_sql
from tests.services.kafka import KafkaServer
from tests.services.postgresql import PostgresqlServer

_TYPES = {pa.int64(): "bigint", pa.int32(): "int", pa.string(): "text"}
_CONFIG = """
store: store
connections:
  {connection}: {settings}
changes:
  {connection}:
    source: kafka
    format: unified
    topic: '{connection}.{{table}}'
    bootstrap_servers: '{servers}'
    T: 1s
spark: {{master: '{master}'}}
"""


class Heartbeats:
    """A connector with nothing to send but the time, to every topic, five times a second."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(0.2):
            beat = orjson.dumps({"op": "heartbeat", "ts": int(time.time() * 1000)})
            for name in KEYS:
                self._producer.produce(f"{CONNECTION}.{name}", beat, partition=0)
            self._producer.poll(0)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(10)


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    tables = make_tables(options.sf)
    rows = sum(table.num_rows for table in tables.values())
    result = Result(
        "load_live",
        f"From an empty store to a live view, PostgreSQL, W1 at scale {options.sf:g}",
        ["what", "value"],
        f"sf{options.sf:g}",
    )
    with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
        folder = Path(temp)
        folder.chmod(0o755)
        for name in ("pg", "kafka"):
            (folder / name).mkdir()
        postgresql, kafka = PostgresqlServer(folder / "pg"), KafkaServer(folder / "kafka")
        beats = None
        try:
            with postgresql.new_database() as database:
                for name, table in tables.items():
                    create(postgresql, database, name, table)
                    kafka.create_topic(f"{CONNECTION}.{name}")
                beats = Heartbeats(kafka.bootstrap)
                config = folder / "mview.yml"
                settings = orjson.dumps(postgresql.settings(database)).decode()
                config.write_text(
                    _CONFIG.format(
                        connection=CONNECTION,
                        settings=settings,
                        servers=kafka.bootstrap,
                        master=options.master,
                    )
                )
                _measure(config, kafka.bootstrap, rows, result)
        finally:
            if beats is not None:
                beats.close()
            kafka.stop()
            postgresql.stop()
    result.save()


def create(server: PostgresqlServer, database: str, name: str, rows: pa.Table) -> None:
    """Make and fill a table."""
    columns = ", ".join(f"{field.name} {_TYPES[field.type]} not null" for field in rows.schema)
    server.execute(f"CREATE TABLE {name} ({columns})", database)
    fill_postgresql(server, database, name, rows)
    server.execute(f"ALTER TABLE {name} ADD PRIMARY KEY ({', '.join(KEYS[name])})", database)


def _measure(config: Path, servers: str, rows: int, result: Result) -> None:
    views = config.parent / "order_revenue.sql"
    views.write_text(view_sql())
    start = time.time()
    run = Run(load_config(config), views, servers)
    try:
        began = run.watch.wait(lambda manifest: bool(manifest.tables), run.check)
        loaded = run.watch.wait(
            lambda manifest: all(t.phase == "loaded" for t in manifest.tables.values()), run.check
        )
        live = run.watch.wait(lambda manifest: bool(manifest.views), run.check)
        cpu, peak = run.meter.cpu_seconds(), run.meter.peak_bytes
    finally:
        run.stop()
    result.add("until the view is live, s", live.at - start)
    result.add("start and planning, s", began.at - start)
    result.add("load and merge, s", loaded.at - began.at)
    result.add("first build, s", live.at - loaded.at)
    result.add("rows loaded", rows)
    result.add("rows/s while loading", rows / (loaded.at - began.at))
    result.add("CPU seconds", cpu)
    result.add("peak RSS, MB", peak / 1e6)
    result.add("mview verify", run.verify())


if __name__ == "__main__":
    main()
