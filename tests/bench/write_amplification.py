"""What a commit to a view's Delta table writes, with deletion vectors and without, by its rows.

    python -m tests.bench.write_amplification --rows 1000,100000,10000000 --changes 300

The sink alone, in this process: uniform keys, half of the changes are updates, a quarter each
deletes and inserts. Both kinds of tables take the same deltas, in turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from mview_connectors.sinks.delta import DeltaSink

from mview.connector import WEIGHT, SinkTarget
from mview.delta.tiers import TARGET_ROWS
from mview.schema import Column, TableSchema
from tests.bench.results import Result

#: Settings of `sink.deletion_vectors`.
_SETTINGS = ("false", "true", "auto")
#: Rows that a commit is to leave in the table, and what it changes: a view of W1's kind.
_SCHEMA = TableSchema(
    (
        Column("order_id", pa.int64(), False),
        Column("nation", pa.string(), True),
        Column("revenue", pa.decimal128(18, 2), True),
        Column("lines", pa.int64(), True),
        Column("shipped", pa.date32(), True),
    ),
    ("order_id",),
)


@dataclass
class View:
    """The content of one view, from which deltas are made: a revision per key, 0: no row."""

    count: int
    seed: int = 7
    revisions: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """All keys have their first row; one key more in three has none yet."""
        self.revisions = np.zeros(self.count + self.count // 3 + 1_000, np.int64)
        self.revisions[: self.count] = 1
        self._random = np.random.default_rng(self.seed)

    def parts(self) -> Iterator[pa.Table]:
        """The rows at first, a file at a time."""
        for low in range(0, self.count, TARGET_ROWS):
            keys = np.arange(low, min(low + TARGET_ROWS, self.count))
            yield _rows(keys, np.ones(len(keys), np.int64))

    def delta(self, changes: int) -> pa.Table:
        """The next changes, as rows with weights."""
        keys = self._random.choice(len(self.revisions), changes, replace=False)
        old = self.revisions[keys]
        deleted = (old > 0) & (self._random.random(changes) < 1 / 3)
        new = np.where(deleted, 0, old + 1)
        self.revisions[keys] = new
        gone, come = old > 0, new > 0
        rows = pa.concat_tables([_rows(keys[gone], old[gone]), _rows(keys[come], new[come])])
        weight = np.repeat([-1, 1], [np.count_nonzero(gone), np.count_nonzero(come)])
        return rows.append_column(WEIGHT, pa.array(weight, pa.int64()))


def _rows(keys: np.ndarray, revisions: np.ndarray) -> pa.Table:
    cents = (keys * 7_919 + revisions * 104_729) % 10_000_000
    columns = [
        pa.array(keys),
        pa.array(np.char.add("nation ", (keys % 25).astype(str))),
        pa.array(cents).cast(pa.decimal128(21, 0)).cast(pa.decimal128(18, 2)),
        pa.array(revisions % 7 + 1),
        pa.array((keys % 2_500 + 8_000).astype(np.int32)).cast(pa.date32()),
    ]
    return pa.table(columns, schema=_SCHEMA.arrow)


class Table:
    """One view in one Delta table."""

    def __init__(self, folder: Path, setting: str, view: View) -> None:
        self.folder = folder
        options = {"path": str(folder), "deletion_vectors": setting}
        self._sink = DeltaSink(SinkTarget("v", _SCHEMA, "mview/v/1", options, history_ms=0))
        staged = []
        for number, rows in enumerate(view.parts()):
            file = self._sink.staging(1) / f"{number}.parquet"
            pq.write_table(rows, file)
            staged.append(file)
        self._facts = self._sink.commit(self._sink.stage_full(1, staged))
        self._epoch = 1
        self.cpu: list[float] = []
        self.seconds: list[float] = []
        self.written: list[int] = []

    def commit(self, delta: pa.Table) -> None:
        """Bring a delta into the table, and measure it."""
        self._epoch += 1
        before, cpu, start = self._size(), time.process_time(), time.perf_counter()
        self._facts = self._sink.commit(self._sink.stage(self._epoch, delta))
        self.seconds.append(time.perf_counter() - start)
        self.cpu.append(time.process_time() - cpu)
        self.written.append(self._size() - before)

    def live(self) -> int:
        """Bytes of the files and of their deletion vectors that a reader of the table reads."""
        return sum(file.size for file in self._sink._log.head.files.values())

    def read(self) -> tuple[float, int]:
        """Seconds of reading all rows, and how many there are."""
        start = time.perf_counter()
        count = sum(part.num_rows for part in self._sink.parts(self._facts))
        return time.perf_counter() - start, count

    def maintain(self) -> None:
        """Remove what nobody needs any more."""
        self._sink.maintain(self._facts, [])

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1000,10000,100000,1000000")
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--commits", type=int, default=60)
    parser.add_argument("--settings", default=",".join(_SETTINGS))
    options = parser.parse_args()
    result = Result(
        "write_amplification",
        f"What a commit of {options.changes:,} changes writes, by rows of the view",
        [
            "rows",
            "deletion_vectors",
            "CPU ms",
            "p50 ms",
            "max ms",
            "bytes written per changed row",
            "of all bytes at first, at the end",
            "scan ms",
        ],
        f"{options.changes}",
    )
    for count in (int(text) for text in options.rows.split(",")):
        with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
            _measure(Path(temp), count, options, result)
    result.notes.append(
        f"{options.commits} commits per table after one to warm up, all tables in turns; uniform "
        "keys; scan: all rows at the end, by the sink's own reader"
    )
    result.save()


def _measure(folder: Path, count: int, options: argparse.Namespace, result: Result) -> None:
    changes = min(options.changes, count // 2)
    tables = {
        setting: Table(folder / setting, setting, View(count))
        for setting in options.settings.split(",")
    }
    first = {setting: table.live() for setting, table in tables.items()}
    view = View(count)
    for number in range(options.commits + 1):
        delta = view.delta(changes)
        for table in tables.values():
            table.commit(delta)
            if not number:
                table.cpu, table.seconds, table.written = [], [], []
            table.maintain()
    for setting, table in tables.items():
        seconds, rows = table.read()
        assert rows == np.count_nonzero(view.revisions)
        result.add(
            count,
            setting,
            sum(table.cpu) / len(table.cpu) * 1000,
            median(table.seconds) * 1000,
            max(table.seconds) * 1000,
            sum(table.written) / len(table.written) / changes,
            table.live() / first[setting],
            seconds * 1000,
        )


if __name__ == "__main__":
    main()
