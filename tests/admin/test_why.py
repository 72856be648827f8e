"""`mview why`: the rows behind a row, and the changes that last touched it, for every strategy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mview.admin.why import sources
from mview.admin.why.explaining import Why, why
from mview.cli import main
from mview.cli.explore.why import why_text
from mview.errors import UserError
from mview.schema import Column, TableSchema
from tests.epoch.epochs import Epochs

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("why")]


def column(name: str, kind: pa.DataType, nullable: bool = True) -> Column:
    return Column(name, kind, nullable=nullable)


BIGINT, TEXT = pa.int64(), pa.string()
SCHEMAS = {
    "shop.orders": TableSchema(
        (column("id", BIGINT, False), column("customer", BIGINT), column("amount", BIGINT)), ("id",)
    ),
    "shop.customers": TableSchema(
        (column("id", BIGINT, False), column("name", TEXT), column("region", TEXT)), ("id",)
    ),
}
#: A view per way in which rows are kept up: its query, and the row that is asked for.
VIEWS: dict[str, tuple[str, dict[str, str | None]]] = {
    "linear": ("SELECT id, amount * 2 AS double FROM shop.orders WHERE amount > 5", {"": "1"}),
    "joined": (
        "SELECT o.id, o.amount, c.name FROM shop.orders o JOIN shop.customers c "
        "ON o.customer = c.id",
        {"id": "2"},
    ),
    "sums": (
        "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM shop.orders o "
        "JOIN shop.customers c ON o.customer = c.id GROUP BY c.region",
        {"region": "north"},
    ),
    "extremes": (
        "SELECT customer, max(amount) AS most FROM shop.orders GROUP BY customer",
        {"": "10"},
    ),
    "outer_joined": (
        "SELECT c.id, c.name, o.amount FROM shop.customers c LEFT JOIN shop.orders o "
        "ON o.customer = c.id AND o.amount > 100",
        {"id": "12"},
    ),
    "ranked": (
        "SELECT id, customer, row_number() OVER (PARTITION BY customer ORDER BY amount, id) AS r "
        "FROM shop.orders",
        {"id": "4"},
    ),
    "computed": (
        "SELECT upper(region) AS shout, count(*) AS n FROM shop.customers GROUP BY upper(region)",
        {"shout": "NORTH"},
    ),
    "first": ("SELECT id, amount FROM shop.orders ORDER BY amount DESC, id LIMIT 2", {"id": "4"}),
    "plain": ("SELECT region FROM shop.customers", {"region": "south"}),
    "upon": ("SELECT region, total FROM sums WHERE total > 3", {"region": "north"}),
    "missing": (
        "SELECT id, name FROM shop.customers c WHERE NOT EXISTS "
        "(SELECT 1 FROM shop.orders o WHERE o.customer = c.id)",
        {"id": "12"},
    ),
    "both": (
        "SELECT id, 'order' AS kind FROM shop.orders UNION ALL "
        "SELECT id, 'customer' AS kind FROM shop.customers",
        {"id": "12"},
    ),
    "timed": (
        "SELECT id, amount FROM shop.orders WHERE now() > TIMESTAMP '2020-01-01 00:00:00'",
        {"id": "2"},
    ),
    # The plan has no tree for it: tables are looked at as a whole.
    "untraced": (
        "SELECT o.id, c.name FROM shop.orders o LEFT JOIN shop.customers c "
        "ON o.customer = c.id AND c.id IN (SELECT max(customer) FROM shop.orders)",
        {"id": "3"},
    ),
    "all_of_it": ("SELECT sum(amount) AS total FROM shop.orders", {"total": "85"}),
}


#: Groups of which not all rows count.
FILTERED = {
    "filtered": "SELECT customer, sum(amount) AS total FROM shop.orders "
    "WHERE amount > 0 GROUP BY customer",
    "filtered_join": "SELECT o.customer, count(*) AS n FROM shop.orders o JOIN shop.customers c "
    "ON o.customer = c.id AND o.amount > 0 WHERE o.amount <> 1 AND c.region = 'north' "
    "GROUP BY o.customer",
    "filtered_twice": "SELECT customer, sum(amount) AS total FROM "
    "(SELECT customer, amount FROM shop.orders WHERE amount > 5 UNION ALL "
    "SELECT customer, amount FROM shop.orders WHERE amount < -1) GROUP BY customer",
}


def order(number: int, customer: int | None, amount: int | None) -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": amount}


def customer(number: int, name: str, region: str | None) -> dict[str, Any]:
    return {"id": number, "name": name, "region": region}


CUSTOMERS = [
    customer(10, "Ann", "north"),
    customer(11, "Bob", "north"),
    customer(12, "Eve", "south"),
]
ORDERS = [order(1, 10, 10), order(2, 10, 20), order(3, 11, 5), order(4, 11, 50), order(5, None, 0)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Epochs:
    queries = {name: sql for name, (sql, _) in VIEWS.items()}
    queries |= FILTERED
    queries["hashed"] = "SELECT id, xxhash64(id) AS h FROM shop.orders"
    world = Epochs(tmp_path_factory.mktemp("why"), spark, SCHEMAS, queries)
    world.seed()
    with world.opened():
        world.epoch(
            *(("customers", "insert", None, row) for row in CUSTOMERS),
            *(("orders", "insert", None, row) for row in ORDERS),
        )
        assert not world.build()
    return world


@pytest.fixture
def world(loaded: Epochs, tmp_path: Path) -> Iterator[Epochs]:
    with loaded.copy(tmp_path / "world").opened() as world:
        yield world


def gives(view: str, told: Why) -> list[dict[str, Any]]:
    """What a query gives of the rows that are told, in another engine than the one that told."""
    with duckdb.connect() as connection:
        connection.execute("create schema shop")
        for rows in told.behind:
            # Without a row there is no type to be told: the table's.
            table = rows.table
            fields = (
                SCHEMAS[table].arrow
                if table in SCHEMAS
                else pa.schema([("region", TEXT), ("n", BIGINT), ("total", BIGINT)])
            )
            given = pa.Table.from_pylist([dict(row) for row in rows.rows], fields)
            connection.register("given", given)
            connection.execute(f"create table {table} as select * from given")
        sql = sqlglot.transpile(VIEWS[view][0], read="spark", write="duckdb")[0]
        return connection.sql(sql).to_arrow_table().to_pylist()


@pytest.mark.parametrize("view", VIEWS)
def test_the_rows_behind_a_row_give_it_alone(world: Epochs, view: str) -> None:
    told = why(world.config, view, VIEWS[view][1], 20)
    assert told.row is not None
    assert not told.unknown
    assert told.complete
    assert told.row in gives(view, told), told
    # None of them is too much: without it the query does not give the row.
    for at, rows in enumerate(told.behind):
        for number in range(len(rows.rows)):
            less = list(told.behind)
            left = (*rows.rows[:number], *rows.rows[number + 1 :])
            less[at] = type(rows)(rows.table, left, len(left), rows.looked)
            fewer = type(told)(**{**vars(told), "behind": tuple(less)})
            assert told.row not in gives(view, fewer), (view, rows.table, number)


def behind(told: Why) -> dict[str, list[Any]]:
    return {rows.table: [row["id"] for row in rows.rows] for rows in told.behind if rows.rows}


def test_which_rows_these_are(world: Epochs) -> None:
    def of(view: str) -> dict[str, list[Any]]:
        return behind(why(world.config, view, VIEWS[view][1], 20))

    assert of("linear") == {"shop.orders": [1]}
    assert of("joined") == {"shop.orders": [2], "shop.customers": [10]}
    sums = of("sums")
    assert sorted(sums["shop.orders"]) == [1, 2, 3, 4]
    assert sorted(sums["shop.customers"]) == [10, 11]
    assert of("extremes") == {"shop.orders": [2]}
    assert of("outer_joined") == {"shop.customers": [12]}
    (upon,) = why(world.config, "upon", {"region": "north"}, 20).behind
    assert (upon.table, upon.count) == ("sums", 1)


def test_what_only_spark_can_run_is_told(world: Epochs) -> None:
    told = why(world.config, "hashed", {"id": "2"}, 20)
    assert told.row is not None
    assert "only Spark could run the query" in told.unknown
    assert told.behind == ()
    assert "made of  not known" in why_text(told)


def test_few_rows_of_many_are_shown_and_all_are_counted(world: Epochs) -> None:
    told = why(world.config, "sums", {"region": "north"}, 1)
    assert [(len(rows.rows), rows.count) for rows in told.behind] == [(1, 4), (1, 2)]
    assert "and 3 more" in why_text(told)


def change(world: Epochs, view: str, key: Mapping[str, str | None]) -> Any:
    touched = why(world.config, view, key, 20).touched
    assert touched is not None
    assert not touched.unknown
    return touched


def test_rows_that_a_filter_drops_are_never_listed(
    world: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a group so large that there is no time to try each of its rows."""
    monkeypatch.setattr(sources, "SECONDS", 0.0)
    world.epoch(
        *(("orders", "insert", None, order(n, 10, n % 5 - 2)) for n in range(100, 200)),
    )
    for view, amounts in (
        ("filtered", {1, 2, 10, 20}),
        ("filtered_join", {2, 10, 20}),
        ("filtered_twice", {-2, 10, 20}),
    ):
        told = why(world.config, view, {"customer": "10"}, 1000)
        assert not told.complete, view
        (orders,) = (rows for rows in told.behind if rows.table == "shop.orders")
        assert {row["amount"] for row in orders.rows} == amounts, view
        assert orders.count < orders.looked
        assert "there was no time to try each of these" in why_text(told)


