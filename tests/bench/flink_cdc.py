"""From a full PostgreSQL database to a complete view by Flink CDC, W1; beside `load_live`.

    python -m tests.bench.flink_cdc --sf 1

Flink as in `peers`, but of the version that its CDC connector is for; each table is read with the
connector's incremental snapshot. The seconds are from the start of the process until the last row
of the view can be read in its topic.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mview.config import ConnectionSettings
from mview.java.jars import resolve
from tests.bench.flink import (
    LOCK,
    MODES,
    FlinkPeer,
    flink,
    flink_python,
    postgresql,
    settings,
    view_into_topic,
)
from tests.bench.load_live import create
from tests.bench.peer import OUT
from tests.bench.peers import Output, expected
from tests.bench.results import Result, variant_of
from tests.bench.w1 import Changes, Tables, make_tables
from tests.services.kafka import KafkaServer
from tests.services.postgresql import PostgresqlServer

#: The newest for which the CDC connector was there to fetch.
_PACKAGE = "apache-flink==1.19.3"
#: Between the snapshots of two tables nothing may come for a while.
_MODE = replace(MODES["exactly-once"], idle=60.0)


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--heap", default="6g", help="of Flink's JVM")
    options = parser.parse_args()
    tables, jars = make_tables(options.sf), resolve("flink-cdc", LOCK)
    result = Result(
        "flink_cdc",
        f"From PostgreSQL to a complete view by Flink CDC, W1 at scale {options.sf:g}",
        ["what", "value"],
        variant_of(options),
    )
    with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
        folder = Path(temp)
        folder.chmod(0o755)
        for name in ("pg", "kafka"):
            (folder / name).mkdir()
        server, kafka = PostgresqlServer(folder / "pg"), KafkaServer(folder / "kafka")
        try:
            kafka.create_topic(OUT)
            with server.new_database() as database:
                for name, table in tables.items():
                    create(server, database, name, table)
                source = ConnectionSettings(**server.settings(database))
                statements = postgresql(tables, source) + view_into_topic(kafka.bootstrap, _MODE)
                _measure(tables, folder, statements, (kafka.bootstrap, jars, options.heap), result)
        finally:
            kafka.stop()
            server.stop()
    names = ", ".join(jar.stem for jar in jars)
    result.notes.append(f"{_PACKAGE}, {names}, heap {options.heap}, checkpoints every second")
    result.save()


def _measure(
    tables: Tables,
    folder: Path,
    statements: list[str],
    given: tuple[str, Sequence[Path], str],
    result: Result,
) -> None:
    servers, jars, heap = given
    job: dict[str, object] = {
        "settings": settings(folder, jars, _MODE),
        "statements": statements,
    }
    python = flink_python(_PACKAGE)
    with flink(folder, job, python, heap) as running:
        output = Output(servers, FlinkPeer(_MODE, heap, python, jars), running.process.check)
        result.add("until the view is complete, s", output.settle(0) - running.start)
        result.add("CPU seconds", running.meter.cpu_seconds())
        result.add("peak RSS, MB", running.meter.peak_bytes / 1e6)
        result.add("wrong", output.wrong(expected(Changes(tables))))


if __name__ == "__main__":
    main()
