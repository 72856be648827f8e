"""Each way to maintain a view, by the share of rows that change, against the full recompute.

    python -m tests.bench.strategies --sf 0.1 --shares 0.01,0.1,1,10,20

An epoch changes that share of the lines and of the orders: half updates, 30% inserts, 20% deletes,
of rows anywhere. It begins with decoded change batches, as they come from the executors. The
recompute is plain Spark over the same Parquet files. It does less than an epoch, which also nets
the changes, keeps the mirrors and publishes; so epochs that are FULL stand beside those that are
incremental. Every view and strategy has a store and a process of its own, which takes memory as
`mview run` does.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import batch_schema
from mview.schema import TableSchema
from tests.bench.inprocess import apart, opened
from tests.bench.results import MEMORY, Result, variant_of
from tests.bench.w1 import CONNECTION, VIEW, Tables, make_tables

#: Views by what they stand for.
VIEWS = {
    "filter": (
        "SELECT l_orderkey, l_linenumber, l_extendedprice * (100 - l_discount) AS net"
        " FROM {lineitem} WHERE l_quantity > 25"
    ),
    "join": (
        "SELECT l_orderkey, l_linenumber, o_orderdate, c_name, l_extendedprice FROM {lineitem}"
        " JOIN {orders} ON l_orderkey = o_orderkey JOIN {customer} ON o_custkey = c_custkey"
        " WHERE o_orderdate >= 9131"
    ),
    "join, aggregate by order": VIEW,
    "join, aggregate by nation": (
        "SELECT c_nationkey, count(*) AS n_lines, sum(l_extendedprice) AS revenue"
        " FROM {customer} JOIN {orders} ON c_custkey = o_custkey"
        " JOIN {lineitem} ON l_orderkey = o_orderkey GROUP BY c_nationkey"
    ),
    "min, max": (
        "SELECT l_orderkey, min(l_shipdate) AS first, max(l_extendedprice) AS most"
        " FROM {lineitem} GROUP BY l_orderkey"
    ),
    "distinct": "SELECT DISTINCT l_partkey, l_shipmode FROM {lineitem}",
    "window": (
        "SELECT l_orderkey, l_linenumber, sum(l_quantity) OVER"
        " (PARTITION BY l_orderkey ORDER BY l_linenumber) AS running FROM {lineitem}"
    ),
    "top 3 per group": (
        "SELECT * FROM (SELECT o_custkey, o_orderkey, o_totalprice, ROW_NUMBER() OVER"
        " (PARTITION BY o_custkey ORDER BY o_totalprice DESC, o_orderkey) AS place"
        " FROM {orders}) WHERE place <= 3"
    ),
    "outer join": (
        "SELECT o_orderkey, o_orderdate, l_linenumber, l_extendedprice FROM {orders}"
        " LEFT JOIN {lineitem} ON l_orderkey = o_orderkey AND l_returnflag = 'R'"
    ),
    "semi join": (
        "SELECT o_orderkey, o_custkey FROM {orders} WHERE EXISTS (SELECT 1 FROM {lineitem}"
        " WHERE l_orderkey = o_orderkey AND l_returnflag = 'R')"
    ),
    "anti join": (
        "SELECT o_orderkey, o_custkey FROM {orders} WHERE NOT EXISTS (SELECT 1 FROM {lineitem}"
        " WHERE l_orderkey = o_orderkey AND l_returnflag = 'R')"
    ),
}

#: The column of an update, and the key column of an insert, by table.
_TOUCHED = {
    "lineitem": ("l_extendedprice", "l_linenumber"),
    "orders": ("o_totalprice", "o_orderkey"),
}
_OPS = (("u", 0.5), ("c", 0.3), ("d", 0.2))

#: Percent of changed rows up to which epochs are repeated, and from which FULL is tried as well.
_MANY, _FULL_FROM = 1.0, 10.0
_TIMES = 3


class Supply:
    """Change batches, column by column. No row is changed twice, so any epoch may follow any."""

    def __init__(self, tables: Tables, schemas: dict[str, TableSchema]) -> None:
        rng = np.random.default_rng(13)
        self._tables, self._schemas, self._sent = tables, schemas, 0
        self._left = {name: rng.permutation(tables[name].num_rows) for name in _TOUCHED}

    def take(self, percent: float) -> tuple[dict[str, list[pa.Table]], int]:
        """The batches that change so many percent of the lines and orders, and their rows."""
        found, total = {}, 0
        for name, places in self._left.items():
            count = max(10, int(self._tables[name].num_rows * percent / 100))
            if count > len(places):
                raise ValueError(f"no {count:,} rows of {name} are left that were not changed")
            self._left[name] = places[count:]
            rows = self._tables[name].take(pa.array(np.sort(places[:count])))
            found[f"{CONNECTION}.{name}"] = [self._batch(name, rows)]
            total += count
        return found, total

    def _batch(self, name: str, rows: pa.Table) -> pa.Table:
        count = rows.num_rows
        bounds = np.cumsum([share for _, share in _OPS])
        draw = np.random.default_rng(self._sent).random(count)
        kinds = np.array([op for op, _ in _OPS])[np.searchsorted(bounds, draw).clip(0, 2)]
        value, key = _TOUCHED[name]
        # A new line joins its order, a new order its customer; such keys are never in the base.
        beyond = 100 if name == "lineitem" else self._tables[name].num_rows
        rows = _plus(rows, value, np.where(kinds == "u", 1, 0))
        rows = _plus(rows, key, np.where(kinds == "c", beyond, 0))
        numbers = pa.array(np.arange(self._sent + 1, self._sent + count + 1))
        self._sent += count
        meta = [
            pa.array(kinds.tolist()),
            pc.utf8_lpad(numbers.cast(pa.string()), 20, "0"),
            numbers,
            pa.array(["all/0"] * count),
            numbers,
            pa.nulls(count, pa.list_(pa.string())),
        ]
        return pa.Table.from_arrays(
            [*meta, *rows.columns], schema=batch_schema(self._schemas[name])
        )


def _plus(rows: pa.Table, column: str, more: npt.NDArray[np.int64]) -> pa.Table:
    place = rows.schema.get_field_index(column)
    added = pc.add(rows[column], pa.array(more)).cast(rows[column].type)
    return rows.set_column(place, column, added)


@dataclass(frozen=True)
class Found:
    """What was found of a view: its strategy; seconds of epochs and of recomputes by share."""

    strategy: str
    epochs: dict[float, float]
    recomputes: dict[float, float]

    @property
    def ratios(self) -> dict[float, float]:
        """Epochs to recomputes."""
        return {share: epoch / self.recomputes[share] for share, epoch in self.epochs.items()}

    @property
    def cells(self) -> dict[float, str]:
        """The epochs as shown."""
        ratios = self.ratios
        return {
            share: f"{epoch * 1000:,.0f} ms, {ratios[share]:.2g}"
            for share, epoch in self.epochs.items()
        }


def measure(scale: float, view: str, shares: list[float], extra: str) -> Found:
    """Epochs and recomputes of a view."""
    tables = make_tables(scale)
    with opened(tables, {"bench": VIEWS[view]}, extra) as bench:
        supply = Supply(tables, bench.schemas)
        bench.recompute("bench")
        bench.apply(*supply.take(0.1))
        found = Found(bench.strategy("bench"), {}, {})
        for share in shares:
            recomputes = [bench.recompute("bench")]
            times = _TIMES if share <= _MANY else 1
            found.epochs[share] = median(bench.apply(*supply.take(share)) for _ in range(times))
            recomputes.append(bench.recompute("bench"))
            found.recomputes[share] = median(recomputes)
        return found


def crossing(measured: Mapping[float, float]) -> str:
    """The share at which an epoch costs as much as something else: between two measured ones.

    Args:
        measured: the ratio of the costs by share.
    """
    shares, ratios = sorted(measured), [measured[share] for share in sorted(measured)]
    if not shares:
        return ""
    if ratios[0] >= 1:
        return f"below {shares[0]:g}%"
    for number in range(1, len(shares)):
        low, high = math.log(ratios[number - 1]), math.log(ratios[number])
        if high >= 0:
            part = low / (low - high)
            steps = math.log(shares[number] / shares[number - 1])
            return f"{shares[number - 1] * math.exp(part * steps):.2g}%"
    return f"above {shares[-1]:g}%"


def _settings(options: argparse.Namespace, strategy: str) -> str:
    engine = f"executor: {options.executor}, memory: {options.memory}, strategy: {strategy}"
    return f"engine: {{{engine}}}\nspark: {{master: '{options.master}'}}"


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--shares", default="0.01,0.1,1,10,20", help="percent of the rows")
    parser.add_argument("--views", default=";".join(VIEWS), help="names, with ; between them")
    parser.add_argument("--full", default="join, aggregate by order", help="views also as FULL")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--memory", type=int, default=MEMORY)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    shares = sorted(float(text) for text in options.shares.split(","))
    result = Result(
        "strategies",
        f"Epochs by strategy and changed rows, W1 at scale {options.sf:g}",
        [
            *("view", "strategy", "recompute ms", *(f"{share:g}%" for share in shares)),
            *("equal to a recompute at", "equal to FULL at"),
        ],
        variant_of(options),
    )
    result.notes += [
        "by share of the lines and of the orders, each: milliseconds of an epoch, and its ratio to"
        " the recomputes beside it",
        "an epoch begins with decoded batches; recompute ms: median over all shares",
        "equal at: interpolated on logarithmic scales",
        "auto: an epoch is incremental or FULL by the engine's choice, from the smallest share on",
    ]
    for view in options.views.split(";"):
        tried = view in options.full.split(";")
        many = [share for share in shares if tried and share >= _FULL_FROM]
        followed = apart(measure, options.sf, view, shares, _settings(options, "incremental"))
        full = apart(measure, options.sf, view, many, _settings(options, "full")) if many else None
        against = {s: followed.epochs[s] / time for s, time in full.epochs.items()} if full else {}
        result.add(
            view,
            followed.strategy,
            median(followed.recomputes.values()) * 1000,
            *followed.cells.values(),
            crossing(followed.ratios),
            crossing(against),
        )
        if full:
            shown = (full.cells.get(share, "") for share in shares)
            result.add("", "FULL", median(full.recomputes.values()) * 1000, *shown, "", "")
        if tried:
            chosen = apart(measure, options.sf, view, shares, _settings(options, "auto"))
            plain = median(chosen.recomputes.values()) * 1000
            result.add("", "auto", plain, *chosen.cells.values(), crossing(chosen.ratios), "")
        result.keep()
    result.save()


if __name__ == "__main__":
    main()
