"""The relations an epoch looks into: mirrors of tables, of views read by views, aggregate states.

A relation is what was published: base files plus the tail of changes since they were compacted. A
tail is read when rows of its relation are first looked up in files, and from then on it is held in
memory while its share has room; else it is looked up on disk, too. Compaction bounds it.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from mview.delta.parquet import read_parquet
from mview.execute.scan import scan_table
from mview.memory import Share
from mview.rows.ranges import Range
from mview.schema import Column, TableSchema, as_schema
from mview.store.manifest import TableState
from mview.store.mirror import EPOCH, KIND, Mirror, fold

#: Bytes of a value without a fixed width where no file tells how long they are.
_TEXT = 24


def row_bytes(columns: Sequence[Column], text: int = _TEXT) -> int:
    """About how many bytes a row takes in memory: fixed widths, and `text` for what has none."""
    return sum(_width(column, text) for column in columns)


def _width(column: Column, text: int) -> int:
    try:
        return int(column.type.bit_width) // 8 + 1
    except ValueError:
        return text


class Relation:
    """One mirror at its published state.

    Args:
        state: what is published of it.
        tails: what tails may take in memory, all together; None: any number of bytes.
    """

    def __init__(self, mirror: Mirror, state: TableState, tails: Share | None = None) -> None:
        self.mirror, self.state = mirror, state
        self.schema: TableSchema = mirror.schema
        self._rows = pa.schema([field.with_nullable(True) for field in mirror.schema.arrow])
        self._tails = Share(sys.maxsize) if tails is None else tails
        self._reading = threading.Lock()
        self._held: pa.Table | None = None
        self._held_bytes = 0
        self._too_large = False
        self.base_files: Sequence[tuple[str, int]] = mirror.files(state).base
        #: What the tail has of each epoch, or of each file that was there: (epoch, rows, bytes).
        self._sizes = deque(mirror.tail_sizes(state))
        # Added up as it changes: an epoch asks all relations, and a tail has thousands of epochs.
        #: About how many changes the tail has.
        self.tail_rows = sum(rows for _, rows, _ in self._sizes)
        #: About how many bytes they take in memory.
        self.tail_bytes = sum(size for _, _, size in self._sizes)
        self._base_bytes = mirror.base_bytes(state)
        #: Bytes of a row without its values that have no fixed width, and how many of these it has.
        self._fixed = row_bytes(self.schema.columns, text=0)
        self._texts = sum(_width(column, 0) == 0 for column in self.schema.columns)
        #: About how many bytes a row takes in memory, in the mean; other threads may ask.
        self.row_bytes = self._row_bytes()

    @property
    def text_bytes(self) -> int:
        """Bytes of a value without a fixed width: a guess, or more where the files have more."""
        return max(_TEXT, (self.row_bytes - self._fixed) // max(1, self._texts))

    def _row_bytes(self) -> int:
        rows = sum(rows for _, rows in self.base_files) + self.tail_rows
        return (self._base_bytes + self.tail_bytes) // max(1, rows)

    def base_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The Arrow schema of a base file; only of some columns where given."""
        return pa.schema([self._rows.field(name) for name in columns or self.schema.names])

    def tail_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The Arrow schema of a tail file; only of some of the table's columns where given."""
        meta = [pa.field(EPOCH, pa.int64()), pa.field(KIND, pa.string())]
        return pa.schema([*meta, *self.base_schema(columns)])

    def tail_files(self) -> Sequence[tuple[str, int]]:
        """The files to look changes up in, as (path, rows); none where they are in memory."""
        return () if self._tail() is not None else self.mirror.files(self.state).tail

    def rows(
        self,
        base: pa.Table,
        tail: pa.Table,
        keys: pa.Table | None,
        columns: Sequence[str],
        null_safe: bool,
        within: Range | None = None,
    ) -> pa.Table:
        """The rows of a look-up as published.

        Args:
            base: what the look-up found in the base files.
            tail: what it found in `tail_files`.
            keys: the keys looked for; None for all rows, or for a range.
            columns: columns to return; the primary key is among them.
            null_safe: NULL in a key matches NULL.
            within: the range looked for.
        """
        held = self._tail()
        if held is None:
            tail = tail.filter(pc.greater(tail[EPOCH], self.state.folded))
        else:
            tail = scan_table(held, self.tail_schema(columns), keys, null_safe)
            if within is not None:
                tail = within.rows_of(tail)
        return fold(base, tail, self.schema.key)

    def _tail(self) -> pa.Table | None:
        """The tail in memory; None: it is too large for its share."""
        with self._reading:
            if self._held is None and not self._too_large:
                rows = self._read()
                self._keep(rows, 0 if rows is None else rows.nbytes)
            return self._held

    def _read(self) -> pa.Table | None:
        """The tail as its files have it; None as soon as it is too large."""
        room, schema = self._tails.room(self.mirror.folder), self.tail_schema()
        rows = schema.empty_table()
        for path, _ in self.mirror.files(self.state).tail:
            part = read_parquet(Path(path), schema)
            # A filter's result is a copy: of a few new changes in an old file, only these stay.
            fresh = part.filter(pc.greater(part[EPOCH], self.state.folded))
            rows = pa.concat_tables([rows, fresh])
            if rows.nbytes > room:
                return None
        return rows

    def _keep(self, rows: pa.Table | None, nbytes: int) -> None:
        self._too_large = rows is None or not self._tails.hold(self.mirror.folder, nbytes)
        self._held, self._held_bytes = (None, 0) if self._too_large else (rows, nbytes)

    def move(self, state: TableState, delta: pa.Table | None, epoch: int) -> None:
        """Follow a published epoch.

        Args:
            state: the relation in the new manifest.
            delta: the epoch's changelog rows (KIND and the columns), if there were any.
            epoch: the epoch's number.
        """
        before, self.state = self.state, state
        if (state.base_version, state.folded) != (before.base_version, before.folded):
            self.base_files = self.mirror.files(state).base
            self._base_bytes = self.mirror.base_bytes(state)
        if state.folded != before.folded:
            self._forget_folded(state.folded)
        if delta is not None and delta.num_rows:
            rows, size = delta.num_rows, delta.nbytes
            self._sizes.append((epoch, rows, size))
            self.tail_rows += rows
            self.tail_bytes += size
            if self._held is not None:
                stamped = delta.append_column(EPOCH, pa.array([epoch] * rows, pa.int64()))
                added = as_schema(stamped, self._held.schema)
                # Added up: to ask a table of a thousand chunks for its size takes milliseconds.
                nbytes = self._held_bytes + added.nbytes
                self._keep(pa.concat_tables([self._held, added]), nbytes)
        self.row_bytes = self._row_bytes()

    def _forget_folded(self, folded: int) -> None:
        while self._sizes and self._sizes[0][0] <= folded:
            _, rows, size = self._sizes.popleft()
            self.tail_rows -= rows
            self.tail_bytes -= size
        self._too_large = False  # it may fit again: the next look-up tries
        if self._held is not None:
            held = self._held.filter(pc.greater(self._held[EPOCH], folded))
            self._keep(held, held.nbytes)

    def close(self) -> None:
        """Free the tail."""
        self._held, self._held_bytes = None, 0
        self._tails.free(self.mirror.folder)
