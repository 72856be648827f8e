"""Snapshots of a Paimon table: one is added only where nothing but compaction came in between.

pypaimon tries a commit again on whatever snapshot is the latest, and takes a second one under the
same identifier. Here a commit is tried once, on condition.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pypaimon.common.json_util import JSON
from pypaimon.filesystem.local_file_io import LocalFileIO
from pypaimon.snapshot.renaming_snapshot_commit import RenamingSnapshotCommit
from pypaimon.snapshot.snapshot_commit import SnapshotCommit
from pypaimon.write.file_store_commit import FileStoreCommit

#: Kinds of snapshots that change no row.
SAME_ROWS = ("COMPACT", "ANALYZE")


class MovedError(Exception):
    """The table is not what a step was staged on any more."""


def place(snapshot: Any) -> dict[str, Any] | None:
    """What names a snapshot; its number alone does not, once somebody has rolled back."""
    return None if snapshot is None else {"id": snapshot.id, "list": snapshot.delta_manifest_list}


def backwards(table: Any) -> Iterator[Any]:
    """The snapshots from the latest one on, as far as they are kept."""
    manager = table.snapshot_manager()
    snapshot = manager.get_latest_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = manager.get_snapshot_by_id(snapshot.id - 1) if snapshot.id > 1 else None


def stands(table: Any, base: dict[str, Any] | None, before: int | None = None) -> bool:
    """Whether the table has the rows of a snapshot, looking at those before a number."""
    for snapshot in backwards(table):
        if before is not None and snapshot.id >= before:
            continue
        if place(snapshot) == base:
            return True
        if snapshot.commit_kind not in SAME_ROWS:
            return False
    return base is None


class Conditional(SnapshotCommit):  # type: ignore[misc]  # untyped where it is not installed
    """Adds a snapshot if the table still stands where it was staged on."""

    def __init__(self, table: Any, base: dict[str, Any] | None) -> None:
        self._table, self._base = table, base
        self._inner = table.new_snapshot_commit()
        self.moved = False
        self.snapshot: int | None = None

    def commit(self, base_snapshot_uuid: Any, snapshot: Any, statistics: Any) -> bool:
        """Add it, or not; raises where nobody knows."""
        done = stands(self._table, self._base, snapshot.id) and self._added(
            base_snapshot_uuid, snapshot, statistics
        )
        self.moved, self.snapshot = not done, snapshot.id
        return done

    def _added(self, base: Any, snapshot: Any, statistics: Any) -> bool:
        manager, file_io = self._table.snapshot_manager(), self._table.file_io
        if isinstance(self._inner, RenamingSnapshotCommit) and isinstance(file_io, LocalFileIO):
            # pypaimon looks and then renames, which another process can come between.
            path = file_io._to_file(manager.get_snapshot_path(snapshot.id))
            if not _linked(path, JSON.to_json(snapshot, indent=2)):
                return False
            with suppress(OSError):
                write_over(path.with_name("LATEST"), str(snapshot.id))
            return True
        return bool(self._inner.commit(base, snapshot, statistics))

    def close(self) -> None:
        """Free what the catalog has open."""
        self._inner.close()


def _written(path: Path, text: str) -> Path:
    """A new file beside another one, forced to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return new


def _linked(path: Path, text: str) -> bool:
    """Make a file, whole, if it is not there."""
    new = _written(path, text)
    try:
        os.link(new, path)
    except FileExistsError:
        return False
    finally:
        new.unlink()
    return True


def write_over(path: Path, text: str) -> None:
    """Make a small file, or replace it; readers see it whole."""
    _written(path, text).replace(path)


class Committer(FileStoreCommit):  # type: ignore[misc]
    """Commits once, on a base.

    Args:
        table: the table.
        base: the `place` of the snapshot that the table has to stand at.
        user: Paimon's commit user.
    """

    def __init__(self, table: Any, base: dict[str, Any] | None, user: str) -> None:
        once = {"commit.max-retries": "0", "snapshot.ignore-empty-commit": "false"}
        self._condition = Conditional(table, base)
        super().__init__(self._condition, table.copy_without_time_travel(once), user)

    def run(
        self,
        messages: list[Any],
        identifier: int,
        properties: dict[str, str],
        *,
        overwrite: bool = False,
    ) -> int:
        """Add a snapshot; returns its number.

        Args:
            messages: of files; none: no row is changed.
            identifier: Paimon's commit identifier.
            properties: of the snapshot.
            overwrite: all files that are there go.

        Raises:
            MovedError: nothing was added, and never will be.
            RuntimeError: nobody knows.
        """
        try:
            if overwrite:
                self.overwrite({}, messages, identifier, properties)
            else:
                self.commit(messages, identifier, properties)
        except RuntimeError as error:
            if self._condition.moved:
                raise MovedError("another snapshot was added meanwhile") from error
            raise
        finally:
            self.close()
        assert self._condition.snapshot is not None
        return self._condition.snapshot
