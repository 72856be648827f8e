"""What becomes of views when a run begins, with why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mview.catalog.definitions import digest_of, save_definition
from mview.epoch.views.fate import Fate, fates
from mview.plan.definition import parse_view
from mview.schema import TableSchema
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState, ViewState
from mview.store.mirror import ROW
from tests.ivm.world import table_schema
from tests.relations import rel

LOWER = parse_view("SELECT id, status FROM shop.orders", "lower_view")
UPPER = parse_view("SELECT count(*) AS n FROM lower_view", "upper_view")
ANOTHER = replace(LOWER, sql="SELECT id FROM shop.orders", key=("id",))
OTHER = digest_of(ANOTHER)
EMPTY = TableSchema((), ())
STATE = ViewState(digest_of(LOWER), "LINEAR", EMPTY, {}, 1)


@pytest.fixture
def store(tmp_path):
    """A store whose texts were all published as they are."""
    store = Store(tmp_path)
    for view in (LOWER, UPPER, ANOTHER):
        save_definition(store, view)
    return store


def fate_of_lower(store, state, *others, beside=(), kept=()):
    tables = {name: TableState(EMPTY, 0, 0) for name in kept}
    manifest = Manifest(1, 1, 1, 1, 0, tables=tables, views={LOWER.name: state} if state else {})
    views = [LOWER, *others]
    told = fates(views, {v.name: beside if v is LOWER else () for v in views}, store, manifest, {})
    return told[LOWER.name]


@pytest.mark.parametrize(
    ("state", "others", "kept", "fate"),
    [
        (None, (), (), Fate("new", "it is not in the store yet")),
        (
            replace(STATE, definition=OTHER),
            (),
            (),
            Fate("changed", "its query and key"),
        ),
        (replace(STATE, definition="x"), (), (), Fate("changed", "it changed; the text that it")),
        (replace(STATE, stale=True), (), (), Fate("rebuilt", "a table that it reads is loaded")),
        (replace(STATE, stale=True, halted="x"), (), (), Fate("rebuilt", "it had halted")),
        (STATE, (UPPER,), (), Fate("rebuilt", "upper_view reads it now, so its rows are kept")),
        (STATE, (), (LOWER.relation,), Fate("rebuilt", "what is kept beside its table is not")),
        (STATE, (), (LOWER.relation, rel("other")), Fate()),
    ],
)
def test_each_reason_in_its_order(store, state, others, kept, fate):
    told = fate_of_lower(store, state, *others, beside=(LOWER.relation, rel("other")), kept=kept)
    assert told.becomes == fate.becomes
    assert told.why.startswith(fate.why)
    assert bool(told.why) is bool(fate.why)


def test_what_reads_one_that_is_built_is_built(store):
    told = fates([LOWER, UPPER], {LOWER.name: (), UPPER.name: ()}, store, None, {})
    assert [fate.becomes for fate in told.values()] == ["new", "new"]
    states = {
        LOWER.name: replace(STATE, stale=True),
        UPPER.name: replace(STATE, definition=digest_of(UPPER)),
    }
    manifest = Manifest(1, 1, 1, 1, 0, tables={}, views=states)
    told = fates([LOWER, UPPER], {LOWER.name: (), UPPER.name: ()}, store, manifest, {})
    assert told[UPPER.name] == Fate("rebuilt", "it reads lower_view")


def test_a_view_that_a_sink_begins_to_follow_is_built_for_it(store):
    followed = replace(LOWER, sinks={"copies": {}})
    manifest = Manifest(1, 1, 1, 1, 0, views={followed.name: STATE})
    told = fates([followed], {followed.name: [followed.relation]}, store, manifest, {})
    assert told[followed.name].why == (
        "copies follows it now, so its rows are kept in the store, too"
    )


@pytest.mark.parametrize(
    ("relation", "key", "becomes"),
    [
        (LOWER.relation, ("id",), "unchanged"),
        (LOWER.relation, (), "rebuilt"),
        (LOWER.relation.state, ("status",), "unchanged"),
        (LOWER.relation.state, ("id",), "rebuilt"),
        (rel("other"), ("id",), "unchanged"),
    ],
)
def test_a_view_whose_key_is_found_otherwise_is_built_anew(store, relation, key, becomes):
    tables = {
        LOWER.relation: TableState(
            table_schema(f"id bigint, status string, {ROW} bigint", ROW), 0, 0
        ),
        LOWER.relation.state: TableState(table_schema("status string", "status"), 0, 0),
        rel("other"): TableState(EMPTY, 0, 0),
    }
    state = replace(STATE, schema=table_schema("id bigint, status string", "id"))
    manifest = Manifest(1, 1, 1, 1, 0, tables=tables, views={LOWER.name: state})
    told = fates([LOWER], {LOWER.name: ()}, store, manifest, {relation: key})
    assert told[LOWER.name].becomes == becomes
