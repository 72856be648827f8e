"""A view in memory, as a store publishes it: rows, epochs, and how far back changes are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import KIND
from mview.follow.following import Content, ViewChanges
from mview.follow.net import netted
from mview.schema import TableSchema
from mview.store.fold import EPOCH

Row = tuple[Any, ...]


class MemoryView:
    """A view with a key; implements `mview.follow.following.Source`.

    Args:
        schema: its columns and key.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.content: dict[Row, Row] = {}
        self.epoch = 0
        self._begins, self._newest = 0, 0
        self._log: list[tuple[int, str, Row]] = []
        #: Called between two parts of a fill.
        self.while_filled: Callable[[], None] = lambda: None
        self.part_rows = 1000

    def publish(self, put: Sequence[Row] = (), delete: Sequence[Row] = ()) -> int:
        """Publish an epoch.

        Args:
            put: whole rows, in the order of the columns, to insert or update.
            delete: keys of rows that go.

        Returns:
            The epoch.
        """
        self.epoch += 1
        changed = False
        for key in delete:
            old = self.content.pop(key, None)
            if old is not None:
                self._log.append((self.epoch, "-D", old))
                changed = True
        for row in put:
            key = self.key_of(row)
            old = self.content.get(key)
            if old == row:
                continue
            if old is not None:
                self._log.append((self.epoch, "-U", old))
            self._log.append((self.epoch, "+U" if old is not None else "+I", row))
            self.content[key] = row
            changed = True
        if changed:
            self._newest = self.epoch
        return self.epoch

    def key_of(self, row: Row) -> Row:
        """The key of a row."""
        return tuple(row[self.schema.names.index(name)] for name in self.schema.key)

    def forget(self) -> None:
        """Keep no changes of what was published up to now: who is behind is filled."""
        self._begins = self.epoch
        self._log.clear()

    # --- Source ----------------------------------------------------------------------------------

    def newest(self) -> int:
        """The last epoch that has changed the view."""
        return self._newest

    def begins(self) -> int:
        """Changes of all epochs after this one are there."""
        return self._begins

    def changes(self, after: int, most_bytes: int, most_rows: int | None) -> ViewChanges:
        """The changes after an epoch, as one, of as many epochs as fit."""
        log = [change for change in self._log if change[0] > after]
        upto = self._newest
        if most_rows is not None and log:
            fit = [e for e, _, _ in log if sum(other <= e for other, _, _ in log) <= most_rows]
            upto = max(fit, default=log[0][0])
        log = [change for change in log if change[0] <= upto]
        rows = self._table([row for _, _, row in log])
        rows = rows.append_column(KIND, pa.array([kind for _, kind, _ in log], pa.string()))
        rows = rows.append_column(EPOCH, pa.array([epoch for epoch, _, _ in log], pa.int64()))
        return ViewChanges(upto, netted(rows, self.schema.key))

    def rows(self) -> Content:
        """All rows at the newest epoch."""
        # As the store has it: at one epoch, whatever is published meanwhile.
        return Content(self.epoch, self._parts(list(self.content.values())))

    def _parts(self, rows: list[Row]) -> Iterator[pa.Table]:
        for begin in range(0, len(rows), self.part_rows):
            yield self._table(rows[begin : begin + self.part_rows])
            self.while_filled()

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        schema = pa.schema([field.with_nullable(True) for field in self.schema.arrow])
        columns = [
            pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)
        ]
        return pa.table(columns, schema)


def rows_of(table: pa.Table | pa.RecordBatchReader) -> list[Row]:
    """Rows as tuples of Python values."""
    whole = table.read_all() if isinstance(table, pa.RecordBatchReader) else table
    # As micros: Python's datetimes end before Arrow's do.
    for place, field in enumerate(whole.schema):
        if pa.types.is_timestamp(field.type):
            micros = pc.cast(pc.cast(whole[field.name], pa.timestamp("us", field.type.tz)), "int64")
            whole = whole.set_column(place, field.name, micros)
    columns = [column.to_pylist() for column in whole.columns]
    return list(zip(*columns, strict=True))
