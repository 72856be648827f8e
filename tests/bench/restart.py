"""How soon a store is fresh again: `mview run` after a kill -9, and `--once` with nothing new.

    python -m tests.bench.restart --sf 0.1 --views 1 --before OTHER/.venv/bin/python

The views are those of `tests/bench/views.py`, over W1, of which the store has the columns that the
views or the changes touch, as after a load. While the run is down a change is made; then
it is started, and it is measured until an epoch that has the change is published, in seconds and
in CPU seconds of the run with its JVM. With `--before`, the mview of another Python does the same
on the same store, in turns with ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

from mview.config import Config
from mview.config.file import load_config
from mview.ingest.spec import open_changelog
from mview.plan.definition import parse_view
from mview.plan.uses import uses_of
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.layout import Store
from tests.bench.results import Result, variant_of
from tests.bench.running import Meter
from tests.bench.seed import seed_store, write_config
from tests.bench.views import warehouse
from tests.bench.w1 import (
    CONNECTION,
    NARROW,
    Changes,
    Tables,
    make_tables,
    message,
    view_sql,
)

#: Changes made while the run is down.
_CHANGES = 10
_PHASES = Path(__file__).with_name("phases.py")
_TIMEOUT = 600.0


class Restarts:
    """A store that is run again and again.

    Args:
        folder: where all is.
        scale: of W1.
        views: how many.
        python: by which interpreter each kind of run is run.
    """

    def __init__(self, folder: Path, scale: float, views: int, python: dict[str, str]) -> None:
        self._folder, self._python = folder, python
        tables = _touched(make_tables(scale), warehouse(views))
        self._changes, self._position = Changes(tables), 0
        (folder / "changes").mkdir()
        self._file = folder / "changes" / "000.jsonl"
        self._file.touch()
        settings = "{source: files, format: unified, path: changes, T: 1s}"
        self._config: Config = load_config(
            write_config(folder, settings, "spark: {master: 'local[2]'}")
        )
        log = open_changelog(self._config, CONNECTION, [])
        seed_store(self._config, tables, log.begin())
        log.close()
        (folder / "views").mkdir()
        for name, select in warehouse(views).items():
            (folder / "views" / f"{name}.sql").write_text(view_sql(select, name))
        self._log = ManifestLog(Store(self._config.store).manifests)

    def change(self) -> None:
        """Some changes that no run has seen."""
        changes, now = self._changes.take(_CHANGES), time.time_ns() // 1_000_000
        with self._file.open("ab") as out:
            for number, change in enumerate(changes):
                out.write(message(change, self._position + number + 1, now) + b"\n")
        self._position += len(changes)

    def start(self, who: str, *more: str) -> subprocess.Popen[bytes]:
        """The command, by one of the interpreters."""
        command = [self._python[who], str(_PHASES), str(self._folder / "notes"), "run"]
        command += [str(self._folder / "views"), "-c", str(self._config.path), *more]
        (self._folder / "notes").unlink(missing_ok=True)
        with (self._folder / "said").open("wb") as said:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def phases(self) -> dict[str, float]:
        """CPU seconds of the last run, by phase; a phase that goes on is not in it."""
        notes: dict[str, float] = json.loads((self._folder / "notes").read_text())
        return notes

    def once(self, who: str) -> tuple[float, float]:
        """`--once`; returns its seconds and CPU seconds."""
        begin = time.monotonic()
        process = self.start(who, "--once")
        if process.wait(_TIMEOUT):
            raise RuntimeError((self._folder / "said").read_text())
        return time.monotonic() - begin, self.phases()["all"]

    def kill_and_restart(self, who: str) -> tuple[float, float]:
        """Seconds and CPU seconds until a change is published that was made after a kill -9."""
        down = self.start(who)
        self.change()
        self._wait(down)  # it is live
        down.kill()
        down.wait()
        self.change()
        begin = time.monotonic()
        process = self.start(who)
        meter = Meter(process.pid)
        try:
            self._wait(process)
            fresh = time.monotonic() - begin, meter.cpu_seconds()
            self._until(process, lambda: "first epoch" in self.phases())
            return fresh
        finally:
            meter.close()
            process.kill()
            process.wait()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Until all that was written is published."""
        size = self._file.stat().st_size

        def published() -> bool:
            latest = self._log.latest()
            return latest is not None and latest.offsets[CONNECTION]["log"][1] >= size

        self._until(process, published)

    def _until(self, process: subprocess.Popen[bytes], done: Callable[[], bool]) -> None:
        """Wait for something that a process does."""
        end = time.monotonic() + _TIMEOUT
        while not done():
            if process.poll() is not None:
                raise RuntimeError((self._folder / "said").read_text())
            if time.monotonic() > end:
                raise TimeoutError("what is waited for does not come")
            time.sleep(0.005)


def _touched(tables: Tables, views: dict[str, str]) -> Tables:
    """The columns that a load reads for some views, and those that changes are made to."""
    definitions = [parse_view(view_sql(select, name), name) for name, select in views.items()]
    touched = {}
    for name, rows in tables.items():
        uses = uses_of(definitions, RelationId.of(f"{CONNECTION}.{name}"))
        columns = [c for c in rows.column_names if c in NARROW[name] or uses(c)]
        touched[name] = rows.select(columns)
    return touched


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--views", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", default="", help="Python of another version of mview")
    options = parser.parse_args()
    result = Result(
        "restart",
        f"Restart with {options.views} views, W1 at scale {options.sf:g}",
        ["mview", "what", "seconds", "CPU s", "CPU s by phase"],
        f"{variant_of(options)}-{options.views}",
    )
    python = {"now": sys.executable}
    if options.before:
        python = {"before": options.before} | python
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    cpu: dict[tuple[str, str], list[float]] = defaultdict(list)
    phases: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
        runs = Restarts(Path(temp), options.sf, options.views, python)
        runs.change()
        runs.once("now")  # builds the views
        kinds = {
            "`--once`, nothing new": runs.once,
            "kill -9 to fresh": runs.kill_and_restart,
        }
        for _ in range(options.rounds):
            for what, measure in kinds.items():
                for who in python:
                    took, used = measure(who)
                    seconds[who, what].append(took)
                    cpu[who, what].append(used)
                    for phase, value in runs.phases().items():
                        phases[who, what][phase].append(value)
    for what in kinds:
        for who in python:
            parts = ", ".join(
                f"{phase} {median(values):.1f}"
                for phase, values in phases[who, what].items()
                if phase != "all"
            )
            result.add(who, what, median(seconds[who, what]), median(cpu[who, what]), parts)
    result.notes.append(f"medians of {options.rounds} rounds in turns, after one that builds")
    result.save()


if __name__ == "__main__":
    main()
