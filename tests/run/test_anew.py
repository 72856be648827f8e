"""Which tables a run loads anew, and what it reads of them; nothing is loaded here."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from mview.catalog.definitions import digest_of
from mview.catalog.tables import describe_tables
from mview.config.file import load_config
from mview.plan.definition import parse_view
from mview.run.pipeline import Pipeline
from mview.store.manifest import Manifest, TableState, ViewState
from tests.relations import rel

CONFIG = """
store: store
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
"""

#: The views that are kept.
KEPT = {"v": "SELECT id, x FROM shop.t", "s": "SELECT * FROM shop.u"}

#: What a run would do: the tables that it loads anew, and the columns that it reads of all.
Asked = Callable[..., tuple[dict[str, str], dict[str, tuple[str, ...]]]]


@pytest.fixture
def database(tmp_path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x INT, y INT)")
    database.execute("CREATE TABLE u (id INTEGER PRIMARY KEY, z INT)")
    return database


@pytest.fixture
def asked(tmp_path: Path, database: sqlite3.Connection) -> Asked:
    (tmp_path / "mview.yml").write_text(CONFIG)
    config = load_config(tmp_path / "mview.yml")
    kept = [parse_view(sql, name) for name, sql in KEPT.items()]
    loaded = describe_tables(config, kept, {})
    tables = {name: TableState(schema, 0, 0, phase="loaded") for name, schema in loaded.items()}
    states = {v.name: ViewState(digest_of(v), "LINEAR", loaded[rel("shop.t")], {}, 1) for v in kept}
    manifest = Manifest(1, 1, 1, 1, 0, tables=tables, views=states)

    def ask(**given: str) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
        views = [parse_view(sql, name) for name, sql in (KEPT | given).items()]
        pipeline = Pipeline(config, views)
        schemas, anew, _ = pipeline._tables_of(views, manifest)
        return (
            {str(name): why for name, why in anew.items()},
            {str(name): schema.names for name, schema in schemas.items()},
        )

    return ask


def test_what_views_use_decides(asked: Asked, database: sqlite3.Connection) -> None:
    loaded: dict[str, tuple[str, ...]] = {"shop.t": ("id", "x"), "shop.u": ("id", "z")}
    assert asked() == ({}, loaded)
    assert asked(w="SELECT id, y FROM shop.t") == (
        {"shop.t": "view w uses y, not kept so far"},
        loaded | {"shop.t": ("id", "x", "y")},
    )
    for table in "tu":
        database.execute(f"ALTER TABLE {table} ADD COLUMN late INT")
    assert asked() == ({}, loaded), "views that go on take up nothing"
    assert asked(w="SELECT id, late FROM shop.t") == (
        {"shop.t": "view w uses late, not kept so far"},
        loaded | {"shop.t": ("id", "x", "late")},
    )
    assert asked(s="SELECT * FROM shop.u WHERE z > 0") == (
        {"shop.u": "view s uses late, not kept so far"},
        loaded | {"shop.u": ("id", "z", "late")},
    )


def test_what_cannot_be_asked_goes_on(asked: Asked, database: sqlite3.Connection) -> None:
    before = asked()
    database.execute("DROP TABLE u")
    assert asked() == before
    assert asked(s="SELECT id FROM shop.u") == before
