"""An epoch of some changes, on each executor, against a full Spark recompute of the same view.

    python -m tests.bench.epoch --sf 0.1 --changes 30,300,1000,10000

The epochs are the engine's own `run_epoch`, from messages to the published manifest: decode, net,
mirrors, view, sink, manifest. The recompute is plain Spark over the same Parquet files.
"""

from __future__ import annotations

import argparse
from statistics import median

from tests.bench.inprocess import Bench, opened
from tests.bench.results import Result, variant_of
from tests.bench.strategies import VIEWS
from tests.bench.w1 import Changes, make_tables

#: Epochs per size after one that warms up; a Spark epoch of tens of thousands takes seconds.
_EPOCHS = {"local": 12, "spark": 5}
_RECOMPUTES = 4
#: The views: revenue per order, and per nation.
_VIEWS = {name: VIEWS[f"join, aggregate by {name}"] for name in ("order", "nation")}


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--changes", default="30,300,1000,10000")
    parser.add_argument("--executors", default="local,spark")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--keys", choices=["uniform", "recent"], default="uniform")
    parser.add_argument("--view", choices=[*_VIEWS], default="order")
    parser.add_argument("--deletion-vectors", action="store_true")
    options = parser.parse_args()
    vectors = options.deletion_vectors
    result = Result(
        "epoch",
        f"An epoch against a full recompute, W1 at scale {options.sf:g}, {options.keys} keys,"
        f" per {options.view}" + (", deletion vectors" if vectors else ""),
        ["executor", "changes", "p50 ms", "max ms", "CPU ms", "recompute ms", "ratio"],
        variant_of(options, "keys", "view"),
    )
    tables = make_tables(options.sf)
    for executor in options.executors.split(","):
        extra = f"engine: {{executor: {executor}}}\nspark: {{master: '{options.master}'}}"
        with opened(tables, {options.view: _VIEWS[options.view]}, extra, vectors) as bench:
            built = bench.build_seconds
            result.notes.append(
                f"first build of the view before the {executor} epochs: {built:.1f} s"
            )
            changes = Changes(tables, recent=options.keys == "recent")
            sizes = [int(text) for text in options.changes.split(",")]
            _measure(bench, options.view, changes, executor, sizes, result)
    result.notes.append("recompute: median of the runs beside each size, after one to warm up")
    result.save()


def _measure(
    bench: Bench, view: str, changes: Changes, executor: str, sizes: list[int], result: Result
) -> None:
    bench.recompute(view)
    for size in sizes:
        recomputes = [bench.recompute(view) for _ in range(_RECOMPUTES // 2)]
        epochs = bench.epochs(changes, size, _EPOCHS[executor])
        recomputes += [bench.recompute(view) for _ in range(_RECOMPUTES // 2)]
        full = median(recomputes)
        result.add(
            executor,
            size,
            epochs.p50 * 1000,
            max(epochs.seconds) * 1000,
            epochs.cpu_seconds / len(epochs.seconds) * 1000,
            full * 1000,
            epochs.p50 / full,
        )


if __name__ == "__main__":
    main()
