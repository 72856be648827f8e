"""Tables of which not all is read, or that have no primary key: a server, its own log, a view."""

from __future__ import annotations

import pytest
import yaml

import mview
from mview.config.file import load_config
from mview.errors import UserError
from mview.plan.definition import load_views
from mview.secrets import reveal
from tests.integration.running import PATIENCE, Running
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

#: No primary key; a type and a value that cannot be read, in columns that are left out.
TABLES = """
CREATE TABLE seen (a int NOT NULL, b text NOT NULL, x int, took interval, until date);
CREATE UNIQUE INDEX i ON seen (a, b);
ALTER TABLE seen REPLICA IDENTITY USING INDEX i;
INSERT INTO seen SELECT n, 'b' || n, n, '1 day', 'infinity' FROM generate_series(1, 50) n;
CREATE TABLE bare (a int NOT NULL, x int);
ALTER TABLE bare REPLICA IDENTITY FULL;
INSERT INTO bare SELECT n, n FROM generate_series(1, 50) n
"""
VIEWS = {
    "all_seen": "SELECT * FROM shop.seen",
    "sums": "SELECT s.a, sum(s.x + b.x) AS s FROM shop.seen s JOIN shop.bare b ON b.a = s.a "
    "GROUP BY s.a",
}


class Tables:
    """A database with the tables, and the files of a project."""

    def __init__(self, server, database, folder):
        self.server, self.database, self.folder = server, database, folder
        self.run(TABLES)
        settings = server.settings(database)
        secret = folder / "secret"
        secret.write_text(reveal(settings["password"], "tests"))
        connection = settings | {
            "password": f"${{file:{secret}}}",
            "tables": {"seen": {"exclude": ["took", "until"]}, "bare": {"key": ["a"]}},
        }
        body = {
            "store": "store",
            "connections": {"shop": connection},
            "changes": {"shop": {"source": "postgresql", "T": "1s"}},
            "engine": {"chunk_rows": 20},
        }
        (folder / "mview.yml").write_text(yaml.safe_dump(body))
        for name, sql in VIEWS.items():
            (folder / f"{name}.sql").write_text(sql)

    def run(self, sql):
        return self.server.execute(sql, self.database)

    @property
    def config(self):
        return load_config(self.folder / "mview.yml")

    @property
    def views(self):
        return load_views([self.folder / f"{name}.sql" for name in VIEWS])

    def is_equal(self):
        pipeline = mview.connect(self.folder / "mview.yml")
        return all(
            sorted(tuple(row.values()) for row in pipeline[view].arrow().to_pylist())
            == sorted(self.run(sql))
            for view, sql in (
                ("all_seen", "SELECT a, b, x FROM seen"),
                ("sums", VIEWS["sums"].replace("shop.", "")),
            )
        )


@pytest.fixture
def tables(postgresql, tmp_path):
    with postgresql.new_database() as database:
        yield Tables(postgresql, database, tmp_path)


def test_from_the_load_over_changes_of_keys_to_a_table_that_is_altered(spark, tables):
    with Running(tables.config, tables.views) as run:
        run.until_live()
        tables.run("UPDATE seen SET a = a + 100, took = '2 days' WHERE a <= 10")
        tables.run("UPDATE bare SET a = a + 100 WHERE a <= 10")
        tables.run("DELETE FROM seen WHERE a = 20; DELETE FROM bare WHERE a = 21")
        tables.run("INSERT INTO seen VALUES (7, 'again', 1, '1 year', '-infinity')")
        tables.run("UPDATE seen SET x = NULL WHERE a = 30; UPDATE bare SET x = 0 WHERE a = 31")
        tables.run("ALTER TABLE seen DROP COLUMN took")  # nobody reads it
        tables.run("INSERT INTO seen VALUES (8, 'altered', 2, 'infinity')")
        wait_until(tables.is_equal, "the views", PATIENCE, run.check)


def test_rows_of_one_declared_key_halt_the_load(spark, tables):
    tables.run("INSERT INTO bare VALUES (17, 99)")
    with Running(tables.config, tables.views, once=True) as run:
        error = run.failure()
    assert isinstance(error, UserError)
    assert "declared key of shop.bare does not tell its rows apart: 2 rows have" in error.what
    assert "a=17" in str(error.got)
