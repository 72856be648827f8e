"""Apache Paimon tables as sinks: one snapshot per step, on a primary key and fixed buckets.

Staging writes the files of a step; the token names them and the snapshot that they were made on.
Committing adds a snapshot, on condition that nothing but compaction came in between. A new runner
first adds a snapshot that changes no row, so that what a paused one holds is refused.

The mark is a property of the snapshot. Paimon's commit user is the sink, its commit identifier the
epoch: both are in the snapshot, too, for people.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import orjson
import pyarrow as pa

from mview.changelog import KIND
from mview.errors import ConfigError, RetryableError, TargetError, UserError, several
from mview.files.modes import make_shared_folder
from mview.follower import (
    Capabilities,
    Facts,
    FollowerSettings,
    FollowerTarget,
    Mark,
    State,
    Step,
    Token,
    admit,
    check_owner,
    mark_of,
    refuse_types,
)
from mview.schema import type_name
from mview.secrets import Mask, reveal, secrets_of
from mview_connectors.followers.paimon.process import Worker, WorkerError, give_back, take
from mview_connectors.followers.paimon.settings import PaimonSettings
from mview_connectors.network import http_caution

#: Options of the table: whose it is, and what it is made of.
_OWNER, _COLUMNS = "mview.owner", "mview.columns"

#: The column of kinds in rows that go to the worker.
_KIND = "_kind"

#: Names that Paimon has for itself.
_RESERVED = {"_SEQUENCE_NUMBER", "_VALUE_KIND", "_LEVEL", "_ROW_ID", "rowkind", _KIND}

#: Names of tables: they are folders there, parts of URIs, and `$` and `@` have a meaning.
_NAME = re.compile(r"[^./:?#$@\x00-\x1f][^/:?#$@\x00-\x1f]{0,199}")

#: So often a compaction is tried that a commit came in between of.
_TRIES = 5

#: Options of the table that are what exactly once stands on.
_FIXED = ("bucket", "primary-key", "merge-engine", "sequence.field", "rowkind.field", "file.format")


class _Look(NamedTuple):
    """What the table says of itself.

    Attributes:
        options: of the table.
        latest: its snapshot. What is written on the strength of a look is written on this one.
        mark: of the newest snapshot that has one, whatever came after.
        stands: the rows are what the mark says.
        sequence: Paimon's highest sequence number of these rows.
    """

    options: dict[str, str]
    latest: dict[str, Any] | None
    mark: Mark | None
    stands: bool
    sequence: int

    @property
    def position(self) -> Mark | None:
        """The mark, where it says what the rows are."""
        return self.mark if self.mark and self.stands and self.mark.epoch >= 0 else None


class PaimonFollower:
    """A table of a Paimon catalog.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = PaimonSettings
    capabilities: ClassVar[Capabilities] = Capabilities(modes=frozenset({"upsert"}))

    def __init__(self, target: FollowerTarget) -> None:
        self.target = target
        self._settings: PaimonSettings = target.settings
        self._worker: Worker | None = None

    # --- Follower --------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse keys that Paimon does not order as mview does, and names that are its own."""
        schema, settings, place = self.target.schema, self._settings, f"sinks.{self.target.sink}"
        wrong = {}
        for name in schema.key:
            kind = schema.column(name).type
            if pa.types.is_floating(kind) or pa.types.is_nested(kind):
                wrong[name] = "another type, as it is in the key"
        refuse_types(self.target, wrong)
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
        if fixed := sorted(settings.properties.keys() & set(_FIXED)):
            raise ConfigError(
                f"sink {self.target.sink} sets what is not to be set",
                where=f"{place}.properties",
                got=", ".join(fixed),
                hint="the number of buckets is buckets: …",
            )

    def caution(self) -> str | None:
        """A warning for a remote catalog or storage without TLS."""
        return http_caution(f"sinks.{self.target.sink}.catalog", self._settings.catalog.values())

    def create(self) -> None:
        """Make the table if it is not there, and move it on for a new runner."""
        self.check()
        with self._failing("making the table"):
            look = self._look()
            if look is not None:
                if _OWNER not in look.options:
                    raise TargetError(
                        f"there is a table {self.target.table} that mview has not made",
                        where=f"sinks.{self.target.sink}",
                        safe="nothing was written there",
                        hint="give the view another one: table: …",
                    )
                fence = look.mark.fence if look.mark else 0
                check_owner(self.target, Mark(look.options[_OWNER], fence, -1))
                if look.options.get(_COLUMNS) != self._columns():
                    self._call("drop")
                    look = None
            if look is None:
                self._make()
                look = _Look({}, None, None, False, 0)
            if look.latest is None or look.mark is None or look.mark.fence < self.target.fence:
                stood = look.position
                mark = Mark(
                    self.target.owner,
                    self.target.fence,
                    stood.epoch if stood else -1,
                    stood.step if stood else "",
                )
                self._call(
                    "move",
                    base=look.latest,
                    sequence=look.sequence,
                    mark=mark.to_text(),
                    identifier=max(mark.epoch, 0),
                )

    def position(self) -> Mark | None:
        """The mark in the latest snapshot that has changed rows."""
        with self._failing("reading the mark"):
            look = self._look()
            return None if look is None else look.position

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Write the files of the changes."""
        names = [_KIND if name == KIND else name for name in delta.schema.names]
        renamed = pa.schema(
            [one.with_name(name) for one, name in zip(delta.schema, names, strict=True)]
        )
        rows = (pa.RecordBatch.from_arrays(batch.columns, schema=renamed) for batch in delta)
        return self._stage(step, pa.RecordBatchReader.from_batches(renamed, rows))

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """Write the files of all rows; the commit takes the old ones away."""
        return self._stage(step, rows)

    def commit(self, token: Token) -> Facts:
        """Add the snapshot, once; where it is refused, look what is there."""
        with self._failing("committing"):
            facts = {"epoch": token["epoch"]}
            try:
                snapshot = self._call(
                    "commit", token=token["staged"], mark=token["mark"], identifier=token["epoch"]
                )
                return {**facts, "snapshot": snapshot}
            except WorkerError as error:
                if error.kind != "MovedError":
                    raise
                look = self._look()
                if look is not None and look.mark is not None:
                    if look.mark.step == token["step"]:
                        return facts
                    check_owner(self.target, look.mark)
                raise RetryableError(
                    f"the table {self.target.table} has changed since the step was staged",
                    where=f"sinks.{self.target.sink}",
                    safe="nothing of the step was written; it is staged again",
                ) from error

    def state(self, step: Step, token: Token | None) -> State:
        """What the newest mark says, or whether what was staged still holds."""
        with self._failing("asking for a step"):
            look = self._look()
            if look is not None and look.mark is not None and look.mark.step == step.id:
                return State.COMMITTED
            if look is None or token is None or not self._call("holds", token=token["staged"]):
                return State.UNKNOWN
            return State.PREPARED

    def abort(self, step: Step, token: Token | None) -> None:
        """Remove the files of a step that is not committed."""
        if token is not None:
            with self._failing("removing what was staged"):
                self._call("abort", token=token["staged"], mark=token["mark"])

    def read(self) -> pa.RecordBatchReader:
        """The rows, by pypaimon's own merge."""
        schema = pa.schema([one.with_nullable(True) for one in self.target.schema.arrow])
        with self._failing("reading the table"):
            rows = self._call("read")

        def read() -> Iterator[pa.RecordBatch]:
            with self._failing("reading the table"):
                for batch in rows:
                    columns = [batch.column(one.name).cast(one.type) for one in schema]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, read())

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
            before = int(time.time() * 1000) - self._settings.history
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

    def close(self) -> None:
        """Let the process go."""
        if self._worker is not None:
            give_back(self._worker)
            self._worker = None

    # --- a step ----------------------------------------------------------------------------------

    def _stage(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        with self._failing("writing"):
            look = self._look()
            if look is None:
                raise RetryableError(
                    f"the table {self.target.table} is gone",
                    where=f"sinks.{self.target.sink}",
                    safe="it is made anew and filled",
                )
            if look.mark is not None:
                check_owner(self.target, look.mark)
            admit(self.target, look.position, step)
            staged = self._call(
                "stage", rows, base=look.latest, sequence=look.sequence, is_fill=step.is_fill
            )
            return {
                "step": step.id,
                "epoch": step.epoch,
                "mark": mark_of(self.target, step).to_text(),
                "staged": staged,
            }

    # --- the table -------------------------------------------------------------------------------

    def _look(self) -> _Look | None:
        found = self._call("look")
        if found is None:
            return None
        text = found["mark"]
        mark = None if text is None else Mark.from_text(text)
        return _Look(**{**found, "mark": mark})

    def _make(self) -> None:
        key, settings = self.target.schema.key, self._settings
        schema = pa.schema(
            [one.with_nullable(one.name not in key) for one in self.target.schema.arrow]
        )
        self._call(
            "make",
            schema=base64.b64encode(schema.serialize()).decode(),
            key=list(key),
            options={
                **settings.properties,
                "bucket": str(settings.buckets),
                "file.format": "parquet",
                _OWNER: self.target.owner,
                _COLUMNS: self._columns(),
            },
            comment=self.target.comment or "",
        )

    def _columns(self) -> str:
        """What the table is made of; another text means another table."""
        schema = self.target.schema
        columns = [[one.name, type_name(one.type)] for one in schema.columns]
        return orjson.dumps([columns, list(schema.key), self._settings.buckets]).decode()

    # --- the process -----------------------------------------------------------------------------

    def _call(self, name: str, rows: pa.RecordBatchReader | None = None, **arguments: Any) -> Any:
        # It may have died since, or rows of it were not read to their end: nothing is lost with it.
        self._drop()
        if self._worker is None:
            self._worker = take()
            self._worker.call(
                "connect",
                options=self._options(),
                database=self._settings.database,
                table=self.target.table,
                user=self.target.owner,
            )
        return self._worker.call(name, rows, **arguments)

    def _options(self) -> dict[str, str]:
        settings, place = self._settings, f"sinks.{self.target.sink}"
        options = {
            name: reveal(text, f"{place}.catalog.{name}") for name, text in settings.catalog.items()
        }
        if settings.warehouse is not None:
            warehouse = settings.warehouse
            if "://" not in warehouse:
                path = Path(warehouse).expanduser().absolute()
                make_shared_folder(path)
                warehouse = str(path)
            options["warehouse"] = warehouse
        return options

    @contextmanager
    def _failing(self, task: str) -> Iterator[None]:
        """Errors of pypaimon as ours, without secrets; a process in doubt is let go."""
        try:
            yield
        except WorkerError as error:
            self._drop()
            mask = Mask(secrets_of("catalog", dict(self._settings.catalog)))
            raise RetryableError(
                f"the Paimon catalog or its storage failed while {task}",
                where=f"{self.target.table} of sinks.{self.target.sink}",
                got=mask(str(error))[:500],
                safe="the mark in the table tells what was written; it is asked before the next "
                "try",
                hint="it is tried again",
            ) from error
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Let go a process that cannot be called."""
        if self._worker is not None and not self._worker.is_idle:
            self._worker.end()
            self._worker = None
