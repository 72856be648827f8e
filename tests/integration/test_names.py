"""Names and keys of all kinds, from a database through its connector and Kafka into views."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from mview.admin.content import StoredView, published
from mview.admin.verify import verify
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.shop import Shop
from tests.relations import rel
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
]

#: Tables that differ in case only, words of SQL, letters that Kafka has not, two of one topic
#: (`a_b`), and the longest names. PostgreSQL counts bytes.
TABLES = ["T", "t", "select", "größe", "表", "a b", "a`b"]
LONGEST = {"mariadb": 64, "postgresql": 63}
#: Beyond the first 65,536 letters; MariaDB has them in values alone.
MORE = {"mariadb": [], "postgresql": ["🚲"]}
ROWS = 12

#: Texts that a collation takes for equal are two keys to us.
TEXTS = ["a", "b", "e", "ss", "🚲", "naïve 🚲"]
TWINS = {"a": "A", "b": "B", "e": "É", "ss": "SS", "🚲": "🚗"}
#: Where the texts above are equal, and where letters are ordered otherwise than their bytes.
COLLATIONS = {
    "mariadb": {"equal": "utf8mb4_general_ci", "ordered": "utf8mb4_unicode_ci"},
    "postgresql": {"equal": '"equal"', "ordered": '"en-x-icu"'},
}


class World:
    """The tables in one database."""

    def __init__(self, shop: Shop) -> None:
        self.shop, kind = shop, shop.kind
        self.longest = "x" * LONGEST[kind]
        self.tables = [*TABLES, *MORE[kind], self.longest]
        self.columns = ["größe", "select", "a b", "c`d", "Größe 2", self.longest]
        if kind == "postgresql":
            shop.execute(
                "CREATE COLLATION equal"
                " (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
            )
        for number, table in enumerate(self.tables):
            kinds = ["INT PRIMARY KEY", "VARCHAR(40)", "INT", "TEXT", "INT", "INT"]
            columns = zip(map(self.quoted, self.columns), kinds, strict=True)
            listed = ", ".join(f"{name} {kind}" for name, kind in columns)
            shop.execute(f"CREATE TABLE {self.quoted(table)} ({listed})")
            for key in range(ROWS):
                self.insert(table, key, number)
        for table, collation in COLLATIONS[kind].items():
            text = f"k VARCHAR(40) COLLATE {collation} NOT NULL"
            shop.execute(f"CREATE TABLE {table} ({text}, v INT, PRIMARY KEY (k))")
            shop.execute(
                f"CREATE TABLE {table}_2 (n INT NOT NULL, {text}, v INT, PRIMARY KEY (n, k))"
            )
            for n, text in enumerate(TEXTS):
                shop.execute(f"INSERT INTO {table} VALUES ('{text}', {n})")
                for m in range(3):
                    shop.execute(f"INSERT INTO {table}_2 VALUES ({m}, '{text}', {n})")

    def quoted(self, name: str) -> str:
        return f'"{name}"' if self.shop.kind == "postgresql" else f"`{name.replace('`', '``')}`"

    def insert(self, table: str, key: int, number: int) -> None:
        values = (key, f"東京 🚲 {key}", number, "it's `x`", key % 3, number)
        marks = ", ".join(["%s"] * len(values))
        with self.shop.connect() as connection:
            cursor = connection.cursor()
            cursor.execute(f"INSERT INTO {self.quoted(table)} VALUES ({marks})", values)
            connection.commit()

    def change(self, turn: int) -> None:
        """An insert, an update, a delete and a change of the key in each table."""
        key, select = self.quoted("größe"), self.quoted("select")
        for number, table in enumerate(self.tables):
            name = self.quoted(table)
            self.insert(table, 100 + turn, number)
            self.shop.execute(f"UPDATE {name} SET {select} = '🚲{turn}' WHERE {key} = {turn}")
            self.shop.execute(f"DELETE FROM {name} WHERE {key} = {turn + 3}")
            self.shop.execute(f"UPDATE {name} SET {key} = {200 + turn} WHERE {key} = {turn + 6}")

    def twins(self, texts: list[str]) -> None:
        """Keys become others, which the database takes for the same."""
        for table in COLLATIONS[self.shop.kind]:
            for text in texts:
                twin = TWINS[text]
                self.shop.execute(f"UPDATE {table} SET k = '{twin}' WHERE k = '{text}'")
                self.shop.execute(f"DELETE FROM {table}_2 WHERE k = '{text}' AND n = 1")
                self.shop.execute(f"INSERT INTO {table}_2 VALUES (1, '{twin}', -1)")

    def truth(self, view: str) -> Counter[tuple[Any, ...]]:
        return Counter(map(tuple, self.shop.execute(f"SELECT * FROM {self.quoted(view)}")))

    def topics(self) -> set[str]:
        """Every letter that Kafka has not is `_` to Debezium, which counts as Java does."""
        halves = {name: re.sub("[🚲]", "__", name) for name in self.all_tables()}
        letters = {re.sub(r"[^a-zA-Z0-9._-]", "_", name) for name in halves.values()}
        return {self.shop.topic(name) for name in letters}

    def all_tables(self) -> list[str]:
        keyed = COLLATIONS[self.shop.kind]
        return [*self.tables, *keyed, *(f"{table}_2" for table in keyed)]

    def views(self) -> dict[str, str]:
        """Each table as it is, sums over some, and a join of the two that differ in case only."""

        def name(text: str) -> str:
            return f"`{text.replace('`', '``')}`"

        views = {
            f"v{n}": f"SELECT * FROM shop.{name(table)}"
            for n, table in enumerate(self.all_tables())
        }
        key, long = name("größe"), name(self.longest)
        views["sums"] = (
            f"SELECT `Größe 2`, sum({long}) AS {long}, count(`select`) AS `表`"
            f" FROM shop.`größe` GROUP BY `Größe 2`"
        )
        views["both"] = (
            f"SELECT one.{key}, one.`a b` AS `select`, other.`a b`"
            f" FROM shop.T one JOIN shop.t other ON one.{key} = other.{key}"
        )
        return views


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_from_the_database_to_the_views(spark, request, kind, kafka, debezium, tmp_path):
    server = request.getfixturevalue(kind)
    with server.new_database() as database:
        world = World(shop := Shop(kind, server, database, kafka))
        # The filter of tables is a regular expression, whatever it is.
        settings = server.connector(database, ".*") | {"heartbeat.interval.ms": "200"}
        with debezium.connector(settings):
            world.change(0)
            world.twins(["a"])
            for topic in world.topics():
                debezium.wait_for(topic, 1)
            engine = {"chunk_rows": 4, "chunks_per_epoch": 20}
            config, views = make_project(tmp_path, {"shop": shop}, world.views(), engine=engine)

            def wrong() -> list[str]:
                """The views that are not yet what their tables are."""
                found = []
                for n, table in enumerate(world.all_tables()):
                    rows = StoredView(config, f"v{n}").arrow().to_pylist()
                    if Counter(tuple(row.values()) for row in rows) != world.truth(table):
                        found.append(table)
                return found

            with Running(config, views) as run:
                run.until_reading()
                world.change(1)
                world.twins(["b", "🚲"])
                run.until_live()
                world.change(2)
                world.twins(["e", "ss"])
                # Of several tables in one topic, too, and of keys that are equal to a database.
                wait_until(lambda: not wrong(), "all changes", PATIENCE, run.check)
        assert {result.view: result.equal for result in verify(config, views)} == dict.fromkeys(
            world.views(), True
        )
        both = StoredView(config, "both").arrow()
        assert both.column_names == ["größe", "select", "a b"]
        assert both.num_rows == len(world.truth("T"))
        assert {row["select"] for row in both.to_pylist()} == {0}
        assert {row["a b"] for row in both.to_pylist()} == {1}
        # Nothing of a table whose keys the database orders otherwise is lost or there twice.
        for table in COLLATIONS[kind]:
            assert published(config).tables[rel(f"shop.{table}")].rows == len(TEXTS)
