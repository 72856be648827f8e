"""A real `mview run` process over a real Kafka broker, seen from outside: epochs, CPU, memory."""

from __future__ import annotations

import bisect
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import yaml
from confluent_kafka import Producer

from mview.config import Config
from mview.config.file import load_config
from mview.follow.cursor import CursorLog
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest
from tests.bench.seed import seed_store, write_config
from tests.bench.w1 import CONNECTION, KEYS, VIEW, Change, Tables, message, view_sql
from tests.connectors.every_sink import places, section, table_of
from tests.services.fixtures import servers
from tests.services.process import ending_with_parent

#: Seconds between two looks for a new manifest: what freshness is exact to.
_LOOK_EVERY = 0.002

#: The same for cursors of sinks: a folder is listed, by a thread per sink.
_SINKS_EVERY = 0.01

_TIMEOUT = 900.0

W1_VIEW = "order_revenue"
W1_TOPICS = tuple(f"{CONNECTION}.{name}" for name in KEYS)


class Meter:
    """CPU seconds and memory of a process with all its children."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._before = 0.0
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
        total = self._before
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    @contextmanager
    def replacing(self) -> Iterator[Callable[[int], None]]:
        """The process ends inside, and the one that is named by its pid takes its place."""
        used = self.cpu_seconds()

        def follow(pid: int) -> None:
            self._root, self._before = psutil.Process(pid), used

        yield follow

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


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; files may come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(place) / name).stat().st_size
    return total


class SinkWatch:
    """Sees soon how far a sink has followed a view, as the store notes it.

    Noted is what the target has said to have committed, so it is there a moment before.
    """

    def __init__(self, store: Store, view: str, sink: str) -> None:
        self._log = CursorLog(store.follower(view, sink))
        #: When it stood at which epoch.
        self.times: list[float] = []
        self.epochs: list[int] = []
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._look, daemon=True)
        self._watcher.start()

    def _look(self) -> None:
        newest = 0
        while not self._stop.wait(_SINKS_EVERY):
            number = max(self._log.numbers(), default=0)
            if number == newest:
                continue
            newest, now = number, time.time()
            with contextlib.suppress(OSError):  # a newer one has come, and this one is gone
                cursor = self._log.latest()
                if cursor.intent is None and cursor.epoch is not None:
                    self.times.append(now)
                    self.epochs.append(cursor.epoch)

    def when(self, epoch: int) -> float | None:
        """When it had an epoch."""
        place = bisect.bisect_left(self.epochs, epoch)
        return self.times[place] if place < len(self.times) else None

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._watcher.join()


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

    Args:
        config: the configuration.
        views: a view file, or a folder of them.
        servers: of Kafka.
        topics: `<connection>.<table>`, of one partition; W1's by default.
        sinks: what follows W1's view.

    Attributes:
        meter: its CPU and memory.
        watch: its epochs.
        sinks: how far these are.
        store: its store.
        sent: when each message was sent, by topic.
    """

    def __init__(
        self,
        config: Config,
        views: Path,
        servers: str,
        topics: Sequence[str] = W1_TOPICS,
        sinks: Sequence[str] = (),
    ) -> None:
        self._config, self._views = config, views
        self.store = Store(config.store)
        self._log = config.path.parent / "run.log"
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 0,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self.sent: dict[str, list[float]] = {topic: [] for topic in topics}
        self.watch = Watch(Store(config.store))
        self.sinks = {name: SinkWatch(Store(config.store), W1_VIEW, name) for name in sinks}
        self._process = self._start()
        self.meter = Meter(self._process.pid)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(
                ending_with_parent(self._command("run")),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    def kill_and_restart(self) -> None:
        """kill -9, and the same command again; what both use counts together."""
        with self.meter.replacing() as follow:
            self._process.kill()
            self._process.wait()
            self._process = self._start()
            follow(self._process.pid)

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
            self.send_encoded(f"{CONNECTION}.{change.table}", value)

    def send_encoded(self, topic: str, value: bytes) -> None:
        """Produce one message and note when."""
        self.sent[topic].append(time.time())
        self._producer.produce(topic, value, partition=0)

    def poll(self) -> None:
        """Let the producer do its work."""
        self._producer.poll(0)

    def wait_until_live(self) -> Seen:
        """Wait until the view is built and the live query has taken what is there."""
        return self.watch.wait(lambda manifest: bool(manifest.views), self.check)

    def drain(self) -> Seen:
        """Wait until all that was sent is published; returns that epoch."""
        self._producer.flush(60)
        ends = {topic: len(times) for topic, times in self.sent.items()}
        return self.watch.wait(
            lambda manifest: all(_upto(manifest, topic) >= end for topic, end in ends.items()),
            self.check,
        )

    def wait_for_sinks(self, seen: Seen) -> None:
        """Wait until all sinks have an epoch."""
        end = time.monotonic() + _TIMEOUT
        while any(self._there(sink, seen) is None for sink in self.sinks):
            self.check()
            if time.monotonic() > end:
                raise TimeoutError("a sink does not come to the epoch that is waited for")
            time.sleep(0.005)

    def _there(self, sink: str, seen: Seen) -> float | None:
        return self.sinks[sink].when(int(seen.manifest.views[W1_VIEW].facts["epoch"]))

    def delays(self, begin: float, end: float, sink: str = "") -> npt.NDArray[np.float64]:
        """The changes sent between two times: when each was sent, and seconds until published.

        With a sink: until they were there.
        """
        found = []
        taken = dict.fromkeys(self.sent, 0)
        for seen in self.watch.epochs:
            at = self._there(sink, seen) if sink else seen.at
            for topic, times in self.sent.items():
                upto = _upto(seen.manifest, topic)
                found += [
                    (sent, np.inf if at is None else at - sent)
                    for sent in times[taken[topic] : upto]
                    if begin <= sent < end
                ]
                taken[topic] = max(taken[topic], upto)
        return np.array(found).reshape(-1, 2)

    def disk_bytes(self) -> dict[str, int]:
        """Bytes of the files in the store: mirrors, views, and all the rest."""
        root = Store(self._config.store).root
        sizes = {name: folder_bytes(root / name) for name in ("tables", "views")}
        return {**sizes, "rest": folder_bytes(root) - sum(sizes.values())}

    def stop(self) -> None:
        """Ctrl-C, and wait for the end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for watch in (self.watch, *self.sinks.values()):
            watch.close()
        self.meter.close()

    def verify(self) -> str:
        """What `mview verify` says in one line, after the end of the run."""
        done = subprocess.run(self._command("verify"), capture_output=True, text=True, check=False)
        lines = (done.stdout or done.stderr).strip().splitlines()
        equal = sum(": OK, " in line for line in lines[1:])
        others = len(lines) - 1
        more = f", and so are {equal} of {others} other views and sinks" if others > 0 else ""
        return f"exit {done.returncode}: {lines[0] if lines else ''}{more}"


def _upto(manifest: Manifest, topic: str) -> int:
    """The offset that a topic's one partition has been published to."""
    connection = topic.partition(".")[0]
    offset: int = manifest.offsets.get(connection, {}).get(f"{topic}/0", 0)
    return offset


@contextmanager
def running(
    tables: Tables,
    extra: str,
    vectors: bool = False,
    sinks: Sequence[str] = (),
    every: str = "",
    views: Mapping[str, str] = {W1_VIEW: VIEW},
) -> Iterator[Run]:
    """A run over seeded tables and empty topics, ended at the end.

    Args:
        tables: the rows before the first change.
        extra: more sections of the configuration.
        vectors: whether the views may have deletion vectors.
        sinks: what follows W1's view, of `PLACES`.
        every: least time between two commits of a sink; as each sink has it if empty.
        views: queries by name, W1's among them.
    """
    with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp, servers() as server:
        folder, kafka = Path(temp), server("kafka")
        for topic in W1_TOPICS:
            kafka.create_topic(topic)
        settings = (
            f"{{source: kafka, format: unified, topic: '{CONNECTION}.{{table}}', "
            f"bootstrap_servers: '{kafka.bootstrap}', T: 1s}}"
        )
        with places(folder / "places", server, sinks) as there:
            rhythm = {"every": every} if every else {}
            sections = {name: section(harness) | rhythm for name, harness in there.items()}
            extra += "\n" + yaml.safe_dump({"sinks": sections})
            config = load_config(write_config(folder, settings, extra))
            options = [f"sinks = '{', '.join(sinks)}'"] if sinks else []
            for name, harness in there.items():
                options.append(f"sinks.{name}.table = '{table_of(harness, W1_VIEW)}'")
            folder_of_views = folder / "views"
            folder_of_views.mkdir()
            for name, query in views.items():
                mine = options if name == W1_VIEW else []
                text = view_sql(query, name, vectors, mine)
                (folder_of_views / f"{name}.sql").write_text(text)
            seed_store(config, tables, {f"{topic}/0": 0 for topic in W1_TOPICS})
            run = Run(config, folder_of_views, kafka.bootstrap, sinks=sinks)
            try:
                yield run
            finally:
                run.stop()
                if keep := os.environ.get("MVIEW_BENCH_LOG"):
                    Path(keep).write_bytes((folder / "run.log").read_bytes())
