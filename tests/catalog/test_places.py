"""Ours is what we marked: where a store and a view's table may lie, and what is deleted there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from mview_connectors.sinks.delta import DeltaSink

from mview.admin.content import StoredView
from mview.admin.drop import drop
from mview.catalog.definitions import (
    digest_of,
    load_definition,
    load_former,
    mend_definitions,
    save_definition,
    with_former,
)
from mview.catalog.functions import is_declared
from mview.catalog.sinks import open_sink
from mview.cli import main
from mview.clock import WallMs
from mview.connector import Sink, SinkTarget
from mview.errors import ConfigError, CorruptionError, UserError
from mview.plan.definition import ViewDefinition, parse_view
from mview.plan.functions.declared import Function
from mview.run.pipeline import Pipeline
from mview.store.history import ManifestLog
from mview.store.identity import STORE_MARK, claim_store, store_id
from mview.store.layout import Store
from mview.store.manifest import Manifest, ViewState
from tests.conftest import small_config
from tests.connectors.sinks_contract import SinkContract, delta_of

SCHEMA = SinkContract.SMALL


def sink(folder: Path, store: str = "ours", view: str = "v") -> DeltaSink:
    return DeltaSink(SinkTarget(view, SCHEMA, "w", {"path": str(folder)}, store=store))


def filled(folder: Path, store: str = "ours", epochs: int = 2) -> dict[str, Any]:
    """A table after some epochs; returns the facts of the last one."""
    facts: dict[str, Any] = {}
    for epoch in range(1, epochs + 1):
        one = sink(folder, store)
        facts = one.commit(one.stage(epoch, delta_of(SCHEMA, {(epoch, "a"): 1})))
    return facts


def content(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("V", "v"), "views 'V' and 'v' differ in case only"),
        (("v", "v"), "two views are called 'v'"),
    ],
)
def test_two_views_of_one_name_that_a_program_gives(
    tmp_path: Path, names: tuple[str, str], told: str
) -> None:
    texts = ["select id from shop.t", "select id + 1 as id from shop.t"]
    for files in ((), ("one.sql", "other.sql")):
        views = [
            parse_view(text, name, *files[n : n + 1])
            for n, (text, name) in enumerate(zip(texts, names, strict=True))
        ]
        with pytest.raises(UserError, match=told) as caught:
            Pipeline(small_config(tmp_path), views).run(once=True)
        assert caught.value.where == (
            "one.sql:1 and other.sql:1" if files else "<sql>:1 and <sql>:1"
        )
    assert not (tmp_path / "store" / "views").exists()


def test_a_store_is_made_once(tmp_path: Path) -> None:
    made = claim_store(tmp_path / "a" / "store")
    assert claim_store(tmp_path / "a" / "store") == made == store_id(tmp_path / "a" / "store")
    assert (tmp_path / "a" / "store").stat().st_mode & 0o777 == 0o700
    assert claim_store(tmp_path / "b") != made


def test_a_folder_of_somebody_else_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "mine.sql").write_text("SELECT 1")
    before = content(tmp_path)
    with pytest.raises(ConfigError, match=r"(?s)not empty and not a store.*views"):
        claim_store(tmp_path)
    assert content(tmp_path) == before


def test_what_a_process_left_that_died_while_it_made_the_store(tmp_path: Path) -> None:
    (tmp_path / f"_{0:032x}.tmp").write_text("{")
    assert claim_store(tmp_path)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Check a view `v` with this path, and a store; returns exit code and output."""
    project = tmp_path / "project"
    (project / "changes").mkdir(parents=True)
    (project / "sql").mkdir()
    (project / "sql" / "mine.sql").write_text("SELECT 1")
    import sqlite3

    with sqlite3.connect(project / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    monkeypatch.chdir(project)

    def run(path: str | None = None, store: str = "store", more: str | None = None):
        (project / "mview.yml").write_text(
            f"store: {json.dumps(store)}\n"
            "connections: {shop: {drivername: sqlite, database: shop.db}}\n"
            "changes: {shop: {source: files, format: unified, path: changes}}\n"
        )
        views = {"v": path, "w": more} if more is not None else {"v": path}
        for name, target in views.items():
            given = "" if target is None else f"WITH (path = '{target}') "
            sql = f"CREATE MATERIALIZED VIEW {name} {given}AS SELECT id FROM shop.orders"
            (tmp_path / f"{name}.sql").write_text(sql)
        files = [str(tmp_path / f"{name}.sql") for name in views]
        before = content(tmp_path)
        result = CliRunner().invoke(main, ["check", *files, "-c", "mview.yml"])
        assert content(tmp_path) == before
        return result.exit_code, result.output

    return run


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "the folder of the configuration"),
        (".", "the folder of the configuration"),
        ("..", "the folder of the configuration, or above"),
        ("/", "the root of the file system"),
        ("~", "not expanded"),
        ("~/v", "not expanded"),
        ("store", "the store"),
        ("store/views/v/data", "the store"),
        ("changes/v", "changes.shop"),
        ("file:///tmp/v", "a URL (file:…)"),
        ("s3://bucket/v", "a URL (s3:…)"),
        ("sql", "not empty"),
        ("shop.db", "is a file"),
        ("a%20b/v", "'%' in the path of a Delta table"),
    ],
)
def test_paths_that_are_refused(check: Callable[..., tuple[int, str]], path: str, why: str) -> None:
    code, output = check(path)
    assert code != 0
    assert why in output


