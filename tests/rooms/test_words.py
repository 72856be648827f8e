"""One word has one meaning: what a class is called, it is called in one room only."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


#: Classes, variables, parameters, arguments.
_NAMING = (ast.ClassDef, ast.Name, ast.arg, ast.keyword)

# One process for all: files are read once.
pytestmark = pytest.mark.xdist_group("words")


@cache
def naming(file: Path) -> list[ast.AST]:
    """What names something in a file."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return [node for node in nodes if isinstance(node, _NAMING)]


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for room in ("mview", "connectors"):
        for file in sorted((ROOT / room).rglob("*.py")):
            for node in naming(file):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 300
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


#: Rooms where names say what a thing is.
CLEAN = (
    "mview",
    *(f"connectors/mview_connectors/{kind}" for kind in ("changelogs", "databases", "formats")),
    *(f"connectors/mview_connectors/{kind}" for kind in ("sinks", "followers")),
)


def test_names_say_what_a_thing_is() -> None:
    """`one` and `found` say nothing: the reader must look where they come from."""
    for room in CLEAN:
        for file in sorted((ROOT / room).rglob("*.py")):
            for node in naming(file):
                name = node.id if isinstance(node, ast.Name) else getattr(node, "arg", "")
                place = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
                assert name not in ("one", "found"), place
