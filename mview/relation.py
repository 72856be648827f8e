"""What relations are called: source tables, rows of views and of their parts, state, clocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal, NamedTuple, TypeVar

T = TypeVar("T")

#: `<view>`, `<view>:<number of a part>`, either with `:state`; names of views have no colon.
_OF_A_VIEW = re.compile(r"([^:]+)(?::(\d+))?(:state)?")


#: A part of a table's name as text: in backticks, or without what divides it.
_PART = r"(?:`((?:[^`]|``)+)`|([^.`]+))"
_TABLE_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}", re.DOTALL)


class TableName(NamedTuple):
    """What a table is called in its database; its text is how the configuration names it.

    Two tables never have one text: a part that has a dot or a backtick is in backticks.

    >>> str(TableName("sales", "orders")), str(TableName("", "orders")), str(TableName("", "a.b"))
    ('sales.orders', 'orders', '`a.b`')

    Attributes:
        schema: the PostgreSQL or SQL Server schema, the MySQL database; empty: the connection's.
        table: the table's name in it.
    """

    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(map(_written, self)) if self.schema else _written(self.table)

    @classmethod
    @cache
    def of(cls, text: str) -> TableName:
        """The table that was written so; what has another form is a name as it is."""
        if match := _TABLE_NAME.fullmatch(text):
            ticked, schema, ticked_table, table = match.groups("")
            return cls(
                schema or ticked.replace("``", "`"), table or ticked_table.replace("``", "`")
            )
        return cls("", text)


def _written(part: str) -> str:
    return f"`{part.replace('`', '``')}`" if "." in part or "`" in part else part


@dataclass(frozen=True)
class RelationId:
    """What a relation is, and the key of whatever is kept of relations in the program.

    Text is made of it where a file, SQL or a message names it: `str()` writes it and `of` reads it;
    nothing else looks into such a name or makes one. A connection and a view have no dot in their
    names, a view no colon either: no two are the same. They are ordered as their texts are.

    Attributes:
        kind: a source table; the rows of a view or part; what is kept to maintain one; a clock.
        name: the table's in its database (`TableName`), the view's, the clock's.
        connection: of a table.
        part: number of a part of a view, from 1; 0: the view itself.
    """

    kind: Literal["table", "view", "state", "clock"]
    name: str
    connection: str = ""
    part: int = 0

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        # A text keeps its hash: as a key it is nearly as cheap. Another process hashes it anew.
        return hash(self._text)

    def __lt__(self, other: RelationId) -> bool:
        return self._text < other._text

    @cached_property
    def _text(self) -> str:
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

    @classmethod
    def from_json(cls, data: object) -> RelationId:
        """The relation that a file names.

        Raises:
            ValueError: it is no text.
        """
        if not isinstance(data, str):
            raise ValueError(f"{type(data).__name__} instead of the name of a relation")
        return cls.of(data)

    def to_json(self) -> str:
        """What a file calls it; see `from_json`."""
        return self._text

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
        """The last part of what SQL calls it in FROM."""
        return self.table_name.table if self.is_table else str(self)

    @property
    def table_name(self) -> TableName:
        """What a table is called in its database."""
        return TableName.of(self.name)

    @property
    def view(self) -> str:
        """The view that it belongs to; empty for a table or a clock."""
        return self.name if self.kind in ("view", "state") else ""

    @property
    def state(self) -> RelationId:
        """What is kept beside the rows of a view or part, to maintain it."""
        return replace(self, kind="state")


def by_text(things: Mapping[RelationId, T]) -> dict[str, T]:
    """What is kept of relations, as JSON names it."""
    return {str(relation): thing for relation, thing in things.items()}


def by_connection(tables: Iterable[RelationId]) -> dict[str, list[str]]:
    """Names of source tables as their databases have them, by connection; both in order."""
    named: dict[str, list[str]] = {}
    for table in sorted(tables):
        named.setdefault(table.connection, []).append(table.name)
    return named
