"""What --json prints is what docs/json.md says: every command, every field, and real answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict

import pytest
from click.testing import CliRunner

from mview.cli import main
from tests.cli.test_past import published
from tests.docs.results import RESULTS, WITHOUT, fields, forms, hints, is_form, meanings

FORMS = forms(list(RESULTS.values()))


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
    wanted = {str: str, bool: bool, type(None): type(None)}.get(kind, int)
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


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("init", ["sqlite:///shop.db", "--folder", "new"]),
        ("doctor", ["w2.sql"]),
        ("check", ["w2.sql", "bad.sql"]),
        ("explain", ["w2.sql"]),
        ("preview", ["w2.sql"]),
        ("test", ["tests.yml"]),
        ("test --random", ["tests.yml", "--random", "2"]),
        ("plan", ["w2.sql", "bad.sql"]),
        ("lineage", ["w2.sql"]),
        ("status", []),
        ("lag", []),
        ("history", []),
        ("maintain", []),
        ("migrate", []),
    ],
)
def test_what_commands_print_is_what_the_page_says(
    project: Path, command: str, arguments: list[str]
) -> None:
    config = [] if command == "init" else ["-c", "mview.yml"]
    result = CliRunner().invoke(main, [command.split()[0], *arguments, "--json", *config])
    told = json.loads(result.stdout)
    assert told or command == "maintain", result.output
    assert conforms(told, RESULTS[command]) == []
