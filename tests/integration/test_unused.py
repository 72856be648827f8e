"""Columns that no view uses, and rows that a condition leaves out: servers and their own logs."""

from __future__ import annotations

import pytest
import yaml

import mview
from mview.admin.against_source import verify_tables
from mview.config.file import load_config
from mview.plan.definition import parse_view
from mview.secrets import reveal
from tests.integration.running import PATIENCE, Running
from tests.relations import rel
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

#: By server: the table with a row, changes of columns that nobody reads, and a row after them.
KINDS = {
    "postgresql": (
        "CREATE TABLE t (odd interval, id int PRIMARY KEY, until date, x int, town text, "
        "note text, more int)",
        "INSERT INTO t VALUES ('1 day', {}, 'infinity', {}, '{}', 'n', 7)",
        "ALTER TABLE t DROP COLUMN odd; ALTER TABLE t RENAME COLUMN note TO word; "
        "ALTER TABLE t ALTER COLUMN until TYPE text",
        "INSERT INTO t VALUES ({}, 'ever', {}, '{}', 'w', NULL)",
    ),
    "mariadb": (
        "CREATE TABLE t (odd point, id int PRIMARY KEY, until date, x int, town varchar(20), "
        "note text, more int)",
        "SET SESSION sql_mode = ''; INSERT INTO t VALUES "
        "(ST_GeomFromText('POINT(1 2)'), {}, '0000-00-00', {}, '{}', 'n', 7)",
        "SET SESSION sql_mode = ''; ALTER TABLE t CHANGE note word text; "
        "ALTER TABLE t MODIFY until datetime",
        "SET SESSION sql_mode = ''; INSERT INTO t VALUES "
        "(NULL, {}, '0000-00-00', {}, '{}', 'w', NULL)",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_load_over_altered_columns_to_one_that_is_used(spark, request, tmp_path, kind):
    table, insert, alter, later = KINDS[kind]
    server = request.getfixturevalue(kind)
    with server.new_database() as database:

        def execute(sql):
            return server.execute(sql, database)

        execute(table)
        for number in range(30):
            execute(insert.format(number, number * 10, ("Bath", "bath", "Ely")[number % 3]))
        settings = server.settings(database)
        secret = tmp_path / "secret"
        secret.write_text(reveal(settings["password"], "tests"))
        settings["password"] = f"${{file:{secret}}}"
        settings["tables"] = {"t": {"where": "town = 'Bath' OR x > 280"}}
        body = {
            "store": "store",
            "connections": {"shop": settings},
            "changes": {"shop": {"source": "mysql" if kind == "mariadb" else kind, "T": "1500ms"}},
            "engine": {"chunk_rows": 7},
        }
        (tmp_path / "mview.yml").write_text(yaml.safe_dump(body))
        config = load_config(tmp_path / "mview.yml")

        def is_equal(view="few", columns="id, x"):
            rows = mview.connect(config.path)[view].arrow().to_pylist()
            is_bath = "town = 'Bath'" if kind == "postgresql" else "BINARY town = 'Bath'"
            there = execute(f"SELECT {columns} FROM t WHERE {is_bath} OR x > 280")
            return sorted(tuple(row.values()) for row in rows) == sorted(map(tuple, there))

        with Running(config, [parse_view("SELECT id, x FROM shop.t", "few")]) as run:
            run.until_live()
            assert is_equal()
            execute("UPDATE t SET town = 'Ely' WHERE id IN (0, 3)")  # out of the condition
            execute("UPDATE t SET town = 'Bath' WHERE id IN (1, 2)")  # into it
            execute("UPDATE t SET id = id + 100 WHERE id IN (6, 7)")
            execute("DELETE FROM t WHERE id IN (9, 10)")
            wait_until(is_equal, "the changes", PATIENCE, run.check)
            execute(alter)
            execute(later.format(50, 500, "Ely"))
            execute(later.format(51, 51, "Bath"))
            execute(later.format(52, 52, "Ely"))
            wait_until(is_equal, "what came after the columns changed", PATIENCE, run.check)
            (result,) = verify_tables(config, [rel("shop.t")])
            assert result.equal, result
        with Running(config, [parse_view("SELECT id, more FROM shop.t", "others")]) as run:
            wait_until(
                lambda: "others" in mview.connect(config.path), "the view", PATIENCE, run.check
            )
            assert any("is loaded anew: view others uses more" in text for text in run.messages)
            execute(later.format(53, 53, "Bath"))
            wait_until(
                lambda: is_equal() and is_equal("others", "id, more"),
                "the table that is loaded anew",
                PATIENCE,
                run.check,
            )
