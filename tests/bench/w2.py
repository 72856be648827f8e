"""The pilot workload W2: three databases, latest row per key, three-way join, changes all the time.

    python -m tests.bench.w2 --versions 10000000 --customers 1000000 --tariffs 1000000

Contract versions in PostgreSQL, customers in MariaDB, tariffs in SQLite; transactions run in all
three from before the start to the end, `--rate` changes per second in all, so tables are loaded
while they change. A real `mview run` process; afterwards `mview verify`.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from mview.config.file import load_config
from mview.secrets import reveal
from mview.store.layout import Store
from tests.bench.freshness import add_percentiles
from tests.bench.pilot import VIEW, Pilot, Source, Writer, billing, catalog, crm, password_file
from tests.bench.results import MEMORY, Result
from tests.bench.running import Run, folder_bytes
from tests.services.kafka import KafkaServer
from tests.services.mariadb import MariadbServer
from tests.services.postgresql import PostgresqlServer

#: Seconds between two looks at the size of the merge state.
_LOOK_EVERY = 0.2


class StateSize:
    """The largest size that the merge state has had on disk."""

    def __init__(self, store: Store) -> None:
        self._folder = store.root / "checkpoints"
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def now(self) -> int:
        """Bytes of the state files there are."""
        return sum(folder_bytes(path) for path in self._folder.glob("*/checkpoint/state"))

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_EVERY):
            self.peak = max(self.peak, self.now())

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()


class Feed:
    """Writers to all tables. What they send before the run is there has no time of its own."""

    def __init__(self, sources: Sequence[Source], pilot: Pilot, rate: float, servers: str) -> None:
        self.sent: dict[str, list[float]] = {source.topic: [] for source in sources}
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
        self._writers = [
            Writer(source, pilot, rate * source.share, self._send) for source in sources
        ]

    def _send(self, topic: str, value: bytes) -> None:
        if topic in self.sent:
            self.sent[topic].append(time.time())
        else:
            # A heartbeat vouches for what was sent before it, in other topics.
            self._producer.flush(10)
        self._producer.produce(topic, value, partition=0)
        self._producer.poll(0)

    def check(self) -> None:
        """Raise what a writer raised."""
        for writer in self._writers:
            writer.check()

    def close(self) -> None:
        """End the writers."""
        for writer in self._writers:
            writer.close()
        self._producer.flush(60)


def main() -> None:
    """Measure and keep the result."""
    options = _options()
    pilot = Pilot(options.versions, options.customers, options.tariffs)
    result = Result(
        "w2",
        f"W2, the pilot: {pilot.versions:,} contract versions (PostgreSQL), {pilot.customers:,}"
        f" customers (MariaDB), {pilot.tariffs:,} tariffs (SQLite), {options.rate:g} changes/s"
        + (", deletion vectors" if options.deletion_vectors else ""),
        ["what", "value"],
        f"{options.versions}-{options.rate:g}"
        + ("-deletion-vectors" if options.deletion_vectors else ""),
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mview-bench-")))
        folder.chmod(0o755)
        sources = _sources(stack, folder, pilot)
        kafka = KafkaServer(_made(folder / "kafka"))
        stack.callback(kafka.stop)
        for source in sources:
            kafka.create_topic(source.topic)
            kafka.create_topic(f"{source.connection}.heartbeat")
        more = ", sink.deletion_vectors='true'" if options.deletion_vectors else ""
        (folder / "current_contracts.sql").write_text(VIEW.format(more=more))
        file = _configured(folder, sources, kafka.bootstrap, options)
        feed = Feed(sources, pilot, options.rate, kafka.bootstrap)
        stack.callback(feed.close)
        _measure(file, kafka.bootstrap, feed, options, result)
    result.save()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=400_000)
    parser.add_argument("--customers", type=int, default=40_000)
    parser.add_argument("--tariffs", type=int, default=40_000)
    parser.add_argument("--rate", type=float, default=300.0, help="changes per second in all")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=30.0)
    parser.add_argument("--memory", type=int, default=MEMORY)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--deletion-vectors", action="store_true")
    return parser.parse_args()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _sources(stack: ExitStack, folder: Path, pilot: Pilot) -> list[Source]:
    postgresql = PostgresqlServer(_made(folder / "postgresql"))
    stack.callback(postgresql.stop)
    mariadb = MariadbServer(_made(folder / "mariadb"))
    stack.callback(mariadb.stop)
    return [
        billing(postgresql, stack.enter_context(postgresql.new_database()), pilot),
        crm(mariadb, stack.enter_context(mariadb.new_database()), pilot),
        catalog(folder / "catalog.db", pilot),
    ]


def _configured(
    folder: Path, sources: Sequence[Source], servers: str, options: argparse.Namespace
) -> Path:
    changes: dict[str, Any] = {
        source.connection: {
            "source": "kafka",
            "format": "unified",
            "topic": f"{source.connection}.{{table}}",
            "heartbeat_topic": f"{source.connection}.heartbeat",
            "bootstrap_servers": servers,
            "T": "1s",
        }
        for source in sources
    }
    body = {
        "store": "store",
        "connections": {s.connection: _settings(s, folder) for s in sources},
        "changes": changes,
        "engine": {"memory": options.memory},
        "spark": {"master": options.master},
    }
    file = folder / "mview.yml"
    # JSON is YAML.
    file.write_bytes(orjson.dumps(body))
    return file


def _settings(source: Source, folder: Path) -> dict[str, Any]:
    password = source.settings.get("password")
    return password_file(source, folder, reveal(password, "") if password else "")


def _measure(
    file: Path, servers: str, feed: Feed, options: argparse.Namespace, result: Result
) -> None:
    config = load_config(file)
    start = time.time()
    run = Run(config, file.with_name("current_contracts.sql"), servers, list(feed.sent))
    run.sent = feed.sent
    state = StateSize(Store(config.store))

    def check() -> None:
        run.check()
        feed.check()

    try:
        began = run.watch.wait(lambda manifest: bool(manifest.tables), check)
        loaded = run.watch.wait(
            lambda manifest: (
                len(manifest.tables) >= len(feed.sent)
                and all(table.phase == "loaded" for table in manifest.tables.values())
            ),
            check,
        )
        live = run.watch.wait(lambda manifest: bool(manifest.views), check)
        load_cpu, state_peak = run.meter.cpu_seconds(), state.peak
        time.sleep(options.warm_up)
        cpu, begin = run.meter.cpu_seconds(), time.time()
        time.sleep(options.seconds)
        end, cpu = time.time(), run.meter.cpu_seconds() - cpu
        feed.close()
        run.drain()
        delays = run.delays(begin, end)
    finally:
        state.close()
        run.stop()
    rows = options.versions + options.customers + options.tariffs
    result.add("until the view is live, s", live.at - start)
    result.add("load and merge, s", loaded.at - began.at)
    result.add("first build, s", live.at - loaded.at)
    result.add("rows/s while loading", rows / (loaded.at - began.at))
    result.add("CPU seconds until live", load_cpu)
    result.add("largest merge state while loading, bytes", state_peak)
    result.add("largest merge state, bytes per row", state_peak / rows)
    result.add("merge state at the end, bytes", state.now())
    add_percentiles(result, "freshness", delays[:, 1])
    result.add("changes measured", len(delays))
    result.add("CPU cores, steady", cpu / (end - begin))
    result.add("peak RSS, MB", run.meter.peak_bytes / 1e6)
    for name, size in run.disk_bytes().items():
        result.add(f"store on disk, {name}, MB", size / 1e6)
    result.add("mview verify", run.verify())
    result.notes.append("merge state: all files in its folder, with the older versions Spark keeps")


if __name__ == "__main__":
    main()
