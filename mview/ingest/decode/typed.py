"""From changes of a table, field by field, to its change batches: typed columns, by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mview.changelog import META, UNCHANGED, batch_schema
from mview.clock import SourceMs
from mview.connector import Format
from mview.ingest.spec import TableSpec
from mview.relation import RelationId


class Decoded(NamedTuple):
    """Changes of a table (`changelog.batch_schema`) in a chunk; 0 where the table is loaded."""

    table: RelationId
    chunk: int
    changes: pa.Table


class Untyped(NamedTuple):
    """Changes of a table before they have types; lists of one length.

    Attributes:
        kinds: what each does: c, u, r, d, or truncate.
        cells: its row by column, raw; of a delete the key's at least, of a truncate nothing.
        positions: see `changelog.encode_position`.
        times: commit times in milliseconds, None where unknown.
        partitions: where each stands.
        offsets: and where in that.
    """

    kinds: Sequence[str]
    cells: Sequence[Mapping[str, Any]]
    positions: Sequence[str]
    times: Sequence[SourceMs | None]
    partitions: Sequence[str]
    offsets: Sequence[int]


class MisfitError(Exception):
    """One value at least of a column does not fit it.

    Attributes:
        column: the column's name.
        places: of the changes that have the values.
        values: the values.
    """

    def __init__(self, column: str, places: Sequence[int], values: Sequence[Any]) -> None:
        super().__init__(column)
        self.column, self.places, self.values = column, places, values


class KeylessError(Exception):
    """A change has no value for its key.

    Attributes:
        place: of the change.
    """

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def tells(image: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether a row, or a part of one, has values of these columns."""
    for name in names:  # asked once or twice per change
        value = image.get(name)
        if value is None or value is UNCHANGED:
            return False
    return True


def typed(rows: Untyped, table: TableSpec, decoder: Format) -> pa.Table:
    """The changes as a batch.

    Raises:
        MisfitError: a value does not fit its column.
        KeylessError: a change has no key.
        KeyError: a row has no such column.
    """
    length, truncates = len(rows.kinds), rows.kinds.count("truncate")
    unchanged: list[list[str] | None] = [None] * length
    columns = []
    # A delete has the cells of its key, and a truncate none.
    keyed, full = _having(rows, {"truncate"}), _having(rows, {"truncate", "d"})
    told = dict(zip(table.schema.key, keyed.columns(table.schema.key), strict=True))
    others = [name for name in table.schema.names if name not in told]
    told |= zip(others, full.columns(others), strict=True)
    for column in table.schema.columns:
        having = keyed if column.name in table.schema.key else full
        values: Sequence[Any] = told[column.name]
        if UNCHANGED in values:
            noted = zip(having.places, values, strict=True)
            for number in (number for number, value in noted if value is UNCHANGED):
                unchanged[number] = [*(unchanged[number] or ()), column.name]
            # What was not sent is no NULL of the source, of which a format may think its part.
            sent = [value is not UNCHANGED for value in values]
            having = having.of(sent, length)
            values = [*compress(values, sent)]
        array = converted(values, having.places, table, column.name, decoder)
        if having.taken is not None:
            array = array.take(having.taken)
        columns.append(array)
        if column.name in table.schema.key and array.null_count > truncates:
            raise KeylessError(_without_key(rows, column.name))
    meta = [rows.kinds, rows.positions, rows.times, rows.partitions, rows.offsets, unchanged]
    arrays = [pa.array(values, kind) for values, (_, kind) in zip(meta, META, strict=True)]
    return pa.Table.from_arrays(arrays + columns, schema=batch_schema(table.schema))


def _without_key(rows: Untyped, name: str) -> int:
    asked = enumerate(zip(rows.kinds, rows.cells, strict=True))
    untold = (n for n, (kind, cells) in asked if kind != "truncate" and not tells(cells, [name]))
    return next(untold, 0)


def converted(
    values: Sequence[Any], places: Sequence[int], table: TableSpec, name: str, decoder: Format
) -> pa.Array:
    """Values of a column, typed.

    Raises:
        MisfitError: one does not fit.
    """
    try:
        return decoder.convert(values, table.schema.column(name))
    except Exception:
        raise MisfitError(name, places, values) from None


class _Having(NamedTuple):
    """The changes that have a cell of a column, by their cells, and their places among all.

    `taken` makes a column of all changes of these cells, null elsewhere; None: all have one.
    """

    cells: Sequence[Mapping[str, Any]]
    places: Sequence[int]
    taken: pa.Array | None

    def columns(self, names: Sequence[str]) -> Sequence[Sequence[Any]]:
        """Their cells of some columns."""
        if not self.cells or not names:
            return [()] * len(names)
        if len(names) == 1:
            return [[cells[names[0]] for cells in self.cells]]
        return [*zip(*map(itemgetter(*names), self.cells), strict=True)]

    def of(self, which: Sequence[bool], length: int) -> _Having:
        """Those of them that are meant, among `length`."""
        places = [*compress(self.places, which)]
        taken = np.full(length, -1, dtype=np.int64)
        taken[places] = np.arange(len(places))
        indices = pa.array(taken, mask=taken < 0)
        return _Having([*compress(self.cells, which)], places, indices)


def _having(rows: Untyped, without: set[str]) -> _Having:
    """The changes but those of some kinds."""
    every = _Having(rows.cells, range(len(rows.kinds)), None)
    if without.isdisjoint(rows.kinds):
        return every
    return every.of([kind not in without for kind in rows.kinds], len(rows.kinds))


def missing_value(
    kinds: Sequence[str], cells: Sequence[Mapping[str, Any]], batch: pa.Table, table: TableSpec
) -> tuple[str, int] | None:
    """A column that is NOT NULL, and the place of a change that brings NULL there; None: none."""
    for column in table.schema.columns:
        if column.nullable or not batch[column.name].null_count:
            continue
        for place, has in enumerate(batch[column.name].is_valid().to_pylist()):
            if has or kinds[place] in ("d", "truncate"):
                continue
            if cells[place][column.name] is not UNCHANGED:
                return column.name, place
    return None


def routed(batch: pa.Table, kinds: Sequence[str], table: TableSpec) -> list[Decoded]:
    """A batch by the chunks that its rows are in."""
    if table.plan is None:
        return [Decoded(table.name, 0, batch)]
    # A truncate concerns every chunk.
    everywhere = np.array([kind == "truncate" for kind in kinds])
    chunks = np.zeros(len(kinds), dtype=np.int64)
    some = np.flatnonzero(~everywhere)
    if some.size:
        chunks[some] = table.plan.route(batch.take(pa.array(some)))
    numbers = range(len(table.plan.chunks)) if everywhere.any() else np.unique(chunks)
    rows = []
    for number in numbers:
        mine = np.flatnonzero((chunks == number) | everywhere)
        rows.append(Decoded(table.name, int(number), batch.take(pa.array(mine))))
    return rows
