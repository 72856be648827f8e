"""Which views can be light, what they show, and why others cannot."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mview.errors import UserError
from mview.follow.light.view import open_light
from mview.plan.definition import parse_view
from mview.schema import Column, TableSchema, parse_type
from tests.relations import rel

ORDERS = TableSchema(
    tuple(
        Column(name, parse_type(kind), nullable=name not in ("shop", "id"))
        for name, kind in (
            ("shop", "int"), ("id", "bigint"), ("price", "decimal(10,2)"), ("note", "string"),
            ("tags", "array<string>"),
        )
    ),
    ("shop", "id"),
)  # fmt: skip
ROWS = pa.table(
    {
        "shop": pa.array([1, 1, 2], pa.int32()),
        "id": [1, 2, 1],
        "price": pa.array([1, None, 3], pa.decimal128(10, 2)),
        "note": ["a", None, "B"],
        "tags": [["x"], None, []],
    },
    ORDERS.arrow,
)


def light(sql: str, more: str = ""):
    text = f"CREATE MATERIALIZED VIEW v WITH (mode = 'light', sinks = 's'{more}) AS {sql}"
    return open_light(parse_view(text, "v"), {rel("db.orders"): ORDERS, rel("db.more"): ORDERS})


def test_all_columns_as_they_are() -> None:
    view = light("SELECT * FROM db.orders")
    assert view.schema.key == ("shop", "id")
    assert view.shown(ROWS).to_pylist() == ROWS.to_pylist()
    assert view.hidden(ROWS, view.shown(ROWS)).num_rows == 0


def test_filters_and_projections_with_sparks_types() -> None:
    view = light(
        "SELECT o.number, coalesce(note, '-') AS remark, price * 2 AS `Twice`, o.shop AS place"
        " FROM (SELECT id AS number, shop, note, price FROM db.orders WHERE shop < 2) o"
        " WHERE coalesce(price, 9) > 1"
    )
    assert view.schema.key == ("place", "number")
    assert view.schema.column("Twice").type == parse_type("decimal(12,2)")
    shown = view.shown(ROWS)
    assert shown.to_pylist() == [{"number": 2, "remark": "-", "Twice": None, "place": 1}]
    assert view.hidden(ROWS, shown).to_pylist() == [
        {"place": 1, "number": 1}, {"place": 2, "number": 1}
    ]  # fmt: skip
    assert view.hidden(ROWS, view.shown(ROWS.slice(0, 0))).num_rows == 3


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT shop, count(*) AS n FROM db.orders GROUP BY shop", "table's: Aggregate"),
        ("SELECT DISTINCT shop, id FROM db.orders", "table's: Distinct"),
        ("SELECT a.shop, a.id FROM db.orders a JOIN db.more b USING (id)", "table's: "),
        ("SELECT shop, id FROM db.orders UNION ALL SELECT shop, id FROM db.more", "table's: Union"),
        ("SELECT id, note FROM db.orders", "does not show shop"),
        ("SELECT shop, id + 0 AS id FROM db.orders", "does not show id"),
        ("SELECT shop, id, now() AS t FROM db.orders", "asks for the time"),
        ("SELECT shop, id, hash(note) AS n FROM db.orders", "cannot run in process"),
        ("SELECT shop, id, explode(tags) AS tag FROM db.orders", "table's: "),
        ("SELECT shop, id, 1.50 / id AS n FROM db.orders", "needs Spark for some values"),
    ],
)  # fmt: skip
def test_what_cannot_be_light_says_why(sql: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        light(sql)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (", key = 'shop'", "its key is that of its table: shop, id"),
        (", freshness = '1 s'", "has no property 'freshness'"),
        (", mode = 'heavy'", "stands twice"),
    ],
)
def test_what_a_light_view_may_say(more: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        light("SELECT * FROM db.orders", more)


def test_a_mode_is_one_of_two_and_needs_a_sink() -> None:
    for said, told in (
        ("mode = 'lite', sinks = 's'", "unknown mode 'lite'"),
        ("mode = 'light'", "needs a sink"),
    ):
        with pytest.raises(UserError, match=told):
            parse_view(f"CREATE MATERIALIZED VIEW v WITH ({said}) AS SELECT 1 AS a", "v")


def test_a_query_that_fails_on_a_row_names_the_table() -> None:
    view = light("SELECT shop, id, 1 / (id - 1) AS x FROM db.orders")
    with pytest.raises(UserError, match=r"fails on the data of db\.orders"):
        view.shown(ROWS)
