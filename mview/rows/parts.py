"""Tables that a query reads part by part: more rows than may be held at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa


class Parts:
    """Rows that are made anew, part by part, each time that they are read.

    Args:
        schema: the columns.
        make: begins anew with the first part; the columns of parts may stand in another order.
    """

    def __init__(self, schema: pa.Schema, make: Callable[[], Iterator[pa.Table]]) -> None:
        self.schema = schema
        self._make = make
        #: Why a part could not be made: through a query, only its text comes back.
        self.failure: Exception | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows, for whoever reads Arrow's C streams."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for part in self._make():
                yield from part.select(self.schema.names).cast(self.schema).to_batches()
        except Exception as error:
            self.failure = error
            raise

    def map(self, change: Callable[[pa.Table], pa.Table]) -> Parts:
        """The same rows in other columns: each part as `change` makes it."""
        schema = change(self.schema.empty_table()).schema
        return Parts(schema, lambda: map(change, self._make()))

    def table(self) -> pa.Table:
        """All of them at once."""
        return pa.Table.from_batches(self._batches(), self.schema)
