"""The pages that are made of the code are what the code is: `python -m tests.docs` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_what_the_code_is(page) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page](), "write it: python -m tests.docs"


def test_the_drawing_of_the_architecture_has_every_room() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = page.split("```")[1]
    drawn = [name for line in drawing.splitlines() for name in re.findall(r"[a-z]+", line[:37])]
    rooms = {init.parent.name for init in root.glob("mview/*/__init__.py")}
    assert sorted(drawn) == sorted(rooms | {"follower"})  # which is one module


def test_the_version_has_a_section_of_the_changelog() -> None:
    root = Path(__file__).parents[2]
    said = re.findall(r'^version = "(.*)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert len(said) == 1
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[([^]]+)\]", changes, re.MULTILINE)
    assert sections[:2] == ["Unreleased", said[0]]
