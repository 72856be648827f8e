"""Flink SQL on the same work: load from CSV files, catch-up, freshness; W1, the view in Kafka.

    python -m tests.bench.peers --sf 0.1 --modes exactly-once,at-least-once

Flink (its Python package, some 300 MB) is fetched into the cache folder the first time, or named by
--flink-python and --jars. One JVM, parallelism 2, state on the heap, mini-batches of 200 ms.
exactly-once: checkpoints every second, and a reader sees only what is committed. at-least-once:
checkpoints every 10 s, and a reader sees at once what is written. After load and catch-up the whole
view is held against a batch query; `wrong` must be 0. Run `freshness`, `catchup` and `load_live` in
the same sitting to compare.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv
from confluent_kafka import Consumer, Producer, TopicPartition

from mview.java.jars import resolve
from tests.bench.flink import (
    GROUP,
    LOCK,
    MODES,
    OUT,
    PACKAGE,
    Mode,
    files_and_topics,
    flink,
    flink_python,
    settings,
    view_into_topic,
)
from tests.bench.results import Result, variant_of
from tests.bench.running import Meter
from tests.bench.w1 import KEYS, VIEW, Change, Changes, Row, Tables, make_tables
from tests.services.kafka import KafkaServer
from tests.services.process import ServerProcess

_TIMEOUT = 900.0
#: Seconds of changes at the full rate before the measurement, and between two sends.
_WARM_UP, _TICK = 15.0, 0.01
#: Every so many changes one is a probe: a new line of the probe order, which its group counts.
_PROBE_EVERY = 10


# --- what comes out ------------------------------------------------------------------------------


class Output:
    """The topic that the view is written to, as a reader of the mode's isolation sees it."""

    def __init__(self, servers: str, mode: Mode, check: Callable[[], None]) -> None:
        self._settings = {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "isolation.level": mode.isolation,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "log_level": 0,
        }
        self._consumer = Consumer(self._settings)
        self._idle, self._check = mode.idle, check
        self._folded = 0
        self._rows: dict[tuple[int, ...], tuple[int, int]] = {}

    def end(self) -> int:
        """The offset up to which messages can be read."""
        place = TopicPartition(OUT, 0)
        offset: int = self._consumer.get_watermark_offsets(place, timeout=10)[1]
        return offset

    def settle(self, before: int) -> float:
        """Wait until nothing comes any more; returns when the last message came.

        Args:
            before: the end before what is waited for was begun.
        """
        limit, last, seen = time.time() + _TIMEOUT, None, before
        while last is None or time.time() < last + self._idle:
            self._check()
            if time.time() > limit:
                raise TimeoutError("Flink's output does not come, or does not end")
            if (end := self.end()) != seen:
                last, seen = time.time(), end
            time.sleep(0.02)
        return last

    def read(self, begin: int) -> Iterator[tuple[bytes, bytes | None]]:
        """The messages from an offset on, until no more come: key and value."""
        limit = time.time() + _TIMEOUT
        self._consumer.assign([TopicPartition(OUT, 0, begin)])
        empty = 0
        try:
            # Control records have offsets, too: the last message may stand before the end.
            while empty < 3 and time.time() < limit:
                messages = self._consumer.consume(10_000, 1.0)
                empty = 0 if messages else empty + 1
                for message in messages:
                    if message.error() is not None:
                        raise RuntimeError(str(message.error()))
                    yield message.key() or b"", message.value()
        finally:
            self._consumer.unassign()

    def wrong(self, expected: pa.Table) -> int:
        """Rows that differ between what came out and what should have."""
        end = self.end()
        for key, value in self.read(self._folded):
            group = orjson.loads(key)
            place = tuple(group[name] for name in GROUP)
            if value is None:
                self._rows.pop(place, None)
            else:
                row = orjson.loads(value)
                self._rows[place] = row["n_lines"], row["revenue"]
        self._folded = end
        columns = [expected[name].to_pylist() for name in (*GROUP, "n_lines", "revenue")]
        right = {row[:3]: row[3:] for row in zip(*columns, strict=True)}
        return sum(self._rows.get(k) != v for k, v in right.items()) + len(
            self._rows.keys() - right.keys()
        )

    def watch(self, seen: list[tuple[float, int]], stop: threading.Event) -> None:
        """Note when which number of probes can be read, from now on."""
        consumer = Consumer(self._settings)
        consumer.assign([TopicPartition(OUT, 0, self.end())])
        while not stop.is_set():
            for message in consumer.consume(1000, 0.01):
                value = message.value()
                if message.error() is None and value and b'"o_orderkey":0,' in value:
                    seen.append((time.time(), orjson.loads(value)["n_lines"]))
        consumer.close()