def test_a_folder_in_a_store_that_no_reader_finds_is_told_before_a_run(
    check: Callable[..., tuple[int, str]],
) -> None:
    code, output = check(store="a%20b/store")
    assert code != 0
    assert "'%' in the path of a Delta table" in output
    assert "WITH (path = '…')" in output
    assert check("out/v", store="a%20b/store")[0] == 0


@pytest.mark.parametrize(
    ("folder", "why"), [("theirs", "in another Delta table"), ("other", "in another store")]
)
def test_nothing_of_ours_lies_where_others_clean(
    check: Callable[..., tuple[int, str]], folder: str, why: str
) -> None:
    """A VACUUM of theirs, or the start of another store's run, would delete it."""
    write_deltalake("theirs", pa.table({"k": [1]}))
    claim_store(Path("other"))
    for output in (
        check(f"{folder}/views/w")[1],
        check(f"{folder}/data")[1],
        check(store=f"{folder}/store")[1],
    ):
        assert why in output


def test_a_link_to_nothing_is_no_place(check: Callable[..., tuple[int, str]]) -> None:
    Path("link").symlink_to("gone")
    code, output = check("link")
    assert code != 0
    assert "a link to nothing" in output
    with pytest.raises(ConfigError, match="a link to nothing"):
        claim_store(Path("link"))


@pytest.mark.parametrize("mark", ["{}", "[]", "{", '{"id": 1}', None])
def test_a_damaged_mark_is_told(tmp_path: Path, mark: str | None) -> None:
    if mark is None:
        (tmp_path / STORE_MARK).mkdir()
    else:
        (tmp_path / STORE_MARK).write_text(mark)
    for ask in (store_id, claim_store):
        with pytest.raises(CorruptionError, match="the mark that says whose a folder is"):
            ask(tmp_path)


@pytest.mark.parametrize("path", ["out/v", "../v", "empty"])
def test_paths_that_are_fine(check: Callable[..., tuple[int, str]], path: str) -> None:
    Path("empty").mkdir()
    code, output = check(path)
    assert code == 0
    assert output.splitlines()[-1] == "v: ok, key id, reads shop.orders; LINEAR"


@pytest.mark.parametrize("other", ["out/v", "out", "out/v/w", "./out/../out/v"])
def test_two_views_in_one_folder(check: Callable[..., tuple[int, str]], other: str) -> None:
    code, output = check("out/v", more=other)
    assert code != 0
    assert "that of view v" in output


@pytest.mark.parametrize("store", ["", ".", "..", "/", "sql", "changes", "s3://bucket/store"])
def test_stores_that_are_refused(check: Callable[..., tuple[int, str]], store: str) -> None:
    code, output = check(store=store)
    assert code == 2
    assert "store" in output


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "2023-report.parquet").write_bytes(b"mine")
    write_deltalake(tmp_path / "v" / "theirs", pa.table({"k": [1]}))
    before = content(tmp_path)
    one = sink(tmp_path / "v")
    for refused in (one.check, lambda: one.stage(1, delta_of(SCHEMA, {(1, "a"): 1})), one.drop):
        with pytest.raises(UserError, match=r"(?s)not empty.*2023-report"):
            refused()
    assert content(tmp_path) == before


