"""What relations are called: source tables, rows of views and of their parts, state, clocks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

#: `<view>`, `<view>:<number of a part>`, either with `:state`; names of views have no colon.
_OF_A_VIEW = re.compile(r"([^:]+)(?::(\d+))?(:state)?")


@dataclass(frozen=True)
class RelationId:
    """What a relation is, wherever it is named: in SQL, in a plan, in the store.

    `str()` writes it and `of` reads it; nothing else looks into such a name or makes one. A
    connection and a view have no dot in their names, a view no colon either: no two are the same.

    Attributes:
        kind: a source table; the rows of a view or part; what is kept to maintain one; a clock.
        name: the table's in its database, the view's, the clock's.
        connection: of a table.
        part: number of a part of a view, from 1; 0: the view itself.
    """

    kind: Literal["table", "view", "state", "clock"]
    name: str
    connection: str = ""
    part: int = 0

    def __str__(self) -> str:
        if self.kind == "table":
            return f"{self.connection}.{self.name}"
        if self.kind == "clock":
            return f"clock:{self.name}"
        part = f":{self.part}" if self.part else ""
        return f"{self.name}{part}{':state' if self.kind == 'state' else ''}"

    @classmethod
    @cache
    def of(cls, text: str) -> RelationId:
        """The relation that was written so."""
        connection, dot, table = text.partition(".")
        if dot:
            return cls("table", table, connection)
        if match := _OF_A_VIEW.fullmatch(text):
            name, part, state = match.groups()
            return cls("state" if state else "view", name, part=int(part or 0))
        kind, colon, name = text.partition(":")
        # Anything else is what somebody has written by mistake: no view has such a name.
        return cls("clock", name) if colon and kind == "clock" else cls("view", text)

    @property
    def is_table(self) -> bool:
        """Whether it is a source table."""
        return self.kind == "table"

    @property
    def is_inner(self) -> bool:
        """Whether only queries that we make can name it: a part of a view, or a clock."""
        return self.part > 0 or self.kind == "clock"

    @property
    def sql_name(self) -> str:
        """What SQL calls it in FROM, without the connection."""
        return self.name if self.is_table else str(self)

    @property
    def view(self) -> str:
        """The view that it belongs to; empty for a table or a clock."""
        return self.name if self.kind in ("view", "state") else ""

    @property
    def state(self) -> RelationId:
        """What is kept beside the rows of a view or part, to maintain it."""
        return replace(self, kind="state")


def by_connection(tables: Iterable[str]) -> dict[str, list[str]]:
    """Names of source tables as their databases have them, by connection; both in order."""
    named: dict[str, list[str]] = {}
    for table in map(RelationId.of, sorted(tables)):
        named.setdefault(table.connection, []).append(table.name)
    return named
