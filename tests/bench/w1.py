"""Workload W1: customer, orders and lineitem in the shape of TPC-H, and changes to them.

Amounts are integers and dates are days, so that every engine computes exactly the same sums. A
change is to a random row: 80% lines, 18% orders, 2% customers; half updates, 30% inserts, 20%
deletes. Keys are uniform, which is the worst case for a view that is kept in files, or recent ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from mview.schema import Column, TableSchema

#: The connection's name in configurations and views.
CONNECTION = "w1"
KEYS = {
    "customer": ("c_custkey",),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}
VIEW = """
SELECT o_orderkey, c_nationkey, o_orderdate, count(*) AS n_lines,
    sum(l_extendedprice * (100 - l_discount)) AS revenue
FROM {customer} JOIN {orders} ON c_custkey = o_custkey
    JOIN {lineitem} ON l_orderkey = o_orderkey
WHERE o_orderdate >= 9131 AND l_returnflag <> 'R'
GROUP BY o_orderkey, c_nationkey, o_orderdate
"""

#: What the view and the changes touch: all that fits into memory at large scales.
NARROW = {
    "customer": ["c_custkey", "c_nationkey", "c_acctbal"],
    "orders": ["o_orderkey", "o_custkey", "o_totalprice", "o_orderdate"],
    "lineitem": ["l_orderkey", "l_linenumber", "l_extendedprice", "l_discount", "l_returnflag"],
}

#: How far back from a table's end a change is on the average, where keys are recent (rows). Fixed:
#: what changes today does not grow with the years that are kept.
RECENT_ROWS = 20_000

_FIRST_DAY, _LAST_DAY = 8035, 10_440
_WORDS = ["furious", "pending", "special", "ironic", "quick", "silent", "regular", "express"]
_SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"]
_PRIORITIES = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
_MODES = ["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"]

Row = dict[str, Any]
Tables = dict[str, pa.Table]


def view_sql(
    select: str = VIEW,
    name: str = "order_revenue",
    vectors: bool = False,
    options: Sequence[str] = (),
) -> str:
    """A view, as a user of mview writes it.

    Args:
        select: the query, with `{customer}` and so on for the tables.
        name: of the view.
        vectors: whether its Delta table may have deletion vectors.
        options: more of what stands in WITH.
    """
    said = ", ".join([*(["sink.deletion_vectors='true'"] if vectors else []), *options])
    query = select.format(**{table: f"{CONNECTION}.{table}" for table in KEYS})
    return f"CREATE MATERIALIZED VIEW {name}{f' WITH ({said})' if said else ''} AS {query}"


def _pick(rng: np.random.Generator, words: list[str], count: int) -> pa.Array:
    return pa.array(words).take(pa.array(rng.integers(0, len(words), count)))


def _comment(rng: np.random.Generator, count: int) -> pa.Array:
    texts = [f"{a} {b} {c}" for a in _WORDS for b in _WORDS for c in _WORDS]
    return _pick(rng, texts, count)


def make_tables(scale: float, seed: int = 7) -> Tables:
    """The three tables at a scale: 1 is 150k customers, 1.5M orders, about 6M lines."""
    rng = np.random.default_rng(seed)
    customers, orders = int(150_000 * scale), int(1_500_000 * scale)
    custkeys, orderkeys = np.arange(1, customers + 1), np.arange(1, orders + 1)
    dates = rng.integers(_FIRST_DAY, _LAST_DAY, orders).astype(np.int32)
    per_order = rng.integers(1, 8, orders)
    lines = int(per_order.sum())
    numbers = np.arange(lines) - np.repeat(np.cumsum(per_order) - per_order, per_order) + 1
    return {
        "customer": pa.table(
            {
                "c_custkey": custkeys,
                "c_name": pa.array([f"Customer#{key}" for key in custkeys]),
                "c_nationkey": rng.integers(0, 25, customers).astype(np.int32),
                "c_mktsegment": _pick(rng, _SEGMENTS, customers),
                "c_acctbal": rng.integers(-99_999, 999_999, customers),
            }
        ),
        "orders": pa.table(
            {
                "o_orderkey": orderkeys,
                "o_custkey": rng.integers(1, customers + 1, orders),
                "o_orderstatus": _pick(rng, ["F", "O", "P"], orders),
                "o_totalprice": rng.integers(100_000, 50_000_000, orders),
                "o_orderdate": dates,
                "o_orderpriority": _pick(rng, _PRIORITIES, orders),
                "o_comment": _comment(rng, orders),
            }
        ),
        "lineitem": pa.table(
            {
                "l_orderkey": np.repeat(orderkeys, per_order),
                "l_linenumber": numbers.astype(np.int32),
                "l_partkey": rng.integers(1, 200_000, lines),
                "l_suppkey": rng.integers(1, 10_000, lines),
                "l_quantity": rng.integers(1, 51, lines).astype(np.int32),
                "l_extendedprice": rng.integers(90_000, 10_500_000, lines),
                "l_discount": rng.integers(0, 11, lines).astype(np.int32),
                "l_tax": rng.integers(0, 9, lines).astype(np.int32),
                "l_returnflag": _pick(rng, ["A", "N", "R"], lines),
                "l_linestatus": _pick(rng, ["F", "O"], lines),
                "l_shipdate": (np.repeat(dates, per_order) + rng.integers(1, 122, lines)).astype(
                    np.int32
                ),
                "l_shipmode": _pick(rng, _MODES, lines),
                "l_comment": _comment(rng, lines),
            }
        ),
    }


def narrow(tables: Tables) -> Tables:
    """Only the columns that the view and the changes touch."""
    return {name: rows.select(NARROW[name]) for name, rows in tables.items()}


def schema_of(name: str, rows: pa.Table) -> TableSchema:
    """The schema that a database would give for the table."""
    columns = [Column(one.name, one.type, one.name not in KEYS[name]) for one in rows.schema]
    return TableSchema(tuple(columns), KEYS[name])


@dataclass(frozen=True)
class Change:
    """One change of one row: op is insert, update or delete."""

    table: str
    op: str
    before: Row | None
    after: Row | None


def message(change: Change, position: int, ts: int) -> bytes:
    """A change in the `unified` format."""
    body: Row = {"table": change.table, "op": change.op, "ts": ts, "position": position}
    for name, row in (("before", change.before), ("after", change.after)):
        if row is not None:
            body[name] = row
    return orjson.dumps(body)


@dataclass
class Changes:
    """An endless supply of changes, each valid after those before it.

    Attributes:
        tables: the rows before the first change.
        seed: of the choices.
        recent: changes are to rows near the end of a table instead of to any.
    """

    tables: Tables
    seed: int = 11
    recent: bool = False
    _live: dict[str, dict[tuple[int, ...], Row | None]] = field(default_factory=dict)
    _next_key: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._live = {name: {} for name in KEYS}
        self._next_key = {name: rows.num_rows for name, rows in self.tables.items()}

    def take(self, count: int) -> list[Change]:
        """The next changes."""
        names = self._rng.choice(list(KEYS), count, p=[0.02, 0.18, 0.8])
        ops = self._rng.choice(["update", "insert", "delete"], count, p=[0.5, 0.3, 0.2])
        base = {name: iter(self._base_rows(name, int((names == name).sum()))) for name in KEYS}
        changes = []
        for name, op in zip(names.tolist(), ops.tolist(), strict=True):
            row = next(base[name])
            key = tuple(row[column] for column in KEYS[name])
            old = self._live[name].get(key, row)
            if op == "insert" or old is None:
                after = self._inserted(name, row)
                changes.append(Change(name, "insert", None, after))
                self._live[name][tuple(after[column] for column in KEYS[name])] = after
                continue
            new = self._updated(name, old) if op == "update" else None
            self._live[name][key] = new
            changes.append(Change(name, op, old, new))
        return changes

    def rows(self, name: str) -> pa.Table:
        """The rows of a table after the changes so far."""
        base, key = self.tables[name], list(KEYS[name])
        if not self._live[name]:
            return base
        columns = zip(*self._live[name], strict=True)
        kinds = [base.schema.field(column).type for column in key]
        touched = pa.table([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], key)
        kept = base.join(touched, key, join_type="left anti").select(base.column_names)
        live = [row for row in self._live[name].values() if row is not None]
        return pa.concat_tables([kept, pa.Table.from_pylist(live, base.schema)])

    def _base_rows(self, name: str, count: int) -> list[Row]:
        rows = self.tables[name]
        if self.recent:
            back = self._rng.exponential(RECENT_ROWS, count).astype(np.int64)
            places = rows.num_rows - 1 - back % rows.num_rows
        else:
            places = self._rng.integers(0, rows.num_rows, count)
        found: list[Row] = rows.take(pa.array(places)).to_pylist()
        return found

    def _inserted(self, name: str, like: Row) -> Row:
        self._next_key[name] += 1
        # A new line joins the order it was copied from; numbers above 100 are never in the base.
        column = KEYS[name][-1]
        return {**like, column: self._next_key[name] + (100 if name == "lineitem" else 0)}

    def _updated(self, name: str, row: Row) -> Row:
        number = int(self._rng.integers(1, 10_000_000))
        if name == "lineitem":
            return {**row, "l_extendedprice": number, "l_discount": number % 11}
        if name == "customer":
            moved = {"c_nationkey": number % 25} if number % 2 else {}
            return {**row, "c_acctbal": number, **moved}
        moved = {"o_custkey": number % self.tables["customer"].num_rows + 1} if number % 3 else {}
        return {**row, "o_totalprice": number, **moved}
