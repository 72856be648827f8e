"""Every command on a page is one: the program takes it apart."""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from importlib.util import find_spec

import click
import pytest

from mview.cli import main
from tests.docs.commands import PAGES, ROOT, Shown, shown_in

SHOWN = list(dict.fromkeys(shown for page in PAGES for shown in shown_in(page)))

#: Words that stand for something in the text: `mview explain FILE…`, `mview history [VIEW…]`.
_STANDS_FOR = re.compile(r"\[.*\]|.*…|[A-Z|]+")

#: What a command lacks that is only named.
_UNFINISHED = (click.MissingParameter, click.BadOptionUsage)


def of(program: str) -> list[Shown]:
    return [shown for shown in SHOWN if shown.words[0] == program]


@pytest.mark.parametrize("shown", of("mview"), ids=str)
def test_a_command_of_mview_is_parsed(shown) -> None:
    name, *arguments = shown.words[1:]
    if name.startswith("-"):
        return
    if name.endswith("…"):
        assert not shown.whole
        return
    command = main.get_command(click.Context(main), name)
    assert command is not None, shown
    with nullcontext() if shown.whole else suppress(*_UNFINISHED):
        if shown.whole or not any(map(_STANDS_FOR.fullmatch, arguments)):
            command.make_context(name, list(arguments), parent=click.Context(main))


def test_pages_show_commands() -> None:
    """The pages are read: there are many commands, and some in blocks."""
    assert len(of("mview")) > 100
    assert sum(shown.whole for shown in of("mview")) > 10


@pytest.mark.parametrize("shown", of("make"), ids=str)
def test_a_target_is_there(shown) -> None:
    text = (ROOT / "Makefile").read_text()
    targets = [word for word in shown.words[1:] if "=" not in word]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", text, re.MULTILINE), shown


@pytest.mark.parametrize("shown", of("python"), ids=str)
def test_a_program_is_there(shown) -> None:
    if shown.words[1] == "-m":
        assert find_spec(shown.words[2]), shown
    else:  # a program beside the page
        assert ((ROOT / shown.page).parent / shown.words[1]).is_file(), shown


@pytest.mark.parametrize("shown", [*of("pip"), *of("uv")], ids=str)
def test_what_is_installed_is_ours(shown) -> None:
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    for extra in re.findall(r"mview-engine\[([\w,]+)\]", " ".join(shown.words)):
        assert set(extra.split(",")) <= set(extras), shown
    if shown.whole:
        assert any("mview-engine" in word for word in shown.words), shown
