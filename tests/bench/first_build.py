"""The first build of a view from loaded mirrors, against a plain Spark batch of the same SQL.

    python -m tests.bench.first_build --sf 1

Each round has a store of its own; all share a session. The build ends with the published manifest;
the batch writes Parquet files from the same files. The first round, in a cold JVM, does not count.
"""

from __future__ import annotations

import argparse
from statistics import median

from tests.bench.inprocess import opened
from tests.bench.results import Result, variant_of
from tests.bench.w1 import VIEW, make_tables

_NAME = "order_revenue"
_BATCHES = 2


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    result = Result(
        "first_build",
        f"First build of a view against a Spark batch, W1 at scale {options.sf:g}",
        ["round", "first build s", "batch s", "ratio"],
        variant_of(options),
    )
    tables = make_tables(options.sf)
    for number in range(options.rounds + 1):
        with opened(tables, {_NAME: VIEW}, f"spark: {{master: '{options.master}'}}") as bench:
            batch = median(bench.recompute(_NAME) for _ in range(_BATCHES))
            built = bench.build_seconds
        if number:
            result.add(number, built, batch, built / batch)
    ratio = median(result.numbers("ratio"))
    result.notes.append(f"median of the ratios: {ratio:.2f}; batch: median of {_BATCHES}")
    result.save()


if __name__ == "__main__":
    main()
