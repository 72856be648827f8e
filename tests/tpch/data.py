"""TPC-H-like tables and refresh epochs from a seed.

Schemas and value ranges follow the benchmark; rare values are made common enough that at the
smallest scale every query has rows, and that every epoch changes some.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.ivm.world import table_schema
from tests.tpc.generate import Columns, Generator, Numbers, cents, numbered

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
#: Days since 1970.
_FIRST = (dt.date(1992, 1, 1) - dt.date(1970, 1, 1)).days
_MIDDLE = (dt.date(1995, 1, 1) - dt.date(1970, 1, 1)).days
_DAYS = 2406


class Tpch(Generator):
    """The tables of one scale, and their changes.

    Args:
        scale: 1 would be 1.5 million orders.
        seed: of all that is random.
    """

    schemas = SCHEMAS
    #: The regions and nations that the queries name.
    kept: Mapping[str, Sequence[int]] = {"tpch.region": (1, 2, 3), "tpch.nation": range(6)}

    def __init__(self, scale: float, seed: int = 1) -> None:
        super().__init__(seed)
        self.customers = max(60, int(150_000 * scale))
        self.parts = max(40, int(200_000 * scale))
        self.suppliers = max(24, int(10_000 * scale))
        orders = np.arange(1, max(400, int(1_500_000 * scale)) + 1)
        parts = np.arange(1, self.parts + 1)
        first = {
            "tpch.region": {"r_regionkey": np.arange(len(REGIONS))},
            "tpch.nation": {"n_nationkey": np.arange(len(NATIONS))},
            "tpch.supplier": {"s_suppkey": np.arange(1, self.suppliers + 1)},
            "tpch.customer": {"c_custkey": np.arange(1, self.customers + 1)},
            "tpch.part": {"p_partkey": parts},
            "tpch.partsupp": {
                "ps_partkey": np.repeat(parts, 4),
                # Four suppliers of a part that are not the same.
                "ps_suppkey": (np.repeat(parts, 4) + np.tile(range(4), len(parts)) * 5)
                % self.suppliers
                + 1,
            },
            "tpch.orders": {"o_orderkey": orders},
        }
        for table, keys in first.items():
            self.tables[table] = self.make(table, keys)
        self.tables["tpch.lineitem"] = self.make("tpch.lineitem", self._lines(orders))

    def columns(self, table: str, keys: Mapping[str, Numbers]) -> Columns:
        """See `Generator`."""
        made: Columns = getattr(self, f"_{table.removeprefix('tpch.')}_columns")(*keys.values())
        return made

    def changed(self, table: str, changes: int) -> int:
        """See `Generator`."""
        small = {"tpch.region": 1, "tpch.nation": 1, "tpch.lineitem": changes}
        return small.get(table, max(1, changes // 6))

    def new_keys(self, table: str, count: int) -> Columns:
        """See `Generator`. Keys of small tables that were deleted before come back."""
        if table in ("tpch.region", "tpch.nation"):
            size = len(REGIONS) if table == "tpch.region" else len(NATIONS)
            return self.free(table, np.arange(size), count)
        if table == "tpch.partsupp":
            return {"ps_partkey": self._part(count), "ps_suppkey": self._seller(count)}
        if table == "tpch.orders":
            last = pc.max(self.tables[table]["o_orderkey"]).as_py()
            return {"o_orderkey": np.arange(last + 1, last + 1 + count)}
        if table == "tpch.lineitem":
            last = pc.max(self.tables[table]["l_orderkey"]).as_py()
            orders = self.tables["tpch.orders"]["o_orderkey"].to_numpy()
            return self._lines(orders[orders > last])
        return self.free(table, np.arange(1, 2 * self.customers), count)

    def _lines(self, orders: Numbers) -> Columns:
        """The keys of all lines of new orders; one order in forty is large."""
        counts = np.where(orders % 40 == 0, 7, self.draw.integers(1, 7, len(orders)))
        ends = np.cumsum(counts)
        starts = np.repeat(ends - counts, counts)
        numbers = np.arange(counts.sum()) - starts + 1
        return {"l_orderkey": np.repeat(orders, counts), "l_linenumber": numbers}

    # -- the columns of each table ------------------------------------------------------------

    def _part(self, n: int) -> Numbers:
        return self.draw.integers(1, self.parts, n)

    def _seller(self, n: int) -> Numbers:
        return self.draw.integers(1, self.suppliers, n)

    def _home(self, n: int) -> Numbers:
        last = len(NATIONS) - 1
        return np.minimum(self.draw.integers(0, last, n), self.draw.integers(0, last, n))

    def _phone(self, nations: Numbers) -> pa.Array:
        n = len(nations)
        codes = self.draw.one_of(["13", "31", "23", "29", "30", "40"], n)
        parts = [100 + nations, self.draw.integers(1000, 9999, n)]
        texts = [codes, *(pa.array(part).cast(pa.string()) for part in parts)]
        return pc.binary_join_element_wise(*texts, "-")

    def _region_columns(self, key: Numbers) -> Columns:
        renamed = ~np.isin(key, self.kept["tpch.region"]) & self.draw.chance(0.5, len(key))
        names = pa.array(REGIONS).take(pa.array(key))
        return {"r_name": pc.if_else(pa.array(renamed), numbered("REGION ", key, 1), names)}

    def _nation_columns(self, key: Numbers) -> Columns:
        moved = self.draw.chance(0.1, len(key))
        regions = np.array([region for _, region in NATIONS])[key]
        return {
            "n_name": pa.array([name for name, _ in NATIONS]).take(pa.array(key)),
            "n_regionkey": np.where(moved, self.draw.integers(0, 4, len(key)), regions),
        }

    def _supplier_columns(self, key: Numbers) -> Columns:
        n, nations = len(key), self._home(len(key))
        return {
            "s_name": numbered("Supplier#", key),
            "s_address": numbered("street ", key, 1),
            "s_nationkey": nations,
            "s_phone": self._phone(nations),
            "s_acctbal": self.draw.money(-999, 9999, n),
            "s_comment": self.draw.one_of(
                ["", "quick", "slow Customer any Complaints", "careful"], n
            ),
        }

    def _customer_columns(self, key: Numbers) -> Columns:
        n, nations = len(key), self._home(len(key))
        return {
            "c_name": numbered("Customer#", key),
            "c_address": numbered("street ", self.draw.integers(0, 98, n), 1),
            "c_nationkey": nations,
            "c_phone": self._phone(nations),
            "c_acctbal": self.draw.money(-999, 9999, n),
            "c_mktsegment": self.draw.one_of(_SEGMENTS, n),
            "c_comment": self.draw.one_of(["", "regular", "final"], n),
        }

    def _part_columns(self, key: Numbers) -> Columns:
        n = len(key)
        names = [" ".join(words) for words in permutations(_WORDS, 3)]
        return {
            "p_name": self.draw.one_of(names, n),
            "p_mfgr": numbered("Manufacturer#", self.draw.integers(1, 5, n), 1),
            "p_brand": self.draw.one_of(_BRANDS, n),
            "p_type": self.draw.one_of(_TYPES, n),
            "p_size": self.draw.one_of(_SIZES, n),
            "p_container": self.draw.one_of(_CONTAINERS, n),
            "p_retailprice": self.draw.money(900, 2000, n),
        }

    def _partsupp_columns(self, part: Numbers, supplier: Numbers) -> Columns:
        n = len(part)
        return {
            "ps_availqty": self.draw.integers(1, 99, n),
            "ps_supplycost": self.draw.money(1, 1000, n),
        }

    def _orders_columns(self, key: Numbers) -> Columns:
        n = len(key)
        # Half of the orders lie in the years that most queries ask for.
        middle = self.draw.chance(0.5, n)
        days = np.where(
            middle,
            _MIDDLE + self.draw.integers(1, 730, n),
            _FIRST + self.draw.integers(1, _DAYS, n),
        )
        return {
            # A third of the customers have no orders, as in the benchmark.
            "o_custkey": self.draw.integers(1, self.customers, n) // 3 * 3 + 1,
            "o_orderstatus": self.draw.one_of("FOP", n),
            "o_totalprice": self.draw.money(900, 400_000, n),
            "o_orderdate": days,
            "o_orderpriority": self.draw.one_of(_PRIORITIES, n),
            "o_shippriority": np.zeros(n, np.int64),
            "o_comment": self.draw.one_of(["", "special blue requests", "pending", "bold"], n),
        }

    def _lineitem_columns(self, order: Numbers, number: Numbers) -> Columns:
        n = len(order)
        shipped = self._ordered(order) + self.draw.integers(1, 121, n)
        parts = self.tables["tpch.partsupp"].take(
            self.draw.integers(0, self.tables["tpch.partsupp"].num_rows - 1, n)
        )
        large = np.where(order % 40 == 0, 44, 1)
        return {
            "l_partkey": parts["ps_partkey"].to_numpy(),
            "l_suppkey": np.where(
                self.draw.chance(0.8, n), parts["ps_suppkey"].to_numpy(), self._seller(n)
            ),
            "l_quantity": cents(self.draw.random.integers(large, 51) * 100),
            "l_extendedprice": self.draw.money(900, 90_000, n),
            "l_discount": cents(self.draw.integers(0, 10, n)),
            "l_tax": cents(self.draw.integers(0, 8, n)),
            "l_returnflag": self.draw.one_of("RAN", n),
            "l_linestatus": self.draw.one_of("OF", n),
            "l_shipdate": shipped,
            "l_commitdate": shipped + self.draw.integers(-60, 60, n),
            "l_receiptdate": shipped + self.draw.integers(1, 30, n),
            "l_shipinstruct": self.draw.one_of(_INSTRUCTIONS, n),
            "l_shipmode": self.draw.one_of(_MODES, n),
        }

    def _ordered(self, keys: Numbers) -> Numbers:
        """The days of orders; of one that is gone, that of its neighbour."""
        orders = self.tables["tpch.orders"].select(["o_orderkey", "o_orderdate"])
        orders = orders.sort_by("o_orderkey")
        place = np.searchsorted(orders["o_orderkey"].to_numpy(), keys)
        days = orders["o_orderdate"].cast(pa.int32()).to_numpy().astype(np.int64)
        return days[np.minimum(place, len(days) - 1)]
