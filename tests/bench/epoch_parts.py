"""What the parts of an in-process epoch cost on workload W1, as a table in milliseconds.

    python tests/bench/epoch_parts.py --sf 1 --changes 30,300,1000,10000

Tables in the shape of TPC-H customer, orders and lineitem (key and used columns); a change updates
a random row (80% lines, 18% orders, 2% customers). No sources, no commits: only look-ups, the
query over the slices, and the change of the copies in memory.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np
import pyarrow as pa

from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.local.index import ResidentTable
from tests.relations import rel

KEYS = {
    "customer": ("c_custkey",),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}
SHARE = {"lineitem": 0.8, "orders": 0.18, "customer": 0.02}
EPOCHS = 9
VIEW = """
    SELECT o_orderkey, c_nationkey, o_orderdate, count(*) AS n_lines,
        sum(l_extendedprice * (100 - l_discount)) AS revenue
    FROM {0}_customer AS customer JOIN {0}_orders AS orders ON c_custkey = o_custkey
        JOIN {0}_lineitem AS lineitem ON l_orderkey = o_orderkey
    WHERE o_orderdate >= 9131 AND l_returnflag <> 'R'
    GROUP BY o_orderkey, c_nationkey, o_orderdate
"""
DELTA = (
    f"SELECT 1 AS __weight, * FROM ({VIEW.format('new')}) "
    f"UNION ALL SELECT -1 AS __weight, * FROM ({VIEW.format('old')})"
)

Tables = dict[str, pa.Table]
Resident = dict[str, ResidentTable]


def make_tables(scale: float, rng: np.random.Generator) -> Tables:
    """The three tables; amounts are integers, dates are days, so that sums are exact."""
    customers, orders = int(150_000 * scale), int(1_500_000 * scale)
    lines = rng.integers(1, 8, orders)
    count = int(lines.sum())
    order_of = np.repeat(np.arange(1, orders + 1), lines)
    number = np.arange(count) - np.repeat(np.cumsum(lines) - lines, lines) + 1
    flags = pa.array(["A", "N", "R"]).take(pa.array(rng.integers(0, 3, count)))
    return {
        "customer": pa.table(
            {
                "c_custkey": np.arange(1, customers + 1),
                "c_nationkey": rng.integers(0, 25, customers).astype(np.int32),
            }
        ),
        "orders": pa.table(
            {
                "o_orderkey": np.arange(1, orders + 1),
                "o_custkey": rng.integers(1, customers + 1, orders),
                "o_orderdate": rng.integers(8035, 10440, orders).astype(np.int32),
            }
        ),
        "lineitem": pa.table(
            {
                "l_orderkey": order_of,
                "l_linenumber": number.astype(np.int32),
                "l_extendedprice": rng.integers(90_000, 10_500_000, count),
                "l_discount": rng.integers(0, 11, count).astype(np.int32),
                "l_returnflag": flags,
            }
        ),
    }


def pick_keys(tables: Tables, changes: int, rng: np.random.Generator) -> Tables:
    """Primary keys of random rows, as an epoch's changes would bring them."""
    keys = {}
    for name, share in SHARE.items():
        rows = np.unique(rng.integers(0, tables[name].num_rows, max(1, int(changes * share))))
        keys[name] = tables[name].select(list(KEYS[name])).take(pa.array(rows))
    return keys


def changed(name: str, old: pa.Table, rng: np.random.Generator) -> pa.Table:
    """The rows after an update: new amounts, some orders of another customer."""
    rows = old.num_rows
    values = {
        "customer": ("c_nationkey", rng.integers(0, 25, rows).astype(np.int32)),
        "orders": ("o_custkey", rng.integers(1, 15_000, rows)),
        "lineitem": ("l_extendedprice", rng.integers(90_000, 10_500_000, rows)),
    }
    column, new = values[name]
    return old.set_column(old.schema.get_field_index(column), column, pa.array(new))


