"""Reading one snapshot chunk into its staged file, whatever happens to the database meanwhile."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mview.clock import SourceMs
from mview.config import Config
from mview.connector import Database
from mview.delta.parquet import ROW_GROUP
from mview.errors import AwayError, ConfigError, UserError, row_text
from mview.failpoints import failpoint
from mview.files.durable import force
from mview.ingest.spec import TableSpec, open_database
from mview.rows.where import Condition, columns_of, holds, parse_where
from mview.schema import Column, TableSchema
from mview.snapshot import Chunk, Marker

V = TypeVar("V")

#: Seconds before a chunk is read again whose connection was lost; then the whole query waits.
_AGAIN_S = (1, 3)


def read_chunk(
    config: Config,
    table: TableSpec,
    number: int,
    pause: Callable[[float], None] = time.sleep,
    *,
    open_end: bool = False,
) -> Marker:
    """Stage a chunk as one Parquet file.

    Args:
        config: the configuration.
        table: the table, with its plan.
        number: of the chunk.
        pause: waits for so many seconds.
        open_end: the last chunk is read with the rows that came after planning.

    Raises:
        AwayError: the database was lost more than once.
        UserError: the table is not what it was when its load began.
    """
    assert table.plan is not None
    chunk = (table.plan.open_chunks if open_end else table.plan.chunks)[number]

    def staged() -> Marker:
        take = partial(stage_chunk, table=table, chunk=chunk)
        facts, high = chunk_rows(config, table, chunk, take)
        return Marker(table=str(table.name), chunk=chunk.number, high_ms=high, **facts)

    for seconds in _AGAIN_S:
        try:
            return staged()
        except AwayError:
            pause(seconds)
    return staged()


def chunk_rows(
    config: Config,
    table: TableSpec,
    chunk: Chunk,
    take: Callable[[Iterator[pa.RecordBatch]], V],
) -> tuple[V, SourceMs]:
    """Read a chunk once; returns what `take` makes of its batches, and the source's clock after.

    Raises:
        AwayError: the database was lost.
        UserError: the table is not what it was when its load began.
    """
    assert table.plan is not None
    database = open_database(config, table.connection)
    try:
        search, began = database.clock(), time.monotonic()
        try:
            batches = database.read(table.source_name, table.schema, table.plan, chunk)
            is_declared = config.connections[table.connection].table(table.source_name).key
            try:
                rows = distinct(batches, table) if is_declared else batches
                taken = take(rows_within(rows, table.schema))
            finally:
                if isinstance(batches, Generator):
                    batches.close()  # what it has opened goes before its connection does
        except ConfigError:
            raise
        except UserError:
            check_table(database, table)  # says more, where it is the reason
            raise
        check_table(database, table)
        return taken, high_ms(search, database.clock(), time.monotonic() - began)
    finally:
        database.close()


def rows_within(batches: Iterator[pa.RecordBatch], schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """The rows that fulfil the table's condition; the database may have given more."""
    if not schema.where:
        return batches
    condition = parse_where(schema.where)
    return (_within(batch, condition, schema) for batch in batches)


def _within(batch: pa.RecordBatch, condition: Condition, schema: TableSchema) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in columns_of(condition)}
    return batch.filter(holds(condition, columns, schema))


def distinct(batches: Iterator[pa.RecordBatch], table: TableSpec) -> Iterator[pa.RecordBatch]:
    """The batches of a chunk, and an error at their end where two rows have one key.

    Rows of one key are in one chunk: the chunks are ranges of it. Kept are the keys alone.
    """
    names = list(table.schema.key)
    keys = []
    for batch in batches:
        keys.append(pa.Table.from_batches([batch]).select(names))
        yield batch
    if not keys:
        return
    counted = pa.concat_tables(keys).group_by(names).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).to_pylist()
    if twice:
        count = twice[0].pop("count_all")
        raise UserError(
            f"the declared key of {table.name} does not tell its rows apart: {count} rows have one",
            got=row_text(twice[0]),
            allowed=f"rows that differ in ({', '.join(names)})",
            safe="nothing of this chunk was taken",
            hint="correct the rows at the source; or name more columns under "
            f"connections.{table.connection}.tables.{table.source_name}.key",
        )


def high_ms(search: SourceMs, after: SourceMs, seconds: float) -> SourceMs:
    """The source's clock after a read, as it would be had nobody set it back meanwhile.

    Changes of the time of the read may carry stamps of the clock as it was: a chunk that is
    released later than need be is right, one that is released earlier may be not.
    """
    return SourceMs(max(after, search + int(seconds * 1000)))


def check_table(database: Database, table: TableSpec) -> None:
    """Raise UserError unless the table still has the columns and the key that its load began with.

    Asked after a read: what changed before or during it has changed by then.
    """
    safe = "nothing of this chunk was taken"
    try:
        now = database.describe(table.source_name, table.schema.names.__contains__)
    except ConfigError:
        raise
    except UserError as error:
        what = f"{table.name} cannot be read any more: {error.what}"
        raise UserError(**{**error.parts, "what": what, "safe": safe}) from None
    columns = {column.name: column for column in now.columns}
    for column in table.schema.columns:
        there = columns.get(column.name)
        if there is None or _form(there) != _form(column):
            raise UserError(
                f"column {table.name}.{column.name} was changed since the load of its table began",
                got="it is gone" if there is None else f"{there.source_type or there.type}",
                allowed=f"{column.source_type or column.type}, as it was when the load began",
                safe=safe,
            )
    if now.key != table.schema.key:
        raise UserError(
            f"the key of {table.name} was changed since its load began",
            got=", ".join(now.key),
            allowed=", ".join(table.schema.key),
            safe=safe,
        )


def _form(column: Column) -> tuple[pa.DataType, str]:
    # How long a text may be does not matter; digits of a time do: the changelog is read by them.
    return column.type, "" if pa.types.is_string(column.type) else column.source_type


def stage_chunk(
    batches: Iterator[pa.RecordBatch], table: TableSpec, chunk: Chunk
) -> dict[str, Any]:
    """Write a chunk as one Parquet file in the table's stage folder; no file where it fails.

    Returns:
        The marker's facts: file (below the base; "" for no rows), rows, size, digest.
    """
    name = f"{table.stage}/{chunk.number:06d}-{uuid.uuid4().hex}.parquet"
    target = table.base / name
    target.parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([field.with_nullable(True) for field in table.schema.arrow])
    rows = 0
    try:
        writer = pq.ParquetWriter(target, schema, compression="snappy", write_page_checksum=True)
        with writer as out:
            for batch in batches:
                rows += batch.num_rows
                out.write_batch(batch.cast(schema), row_group_size=ROW_GROUP)
                failpoint("in-chunk")
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    if rows == 0:
        target.unlink()
        return {"file": "", "rows": 0, "size": 0, "digest": ""}
    force(target)
    data = target.read_bytes()
    return {"file": name, "rows": rows, "size": len(data), "digest": f"{zlib.crc32(data):08x}"}