def test_what_others_put_beside_a_table_stays(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    facts = filled(folder)
    (folder / "2023-report.parquet").write_bytes(b"mine")
    (folder / "_staging" / "notes").mkdir(parents=True)
    (folder / "_staging" / "notes" / "a.parquet").write_bytes(b"mine")
    write_deltalake(folder / "theirs", pa.table({"k": [1]}))
    foreign = {"2023-report.parquet", "_staging/notes/a.parquet"}
    foreign |= {name for name in content(folder) if name.startswith("theirs/")}
    before = {name: data for name, data in content(folder).items() if name in foreign}
    one = sink(folder)
    one.stage(99, delta_of(SCHEMA, {(99, "a"): 1}))
    one.rollback(None, facts)
    one.maintain(facts, [])
    assert sink(folder).rows(facts).num_rows == 2
    sink(folder).drop()
    assert content(folder) == before
    sink(folder).rollback(None, None)
    assert content(folder) == before


def test_what_a_process_left_that_died_while_it_made_the_mark(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / f"_{0:032x}.tmp").write_text("{")
    assert sink(tmp_path / "v").rows(filled(tmp_path / "v")).num_rows == 2


def test_an_empty_folder_goes_with_the_table(tmp_path: Path) -> None:
    filled(tmp_path / "v")
    for _ in range(2):
        sink(tmp_path / "v").drop()
        assert not (tmp_path / "v").exists()


def test_a_log_that_names_files_elsewhere_does_not_make_them_ours(tmp_path: Path) -> None:
    filled(tmp_path / "v")
    (tmp_path / "mine.parquet").write_bytes(b"mine")
    log = tmp_path / "v" / "_delta_log"
    names = ["../mine.parquet", str(tmp_path / "mine.parquet"), f"file://{tmp_path}/mine.parquet"]
    removes = [json.dumps({"remove": {"path": name, "dataChange": True}}) for name in names]
    (log / f"{2:020d}.json").write_text("\n".join(removes))
    sink(tmp_path / "v").drop()
    assert content(tmp_path) == {"mine.parquet": b"mine"}


@pytest.mark.parametrize("damaged", [f"{0:020d}.json", f"{1:020d}.json"])
def test_a_table_with_a_damaged_log_can_be_dropped(tmp_path: Path, damaged: str) -> None:
    filled(tmp_path / "v")
    (tmp_path / "v" / "_delta_log" / damaged).write_text('{"add"')
    sink(tmp_path / "v").drop()
    assert not (tmp_path / "v").exists()


def test_two_stores_with_one_path(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    facts = filled(folder)
    other = sink(folder, store="another")
    for refused in (
        other.check,
        lambda: other.stage(1, delta_of(SCHEMA, {(1, "a"): 1})),
        lambda: other.staging(1),
        other.drop,
    ):
        with pytest.raises(UserError, match=r"(?s)belongs to another store.*store ours"):
            refused()
    with pytest.raises(UserError, match="belongs to another view"):
        sink(folder, view="w").check()
    assert sink(folder).rows(facts).num_rows == 2
    sink(folder).drop()
    sink(folder, store="another").check()


def test_a_copy_of_a_store_leaves_the_tables_elsewhere_to_the_original(tmp_path: Path) -> None:
    """Both have one id; each would take back what the other one has published."""
    view = parse_view(
        f"CREATE MATERIALIZED VIEW v WITH (path = '{tmp_path / 'v'}') AS SELECT k FROM s.t", "v"
    )
    inside = parse_view("SELECT k FROM s.t", "w")

    def opened(name: str, definition: ViewDefinition = view) -> Sink:
        store = Store(tmp_path / name)
        claim_store(store.root)
        config = small_config(tmp_path).model_copy(update={"store": store.root})
        return open_sink(config, store, definition, SCHEMA, "d")

    one = opened("store")
    facts = one.commit(one.stage(1, delta_of(SCHEMA, {(1, "a"): 1})))
    token = one.stage(2, delta_of(SCHEMA, {(2, "a"): 1}))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    before = content(tmp_path / "v")
    copy = opened("copy")
    for refused in (
        lambda: copy.stage(2, delta_of(SCHEMA, {(3, "a"): 1})),
        lambda: copy.commit(token),
        lambda: copy.rollback(None, facts),
        lambda: copy.maintain(facts, []),
        lambda: copy.repair(facts),
        lambda: copy.drop(),
    ):
        with pytest.raises(UserError, match=r"(?s)is a copy of.*store, which is still there"):
            refused()
    assert content(tmp_path / "v") == before
    assert copy.rows(facts).num_rows == 1
    own = opened("copy", inside)
    own.commit(own.stage(1, delta_of(SCHEMA, {(1, "a"): 1})))
    # The same store by another name is no copy, and one that is alone was moved.
    (tmp_path / "link").symlink_to("store")
    assert opened("link").commit(token)["version"] == 1
    shutil.rmtree(tmp_path / "store")
    opened("copy").rollback(None, facts)
    (tmp_path / "copy").rename(tmp_path / "moved")
    opened("moved").rollback(None, facts)


def test_the_table_says_whose_it_is_where_the_mark_was_lost(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    filled(folder)
    (folder / "_mview.json").unlink()
    with pytest.raises(UserError, match="belongs to another store"):
        sink(folder, store="another").check()
    sink(folder).check()


def test_a_copied_commit_of_another_store_is_not_rolled_back(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    facts = filled(folder, epochs=2)
    entry = folder / "_delta_log" / f"{1:020d}.json"
    entry.write_text(entry.read_text().replace('\\"ours\\"', '\\"another\\"'))
    with pytest.raises(Exception, match=r"(?s)somebody else changed rows.*version 1"):
        sink(folder).rollback(None, {**facts, "version": 0, "epoch": 1})


def test_a_stored_function_is_never_run(tmp_path: Path) -> None:
    store, view = Store(tmp_path / "store"), parse_view("SELECT id, vat(id) AS v FROM s.t", "v")
    view = replace(view, functions=(Function("vat", "my_functions:vat", "int", "python"),))
    save_definition(store, view)
    (file,) = store.view("v").glob("definition-*.json")
    named = ViewState(digest_of(view), "LINEAR", SCHEMA, {}, 1)
    manifest = Manifest(1, 1, WallMs(0), 1, 0, views={"v": named})
    assert load_definition(store, manifest, "v").called == view.called
    vat = {"python": "my_functions:vat", "returns": "int", "deterministic": True}
    assert is_declared(small_config(tmp_path, functions={"vat": vat}), view)
    file.write_text(file.read_text().replace("my_functions:vat", "os:system"))
    with pytest.raises(CorruptionError, match="definition of a view"):
        load_definition(store, manifest, "v")
    # Also with a digest that fits.
    other = replace(view, functions=(Function("vat", "os:system", "int", "python"),))
    save_definition(store, other)
    assert not is_declared(small_config(tmp_path, functions={"vat": vat}), other)
    assert not is_declared(small_config(tmp_path), other)


def test_a_damaged_definition_is_written_again_by_the_same_view(tmp_path: Path) -> None:
    store, view = Store(tmp_path / "store"), parse_view("SELECT id FROM s.t", "v")
    save_definition(store, view)
    (file,) = store.view("v").glob("definition-*.json")
    named = ViewState(digest_of(view), "LINEAR", SCHEMA, {}, 1)
    manifest = Manifest(1, 1, WallMs(0), 1, 0, views={"v": named})
    for damaged in ("", file.read_text().replace("s.t", "s.u")):
        file.write_text(damaged)
        mend_definitions(store, manifest, [parse_view("SELECT id + 1 AS id FROM s.t", "v")])
        with pytest.raises(CorruptionError, match=r"(?s)definition of a view.*own file"):
            load_definition(store, manifest, "v")
        mend_definitions(store, manifest, [view])
        assert load_definition(store, manifest, "v") == view


def test_what_makes_a_view_no_other_one_counts_as_it_is_given(tmp_path: Path) -> None:
    """A freshness that was added to a view was shown by nothing, and missed by no alert."""
    store, text = Store(tmp_path / "store"), "SELECT id FROM s.t"
    before = parse_view(text, "v")
    save_definition(store, before)
    named = ViewState(digest_of(before), "LINEAR", SCHEMA, {}, 1)
    manifest = Manifest(1, 1, WallMs(0), 1, 0, views={"v": named})
    (file,) = store.view("v").glob("definition-*.json")
    written = file.stat().st_ino
    function = Function("vat", "my_functions:vat", "int", "python")
    mend_definitions(store, manifest, [replace(before, functions=(function,), tags=("new",))])
    assert file.stat().st_ino == written  # nothing of it is kept
    for properties in ("freshness='5 s'", "policy='incremental_only'", "sinks='copy'"):
        given = parse_view(
            f"CREATE MATERIALIZED VIEW v COMMENT 'c' WITH ({properties}) AS {text}", "v"
        )
        assert digest_of(given) == digest_of(before)
        mend_definitions(store, manifest, [given])
        assert load_definition(store, manifest, "v") == given


def test_a_damaged_former_text_is_not_said_to_be_written_again(tmp_path: Path) -> None:
    """The view is whole, and goes on: nothing that mends the view brings its former text back."""
    store = Store(tmp_path / "store")
    before, now = (parse_view(f"SELECT {what} AS id FROM s.t", "v") for what in ("id", "id + 1"))
    for view in (before, now):
        save_definition(store, view)
    states = [ViewState(digest_of(view), "LINEAR", SCHEMA, {}, 1) for view in (before, now)]
    manifest = Manifest(1, 1, WallMs(0), 1, 0, views={"v": with_former(states[1], states[0])})
    assert load_former(store, manifest, "v") == before
    (store.view("v") / f"definition-{digest_of(before)}.json").write_text("{")
    with pytest.raises(CorruptionError, match="definition of a view") as caught:
        load_former(store, manifest, "v")
    assert "`mview apply`" in str(caught.value.hint)
    assert "mview drop" not in str(caught.value)
    assert load_definition(store, manifest, "v") == now


def test_a_view_with_a_damaged_definition_can_be_dropped(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    store, states = Store(config.store), {}
    claim_store(store.root)
    for name in ("v", "w"):
        view = parse_view("SELECT id FROM s.t", name)
        save_definition(store, view)
        target = open_sink(config, store, view, SCHEMA, "d")
        facts = target.commit(target.stage(1, delta_of(SCHEMA, {(1, "a"): 1})))
        states[name] = ViewState(digest_of(view), "LINEAR", SCHEMA, facts, 1)
    log = ManifestLog(store.manifests)
    log.publish(Manifest(1, 1, WallMs(0), 1, 0, views=states))
    (file,) = store.view("v").glob("definition-*.json")
    file.write_text("{")
    assert drop(config, ["w"]).damaged == []
    assert drop(config, ["v"]).damaged == ["v"]
    assert not store.view("v").exists()
    newest = log.latest()
    assert newest is not None
    assert not newest.views


@pytest.mark.parametrize(
    "when",
    [-1, 2, 10**300, True, None, "", "41", "0001-01-01 00:00+14:00", "9999-12-31 23:59",
     float("nan"), b"x"],
)  # fmt: skip
def test_what_is_no_kept_epoch_is_told(tmp_path: Path, when: Any) -> None:
    config = small_config(tmp_path)
    claim_store(config.store)
    store = Store(config.store)
    view = parse_view("SELECT id FROM s.t", "v")
    save_definition(store, view)
    state = ViewState(digest_of(view), "LINEAR", SCHEMA, {}, 1)
    ManifestLog(store.manifests).publish(Manifest(1, 1, WallMs(0), 1, 0, views={"v": state}))
    now = StoredView(config, "v")
    assert now.as_of(np.int64(1)).epoch == now.as_of("2026-01-01 23:59").epoch == 1
    told = "is not kept|is not published yet|is yet to come|neither an epoch nor a time"
    with pytest.raises(UserError, match=told):
        now.as_of(when)


def test_status_imports_nothing_that_the_store_names(tmp_path: Path) -> None:
    (tmp_path / "mview.yml").write_text("store: store\n")
    (tmp_path / "planted_by_hand.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w').close()\n"
    )
    store = Store(tmp_path / "store")
    claim_store(store.root)
    view = parse_view("SELECT id, vat(id) AS v FROM s.t", "v")
    view = replace(view, functions=(Function("vat", "planted_by_hand:vat", "int", "python"),))
    save_definition(store, view)
    named = ViewState(digest_of(view), "LINEAR", SCHEMA, {}, 1)
    ManifestLog(store.manifests).publish(Manifest(1, 1, WallMs(0), 1, 0, views={"v": named}))
    ended = CliRunner().invoke(main, ["status", "-c", str(tmp_path / "mview.yml")])
    assert ended.exit_code == 0, ended.output
    assert not (tmp_path / "imported").exists()
