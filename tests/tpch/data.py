"""TPC-H-like tables and refresh epochs from a seed.

Schemas and value ranges follow the benchmark; rare values are made common enough that at the
smallest scale every query has rows, and that every epoch changes some.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from tests.ivm.world import Row, table_schema

_MONEY = "decimal(15,2) not null"
SCHEMAS = {
    "tpch.region": table_schema("r_regionkey bigint, r_name string not null", "r_regionkey"),
    "tpch.nation": table_schema(
        "n_nationkey bigint, n_name string not null, n_regionkey bigint not null", "n_nationkey"
    ),
    "tpch.supplier": table_schema(
        "s_suppkey bigint, s_name string not null, s_address string not null, "
        "s_nationkey bigint not null, s_phone string not null, "
        f"s_acctbal {_MONEY}, s_comment string not null",
        "s_suppkey",
    ),
    "tpch.customer": table_schema(
        "c_custkey bigint, c_name string not null, c_address string not null, "
        "c_nationkey bigint not null, c_phone string not null, "
        f"c_acctbal {_MONEY}, c_mktsegment string not null, c_comment string not null",
        "c_custkey",
    ),
    "tpch.part": table_schema(
        "p_partkey bigint, p_name string not null, p_mfgr string not null, "
        "p_brand string not null, p_type string not null, p_size int not null, "
        f"p_container string not null, p_retailprice {_MONEY}",
        "p_partkey",
    ),
    "tpch.partsupp": table_schema(
        f"ps_partkey bigint, ps_suppkey bigint, ps_availqty int not null, ps_supplycost {_MONEY}",
        "ps_partkey ps_suppkey",
    ),
    "tpch.orders": table_schema(
        "o_orderkey bigint, o_custkey bigint not null, o_orderstatus string not null, "
        f"o_totalprice {_MONEY}, o_orderdate date not null, o_orderpriority string not null, "
        "o_shippriority int not null, o_comment string not null",
        "o_orderkey",
    ),
    "tpch.lineitem": table_schema(
        "l_orderkey bigint, l_linenumber int, l_partkey bigint not null, "
        f"l_suppkey bigint not null, l_quantity {_MONEY}, l_extendedprice {_MONEY}, "
        f"l_discount {_MONEY}, l_tax {_MONEY}, l_returnflag string not null, "
        "l_linestatus string not null, l_shipdate date not null, l_commitdate date not null, "
        "l_receiptdate date not null, l_shipinstruct string not null, l_shipmode string not null",
        "l_orderkey l_linenumber",
    ),
}
REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
#: (name, region). The first ones, which the queries name, are drawn more often.
NATIONS = [
    ("GERMANY", 3), ("FRANCE", 3), ("BRAZIL", 1), ("CANADA", 1), ("SAUDI ARABIA", 4), ("CHINA", 2),
    ("INDIA", 2), ("JAPAN", 2), ("KENYA", 0), ("EGYPT", 4), ("PERU", 1), ("ROMANIA", 3),
]  # fmt: skip
#: Not deleted, so that the queries that name them keep rows.
_KEPT = {
    "tpch.region": {(1,), (2,), (3,)},
    "tpch.nation": {(key,) for key in range(6)},
}
_SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"]
_PRIORITIES = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
_BRANDS = ["Brand#12", "Brand#23", "Brand#34", "Brand#45"]
_CONTAINERS = ["SM CASE", "MED BOX", "MED BAG", "LG BOX", "JUMBO JAR"]
_TYPES = [
    *["ECONOMY ANODIZED STEEL"] * 2, "PROMO BURNISHED COPPER", "LARGE PLATED BRASS",
    "SMALL BRUSHED BRASS", "SMALL PLATED BRASS", "MEDIUM POLISHED TIN", "STANDARD PLATED NICKEL",
]  # fmt: skip
_SIZES = [1, 3, 5, 9, 14, 15, 15, 15, 23, 45]
_WORDS = ["forest", "green", "blush", "lemon", "navy", "peach"]
_MODES = ["AIR", "AIR REG", "MAIL", "SHIP", "TRUCK"]
_INSTRUCTIONS = ["DELIVER IN PERSON", "COLLECT COD", "NONE"]
_FIRST, _DAYS = dt.date(1992, 1, 1), 2406


@dataclass
class Tpch:
    """The tables of one scale, and their changes.

    Args:
        scale: 1 would be 1.5 million orders.
        seed: of all that is random.
    """

    scale: float
    seed: int = 1
    rows: dict[str, dict[Row, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.customers = max(60, int(150_000 * self.scale))
        self.parts = max(40, int(200_000 * self.scale))
        self.suppliers = max(24, int(10_000 * self.scale))
        self.rows = {table: {} for table in SCHEMAS}
        for key in range(len(REGIONS)):
            self._put("tpch.region", (key,))
        for key in range(len(NATIONS)):
            self._put("tpch.nation", (key,))
        for table, count in (
            ("tpch.supplier", self.suppliers),
            ("tpch.customer", self.customers),
            ("tpch.part", self.parts),
        ):
            for key in range(1, count + 1):
                self._put(table, (key,))
        for part in range(1, self.parts + 1):
            for supplier in self._pick(range(1, self.suppliers + 1), 4):
                self._put("tpch.partsupp", (part, supplier))
        for order in range(1, max(400, int(1_500_000 * self.scale)) + 1):
            self._order(order)

    def tables(self) -> dict[str, Counter[Row]]:
        """All rows as they are now."""
        return {table: Counter(rows.values()) for table, rows in self.rows.items()}

    def refresh(self, changes: int) -> dict[str, list[tuple[int, Row]]]:
        """One epoch: inserts, updates and deletes in every table; `changes` rows of lineitem.

        Returns:
            Weighted rows per table.
        """
        before = {table: dict(rows) for table, rows in self.rows.items()}
        for table in SCHEMAS:
            most = {"tpch.region": 1, "tpch.nation": 1}.get(table, max(1, changes // 6))
            count = changes if table == "tpch.lineitem" else most
            for key in self._pick(sorted(self.rows[table]), count):
                self._put(table, key)
            rows = [key for key in sorted(self.rows[table]) if key not in _KEPT.get(table, ())]
            for key in self._pick(rows, max(1, count // 3)):
                del self.rows[table][key]
        for table in ("tpch.region", "tpch.nation", "tpch.supplier", "tpch.customer", "tpch.part"):
            # Also keys that were deleted before come back.
            top = {"tpch.region": len(REGIONS), "tpch.nation": len(NATIONS)}.get(table)
            free = range(top) if top else range(1, 2 * self.customers)
            missing = [(key,) for key in free if (key,) not in before[table]]
            for key in self._pick(missing, 1):
                self._put(table, key)
        self._put("tpch.partsupp", (self._one(range(1, self.parts)), self._supplier()))
        last = max(key[0] for key in self.rows["tpch.orders"])
        for order in range(last + 1, last + 2 + changes // 8):
            self._order(order)
        return {table: _difference(before[table], self.rows[table]) for table in SCHEMAS}

    # -- one row each -------------------------------------------------------------------------

    def _one(self, values: Sequence[Any]) -> Any:
        return values[int(self.random.integers(len(values)))]

    def _pick(self, values: Sequence[Any], count: int) -> list[Any]:
        if not values:
            return []
        chosen = self.random.choice(len(values), min(count, len(values)), replace=False)
        return [values[int(i)] for i in chosen]

    def _money(self, low: int, high: int) -> Decimal:
        return Decimal(int(self.random.integers(low * 100, high * 100 + 1))).scaleb(-2)

    def _day(self, after: dt.date = _FIRST, days: int = _DAYS) -> dt.date:
        return after + dt.timedelta(int(self.random.integers(1, days)))

    def _order_day(self) -> dt.date:
        # Half of the orders lie in the years that most queries ask for.
        middle = self.random.random() < 0.5
        return self._day(dt.date(1995, 1, 1), 730) if middle else self._day()

    def _supplier(self) -> int:
        return int(self.random.integers(1, self.suppliers + 1))

    def _nation(self) -> int:
        return int(min(self.random.integers(len(NATIONS)), self.random.integers(len(NATIONS))))

    def _phone(self, nation: int) -> str:
        code = self._one(["13", "31", "23", "29", "30", "40"])
        return f"{code}-{100 + nation}-{int(self.random.integers(1000, 9999))}"

    def _put(self, table: str, key: Row) -> None:
        """Insert or replace a row."""
        rest = getattr(self, f"_row_of_{table.removeprefix('tpch.')}")(*key)
        # Decimals as `normal` of the test world writes them, so that rows compare.
        row = tuple(v.normalize() + 0 if isinstance(v, Decimal) else v for v in (*key, *rest))
        self.rows[table][key] = row

    def _row_of_region(self, key: int) -> Row:
        renamed = (key,) not in _KEPT["tpch.region"] and self.random.random() < 0.5
        return (f"REGION {key}" if renamed else REGIONS[key],)

    def _row_of_nation(self, key: int) -> Row:
        name, region = NATIONS[key]
        return name, region if self.random.random() < 0.9 else int(self._one(range(len(REGIONS))))

    def _row_of_supplier(self, key: int) -> Row:
        nation = self._nation()
        comment = self._one(["", "quick", "slow Customer any Complaints", "careful"])
        balance = self._money(-999, 9999)
        phone = self._phone(nation)
        return f"Supplier#{key:09}", f"street {key}", nation, phone, balance, comment

    def _row_of_customer(self, key: int) -> Row:
        nation = self._nation()
        return (
            f"Customer#{key:09}", f"street {int(self.random.integers(99))}", nation,
            self._phone(nation), self._money(-999, 9999), self._one(_SEGMENTS),
            self._one(["", "regular", "final"]),
        )  # fmt: skip

    def _row_of_part(self, key: int) -> Row:
        maker = int(self.random.integers(1, 6))
        return (
            " ".join(self._pick(_WORDS, 3)), f"Manufacturer#{maker}", self._one(_BRANDS),
            self._one(_TYPES), self._one(_SIZES), self._one(_CONTAINERS), self._money(900, 2000),
        )  # fmt: skip

    def _row_of_partsupp(self, part: int, supplier: int) -> Row:
        return int(self.random.integers(1, 100)), self._money(1, 1000)

    def _row_of_orders(self, key: int) -> Row:
        # A third of the customers have no orders, as in the benchmark.
        customer = int(self.random.integers(1, self.customers + 1)) // 3 * 3 + 1
        comment = self._one(["", "special blue requests", "pending", "bold"])
        return (
            customer, self._one("FOP"), self._money(900, 400_000), self._order_day(),
            self._one(_PRIORITIES), 0, comment,
        )  # fmt: skip

    def _row_of_lineitem(self, order: int, number: int) -> Row:
        order_row = self.rows["tpch.orders"].get((order,))
        ordered = order_row[4] if order_row else self._day()
        part = int(self.random.integers(1, self.parts + 1))
        sellers = [s for p, s in self.rows["tpch.partsupp"] if p == part] if number == 1 else []
        shipped = self._day(ordered, 122)
        committed, received = self._day(ordered, 91), self._day(shipped, 31)
        # One order in forty is large.
        quantity = self._one(range(44, 51)) if order % 40 == 0 else self._one(range(1, 51))
        return (
            part, self._one(sellers) if sellers else self._supplier(), Decimal(quantity),
            self._money(900, 90_000), self._money(0, 0) + Decimal(self._one(range(11))).scaleb(-2),
            Decimal(self._one(range(9))).scaleb(-2), self._one("RAN"), self._one("OF"),
            shipped, committed, received, self._one(_INSTRUCTIONS), self._one(_MODES),
        )  # fmt: skip

    def _order(self, order: int) -> None:
        self._put("tpch.orders", (order,))
        lines = 7 if order % 40 == 0 else int(self.random.integers(1, 8))
        for number in range(1, lines + 1):
            self._put("tpch.lineitem", (order, number))


def _difference(before: dict[Row, Row], after: dict[Row, Row]) -> list[tuple[int, Row]]:
    gone = [(-1, row) for key, row in before.items() if after.get(key) != row]
    come = [(1, row) for key, row in after.items() if before.get(key) != row]
    return gone + come