def test_the_query_is_made_once_however_often_it_is_asked(
    world: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make its text takes longer than to run it over some thousand rows."""
    world.epoch(*(("orders", "insert", None, order(n, 10, n)) for n in range(100, 200)))
    made = []
    # How long it may try is not what is asked here.
    monkeypatch.setattr(sources, "SECONDS", 600.0)
    bind = sources.bind_tables
    monkeypatch.setattr(sources, "bind_tables", lambda *of: made.append(of) or bind(*of))
    told = why(world.config, "filtered", {"customer": "10"}, 1000)
    assert told.complete
    assert [rows.count for rows in told.behind] == [102]
    assert len(made) == 1


def test_the_changes_that_touched_a_row(world: Epochs) -> None:
    world.epoch(
        ("orders", "update", ORDERS[1], order(2, 10, 21)),
        ("customers", "update", CUSTOMERS[2], customer(12, "Eva", "south")),
        ("orders", "insert", None, order(6, 12, 7)),
    )
    epoch = world.engine.manifest.epoch
    world.epoch(("orders", "insert", None, order(7, None, 1)))  # of nobody
    for view, key in (("sums", "north"), ("upon", "north")):
        touched = change(world, view, {"region": key})
        assert (touched.epoch, touched.after) == (epoch, epoch - 1), view
        assert (touched.before["total"], touched.row["total"]) == (85, 86)
    (by,) = change(world, "sums", {"region": "north"}).changes
    assert (by.table, by.before["amount"], by.after["amount"]) == ("shop.orders", 20, 21)
    (upon,) = change(world, "upon", {"region": "north"}).changes
    assert (upon.table, upon.before["total"], upon.after["total"]) == ("sums", 85, 86)
    south = change(world, "sums", {"region": "south"})
    assert south.before is None
    ((table, before, after),) = [(c.table, c.before, c.after["id"]) for c in south.changes]
    assert (table, before, after) == ("shop.orders", None, 6), "the customer's name is not in it"
    gone = change(world, "missing", {"id": "12"})
    assert (gone.before["name"], gone.row) == ("Eve", None)
    assert [c.after["id"] for c in gone.changes] == [6]


def test_a_row_that_moved_to_another_group(world: Epochs) -> None:
    world.epoch(("customers", "update", CUSTOMERS[1], customer(11, "Bob", "south")))
    north, south = (change(world, "sums", {"region": at}) for at in ("north", "south"))
    assert (north.before["n"], north.row["n"], south.row["n"]) == (4, 2, 2)
    for touched in (north, south):
        (by,) = touched.changes
        assert (by.table, by.before["region"], by.after["region"]) == (
            "shop.customers",
            "north",
            "south",
        )


def test_a_row_that_was_not_touched_since_the_build(world: Epochs) -> None:
    world.epoch(("orders", "insert", None, order(7, 12, 1)))
    told = why(world.config, "linear", {"id": "1"}, 20)
    assert told.touched is None
    assert told.older.startswith("the view was built at epoch")


def test_what_is_not_kept_is_told(world: Epochs) -> None:
    world.epoch(("orders", "update", ORDERS[0], order(1, 10, 11)))
    world.epoch(("orders", "update", ORDERS[1], order(2, 10, 21)))
    newest = world.engine.manifest.epoch
    manifests = sorted((world.config.store / "manifest").iterdir())
    for file in manifests[:-1]:
        file.unlink()
    told = why(world.config, "sums", {"region": "north"}, 20)
    assert (told.touched, told.since) == (None, newest)
    assert told.older == "older epochs are not kept"
    assert f"so since epoch {newest}" in why_text(told)


def test_a_gap_between_kept_epochs_is_told(world: Epochs) -> None:
    world.epoch(("orders", "update", ORDERS[0], order(1, 10, 11)))
    world.epoch(("orders", "update", ORDERS[1], order(2, 10, 21)))
    manifests = sorted((world.config.store / "manifest").iterdir())
    manifests[-2].unlink()
    touched = change(world, "sums", {"region": "north"})
    assert touched.epoch - touched.after == 2
    assert sorted(c.after["id"] for c in touched.changes) == [1, 2]
    text = why_text(why(world.config, "sums", {"region": "north"}, 20))
    assert "those between are not kept" in text
    assert "amount=10 -> 11" in text


def test_a_null_in_the_key_and_a_row_that_is_there_twice(world: Epochs) -> None:
    told = why(world.config, "extremes", {"customer": None}, 20)
    assert behind(told) == {"shop.orders": [5]}
    told = why(world.config, "plain", {"region": "north"}, 20)
    assert told.times == 2
    assert "2 times" in why_text(told)


def test_what_cannot_be_asked(world: Epochs) -> None:
    for view, key, said in (
        ("sum", {"": "1"}, "there is no view 'sum'"),
        ("joined", {"nam": "Ann"}, "the view has no column 'nam'"),
        ("joined", {"id": "two"}, "'two' is no value of column id"),
        ("joined", {"name": "Ann"}, "2 rows of view joined have these values"),
        ("plain", {"": "north"}, "it has no key"),
    ):
        with pytest.raises(UserError) as error:
            why(world.config, view, key, 20)
        assert said in error.value.render(), view


def test_the_command(world: Epochs, tmp_path: Path) -> None:
    def mview(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["why", *arguments, "-c", str(world.config.path)])

    result = mview("sums", "--key", "region=north")
    assert result.exit_code == 0, result.output
    assert "row      region=north, n=4, total=85\n" in result.stdout
    assert "made of  4 rows of shop.orders, 2 rows of shop.customers" in result.stdout
    told = json.loads(mview("linear", "--key", "1", "--json").stdout)
    assert told["row"] == {"id": 1, "double": 20}
    assert told["behind"][0]["rows"] == [{"id": 1, "customer": 10, "amount": 10}]
    none = mview("linear", "--key", "99")
    assert none.exit_code == 1
    assert "there is no such row" in none.stdout
    assert mview("linear", "--key", "1", "--key", "2").exit_code == 2
    of_null = mview("extremes", "--null", "customer")
    assert of_null.exit_code == 0, of_null.output
    assert "made of  1 row of shop.orders" in of_null.stdout
    untold = mview("extremes")
    assert untold.exit_code == 2
    assert "--key [COLUMN=]VALUE, or --null COLUMN" in untold.stderr
