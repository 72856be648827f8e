"""How an epoch grows with the tables: the same number of changes at several scales.

    python -m tests.bench.growth --sf 0.1,1,5 --changes 1000

With changes to rows anywhere (uniform), and to rows near the end of each table (recent); beside
them a recompute of the view by plain Spark. Each scale runs in a process of its own. The tables
have only the columns that the view and the changes touch, so that 30 million lines fit into memory
beside what generates the changes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median

from tests.bench.inprocess import Epochs, apart, opened
from tests.bench.results import Result
from tests.bench.w1 import VIEW, Changes, make_tables, narrow

_EPOCHS, _RECOMPUTES = 20, 3
_NAME = "order_revenue"
_KEYS = ("uniform", "recent")


@dataclass(frozen=True)
class Found:
    """What was found at a scale: rows of all tables, epochs, and seconds of a recompute."""

    rows: int
    epochs: Epochs
    recompute: float


def measure(scale: float, size: int, extra: str, vectors: bool) -> dict[str, Found]:
    """What was found at a scale, by kind of keys."""
    tables = narrow(make_tables(scale))
    rows = sum(table.num_rows for table in tables.values())
    found = {}
    for keys in _KEYS:
        with opened(tables, {_NAME: VIEW}, extra, vectors) as bench:
            changes = Changes(tables, recent=keys == "recent")
            epochs = bench.epochs(changes, size, _EPOCHS)
            recompute = median(bench.recompute(_NAME) for _ in range(_RECOMPUTES))
            found[keys] = Found(rows, epochs, recompute)
    return found


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", default="0.1,1,5")
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--executor", default="local")
    parser.add_argument("--memory", type=int, default=8 << 30)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--deletion-vectors", action="store_true")
    options = parser.parse_args()
    vectors = options.deletion_vectors
    result = Result(
        "growth",
        f"Epochs of {options.changes:,} changes as the tables grow, W1"
        + (", deletion vectors" if vectors else ""),
        [
            *("keys", "scale", "rows", "p50 ms", "max ms", "CPU ms"),
            *("to the scale before", "recompute ms", "to the recompute"),
        ],
        "deletion-vectors" if vectors else "",
    )
    extra = (
        f"engine: {{executor: {options.executor}, memory: {options.memory}}}\n"
        f"spark: {{master: '{options.master}'}}"
    )
    scales = [float(text) for text in options.sf.split(",")]
    found = {scale: apart(measure, scale, options.changes, extra, vectors) for scale in scales}
    for keys in _KEYS:
        before = None
        for scale in scales:
            one = found[scale][keys]
            epochs = one.epochs
            result.add(
                keys,
                scale,
                one.rows,
                epochs.p50 * 1000,
                max(epochs.seconds) * 1000,
                epochs.cpu_seconds / len(epochs.seconds) * 1000,
                epochs.p50 / before if before else "",
                one.recompute * 1000,
                epochs.p50 / one.recompute,
            )
            before = epochs.p50
    result.notes.append("only the columns that the view and the changes touch are in the tables")
    result.save()


if __name__ == "__main__":
    main()
