"""Reading one snapshot chunk into its staged file, whatever happens to the database meanwhile."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from mview.clock import SourceMs
from mview.config import Config
from mview.connector import Database
from mview.delta.parquet import ROW_GROUP
from mview.errors import AwayError, ConfigError, UserError
from mview.failpoints import failpoint
from mview.files.durable import force
from mview.ingest.spec import TableSpec, open_database
from mview.schema import Column
from mview.snapshot import Chunk, Marker

V = TypeVar("V")

#: Seconds before a chunk is read again whose connection was lost; then the whole query waits.
_AGAIN_S = (1, 3)


def read_chunk(
    config: Config, table: TableSpec, number: int, pause: Callable[[float], None] = time.sleep
) -> Marker:
    """Stage a chunk as one Parquet file.

    Raises:
        AwayError: the database was lost more than once.
        UserError: the table is not what it was when its load began.
    """
    assert table.plan is not None
    chunk = table.plan.chunks[number]

    def staged() -> Marker:
        take = partial(stage_chunk, table=table, chunk=chunk)
        facts, high = chunk_rows(config, table, chunk, take)
        return Marker(table=table.name, chunk=chunk.number, high_ms=high, **facts)

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
            try:
                taken = take(batches)
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
    hint = f"`mview drop {table.name}` and run again: it is loaded anew, as it is now"
    safe = "nothing of this chunk was taken"
    try:
        now = database.describe(table.source_name)
    except ConfigError:
        raise
    except UserError as error:
        changed = {
            "what": f"{table.name} cannot be loaded any more: {error.what}",
            "safe": safe,
            "hint": hint if error.hint is None else f"{error.hint}; else {hint}",
        }
        raise UserError(**{**error.parts, **changed}) from None
    columns = {column.name: column for column in now.columns}
    for column in table.schema.columns:
        there = columns.get(column.name)
        if there is None or _form(there) != _form(column):
            raise UserError(
                f"column {table.name}.{column.name} was changed while its table is being loaded",
                got="it is gone" if there is None else f"{there.source_type or there.type}",
                allowed=f"{column.source_type or column.type}, as it was when the load began",
                safe=safe,
                hint=hint,
            )
    if now.key != table.schema.key:
        raise UserError(
            f"the primary key of {table.name} was changed while it is being loaded",
            got=", ".join(now.key),
            allowed=", ".join(table.schema.key),
            safe=safe,
            hint=hint,
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
