"""Which tables a run loads anew, and what it reads of them; nothing is loaded here."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mview.catalog.definitions import digest_of
from mview.catalog.tables import describe_tables
from mview.config import Config
from mview.config.file import load_config
from mview.errors import UserError, several
from mview.plan.definition import parse_view
from mview.run.pipeline import Pipeline
from mview.run.tables import tables_of
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
def published(tmp_path: Path, database: sqlite3.Connection) -> tuple[Config, Manifest]:
    """The configuration, and a store in which both tables are loaded and both views built."""
    (tmp_path / "mview.yml").write_text(CONFIG)
    config = load_config(tmp_path / "mview.yml")
    kept = [parse_view(sql, name) for name, sql in KEPT.items()]
    loaded = describe_tables(config, kept, {})
    tables = {name: TableState(schema, 0, 0, phase="loaded") for name, schema in loaded.items()}
    states = {v.name: ViewState(digest_of(v), "LINEAR", loaded[rel("shop.t")], {}, 1) for v in kept}
    return config, Manifest(1, 1, 1, 1, 0, tables=tables, views=states)


@pytest.fixture
def asked(published: tuple[Config, Manifest]) -> Asked:
    config, manifest = published

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


def test_a_half_loaded_table_that_has_halted_and_is_gone_is_not_begun(
    published: tuple[Config, Manifest], database: sqlite3.Connection
) -> None:
    """Nor is it read on: nothing of it is there."""
    config, manifest = published
    (config.path.parent / "changes").mkdir()
    state = manifest.tables[rel("shop.u")]
    half = replace(state, phase="loading", halted="a row cannot be read")
    manifest = replace(manifest, tables={**manifest.tables, rel("shop.u"): half})
    views = [parse_view(sql, name) for name, sql in KEPT.items()]
    assert tables_of(config, views, manifest).schemas.keys() == {rel("shop.t"), rel("shop.u")}
    database.execute("DROP TABLE u")
    found = tables_of(config, views, manifest)
    assert found.schemas.keys() == {rel("shop.t")}
    assert not found.anew
    assert found.refused.keys() == {"s"}


def test_views_of_tables_that_a_source_refuses_wait_new_ones_too(
    published: tuple[Config, Manifest],
) -> None:
    config, manifest = published
    views = [parse_view(sql, name) for name, sql in KEPT.items()]
    views.append(parse_view("SELECT t.id, z FROM shop.t JOIN shop.more AS m ON t.id = m.id", "new"))
    with closing(sqlite3.connect(config.path.parent / "shop.db")) as database:
        database.execute("CREATE TABLE more (id INTEGER PRIMARY KEY, z INT)")
    error = UserError("no slot is left", where="changes.shop", hint="make room")
    found = tables_of(config, views, manifest, refusing={rel("shop.more"): error})
    assert found.schemas.keys() == {rel("shop.t"), rel("shop.u")}
    said = str(found.refused["new"].render())
    assert found.refused.keys() == {"new"}
    assert "view new waits for table shop.more, which its source refuses: no slot is left" in said
    assert "changes.shop" in said
    assert "make room" in said
    both = several([error, UserError("another", hint="this, too")])
    said = str(tables_of(config, views, manifest, (), {rel("shop.more"): both}).refused["new"])
    assert all(text in said for text in ("no slot is left", "make room", "another", "this, too"))


def test_a_halted_table_that_cannot_be_followed_waits_and_says_what_makes_it_followed(
    published: tuple[Config, Manifest],
) -> None:
    config, manifest = published
    config.path.write_text(CONFIG.replace("files, format: unified, path: changes,", "sqlite,"))
    config = load_config(config.path)
    halted = replace(manifest.tables[rel("shop.u")], halted="its triggers were dropped")
    manifest = replace(manifest, tables={**manifest.tables, rel("shop.u"): halted})
    views = [parse_view(sql, name) for name, sql in KEPT.items()]
    found = tables_of(config, views, manifest)
    assert not found.anew
    said = str(found.refused["s"].render())
    assert "view s waits for table shop.u, which its source refuses: the triggers" in said
    assert "--triggers` installs them" in said


def test_what_cannot_be_asked_goes_on(asked: Asked, database: sqlite3.Connection) -> None:
    before = asked()
    database.execute("DROP TABLE u")
    assert asked() == before
    assert asked(s="SELECT id FROM shop.u") == before
