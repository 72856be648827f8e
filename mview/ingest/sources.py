"""The two Spark Python Data Sources: snapshot chunks and the changelog.

Both keep their offsets in the streaming checkpoint, so a replayed batch plans the same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from mview.changelog import STREAM_DDL, StreamRow, stream_batch
from mview.connector import TableHalt
from mview.errors import ConfigError, UserError
from mview.ingest.batches import halt_row
from mview.ingest.changelogs import Changelogs, Piece
from mview.ingest.chunks import read_chunk
from mview.ingest.pace import HELD_S, Pacer
from mview.ingest.spec import QuerySpec, chunks_per_epoch, read_spec
from mview.relation import RelationId, by_text
from mview.session.worker import settle_worker

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
    """One chunk to read: its table, and its number in the table's plan."""

    table: RelationId
    chunk: int


class SnapshotReader(DataSourceStreamReader):
    """Offsets are `{"chunks": {table: n}}`: the table's chunks before number n were handed out.

    They name chunks, and outlive what is known of a table here: one that was loaded meanwhile has
    no plan any more, and its entry stays as it is.
    """

    def __init__(self, spec: str, wait: Callable[[float], None] = time.sleep) -> None:
        self.spec, self._wait = spec, wait
        self._pace: Pacer | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Nothing was read."""
        return {"chunks": {}}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """A few chunks more, as many as may be read now; the same place where none may be."""
        spec = read_spec(self.spec)
        step = chunks_per_epoch(spec.config.engine, spec.tasks)
        if self._pace is None:
            self._pace = Pacer(spec.config)
        handed = _handed(start)
        waiting = spec.chunks_after(handed)
        taken = self._pace.take(waiting, step) if waiting else []
        if waiting and not taken:
            self._wait(HELD_S)  # Spark asks again at once
        for table, chunk in taken:
            handed[table.name] = chunk.number + 1
        # Spark compares offsets as texts.
        return {"chunks": by_text(dict(sorted(handed.items())))}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The chunk limit applies inside `latestOffset`."""
        return ReadAllAvailable()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ChunkPartition]:
        """One task per chunk; none for what was loaded before the batch is done again."""
        spec, until = read_spec(self.spec), _handed(end)
        return [
            ChunkPartition(table.name, chunk.number)
            for table, chunk in spec.chunks_after(_handed(start))
            if chunk.number < until.get(table.name, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stage one chunk; yields its marker row only."""
        assert isinstance(partition, ChunkPartition)
        spec = read_spec(self.spec)
        yield stream_batch([_read(spec, partition)])
        settle_worker()


def _read(spec: QuerySpec, partition: ChunkPartition) -> StreamRow:
    """The marker of a chunk that is staged; or that its table halts, as it cannot be read."""
    table = spec.tables[partition.table]
    try:
        marker = read_chunk(spec.config, table, partition.chunk)
    except ConfigError:
        raise
    except UserError as error:
        return halt_row(table.name, TableHalt.of(error))
    body = orjson.dumps(marker.to_json())
    return StreamRow("marker", marker.table, marker.chunk, marker.rows, body=body)


def _handed(offset: dict[str, Any]) -> dict[RelationId, int]:
    """The chunks of each table that were handed out, in an offset of Spark's."""
    return {RelationId.of(table): number for table, number in offset["chunks"].items()}


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

    def __init__(self, spec: str) -> None:
        self._changelogs = Changelogs(spec)

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
