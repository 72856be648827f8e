"""Mirrors: our copy of a table, as a compacted `base` and the `changelog` tail after it.

Both are Delta tables that anybody can read. What counts is the pair of versions in the manifest;
what was written after it does not exist and is rolled back on start.
"""

from __future__ import annotations

import os
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import KIND
from mview.delta.actions import NO_TABLE, is_below, table_actions
from mview.delta.log import DeltaLog
from mview.delta.parquet import (
    DataFile,
    check_columns,
    describe,
    read_footer,
    read_parquet,
    write_parquet,
)
from mview.delta.recent import Recent
from mview.delta.rewrite import Rewriter
from mview.delta.tiers import crowded
from mview.errors import CorruptionError
from mview.files.durable import later
from mview.files.fence import UNFENCED, Fence
from mview.rows.match import IndexedRows
from mview.schema import TableSchema, as_schema
from mview.store.fold import EPOCH, ROW, fold, left_of, settle, without
from mview.store.manifest import TableState

__all__ = ["EPOCH", "KIND", "ROW", "Mirror", "MirrorFiles", "StagedFile", "fold"]

#: Application ids of the two kinds of commits; one epoch makes at most one of each.
_APPEND, _REGISTER = "mview-append", "mview-register"

#: Application id under which a changelog says up to which epoch it has been trimmed.
_TRIM = "mview-trim"

#: Bytes of a changelog's rows that are remembered: small files are soon written together.
_WRITTEN = 4 << 20

#: Rows take about so many times the bytes of their compressed file.
_UNPACKED = 2

#: Transaction version after a roll-back: no epoch has it, so every epoch may be written again.
_NO_EPOCH = -1


