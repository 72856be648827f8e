"""Rows as files of a Paimon table: sorted runs by primary key, with kinds and sequence numbers.

pypaimon takes kinds from a column that readers would see, numbers and merges rows one by one. Here
keys are unique in a step, so that rows are only sorted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pypaimon.common.options.core_options import CoreOptions
from pypaimon.schema.data_types import PyarrowFieldParser
from pypaimon.write.commit_message import CommitMessage
from pypaimon.write.row_key_extractor import FixedBucketRowKeyExtractor
from pypaimon.write.writer.key_value_data_writer import KeyValueDataWriter

#: The column of kinds in rows that come, and Paimon's number of each kind.
KIND = "_kind"
_NUMBERS = {"+I": 0, "-U": 1, "+U": 2, "-D": 3}

#: Columns that Paimon adds in files.
SEQUENCE, VALUE_KIND, KEY_PREFIX = "_SEQUENCE_NUMBER", "_VALUE_KIND", "_KEY_"


class FileWriter(KeyValueDataWriter):  # type: ignore[misc]  # untyped where it is not installed
    """Files of one bucket, of rows that have their system columns and whose keys are unique."""

    def _process_data(self, data: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([data])

    def _merge_pending_by_pk(self, data: pa.Table) -> pa.Table:
        return data.combine_chunks()


def file_writer(table: Any, bucket: int) -> FileWriter:
    """A writer of one bucket."""
    return FileWriter(table, (), bucket, 0, CoreOptions.copy(table.options))


def stored_schema(table: Any) -> pa.Schema:
    """The columns of a table."""
    return PyarrowFieldParser.from_paimon_schema(table.table_schema.fields)


def file_schema(table: Any) -> pa.Schema:
    """The columns of its files."""
    schema = stored_schema(table)
    keys = [schema.field(name) for name in table.trimmed_primary_keys]
    return pa.schema(
        [
            *(pa.field(KEY_PREFIX + field.name, field.type, field.nullable) for field in keys),
            pa.field(SEQUENCE, pa.int64(), False),
            pa.field(VALUE_KIND, pa.int8(), False),
            *schema,
        ]
    )


class StepWriter:
    """Writes the rows of a step into the files of its buckets.

    Args:
        table: the table.
        sequence: the highest sequence number that the table has.
    """

    def __init__(self, table: Any, sequence: int) -> None:
        self._table, self.sequence = table, sequence
        self._schema, self._stored = file_schema(table), stored_schema(table)
        self._buckets = FixedBucketRowKeyExtractor(table.table_schema)
        self._writers: dict[int, FileWriter] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows: the table's columns, and KIND where they are changes."""
        kinds = pa.array(np.zeros(rows.num_rows, np.int8))
        if KIND in rows.schema.names:
            rows = rows.filter(pc.not_equal(rows.column(KIND), "-U"))
            texts = rows.column(KIND)
            kinds = pa.array(
                np.select(
                    [np.asarray(pc.equal(texts, text)) for text in _NUMBERS],
                    list(_NUMBERS.values()),
                ).astype(np.int8)
            )
        if not rows.num_rows:
            return
        count = rows.num_rows
        numbers = pa.array(np.arange(self.sequence + 1, self.sequence + 1 + count))
        self.sequence += count
        columns = {field.name: rows.column(field.name).cast(field.type) for field in self._stored}
        keys = [columns[name] for name in self._table.trimmed_primary_keys]
        batch = pa.RecordBatch.from_arrays(
            [*keys, numbers, kinds, *columns.values()], schema=self._schema
        )
        for bucket, part in self._parts(batch):
            if bucket not in self._writers:
                self._writers[bucket] = file_writer(self._table, bucket)
            self._writers[bucket].write(part)

    def _parts(self, batch: pa.RecordBatch) -> Iterable[tuple[int, pa.RecordBatch]]:
        if self._table.total_buckets == 1:
            return [(0, batch)]
        buckets = np.array(self._buckets._extract_buckets_batch(batch))
        return [
            (int(bucket), batch.take(pa.array(np.flatnonzero(buckets == bucket))))
            for bucket in np.unique(buckets)
        ]

    def finish(self) -> list[CommitMessage]:
        """Write what is left; returns all files."""
        return [
            CommitMessage(partition=(), bucket=bucket, new_files=writer.prepare_commit())
            for bucket, writer in sorted(self._writers.items())
        ]

    def abort(self) -> None:
        """Remove what was written."""
        for writer in self._writers.values():
            writer.abort()
