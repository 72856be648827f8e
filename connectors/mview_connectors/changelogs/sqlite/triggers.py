"""The triggers that note changes of SQLite tables, and the tables that they write to.

`_mview_changes` has a row per key that a statement touched: what the row of that key is after it
(op u, all columns), or that there is none (op d, the key only). Values stand as they are, in
columns c1, c2, … without a type: so each keeps its storage class and every bit. A row's `layout`
says which table and columns these are.

A trigger reads the row from the table, and does not take OLD and NEW: so what it notes is true
whatever other triggers have done to the row, and in whatever order SQLite runs them.

REPLACE deletes the rows that are in its way, and runs no trigger for them (unless the writer has
set `recursive_triggers`). So what a unique index puts in the way of a row is put down before, in
`_mview_replaced`, and noted as deleted after, where it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mview_connectors.databases.sqlite import CLOCK

#: In front of the names of all that mview makes in the database.
OURS = "_mview_"

#: The tables beside the source's own.
TABLES = (
    # AUTOINCREMENT: an id is never given twice, also when the newest rows were deleted.
    f"CREATE TABLE IF NOT EXISTS {OURS}changes (id INTEGER PRIMARY KEY AUTOINCREMENT, "
    "at_ms INTEGER NOT NULL, layout INTEGER NOT NULL, op TEXT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {OURS}replaced (layout INTEGER NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {OURS}layouts (id INTEGER PRIMARY KEY, name TEXT NOT NULL, "
    "made TEXT NOT NULL, columns TEXT NOT NULL, keys TEXT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {OURS}readers (reader TEXT PRIMARY KEY, id INTEGER NOT NULL, "
    "at_ms INTEGER NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {OURS}database (id TEXT NOT NULL)",
)


class KeyPart(NamedTuple):
    """A column of a unique index, and the collation by which it is compared."""

    name: str
    collation: str


class WatchedTable(NamedTuple):
    """What the triggers of a table depend on.

    Attributes:
        name: of the table.
        columns: their names, in order.
        key: the primary key.
        uniques: the other unique indexes, in the order of their columns.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[KeyPart, ...]
    uniques: tuple[tuple[KeyPart, ...], ...]


def identifier(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def cells(count: int) -> list[str]:
    """The columns of `_mview_changes` that have the values of so many columns."""
    return [f"c{number}" for number in range(1, count + 1)]


def names_of(table: str) -> list[str]:
    """The names of all triggers that a table may have of ours."""
    return [f"{OURS}{when}_{table}" for when in _WHEN]


_WHEN = ("before_insert", "before_update", "insert", "update", "delete")


def triggers_of(table: WatchedTable, layout: int) -> dict[str, str]:
    """The statements that make the triggers of a table, by the triggers' names."""
    made = _Trigger(table, layout)
    replaced = made.uniques
    flush = made.flush() if replaced else []
    bodies = {
        "before_insert": [*flush, made.in_the_way()] if replaced else [],
        "before_update": [*flush, made.in_the_way()] if replaced else [],
        "insert": [*flush, made.state()],
        "update": [*flush, made.gone(), made.state()],
        "delete": [made.gone()],
    }
    statements = {}
    for when, body in bodies.items():
        if body:
            name = f"{OURS}{when}_{table.name}"
            event = when.replace("_", " ") if "_" in when else f"after {when}"
            lines = "".join(f" {statement};\n" for statement in body)
            statements[name] = (
                f"CREATE TRIGGER {identifier(name)} {event.upper()} ON {identifier(table.name)} "
                f"FOR EACH ROW BEGIN\n{lines}END"
            )
    return statements


class _Trigger:
    """Writes the statements in the triggers of one table."""

    def __init__(self, table: WatchedTable, layout: int) -> None:
        self._table, self._layout = table, layout
        self._relation = identifier(table.name)
        numbered = dict(zip(table.columns, cells(len(table.columns)), strict=True))
        self._cells = list(numbered.values())
        self._key_cells = [numbered[part.name] for part in table.key]
        self._keys = [identifier(part.name) for part in table.key]
        plain = all(part.collation == "BINARY" for part in table.key)
        #: What may put other rows in the way: a key that two texts may have that are not the same.
        self.uniques = table.uniques if plain else (table.key, *table.uniques)

    def state(self) -> str:
        """Note the row that has the key of NEW."""
        columns = ", ".join(map(identifier, self._table.columns))
        same = " AND ".join(f"{key} IS NEW.{key}" for key in self._keys)
        return (
            f"{self._note(self._cells)} SELECT {CLOCK}, {self._layout}, 'u', {columns} "
            f"FROM {self._relation} WHERE {same}"
        )

    def gone(self) -> str:
        """Note that the key of OLD has no row, if it has none."""
        keys = ", ".join(f"OLD.{key}" for key in self._keys)
        return (
            f"{self._note(self._key_cells)} SELECT {CLOCK}, {self._layout}, 'd', {keys} "
            f"WHERE {self._absent([f'OLD.{key}' for key in self._keys])}"
        )

    def in_the_way(self) -> str:
        """Put down the keys of the rows that NEW could replace."""
        ways = [
            " AND ".join(
                f"{identifier(part.name)} COLLATE {part.collation} = NEW.{identifier(part.name)}"
                for part in unique
            )
            for unique in self.uniques
        ]
        return (
            f"INSERT INTO {OURS}replaced (layout, {', '.join(self._key_cells)}) "
            f"SELECT {self._layout}, {', '.join(self._keys)} FROM {self._relation} "
            f"WHERE {' OR '.join(f'({way})' for way in ways)}"
        )

    def flush(self) -> list[str]:
        """Note what was put down and is gone; forget the rest: it was not replaced."""
        put_down = [f"{OURS}replaced.{cell}" for cell in self._key_cells]
        return [
            f"{self._note(self._key_cells)} SELECT {CLOCK}, {self._layout}, 'd', "
            f"{', '.join(put_down)} FROM {OURS}replaced "
            f"WHERE layout = {self._layout} AND {self._absent(put_down)}",
            f"DELETE FROM {OURS}replaced WHERE layout = {self._layout}",
        ]

    def _note(self, columns: Sequence[str]) -> str:
        return f"INSERT INTO {OURS}changes (at_ms, layout, op, {', '.join(columns)})"

    def _absent(self, values: Sequence[str]) -> str:
        same = []
        for part, key, value in zip(self._table.key, self._keys, values, strict=True):
            same.append(f"{key} IS {value}")
            if part.collation != "BINARY":  # the first finds it by the index, this tells a from A
                same.append(f"{key} COLLATE BINARY IS {value}")
        return f"NOT EXISTS (SELECT 1 FROM {self._relation} WHERE {' AND '.join(same)})"
