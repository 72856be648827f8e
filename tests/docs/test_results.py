"""What --json prints is what docs/json.md says: every command, every field, and real answers."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict

import pyarrow as pa
import pytest
from click.testing import CliRunner

from mview.admin.against_source import RowDifference, TableVerified
from mview.admin.verify import VerifyResult
from mview.catalog.definitions import digest_of, save_definition, with_former
from mview.catalog.environments import keep_given, unpublished
from mview.changelog import to_ipc
from mview.cli import main
from mview.cli.display.progress import JsonDisplay
from mview.cli.output import Output, without_secrets
from mview.connector import Message, TableHalt
from mview.epoch.report import BuildReport, EpochReport, LoadReport, ViewChange
from mview.errors import MviewError, UserError
from mview.ingest.mending.reject import message_form
from mview.plan.definition import parse_view
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.identity import FORMAT
from mview.store.layout import Store
from mview.store.manifest import Manifest, ViewState
from mview.store.quarantine import Quarantine, Quarantined, kept_keys
from mview.store.requests.applies import ApplyAnswer
from tests.cli.test_past import published
from tests.docs.results import EVENTS, RESULTS, WITHOUT, fields, forms, hints, is_form, meanings
from tests.store.kept import KEPT

FORMS = forms([*RESULTS.values(), *EVENTS.values()])


def test_every_command_has_json() -> None:
    """Who adds a command says what it prints."""
    commands = {name.split()[0] for name in RESULTS}
    assert commands | WITHOUT == set(main.commands)
    assert not commands & WITHOUT
    for name, command in main.commands.items():
        has = any("--json" in parameter.opts for parameter in command.params)
        assert has is (name in commands), name


@pytest.mark.parametrize("kind", FORMS, ids=[kind.__name__ for kind in FORMS])
def test_every_field_has_a_meaning(kind: type) -> None:
    """Who adds a field says what it means under `Attributes:`: it stands on the page."""
    told = meanings(kind)
    assert [name for name in fields(kind) if not told.get(name)] == []


def conforms(value: Any, kind: Any, at: str = "") -> list[str]:
    """Where a value of JSON is none of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_form(kind):
        given = hints(kind)
        if not isinstance(value, dict):
            return [f"{at}: {value!r}"]
        optional = is_typeddict(kind) and not kind.__total__
        missing = [] if optional else [n for n in fields(kind) if n not in value]
        wrong = [f"{at}.{name} is missing" for name in missing]
        wrong += [f"{at}.{name} is not documented" for name in value if name not in given]
        known = [(n, v) for n, v in value.items() if n in given]
        return wrong + [w for n, v in known for w in conforms(v, given[n], f"{at}.{n}")]
    if kind in (Any, object):
        return []
    if origin is Literal:
        return [] if value in arguments else [f"{at}: {value!r}"]
    if origin is Union or type(kind).__name__ == "UnionType":
        tried = [conforms(value, part, at) for part in arguments]
        return [] if [] in tried else tried[0]
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            return [f"{at}: {value!r}"]
        return [w for n, v in value.items() for w in conforms(v, arguments[1], f"{at}.{n}")]
    if origin is tuple and Ellipsis not in arguments:
        if not isinstance(value, list) or len(value) != len(arguments):
            return [f"{at}: {value!r}"]
        return [w for v, part in zip(value, arguments, strict=True) for w in conforms(v, part, at)]
    if origin is not None and issubclass(origin, Sequence):
        if not isinstance(value, list):
            return [f"{at}: {value!r}"]
        return [w for n, v in enumerate(value) for w in conforms(v, arguments[0], f"{at}[{n}]")]
    kind = getattr(kind, "__supertype__", kind)
    wanted = {str: str, MviewError: str, bool: bool, type(None): type(None)}.get(kind, int)
    wanted = (int, float) if kind is float else wanted
    right = isinstance(value, wanted) and (kind is bool or not isinstance(value, bool))
    return [] if right else [f"{at}: {value!r} is no {kind}"]


