"""Several schemas in one connection: tables of one name are never mixed up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mview.config import ConnectionSettings, TableSettings
from mview.connector import load
from mview.errors import UserError
from tests.connectors.databases_contract import Source, server_source, sqlite_source

pytestmark = [pytest.mark.days(1)]

SERVERS = ["mariadb", "postgresql"]


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.service) for kind in SERVERS])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    with server_source(request.param, request.getfixturevalue(request.param)) as made:
        yield made


@pytest.fixture
def schema(source: Source) -> Iterator[str]:
    """Another schema, with a table of a name that the connection's own has, too."""
    name = f"Sales {source.settings.database}"
    quoted = source.quote(name)
    source.execute(f"CREATE SCHEMA {quoted}")
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, mine int)")
    source.execute(f"CREATE TABLE {quoted}.orders (a int, b int, theirs int, PRIMARY KEY (b, a))")
    source.insert("orders", [(n, n) for n in range(5)])
    source.execute(f"INSERT INTO {quoted}.orders VALUES (1, 1, 10), (2, 1, 20), (1, 3, 30)")
    yield name
    source.execute(f"DROP SCHEMA {quoted} CASCADE" if source.kind == "postgresql" else "SELECT 1")
    if source.kind == "mariadb":
        source.execute(f"DROP SCHEMA {quoted}")


def test_each_is_described_planned_and_read_as_it_is(source: Source, schema: str) -> None:
    table = f"{schema}.orders"
    assert source.database.describe("orders").names == ("id", "mine")
    described = source.database.describe(table)
    assert (described.names, described.key) == (("a", "b", "theirs"), ("b", "a"))
    plan = source.database.plan(table, described, 1, 1 << 30)
    assert (plan.columns, plan.maximum) == (("b", "a"), (3, 1))
    assert [row["theirs"] for row in source.read(table, rows=1)] == [10, 20, 30]
    assert len(source.read("orders")) == 5
    source.database.check_log(table)
    if source.kind == "postgresql":  # for MySQL a schema is a database: others are not listed
        assert list(source.database.tables()) == ["orders", table]


def test_settings_are_of_one_of_them(source: Source, schema: str) -> None:
    tables = {f"{schema}.orders": TableSettings(exclude=["theirs"])}
    changed = source.settings.model_copy(update={"tables": tables})
    with closing(load("databases", source.kind)(changed)) as database:
        assert database.describe("orders").names == ("id", "mine")
        assert database.describe(f"{schema}.orders").names == ("a", "b")


def test_a_name_in_another_case_and_others_that_are_not_there(source: Source, schema: str) -> None:
    for name in (f"{schema.lower()}.orders", f"{schema}.Orders", f"{schema}.x", "nowhere.orders"):
        with pytest.raises(UserError, match="unknown table"):
            source.database.describe(name)
    with pytest.raises(UserError, match="unknown table") as caught:
        source.database.describe(f"{schema}.order")
    assert f"src.{schema}.orders" in str(caught.value.hint)


def test_the_own_schema_is_no_second_name(source: Source, schema: str) -> None:
    own = "public" if source.kind == "postgresql" else source.settings.database
    with pytest.raises(UserError, match="one table would have two names") as caught:
        source.database.describe(f"{own}.orders")
    assert caught.value.hint == "write src.orders"
    settings: Any = source.settings.model_dump(by_alias=True)
    with pytest.raises(ValidationError, match="own schema: write orders"):
        ConnectionSettings(**settings | {"tables": {f"{own}.orders": {"exclude": ["mine"]}}})


@pytest.mark.service
def test_a_missing_right_names_the_schema(postgresql: Any) -> None:
    with server_source("postgresql", postgresql) as source:
        source.execute("CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY); CREATE ROLE r")
        try:
            denied = source.settings.model_copy(update={"query": {"options": "-c role=r"}})
            with closing(load("databases", "postgresql")(denied)) as database:
                assert list(database.tables()) == []
                with pytest.raises(UserError, match=r"may not read src\.s\.t") as caught:
                    database.describe("s.t")
                assert 'GRANT USAGE ON SCHEMA "s" TO "r"' in str(caught.value.hint)
                source.execute("GRANT USAGE ON SCHEMA s TO r")
                with pytest.raises(UserError, match=r"may not read src\.s\.t") as caught:
                    database.describe("s.t")
                assert 'GRANT SELECT ON "s"."t" TO "r"' in str(caught.value.hint)
        finally:
            source.execute("DROP OWNED BY r; DROP ROLE r")


def test_a_database_without_schemas_has_none(tmp_path: Path) -> None:
    with sqlite_source(tmp_path) as source:
        source.execute('CREATE TABLE "a.b" (id int PRIMARY KEY NOT NULL)')
        source.execute('INSERT INTO "a.b" VALUES (1)')
        assert list(source.database.tables()) == ["`a.b`"]
        assert source.read("`a.b`") == [{"id": 1}]
        with pytest.raises(UserError, match="this database has no schemas") as caught:
            source.database.describe("a.b")
        assert caught.value.hint == "write src.b"