class StagedFile(Protocol):
    """What a snapshot marker says of its file; see `mview.snapshot.Marker`."""

    @property
    def file(self) -> str:
        """Path below the base folder; "" for an empty chunk."""

    @property
    def rows(self) -> int:
        """Rows in the file."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    @property
    def digest(self) -> str:
        """CRC-32 of the file, hex."""


class MirrorFiles(NamedTuple):
    """The files that hold a table at an epoch: (absolute path, rows).

    A tail file may begin before the fold: take its rows with `__epoch` > `TableState.folded`.
    """

    base: Sequence[tuple[str, int]]
    tail: Sequence[tuple[str, int]]


class Mirror:
    """The mirror of one table. One object per table in the process that writes.

    `append` and `register` are on the hot path; `files`, `compact` and `maintain` may run beside
    them in another thread.
    """

    def __init__(
        self,
        folder: Path,
        schema: TableSchema,
        fence: Fence = UNFENCED,
    ) -> None:
        self.folder, self._fence = folder, fence
        self.schema = schema
        self.base = DeltaLog(folder / "base", fence=fence)
        self.changelog = DeltaLog(folder / "changelog", fence=fence)
        # NOT NULL is the source's promise, not ours: a reader must not trip over it.
        self._rows = pa.schema([field.with_nullable(True) for field in schema.arrow])
        meta = [pa.field(EPOCH, pa.int64()), pa.field(KIND, pa.string())]
        self._changes = pa.schema([*meta, *self._rows])
        self._rewriter = Rewriter(self.base, self._rows, schema.key, folder.name, ordered=True)
        self._written: Recent[pa.Table] = Recent(_WRITTEN)
        self._listed: dict[tuple[str, int, int], Sequence[tuple[str, int]]] = {}
        self._listing = threading.Lock()

    # --- writing ---------------------------------------------------------------------------------

    def create(self) -> TableState:
        """Make both tables, empty.

        Tables that are there get a new version without rows: what a manifest names stays readable
        until the next one is published.
        """
        for log, schema, app in (
            (self.base, self._rows, _REGISTER),
            (self.changelog, self._changes, _APPEND),
        ):
            head = log.refresh()
            table = table_actions(schema)
            if head.version != NO_TABLE:
                ids = {"id": head.metadata["id"]}
                table = [{"metaData": {**a["metaData"], **ids}} for a in table if "metaData" in a]
            note = {"mview": "create"}
            log.commit([], list(head.files), note, transaction=(app, _NO_EPOCH), table=table)
        return TableState(self.schema, self.base.head.version, self.changelog.head.version)

    def stage_folder(self, generation: int) -> Path:
        """Where executors write chunk files; a marker's file is relative to the base folder."""
        return self._made(_stage(generation))

    def reread_folder(self) -> Path:
        """Where this runner writes chunks of a loaded table that it reads anew, in the same way."""
        return self._made(self._reread)

    def _made(self, name: str) -> Path:
        folder = self.base.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def _reread(self) -> str:
        # By runner: what one that was killed has left is nobody's.
        return f"stage/again-{self._fence.token:06d}"

    def new_file(self, epoch: int) -> Path:
        """Where this runner writes a file that `take` takes; no older version names one there."""
        return self.base.folder / self.base.new_file(f"b{epoch:012d}")

    def staged(self, name: str) -> Path:
        """The staged file that a marker names.

        Raises:
            CorruptionError: it is not below the base.
        """
        if not is_below(name):
            raise CorruptionError(
                "a chunk names a file that is not in the table's folder",
                where=str(self.base.folder),
                got=repr(name),
                safe="nothing of the chunk is in the table",
                hint="find out who writes into the store; then `mview drop` the table and run "
                "again: it is loaded anew",
            )
        return self.base.folder / name

    def register(
        self, epoch: int, files: Sequence[StagedFile], excluded: Mapping[str, pa.Table]
    ) -> int:
        """Take staged chunk files into the base, without a rewrite where no key is excluded.

        Args:
            epoch: the epoch that releases them; the same epoch twice is the same as once.
            files: the chunks' markers.
            excluded: per file, distinct keys whose rows came by the changelog (key columns).

        Returns:
            The version of the base that holds them.

        Raises:
            CorruptionError: a file is torn or is not the one its marker speaks of.
        """
        if self.base.head.transactions.get(_REGISTER) == epoch or not files:
            return self.base.head.version
        added = []
        for staged in files:
            if not staged.file:
                continue
            self._check(staged)
            later(self.staged(staged.file))
            keys = excluded.get(staged.file)
            if keys is not None and keys.num_rows:
                added += self._rewrite(epoch, staged.file, keys)
            else:
                added.append(describe(self.base.folder, staged.file, self.schema.key))
        if not added:
            return self.base.head.version
        note = {"mview": "register", "epoch": epoch}
        return self.base.commit(added, [], note, transaction=(_REGISTER, epoch))

    def take(self, epoch: int, files: Sequence[Path]) -> int:
        """Take files that this runner has written below the base as more of its rows.

        Args:
            epoch: the epoch that shows them; the same epoch twice is the same as once.
            files: Parquet files of the table's columns, where `new_file` has said.

        Returns:
            The version of the base that holds them.
        """
        if self.base.head.transactions.get(_REGISTER) == epoch or not files:
            return self.base.head.version
        names = [str(file.relative_to(self.base.folder)) for file in files]
        added = [describe(self.base.folder, name, self.schema.key) for name in names]
        for file in files:
            later(file)
        note = {"mview": "take", "epoch": epoch}
        return self.base.commit(added, [], note, transaction=(_REGISTER, epoch))

    def copy(self, other: Mirror, state: TableState, epoch: int, most: int) -> TableState:
        """Begin anew with the rows that another mirror has at an epoch of its own.

        The files of its base are linked, not copied; what its tail says comes into the base here.

        Args:
            other: on the same file system; only read.
            state: what is published of it.
            epoch: the epoch that shows the rows here.
            most: bytes of changes to hold; see `compact`.

        Raises:
            FileNotFoundError: a file of it is gone: a newer state has others.
        """
        begun = self.create()
        files = []
        for path, _ in other.files(state).base:
            files.append(self.new_file(epoch))
            os.link(path, files[-1])
        version, rest = self.take(epoch, files), state
        while (tail := other._oldest(rest, most)).num_rows:
            rest = replace(rest, folded=int(pc.max(tail[EPOCH]).as_py()))
            version = self._fold(tail, epoch)
        return replace(
            begun, base_version=version, folded=epoch - 1, rows=state.rows, phase="loaded"
        )

    def append(self, epoch: int, delta: pa.Table) -> int:
        """Append an epoch's changes: KIND and the table's columns, any other order of columns.

        Returns:
            The version of the changelog that holds them; the known one for an empty delta.
        """
        head = self.changelog.head
        if head.transactions.get(_APPEND) == epoch or not delta.num_rows:
            return head.version
        stamp = pa.array(np.full(delta.num_rows, epoch))
        rows = as_schema(delta.append_column(EPOCH, stamp), self._changes)
        merged = crowded(head.files.values())
        first = min([epoch, *(_first_epoch(file.path) for file in merged)])
        parts = [self._changes_of(file) for file in merged]
        name = self.changelog.new_file(f"{first:012d}-{epoch:012d}")
        written = pa.concat_tables([*parts, rows]).combine_chunks() if parts else rows
        file = write_parquet(self.changelog.folder, name, written, [EPOCH, *self.schema.key])
        version = self.changelog.commit(
            [file],
            [old.path for old in merged],
            {"mview": "append", "epoch": epoch},
            transaction=(_APPEND, epoch),
        )
        self._written.add(name, written)
        self._written.forget(self.changelog.head.files)
        return version

    def restore(self, state: TableState) -> None:
        """Make both tables what the manifest says, after a crash; nothing where they are."""
        note = {"mview": "restore"}
        for log, version, app in (
            (self.base, state.base_version, _REGISTER),
            (self.changelog, state.changelog_version, _APPEND),
        ):
            log.refresh()
            log.revert(version, note, (app, _NO_EPOCH))

    # --- reading ---------------------------------------------------------------------------------

    def files(self, state: TableState) -> MirrorFiles:
        """The files of the table at an epoch; cheap when asked again."""
        base = self._list("base", self.base, state.base_version, _NO_EPOCH)
        tail = self._list("tail", self.changelog, state.changelog_version, state.folded)
        return MirrorFiles(base, tail)

    def tail_sizes(self, state: TableState) -> list[tuple[int, int, int]]:
        """The tail's files in order, as (last epoch, rows, about how many bytes in memory)."""
        files = self.changelog.at(state.changelog_version).files.values()
        live = sorted((f for f in files if _last_epoch(f) > state.folded), key=_last_epoch)
        return [(_last_epoch(f), f.rows, _UNPACKED * f.size) for f in live]

    def nbytes(self, state: TableState) -> int:
        """About how many bytes the table's rows take in memory, changes of its tail included."""
        return self.base_bytes(state) + sum(size for _, _, size in self.tail_sizes(state))

    def base_bytes(self, state: TableState) -> int:
        """The same of the rows of its base."""
        return _UNPACKED * self.file_bytes(state)

    def file_bytes(self, state: TableState) -> int:
        """Bytes of the files of its base."""
        return sum(file.size for file in self.base.at(state.base_version).files.values())

    def scan(self, state: TableState, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of the table at an epoch; only `columns` where given."""
        rows = self.scan_within(state, sys.maxsize, columns)
        assert rows is not None, "nothing has so many bytes"
        return rows

    def scan_within(
        self, state: TableState, most: int, columns: Sequence[str] | None = None
    ) -> pa.Table | None:
        """The same; None as soon as the base files are seen to have more than `most` bytes."""
        names = list(self.schema.names if columns is None else columns)
        read = [*names, *(name for name in self.schema.key if name not in names)]
        files = self.files(state)
        parts, size = [self._rows.empty_table().select(read)], 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for part in pool.map(lambda f: read_parquet(Path(f[0]), self._rows, read), files.base):
                parts.append(part)
                size += part.nbytes
                if size > most:
                    pool.shutdown(cancel_futures=True)
                    return None
        tail = self._tail(state, read)
        return fold(pa.concat_tables(parts), tail, self.schema.key).select(names)

    def parts(self, state: TableState, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows of the table at an epoch, a base file at a time; what its tail ends with last.

        The tail is held whole: compaction bounds it.

        Args:
            state: what is published of it, or is about to be.
            columns: those that are read; None: all.
        """
        key, names = list(self.schema.key), list(columns or self.schema.names)
        read = [*names, *(name for name in key if name not in names)]
        last = settle(self._tail(state, read), key)
        touched = IndexedRows.of(last.keys)
        for path, _ in self.files(state).base:
            rows = read_parquet(Path(path), self._rows, read)
            if touched.rows.num_rows:
                rows = left_of(rows, IndexedRows.of(rows.select(key)).match(touched)[0])
            yield rows.select(names)
        yield last.comes.select(names)

    # --- off the critical path -------------------------------------------------------------------

    def compact(self, state: TableState, most: int = sys.maxsize) -> tuple[int, int]:
        """Fold the tail of a published epoch into the base, of a long one its older part.

        The next manifest takes over both results, and no base version below the one it has: until
        then readers go on with the whole tail. That stays right over the new base as well, because
        the last change of a key decides alone; so chunks may be registered meanwhile.

        Args:
            state: what is published.
            most: bytes of changes to hold; the oldest epoch is taken in any case.

        Returns:
            (base version, folded epoch).
        """
        tail = self._oldest(state, most)
        if not tail.num_rows:
            return state.base_version, state.folded
        folded = int(pc.max(tail[EPOCH]).as_py())
        return self._fold(tail, folded), folded

    def _fold(self, tail: pa.Table, epoch: int) -> int:
        """Write changes into the base, in files that are called by an epoch; the base's version."""
        upsert, live = settle(tail, self.schema.key), self.base.head.files
        rewrite = self._rewriter.plan(f"c{epoch:012d}", upsert, live)
        return self.base.commit(rewrite.adds, rewrite.removes, {"mview": "compact"})

    def _oldest(self, state: TableState, most: int) -> pa.Table:
        """The changes up to an epoch: of as many files as fit into `most` bytes, of one at least.

        Files are merged by their size, so one may reach back behind another.
        """
        upto, size = state.folded, 0
        for epoch, _, nbytes in self.tail_sizes(state):
            size += nbytes
            if size > most and upto > state.folded:
                break
            upto = epoch
        rows = self._changes.empty_table()
        for path, _ in self.files(state).tail:
            if _first_epoch(Path(path).name) <= upto:
                part = read_parquet(Path(path), self._changes)
                epochs = part[EPOCH]
                wanted = pc.and_(pc.greater(epochs, state.folded), pc.less_equal(epochs, upto))
                rows = pa.concat_tables([rows, part.filter(wanted)])
        return rows

    def changes(
        self, state: TableState, after: int, most: int = sys.maxsize, until: int = sys.maxsize
    ) -> pa.Table:
        """The changelog rows after an epoch, with EPOCH: of as many epochs as fit, of one at least.

        Args:
            state: what is published.
            after: not below what `trimmed` says.
            most: bytes of rows, about.
            until: nothing after this epoch.
        """
        return self.changes_until(state, after, most, until)[0]

    def changes_until(
        self, state: TableState, after: int, most: int, until: int = sys.maxsize
    ) -> tuple[pa.Table, int | None]:
        """The same, and the epoch up to which these are all; None: there are no more."""
        files = self.changelog.at(state.changelog_version).files.values()
        rest = [f for f in files if _last_epoch(f) > after and _first_epoch(f.path) <= until]
        waiting = sorted(rest, key=_last_epoch)
        upto, size, ends = after, 0, None
        for file in waiting:
            size += _UNPACKED * file.size
            if size > most and upto > after:
                ends = upto
                break
            upto = _last_epoch(file)
        upto = min(upto, until)
        parts = [self._changes.empty_table()]
        # Files are merged by their size, so one may reach back behind another.
        for file in waiting:
            if _first_epoch(file.path) <= upto:
                part = read_parquet(self.changelog.folder / file.path, self._changes)
                epochs = part[EPOCH]
                wanted = pc.and_(pc.greater(epochs, after), pc.less_equal(epochs, upto))
                parts.append(part.filter(wanted))
        return pa.concat_tables(parts), ends

    def trimmed(self, state: TableState) -> int:
        """The changelog of a published state has all changes after this epoch, of its life."""
        return self.changelog.at(state.changelog_version).transactions.get(_TRIM, 0)

    @property
    def cleaned(self) -> int:
        """Changes up to this epoch may be gone by now, whatever is published; see `trimmed`."""
        return self.changelog.head.transactions.get(_TRIM, 0)

    def waiting_bytes(self, state: TableState, after: int) -> int:
        """Bytes of the changelog's files with changes after an epoch."""
        files = self.changelog.at(state.changelog_version).files.values()
        return sum(file.size for file in files if _last_epoch(file) > after)

    def waiting_epochs(self, state: TableState, after: int) -> set[int]:
        """The epochs after one that have changes."""
        epochs: set[int] = set()
        for file in self.changelog.at(state.changelog_version).files.values():
            if _last_epoch(file) > after:
                path = self.changelog.folder / file.path
                epochs.update(
                    read_parquet(path, self._changes, [EPOCH])[EPOCH].unique().to_pylist()
                )
        return {epoch for epoch in epochs if epoch > after}

    def maintain(
        self, current: TableState, oldest: TableState, generation: int, after: int = sys.maxsize
    ) -> int:
        """Delete what nobody reads any more, end the folded part of the changelog, checkpoint.

        Args:
            current: the newest published state.
            oldest: it stays readable, and all that were published after it.
            generation: the running generation; its staged files stay while the table is loaded.
                Those that this runner has staged to read a table anew stay in any case.
            after: changes after this epoch are still to be read.

        Returns:
            Number of files deleted.
        """
        files, upto = self.changelog.head.files.values(), min(current.folded, after)
        if folded := [file.path for file in files if _last_epoch(file) <= upto]:
            self.changelog.commit([], folded, {"mview": "trim"}, transaction=(_TRIM, upto))
        staging = [_stage(generation)] if current.phase == "loading" else []
        cleaned = self.base.clean(
            min(oldest.base_version, current.base_version),
            spare=lambda path: path.startswith(tuple(f"{s}/" for s in (*staging, self._reread))),
        )
        return cleaned + self.changelog.clean(
            min(oldest.changelog_version, current.changelog_version)
        )

    # --- parts -----------------------------------------------------------------------------------

    def _check(self, staged: StagedFile) -> None:
        file = self.staged(staged.file)
        check_columns(file, self._rows)
        there = (
            read_footer(file).num_rows,
            file.stat().st_size,
            f"{zlib.crc32(file.read_bytes()):08x}",
        )
        if there != (staged.rows, staged.size, staged.digest):
            raise CorruptionError(
                "a staged chunk file is not the one its marker speaks of",
                where=str(file),
                got="rows {}, bytes {}, CRC-32 {}".format(*there),
                allowed=f"rows {staged.rows}, bytes {staged.size}, CRC-32 {staged.digest}",
                safe="nothing of the chunk is in the table",
                hint="`mview drop` the table and run again: it is loaded anew",
            )

    def _rewrite(self, epoch: int, file: str, keys: pa.Table) -> list[DataFile]:
        rows = read_parquet(self.base.folder / file, self._rows)
        kept = without(rows, keys.select(list(self.schema.key)), self.schema.key)
        if not kept.num_rows:
            return []
        name = self.base.new_file(f"r{epoch:012d}")
        return [write_parquet(self.base.folder, name, kept, self.schema.key)]

    def _changes_of(self, file: DataFile) -> pa.Table:
        rows = self._written.get(file.path)
        return (
            read_parquet(self.changelog.folder / file.path, self._changes) if rows is None else rows
        )

    def _tail(self, state: TableState, columns: Sequence[str]) -> pa.Table:
        wanted = [EPOCH, KIND, *columns]
        parts = [
            read_parquet(Path(path), self._changes, wanted) for path, _ in self.files(state).tail
        ]
        rows = pa.concat_tables([self._changes.empty_table().select(wanted), *parts])
        return rows.filter(pc.greater(rows[EPOCH], state.folded))

    def _list(
        self, part: str, log: DeltaLog, version: int, folded: int
    ) -> Sequence[tuple[str, int]]:
        with self._listing:
            known = self._listed.get((part, version, folded))
            if known is None:
                known = tuple(
                    (str(log.folder / file.path), file.rows)
                    for file in log.at(version).files.values()
                    if part == "base" or _last_epoch(file) > folded
                )
                while len(self._listed) >= 8:
                    self._listed.pop(next(iter(self._listed)))
                self._listed[part, version, folded] = known
            return known


def _stage(generation: int) -> str:
    return f"stage/{generation:06d}"


def _first_epoch(name: str) -> int:
    return int(name.split("-")[0])


def _last_epoch(file: DataFile) -> int:
    return int(file.path.split("-")[1])
