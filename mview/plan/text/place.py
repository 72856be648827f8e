"""Places in SQL text: line and column, a caret under the wrong token, and close names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from sqlglot import exp

from mview.errors import UserError

#: Characters of a line that an error shows: some make queries of one line, of any length.
_SHOWN = 160


@dataclass(frozen=True)
class Text:
    """A piece of SQL and where it stands in its file.

    Attributes:
        sql: the text.
        file: name of the file, for messages.
        line: line of the text's first character in the file, from 1.
        column: column of the text's first character in the file, from 1.
    """

    sql: str
    file: str
    line: int = 1
    column: int = 1

    def place(self, start: int) -> tuple[int, int]:
        """Line and column in the file of a character of the text, both from 1."""
        before = self.sql[:start]
        lines = before.count("\n")
        column = start - (before.rfind("\n") + 1)
        return self.line + lines, column + (self.column if lines == 0 else 1)

    def error(
        self,
        what: str,
        span: tuple[int, int],
        *,
        got: object = None,
        allowed: str | None = None,
        hint: str | None = None,
    ) -> UserError:
        """An error that shows the line with carets under characters [start, end)."""
        start, end = span
        start = min(start, max(len(self.sql) - 1, 0))
        line, column = self.place(start)
        first = self.sql.rfind("\n", 0, start) + 1
        last = self.sql.find("\n", start)
        shown = self.sql[first : last if last >= 0 else len(self.sql)]
        shown, indent = _around(shown, start - first)
        width = max(1, min(end - start, len(shown) - indent))
        number = f"{line} | "
        caret = " " * (len(number) + indent) + "^" * width
        return UserError(
            f"{what}\n{number}{shown}\n{caret}",
            where=f"{self.file}:{line}:{column}",
            got=got,
            allowed=allowed,
            hint=hint,
        )


def _around(line: str, at: int) -> tuple[str, int]:
    """A long line as its part around a character, and where that one is in it."""
    begin = max(0, min(at - _SHOWN // 2, len(line) - _SHOWN))
    before = "… " if begin else ""
    after = " …" if begin + _SHOWN < len(line) else ""
    return f"{before}{line[begin : begin + _SHOWN]}{after}", at - begin + len(before)


def span(node: exp.Expr) -> tuple[int, int]:
    """Characters [start, end) of an expression: from its first to its last token known."""
    places = [part.meta for part in node.walk() if "start" in part.meta]
    if not places:
        parent = node.parent
        return span(parent) if parent is not None else (0, 1)
    return min(m["start"] for m in places), max(m["end"] for m in places) + 1


def did_you_mean(name: str, names: Iterable[str], only_close: Iterable[str] = ()) -> str | None:
    """A hint with the closest of the known names, or all of them when there are few.

    Args:
        only_close: further names, which are told as the closest or not at all.
    """
    known = sorted({name for name in names if name})
    by_fold = {n.lower(): n for n in (*sorted(set(only_close)), *known)}
    if close := get_close_matches(name.lower(), by_fold, n=1, cutoff=0.5):
        return f"did you mean {by_fold[close[0]]!r}?"
    return f"one of {', '.join(known)}" if 0 < len(known) <= 30 else None
