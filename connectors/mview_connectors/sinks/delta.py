"""The Delta sink: a view as a Delta table that anybody can read, upserted exactly once.

`stage` does the work: it writes the files that make the delta true, which no reader sees. The
token lists them, and `commit` is one file in the Delta log, put at exactly the version after the
published one. So a commit takes milliseconds, does the same in another process after a crash, and
fails where somebody else has written.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from mview.connector import SinkTarget, check_options
from mview.errors import ConfigError, FencedError
from mview.lake.actions import NO_TABLE, table_actions
from mview.lake.durable import later
from mview.lake.log import DeltaLog
from mview.lake.parquet import DataFile, check_columns, data_file, describe, read_live
from mview_connectors.sinks.rewrite import Rewriter

#: Transaction version after a roll-back; see `DeltaLog.revert`.
_NO_EPOCH = -1

#: What may be set for it.
_OPTIONS = ("path", "deletion_vectors")

#: Below the table's folder; hidden for readers that list folders.
_STAGING = "_staging"

#: Table property that names the view a table belongs to.
_OWNER = "mview.view"


class DeltaSink:
    """One view in one Delta table; see `mview.connector.Sink`.

    Args:
        target: the view; `options["path"]` is the table's folder, absolute;
            `options["deletion_vectors"]` (default false): commits cost in proportion to the
            change and not to the files it touches, for readers that know deletion vectors.
    """

    def __init__(self, target: SinkTarget) -> None:
        check_options(target, _OPTIONS)
        path = target.options.get("path")
        if not path or not Path(path).is_absolute():
            raise ConfigError(
                f"view {target.view}: the delta sink needs the absolute path of a folder", got=path
            )
        if "%" in path:
            raise ConfigError(
                f"view {target.view}: '%' in the path of a Delta table is decoded by some readers",
                got=path,
            )
        self.target = target
        self.folder = Path(path)
        self._log = DeltaLog(self.folder)
        self._schema = pa.schema([field.with_nullable(True) for field in target.schema.arrow])
        self._vectors = _flag(target, "deletion_vectors")
        self._rewriter = Rewriter(
            self._log, self._schema, target.schema.key, target.view, self._vectors
        )

    # --- staging ---------------------------------------------------------------------------------

    def stage(self, epoch: int, delta: pa.Table) -> dict[str, Any]:
        """Write the files that an epoch's delta leads to; nothing of it is visible.

        Raises:
            UserError: the view's key is not unique.
            CorruptionError: the table lacks a row that the delta removes.
            FencedError: the folder holds a table that is not this view's.
        """
        self._check_owner()
        head = self._log.head
        if not delta.num_rows and head.version != NO_TABLE:
            return self._token(epoch, [], [])
        rewrite = self._rewriter.plan(epoch, delta, head.files)
        return self._token(epoch, rewrite.adds, rewrite.removes)

    def staging(self, epoch: int) -> Path:
        """A folder in which an executor may write the files of `stage_full`."""
        folder = self.folder / _STAGING / f"{epoch:012d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def stage_full(self, epoch: int, files: Sequence[Path]) -> dict[str, Any]:
        """Take files as the whole new content; they are moved, not copied.

        Raises:
            UserError: a file has other columns than the view.
            FencedError: the folder holds a table that is not this view's.
        """
        self._check_owner()
        adds = []
        for file in files:
            check_columns(file, self._schema)
            name = self._log.new_file(f"{epoch:012d}")
            file.replace(self.folder / name)
            later(self.folder / name)
            found = describe(self.folder, name, self.target.schema.key)
            if found.rows:
                adds.append(found)
            else:
                self._log.discard([name])
        shutil.rmtree(self.folder / _STAGING, ignore_errors=True)
        return self._token(epoch, adds, list(self._log.head.files))

    def _token(
        self, epoch: int, adds: Sequence[DataFile], removes: Iterable[str]
    ) -> dict[str, Any]:
        head = self._log.head
        rows = head.rows + sum(f.live for f in adds) - sum(head.files[p].live for p in removes)
        return {
            "id": uuid.uuid4().hex,
            "epoch": epoch,
            "writer": self.target.writer,
            "expected_version": head.version,
            "rows": rows,
            "adds": [asdict(file) for file in adds],
            "removes": list(removes),
            "table": self._table_change(),
        }

    def _table_change(self) -> list[dict[str, Any]]:
        """Actions for a new table, or for columns and comment that have changed."""
        head = self._log.head
        metadata = next(a["metaData"] for a in self._definition if "metaData" in a)
        known = (metadata["schemaString"], metadata["description"]) == head.definition
        if known and (not self._vectors or head.has_deletion_vectors):
            return []
        if head.version == NO_TABLE:
            return self._definition
        change = {"metaData": {**metadata, "id": head.metadata["id"]}}
        return [change if "metaData" in action else action for action in self._definition]

    @cached_property
    def _definition(self) -> list[dict[str, Any]]:
        return table_actions(
            self._schema,
            comment=self.target.comment,
            properties={_OWNER: self.target.view},
            deletion_vectors=self._vectors or self._log.head.has_deletion_vectors,
        )

    # --- committing ------------------------------------------------------------------------------

    def commit(self, token: dict[str, Any]) -> dict[str, Any]:
        """Show a staged epoch, in one commit; a second time is the same as once.

        Returns:
            {"version", "epoch", "rows"}.

        Raises:
            FencedError: somebody else wrote to the table.
        """
        expected = token["expected_version"]
        facts = {"version": expected, "epoch": token["epoch"], "rows": token["rows"]}
        if self._log.head.version != expected:
            self._log.refresh()
        head = self._log.head.version
        if not (token["adds"] or token["removes"] or token["table"]):
            if head != expected:
                raise self._fenced(expected + 1)
            return facts
        facts["version"] = expected + 1
        note = {"mview": self.target.view, "epoch": token["epoch"], "token": token["id"]}
        if head == expected:
            adds = [data_file(file) for file in token["adds"]]
            transaction = (token["writer"], token["epoch"])
            self._log.commit(
                adds, token["removes"], note, transaction=transaction, table=token["table"]
            )
        elif head != expected + 1 or self._log.note(head) != note:
            raise self._fenced(expected + 1)
        return facts

    def rollback(self, token: dict[str, Any] | None, published: dict[str, Any] | None) -> None:
        """Undo what came after `published`; None: there was nothing.

        Raises:
            FencedError: not all of it was ours.
        """
        head = self._log.refresh()
        version = NO_TABLE if published is None else published["version"]
        for number in range(version + 1, head.version + 1):
            if (self._log.note(number) or {}).get("mview") != self.target.view:
                raise self._fenced(number)
        if published is None:
            self._log.drop()
        else:
            note = {"mview": self.target.view, "rollback": version}
            self._log.revert(version, note, (self.target.writer, _NO_EPOCH))
        shutil.rmtree(self.folder / _STAGING, ignore_errors=True)
        epoch = 0 if published is None else published["epoch"]
        self._discard_after(epoch)

    def _discard_after(self, epoch: int) -> None:
        """Delete files of epochs that were not published; the number leads the name."""
        live = self._log.head.files
        late = [
            file.name
            for file in self.folder.glob("*.parquet")
            if file.name not in live and _epoch_of(file.name) > epoch
        ]
        self._log.discard(late)

    # --- reading and upkeep ----------------------------------------------------------------------

    def rows(self, published: dict[str, Any]) -> pa.Table:
        """The content at a published epoch."""
        files = self._log.at(published["version"]).files.values()
        parts = [read_live(self.folder, file, self._schema) for file in files]
        return pa.concat_tables([self._schema.empty_table(), *parts])

    def maintain(self, oldest: Mapping[str, Any]) -> int:
        """Delete what versions before `oldest` needed, and checkpoint the log now and then.

        Args:
            oldest: facts of the oldest epoch that readers may still be at.

        Returns:
            Number of data files deleted.
        """
        if self._log.refresh().version == NO_TABLE:
            return 0
        return self._log.clean(oldest["version"], lambda path: path.startswith(f"{_STAGING}/"))

    def drop(self) -> None:
        """Remove the table.

        Raises:
            FencedError: the folder holds a table that is not this view's.
        """
        self._check_owner()
        self._log.drop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check_owner(self) -> None:
        """Refuse a table that mview did not make for this view."""
        head = self._log.head
        if head.version == NO_TABLE:
            return
        if head.metadata.get("configuration", {}).get(_OWNER) != self.target.view:
            raise self._fenced(head.version)

    def _fenced(self, version: int) -> FencedError:
        return FencedError(
            f"view {self.target.view}: version {version} of its Delta table is somebody else's",
            where=str(self.folder),
            safe="the epoch is not published, and nothing was written to the table",
            hint="end the other writer; then `mview drop` the view, or give it another path",
        )


def _epoch_of(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else 0


def _flag(target: SinkTarget, name: str) -> bool:
    given = str(target.options.get(name, "false")).lower()
    if given not in ("true", "false"):
        raise ConfigError(
            f"view {target.view}: sink option {name!r} is neither true nor false", got=given
        )
    return given == "true"
