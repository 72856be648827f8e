"""What a view is expected to read when tables change."""

from __future__ import annotations

import pytest

from mview.ivm.compile import compile_view
from mview.ivm.reads import Reads, foreseen_reads
from mview.plan.clocks import DAY
from mview.plan.definition import parse_view
from tests.ivm.world import table_schema
from tests.relations import keyed, rel

SCHEMAS = {
    "shop.orders": table_schema("id bigint, cust bigint, day date, total decimal(12,2)", "id"),
    "shop.lines": table_schema("order_id bigint, n int, price decimal(12,2)", "order_id n"),
    "shop.few": table_schema("order_id bigint, n int, price decimal(12,2)", "order_id n"),
}
ROWS = {"shop.orders": 1_000, "shop.lines": 4_000, "shop.few": 100, "v:1": 50}
JOIN = "select o.id, l.n, l.price from shop.orders o join shop.lines l on l.order_id = o.id"


@pytest.mark.parametrize(
    ("sql", "changed", "expected"),
    [
        ("select id from shop.orders where total > 3", {"shop.orders": 100}, Reads(0, 0)),
        # Four lines to an order; one order to a line.
        (JOIN, {"shop.orders": 100}, Reads(1, 400)),
        (JOIN, {"shop.lines": 100}, Reads(1, 100)),
        (JOIN, {"shop.orders": 100, "shop.lines": 100}, Reads(2, 500)),
        # One order to a line, however few lines those are.
        (JOIN.replace("shop.lines", "shop.few"), {"shop.few": 10}, Reads(1, 10)),
        # No more than there is.
        (JOIN, {"shop.orders": 5_000}, Reads(1, 4_000)),
        # A group of the state table per changed row, at most.
        (
            "select sum(total) as s, cust from shop.orders group by cust",
            {"shop.orders": 100},
            Reads(1, 100),
        ),
    ],
)
def test_reads_are_foreseen_from_the_sizes_of_tables(
    sql: str, changed: dict[str, int], expected: Reads
) -> None:
    plan = compile_view(parse_view(sql, "v"), keyed(SCHEMAS))
    assert foreseen_reads(plan, keyed(changed), keyed(ROWS)) == expected


def test_the_first_rows_are_kept() -> None:
    sql = "select id, total from shop.orders order by total, id limit 3"
    plan = compile_view(parse_view(sql, "v"), keyed(SCHEMAS))
    assert foreseen_reads(plan, {rel("v:1"): 900}, keyed(ROWS)) == Reads(1, 50)


def test_a_tick_reads_a_small_share() -> None:
    sql = f"{JOIN} where o.day > current_date - 7"
    plan = compile_view(parse_view(sql, "v"), keyed(SCHEMAS))
    # An order, and its four lines.
    assert foreseen_reads(plan, {DAY: 2}, keyed(ROWS)) == Reads(2, 1 + 4)
    sql = "select id, datediff(current_date, day) as age from shop.orders"
    plan = compile_view(parse_view(sql, "v"), keyed(SCHEMAS))
    assert foreseen_reads(plan, {DAY: 2}, keyed(ROWS)).rows >= 1_000


def test_a_whole_table_and_a_group_that_is_read_again() -> None:
    sql = "select id, rank() over (partition by cust order by day) as r from shop.orders"
    plan = compile_view(parse_view(sql, "v"), keyed(SCHEMAS))
    assert foreseen_reads(plan, {rel("shop.orders"): 20}, keyed(ROWS)) == Reads(1, 200)
    sql = "select a.id, b.id as other from shop.orders a join shop.orders b on a.total < b.total"
    plan = compile_view(parse_view(sql, "v"), keyed(SCHEMAS))
    assert foreseen_reads(plan, {rel("shop.orders"): 1}, keyed(ROWS)).rows == 1_000
