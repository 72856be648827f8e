"""The merge rules of one snapshot chunk, as pure functions on a small frozen state.

The chunk's rows (version 0) wait in a staged file. Its changes pass at once; the state only
remembers which keys they touched, so that the file can be released without these keys once every
change up to its read has been seen. -U and -D rows and duplicates are the epoch's: merge/net.py.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import OP
from mview.clock import END_OF_TIME, SourceMs
from mview.errors import UserError
from mview.merge.net import is_fresh
from mview.relation import RelationId
from mview.rows.key_sets import KeySet
from mview.schema import TableSchema
from mview.snapshot import Marker


class Phase(str, Enum):
    """Where a chunk stands."""

    UNREAD = "u"
    BUFFERED = "b"
    RELEASED = "r"


@dataclass(frozen=True)
class LoadingTable:
    """What the merge must know of a table that is being loaded.

    Attributes:
        table: the table.
        schema: the table's columns and primary key.
        delay_ms: T: covers how far the stamps of the log and the clock of the database can differ.
        begin: by source partition, the first position (encoded) after the last change that was in
            the log before reading began. Earlier changes are in every chunk: they are old news,
            and a connector may send them again at any time. The entry EVERY_PARTITION is the
            position of a truncate that was taken before.
    """

    table: RelationId
    schema: TableSchema
    delay_ms: int
    begin: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChunkState:
    """What is remembered of a chunk; nothing but the phase once it is released.

    Attributes:
        seen: keys touched by a change so far.
        marker: the staged file; set exactly while buffered.
        emptied: the table was truncated: no version-0 row counts, whatever the keys.
    """

    seen: KeySet
    phase: Phase = Phase.UNREAD
    marker: Marker | None = None
    emptied: bool = False

    def to_bytes(self) -> bytes:
        """A compact form; see `from_bytes`."""
        phase = bytes(self.phase.value, "ascii")
        if self.phase is Phase.RELEASED:
            return phase
        head = [self.marker and self.marker.to_json(), self.emptied]
        packed = zlib.compress(orjson.dumps(head))
        size = len(packed).to_bytes(4, "little")
        return phase + size + packed + self.seen.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, key: pa.Schema) -> ChunkState:
        """The state of a form written by `to_bytes`; `key` is the schema of the table's key."""
        phase = Phase(data[:1].decode())
        if phase is Phase.RELEASED:
            return cls(KeySet.empty(key), phase)
        end = 5 + int.from_bytes(data[1:5], "little")
        marker, emptied = orjson.loads(zlib.decompress(data[5:end]))
        staged = Marker.from_json(marker) if marker else None
        return cls(KeySet.from_bytes(data[end:]), phase, staged, emptied)


@dataclass(frozen=True)
class Release:
    """The body of a release row: from now on the staged file counts, without `excluded`."""

    marker: Marker
    excluded: KeySet

    def to_body(self) -> bytes:
        """A JSON form; see `from_body`."""
        excluded = base64.b64encode(self.excluded.to_bytes()).decode()
        return orjson.dumps({"marker": self.marker.to_json(), "excluded": excluded})

    @classmethod
    def from_body(cls, body: bytes) -> Release:
        """The release of a JSON form written by `to_body`."""
        data: dict[str, Any] = orjson.loads(body)
        excluded = KeySet.from_bytes(base64.b64decode(data["excluded"]))
        return cls(Marker.from_json(data["marker"]), excluded)


def step(
    state: ChunkState,
    changes: Sequence[pa.Table],
    markers: Sequence[Marker],
    watermark: int,
    table: LoadingTable,
) -> tuple[ChunkState, Release | None]:
    """One epoch of a chunk. `watermark` is the one before the epoch, as Spark hands it over.

    The version-0 rows of a marker are never released in the epoch that brought it: a replay of the
    epoch reads the chunk again and may find other rows.
    """
    may_release = state.phase is Phase.BUFFERED
    for batch in changes:
        state = on_changes(state, batch, table)
    if markers:
        state = on_marker(state, min(markers, key=lambda marker: marker.file), watermark, table)
    return on_watermark(state, watermark, table) if may_release else (state, None)


def on_changes(state: ChunkState, batch: pa.Table, table: LoadingTable) -> ChunkState:
    """Remember the touched keys of a change batch; the batch itself passes in any phase.

    A truncate touches every key. Rows read before it are gone; rows read after it came into the
    table after it, so that their changes are seen before the chunk can be released.
    """
    if state.phase is Phase.RELEASED:
        return state
    if table.begin:
        batch = batch.filter(pa.array(is_fresh(batch, table.begin)))
    is_truncate = pc.equal(batch[OP], "truncate")
    key = table.schema.key_arrow
    if state.emptied or pc.any(is_truncate).as_py():
        return replace(state, seen=KeySet.empty(key), emptied=True)
    return replace(state, seen=state.seen.union(KeySet.of(batch, key)))


def on_marker(state: ChunkState, marker: Marker, watermark: int, table: LoadingTable) -> ChunkState:
    """Buffer the chunk's file; a re-read is ignored: the first file is the one that counts.

    Raises:
        UserError: the changelog was closed before this chunk was read.
    """
    if state.phase is not Phase.UNREAD:
        return state
    if watermark >= END_OF_TIME:
        # No later watermark can show that the changes up to this read were seen.
        raise UserError(
            "the changelog was closed before all chunks were read",
            where=f"{table.table} chunk {marker.chunk}",
            safe="nothing of this chunk was published",
            hint="end a bounded changelog only after the last chunk's marker",
        )
    return replace(state, phase=Phase.BUFFERED, marker=marker)


def on_watermark(
    state: ChunkState, watermark: int, table: LoadingTable
) -> tuple[ChunkState, Release | None]:
    """Release a buffered chunk when every change up to its read has been seen for certain.

    Only the watermark proves that. A change of this chunk at a later position does not: the table's
    other partitions may lag, and one chunk does not see what the others saw.
    """
    if state.marker is None or watermark <= release_ms(state.marker, table):
        return state, None
    released = ChunkState(KeySet.empty(table.schema.key_arrow), Phase.RELEASED)
    marker = state.marker
    if state.emptied:
        marker = replace(marker, file="", rows=0, size=0, digest="")
    return released, Release(marker, state.seen)


def release_ms(marker: Marker, table: LoadingTable) -> SourceMs:
    """The chunk is released by the first watermark above this."""
    return SourceMs(marker.high_ms + table.delay_ms)
