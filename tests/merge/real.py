"""The real rules without Spark: rules.py per chunk, net.py per epoch, as the pipeline does."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mview.changelog import KIND, RowKind, batch_schema, encode_position
from mview.execute.delta import Delta
from mview.merge.net import net_changes, old_and_new
from mview.merge.rules import ChunkState, LoadingTable, Phase, Release, step
from mview.rows.key_sets import KeySet
from mview.schema import Column, TableSchema
from mview.snapshot import ChunkPlan, Marker
from tests.merge.world import World, apply_changelog
from tests.models.merge import ChangelogRow, Event, Key, Read, Row
from tests.relations import rel

BODY = (Column("v", pa.int64()), Column("note", pa.string()))
SINGLE = TableSchema((Column("id", pa.int64(), False), *BODY), ("id",))
COMPOSITE = TableSchema(
    (Column("region", pa.string(), False), Column("id", pa.int32(), False), *BODY),
    ("region", "id"),
)


def change_batch(
    schema: TableSchema, events: Sequence[tuple[Event, int]], *, source_ms: int = 0
) -> pa.Table:
    """Events (with offsets) as one change batch."""
    rows: list[dict[str, Any]] = []
    for event, offset in events:
        values = event.row or event.key or ()
        rows.append(
            {
                "__op": event.kind,
                "__position": encode_position((7, event.position)),
                "__source_ms": source_ms,
                "__partition": event.partition,
                "__offset": offset,
                **dict(zip(schema.names, values, strict=False)),
            }
        )
    return pa.Table.from_pylist(rows, schema=batch_schema(schema))


class RealSubject:
    """rules.step and net.* with state as bytes and staged files as Arrow tables."""

    def __init__(self, world: World, plan: ChunkPlan, begin: Mapping[str, int]) -> None:
        self.schema = COMPOSITE if world.composite else SINGLE
        after = {name: encode_position((7, at + 1)) for name, at in begin.items()}
        self.table = LoadingTable(rel("db.t"), self.schema, world.t, after)
        empty = ChunkState(KeySet.empty(self.schema.key_arrow)).to_bytes()
        self.states = [empty for _ in plan.chunks]
        self.files: dict[str, pa.Table] = {"": self.schema.arrow.empty_table()}
        self.high = dict(after)
        self.mirror: dict[Key, Row] = {}
        self.newest: dict[str, int] = {}
        self.rng = random.Random(world.seed)

    def copy(self) -> RealSubject:
        other = object.__new__(RealSubject)
        other.__dict__.update(self.__dict__)
        other.states, other.files = list(self.states), dict(self.files)
        other.newest = dict(self.newest)
        return other

    def released(self) -> set[int]:
        return {
            n for n, state in enumerate(self.states) if self._state(state).phase is Phase.RELEASED
        }

    def _state(self, data: bytes) -> ChunkState:
        return ChunkState.from_bytes(data, self.schema.key_arrow)

    def epoch(
        self, events: Sequence[tuple[Event, int]], reads: Sequence[Read], watermark: int
    ) -> list[ChangelogRow]:
        batches, releases = [], []
        for chunk in range(len(self.states)):
            mine = [(e, o) for e, o in events if e.chunk == chunk or e.kind == "truncate"]
            cut = self.rng.randint(0, len(mine))
            changes = [change_batch(self.schema, part) for part in (mine[:cut], mine[cut:]) if part]
            markers = [self._stage(read) for read in reads if read.chunk == chunk]
            state, release = step(
                self._state(self.states[chunk]), changes, markers, watermark, self.table
            )
            self.states[chunk] = state.to_bytes()
            batches += changes
            if release:
                releases.append(Release.from_body(release.to_body()))
        changed = self._changed(batches)
        self.mirror = apply_changelog(self.mirror, changed)
        version0 = [row for release in releases for row in self._version0(release)]
        self.mirror = apply_changelog(self.mirror, version0)
        return changed + version0

    def _stage(self, read: Read) -> Marker:
        self.files[read.file] = self._rows(read.rows.values())
        return Marker("db.t", read.chunk, read.file, len(read.rows), 0, "", read.high_ms)

    def _rows(self, rows: Any) -> pa.Table:
        dicts = [dict(zip(self.schema.names, row, strict=True)) for row in rows]
        return pa.Table.from_pylist(dicts, schema=self.schema.arrow)

    def _changed(self, batches: Sequence[pa.Table]) -> list[ChangelogRow]:
        netted = net_changes(batches, self.schema, self.high, self.newest)
        self.high = netted.high_water
        for partition, ms in netted.newest.items():
            self.newest[partition] = max(ms, self.newest.get(partition, ms))
        keys = netted.deleted.select(list(self.schema.key)).to_pylist()
        keys += netted.upserts.select(list(self.schema.key)).to_pylist()
        found = (self.mirror.get(tuple(key.values())) for key in keys)
        old = self.mirror.values() if netted.truncated else [row for row in found if row]
        delta, _ = old_and_new(netted, self._rows(old), self.schema)
        return self._changelog(Delta(delta, self.schema.key).changelog)

    def _version0(self, release: Release) -> list[ChangelogRow]:
        rows = self.files[release.marker.file]
        excluded = release.excluded.contains(rows, self.schema.key_arrow)
        kept = rows.filter(pa.array(~excluded))
        kinds = pa.array(["+I"] * kept.num_rows, pa.string())
        return self._changelog(kept.add_column(0, KIND, kinds))

    def _changelog(self, delta: pa.Table) -> list[ChangelogRow]:
        size = len(self.schema.key)
        rows = [tuple(row.values()) for row in delta.to_pylist()]
        return [(RowKind(kind), tuple(row[:size]), tuple(row)) for kind, *row in rows]
