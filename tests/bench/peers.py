"""Other engines on the same work: load, catch-up, freshness; W1, the view in Kafka.

    python -m tests.bench.peers --sf 1 --engines flink-exactly-once,flink-at-least-once,pathway

Each engine is fetched into the cache folder the first time (some 300 MB); Flink may be named by
--flink-python and --jars. How each is run is said in its file: flink.py, pathway_peer.py. After
load and catch-up the whole view is held against a batch query; `wrong` must be 0. Run `freshness`,
`catchup` and `load_live` in the same sitting to compare.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from tests.bench.flink import MODES, FlinkPeer
from tests.bench.pathway_peer import PathwayPeer
from tests.bench.peer import GROUP, OUT, Feed, Peer, Peers, Running
from tests.bench.results import Result, variant_of
from tests.bench.w1 import KEYS, VIEW, Change, Changes, Row, Tables, make_tables
from tests.services.kafka import KafkaServer

_TIMEOUT = 900.0
#: Seconds of changes at the full rate before the measurement, and between two sends.
_WARM_UP, _TICK = 15.0, 0.01
#: Every so many changes one is a probe: a new line of the probe order, which its group counts.
_PROBE_EVERY = 10
#: What stands in a message of the probe order's group.
_PROBE = b'"o_orderkey":0'


# --- what comes out ------------------------------------------------------------------------------


class Output:
    """The topic that an engine writes the view to, as a reader of its isolation sees it."""

    def __init__(self, servers: str, peer: Peer, check: Callable[[], None]) -> None:
        self._settings = {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "isolation.level": peer.isolation,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "log_level": 0,
        }
        self._consumer = Consumer(self._settings)
        self._peer, self._check = peer, check
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
        while last is None or time.time() < last + self._peer.idle:
            self._check()
            if time.time() > limit:
                raise TimeoutError("the output does not come, or does not end")
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
            group, row, comes = self._peer.shown(key, value)
            if comes and row is not None:
                self._rows[group] = row
            elif row is None or self._rows.get(group) == row:
                self._rows.pop(group, None)
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
                if message.error() is None and value and _PROBE in value:
                    at, shown = time.time(), self._peer.shown(message.key() or b"", value)
                    if shown.comes and shown.row is not None and shown.group[0] == 0:
                        seen.append((at, shown.row[0]))
        consumer.close()


# --- what goes in --------------------------------------------------------------------------------


def expected(changes: Changes) -> pa.Table:
    """The view as a batch query gives it after the changes so far."""
    with duckdb.connect() as database:
        for name in KEYS:
            database.register(name, changes.rows(name))
        return database.sql(VIEW.format(**{name: name for name in KEYS})).to_arrow_table()


def probe(order: Row, like: Row, number: int) -> Change:
    """The line of the probe order with a number; line 0 is the order itself."""
    if number == 0:
        return Change("orders", "insert", None, {**order, "o_orderkey": 0, "o_orderdate": 10_000})
    line = {**like, "l_orderkey": 0, "l_linenumber": number, "l_returnflag": "A"}
    return Change("lineitem", "insert", None, line)


class Stream:
    """A steady stream of changes with probes among them, and how fresh it comes out."""

    def __init__(self, peer: Peer, feed: Feed, changes: Changes) -> None:
        self._peer, self._feed, self._changes = peer, feed, changes
        self._order, self._line = (
            changes.tables[name].slice(0, 1).to_pylist()[0] for name in ("orders", "lineitem")
        )
        self.sent: list[float] = []
        self._send(probe(self._order, self._line, 0))

    def _send(self, change: Change) -> None:
        self._feed.send(change.table, *self._peer.message(change))

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
    tables: Tables, peer: Peer, options: argparse.Namespace
) -> list[tuple[str, float | int | str]]:
    """All phases of one engine."""
    with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
        folder = Path(temp)
        (folder / "kafka").mkdir()
        kafka = KafkaServer(folder / "kafka")
        try:
            for topic in (*KEYS, OUT):
                kafka.create_topic(topic)
            feed = Feed(kafka.bootstrap)
            peer.fill(tables, folder, feed)
            with peer.run(tables, folder, kafka.bootstrap) as running:
                output = Output(kafka.bootstrap, peer, running.process.check)
                return _phases(tables, peer, (feed, output), running, options)
        finally:
            kafka.stop()


def _phases(
    tables: Tables,
    peer: Peer,
    ends: tuple[Feed, Output],
    running: Running,
    options: argparse.Namespace,
) -> list[tuple[str, float | int | str]]:
    (feed, output), meter, check = ends, running.meter, running.process.check
    changes = Changes(tables)
    found: list[tuple[str, float | int | str]] = [
        ("loaded from", peer.loads_from),
        ("load, s", output.settle(0) - running.start),
    ]
    found += [
        ("load, CPU seconds", meter.cpu_seconds()),
        ("load, wrong", output.wrong(expected(changes))),
    ]
    encoded = [(one.table, *peer.message(one)) for one in changes.take(options.changes)]
    before, begin, cpu = output.end(), time.time(), meter.cpu_seconds()
    for topic, key, value in encoded:
        feed.send(topic, key, value)
    feed.flush()
    seconds = output.settle(before) - begin
    found += [
        ("catch-up, changes/s", options.changes / seconds),
        ("catch-up, s", seconds),
        ("catch-up, CPU seconds", meter.cpu_seconds() - cpu),
        ("catch-up, wrong", output.wrong(expected(changes))),
    ]
    stream, seen, stop = Stream(peer, feed, changes), list[tuple[float, int]](), threading.Event()
    watcher = threading.Thread(target=output.watch, args=(seen, stop), daemon=True)
    watcher.start()
    stream.run(options.rate, _WARM_UP, check)
    begin, cpu = time.time(), meter.cpu_seconds()
    stream.run(options.rate, options.seconds, check)
    cores = (meter.cpu_seconds() - cpu) / (time.time() - begin)
    output.settle(-1)
    stop.set()
    watcher.join()
    delays = np.array(stream.delays(seen, begin))
    found += [(f"freshness p{p}, s", float(np.percentile(delays, p))) for p in (50, 95, 99)]
    return [*found, ("CPU cores, steady", cores), ("peak RSS, MB", meter.peak_bytes / 1e6)]


def _peers(options: argparse.Namespace) -> Peers:
    """The engines that can be named."""
    jars = [Path(jar) for jar in options.jars.split(":")] if options.jars else []

    def flink(name: str) -> Peer:
        return FlinkPeer(MODES[name], options.heap, options.flink_python, jars)

    return {f"flink-{name}": partial(flink, name) for name in MODES} | {"pathway": PathwayPeer}


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--engines", default="flink-exactly-once,flink-at-least-once,pathway")
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--heap", default="6g", help="of Flink's JVM")
    parser.add_argument("--flink-python", type=Path, help="a Python that has apache-flink")
    parser.add_argument("--jars", help="of Flink's Kafka connector, with : between them")
    options = parser.parse_args()
    known = _peers(options)
    peers = [known[name]() for name in options.engines.split(",")]
    tables = make_tables(options.sf)
    result = Result(
        "peers",
        f"Other engines, W1 at scale {options.sf:g}",
        ["what", *(peer.name for peer in peers)],
        variant_of(options),
    )
    found = []
    for peer in peers:
        found.append(measure(tables, peer, options))
        print(peer.name, *found[-1], flush=True)
    for row in zip(*found, strict=True):
        result.add(row[0][0], *(value for _, value in row))
    result.notes += [f"{peer.name}: {peer.note}" for peer in peers]
    result.save()


if __name__ == "__main__":
    main()
