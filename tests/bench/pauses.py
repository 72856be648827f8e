"""How long a compaction holds the interpreter at a time: so long epochs beside it wait.

    python -m tests.bench.pauses --rows 3000000 --changes 300000

A thread sleeps 2 ms again and again, and tells the longest time until it was on again. That has
what other work on the machine takes in it: the load stands beside the figures.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mview.schema import Column, TableSchema
from mview.snapshot import Marker
from mview.store.manifest import TableState
from mview.store.mirror import KIND, Mirror
from tests.bench.results import Result

_SCHEMA = TableSchema(
    (
        Column("id", pa.int64(), nullable=False),
        Column("s", pa.string()),
        Column("n", pa.int64()),
    ),
    ("id",),
)
_FILE_ROWS, _EPOCHS = 130_000, 10


class Watch(threading.Thread):
    """Measures the longest time that this thread had to wait beside its sleep, in seconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.ended = 0.0, False

    def run(self) -> None:
        """Sleep until the end."""
        while not self.ended:
            began = time.perf_counter()
            time.sleep(0.002)
            self.most = max(self.most, time.perf_counter() - began - 0.002)


def watched(work: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds of some work, and the longest wait beside it."""
    watch, cpu = Watch(), time.process_time()
    watch.start()
    work()
    watch.ended = True
    watch.join()
    return time.process_time() - cpu, watch.most


def _rows(ids: np.ndarray, factor: int) -> pa.Table:
    texts = np.char.add("text ", (ids % 1000).astype(str))
    return pa.table([pa.array(ids), pa.array(texts), pa.array(ids * factor)], _SCHEMA.arrow)


def filled(mirror: Mirror, rows: int, changes: int) -> TableState:
    """A mirror of so many rows, and so many changes of them in its tail."""
    state, markers = mirror.create(), []
    for number, low in enumerate(range(0, rows, _FILE_ROWS)):
        file = mirror.stage_folder(1) / f"{number}.parquet"
        part = _rows(np.arange(low, min(rows, low + _FILE_ROWS)), 1)
        pq.write_table(part, file)
        content, name = file.read_bytes(), file.relative_to(mirror.base.folder).as_posix()
        digest = f"{zlib.crc32(content):08x}"
        markers.append(Marker("t", number, name, part.num_rows, len(content), digest, 0))
    state = replace(state, base_version=mirror.register(1, markers, {}), phase="loaded", rows=rows)
    chance = np.random.default_rng(1)
    for epoch in range(2, 2 + _EPOCHS):
        ids = chance.choice(rows, changes // _EPOCHS, replace=False)
        sides = [("-U", _rows(ids, 1)), ("+U", _rows(ids, epoch))]
        parts = [side.append_column(KIND, pa.array([kind] * len(ids))) for kind, side in sides]
        delta = pa.concat_tables(parts).select([KIND, *_SCHEMA.names])
        state = replace(state, changelog_version=mirror.append(epoch, delta))
    return state


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--changes", default="300000,3000000")
    options = parser.parse_args()
    title = f"Compaction of a table of {options.rows:,} rows"
    result = Result("pauses", title, ["changes", "CPU s", "longest wait of a thread beside it, ms"])
    for changes in (int(text) for text in options.changes.split(",")):
        with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
            mirror = Mirror(Path(temp), _SCHEMA)
            state = filled(mirror, options.rows, changes)
            cpu, most = watched(lambda mirror=mirror, state=state: mirror.compact(state))
            result.add(changes, cpu, most * 1000)
    result.save()


if __name__ == "__main__":
    main()
