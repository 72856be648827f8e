"""The two Spark Python Data Sources: snapshot chunks and the changelog.

Both keep their offsets in the streaming checkpoint, so a replayed batch plans the same work.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from mview.changelog import STREAM_DDL, StreamRow, stream_batch
from mview.lake.durable import force
from mview.lake.parquet import ROW_GROUP
from mview.runtime.changelogs import Changelogs, Piece
from mview.runtime.failpoints import failpoint
from mview.runtime.spec import TableSpec, open_database, read_spec
from mview.snapshot import Chunk, Marker
from mview.worker import settle_worker

SNAPSHOT = "mview_snapshot"
CHANGELOG = "mview_changelog"


def register_sources(spark: SparkSession) -> None:
    """Make both sources known to a session."""
    spark.dataSource.register(SnapshotSource)
    spark.dataSource.register(ChangelogSource)


class _MviewSource(DataSource):
    def schema(self) -> str:
        return STREAM_DDL


class SnapshotSource(_MviewSource):
    """Reads snapshot chunks, stages each as a Parquet file and yields its marker row."""

    @classmethod
    def name(cls) -> str:
        """The name for `spark.readStream.format`."""
        return SNAPSHOT

    def streamReader(self, schema: Any) -> SnapshotReader:  # noqa: N802 (Spark's name)
        """The stream reader of this source."""
        return SnapshotReader(self.options["spec"])


@dataclass
class ChunkPartition(InputPartition):
    """One chunk to read, as its place in `QuerySpec.chunks`."""

    index: int


class SnapshotReader(DataSourceStreamReader):
    """Offsets are `{"next": n}`: chunks before n of `QuerySpec.chunks` were handed out."""

    def __init__(self, spec_path: str) -> None:
        self.spec_path = spec_path

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Nothing was read."""
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """A few chunks more; the limit is the configured number of chunks per epoch."""
        spec, config = read_spec(self.spec_path)
        step = config.engine.chunks_per_epoch or 2 * spec.tasks
        return {"next": min(len(spec.chunks), start["next"] + step)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The chunk limit applies inside `latestOffset`."""
        return ReadAllAvailable()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[ChunkPartition]:
        """One task per chunk."""
        return [ChunkPartition(index) for index in range(start["next"], end["next"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stage one chunk; yields its marker row only."""
        assert isinstance(partition, ChunkPartition)
        spec, config = read_spec(self.spec_path)
        table, chunk = spec.chunks[partition.index]
        assert table.plan is not None
        database = open_database(config, table.connection)
        try:
            search = database.clock()
            batches = database.read(table.source_name, table.schema, table.plan, chunk)
            staged = stage_chunk(batches, table, chunk)
            marker = Marker(
                table=table.name,
                chunk=chunk.number,
                search_ms=search,
                high_ms=database.clock(),
                position_after=database.position(),
                **staged,
            )
        finally:
            database.close()
        yield stream_batch(
            [
                StreamRow(
                    "marker",
                    table.name,
                    chunk.number,
                    marker.rows,
                    body=orjson.dumps(marker.to_json()),
                )
            ]
        )
        settle_worker()


def stage_chunk(
    batches: Iterator[pa.RecordBatch], table: TableSpec, chunk: Chunk
) -> dict[str, Any]:
    """Write a chunk as one Parquet file in the table's stage folder.

    Returns:
        The marker's facts: file (below the base; "" for no rows), rows, size, digest.
    """
    name = f"{table.stage}/{chunk.number:06d}-{uuid.uuid4().hex}.parquet"
    target = table.base / name
    target.parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([field.with_nullable(True) for field in table.schema.arrow])
    rows = 0
    with pq.ParquetWriter(target, schema, compression="snappy") as out:
        for batch in batches:
            rows += batch.num_rows
            out.write_batch(batch.cast(schema), row_group_size=ROW_GROUP)
            failpoint("in-chunk")
    if rows == 0:
        target.unlink()
        return {"file": "", "rows": 0, "size": 0, "digest": ""}
    force(target)
    data = target.read_bytes()
    return {"file": name, "rows": rows, "size": len(data), "digest": f"{zlib.crc32(data):08x}"}


class ChangelogSource(_MviewSource):
    """Reads the changelogs of all connections as one stream of change batches and heartbeats."""

    @classmethod
    def name(cls) -> str:
        """The name for `spark.readStream.format`."""
        return CHANGELOG

    def streamReader(self, schema: Any) -> ChangelogReader:  # noqa: N802
        """The stream reader of this source."""
        return ChangelogReader(self.options["spec"])


class ChangelogReader(DataSourceStreamReader):
    """`Changelogs` by the names that Spark calls."""

    def __init__(self, spec_path: str) -> None:
        self._changelogs = Changelogs(spec_path)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the load began."""
        return self._changelogs.begin()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch reads, over all connections; `start` when there is nothing new."""
        return self._changelogs.advance(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of changes per epoch applies inside `latestOffset`."""
        return ReadAllAvailable()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Piece]:
        """One task per piece."""
        return self._changelogs.pieces(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a piece."""
        assert isinstance(partition, Piece)
        yield from self._changelogs.rows(partition)
        settle_worker()

    def stop(self) -> None:
        """Close all clients."""
        self._changelogs.close()
