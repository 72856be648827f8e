"""Epochs that compute a view as a whole, beside the same query by plain Spark, in one sitting.

    python -m tests.bench.full --sf 1

An epoch does more than the plain query: it nets the changes, keeps the mirrors, compares the result
with what is published, and publishes the difference. The plain query reads the base files of the
mirrors, without the changes, and writes Parquet. Both take turns; CPU is that of the process with
the JVM and the workers, compaction beside the epochs included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from tests.bench.inprocess import Bench, apart, opened
from tests.bench.results import MEMORY, Result, variant_of
from tests.bench.strategies import VIEWS, Supply
from tests.bench.w1 import make_tables

#: Views with large and small results; all could follow their changes, and may not here.
_VIEWS = {
    "join, aggregate by order": VIEWS["join, aggregate by order"],
    "join, aggregate by a computed key": (
        "SELECT l_shipdate - o_orderdate AS days, count(*) AS n_lines,"
        " max(l_extendedprice) AS most FROM {orders} JOIN {lineitem} ON l_orderkey = o_orderkey"
        " GROUP BY l_shipdate - o_orderdate"
    ),
    "window": VIEWS["window"],
}


@dataclass(frozen=True)
class Took:
    """Seconds by the clock, and of CPU: medians."""

    seconds: float
    cpu: float


def _measured(bench: Bench, does: Callable[[], object]) -> Took:
    before, start = bench.cpu_seconds(), time.perf_counter()
    does()
    return Took(time.perf_counter() - start, bench.cpu_seconds() - before)


def _median(all_of: list[Took]) -> Took:
    return Took(median(one.seconds for one in all_of), median(one.cpu for one in all_of))


def measure(
    scale: float, view: str, shares: list[float], rounds: int, extra: str
) -> dict[float, tuple[Took, Took]]:
    """Epochs and plain queries of a view, by the percent of rows that change."""
    tables, found = make_tables(scale), {}
    with opened(tables, {"bench": _VIEWS[view]}, extra) as bench:
        supply = Supply(tables, bench.schemas)
        bench.recompute("bench")
        bench.apply(*supply.take(shares[0]))
        for share in shares:
            epochs, plain = [], []
            for _ in range(rounds):
                taken = supply.take(share)
                plain.append(_measured(bench, lambda: bench.recompute("bench")))
                epochs.append(_measured(bench, lambda: bench.apply(*taken)))  # noqa: B023
            found[share] = _median(epochs), _median(plain)
    return found


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--shares", default="0.01,1,10", help="percent of the rows, per epoch")
    parser.add_argument("--views", default=";".join(_VIEWS), help="names, with ; between them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--memory", type=int, default=MEMORY)
    options = parser.parse_args()
    engine = f"executor: {options.executor}, memory: {options.memory}, strategy: full"
    shares = [float(text) for text in options.shares.split(",")]
    result = Result(
        "full",
        f"Epochs that compute all rows again, W1 at scale {options.sf:g}",
        ["view", "changed", "epoch s", "CPU s", "plain s", "plain CPU s", "ratio", "ratio of CPU"],
        variant_of(options),
    )
    result.notes += [
        "changed: of the lines and of the orders, each, per epoch",
        f"medians of {options.rounds} rounds in turns",
    ]
    for view in options.views.split(";"):
        settings = f"engine: {{{engine}}}\nspark: {{master: 'local[2]'}}"
        found = apart(measure, options.sf, view, shares, options.rounds, settings)
        for share, (epoch, plain) in found.items():
            ratios = epoch.seconds / plain.seconds, epoch.cpu / plain.cpu
            times = epoch.seconds, epoch.cpu, plain.seconds, plain.cpu
            result.add(view, f"{share:g}%", *times, *ratios)
        result.keep()
    result.save()


if __name__ == "__main__":
    main()