def test_what_conforms() -> None:
    """The judge of the next test knows wrong from right."""

    @dataclasses.dataclass
    class Form:
        name: str
        count: int | None

    assert conforms({"name": "a", "count": None}, Form) == []
    for wrong in ({"name": 1, "count": 1}, {"name": "a"}, {"name": "a", "count": True}, []):
        assert conforms(wrong, Form), wrong
    assert conforms({"name": "a", "count": 1, "more": 2}, Form)
    assert conforms([1.5], list[int])
    assert conforms("c", Literal["a", "b"])


SHOP = """
store: data
connections: {shop: {drivername: sqlite, database: shop.db}}
changes: {shop: {source: files, format: unified, path: changes, T: 1s}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import sqlite3

    monkeypatch.chdir(tmp_path)
    published(tmp_path, 1_700_000_000_000)
    (tmp_path / "mview.yml").write_text(SHOP)
    (tmp_path / "changes").mkdir()
    with sqlite3.connect("shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, region TEXT)")
        database.execute("INSERT INTO orders VALUES (1, 'north')")
    database.close()
    (tmp_path / "w2.sql").write_text("SELECT region, count(*) AS n FROM shop.orders GROUP BY 1")
    (tmp_path / "bad.sql").write_text("SELECT nope FROM shop.orders")
    (tmp_path / "full.sql").write_text("SELECT rand() AS r, id FROM shop.orders")
    (tmp_path / "tests.yml").write_text(
        "views: [w2.sql]\n"
        "tables: {shop.orders: {columns: {id: bigint, region: string}, key: [id]}}\n"
        "tests: [{name: none, expect: {w2: []}}]\n"
    )
    return tmp_path


#: What is typed of each command on the project.
ON_PROJECT = {
    "init": "init sqlite:///shop.db --folder new",
    "doctor": "doctor w2.sql",
    "check": "check w2.sql bad.sql",
    "explain": "explain w2.sql",
    "preview": "preview w2.sql",
    "test": "test tests.yml",
    "test --random": "test tests.yml --random 2",
    "plan": "plan w2.sql bad.sql",
    "lineage": "lineage w2.sql",
    "status": "status",
    "lag": "lag",
    "history": "history",
    "migrate": "migrate",
}


@pytest.mark.parametrize("command", ON_PROJECT)
def test_what_commands_print_is_what_the_page_says(project: Path, command: str) -> None:
    check(command, ON_PROJECT[command])


def check(command: str, typed: str) -> None:
    """Run it, and hold what it prints to what the page says of the command."""
    config = [] if command == "init" else ["-c", "mview.yml"]
    result = CliRunner().invoke(main, [*typed.split(), "--json", *config])
    told = json.loads(result.stdout)
    assert told, result.output
    assert conforms(told, RESULTS[command]) == []


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kept shop, with a view that was changed, an environment, and a change in quarantine.

    A run that does what it is asked for, and what takes Spark, are there as far as they answer.
    """
    with zipfile.ZipFile(KEPT / f"format-{FORMAT}.zip") as file:
        file.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store")
    log = ManifestLog(store.manifests)
    newest = log.latest()
    assert newest is not None

    rich = parse_view("SELECT s.name, s.id FROM spent s WHERE s.total > 50", "rich")
    save_definition(store, rich)
    before = newest.views["rich"]
    after = with_former(dataclasses.replace(before, definition=digest_of(rich)), before)

    orders = RelationId.of("shop.orders")
    folder = Quarantine(store.quarantined(orders))
    folder.put_messages(3, 1, [message_form(Message("0", 7, b"{}", b'{"id": 4}'))])
    aside = Quarantined(
        id="3.0",
        epoch=3,
        at_ms=newest.created_ms,
        needed_ms=newest.created_ms,
        partition="0",
        offset=7,
        event=0,
        position="",
        keys=kept_keys(to_ipc(pa.table({"id": [4]}))),
        overtaken=("no",),
        why=TableHalt("total is no number", "0, offset 7", "'a lot'"),
        bytes=11,
        messages=folder.messages_name(3, 1),
        number=0,
    )
    table = dataclasses.replace(newest.tables[orders], quarantine=folder.write(3, 1, [aside]))
    log.publish(
        dataclasses.replace(
            newest,
            epoch=newest.epoch + 1,
            tables={**newest.tables, orders: table},
            views={**newest.views, "rich": after},
        )
    )

    own = Store(store.environment("dev"))
    own.root.mkdir(parents=True)
    picked = parse_view(
        "CREATE MATERIALIZED VIEW picked WITH (sinks='other', mode='light') AS"
        " SELECT id, total FROM shop.orders",
        "picked",
    )
    keep_given(own, [rich, picked])
    shown = {
        view.name: ViewState(digest_of(unpublished(view)), "", before.schema, {}, 1)
        for view in (rich, picked)
    }
    ManifestLog(own.manifests).publish(Manifest(1, 1, 100, 1, 1, views=shown))

    done = ApplyAnswer("done", {"rich": "built"}, ("shop.later",), {"w": "twice"}, epoch=7)
    monkeypatch.setattr("mview.admin.apply.check_running", lambda *_: None)
    monkeypatch.setattr("mview.admin.apply.apply_views", lambda *_, then: done)
    row = {"id": 4, "total": "100.00"}
    view = VerifyResult("rich", 3, 1, False, missing=[row], extra=[row])
    monkeypatch.setattr("mview.admin.verify.verify", lambda *_: [view])
    differs = RowDifference({"id": 4}, "neither", ("total",))
    compared = TableVerified("shop.orders", 3, 3, False, 1, sample=(differs,))
    monkeypatch.setattr("mview.admin.against_source.verify_tables", lambda *_, **__: [compared])
    return tmp_path


