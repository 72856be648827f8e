"""A real `mview run` process over a real Kafka broker, seen from outside: epochs, CPU, memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Producer

from mview.config import Config, load_config
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest
from tests.bench.seed import seed_store, write_config
from tests.bench.w1 import CONNECTION, KEYS, Change, Tables, message, view_sql
from tests.services.kafka import KafkaServer
from tests.services.process import ending_with_parent

#: Seconds between two looks for a new manifest: what freshness is exact to.
_LOOK_EVERY = 0.002

_TIMEOUT = 900.0


class Meter:
    """CPU seconds and memory of a process with all its children."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return [self._root, *self._root.children(recursive=True)]
        return []

    def cpu_seconds(self) -> float:
        """CPU seconds so far, with those of children that have ended."""
        total = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            total = 0
            for process in self._tree():
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
            self.peak_bytes = max(self.peak_bytes, total)

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._sampler.join()


@dataclass(frozen=True)
class Seen:
    """A published epoch and when it was seen."""

    at: float
    manifest: Manifest


class Watch:
    """Sees every manifest within milliseconds of its publishing."""

    def __init__(self, store: Store) -> None:
        self._log = ManifestLog(store.manifests)
        self.epochs: list[Seen] = []
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._look, daemon=True)
        self._watcher.start()

    def _look(self) -> None:
        epochs = self._log.epochs()
        following = (epochs[-1] if epochs else 0) + 1
        while not self._stop.wait(_LOOK_EVERY):
            file = self._log.folder / f"{following:020d}.json"
            if file.exists():
                now = time.time()
                self.epochs.append(Seen(now, self._log.read(following)))
                following += 1

    def wait(self, done: Callable[[Manifest], bool], check: Callable[[], None]) -> Seen:
        """The first epoch that is `done`."""
        end, looked = time.monotonic() + _TIMEOUT, 0
        while time.monotonic() < end:
            check()
            for seen in self.epochs[looked:]:
                looked += 1
                if done(seen.manifest):
                    return seen
            time.sleep(0.005)
        raise TimeoutError("the epoch that is waited for does not come")

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._watcher.join()


class Run:
    """A running `mview run`, fed through Kafka.

    Attributes:
        meter: its CPU and memory.
        watch: its epochs.
    """

    def __init__(self, config: Config, views: Path, servers: str) -> None:
        self._config, self._views = config, views
        self._log = config.path.parent / "run.log"
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 0,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self.sent: dict[str, list[float]] = {name: [] for name in KEYS}
        self.watch = Watch(Store(config.store))
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                ending_with_parent(self._command("run")),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        self.meter = Meter(self._process.pid)

    def _command(self, what: str) -> list[str]:
        program = "from mview.cli import main; main()"
        arguments = [what, str(self._views), "-c", str(self._config.path)]
        return [sys.executable, "-c", program, *arguments]

    def check(self) -> None:
        """Raise when the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"mview ended: {self._log.read_text()[-3000:]}")

    def send(self, changes: Sequence[Change], position: int) -> None:
        """Produce changes; their positions count from `position`."""
        for number, change in enumerate(changes):
            now = time.time()
            value = message(change, position + number, int(now * 1000))
            self.send_encoded(change.table, value)

    def send_encoded(self, table: str, value: bytes) -> None:
        """Produce one message and note when."""
        self.sent[table].append(time.time())
        self._producer.produce(f"{CONNECTION}.{table}", value, partition=0)

    def poll(self) -> None:
        """Let the producer do its work."""
        self._producer.poll(0)

    def wait_until_live(self) -> None:
        """Wait until the view is built and the live query has taken what is there."""
        self.watch.wait(lambda manifest: bool(manifest.views), self.check)

    def drain(self) -> Seen:
        """Wait until all that was sent is published; returns that epoch."""
        self._producer.flush(60)
        ends = {f"{CONNECTION}.{name}/0": len(times) for name, times in self.sent.items()}
        return self.watch.wait(
            lambda manifest: all(
                manifest.offsets[CONNECTION].get(name, 0) >= end for name, end in ends.items()
            ),
            self.check,
        )

    def delays(self, begin: float, end: float) -> list[float]:
        """Seconds from "sent" to "published" of the changes sent between two times."""
        found = []
        taken = dict.fromkeys(KEYS, 0)
        for seen in self.watch.epochs:
            for name, times in self.sent.items():
                upto = seen.manifest.offsets[CONNECTION].get(f"{CONNECTION}.{name}/0", 0)
                found += [
                    seen.at - sent for sent in times[taken[name] : upto] if begin <= sent < end
                ]
                taken[name] = max(taken[name], upto)
        return found

    def stop(self) -> None:
        """Ctrl-C, and wait for the end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.watch.close()
        self.meter.close()

    def verify(self) -> str:
        """What `mview verify` says in one line, after the end of the run."""
        done = subprocess.run(self._command("verify"), capture_output=True, text=True, check=False)
        lines = (done.stdout or done.stderr).strip().splitlines()
        return f"exit {done.returncode}: {lines[0] if lines else ''}"


@contextmanager
def running(tables: Tables, extra: str) -> Iterator[Run]:
    """A run over seeded tables and empty topics, ended at the end."""
    with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
        folder = Path(temp)
        broker = folder / "kafka"
        broker.mkdir()
        kafka = KafkaServer(broker)
        try:
            for name in KEYS:
                kafka.create_topic(f"{CONNECTION}.{name}")
            settings = (
                f"{{source: kafka, format: unified, topic: '{CONNECTION}.{{table}}', "
                f"bootstrap_servers: '{kafka.bootstrap}', T: 1s}}"
            )
            config = load_config(write_config(folder, settings, extra))
            views = folder / "order_revenue.sql"
            views.write_text(view_sql())
            seed_store(config, tables, {f"{CONNECTION}.{name}/0": 0 for name in KEYS})
            run = Run(config, views, kafka.bootstrap)
            try:
                yield run
            finally:
                run.stop()
                if keep := os.environ.get("MVIEW_BENCH_LOG"):
                    Path(keep).write_bytes((folder / "run.log").read_bytes())
        finally:
            kafka.stop()
