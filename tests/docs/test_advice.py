"""Commands that are advised can be typed as they are shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from mview.errors import typed

ROOT = Path(__file__).parents[2]

#: A command with a name in it that nothing has quoted.
_PLAIN = re.compile(
    r"mview (?:quarantine )?[a-z]+(?:\{config\.option\}| --env)? "
    r"\{(?!typed\(|shlex\.|action\}|what)[a-z_.]+\}"
)
#: Names of files that are ours, of threads, of objects in Python, and what is put in later.
_OURS = (
    "mview/cli/demo/command.py",
    "mview/cli/mending/quarantine.py",
    "mview/ingest/load.py",
    "mview/notebook/project.py",
)


def test_names_in_advised_commands_are_quoted() -> None:
    sources = [*ROOT.glob("mview/**/*.py"), *ROOT.glob("connectors/**/*.py")]
    assert sources
    wrong = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sources
        if str(path.relative_to(ROOT)) not in _OURS
        for match in _PLAIN.finditer(path.read_text())
    ]
    assert wrong == []


def test_a_name_is_one_word() -> None:
    names = ("shop.order lines", "it's", "a\nb", "--all", "v")
    command = f"mview drop {typed(*names)}"
    assert "\n" not in command
    assert shlex.split(command)[2:] == ["shop.order lines", "it's", "a\\nb", "--all", "v"]
