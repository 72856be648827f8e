"""What reading from Kafka costs per epoch: connections to the broker, CPU and time.

    python -m tests.bench.connections --epochs 200

An epoch here is what a run does to read a batch, with a real broker, plain and by TLS: a heartbeat
and some changes have come; how far is asked, and these are read and decoded. A relay in front of
the broker counts the connections that it is asked for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pyarrow as pa

from mview.config.file import load_config
from mview.ingest.changelogs import Changelogs
from mview.ingest.spec import QuerySpec, TableSpec, open_changelog
from mview.schema import Column, TableSchema
from tests.bench.results import Result
from tests.relations import rel
from tests.services.kafka import KafkaServer, Listener
from tests.services.process import free_port
from tests.services.relay import relay

_CHANGES = 60
_SCHEMA = TableSchema((Column("id", pa.int64(), nullable=False),), ("id",))
_SECTION = """
store: data
connections: {{shop: {{drivername: sqlite, database: a.db}}}}
changes:
  shop: {{source: kafka, format: debezium, bootstrap_servers: "127.0.0.1:{port}",
    topic: "{kind}.{{table}}", heartbeat_topic: {kind}-beats, options: {options}}}
"""


def certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate of this machine's own address."""
    key, chain = folder / "key.pem", folder / "chain.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    more = "-addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(chain)]
    subprocess.run([*command.split(), *more.split(), *files], check=True, capture_output=True)
    return key, chain


def _one_line(file: Path) -> str:
    return file.read_text().strip().replace("\n", "\\n")


class Epochs:
    """Batches of one topic, made and read."""

    def __init__(self, broker: KafkaServer, kind: str, port: int, options: dict[str, str]) -> None:
        self._broker = broker
        self._topic = broker.create_topic(f"{kind}.t")
        self._beats = broker.create_topic(f"{kind}-beats")
        self._folder = Path(tempfile.mkdtemp(prefix="mview-bench-"))
        config = self._folder / "mview.yml"
        config.write_text(_SECTION.format(port=port, kind=kind, options=json.dumps(options)))
        self._sent = 0
        self._send()
        loaded = load_config(config)
        log = open_changelog(loaded, "shop", ["t"])
        start = {"shop": log.begin()}
        log.close()
        table = TableSpec(rel("shop.t"), _SCHEMA, self._folder, "stage", None)
        spec = QuerySpec(1, loaded, {table.name: table}, start, -1, 1, False)
        self._logs = Changelogs(spec.write(self._folder / "spec.json"))
        self._at = self._logs.begin()

    def _send(self) -> None:
        now = int(time.time() * 1000)
        values = []
        for number in range(self._sent, self._sent + _CHANGES):
            source = {"connector": "postgresql", "table": "t", "ts_ms": now}
            source["sequence"] = f'["{number}","{number}"]'
            values.append(json.dumps({"op": "c", "after": {"id": number}, "source": source}))
        self._broker.produce(self._topic, values)
        self._broker.produce(self._beats, [json.dumps({"ts_ms": now})])
        self._sent += _CHANGES

    def read(self) -> tuple[float, float]:
        """Seconds of time and of CPU that a batch takes."""
        self._send()
        began, cpu, rows = time.perf_counter(), time.process_time(), 0
        end = self._logs.advance(self._at)
        for piece in self._logs.pieces(self._at, end):
            rows += sum(decoded.changes.num_rows for decoded in self._logs.changes(piece))
        took = time.perf_counter() - began, time.process_time() - cpu
        assert rows == _CHANGES, rows
        self._at = end
        return took

    def close(self) -> None:
        """End the clients."""
        self._logs.close()


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    columns = ["way", "connections per 100 epochs", "CPU ms per epoch", "ms per epoch, p50", "p95"]
    result = Result("connections", f"Epochs of {_CHANGES} changes from Kafka", columns)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mview-bench-")))
        key, chain = certificate(folder)
        tls = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": _one_line(key),
            "ssl.keystore.certificate.chain": _one_line(chain),
        }
        ports = {name: (free_port(), free_port()) for name in ("COUNTED", "SEALED")}
        listeners = {
            "COUNTED": Listener("PLAINTEXT", *ports["COUNTED"]),
            "SEALED": Listener("SSL", *ports["SEALED"], tls),
        }
        broker = KafkaServer(folder, listeners)
        stack.callback(broker.stop)
        ways = {
            "plain": ("COUNTED", {}),
            "TLS": ("SEALED", {"security.protocol": "SSL", "ssl.ca.location": str(chain)}),
        }
        for way, (name, settings) in ways.items():
            port, told = ports[name]
            counted = stack.enter_context(relay(told, port))
            epochs = Epochs(broker, way, told, settings)
            for _ in range(20):
                epochs.read()
            before = counted.accepted
            times = [epochs.read() for _ in range(options.epochs)]
            made = counted.accepted - before
            epochs.close()
            walls = sorted(wall * 1000 for wall, _ in times)
            cpu = sum(cpu for _, cpu in times) / len(times) * 1000
            late = walls[int(len(walls) * 0.95)]
            result.add(way, round(100 * made / len(times)), cpu, median(walls), late)
    result.save()


if __name__ == "__main__":
    main()
