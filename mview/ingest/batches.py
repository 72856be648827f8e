"""What an epoch takes: changes, released chunks, and the offsets where they end.

`foreachBatch` is not told its offsets. Spark writes them to `<checkpoint>/offsets/<batch>` before
the batch runs: two header lines (version, metadata), then one JSON line per source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from mview.changelog import StreamRow, from_ipc
from mview.connector import TableHalt
from mview.execute.delta import Delta
from mview.files.jsonfile import damage_told
from mview.files.records import fields, plain, record
from mview.ingest.mending.reject import Reject, of_body
from mview.merge.rules import Release
from mview.relation import RelationId
from mview.snapshot import ChunkPlan
from mview.store.manifest import Cut
from mview.store.quarantine import MendRequest


@dataclass(frozen=True)
class BatchOffsets:
    """Where a batch ends.

    Attributes:
        connections: offsets by connection.
        watermark: source milliseconds, -1 unknown.
        chunks: snapshot chunks handed out so far, by table; none in the live query.
        pinned_ms: what `now()` is in the batch's epoch; 0: no view asks.
        cuts: where that is, by connection.
        halts: tables of which a changelog says that no later change of them can be taken.
    """

    connections: dict[str, dict[str, Any]]
    watermark: int
    chunks: dict[RelationId, int]
    pinned_ms: int = 0
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    halts: Mapping[RelationId, TableHalt] = field(default_factory=dict)


@dataclass(frozen=True)
class Reloaded:
    """A chunk of a loaded table that was read anew.

    Attributes:
        plan: how the table is split.
        release: the rows; those of `excluded` keys do not count: changes have overtaken them.
    """

    plan: ChunkPlan
    release: Release


@dataclass(frozen=True)
class Batch:
    """What was read, by table.

    Attributes:
        changes: change batches per table (`changelog.batch_schema`).
        releases: released chunks per table.
        offsets: where the batch ends.
        generation: number of the query.
        number: of the batch in the query.
        rereads: chunks of loaded tables that were read anew, by table.
        halts: tables whose changes or chunks cannot be taken, and why.
        rejects: changes that go into quarantine.
        mends: what is asked for of changes that are in quarantine.
        deltas: by table, changes that come with the rows that they replace, as another store has
            taken them.
        positions: of tables whose changes come so, what is taken; see `Manifest.positions`.
        newest: of the same tables; see `Manifest.newest`.
    """

    changes: Mapping[RelationId, list[pa.Table]]
    releases: Mapping[RelationId, list[Release]]
    offsets: BatchOffsets
    generation: int
    number: int
    rereads: Mapping[RelationId, Sequence[Reloaded]] = field(default_factory=dict)
    halts: Mapping[RelationId, TableHalt] = field(default_factory=dict)
    rejects: Sequence[Reject] = ()
    mends: Sequence[MendRequest] = ()
    deltas: Mapping[RelationId, Delta] = field(default_factory=dict)
    positions: Mapping[RelationId, dict[str, str]] = field(default_factory=dict)
    newest: Mapping[RelationId, dict[str, int]] = field(default_factory=dict)

    @property
    def halted(self) -> dict[RelationId, TableHalt]:
        """All tables that halt with it, by whoever has noticed."""
        return {**self.halts, **self.offsets.halts}


#: Handles a batch. Returns when it is published; never runs twice at once.
OnBatch = Callable[[Batch], None]


class Sorted(NamedTuple):
    """What came through Spark, by table; see `Batch`."""

    changes: dict[RelationId, list[pa.Table]]
    releases: dict[RelationId, list[Release]]
    halts: dict[RelationId, TableHalt]
    rejects: list[Reject]


def halt_row(table: RelationId, halt: TableHalt) -> StreamRow:
    """A halt as a row of the stream."""
    return StreamRow("halt", str(table), body=orjson.dumps(plain(halt)))


def sorted_rows(rows: pa.Table) -> Sorted:
    """What came through Spark (STREAM_ARROW)."""
    changes: dict[RelationId, list[pa.Table]] = defaultdict(list)
    releases: dict[RelationId, list[Release]] = defaultdict(list)
    halts: dict[RelationId, TableHalt] = {}
    rejects: list[Reject] = []
    columns = (rows[name] for name in ("kind", "table", "body"))
    for kind, table, body in zip(*columns, strict=True):
        if kind.as_py() == "changes":
            # The table lies in the body: to make bytes of it would be a copy.
            changes[RelationId.of(table.as_py())].append(from_ipc(body.as_buffer()))
        elif kind.as_py() == "release":
            releases[RelationId.of(table.as_py())].append(Release.from_body(body.as_py()))
        elif kind.as_py() == "halt":
            halt = record(TableHalt, orjson.loads(body.as_py()))
            halts.setdefault(RelationId.of(table.as_py()), halt)
        elif kind.as_py() == "reject":
            rejects += of_body(body.as_py())
        elif kind.as_py() != "heartbeat":
            raise TypeError(f"nobody knows what an epoch does with a row {kind}")
    return Sorted(dict(changes), dict(releases), halts, rejects)


#: What the two sources of a load say, see `mview.ingest.sources`.
CHANGES = {
    "connections": dict[str, dict[str, Any]],
    "watermark": int,
    "pinned_ms": int,
    "cuts": dict[str, Cut],
    "halts": dict[RelationId, TableHalt],
}
_CHUNKS = {"chunks": dict[RelationId, int]}


def batch_offsets(checkpoint: Path, batch: int) -> BatchOffsets:
    """The end offsets of a batch.

    Raises:
        CorruptionError: the log entry is missing or has another form.
    """
    file = checkpoint / "offsets" / str(batch)
    with damage_told(
        file,
        f"offsets of batch {batch} cannot be read",
        "run again; if it stays, remove the checkpoint folder: loading starts over",
        "published epochs are untouched",
    ):
        lines = file.read_text().splitlines()
        sources = [orjson.loads(line) for line in lines[2:] if line != "-"]
        # In any order: Spark numbers sources by itself.
        sources.sort(key=lambda source: isinstance(source, dict) and "chunks" in source)
        if len(sources) != 2:
            raise ValueError(f"{len(sources)} sources instead of the chunks and the changelogs")
        changes, chunks = sources
        return BatchOffsets(**fields(changes, CHANGES), **fields(chunks, _CHUNKS))
