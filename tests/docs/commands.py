"""The commands that pages show: in blocks, to be typed as they stand, and in the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Pages that people read; those of measurements say their commands, too.
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/bench/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Languages of blocks that are typed.
_TYPED = ("", "bash", "console", "sh")
_QUOTED = re.compile(r"`([^`]+)`")
#: What a line of a block begins with that is a command.
_PROGRAMS = ("mview", "make", "python", "pip", "uv", "psql", "export", "git", "docker")


@dataclass(frozen=True)
class Shown:
    """A command on a page.

    Attributes:
        page: its path in the repository.
        words: as a shell takes them apart.
        whole: whether it stands in a block, to be typed as it is; else the text names it, and it
            may lack what it needs, or have words for that.
    """

    page: str
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def shown_in(page: Path) -> Iterator[Shown]:
    """The commands of a page, in their order."""
    text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
    typed_blocks = (block for language, block in _BLOCK.findall(text) if language in _TYPED)
    for block in typed_blocks:
        for line in block.replace("\\\n", " ").splitlines():
            typed = line.removeprefix("$ ")
            if typed.split(" ")[0] in _PROGRAMS:
                yield Shown(name, tuple(shlex.split(typed, comments=True)), whole=True)
    for quoted in _QUOTED.findall(_BLOCK.sub("", text)):
        words = quoted.replace(r"\|", "|").split()
        if words and words[0] in _PROGRAMS and len(words) > 1:
            yield Shown(name, tuple(shlex.split(" ".join(words))), whole=False)
