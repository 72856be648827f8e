"""DDL statements that take, bring or change rows of a table, of which no message tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

#: Texts, in which nothing is a comment, and comments that servers do not run.
_ASIDE = re.compile(
    r"(?P<name>`(?:[^`]|``)*`)|'(?:[^'\\]|''|\\.)*'|(?P<double>\"(?:[^\"\\]|\"\"|\\.)*\")"
    r"|/\*(?!!).*?\*/|--[^\n]*|#[^\n]*",
    re.DOTALL,
)

#: The table itself, its name, a whole part of it, or its file.
_MOVES = re.compile(
    r"\bdrop\s+(temporary\s+)?(tables?|database|schema)\b"
    r"|\bcreate\s+or\s+replace\s+(table|database|schema)\b|\brename\s+(tables?|to|as)\b"
    r"|\balter\s+(online\s+|ignore\s+)*table\b.*\brename\s+(?!column|index|key|constraint)"
    r"|\b(drop|truncate|exchange)\s+(sub)?partition\b|\b(discard|import)\s+(sub)?partition\b"
    r"|\bconvert\s+(partition|table)\b|\b(discard|import)\s+tablespace\b",
    re.DOTALL | re.IGNORECASE,
)

#: The table that a statement alters.
_NAME = r"(`(?:[^`]|``)*`|\"[^\"]*\"|[\w$]+)"
_ALTERS = re.compile(
    rf"\s*alter\s+(?:online\s+|ignore\s+)*table\s+(?:if\s+exists\s+)?(?:{_NAME}\s*\.\s*)?{_NAME}",
    re.IGNORECASE,
)

#: Of the table that is altered: its key goes; rows that are twice go; a foreign key changes rows.
_LOSES = re.compile(
    r"\bdrop\s+primary\s+key\b|\balter\s+(online\s+)?ignore\b"
    r"|\breferences\b.*\bon\s+(delete|update)\s+(cascade\b|set\s+(null|default)\b)",
    re.DOTALL | re.IGNORECASE,
)

#: A database that goes with all its tables.
_DROPS_SCHEMA = re.compile(
    rf"\b(?:drop|create\s+or\s+replace)\s+(?:database|schema)\s+(?:if\s+exists\s+)?{_NAME}",
    re.IGNORECASE,
)

#: What is before the name of a table that is made anew.
_REPLACES = re.compile(r"\bcreate\s+or\s+replace\s+table\s+", re.IGNORECASE)

#: A table, maybe with its database.
_PLACE = re.compile(rf"(?:{_NAME}\s*\.\s*)?{_NAME}")

#: Words of DROP TABLE and RENAME TABLE that are no names, unless they are in backticks.
_WORDS = {"drop", "temporary", "table", "tables", "if", "exists", "rename", "to"}

#: What an ALTER TABLE names beside the table that it alters.
_OTHER = re.compile(
    rf"\b(?:with\s+table|to\s+table|convert\s+table|rename(?:\s+(?:to|as))?)\s+"
    rf"(?:{_NAME}\s*\.\s*)?{_NAME}",
    re.IGNORECASE,
)

#: A column that gets a new definition, and that.
_REDEFINES = re.compile(
    rf"\b(?:modify|change)\s+(?:column\s+)?(?:if\s+exists\s+)?{_NAME}"
    r"(.*?)(?=\b(?:modify|change|add|drop|rename|alter|convert)\b|$)",
    re.DOTALL | re.IGNORECASE,
)
_COMPUTES = re.compile(r"\bas\s*\(|\bgenerated\b", re.IGNORECASE)
#: UNIQUE KEY takes NULL, and `key` may be a column's name.
_REQUIRES = re.compile(
    r"\bnot\s+null\b|\bprimary\s+key\b|(?<!unique\s)(?<![`\"])\bkey\b(?![`\"])", re.IGNORECASE
)


def moves_rows(statement: str, table: str, columns: Mapping[str, bool]) -> bool:
    """Whether rows of a table go, come or change by a statement, and not by messages of their own.

    Args:
        statement: the statement, which names the table.
        table: its name, without its database.
        columns: those that are read, and of each whether it may be NULL.

    >>> moves_rows("DROP TABLE `t`", "t", {}), moves_rows("alter table t drop partition p", "t", {})
    (True, True)
    >>> moves_rows("alter table t drop column a /* drop table */", "t", {})
    False
    >>> moves_rows("alter table t modify a int unique key after `key`", "t", {"a": True})
    False
    >>> moves_rows("alter table t modify a int key", "t", {"a": True})
    True
    >>> moves_rows("alter table t modify a int not null", "t", {"a": True, "b": True})
    True
    """
    plain = _ASIDE.sub(_stands_aside, statement)
    if _MOVES.search(plain) is not None:
        return True
    named = _ASIDE.sub(_without_texts, statement)
    altered = _ALTERS.match(named)
    if altered is None or _plain(altered[2]) != table.casefold():
        return False
    if _LOSES.search(plain) is not None:
        return True
    nullable = {name.casefold(): may for name, may in columns.items()}
    for match in _REDEFINES.finditer(named, altered.end()):
        name, definition = _plain(match[1]), match[2]
        if name in nullable and _COMPUTES.search(definition):
            return True
        if nullable.get(name) and _REQUIRES.search(definition):
            return True
    return False


class Named(NamedTuple):
    """What a statement names.

    Attributes:
        schema: the database that it names; empty: none.
        table: the table; empty: all of the database.
    """

    schema: str
    table: str


def names_in(statement: str) -> list[Named]:
    """The tables that a statement names, as far as it may move rows of them.

    Messages are of one table: of some statements that is the first, of a RENAME the new name.

    >>> names_in("RENAME TABLE a TO b.c")
    [Named(schema='', table='a'), Named(schema='b', table='c')]
    >>> names_in("drop database shop"), names_in("create table a (b int)")
    ([Named(schema='shop', table='')], [])
    >>> names_in("alter table a exchange partition b with table c")
    [Named(schema='', table='a'), Named(schema='', table='c')]
    """
    text = _ASIDE.sub(_without_texts, statement)
    if dropped := _DROPS_SCHEMA.search(text):
        return [Named(_bare(dropped[1]), "")]
    places: list[re.Match[str] | None]
    if altered := _ALTERS.match(text):
        places = [altered, *_OTHER.finditer(text, altered.end())]
    elif replaced := _REPLACES.search(text):
        places = [_PLACE.match(text, replaced.end())]
    elif _MOVES.search(_ASIDE.sub(_stands_aside, statement)) is None:
        places = []
    else:
        places = [place for place in _PLACE.finditer(text) if place[0].lower() not in _WORDS]
    return [Named(_bare(place[1] or ""), _bare(place[2])) for place in places if place is not None]


def _bare(name: str) -> str:
    quote = name[:1]
    return name[1:-1].replace(quote * 2, quote) if quote in ("`", '"') else name


def _plain(name: str) -> str:
    """A name, as names are compared."""
    return _bare(name).casefold()


def _stands_aside(match: re.Match[str]) -> str:
    return " x " if match[0][0] in "'\"`" else " "


def _without_texts(match: re.Match[str]) -> str:
    return match[0] if match["name"] or match["double"] else _stands_aside(match)