# --- what goes in --------------------------------------------------------------------------------


def expected(changes: Changes) -> pa.Table:
    """The view as a batch query gives it after the changes so far."""
    with duckdb.connect() as database:
        for name in KEYS:
            database.register(name, changes.rows(name))
        return database.sql(VIEW.format(**{name: name for name in KEYS})).to_arrow_table()


def event(change: Change) -> bytes:
    """A change as Debezium writes it, without its schema."""
    op = {"insert": "c", "update": "u", "delete": "d"}[change.op]
    return orjson.dumps({"before": change.before, "after": change.after, "op": op})


class Feed:
    """Sends changes to the topics of the tables."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 0,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def send(self, topic: str, value: bytes) -> None:
        """Send one message."""
        self._producer.produce(topic, value, partition=0)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all is sent."""
        self._producer.flush(60)


def probe(order: Row, like: Row, number: int) -> Change:
    """The line of the probe order with a number; line 0 is the order itself."""
    if number == 0:
        return Change("orders", "insert", None, {**order, "o_orderkey": 0, "o_orderdate": 10_000})
    line = {**like, "l_orderkey": 0, "l_linenumber": number, "l_returnflag": "A"}
    return Change("lineitem", "insert", None, line)


class Stream:
    """A steady stream of changes with probes among them, and how fresh it comes out."""

    def __init__(self, feed: Feed, changes: Changes) -> None:
        self._feed, self._changes = feed, changes
        self._order, self._line = (
            changes.tables[name].slice(0, 1).to_pylist()[0] for name in ("orders", "lineitem")
        )
        self.sent: list[float] = []
        self._send(probe(self._order, self._line, 0))

    def _send(self, change: Change) -> None:
        self._feed.send(change.table, event(change))

    def run(self, rate: int, seconds: float, check: Callable[[], None]) -> None:
        """Send at a rate for some seconds."""
        others = iter(self._changes.take(int(rate * seconds)))
        start, done, total = time.time(), 0, int(rate * seconds)
        while done < total:
            check()
            due = min(total, int((time.time() - start) * rate))
            for number in range(done, due):
                if number % _PROBE_EVERY == 0:
                    self.sent.append(time.time())
                    self._send(probe(self._order, self._line, len(self.sent)))
                else:
                    self._send(next(others))
            done = due
            time.sleep(_TICK)
        self._feed.flush()

    def delays(self, seen: Sequence[tuple[float, int]], begin: float) -> list[float]:
        """Seconds from "sent" to "can be read" of the probes sent since a time."""
        found, known = [], 0
        for at, count in seen:
            found += [at - sent for sent in self.sent[known:count] if sent >= begin]
            known = max(known, count)
        if known < len(self.sent):
            raise RuntimeError(f"only {known} of {len(self.sent)} probes came out")
        return found


# --- phases --------------------------------------------------------------------------------------


