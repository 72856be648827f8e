"""Rows on their way into data files of bounded size."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mview.rows.hashing import Hashes, hash_rows
from mview.schema import TableSchema
from mview_connectors.followers.iceberg.files import write_rows


def stored(schema: TableSchema) -> pa.Schema:
    """The columns of a view as Iceberg has them: its smallest integer has 32 bits."""
    return pa.schema([pa.field(column.name, _widened(column.type)) for column in schema.columns])


def _widened(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_widened(kind.value_type))
    return pa.int32() if pa.types.is_int8(kind) or pa.types.is_int16(kind) else kind


def as_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema in its types, all nullable."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for field, column in ((field, rows[field.name]) for field in schema)
    ]
    return pa.table(columns, pa.schema([field.with_nullable(True) for field in schema]))


class RowsWriter:
    """Writes rows as data files.

    Args:
        table: the Iceberg table.
        schema: the view's columns.
        file_bytes: rows of one file take about so much memory.
        most: the hashes of the keys of so many rows are kept; 0: none.
    """

    def __init__(self, table: Any, schema: TableSchema, file_bytes: int, most: int) -> None:
        self._table, self._limit, self._most = table, file_bytes, most
        self._stored, self._key = stored(schema), list(schema.key)
        self._parts: list[pa.Table] = []
        self._bytes = 0
        self.files: list[Any] = []
        #: Files with the hashes of their keys; None: there are more than `most`.
        self.hashed: list[tuple[Any, Hashes]] | None = [] if most else None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; they are written when there are enough."""
        if batch.num_rows:
            part = as_types(pa.Table.from_batches([batch]), self._stored)
            self._parts.append(part)
            self._bytes += part.nbytes
            if self._bytes >= self._limit:
                self.flush()

    def flush(self) -> None:
        """Write what has been taken."""
        if not self._parts:
            return
        rows = pa.concat_tables(self._parts)
        self._parts, self._bytes = [], 0
        for file, part in write_rows(self._table, rows):
            self.files.append(file)
            self._most -= part.num_rows
            if self._most < 0:
                self.hashed = None
            if self.hashed is not None:
                self.hashed.append((file, hash_rows(part.select(self._key).columns)))
