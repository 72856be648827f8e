"""What a view fetches when a table changes: the vocabulary between compiler and executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mview.relation import RelationId


@dataclass(frozen=True)
class KeySource:
    """Where key values come from: rows of a table that are already there.

    Attributes:
        table: the table whose rows are read.
        columns: its columns, one for each column of the fetch.
        step: rows fetched by this earlier step of the trace; None: the epoch's changed rows of
            the table, old and new.
    """

    table: RelationId
    columns: tuple[str, ...]
    step: int | None = None


@dataclass(frozen=True)
class Fetch:
    """Fetch the old rows of a table whose `columns` equal one of the keys.

    Attributes:
        table: the table.
        columns: key columns of the table.
        sources: the union of their values are the keys.
        null_safe: NULL in a key matches NULL (groups and partitions), else it matches nothing.
        or_null: also fetch the rows where all the columns are NULL.
    """

    table: RelationId
    columns: tuple[str, ...]
    sources: tuple[KeySource, ...]
    null_safe: bool = False
    or_null: bool = False


@dataclass(frozen=True)
class Whole:
    """Fetch all old rows of a table."""

    table: RelationId

    columns: ClassVar[tuple[str, ...]] = ()
    sources: ClassVar[tuple[KeySource, ...]] = ()


@dataclass(frozen=True)
class Band:
    """Fetch the old rows of a table with a column between what a bound was and what it is.

    Attributes:
        table: the table.
        column: its column.
        clock: whose value changed.
        bound: SQL over the clock's column; both ends belong to the band.
    """

    table: RelationId
    column: str
    clock: RelationId
    bound: str

    sources: ClassVar[tuple[KeySource, ...]] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """By which rows are looked up, as for `Fetch`."""
        return (self.column,)


Step = Fetch | Band | Whole


@dataclass(frozen=True)
class Trace:
    """All that is fetched when a table changes, for one of its uses in the view."""

    table: RelationId
    relation: str
    steps: tuple[Step, ...]
