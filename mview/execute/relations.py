"""The relations an epoch looks into: mirrors of tables, of views read by views, aggregate states.

A relation is what was published: base files plus the tail of changes since they were compacted. The
tail is held in memory; compaction bounds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from mview.execute.ranges import Range
from mview.execute.scan import scan_files, scan_table
from mview.schema import TableSchema, as_schema
from mview.store.manifest import TableState
from mview.store.mirror import EPOCH, KIND, Mirror, fold


class Relation:
    """One mirror at its published state."""

    def __init__(self, mirror: Mirror, state: TableState) -> None:
        self.mirror = mirror
        self.schema: TableSchema = mirror.schema
        self._rows = pa.schema([field.with_nullable(True) for field in mirror.schema.arrow])
        self._open(state)

    def _open(self, state: TableState) -> None:
        self.state = state
        files = self.mirror.files(state)
        self.base_files: Sequence[tuple[str, int]] = files.base
        tail = scan_files([path for path, _ in files.tail], self._tail_schema(), None, False)
        self.tail: pa.Table = tail.filter(pc.greater(tail[EPOCH], state.folded))

    def base_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The Arrow schema of a base file; only of some columns where given."""
        return pa.schema([self._rows.field(name) for name in columns or self.schema.names])

    def _tail_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        meta = [pa.field(EPOCH, pa.int64()), pa.field(KIND, pa.string())]
        return pa.schema([*meta, *self.base_schema(columns)])

    def rows(
        self,
        base: pa.Table,
        keys: pa.Table | None,
        columns: Sequence[str],
        null_safe: bool,
        within: Range | None = None,
    ) -> pa.Table:
        """The rows of a look-up as published.

        Args:
            base: what the look-up found in the base files.
            keys: the keys looked for; None for all rows, or for a range.
            columns: columns to return; the primary key is among them.
            null_safe: NULL in a key matches NULL.
            within: the range looked for.
        """
        tail = scan_table(self.tail, self._tail_schema(columns), keys, null_safe)
        if within is not None:
            tail = within.rows_of(tail)
        return fold(base, tail, self.schema.key)

    def move(self, state: TableState, delta: pa.Table | None, epoch: int) -> None:
        """Follow a published epoch.

        Args:
            state: the relation in the new manifest.
            delta: the epoch's changelog rows (KIND and the columns), if there were any.
            epoch: the epoch's number.
        """
        if (state.base_version, state.folded) != (self.state.base_version, self.state.folded):
            self.base_files = self.mirror.files(state).base
            self.tail = self.tail.filter(pc.greater(self.tail[EPOCH], state.folded))
        self.state = state
        if delta is not None and delta.num_rows:
            stamped = delta.append_column(EPOCH, pa.array([epoch] * delta.num_rows, pa.int64()))
            added = as_schema(stamped, self.tail.schema)
            self.tail = pa.concat_tables([self.tail, added])
