"""TPC-DS-like tables and refresh epochs from a seed: those tables and columns that queries use.

Value ranges are narrow, so that a few thousand rows join, group and tie as many more would; the
calendar is three years, most sales lie in the middle one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.schema import TableSchema
from tests.ivm.world import table_schema
from tests.tpc.generate import Columns, Draw, Generator, Numbers, numbered

#: Makes a column from the key columns of its rows.
Maker = Callable[[Draw, Sequence[Numbers]], Any]
_FIRST = dt.date(1999, 1, 1)
_DAYS = 1096
#: Days with a count of the stock: the first months of the middle year.
_STOCKED = (366, 480)
#: Rows of the tables that others name by number.
SIZES = {
    "date_dim": _DAYS, "item": 80, "customer": 150, "customer_address": 90,
    "customer_demographics": 60, "household_demographics": 30, "store": 8, "warehouse": 4,
    "promotion": 8, "catalog_page": 8, "web_site": 5, "call_center": 4, "reason": 4,
}  # fmt: skip
_MONEY = "decimal(7,2)"


def _without(values: Any, missing: Any) -> pa.Array:
    """NULL where something is missing."""
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return pc.if_else(pa.array(missing), pa.scalar(None, array.type), array)


def name(prefix: str, share: int = 1) -> Maker:
    """A name made of the key; `share` keys in a row have the same."""
    return lambda draw, keys: numbered(prefix, keys[0] // share, 6)


def pick(*values: Any) -> Maker:
    return lambda draw, keys: draw.one_of(values, len(keys[0]))


def number(low: int, high: int) -> Maker:
    return lambda draw, keys: draw.integers(low, high, len(keys[0]))


def amount(low: int, high: int) -> Maker:
    return lambda draw, keys: draw.money(low, high, len(keys[0]))


def ref(table: str, null: float = 0.0) -> Maker:
    """The number of a row of another table, that may not be there; or NULL."""

    def make(draw: Draw, keys: Sequence[Numbers]) -> pa.Array:
        n = len(keys[0])
        return _without(draw.integers(1, SIZES[table], n), draw.chance(null, n))

    return make


def of_order(table: str, salt: int, null: float = 0.02, moved: float = 0.05) -> Maker:
    """The same, but one for most rows of an order (the last key column)."""

    def make(draw: Draw, keys: Sequence[Numbers]) -> pa.Array:
        n = len(keys[0])
        same = _mixed(keys[-1], salt) % SIZES[table] + 1
        other = draw.integers(1, SIZES[table], n)
        return _without(np.where(draw.chance(moved, n), other, same), draw.chance(null, n))

    return make


def _mixed(numbers: Numbers, salt: int) -> Numbers:
    """Numbers that look random, the same ones every time."""
    words = (numbers.astype(np.uint64) + np.uint64(salt * 7919)) * np.uint64(0x9E3779B97F4A7C15)
    return (words >> np.uint64(33)).astype(np.int64)


def sold_on(later: int = 0) -> Maker:
    """The day of an order, or up to some days later: six of ten lie in the middle year."""

    def make(draw: Draw, keys: Sequence[Numbers]) -> pa.Array:
        n = len(keys[0])
        mixed = _mixed(keys[-1], 1)
        days = np.where(mixed % 10 < 6, 366 + mixed // 10 % 366, mixed // 10 % _DAYS + 1)
        waited = draw.integers(min(later, 1), later, n)
        return _without(np.minimum(days + waited, _DAYS), draw.chance(0.02, n))

    return make


def calendar(of: Callable[[dt.date], Any]) -> Maker:
    """A column of a day, whose number stands after the key."""
    return lambda draw, keys: pa.array([of(_FIRST + dt.timedelta(int(d) - 1)) for d in keys[1]])


def _sales(p: str, customer: str, **more: Maker) -> dict[str, tuple[str, Maker]]:
    """The columns that the sales of all channels have."""
    money = ("wholesale_cost", "list_price", "sales_price", "coupon_amt")
    columns: dict[str, tuple[str, Maker]] = {
        f"{p}_sold_date_sk": ("bigint", sold_on()),
        f"{p}_{customer}": ("bigint", of_order("customer", 2)),
        f"{p}_promo_sk": ("bigint", ref("promotion")),
        f"{p}_quantity": ("int", number(1, 100)),
        **{f"{p}_{column}": (_MONEY, amount(1, 200)) for column in money},
        f"{p}_ext_sales_price": (_MONEY, amount(1, 9000)),
        f"{p}_net_paid": (_MONEY, amount(100, 9000)),
        f"{p}_net_profit": (_MONEY, amount(-3000, 6000)),
    }
    return columns | {f"{p}_{column}": ("bigint", maker) for column, maker in more.items()}


def _returns(p: str, amount_: str, **more: Maker) -> dict[str, tuple[str, Maker]]:
    columns: dict[str, tuple[str, Maker]] = {
        f"{p}_returned_date_sk": ("bigint", sold_on(later=60)),
        f"{p}_return_quantity": ("int", number(1, 100)),
        f"{p}_{amount_}": (_MONEY, amount(1, 2000)),
        f"{p}_net_loss": (_MONEY, amount(1, 900)),
    }
    return columns | {f"{p}_{column}": ("bigint", maker) for column, maker in more.items()}


_ITEM: dict[str, tuple[str, Maker]] = {
    "i_item_id": ("string", name("ITEM", 2)),
    "i_item_desc": ("string", pick("good", "fair", "plain", "")),
    "i_current_price": (_MONEY, pick(*map(float, (0.99, 1.25, 1.49, 3, 9, 40, 99.5)))),
    "i_wholesale_cost": (_MONEY, amount(1, 80)),
    "i_brand_id": ("int", number(1, 4)),
    "i_brand": ("string", pick("corp", "univ", "maxi")),
    "i_class": ("string", pick("personal", "portable", "reference", "accessories", "classical")),
    "i_category": ("string", pick("Books", "Women", "Electronics", "Home", "Music", "Sports")),
    "i_manufact_id": ("int", number(1, 8)),
    "i_manufact": ("string", pick("able", "ought", "pri", "ese", "anti")),
    "i_size": ("string", pick("small", "medium", "extra large", "N/A")),
    "i_color": ("string", pick("powder", "khaki", "brown", "honeydew")),
    "i_units": ("string", pick("Ounce", "Oz", "Bunch", "Ton")),
    "i_product_name": ("string", name("product")),
}
_COUNTIES = (
    "Rush County",
    "Toole County",
    "La Porte County",
    "Williamson County",
    "Ziebach County",
)
_STATES = ("TN", "GA", "TX", "KY", "MS")
_ZIPS = ("24128", "57834", "13354", "15734", "78668", "76232", "62878", "99999")
_PEOPLE: dict[str, dict[str, tuple[str, Maker]]] = {
    "customer": {
        "c_customer_id": ("string", name("CUSTOMER")),
        "c_current_cdemo_sk": ("bigint", ref("customer_demographics", 0.02)),
        "c_current_addr_sk": ("bigint", ref("customer_address")),
        "c_salutation": ("string", pick("Dr.", "Ms.", "Sir", None)),
        "c_first_name": ("string", pick("Ada", "Ben", "Cleo", "Dan", None)),
        "c_last_name": ("string", pick("Lee", "Moss", "Nash", "Orr", "Poe", None)),
        "c_preferred_cust_flag": ("string", pick("Y", "N", None)),
        "c_birth_month": ("int", number(1, 12)),
        "c_birth_year": ("int", number(1930, 1990)),
    },
    "customer_address": {
        "ca_county": ("string", pick(*_COUNTIES)),
        "ca_state": ("string", pick(*_STATES)),
        "ca_zip": ("string", pick(*_ZIPS)),
        "ca_country": ("string", pick("United States", None)),
        "ca_gmt_offset": ("decimal(5,2)", pick(-5.0, -6.0)),
    },
    "customer_demographics": {
        "cd_gender": ("string", pick("M", "F")),
        "cd_marital_status": ("string", pick("M", "S")),
        "cd_education_status": ("string", pick("College", "Unknown")),
        "cd_purchase_estimate": ("int", pick(500, 1000)),
        "cd_credit_rating": ("string", pick("Good", "Low Risk")),
        "cd_dep_count": ("int", number(0, 6)),
    },
    "household_demographics": {
        "hd_buy_potential": ("string", pick(">10000", "Unknown", "0-500")),
        "hd_dep_count": ("int", number(0, 9)),
        "hd_vehicle_count": ("int", number(-1, 4)),
    },
}
_DAY: dict[str, tuple[str, Maker]] = {
    "d_date": ("date", lambda draw, keys: keys[0] - 1 + (_FIRST - dt.date(1970, 1, 1)).days),
    "d_month_seq": ("int", calendar(lambda day: (day.year - 1900) * 12 + day.month - 1)),
    "d_week_seq": ("int", calendar(lambda day: (day - _FIRST).days // 7 + 5162)),
    "d_year": ("int", calendar(lambda day: day.year)),
    "d_moy": ("int", calendar(lambda day: day.month)),
    "d_dom": ("int", calendar(lambda day: day.day)),
    "d_qoy": ("int", calendar(lambda day: (day.month + 2) // 3)),
    "d_day_name": ("string", calendar(lambda day: day.strftime("%A"))),
    "d_quarter_name": ("string", calendar(lambda day: f"{day.year}Q{(day.month + 2) // 3}")),
}
_PLACES: dict[str, dict[str, tuple[str, Maker]]] = {
    "store": {
        "s_store_id": ("string", name("STORE", 2)),
        "s_store_name": ("string", pick("ought", "able", "ese", "anti")),
        "s_company_name": ("string", pick("Unknown")),
        "s_county": ("string", pick("Williamson County", "Ziebach County")),
        "s_state": ("string", pick("TN", "TN", "GA")),
        "s_zip": ("string", pick(*_ZIPS)),
    },
    "warehouse": {"w_warehouse_name": ("string", name("Warehouse "))},
    "promotion": {
        "p_channel_email": ("string", pick("Y", "N")),
        "p_channel_event": ("string", pick("Y", "N")),
    },
    "catalog_page": {"cp_catalog_page_id": ("string", name("PAGE", 2))},
    "web_site": {"web_site_id": ("string", name("SITE", 2))},
    "call_center": {"cc_county": ("string", pick("Williamson County", "Rush County"))},
    "reason": {"r_reason_desc": ("string", pick("too big", "too small", "wrong colour"))},
}
_FACTS: dict[str, dict[str, tuple[str, Maker]]] = {
    "store_sales": _sales(
        "ss",
        "customer_sk",
        cdemo_sk=ref("customer_demographics", 0.05),
        hdemo_sk=of_order("household_demographics", 3),
        addr_sk=of_order("customer_address", 4),
        store_sk=of_order("store", 5),
    )
    | {"ss_ext_discount_amt": (_MONEY, amount(0, 900))},
    "catalog_sales": _sales(
        "cs",
        "bill_customer_sk",
        ship_date_sk=sold_on(later=30),
        bill_cdemo_sk=ref("customer_demographics"),
        ship_addr_sk=of_order("customer_address", 4),
        ship_customer_sk=of_order("customer", 6),
        call_center_sk=of_order("call_center", 7),
        catalog_page_sk=ref("catalog_page"),
        warehouse_sk=ref("warehouse"),
    )
    | {"cs_ext_ship_cost": (_MONEY, amount(0, 900))},
    "web_sales": _sales(
        "ws",
        "bill_customer_sk",
        bill_addr_sk=of_order("customer_address", 4),
        ship_customer_sk=of_order("customer", 6),
        web_site_sk=ref("web_site"),
    ),
    "store_returns": _returns(
        "sr", "return_amt", customer_sk=of_order("customer", 2), store_sk=of_order("store", 5)
    ),
    "catalog_returns": _returns("cr", "return_amount", catalog_page_sk=ref("catalog_page")),
    "web_returns": _returns("wr", "return_amt"),
    "inventory": {"inv_quantity_on_hand": ("int", pick(0, 0, 3, 10, 40, 900, None))},
}
_KEYS = {
    "date_dim": "d_date_sk", "item": "i_item_sk", "customer": "c_customer_sk",
    "customer_address": "ca_address_sk", "customer_demographics": "cd_demo_sk",
    "household_demographics": "hd_demo_sk", "store": "s_store_sk",
    "warehouse": "w_warehouse_sk", "promotion": "p_promo_sk",
    "catalog_page": "cp_catalog_page_sk", "web_site": "web_site_sk",
    "call_center": "cc_call_center_sk", "reason": "r_reason_sk",
    "store_sales": "ss_item_sk ss_ticket_number", "catalog_sales": "cs_item_sk cs_order_number",
    "web_sales": "ws_item_sk ws_order_number", "store_returns": "sr_item_sk sr_ticket_number",
    "catalog_returns": "cr_item_sk cr_order_number",
    "web_returns": "wr_item_sk wr_order_number",
    "inventory": "inv_date_sk inv_item_sk inv_warehouse_sk",
}  # fmt: skip
_COLUMNS = {"date_dim": _DAY, "item": _ITEM, **_PEOPLE, **_PLACES, **_FACTS}


def _schema(table: str) -> TableSchema:
    columns = dict.fromkeys(_KEYS[table].split(), "bigint")
    columns |= {column: kind for column, (kind, _) in _COLUMNS[table].items()}
    return table_schema(", ".join(f"{c} {kind}" for c, kind in columns.items()), _KEYS[table])


SCHEMAS = {f"tpcds.{table}": _schema(table) for table in _COLUMNS}


@dataclass(frozen=True)
class Channel:
    """A table of sales, its returns, and how many orders it begins with."""

    sales: str
    returns: str
    orders: int


CHANNELS = (
    Channel("tpcds.store_sales", "tpcds.store_returns", 800),
    Channel("tpcds.catalog_sales", "tpcds.catalog_returns", 500),
    Channel("tpcds.web_sales", "tpcds.web_returns", 400),
)


class Tpcds(Generator):
    """The tables, and their changes.

    Args:
        scale: 1 is some 6000 sales.
        seed: of all that is random.
    """

    schemas = SCHEMAS
    kept: Mapping[str, Sequence[int]] = {"tpcds.reason": (1,)}

    def __init__(self, scale: float = 1, seed: int = 1) -> None:
        super().__init__(seed)
        for table, size in SIZES.items():
            key = SCHEMAS[f"tpcds.{table}"].key[0]
            self.tables[f"tpcds.{table}"] = self.make(
                f"tpcds.{table}", {key: np.arange(1, size + 1)}
            )
        for one in CHANNELS:
            orders = np.arange(1, int(one.orders * scale) + 1)
            self.tables[one.sales] = self.make(one.sales, self._sold(one, orders))
            some = self._returned(one, self.tables[one.sales].num_rows // 4)
            self.tables[one.returns] = self.make(one.returns, some)
        self.tables["tpcds.inventory"] = self.make(
            "tpcds.inventory", _stock(np.arange(366, 480, 8))
        )

    def columns(self, table: str, keys: Mapping[str, Numbers]) -> Columns:
        """See `Generator`."""
        makers = _COLUMNS[table.removeprefix("tpcds.")]
        values = list(keys.values())
        if table == "tpcds.date_dim":
            # Some days are entered wrong, as those a month later: updates correct them.
            values.append(values[0] + 31 * self.draw.chance(0.1, len(values[0])))
        return {column: maker(self.draw, values) for column, (_, maker) in makers.items()}

    def changed(self, table: str, changes: int) -> int:
        """See `Generator`."""
        if table.removeprefix("tpcds.") in _PLACES:
            return 1
        return changes if table.endswith("_sales") else max(1, changes // 6)

    def new_keys(self, table: str, count: int) -> Columns:
        """See `Generator`. Days and numbers that were deleted come back."""
        for one in CHANNELS:
            if table == one.sales:
                last = pc.max(self.tables[table][SCHEMAS[table].key[1]]).as_py()
                return self._sold(one, np.arange(last + 1, last + 2 + count // 3))
            if table == one.returns:
                return self._returned(one, count)
        if table == "tpcds.inventory":
            keys = _stock(np.arange(*_STOCKED))
            chosen = self.draw.positions(len(keys["inv_date_sk"]), count)
            return {column: values[chosen] for column, values in keys.items()}
        size = SIZES[table.removeprefix("tpcds.")]
        # Days beyond the calendar would be in no query.
        extra = 0 if table == "tpcds.date_dim" else 1 + size // 10
        return self.free(table, np.arange(1, size + extra + 1), count)

    def _sold(self, channel: Channel, orders: Numbers) -> Columns:
        """Keys: up to six different items per order."""
        counts = self.draw.integers(1, 6, len(orders))
        items = self.draw.integers(1, SIZES["item"], int(counts.sum()))
        keys = np.unique(np.stack([np.repeat(orders, counts), items], axis=1), axis=0)
        return dict(zip(SCHEMAS[channel.sales].key, (keys[:, 1], keys[:, 0]), strict=True))

    def _returned(self, channel: Channel, count: int) -> Columns:
        """Keys of sales."""
        sales = self.tables[channel.sales]
        rows = sales.take(self.draw.positions(sales.num_rows, count))
        names = zip(SCHEMAS[channel.returns].key, SCHEMAS[channel.sales].key, strict=True)
        return {ours: rows[theirs].to_numpy() for ours, theirs in names}


def _stock(days: Numbers) -> Columns:
    """Keys of the stock of half the items in all warehouses."""
    keys = np.meshgrid(days, np.arange(1, SIZES["item"] // 2 + 1), np.arange(1, 4), indexing="ij")
    names = SCHEMAS["tpcds.inventory"].key
    return {name_: values.ravel() for name_, values in zip(names, keys, strict=True)}
