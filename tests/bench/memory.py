"""Memory of a whole `mview run`: a load, a first build, then changes; driver and JVM apart.

    python -m tests.bench.memory --rows 1000000 --memory 134217728

The source is a SQLite database with a folder of change files. A process's peak is what Linux tells,
set back at the begin of each phase; what the driver had when its load was planned is the baseline.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import orjson
import psutil

from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest
from tests.bench.results import Result
from tests.patience import wait_for
from tests.services.process import ending_with_parent

#: Of four rows one is an order, three are its lines.
_LINES = 3

#: Views of every kind: of one table, of a join, of an aggregate.
_VIEWS = {
    "notes": "select id, customer, note from shop.orders where customer < 500",
    "joined": "select l.id, o.customer, l.amount from shop.lines l join shop.orders o"
    " on l.order_id = o.id where l.amount < 10",
    "totals": "select order_id % 1000 as bucket, count(*) as n, sum(amount) as total"
    " from shop.lines group by order_id % 1000",
}

_CONFIG = """
store: store
connections: {{shop: {{drivername: sqlite, database: shop.db}}}}
changes: {{shop: {{source: files, format: unified, path: changes, T: 1 s}}}}
engine: {{memory: {memory}}}
spark: {{master: 'local[2]', conf: {{spark.driver.memory: 1g}}}}
"""

_TIMEOUT = 900


@dataclass(frozen=True)
class Peak:
    """The most that processes had in a phase, in bytes, beyond the begin of the load.

    Attributes:
        driver: the Python process of `mview run`.
        jvm: its Java process.
        left: of the driver's, what it had at the end of the phase.
    """

    driver: int
    jvm: int
    left: int


class Tables:
    """A database, and its change file.

    Args:
        folder: for both.
        rows: of all tables.
        width: characters of an order's note.
    """

    def __init__(self, folder: Path, rows: int, width: int) -> None:
        self.orders, self._width, self._position = rows // (1 + _LINES), width, 0
        (folder / "changes").mkdir()
        self._lock = threading.Lock()
        self._log: TextIO = (folder / "changes" / "1.jsonl").open("w", buffering=1 << 16)
        with contextlib.closing(sqlite3.connect(folder / "shop.db")) as db:
            db.execute("pragma journal_mode=wal")
            db.execute("create table orders(id integer primary key, customer integer, note text)")
            db.execute(
                "create table lines(id integer primary key, order_id integer, amount integer)"
            )
            orders = ((n, n % 1000, self._note(n)) for n in range(self.orders))
            db.executemany("insert into orders values (?, ?, ?)", orders)
            lines = ((n, n // _LINES, n % 100) for n in range(_LINES * self.orders))
            db.executemany("insert into lines values (?, ?, ?)", lines)
            db.commit()

    def _note(self, number: int) -> str:
        """A text of which nothing is said twice: files are half as large as rows in memory."""
        return random.Random(number).randbytes(self._width // 2).hex()

    def change(self, first: int, count: int) -> None:
        """Orders and lines that get other values, by the log alone."""
        for number in range(first, first + count):
            order = number * 7919 % self.orders
            after = {"id": order, "customer": number % 1000, "note": self._note(number)}
            self._write(op="update", table="orders", after=after)
            line = {"id": order * _LINES, "order_id": order, "amount": number % 50}
            self._write(op="update", table="lines", after=line)
        self.heartbeat()

    def remove(self) -> None:
        """Every other order goes: messages of a few bytes, about rows that may be large."""
        for order in range(0, self.orders, 2):
            self._write(op="delete", table="orders", before={"id": order})
        self.heartbeat()

    def heartbeat(self) -> None:
        """The time, as a connector with nothing to send writes it."""
        self._write(op="heartbeat")
        with self._lock:
            self._log.flush()

    def _write(self, **change: object) -> None:
        with self._lock:
            if change["op"] != "heartbeat":
                self._position += 1
                change["position"] = self._position
            change["ts"] = time.time_ns() // 1_000_000
            self._log.write(orjson.dumps(change).decode() + "\n")

    def close(self) -> None:
        """Close the change file."""
        self._log.close()

    @property
    def size(self) -> int:
        """Bytes of the change file."""
        return Path(self._log.name).stat().st_size

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Heartbeats all the while."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(0.2):
                self.heartbeat()

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


class Watched:
    """A running `mview run`, and what its two processes have."""

    def __init__(self, folder: Path, memory: int) -> None:
        (folder / "mview.yml").write_text(_CONFIG.format(memory=memory))
        (folder / "views").mkdir()
        for name, sql in _VIEWS.items():
            (folder / "views" / f"{name}.sql").write_text(sql)
        self._said = folder / "said"
        self._log = ManifestLog(Store(folder / "store").manifests)
        command = [sys.executable, "-c", "from mview.cli import main; main()", "run", "views"]
        with self._said.open("wb") as output:
            self._process = subprocess.Popen(
                ending_with_parent([*command, "-c", "mview.yml"]),
                cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def until(self, done: Callable[[Manifest], bool]) -> None:
        """Wait for a manifest."""

        def is_done() -> bool:
            newest = self._log.latest()
            return newest is not None and done(newest)

        def check() -> None:
            if self._process.poll() is not None:
                raise RuntimeError(f"mview ended: {self._said.read_text()[-3000:]}")

        if not wait_for(is_done, _TIMEOUT, check):
            raise TimeoutError(f"waited too long: {self._said.read_text()[-3000:]}")

    def begin(self) -> None:
        """What both processes have now is the baseline."""
        self._pids = {"driver": self._process.pid, "jvm": self._java()}
        self._base = {name: _status(pid, "VmRSS") for name, pid in self._pids.items()}
        self._forget()

    def _java(self) -> int:
        children = psutil.Process(self._process.pid).children()
        return next(one.pid for one in children if one.name() == "java")

    def _forget(self) -> None:
        for pid in self._pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is what there is now

    def peak(self) -> Peak:
        """The most since the last question."""
        most = {n: _status(pid, "VmHWM") - self._base[n] for n, pid in self._pids.items()}
        left = _status(self._pids["driver"], "VmRSS") - self._base["driver"]
        self._forget()
        return Peak(most["driver"], most["jvm"], left)

    @property
    def base(self) -> dict[str, int]:
        """What the processes had at `begin`."""
        return self._base

    def end(self) -> None:
        """Ctrl-C, or an end at once."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        self._process.kill()
        self._process.wait()


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def measured(
    folder: Path, memory: int, rows: int, changes: int, width: int, bursts: int = 4
) -> tuple[dict[str, int], dict[str, Peak]]:
    """Run it all.

    Args:
        folder: an empty one.
        memory: `engine.memory`.
        rows: of the database.
        changes: so many after the load, in some bursts; of two tables each.
        width: characters of a note.
        bursts: each waits for the one before.

    Returns:
        What the processes had at the begin of the load; what came on top, by phase.
    """
    tables = Tables(folder, rows, width)
    run = Watched(folder, memory)
    peaks = {}
    try:
        run.until(lambda manifest: bool(manifest.tables))
        run.begin()
        with tables.beating():
            run.until(lambda m: all(table.phase == "loaded" for table in m.tables.values()))
            peaks["load"] = run.peak()
            run.until(lambda manifest: len(manifest.views) == len(_VIEWS))
            peaks["first build"] = run.peak()
            # Until what it needs for changes is there, the resident tables among it.
            tables.change(0, 10)
            run.until(_taken(tables.size))
            peaks["first changes"] = run.peak()
        for burst in range(bursts):
            count = changes // bursts
            tables.change(burst * count, count)
            run.until(_taken(tables.size))
            peaks[f"changes, {burst + 1} of {bursts}"] = run.peak()
        tables.remove()
        run.until(_taken(tables.size))
        peaks["half of the orders go"] = run.peak()
    finally:
        run.end()
        tables.close()
    return run.base, peaks


def _taken(size: int) -> Callable[[Manifest], bool]:
    def done(manifest: Manifest) -> bool:
        name, byte, _ = manifest.offsets["shop"]["log"]
        return bool(name) and byte >= size

    return done


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--memory", type=int, default=128 << 20)
    options = parser.parse_args()
    result = Result(
        "memory",
        f"Memory of a run with engine.memory at {options.memory >> 20} MB: {options.rows:,} rows"
        f" with notes of {options.width:,} characters, then {options.changes:,} changes"
        " of two tables",
        ["phase", "driver's peak, MB more", "driver at its end, MB more", "JVM's peak, MB more"],
        f"{options.rows}-{options.width}-memory{options.memory >> 20}",
    )
    with tempfile.TemporaryDirectory(prefix="mview-bench-") as folder:
        base, peaks = measured(
            Path(folder), options.memory, options.rows, options.changes, options.width
        )
    for phase, peak in peaks.items():
        result.add(phase, *(round(n / 1e6) for n in (peak.driver, peak.left, peak.jvm)))
    at_first = ", ".join(f"the {name} {size / 1e6:.0f} MB" for name, size in base.items())
    result.notes.append(f"when the load begins, {at_first} are there: the baseline")
    result.save()


if __name__ == "__main__":
    main()
