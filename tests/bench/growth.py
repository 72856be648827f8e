"""How an epoch grows with the tables: the same number of changes at several scales.

    python -m tests.bench.growth --sf 0.1,1,5 --changes 1000

With changes to rows anywhere (uniform), and to rows near the end of each table (recent). Each scale
runs in a process of its own. The tables have only the columns that the view and the changes touch,
so that 30 million lines fit into memory beside what generates the changes.
"""

from __future__ import annotations

import argparse

from tests.bench.inprocess import Epochs, apart, opened
from tests.bench.results import Result
from tests.bench.w1 import VIEW, Changes, make_tables, narrow

_EPOCHS = 20
_KEYS = ("uniform", "recent")


def measure(scale: float, size: int, extra: str, vectors: bool) -> dict[str, tuple[int, Epochs]]:
    """Rows of all tables, and epochs, by kind of keys."""
    tables = narrow(make_tables(scale))
    rows = sum(table.num_rows for table in tables.values())
    found = {}
    for keys in _KEYS:
        with opened(tables, {"order_revenue": VIEW}, extra, vectors) as bench:
            changes = Changes(tables, recent=keys == "recent")
            found[keys] = rows, bench.epochs(changes, size, _EPOCHS)
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
        ["keys", "scale", "rows", "p50 ms", "max ms", "CPU ms", "to the scale before"],
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
            rows, epochs = found[scale][keys]
            result.add(
                keys,
                scale,
                rows,
                epochs.p50 * 1000,
                max(epochs.seconds) * 1000,
                epochs.cpu_seconds / len(epochs.seconds) * 1000,
                epochs.p50 / before if before else "",
            )
            before = epochs.p50
    result.notes.append("only the columns that the view and the changes touch are in the tables")
    result.save()


if __name__ == "__main__":
    main()
