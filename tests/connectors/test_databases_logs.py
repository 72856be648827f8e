"""What a database's own log leaves out of a table's changes, found by asking real databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mview.errors import UserError
from tests.connectors.databases_contract import Source, server_source

pytestmark = pytest.mark.service


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> Iterator[Source]:
    with server_source("postgresql", request.getfixturevalue("postgresql")) as source:
        yield source


@pytest.fixture
def maria(request: pytest.FixtureRequest) -> Iterator[Source]:
    with server_source("mariadb", request.getfixturevalue("mariadb")) as source:
        yield source


def refused(source: Source, table: str, match: str) -> UserError:
    with pytest.raises(UserError, match=match) as caught:
        source.database.check_log(table)
    return caught.value


def test_partitions_that_are_published_under_their_own_names(postgres: Source) -> None:
    postgres.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);"
        "CREATE TABLE p11 PARTITION OF p1 FOR VALUES FROM (0) TO (50)"
    )
    assert "…" in str(refused(postgres, "p", "sent under the names of its partitions").hint)
    postgres.execute("CREATE PUBLICATION few FOR TABLE p")
    hint = str(refused(postgres, "p", "sent under the names of its partitions").hint)
    postgres.database.check_log("p11")
    (command, _, _) = hint.partition(";")
    postgres.execute(command)
    postgres.database.check_log("p")
    refused(postgres, "p11", "sent under the name of the whole table")


def test_tables_that_inherit(postgres: Source) -> None:
    postgres.execute(
        "CREATE TABLE parent (id int PRIMARY KEY);"
        "CREATE TABLE child () INHERITS (parent); CREATE PUBLICATION few FOR TABLE parent"
    )
    refused(postgres, "parent", "tables that inherit from it")
    postgres.execute("ALTER TABLE child NO INHERIT parent")
    postgres.database.check_log("parent")


def test_publications_that_leave_something_out(postgres: Source) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.database.check_log("t")  # who reads the log may need no publication
    postgres.execute("CREATE PUBLICATION few FOR TABLE t WITH (publish = 'insert, update, delete')")
    hint = str(refused(postgres, "t", "without some of its changes").hint)
    postgres.execute(hint)
    postgres.database.check_log("t")
    postgres.execute("ALTER PUBLICATION few SET TABLE t WHERE (id > 5)")
    refused(postgres, "t", "without some of its rows")
    # Another one may be the one that is read.
    postgres.execute("CREATE PUBLICATION every FOR TABLE t")
    postgres.database.check_log("t")


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_image", "NOBLOB", "FULL"),
        ("binlog_format", "STATEMENT", "ROW"),
    ],
)
def test_a_binary_log_without_whole_rows(
    maria: Source, setting: str, value: str, wanted: str
) -> None:
    maria.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    maria.database.check_log("t")
    maria.execute(f"SET GLOBAL {setting} = '{value}'")
    try:
        error = refused(maria, "t", "not all columns of a change")
    finally:
        maria.execute(f"SET GLOBAL {setting} = '{wanted}'")
    assert str(error.got) == f"{setting} = {value}"
    assert f"SET GLOBAL {setting} = '{wanted}'" in str(error.hint)
    maria.database.check_log("t")


@pytest.mark.parametrize("kind", ["postgres", "maria"])
def test_columns_that_have_a_default_and_may_be_null(
    kind: str, request: pytest.FixtureRequest
) -> None:
    source: Source = request.getfixturevalue(kind)
    source.execute(
        "CREATE TABLE t (id int DEFAULT 1 PRIMARY KEY, a int DEFAULT 5, b varchar(9), "
        "c int DEFAULT NULL, d varchar(9) DEFAULT 'NULL', e int NOT NULL DEFAULT 5, "
        "f timestamp NULL DEFAULT current_timestamp, g int, h varchar(9) DEFAULT NULL)"
    )
    source.execute("ALTER TABLE t ALTER g SET DEFAULT 0")
    source.execute("CREATE TABLE plain (id int PRIMARY KEY, a int)")
    assert source.database.defaults("t") == ["a", "d", "f", "g"]
    assert source.database.defaults("plain") == []


@pytest.mark.parametrize("rule", ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE"])
def test_rows_that_a_foreign_key_changes_are_in_no_binary_log(maria: Source, rule: str) -> None:
    maria.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    refers = "FOREIGN KEY (k) REFERENCES t (id)"
    maria.execute(f"CREATE TABLE held (id INT PRIMARY KEY, k INT, CONSTRAINT h {refers})")
    maria.execute(f"CREATE TABLE moved (id INT PRIMARY KEY, k INT, CONSTRAINT m {refers} {rule})")
    maria.database.check_log("t")
    maria.database.check_log("held")
    error = refused(maria, "moved", "is not in the log")
    assert "DROP FOREIGN KEY `m`" in str(error.hint)


def test_who_may_only_read_is_told_of_foreign_keys(
    maria: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REFERENTIAL_CONSTRAINTS of MariaDB has no row for who has no other right than SELECT."""
    maria.execute(
        "CREATE TABLE t (id INT PRIMARY KEY); CREATE TABLE `ON DELETE CASCADE` (id INT PRIMARY KEY,"
        " t INT COMMENT '\n  CONSTRAINT c FOREIGN KEY x ON DELETE CASCADE', k INT,"
        " FOREIGN KEY (t) REFERENCES t (id)); "
        "CREATE TABLE `5% ``m` (id INT PRIMARY KEY, k INT, note TEXT, "
        "CONSTRAINT `a``b` FOREIGN KEY (k) REFERENCES `ON DELETE CASCADE` (id),"
        "CONSTRAINT `c%%d e` FOREIGN KEY (k) REFERENCES t (id) ON DELETE CASCADE);"
        "CREATE OR REPLACE USER logs_reader@'%' IDENTIFIED BY 'r'"
    )
    monkeypatch.setenv("LOGS_READER", "r")
    database = maria.settings.database
    try:
        maria.execute(f"GRANT SELECT ON `{database}`.* TO logs_reader@'%'")
        settings = maria.settings.model_dump(exclude={"name"})
        settings |= {"username": "logs_reader", "password": "${env:LOGS_READER}"}
        reader = Source("mariadb", settings, maria.execute)
        reader.database.check_log("t")
        reader.database.check_log("ON DELETE CASCADE")
        hint = str(refused(reader, "5% `m", "is not in the log").hint)
        assert hint.startswith("ALTER TABLE `5% ``m` DROP FOREIGN KEY `c%%d e`, ")
        maria.execute(
            f"REVOKE SELECT ON `{database}`.* FROM logs_reader@'%'; "
            "GRANT SELECT (id, k) ON `5% ``m` TO logs_reader@'%'"
        )
        # What a connection may see of its database is what it might when it was made.
        reader = Source("mariadb", settings, maria.execute)
        hint = str(refused(reader, "5% `m", "this user may not see them").hint)
        maria.execute(hint.partition(";")[0])
        refused(reader, "5% `m", "is not in the log")
    finally:
        maria.execute("DROP USER logs_reader@'%'")
