"""Where the epochs of a view and of its parts run, as told by its plan."""

from __future__ import annotations

import pytest

from mview.execute.place import places
from mview.ivm.compile import compile_view
from mview.plan.definition import parse_view
from tests.ivm.world import table_schema
from tests.relations import keyed

SCHEMAS = {
    "shop.orders": table_schema("id bigint, cust bigint, day date, total decimal(12,2)", "id"),
    "crm.customers": table_schema("id bigint, name string, nation bigint", "id"),
}
INSIDE, WHOLE = "runs in process", "runs on Spark: all rows are computed again"
SMALL = "all rows are computed again: in process while tables are small, else on Spark"
SOUNDEX = "runs on Spark: soundex cannot run in process (operator)"


@pytest.mark.parametrize(
    ("sql", "lines"),
    [
        ("SELECT id, total * 2 AS twice FROM shop.orders", [INSIDE]),
        ("SELECT cust, sum(total) * 2 AS t FROM shop.orders GROUP BY cust", [INSIDE]),
        ("SELECT cust, collect_list(total) AS totals FROM shop.orders GROUP BY cust", [INSIDE]),
        ("SELECT id, explode(split(name, ' ')) AS word FROM crm.customers", [INSIDE]),
        ("SELECT id, soundex(name) AS s FROM crm.customers", [SOUNDEX]),
        ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM shop.orders", [SMALL]),
        (
            "SELECT soundex(name) AS s, row_number() OVER (ORDER BY id) AS n FROM crm.customers",
            [WHOLE],
        ),
        # The part's sum is a decimal, as its own translation says.
        (
            "SELECT cust, sum(total) AS t FROM shop.orders GROUP BY cust "
            "HAVING sum(total) > (SELECT sum(total) * 0.1 FROM shop.orders)",
            [INSIDE, INSIDE],
        ),
        ("SELECT id, total FROM shop.orders ORDER BY total DESC, id LIMIT 3", [INSIDE, INSIDE]),
    ],
)
def test_places(sql: str, lines: list[str]) -> None:
    assert list(places(compile_view(parse_view(sql, "v"), keyed(SCHEMAS))).values()) == lines
