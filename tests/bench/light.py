"""A view in light mode beside the same one in full mode: CPU, disk and memory, load and changes.

    python -m tests.bench.light --rows 500000 --rate 300 --seconds 30

The source is a SQLite database with a folder of change files, the sink a SQLite file; each mode is
a `mview run` of its own over copies of the same. CPU is that of the process with its JVM.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson

from tests.bench.results import Result
from tests.bench.running import Meter
from tests.patience import wait_for
from tests.services.process import ending_with_parent

_CONFIG = """
store: store
connections: {shop: {drivername: sqlite, database: shop.db}}
changes: {shop: {source: files, format: unified, path: changes, T: 1 s}}
sinks: {there: {type: sqlite, url: 'sqlite:///there.db'}}
spark: {master: 'local[2]', conf: {spark.driver.memory: 1g}}
"""

_QUERY = "SELECT id, customer, note, id * 2 AS twice FROM shop.orders WHERE customer < 900"

_TIMEOUT = 600

#: Times per second that changes are written.
_BEATS = 10


class Source:
    """The database and its log; changes are written to the log alone."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "changes" / "1.jsonl"
        self._position = 0

    @staticmethod
    def create(folder: Path, rows: int) -> None:
        """The table, and a log without a change."""
        (folder / "changes").mkdir()
        (folder / "changes" / "1.jsonl").touch()
        with contextlib.closing(sqlite3.connect(folder / "shop.db")) as db:
            db.execute("create table orders(id integer primary key, customer integer, note text)")
            listed = ((n, n % 1000, f"note {n:040d}") for n in range(rows))
            db.executemany("insert into orders values (?, ?, ?)", listed)
            db.commit()

    def change(self, count: int, rows: int) -> int:
        """So many updates; returns the id of the last, which the view shows."""
        lines, key = [], 0
        for _ in range(count):
            self._position += 1
            key = self._position * 7919 % rows
            after = {"id": key, "customer": key % 900, "note": f"changed {self._position:037d}"}
            lines.append({"op": "update", "table": "orders", "after": after})
            lines[-1]["position"] = self._position
        lines.append({"op": "heartbeat"})
        now = time.time_ns() // 1_000_000
        with self._file.open("ab") as log:
            log.write(b"".join(orjson.dumps({**line, "ts": now}) + b"\n" for line in lines))
        return key

    @property
    def last(self) -> str:
        """The note of the last change."""
        return f"changed {self._position:037d}"


def _asked(folder: Path, sql: str, *values: object) -> object:
    """What the sink's file says; None: nothing yet."""
    uri = f"file:{folder}/there.db?mode=ro"
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(uri, uri=True, timeout=60)) as db,
    ):
        row = db.execute(sql, values).fetchone()
        return None if row is None else row[0]
    return None


def _disk(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def measure(folder: Path, mode: str, rows: int, rate: int, seconds: int) -> list[object]:
    """One mode over its own copy; returns the cells of the table."""
    given = "mode = 'light', sinks = 'there'" if mode == "light" else "sinks = 'there'"
    (folder / "v.sql").write_text(f"CREATE MATERIALIZED VIEW v WITH ({given}) AS {_QUERY}")
    (folder / "mview.yml").write_text(_CONFIG)
    source, shown = Source(folder), sum(1 for n in range(rows) if n % 1000 < 900)
    command = ["-c", "from mview.cli import main; main()", "run", "v.sql", "-c", "mview.yml"]
    with (folder / "said").open("w") as output:
        process = subprocess.Popen(
            ending_with_parent([sys.executable, *command]),
            cwd=folder, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    meter = Meter(process.pid)
    began = time.monotonic()

    def alive() -> None:
        assert process.poll() is None, (folder / "said").read_text()

    def is_loaded() -> bool:
        source.change(0, rows)
        time.sleep(0.2)
        return _asked(folder, "select count(*) from v") == shown

    try:
        assert wait_for(is_loaded, _TIMEOUT, alive), (folder / "said").read_text()
        loaded, cpu, disk = time.monotonic() - began, meter.cpu_seconds(), _disk(folder / "store")
        time.sleep(5)  # what a start leaves behind is no change's
        quiet = meter.cpu_seconds()
        began, last = time.monotonic(), 0
        for beat in range(seconds * _BEATS):
            last = source.change(rate // _BEATS, rows)
            time.sleep(max(0.0, began + (beat + 1) / _BEATS - time.monotonic()))
        there = "select note from v where id = ?"
        assert wait_for(lambda: _asked(folder, there, last) == source.last, _TIMEOUT, alive)
        followed = meter.cpu_seconds() - quiet
        grown = _disk(folder / "store") - disk
        time.sleep(1)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        meter.close()
    changes = rate * seconds
    return [
        mode,
        f"{loaded:.1f}",
        f"{cpu:.1f}",
        f"{1e6 * cpu / rows:.1f}",
        f"{1000 * followed / changes:.2f}",
        f"{disk / 1e6:.1f}",
        f"{grown / changes:,.0f}",
        f"{meter.peak_bytes / 1e6:,.0f}",
    ]


def main() -> None:
    """Measure both, in turns, and keep the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.light", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rate", type=int, default=300, help="changes per second")
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    columns = (
        "mode", "live after s", "CPU s until then", "µs CPU per loaded row", "ms CPU per change",
        "store MB when live", "store bytes per change", "peak MB",
    )  # fmt: skip
    title = f"Light beside full mode, {options.rows:,} rows, {options.rate} changes/s"
    result = Result("light", title, columns)
    with tempfile.TemporaryDirectory() as name:
        first = Path(name) / "first"
        first.mkdir()
        Source.create(first, options.rows)
        for mode in ("full", "light"):
            folder = Path(shutil.copytree(first, Path(name) / mode))
            result.add(*measure(folder, mode, options.rows, options.rate, options.seconds))
    result.notes.append(
        "a filter and a projection of one table into SQLite; CPU with the JVM's and with the start "
        "of the program; files that newer epochs have replaced stay in the full mode's store for "
        "two hours"
    )
    result.save()


if __name__ == "__main__":
    main()
