"""A mirror driven at random against a dict: what the tests of mirrors and frames share."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mview.schema import Column, TableSchema, parse_type
from mview.snapshot import Marker
from mview.store.manifest import TableState
from mview.store.mirror import KIND, Mirror

Key = tuple[Any, ...]
Row = tuple[Any, ...]

SCHEMA = TableSchema(
    (
        Column("v", parse_type("string")),
        Column("id", parse_type("bigint"), nullable=False),
        Column("part", parse_type("string"), nullable=False),
        Column("n", parse_type("decimal(10,2)")),
    ),
    ("id", "part"),
)


def delta_of(changes: Iterable[tuple[str, Row]], schema: TableSchema = SCHEMA) -> pa.Table:
    """Changelog rows as the engine hands them to `append`."""
    listed = list(changes)
    rows = [dict(zip(schema.names, row, strict=True)) | {KIND: kind} for kind, row in listed]
    fields = [pa.field(KIND, pa.string()), *schema.arrow]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def stage(
    mirror: Mirror, rows: Iterable[Row], generation: int = 1, name: str = "x", chunk: int = 0
) -> Marker:
    """Write a chunk file and its marker, as a snapshot reader does."""
    file = mirror.stage_folder(generation) / f"{name}.parquet"
    data = [dict(zip(mirror.schema.names, row, strict=True)) for row in rows]
    pq.write_table(pa.Table.from_pylist(data, schema=mirror.schema.arrow), file)
    path = file.relative_to(mirror.folder / "base").as_posix()
    content = file.read_bytes()
    digest = f"{zlib.crc32(content):08x}"
    return Marker("shop.t", chunk, path, len(data), len(content), digest, 0)


class MirrorDriver:
    """Plays the runtime: loads chunks, applies changes, crashes, compacts; keeps the truth."""

    def __init__(self, folder: Path, seed: int, chunks: int = 3) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.mirror = Mirror(folder, SCHEMA)
        self.state = self.mirror.create()
        self.epoch = 0
        self.truth: dict[Key, Row] = {}
        #: Keys that changes have had: the merge lets no chunk's row of these pass, also when the
        #: row is gone again.
        self._touched: set[Key] = set()
        self.history: dict[int, tuple[TableState, set[Row]]] = {}
        self.unread = [self._chunk(number) for number in range(chunks)]

    def _chunk(self, number: int) -> list[Row]:
        ids = range(number * 20, number * 20 + 20)
        return [self._row((i, "a'b"[i % 3 :])) for i in ids if self.rng.random() < 0.7]

    def _row(self, key: Key) -> Row:
        value = self.rng.choice(["x", "y", None, "ü" * 70])
        return (value, *key, None)

    def _changes(self, keys: Iterable[Key]) -> list[tuple[str, Row]]:
        changes: list[tuple[str, Row]] = []
        for key in keys:
            self._touched.add(key)
            old = self.truth.pop(key, None)
            new = self._row(key) if self.rng.random() < 0.7 else None
            if new is not None:
                self.truth[key] = new
            if old is not None:
                changes.append(("-U" if new else "-D", old))
            if new is not None:
                changes.append(("+U" if old else "+I", new))
        self.rng.shuffle(changes)
        return changes

    def epoch_once(self, size: int = 6) -> TableState:
        """One epoch, not published: some changes, perhaps a chunk; returns its state."""
        epoch, state = self.epoch + 1, self.state
        if self.unread and self.rng.random() < 0.5:
            rows = self.unread[0]
            seen = {
                row[1:3] for row in rows if row[1:3] in self._touched or self.rng.random() < 0.2
            }
            marker = stage(self.mirror, rows, name=f"{epoch}-{self.rng.random()}")
            excluded = pa.Table.from_pylist(
                [{"id": i, "part": p} for i, p in seen], schema=SCHEMA.key_arrow
            )
            version = self.mirror.register(epoch, [marker], {marker.file: excluded})
            assert self.mirror.register(epoch, [marker], {}) == version
            self.truth |= {row[1:3]: row for row in rows if row[1:3] not in seen}
            state = replace(state, base_version=version)
            del self.unread[0]
        keys = [(self.rng.randrange(60), "a'b"[self.rng.randrange(3) :]) for _ in range(size)]
        if self.rng.random() < 0.9:
            delta = delta_of(self._changes(dict.fromkeys(keys)))
            version = self.mirror.append(epoch, delta)
            assert self.mirror.append(epoch, delta) == version
            state = replace(state, changelog_version=version)
        return state

    def publish(self, state: TableState) -> None:
        """Name a state in a manifest."""
        self.state, self.epoch = state, self.epoch + 1
        self.history[self.epoch] = state, set(self.truth.values())

    def crash(self) -> None:
        """Write an epoch that is never published, die, start again."""
        truth, unread = dict(self.truth), list(self.unread)
        self.epoch_once()
        self.truth, self.unread = truth, unread
        self.mirror = Mirror(self.folder, SCHEMA)
        self.mirror.restore(self.state)

    def compact(self) -> None:
        """Compact, and publish what came of it; now and then what came before is not taken over."""
        if self.rng.random() < 0.3:
            self.mirror.compact(self.state)
        self._take_over(*self.mirror.compact(self.state, self._most()))

    def forget(self) -> None:
        """Keep no changes of what was published up to now, as a run does in time."""
        self.compact()
        self._take_over(*self.mirror.compact(self.state))
        self.mirror.maintain(self.state, self.state, 1)

    def compact_beside(self) -> None:
        """Compact while an epoch is written: it is published before, or never."""
        published, truth, unread = self.state, dict(self.truth), list(self.unread)
        state = self.epoch_once()
        result = self.mirror.compact(published, self._most())
        if self.rng.random() < 0.3:
            self.truth, self.unread = truth, unread
            self.mirror = Mirror(self.folder, SCHEMA)
            self.mirror.restore(published)
            return
        self.publish(state)
        if self.rng.random() < 0.3:
            self.publish(self.epoch_once())
        self._take_over(*result)

    def _most(self) -> int:
        """Bytes of changes that a compaction takes: one epoch's, a few, all."""
        return self.rng.choice([0, 20_000, 1 << 30])

    def _take_over(self, base: int, folded: int) -> None:
        version = max(base, self.state.base_version)
        self.publish(replace(self.state, base_version=version, folded=folded))
