"""What another engine must say of itself to be measured by `peers`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from confluent_kafka import Producer

from mview.java.jars import cache_folder
from tests.bench.running import Meter
from tests.bench.w1 import Change, Tables
from tests.services.process import ServerProcess

#: The topic of the view, and the columns that make its key.
OUT = "order_revenue"
GROUP = ("o_orderkey", "c_nationkey", "o_orderdate")


class Shown(NamedTuple):
    """A message of the view's topic: a group's row comes, or goes (`row` may be None then)."""

    group: tuple[int, ...]
    row: tuple[int, int] | None
    comes: bool


class Feed:
    """Sends messages to the topics of the tables."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 0,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def send(self, topic: str, key: bytes | None, value: bytes) -> None:
        """Send one message; waits where too many are under way."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition=0)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all is sent."""
        self._producer.flush(60)


@dataclass(frozen=True)
class Running:
    """An engine at work: its process, what it uses, and when it was started."""

    process: ServerProcess
    meter: Meter
    start: float


@contextmanager
def running(
    name: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] = os.environ
) -> Iterator[Running]:
    """An engine in a process of its own."""
    start = time.time()
    process = ServerProcess(name, command, log, env={**environment})
    meter = Meter(process.pid)
    try:
        yield Running(process, meter, start)
    finally:
        meter.close()
        process.kill()


class Peer(Protocol):
    """Another engine, in one way to run it.

    Attributes:
        name: of the engine and the way.
        loads_from: where its tables come from.
        note: versions and settings, for the result.
        isolation: how a reader of its output must read: Kafka's `isolation.level`.
        idle: seconds without output after which a phase is over: longer than between two commits.
    """

    name: str
    loads_from: str
    note: str
    isolation: str
    idle: float

    def fill(self, tables: Tables, folder: Path, feed: Feed) -> None:
        """Put the tables where it loads them from, before it is started."""
        ...

    def run(self, tables: Tables, folder: Path, servers: str) -> AbstractContextManager[Running]:
        """Start it: it loads the tables, follows their topics, and writes the view's."""
        ...

    def message(self, change: Change) -> tuple[bytes | None, bytes]:
        """A change as it takes it: the key and the value of a message."""
        ...

    def shown(self, key: bytes, value: bytes | None) -> Shown:
        """What a message of the view's topic says."""
        ...


def python_with(package: str, *more: str) -> Path:
    """The Python that has a package, in an environment of its own in the cache folder."""
    folder = cache_folder().parent / package.replace("==", "-")
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        print(f"installing {package} into {folder}", flush=True)
        uv = str(Path(sys.executable).with_name("uv"))
        for arguments in (
            ["venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            ["pip", "install", "--quiet", "--python", str(python), package, *more],
        ):
            subprocess.run([uv, *arguments], check=True)
        ready.touch()
    return python


#: Gives each of the engines that can be had here, by name; it is fetched the first time.
Peers = dict[str, Callable[[], Peer]]