#: What is typed of each command on the shop.
ON_SHOP = {
    "apply": "apply sql",
    "promote": "promote --env dev --plan",
    "rollback": "rollback rich",
    "why": "why spent --key 1",
    "pause": "pause shop.later",
    "resume": "resume shop.later",
    "backfill": "backfill shop.orders",
    "quarantine list": "quarantine list --messages",
    "quarantine retry": "quarantine retry shop.orders",
    "quarantine discard": "quarantine discard shop.orders",
    "verify": "verify sql",
    "verify --source": "verify sql shop.orders --source",
    "maintain": "maintain",
    "repair": "repair latest",
    "drop": "drop latest --yes",
    "support-bundle": "support-bundle",
}


@pytest.mark.parametrize("command", ON_SHOP)
def test_what_commands_of_a_shop_print_is_what_the_page_says(shop: Path, command: str) -> None:
    check(command, ON_SHOP[command])


def test_every_command_is_held_to_the_page() -> None:
    """Who adds one adds a line to what is typed."""
    assert {*ON_PROJECT, *ON_SHOP} == {*RESULTS}


def test_events_of_a_run_are_what_the_page_says() -> None:
    lines: list[dict[str, Any]] = []

    class Lines(Output):
        def json_line(self, data: Any) -> None:
            lines.append(without_secrets(data, self.mask))

    display = JsonDisplay(Lines())
    display.on_load(LoadReport("shop.orders", 1, 2, 3, False))
    display.on_build(BuildReport("v", 1, 2, 3, None))
    change = ViewChange(1, 2, 3, 4, "LINEAR", "local")
    epoch = EpochReport(
        epoch=7,
        duration_ms=12,
        lag_ms=None,
        changes={"shop.orders": 1},
        views={"v": change},
        halted={"w": UserError("twice")},
        tables={RelationId.of("shop.orders"): TableHalt("a column is gone")},
        stages={"net": 0.5},
        quarantine=("shop.orders: 1 change",),
    )
    display.on_epoch(epoch)
    assert [line["event"] for line in lines] == [*EVENTS]
    for line in lines:
        assert line.pop("time").endswith("Z")
        assert conforms(line, EVENTS[line.pop("event")]) == []


def test_a_light_view_that_is_not_promoted_is_told(shop: Path) -> None:
    typed = ["promote", "--env", "dev", "--plan", "-c", "mview.yml"]
    told = json.loads(CliRunner().invoke(main, [*typed, "--json"]).stdout)
    assert told["light"] == ["picked"]
    assert "\nleft out  view picked: it is in light mode" in CliRunner().invoke(main, typed).stdout
    named = json.loads(CliRunner().invoke(main, [*typed, "rich", "--json"]).stdout)
    assert named["light"] == []