def measure(
    tables: Tables, mode: Mode, python: Path, jars: Sequence[Path], options: argparse.Namespace
) -> list[tuple[str, float | int]]:
    """All phases of one mode."""
    with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
        folder = Path(temp)
        (folder / "kafka").mkdir()
        for name, rows in tables.items():
            pa_csv.write_csv(
                rows, folder / f"{name}.csv", pa_csv.WriteOptions(include_header=False)
            )
        kafka = KafkaServer(folder / "kafka")
        try:
            for topic in (*KEYS, OUT):
                kafka.create_topic(topic)
            job: dict[str, object] = {
                "settings": settings(folder, jars, mode),
                "statements": [
                    *files_and_topics(tables, folder, kafka.bootstrap),
                    *view_into_topic(kafka.bootstrap, mode),
                ],
            }
            with flink(folder, job, python, options.heap) as (process, meter, start):
                output = Output(kafka.bootstrap, mode, process.check)
                return _phases(
                    tables, Feed(kafka.bootstrap), output, (process, meter, start), options
                )
        finally:
            kafka.stop()


def _phases(
    tables: Tables,
    feed: Feed,
    output: Output,
    running: tuple[ServerProcess, Meter, float],
    options: argparse.Namespace,
) -> list[tuple[str, float | int]]:
    process, meter, start = running
    changes = Changes(tables)
    found: list[tuple[str, float | int]] = [("load from CSV, s", output.settle(0) - start)]
    found += [
        ("load, CPU seconds", meter.cpu_seconds()),
        ("load, wrong", output.wrong(expected(changes))),
    ]
    encoded = [(one.table, event(one)) for one in changes.take(options.changes)]
    before, begin, cpu = output.end(), time.time(), meter.cpu_seconds()
    for topic, value in encoded:
        feed.send(topic, value)
    feed.flush()
    seconds = output.settle(before) - begin
    found += [
        ("catch-up, changes/s", options.changes / seconds),
        ("catch-up, s", seconds),
        ("catch-up, CPU seconds", meter.cpu_seconds() - cpu),
        ("catch-up, wrong", output.wrong(expected(changes))),
    ]
    stream, seen, stop = Stream(feed, changes), list[tuple[float, int]](), threading.Event()
    watcher = threading.Thread(target=output.watch, args=(seen, stop), daemon=True)
    watcher.start()
    stream.run(options.rate, _WARM_UP, process.check)
    begin, cpu = time.time(), meter.cpu_seconds()
    stream.run(options.rate, options.seconds, process.check)
    cores = (meter.cpu_seconds() - cpu) / (time.time() - begin)
    output.settle(-1)
    stop.set()
    watcher.join()
    delays = np.array(stream.delays(seen, begin))
    found += [(f"freshness p{p}, s", float(np.percentile(delays, p))) for p in (50, 95, 99)]
    return [*found, ("CPU cores, steady", cores), ("peak RSS, MB", meter.peak_bytes / 1e6)]


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--heap", default="6g", help="of Flink's JVM")
    parser.add_argument("--flink-python", type=Path, help="a Python that has apache-flink")
    parser.add_argument("--jars", help="of Flink's Kafka connector, with : between them")
    options = parser.parse_args()
    modes = [MODES[name] for name in options.modes.split(",")]
    python = options.flink_python or flink_python()
    named = options.jars.split(":") if options.jars else []
    jars = [Path(jar) for jar in named] or resolve("flink", LOCK)
    tables = make_tables(options.sf)
    result = Result(
        "peers",
        f"Flink SQL, W1 at scale {options.sf:g}",
        ["what", *(mode.name for mode in modes)],
        variant_of(options),
    )
    found = []
    for mode in modes:
        found.append(measure(tables, mode, python, jars, options))
        print(mode.name, *found[-1], flush=True)
    for row in zip(*found, strict=True):
        result.add(row[0][0], *(value for _, value in row))
    result.notes.append(f"{PACKAGE}, its Kafka connector {jars[0].stem}, heap {options.heap}")
    result.save()


if __name__ == "__main__":
    main()
