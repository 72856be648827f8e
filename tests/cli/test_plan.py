"""`mview plan`: what a run would do, before it does it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pyarrow as pa
import pytest
from click.testing import CliRunner

from mview.catalog.definitions import (
    KeptLight,
    digest_of,
    load_former,
    save_definition,
    save_light,
    with_former,
    with_tried,
)
from mview.cli import main
from mview.cli.demo import shop
from mview.epoch.views.cost import Costs, Ran, with_run
from mview.plan.definition import parse_view
from mview.schema import Column, TableSchema
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState, ViewState
from mview.store.requests.asked import keep_asked
from tests.relations import rel

CONFIG = """
store: data
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
"""

#: The columns of shop.orders.
ORDERS = ("order_id", "customer_id", "ordered_on", "status")
LOWER = "SELECT order_id, status FROM shop.orders"
UPPER = "SELECT status, count(*) AS n FROM lower_view GROUP BY status"


class Project:
    """A shop, view files, and a store that has what was published."""

    def __init__(self, folder):
        self.store = Store(folder / "data")
        self._views = folder / "sql"
        self._tables, self._states = {}, {}
        schema = TableSchema(tuple(Column(n, pa.string()) for n in ORDERS), ("order_id",))
        self.loaded("shop.orders", schema, 20_000)

    def loaded(self, name, schema, rows):
        self._tables[rel(name)] = TableState(schema, 0, 0, phase="loaded", rows=rows)

    def halt(self, name):
        self._tables[rel(name)] = replace(self._tables[rel(name)], halted="a column is gone")

    def load_begins(self, name):
        self._tables[rel(name)] = replace(self._tables[rel(name)], phase="loading", rows=0)

    def publish(self, mirrored=False, **views):
        claim_store(self.store.root)
        for name, (sql, state) in views.items():
            view = parse_view(sql, name)
            save_definition(self.store, view)
            self._states[name] = replace(state, definition=digest_of(view))
            if mirrored:
                self.loaded(name, state.schema, 7)
        log = ManifestLog(self.store.manifests)
        epoch = 1 if (newest := log.latest()) is None else newest.epoch + 1
        log.publish(Manifest(epoch, 1, 1, 1, 0, tables=self._tables, views=self._states))

    def plan(self, *options, **views):
        self._views.mkdir(exist_ok=True)
        for name, sql in views.items():
            (self._views / f"{name}.sql").write_text(sql)
        return CliRunner().invoke(main, ["plan", "sql", *options])


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shop.create(tmp_path / "shop.db", customers=5, orders=10)
    (tmp_path / "changes").mkdir()
    (tmp_path / "mview.yml").write_text(CONFIG)
    return Project(tmp_path)


def state(*columns, strategy="LINEAR"):
    schema = TableSchema(tuple(Column(name, pa.string()) for name in columns), columns[:1])
    return ViewState("", strategy, schema, {}, 1, rows=41)


def goes_on(view):
    return (
        f"goes on   view {view}: it is in the store and not in these files; "
        f"to remove it: `mview drop {view}`"
    )


def test_all_is_new_in_an_empty_store(project):
    result = project.plan(lower_view=LOWER)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "new       view lower_view: it is not in the store yet",
        "load      table shop.orders",
    ]


def test_without_files_those_of_the_newest_run_are_planned(project):
    told = CliRunner().invoke(main, ["plan"])
    assert told.exit_code == 1
    assert "nobody knows which files a run was given" in told.stderr
    project.publish(lower_view=(LOWER, state("order_id", "status")))
    keep_asked(project.store, ["lower_view"], ["sql"])
    given = project.plan(lower_view=f"{LOWER} WHERE order_id > 1")
    assert given.exit_code == 6
    told = CliRunner().invoke(main, ["plan"])
    assert (told.exit_code, told.stdout) == (6, given.stdout)


def test_what_goes_on_is_no_work(project):
    project.publish(lower_view=(LOWER, state("order_id", "status")))
    result = project.plan(lower_view=LOWER)
    assert result.exit_code == 0, result.output
    assert result.stdout == "unchanged view lower_view\n"


@pytest.mark.parametrize("upper", [False, True], ids=["alone", "read"])
def test_a_view_that_was_built_with_another_key_is_built_anew(project, upper):
    """An earlier version has found other columns that tell its rows apart."""
    built = state("order_id", "status")
    other = replace(built, schema=replace(built.schema, key=("order_id", "status")))
    views = {"lower_view": (LOWER, other)}
    views |= {"upper_view": (UPPER, state("status", "n", strategy="GROUPS"))} if upper else {}
    project.publish(mirrored=True, **views)
    result = project.plan("--json", **{name: sql for name, (sql, _) in views.items()})
    assert result.exit_code == 6, result.output
    told = {
        view["view"]: (view["fate"], view["why"]) for view in json.loads(result.stdout)["views"]
    }
    why = "other columns tell its rows apart than when it was built"
    assert told.pop("lower_view") == ("rebuilt", why)
    assert told == ({"upper_view": ("rebuilt", "it reads lower_view")} if upper else {})


def test_a_key_that_the_source_has_by_now_is_none_of_a_loaded_table(project):
    schema = TableSchema(tuple(Column(n, pa.string()) for n in ORDERS), ("order_id", "status"))
    project.loaded("shop.orders", schema, 20_000)
    built = state("order_id", "status")
    there = replace(built, schema=replace(built.schema, key=("order_id", "status")))
    project.publish(lower_view=(LOWER, there))
    result = project.plan(lower_view=LOWER)
    assert result.exit_code == 0, result.output
    assert result.stdout == "unchanged view lower_view\n"


def test_a_table_that_has_halted_is_loaded_anew_for_who_reads_it(project):
    project.halt("shop.orders")
    halted = replace(state("order_id", "status"), halted="its table has halted")
    project.publish(lower_view=(LOWER, halted), other=("SELECT 1 AS one", state("one")))
    result = project.plan(lower_view=LOWER)
    assert result.exit_code == 6, result.output
    said = result.stdout.splitlines()
    assert said[0].startswith("rebuilt   view lower_view: ")
    assert "load      table shop.orders anew: it had halted" in said
    assert json.loads(project.plan("--json").stdout)["anew"] == {"shop.orders": "it had halted"}


def test_nothing_is_told_of_the_rows_of_a_table_that_is_being_loaded(project):
    project.load_begins("shop.orders")
    project.publish(v=(LOWER, replace(state("order_id", "status"), stale=True)))
    assert project.plan(v=LOWER).stdout.splitlines() == [
        "rebuilt   view v: a table that it reads is loaded anew, or it was repaired",
        "load      table shop.orders",
    ]


def test_an_edit_tells_what_it_breaks_and_costs(project):
    costs = Costs().after_full("spark", 25_000, 4.0)
    facts = with_run({}, rel("v"), Ran(2, "incremental", "", "local", 1, 1, 1, 0.1), costs)
    before = replace(state("order_id", "status"), facts=facts)
    project.publish(v=(LOWER, before), other=(LOWER, state("order_id", "status")))
    ranked = "SELECT customer_id, count(*) AS n FROM shop.orders GROUP BY customer_id"
    result = project.plan(v=ranked)
    assert result.exit_code == 6, "something that is there is built anew"
    assert result.stdout.splitlines() == [
        "changed   view v: its query changed",
        f"          -{LOWER}",
        f"          +{ranked}",
        "          breaks  columns that go: order_id, status",
        "          breaks  key: order_id before, customer_id then",
        "          strategy  LINEAR -> SELF_MAINTAINED",
        "          reads  20,000 rows, about 4 s",
        "          rollback  `mview rollback v`, to the text that it has now",
        goes_on("other"),
    ]
    told = json.loads(project.plan("--json").stdout)
    assert told["views"][0]["fate"] == "changed"
    assert told["views"][0]["strategy_before"] == "LINEAR"
    assert told["views"][0]["rollback"] == LOWER
    assert told["not_given"] == ["other"]


def test_the_text_before_the_last_change_is_named(project):
    one, two = LOWER, "SELECT order_id FROM shop.orders"
    before = replace(state("order_id"), definition=digest_of(parse_view(one, "v")))
    after = replace(state("order_id"), definition=digest_of(parse_view(two, "v")))
    project.publish(v=(one, before))
    project.publish(v=(two, with_former(after, before)))
    assert project.plan(v=two).stdout.splitlines() == [
        "unchanged view v",
        "          rollback  `mview rollback v`, to the text that it had before its last change",
    ]
    assert json.loads(project.plan("--json").stdout)["views"][0]["rollback"] == one
    file = project.store.view("v") / f"definition-{before.definition}.json"
    file.write_text("{}")
    assert project.plan().stdout == "unchanged view v\n", "nothing promises what is damaged"


def test_a_text_that_halted_is_no_change(project):
    """Once the view is built by the text that it has, there is nothing before that."""
    halts = with_tried(state("order_id"), parse_view("SELECT order_id FROM shop.orders", "v"))
    project.publish(v=(LOWER, replace(halts, stale=True, halted="no number")))
    assert (
        load_former(project.store, ManifestLog(project.store.manifests).latest(), "v").sql == LOWER
    )
    assert "rollback" not in project.plan(v=LOWER).stdout


def test_a_view_that_another_begins_to_read_is_built_anew(project):
    project.publish(lower_view=(LOWER, state("order_id", "status")))
    result = project.plan(upper_view=UPPER)
    assert result.exit_code == 6, result.output
    assert result.stdout.splitlines() == [
        "rebuilt   view lower_view: upper_view reads it now, so its rows are kept in the store, "
        "too",
        "new       view upper_view: it is not in the store yet",
        goes_on("lower_view"),
    ]


def test_readers_of_a_changed_view_are_built_anew_though_they_are_not_given(project):
    views = {"lower_view": (LOWER, state("order_id", "status"))}
    views["upper_view"] = (UPPER, state("status", "n", strategy="AGGREGATE"))
    project.publish(mirrored=True, **views)
    assert project.plan(lower_view=LOWER).exit_code == 0
    result = project.plan(lower_view=f"{LOWER} WHERE order_id > 1")
    assert result.exit_code == 6
    assert result.stdout.splitlines()[-2:] == [
        "rebuilt   view upper_view: it reads lower_view",
        goes_on("upper_view"),
    ]
    assert json.loads(project.plan("--json").stdout)["not_given"] == ["upper_view"]


def test_a_halted_view_is_built_anew_though_it_is_not_given(project):
    halted = replace(state("order_id", "status"), stale=True, halted="a row is wrong")
    views = {"lower_view": (LOWER, halted)}
    views["upper_view"] = (UPPER, state("status", "n", strategy="AGGREGATE"))
    project.publish(mirrored=True, **views, other=(LOWER, state("order_id", "status")))
    result = project.plan(mine=LOWER)
    assert result.exit_code == 6, result.output
    assert result.stdout.splitlines() == [
        "rebuilt   view lower_view: it had halted",
        "rebuilt   view upper_view: it reads lower_view",
        "new       view mine: it is not in the store yet",
        "          reads  20,000 rows, not measured yet",
        *map(goes_on, ("lower_view", "other", "upper_view")),
    ]


def test_what_counts_without_a_build_is_told(project):
    sql = "CREATE MATERIALIZED VIEW v WITH ({}) AS " + LOWER
    project.publish(v=(sql.format("freshness='10 seconds'"), state("order_id", "status")))
    now = sql.format("freshness='2 seconds', policy='incremental_only', tags='a'")
    result = project.plan(v=now)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "unchanged view v",
        "          takes up  freshness, policy",
    ]
    (view,) = json.loads(project.plan("--json", v=now).stdout)["views"]
    assert view["takes"] == ["freshness", "policy"]


def test_a_table_is_loaded_anew_for_a_column_that_no_view_used(project):
    schema = TableSchema((Column("order_id", pa.int64()),), ("order_id",), ("status", "note"))
    project.loaded("shop.orders", schema, 20_000)
    before = "SELECT order_id FROM shop.orders"
    project.publish(v=(before, state("order_id")))
    assert project.plan(v=before).stdout == "unchanged view v\n"
    result = project.plan(v=before, w=LOWER)
    assert result.exit_code == 6, result.output
    assert result.stdout.splitlines() == [
        "rebuilt   view v: a table that it reads is loaded anew, or it was repaired",
        "new       view w: it is not in the store yet",
        "load      table shop.orders anew: view w uses status, not kept so far",
    ]


def test_a_new_view_sees_columns_that_a_table_got_later(project):
    sql = "SELECT * FROM shop.orders"
    project.publish(v=(sql, state(*ORDERS)))
    sqlite3.connect("shop.db").execute("ALTER TABLE orders ADD COLUMN added_later INT")
    assert project.plan(v=sql).stdout == "unchanged view v\n"
    result = project.plan(v=sql, w=sql)
    assert "load      table shop.orders anew: view w uses added_later, not kept so far" in (
        result.stdout.splitlines()
    )
    assert "rebuilt   view v" in result.stdout


def test_what_a_run_would_refuse(project):
    result = project.plan(v="SELECT nothing FROM shop.orders")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:3] == [
        "refused   view v: unknown column 'nothing'",
        "          1 | SELECT nothing FROM shop.orders",
        "                     ^^^^^^^",
    ]


def test_a_view_that_is_kept_in_the_other_mode_is_refused(project):
    """It was said not to be in the files, or to be new; a run refuses both."""
    light = f"CREATE MATERIALIZED VIEW v WITH (mode = 'light', sinks = 'there') AS {LOWER}"
    project.publish(v=(LOWER, state("order_id", "status")))
    source = TableSchema(tuple(Column(name, pa.string()) for name in ORDERS), ("order_id",))
    kept = parse_view(light.replace("VIEW v", "VIEW cheap"), "cheap")
    save_light(project.store, KeptLight(kept, source))
    result = project.plan(v=light, cheap=LOWER)
    assert result.exit_code == 1
    for view, mode in (("v", "full"), ("cheap", "light")):
        told = f"refused   view {view}: view {view} is kept in the {mode} mode: only `mview drop"
        assert told in result.stdout
    assert "not in these files" not in result.stdout