def traces(resident: Resident, old: Tables, new: Tables) -> Tables:
    """The slices of R_old that the per-order view needs: all orders touched, with their lines."""
    custkeys = pa.concat_tables(t["customer"].select(["c_custkey"]) for t in (old, new))
    by_customer = resident["orders"].lookup(["o_custkey"], custkeys)
    orderkeys = pa.concat_arrays(
        chunk
        for column in (
            by_customer.column("o_orderkey"),
            *(t["orders"].column("o_orderkey") for t in (old, new)),
            *(t["lineitem"].column("l_orderkey") for t in (old, new)),
        )
        for chunk in column.chunks
    )
    touched = pa.table({"k": orderkeys})
    orders = resident["orders"].lookup(["o_orderkey"], touched)
    lines = resident["lineitem"].lookup(["l_orderkey"], touched)
    owners = pa.chunked_array(
        [*orders.column("o_custkey").chunks, *new["orders"].column("o_custkey").chunks]
    )
    customers = resident["customer"].lookup(["c_custkey"], pa.table({"k": owners}))
    return {"customer": customers, "orders": orders, "lineitem": lines}


class Parts:
    """Milliseconds per named part of an epoch."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what runs inside."""
        start = time.perf_counter()
        yield
        self.times.setdefault(name, []).append((time.perf_counter() - start) * 1000)

    def summary(self) -> str:
        """Median and worst of each part."""
        cells = (f"{median(t):8.1f} {max(t):8.1f}" for t in self.times.values())
        return " |".join(cells)


def run_epoch(
    resident: Resident, evaluator: LocalEvaluator, keys: Tables, rng: np.random.Generator
) -> tuple[Parts, int]:
    """One epoch without sources and sinks; the rows of its view delta."""
    parts = Parts()
    with parts.part("PK"):
        old = {name: resident[name].lookup(KEYS[name], keys[name]) for name in keys}
    new = {name: changed(name, rows, rng) for name, rows in old.items()}
    with parts.part("traces"):
        slices = traces(resident, old, new)
    with parts.part("slices"):
        relations = {f"old_{name}": rows for name, rows in slices.items()}
        for name, rows in slices.items():
            # The new slice: without the changed keys, and with their new rows.
            kept = rows.join(keys[name], list(KEYS[name]), join_type="left anti")
            relations[f"new_{name}"] = pa.concat_tables([kept.select(rows.column_names), new[name]])
    with parts.part("query"):
        delta = evaluator.run(DELTA, relations, None)
    with parts.part("apply"):
        for name, rows in old.items():
            resident[name].apply(rows, new[name])
    return parts, delta.num_rows


def main() -> None:
    """Build the tables, run the epochs, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--changes", default="30,300,1000,10000")
    options = parser.parse_args()
    rng = np.random.default_rng(7)
    tables = make_tables(options.sf, rng)
    start = time.perf_counter()
    resident = {name: ResidentTable(rel(name), KEYS[name], rows) for name, rows in tables.items()}
    for name, rows in tables.items():
        resident[name].lookup(KEYS[name], rows.select(list(KEYS[name])).slice(0, 1))
    resident["orders"].lookup(["o_custkey"], pa.table({"k": [1]}))
    built = time.perf_counter() - start
    size = sum(table.nbytes for table in resident.values()) / 1e6
    rows = ", ".join(f"{name} {table.num_rows:,}" for name, table in resident.items())
    print(f"scale {options.sf}: {rows}; indexes built in {built:.1f} s; {size:,.0f} MB resident")
    evaluator = LocalEvaluator()
    names = ("PK", "traces", "slices", "query", "apply", "all")
    print("milliseconds, median and worst of", EPOCHS, "epochs")
    print("changes |" + " |".join(f"{name:>17}" for name in names) + " | delta rows")
    for changes in (int(text) for text in options.changes.split(",")):
        total = Parts()
        for epoch in range(EPOCHS + 1):
            parts, count = run_epoch(resident, evaluator, pick_keys(tables, changes, rng), rng)
            if epoch == 0:
                continue  # plans and caches are cold
            for name in names[:-1]:
                total.times.setdefault(name, []).extend(parts.times[name])
            total.times.setdefault("all", []).append(sum(sum(t) for t in parts.times.values()))
        print(f"{changes:7,} |{total.summary()} | {count:,}")
    start = time.perf_counter()
    resident["lineitem"].merge()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"merge of lineitem: {time.perf_counter() - start:.1f} s; peak memory {peak:,.0f} MB")


if __name__ == "__main__":
    main()
