"""Apache Paimon tables as sinks: one snapshot per step, on a primary key and fixed buckets.

How steps are staged, committed and fenced: `worker_follower.py`. The mark is a property of the
snapshot. Paimon's commit user is the sink, its commit identifier the epoch: both are in the
snapshot, too, for people.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from mview.clock import steady_clock
from mview.errors import ConfigError, TargetError, UserError, several
from mview.follower import (
    Capabilities,
    Facts,
    FollowerSettings,
    FollowerTarget,
    check_owner,
    refuse_types,
    unfit_keys,
)
from mview.secrets import Mask, reveal, secrets_of
from mview_connectors.followers.folders import folder_of, refused_by_store
from mview_connectors.followers.paimon.environment import interpreter
from mview_connectors.followers.paimon.settings import PaimonSettings
from mview_connectors.followers.worker_follower import KIND_THERE, TableLook, WorkerFollower
from mview_connectors.followers.workers import WorkerError, WorkerPool
from mview_connectors.network import http_caution

#: Names that Paimon has for itself.
_RESERVED = {"_SEQUENCE_NUMBER", "_VALUE_KIND", "_LEVEL", "_ROW_ID", "rowkind", KIND_THERE}

#: Names of tables: they are folders there, parts of URIs, and `$` and `@` have a meaning.
_NAME = re.compile(r"[^./:?#$@\x00-\x1f][^/:?#$@\x00-\x1f]{0,199}")

#: So often a compaction is tried that a commit came in between of.
_TRIES = 5

#: Options of the table that say which rows it has, or where they are: exactly once stands on them.
_FIXED = frozenset(
    {
        *("bucket", "bucket-key", "primary-key", "partition", "file.format"),
        *("merge-engine", "sequence.field", "rowkind.field", "ignore-update-before"),
        *("type", "path", "branch", "row-tracking.enabled", "data-evolution.enabled"),
        # Readers pass over what no compaction has merged yet.
        "deletion-vectors.enabled",
    }
)
#: Also before a dot and the name of a merge engine: `deduplicate.ignore-delete`.
_IGNORES = "ignore-delete"

#: Options that catalogs add when they open a table.
_OF_CATALOGS = frozenset({"path", "type", "branch"})

_START = "import sys; sys.path.insert(0, sys.argv[1]); from worker.main import main; main()"


def _is_fixed(name: str) -> bool:
    return name in _FIXED or name.rpartition(".")[2] == _IGNORES


def command() -> list[str]:
    """What starts a process with pypaimon."""
    return [str(interpreter()), "-I", "-c", _START, str(Path(__file__).parent)]


class PaimonFollower(WorkerFollower):
    """A table of a Paimon catalog.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = PaimonSettings
    capabilities: ClassVar[Capabilities] = Capabilities(modes=frozenset({"upsert"}))
    pool: ClassVar[WorkerPool] = WorkerPool("pypaimon", command)
    place: ClassVar[str] = "Paimon catalog or its storage"

    def __init__(self, target: FollowerTarget) -> None:
        super().__init__(target)
        self._settings: PaimonSettings = target.settings

    def check(self) -> None:
        """Refuse keys that Paimon does not order as mview does, and names that are its own."""
        schema, settings, place = self.target.schema, self._settings, f"sinks.{self.target.sink}"
        refuse_types(self.target, unfit_keys(self.target, pa.types.is_floating, pa.types.is_nested))
        taken = [name for name in schema.names if name in _RESERVED or name.startswith("_KEY_")]
        if taken:
            raise several(
                [
                    UserError(
                        f"column {name} of view {self.target.view} has a name that Paimon keeps "
                        f"for itself",
                        where=place,
                        hint="give it another one: AS …",
                    )
                    for name in taken
                ]
            )
        if not _NAME.fullmatch(self.target.table):
            raise ConfigError(
                "a Paimon table cannot have this name",
                where=place,
                got=self.target.table,
                allowed="up to 200 characters, none of them / : ? # $ @, the first one no dot",
                hint="give the view another one: table: …",
            )
        if settings.warehouse is None and "warehouse" not in settings.catalog:
            raise ConfigError(
                f"sink {self.target.sink} has no warehouse",
                where=place,
                hint="warehouse: a folder",
            )
        fixed = [name for name in sorted(settings.properties) if _is_fixed(name)]
        if fixed:
            raise ConfigError(
                f"sink {self.target.sink} sets what is not to be set",
                where=f"{place}.properties",
                got=", ".join(fixed),
                hint="leave it out; the number of buckets is buckets: …",
            )

    def caution(self) -> str | None:
        """A warning for a remote catalog or storage without TLS."""
        return http_caution(f"sinks.{self.target.sink}.catalog", self._settings.catalog.values())

    def maintain(self, *, thorough: bool) -> Facts:
        """Join sorted runs and manifests where there are many; remove old snapshots."""
        with self._failing("compacting"):
            look = self._look()
            if look is None or look.mark is None:
                return {}
            check_owner(self.target, look.mark)
            joined = bite = self._bite()
            while thorough and bite:
                joined += (bite := self._bite())
            before = steady_clock().now() - self._settings.history
            done = {
                "files_joined": joined,
                "snapshots_removed": self._call("expire", before=before),
            }
            return {name: number for name, number in done.items() if number}

    def _bite(self) -> int:
        """Join files in one snapshot, again after commits that came between; returns how many."""
        for tried in range(1, _TRIES + 1):
            try:
                return int(self._call("compact", most_bytes=self._settings.compact_bytes))
            except WorkerError as error:
                if error.kind != "MovedError" or tried == _TRIES:
                    raise
        raise AssertionError("the last try ends it")

    # --- the table -------------------------------------------------------------------------------

    def _table_options(self) -> dict[str, str]:
        settings = self._settings
        return {
            **settings.properties,
            "bucket": str(settings.buckets),
            "file.format": "parquet",
        }

    def _check_altered(self, look: TableLook) -> None:
        super()._check_altered(look)
        made = {name: value for name, value in self._table_options().items() if _is_fixed(name)}
        now = {
            name: value
            for name, value in look.options.items()
            if _is_fixed(name) and name not in _OF_CATALOGS
        }
        wrong = sorted(name for name in made | now if made.get(name) != now.get(name))
        if wrong:
            raise TargetError(
                f"somebody has changed options of the table {self.target.table} that say which "
                "rows it has, or where",
                where=f"sinks.{self.target.sink}",
                got=", ".join(f"{name} = {now.get(name, 'unset')}" for name in wrong),
                allowed=", ".join(f"{name} = {made.get(name, 'unset')}" for name in wrong),
                safe="nothing was written there since this was seen",
                hint="set them back in Paimon, or drop the table there: it is made and filled anew",
            )

    def _made_of(self) -> list[Any]:
        return [self._settings.buckets]

    def _connection(self) -> dict[str, Any]:
        return {
            "options": self._options(),
            "database": self._settings.database,
            "table": self.target.table,
            "user": self.target.owner,
        }

    def _options(self) -> dict[str, str]:
        settings, place = self._settings, f"sinks.{self.target.sink}"
        options = {
            name: reveal(text, f"{place}.catalog.{name}") for name, text in settings.catalog.items()
        }
        if settings.warehouse is not None:
            options["warehouse"] = str(self._folder() or settings.warehouse)
        return options

    def _folder(self) -> Path | None:
        warehouse = self._settings.warehouse
        return None if warehouse is None else folder_of(warehouse)

    def _masked(self, text: str) -> str:
        return Mask(secrets_of("catalog", dict(self._settings.catalog)))(text)

    def _to_be_looked_at(self, error: WorkerError) -> str | None:
        if refused := refused_by_store(str(error)):
            return refused
        # A value of an option is only looked at by what needs it.
        is_value = error.kind == "ValueError" or "Unsupported" in str(error)
        names = ", ".join(self._settings.properties)
        return f"sinks.{self.target.sink}.properties: {names}" if is_value and names else None
