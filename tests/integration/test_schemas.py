"""Two tables of one name in two schemas of one connection, from the first file to a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import mview
from mview.admin.against_source import verify_tables
from mview.cli.app import main
from mview.config import Config
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.shop import Shop
from tests.relations import rel
from tests.seeds import of_today
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

VIEW = """
CREATE MATERIALIZED VIEW both_orders WITH (key='id') AS
SELECT orders.id, shop.orders.x AS mine, s.x AS theirs
FROM shop.orders LEFT JOIN shop.{sales}.orders s ON s.id = shop.orders.id
"""


class Schemas(Shop):
    """The same table in the connection's schema and in another one, with other rows.

    By the server's own log, or by Debezium into a topic per table.
    """

    @property
    def sales(self) -> str:
        return f"sales_{self.database}"

    def create(self) -> None:
        self.execute(f"CREATE SCHEMA {self.sales}")
        for table, sign in (("orders", "+"), (f"{self.sales}.orders", "-")):
            self.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, x INT)")
            for number in range(40):
                self.execute(f"INSERT INTO {table} VALUES ({number}, {sign}{number})")

    def changes(self, **more: Any) -> dict[str, Any]:
        if self.kafka is None:
            return {"source": self.kind, "T": "2s", **more}
        return super().changes(topic=f"{self.database}.{{schema}}.{{table}}", **more)

    def change(self, at: int) -> None:
        """Each table otherwise, in one transaction, and one alone emptied and filled."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"UPDATE orders SET x = {at} WHERE id = {at}")
            cursor.execute(f"UPDATE {self.sales}.orders SET x = -{at} * 100 WHERE id = {at}")
            cursor.execute(f"DELETE FROM {self.sales}.orders WHERE id = {at} + 1")
            cursor.execute(f"INSERT INTO orders VALUES ({at} + 1000, {at})")
            connection.commit()

    def expected(self) -> list[tuple[Any, ...]]:
        return self.execute(
            f"SELECT o.id, o.x, s.x FROM orders o LEFT JOIN {self.sales}.orders s "
            "ON s.id = o.id ORDER BY o.id"
        )


#: Databases, and how their changes come: two of them a day.
WAYS = [
    ("postgresql", "own log"),
    ("postgresql", "debezium"),
    ("mariadb", "debezium"),
    ("mariadb", "own log"),
]


@pytest.fixture(params=of_today(WAYS, 2), ids=" ".join)
def shop(request: pytest.FixtureRequest) -> Iterator[Schemas]:
    kind, way = request.param
    server = request.getfixturevalue(kind)
    with server.new_database() as database:
        if way == "own log":
            shop = Schemas(kind, server, database, None)  # type: ignore[arg-type]
            shop.create()
            yield shop
        else:
            kafka, debezium = map(request.getfixturevalue, ("kafka", "debezium"))
            shop = Schemas(kind, server, database, kafka)
            shop.create()
            settings = server.connector(database, "orders")
            both = f"{shop.schema}.orders,{shop.sales}.orders"
            settings |= {"table.include.list": both, "heartbeat.interval.ms": "200"}
            if kind == "mariadb":
                settings["database.include.list"] = f"{database},{shop.sales}"
            with debezium.connector(settings):
                shop.change(0)
                for schema in (shop.schema, shop.sales):
                    debezium.wait_for(f"{database}.{schema}.orders", 1)
                yield shop
        if kind == "mariadb":
            shop.execute(f"DROP SCHEMA {shop.sales}")


def shown(config: Config) -> list[tuple[Any, ...]]:
    rows = mview.connect(config.path)["both_orders"].arrow().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def asked(config: Config, *words: str) -> Result:
    views = str(Path(config.path).parent / "sql")
    return CliRunner().invoke(main, [*words, views, "--config", str(config.path)])


@pytest.mark.long
def test_they_are_loaded_followed_and_compared_apart(
    spark: Any, shop: Schemas, tmp_path: Path
) -> None:
    view = VIEW.format(sales=shop.sales)
    config, views = make_project(
        tmp_path, {"shop": shop}, {"both_orders": view}, engine={"chunk_rows": 10}
    )

    def is_right() -> bool:
        return shown(config) == shop.expected()

    with Running(config, views) as run:
        run.until_live()
        for at in (3, 7, 11):
            shop.change(at)
        wait_until(is_right, "the changes", PATIENCE, run.check)
        shop.execute(f"TRUNCATE {shop.sales}.orders")
        shop.execute(f"INSERT INTO {shop.sales}.orders VALUES (5, 55)")
        wait_until(is_right, "the table that was emptied", PATIENCE, run.check)
        # Past the log, into one of them.
        tables = [rel("shop.orders"), rel(f"shop.{shop.sales}.orders")]
        compared = verify_tables(config, tables)
        assert [(one.table, one.equal) for one in compared] == [(str(t), True) for t in tables]
    assert len(shown(config)) == 43 + (shop.kafka is not None)
    told = asked(config, "lineage")
    assert f"shop.{shop.sales}.orders.x" in told.output
    assert "shop.orders.x" in told.output
