"""A table that has got another key, where no log tells of it, halts before a change is taken."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from mview_connectors.databases.sqlite import SqliteDatabase

from mview.config import Config
from mview.config.file import load_config
from mview.errors import UserError
from mview.ingest.changelogs import Changelogs
from mview.ingest.keys import with_other_keys
from mview.ingest.spec import QuerySpec, TableSpec, open_database
from mview.relation import RelationId
from tests.relations import rel

CONFIG = """
store: store
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
"""
#: The columns of the table.
COLUMNS = "id INT NOT NULL, shop INT NOT NULL, x INT"
BY_BOTH = f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (id, shop))"
BY_ID = f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (id))"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "mview.yml").write_text(CONFIG)
    (tmp_path / "changes").mkdir()
    return load_config(tmp_path / "mview.yml")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as database:
        yield database


def loaded(config: Config, name: RelationId) -> TableSpec:
    with closing(open_database(config, "shop")) as database:
        schema = database.describe(name.name)
    return TableSpec(name, schema, config.store, "stage/000001", None)


@pytest.mark.parametrize(
    ("before", "after", "halts"),
    [
        (BY_ID, BY_ID, False),
        (BY_ID, BY_BOTH, True),
        (BY_ID, f"CREATE TABLE t ({COLUMNS})", True),
        (BY_ID, f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (shop))", True),
        (BY_BOTH, BY_ID, False),  # what a part of our key tells apart, all of it does
        (BY_BOTH, f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (shop, id))", False),
        (BY_BOTH, "CREATE TABLE other (id INT)", False),
        (BY_BOTH, f"CREATE TABLE t ({COLUMNS}, n INTEGER PRIMARY KEY, UNIQUE (id, shop))", False),
        (BY_BOTH, "CREATE TABLE t (id INT, shop INT NOT NULL, UNIQUE (id, shop))", True),
        (BY_ID, "CREATE TABLE t (id INT, c CIRCLE NOT NULL, PRIMARY KEY (id, c))", True),
        (BY_BOTH, "CREATE TABLE t (id INT NOT NULL PRIMARY KEY, x CIRCLE)", False),
    ],
)
def test_rows_that_our_key_may_take_for_one(
    config: Config, database: sqlite3.Connection, before: str, after: str, halts: bool
) -> None:
    database.execute(before)
    table = loaded(config, rel("shop.t"))
    database.executescript(f"DROP TABLE t; {after}")
    told = with_other_keys(config, "shop", [table])
    assert [*told] == (["t"] if halts else [])
    for halt in told.values():
        key = ", ".join(table.schema.key)
        assert halt.altered
        assert halt.what == (
            f"table shop.t has no longer the key ({key}) that told its rows apart since it was "
            "loaded"
        )


def test_a_key_that_people_vouch_for_is_kept(
    config: Config, database: sqlite3.Connection, tmp_path: Path
) -> None:
    declared = CONFIG.replace("shop.db}", "shop.db, tables: {t: {key: [id]}}}")
    (tmp_path / "mview.yml").write_text(declared)
    config = load_config(tmp_path / "mview.yml")
    database.execute(BY_ID)
    table = loaded(config, rel("shop.t"))
    database.executescript(f"DROP TABLE t; CREATE TABLE t ({COLUMNS})")
    assert with_other_keys(config, "shop", [table]) == {}


def test_who_is_not_let_in_asks_once(
    config: Config, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t", "u"):
        database.execute(BY_ID.replace("TABLE t", f"TABLE {name}"))
    tables = [loaded(config, rel(f"shop.{name}")) for name in ("t", "u")]
    opened: list[SqliteDatabase] = []

    def refused(database: SqliteDatabase) -> sqlite3.Connection:
        opened.append(database)
        raise UserError("password authentication failed")

    monkeypatch.setattr(SqliteDatabase, "_open", refused)
    assert with_other_keys(config, "shop", tables) == {}
    assert len(opened) == 1


def test_a_database_that_is_away_is_no_reason(
    config: Config, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute(BY_ID)
    table = loaded(config, rel("shop.t"))
    (tmp_path / "shop.db").unlink()
    assert with_other_keys(config, "shop", [table]) == {}


def test_a_log_tells_it_once_and_before_its_changes(
    config: Config, database: sqlite3.Connection, tmp_path: Path
) -> None:
    for name in ("t", "u"):
        database.execute(BY_ID.replace("TABLE t", f"TABLE {name}"))
    tables = {name: loaded(config, name) for name in (rel("shop.t"), rel("shop.u"))}
    database.executescript(f"DROP TABLE t; {BY_BOTH}")
    (tmp_path / "changes" / "1.jsonl").write_text("")
    start = {"shop": {"log": ["", 0, 0]}}
    spec = QuerySpec(1, config, tables, start, -1, 1, False)
    with closing(Changelogs(spec.write(tmp_path / "spec.json"))) as logs:
        at = logs.begin()
        end = logs.advance(at)
        assert [*end["halts"]] == ["shop.t"]
        assert logs.advance(end) is end, "nothing new"
