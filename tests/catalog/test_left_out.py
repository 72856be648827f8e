"""Columns that settings leave out: what `check` says, and a store that was loaded otherwise."""

from __future__ import annotations

import sqlite3

import pytest

from mview.catalog.tables import as_they_are, describe_tables, lacking
from mview.cli.checking import Checker
from mview.config import TableSettings
from mview.config.file import load_config
from mview.errors import ConfigError
from mview.plan.definition import parse_view
from mview.schema import TableSchema
from tests.relations import rel

CONFIG = """
store: store
connections:
  shop: {{drivername: sqlite, database: shop.db, tables: {{t: {{{table}}}}}}}
changes:
  shop: {{source: files, format: unified, path: changes, T: 1 second}}
"""


@pytest.fixture
def config(tmp_path):
    """A configuration with these settings of shop.t."""
    sqlite3.connect(tmp_path / "shop.db").execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, x INT NOT NULL, secret whatever)"
    )
    (tmp_path / "changes").mkdir()

    def made(table):
        (tmp_path / "mview.yml").write_text(CONFIG.format(table=table))
        return load_config(tmp_path / "mview.yml")

    return made


def test_what_is_left_out_is_not_there_for_views(config):
    checker = Checker(config("exclude: [secret]"), False, print)
    good, bad = checker.check(
        [parse_view("SELECT * FROM shop.t", "a"), parse_view("SELECT secret FROM shop.t", "b")]
    )
    assert good.plan.columns == ("id", "x")
    assert bad.error.what.startswith("unknown column 'secret'")
    assert "connections.shop.tables.t" in bad.error.hint


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("exclude: [secret]", "columns: [id, x]", True),
        ("exclude: [secret]", "exclude: [secret, x]", False),
        ("columns: [id]", "columns: [id, x]", False),
        ("exclude: [secret]", "exclude: [secret], key: [x]", False),
        ("exclude: [secret]", "exclude: [secret], key: [id]", True),
        ("exclude: [secret]", "exclude: [secret], types: {x: string}", False),
    ],
)
def test_settings_by_which_a_table_was_not_loaded_are_refused(config, before, after, is_same):
    views = [parse_view("SELECT * FROM shop.t", "v")]
    known = describe_tables(config(before), views, {})
    if is_same:
        assert describe_tables(config(after), views, known) == known
        return
    with pytest.raises(ConfigError, match="loaded with other columns") as caught:
        describe_tables(config(after), views, known)
    assert "`mview drop shop.t`" in caught.value.hint


def test_a_table_is_read_anew_for_a_column_that_no_view_used(config):
    settings = config("exclude: [x]")
    few, more = (
        parse_view("SELECT id FROM shop.t", "v"),
        parse_view("SELECT id, x FROM shop.t", "w"),
    )
    loaded = describe_tables(settings, [few], {})
    (schema,) = loaded.values()
    assert (schema.names, schema.unread) == (("id",), ("x", "secret"))
    assert TableSchema.from_json(schema.to_json()) == schema
    # What settings leave out is for no view.
    assert lacking(settings, [few, more], loaded) == {}
    assert lacking(config(""), [few], loaded) == {}
    assert lacking(config(""), [few, more], loaded) == {
        rel("shop.t"): "view w uses x, not kept so far"
    }
    with pytest.raises(ConfigError, match="loaded with other columns"):
        describe_tables(config("columns: all"), [few], loaded)
    # A column that the table got later.
    sqlite3.connect(settings.path.parent / "shop.db").execute("ALTER TABLE t ADD COLUMN y INT")
    later = parse_view("SELECT id, y FROM shop.t", "u")
    assert lacking(settings, [later], loaded) == {}
    now = as_they_are(settings, [later], loaded)
    assert lacking(settings, [few], now) == {}
    assert lacking(settings, [few, later], now) == {rel("shop.t"): "view u uses y, not kept so far"}


def test_every_view_is_checked_with_what_it_uses_itself(config):
    checker = Checker(config(""), False, print)
    views = [
        parse_view("SELECT id FROM shop.t", "a"),
        parse_view("SELECT secret FROM shop.t", "b"),
        parse_view("SELECT x FROM shop.t", "c"),
        parse_view("SELECT y FROM shop.t", "d"),
        parse_view("SELECT secrt FROM shop.t", "e"),
    ]
    good, odd, other, unknown, misspelt = checker.check(views)
    assert good.plan.columns == ("id",)
    assert other.plan.columns == ("x",)
    assert odd.error.what.startswith("column type whatever cannot be read exactly")
    assert unknown.error.what.startswith("unknown column 'y'")
    assert "secret" in misspelt.error.hint


def test_settings_that_contradict_themselves():
    with pytest.raises(ValueError, match="not both"):
        TableSettings(columns=["a"], exclude=["b"])
    with pytest.raises(ValueError, match="must be read"):
        TableSettings(exclude=["a"], key=["a"])
