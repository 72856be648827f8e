"""Apache Hudi tables as sinks: one commit per step, merge-on-read, a file group per bucket.

In mode append a table is copy-on-write, and a step adds files.

How steps are staged, committed and fenced: `worker_follower.py`. The mark is in the extra metadata
of the commit. The worker is a program in Java, in `worker/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from mview.changelog import KIND
from mview.clock import steady_clock
from mview.errors import ConfigError, UserError, several
from mview.follower import (
    Capabilities,
    Facts,
    FollowerSettings,
    FollowerTarget,
    Step,
    Token,
    check_inserts,
    check_owner,
    refuse_types,
    unfit_keys,
)
from mview_connectors.followers.folders import folder_of
from mview_connectors.followers.hudi.environment import command
from mview_connectors.followers.hudi.settings import HudiSettings
from mview_connectors.followers.worker_follower import KIND_THERE, WorkerFollower
from mview_connectors.followers.workers import WorkerPool

#: Names of columns: those of Avro, in which Hudi keeps its schemas.
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: Names of tables: they are folders, and parts of the names of catalogs.
_TABLE = re.compile(r"\w[\w-]{0,199}", re.ASCII)


class HudiFollower(WorkerFollower):
    """A Hudi table in a folder.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = HudiSettings
    capabilities: ClassVar[Capabilities] = Capabilities(modes=frozenset({"upsert", "append"}))
    pool: ClassVar[WorkerPool] = WorkerPool("Hudi", command)
    place: ClassVar[str] = "Hudi table"

    def __init__(self, target: FollowerTarget) -> None:
        super().__init__(target)
        self._settings: HudiSettings = target.settings
        self._is_append = target.settings.mode == "append"

    def check(self) -> None:
        """Refuse keys that Hudi does not tell apart as mview does, and names it cannot have."""
        schema, place = self.target.schema, f"sinks.{self.target.sink}"
        wrong = {
            column.name: ("no arrays of times" if pa.types.is_list(column.type) else "timestamp")
            + ": readers of Hudi outside of Java cannot read it"
            for column in schema.columns
            if _has_unread_times(column.type)
        }
        if not self._is_append:
            unfit = (pa.types.is_floating, pa.types.is_nested, pa.types.is_binary)
            wrong |= unfit_keys(self.target, *unfit)
        refuse_types(self.target, wrong)
        taken = [
            name
            for name in schema.names
            if name == KIND_THERE or name.startswith("_hoodie_") or not _COLUMN.fullmatch(name)
        ]
        if taken:
            raise several(
                [
                    UserError(
                        f"column {name} of view {self.target.view} has no name for Hudi",
                        where=place,
                        allowed="letters from A to Z, digits and _, no digit first, not _hoodie_…",
                        hint="give it another one: AS …",
                    )
                    for name in taken
                ]
            )
        if not _TABLE.fullmatch(self.target.table):
            raise ConfigError(
                "a Hudi table cannot have this name",
                where=place,
                got=self.target.table,
                allowed="up to 200 letters from A to Z, digits, _ and -, the first one no -",
                hint="give the view another one: table: …",
            )
        self._check_path()

    def probe(self) -> None:
        """See `WorkerFollower`; and whether it is a folder, which needs no columns to be told."""
        self._check_path()
        super().probe()

    def _check_path(self) -> None:
        if folder_of(self._settings.path) is None:
            raise ConfigError(
                f"sink {self.target.sink} is on storage that has no locks",
                where=f"sinks.{self.target.sink}.path",
                got=self._settings.path,
                allowed="a folder of this machine, or one that is mounted",
                hint="Iceberg and Delta go to object storage",
            )

    def caution(self) -> str | None:
        """Nothing: a folder has no way that could be unsafe."""
        return None

    def maintain(self, *, thorough: bool) -> Facts:
        """Compact what is merged on reading; remove what was replaced, or never committed."""
        with self._failing("compacting"):
            look = self._look()
            if look is None or look.mark is None:
                return {}
            check_owner(self.target, look.mark)
            before = steady_clock().now() - self._settings.history
            done: Facts = self._call("maintain", before=before, thorough=thorough)
            return {name: number for name, number in done.items() if number}

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Write the files of the changes; in mode append they are new rows only."""
        return super().stage(step, self._inserts(delta) if self._is_append else delta)

    def _inserts(self, delta: pa.RecordBatchReader) -> pa.RecordBatchReader:
        def checked() -> Iterator[pa.RecordBatch]:
            for batch in delta:
                check_inserts(self.target, batch.column(KIND))
                yield batch

        return pa.RecordBatchReader.from_batches(delta.schema, checked())

    # --- the table -------------------------------------------------------------------------------

    def _table_options(self) -> dict[str, str]:
        return {}

    def _made_of(self) -> list[Any]:
        return ["append"] if self._is_append else [self._settings.buckets]

    def _folder(self) -> Path:
        return folder_of(self._settings.path) or Path()

    def _connection(self) -> dict[str, Any]:
        return {
            "table": str(self._folder() / self.target.table),
            "schema": self._schema(),
            "key": list(self.target.schema.key),
            "buckets": self._settings.buckets,
            "is_append": self._is_append,
            "comment": self.target.comment or "",
        }


def _has_unread_times(kind: pa.DataType) -> bool:
    """Whether others than Java fail on it: times without a zone; in a list, once logs are merged.

    hudi-rs then has one list's times as UTC and the other's as +00:00, and does not join them.
    """
    is_in_list = pa.types.is_list(kind)
    while pa.types.is_list(kind):
        kind = kind.value_type
    return pa.types.is_timestamp(kind) and (is_in_list or kind.tz is None)
