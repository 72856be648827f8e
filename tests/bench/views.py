"""What more views over the same tables cost: an epoch with 1, 10 and 50 of them.

    python -m tests.bench.views --sf 0.1 --views 1,10,50 --changes 300

The views are those of a warehouse: ten kinds (joins, filters, aggregates, outer and semi joins),
each in five variants. All are maintained in every epoch, each in its own Delta table. Every count
runs in a process of its own; these run some epochs each in turns, as the speed of a shared machine
changes from minute to minute.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from itertools import islice
from multiprocessing import get_context

from tests.bench.inprocess import Bench, Epochs, opened
from tests.bench.results import Result, variant_of
from tests.bench.w1 import VIEW, Changes, make_tables

#: Turns of each count, after one that warms up, and the epochs in each.
_TURNS, _EPOCHS = 8, 4

#: The kinds of views; {0} is what makes the variants.
_KINDS: dict[str, tuple[str, tuple[object, ...]]] = {
    "order_revenue": (VIEW.replace("9131", "{0}"), (9131, 9500, 9800, 10_000, 10_200)),
    "nation_revenue": (
        "SELECT c_nationkey, count(*) AS n_lines, sum(l_extendedprice) AS revenue"
        " FROM {customer} JOIN {orders} ON c_custkey = o_custkey"
        " JOIN {lineitem} ON l_orderkey = o_orderkey WHERE l_discount >= {0}"
        " GROUP BY c_nationkey",
        (0, 2, 4, 6, 8),
    ),
    "big_lines": (
        "SELECT l_orderkey, l_linenumber, l_quantity, l_extendedprice * (100 - l_discount) AS net"
        " FROM {lineitem} WHERE l_quantity > 45 AND l_shipmode = '{0}'",
        ("AIR", "MAIL", "RAIL", "SHIP", "TRUCK"),
    ),
    "segment_orders": (
        "SELECT o_orderkey, c_name, o_orderdate, o_totalprice FROM {orders}"
        " JOIN {customer} ON o_custkey = c_custkey"
        " WHERE c_mktsegment = '{0}' AND o_orderstatus = 'P'",
        ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"),
    ),
    "modes": (
        "SELECT l_shipmode, l_returnflag, count(*) AS n, sum(l_quantity) AS quantity"
        " FROM {lineitem} WHERE l_tax <= {0} GROUP BY l_shipmode, l_returnflag",
        (8, 6, 4, 2, 0),
    ),
    "priorities": (
        "SELECT o_orderpriority, o_orderstatus, count(*) AS n, sum(o_totalprice) AS total"
        " FROM {orders} WHERE o_orderdate >= {0} GROUP BY o_orderpriority, o_orderstatus",
        (8035, 8500, 9000, 9500, 10_000),
    ),
    "suppliers": (
        "SELECT l_suppkey, sum(l_extendedprice) AS revenue, count(*) AS n FROM {lineitem}"
        " JOIN {orders} ON l_orderkey = o_orderkey WHERE o_orderpriority = '{0}'"
        " GROUP BY l_suppkey",
        ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"),
    ),
    "customer_orders": (
        "SELECT c_custkey, c_name, count(o_orderkey) AS n, sum(o_totalprice) AS total"
        " FROM {customer} LEFT JOIN {orders} ON o_custkey = c_custkey"
        " WHERE c_nationkey % 5 = {0} GROUP BY c_custkey, c_name",
        (0, 1, 2, 3, 4),
    ),
    "newest": (
        "SELECT o_custkey, max(o_orderdate) AS newest, min(o_totalprice) AS least"
        " FROM {orders} WHERE o_orderpriority <> '{0}' GROUP BY o_custkey",
        ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"),
    ),
    "late_orders": (
        "SELECT o_orderkey, o_custkey, o_orderdate FROM {orders} WHERE EXISTS ("
        "SELECT 1 FROM {lineitem} WHERE l_orderkey = o_orderkey"
        " AND l_shipdate > o_orderdate + {0})",
        (120, 115, 110, 105, 100),
    ),
}


def warehouse(count: int) -> dict[str, str]:
    """The first `count` views: one of each kind, then their second variants, and so on."""
    views = (
        (f"{name}_{number}", select.replace("{0}", str(variants[number])))
        for number in range(5)
        for name, (select, variants) in _KINDS.items()
    )
    return dict(islice(views, count))


#: What is open in this process.
_opened = ExitStack()
_bench: list[tuple[Bench, Changes]] = []


def begin(scale: float, count: int, extra: str, vectors: bool) -> float:
    """Open a bench with some views in this process; returns the seconds of their first build."""
    tables = make_tables(scale)
    bench = _opened.enter_context(opened(tables, warehouse(count), extra, vectors))
    _bench.append((bench, Changes(tables)))
    return bench.build_seconds


def turn(size: int) -> Epochs:
    """Some epochs of the bench in this process."""
    bench, changes = _bench[0]
    return bench.epochs(changes, size, _EPOCHS)


def end() -> None:
    """Close the bench in this process."""
    _opened.close()


def measure(
    counts: list[int], size: int, scale: float, extra: str, vectors: bool
) -> list[tuple[float, Epochs]]:
    """For each number of views: seconds of the first build, and the epochs."""
    with ExitStack() as stack:
        pools = [stack.enter_context(get_context("spawn").Pool(1)) for _ in counts]
        built = [
            pool.apply(begin, (scale, count, extra, vectors))
            for pool, count in zip(pools, counts, strict=True)
        ]
        turns = [[pool.apply(turn, (size,)) for pool in pools] for _ in range(1 + _TURNS)][1:]
        for pool in pools:
            pool.apply(end)
    found = [
        Epochs([s for one in own for s in one.seconds], sum(one.cpu_seconds for one in own))
        for own in zip(*turns, strict=True)
    ]
    return list(zip(built, found, strict=True))


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--views", default="1,10,50")
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--deletion-vectors", action="store_true")
    options = parser.parse_args()
    result = Result(
        "views",
        f"Epochs of {options.changes:,} changes with many views, W1 at scale {options.sf:g}"
        + (", deletion vectors" if options.deletion_vectors else ""),
        ["views", "p50 ms", "max ms", "CPU ms", "time to the first", "CPU to the first", "build s"],
        variant_of(options),
    )
    extra = f"engine: {{executor: {options.executor}}}\nspark: {{master: '{options.master}'}}"
    counts = [int(text) for text in options.views.split(",")]
    measured = measure(counts, options.changes, options.sf, extra, options.deletion_vectors)
    first = measured[0][1]
    for count, (built, epochs) in zip(counts, measured, strict=True):
        result.add(
            count,
            epochs.p50 * 1000,
            max(epochs.seconds) * 1000,
            epochs.cpu_seconds / len(epochs.seconds) * 1000,
            epochs.p50 / first.p50,
            epochs.cpu_seconds / first.cpu_seconds,
            built,
        )
    result.notes.append("all views are built together, the first of them with a cold JVM")
    result.notes.append(f"{_TURNS} turns of {_EPOCHS} epochs, all counts in turns")
    result.save()


if __name__ == "__main__":
    main()
