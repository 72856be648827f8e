"""DDL statements that take or bring rows of a table, of which no message tells."""

from __future__ import annotations

import re

#: Texts and names in quotes, in which nothing is a comment, and comments that servers do not run.
_ASIDE = re.compile(
    r"'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\"|`[^`]*`|/\*(?!!).*?\*/|--[^\n]*|#[^\n]*",
    re.DOTALL,
)

#: The table itself, its name, a whole part of it, or its file.
_MOVES = re.compile(
    r"\bdrop\s+(temporary\s+)?(table|database|schema)\b|\bcreate\s+or\s+replace\s+table\b"
    r"|\brename\s+(table|to|as)\b|\balter\s+table\b.*\brename\s+(?!column|index|key|constraint)"
    r"|\b(drop|truncate|exchange)\s+(sub)?partition\b|\b(discard|import)\s+(sub)?partition\b"
    r"|\b(discard|import)\s+tablespace\b",
    re.DOTALL | re.IGNORECASE,
)


def moves_rows(statement: str) -> bool:
    """Whether rows of the table go or come by a statement, and not by messages of their own.

    >>> moves_rows("DROP TABLE `orders`"), moves_rows("alter table t truncate partition p1")
    (True, True)
    >>> moves_rows("alter table t drop column a /* drop table */"), moves_rows("create table t (i)")
    (False, False)
    """
    return _MOVES.search(_ASIDE.sub(_stands_aside, statement)) is not None


def _stands_aside(match: re.Match[str]) -> str:
    return " x " if match[0][0] in "'\"`" else " "
