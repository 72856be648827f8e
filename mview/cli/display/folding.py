"""Lines for a screen: what is too wide goes on below, and nothing of it is cut."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

#: What is not taken apart while it fits: cells of a table stand two blanks or more apart.
_CELL = re.compile(r" {2,}|(?:[^ ]| (?! ))+")
#: A command in backticks is one word: it is copied as a whole, as a part of it may do other things.
_WORD = re.compile(r" +|(?:`[^`]*`|[^ ])+")
#: What a field of an error begins with, in this or that place: its further lines stand below.
_LABEL = re.compile(r" *[a-z]+: +")
#: A line of a query that was added or taken away.
_DIFF = re.compile(r" {8,}[-+]")


def columns() -> int | None:
    """How wide the screen is: what COLUMNS says, or the terminal; None of a pipe or a file, whose
    lines are whole: programs read them, and people search them."""
    return shutil.get_terminal_size((0, 0)).columns or None


def folded(text: str, width: int | None) -> str:
    """A text of lines that are no wider than that, but for words that are by themselves, and SQL:
    with a mark below, or of a difference. None: as it is.

    >>> print(folded("  orders  1,234 rows  INCREMENTAL", 24))
      orders  1,234 rows
          INCREMENTAL
    """
    if width is None:
        return text
    lines = text.split("\n")
    # What a mark stands below is as it was written.
    marked = [*map(_is_mark, lines[1:]), False]
    return "\n".join(
        part
        for line, is_marked in zip(lines, marked, strict=True)
        for part in ([line] if is_marked or _DIFF.match(line) else _folded(line, width))
    )


def _is_mark(line: str) -> bool:
    return line.strip(" ^") == "" and "^" in line


def _folded(line: str, width: int) -> Iterator[str]:
    begin = len(line) - len(line.lstrip(" "))
    label = _LABEL.match(line)
    below = min(len(label[0]) if label else begin + 4, width // 3)
    shown, is_first = line[:begin], True
    for gap, word in _words(line[begin:], width - below):
        gap = gap if is_first else gap[:2]  # further lines are no table
        if shown.strip() and len(shown) + len(gap) + len(word) > width:
            yield shown
            shown, is_first = " " * max(0, min(below, width - len(word))) + word, False
        else:
            shown += gap + word
    yield shown


def _words(line: str, width: int) -> Iterator[tuple[str, str]]:
    """The words of a line, each with the blanks before it; a cell that fits is one."""
    gap = ""
    for cell in _CELL.findall(line):
        for word in [cell] if len(cell) <= width else _WORD.findall(cell):
            if word.startswith(" "):
                gap = word
            else:
                yield gap, word
                gap = ""
