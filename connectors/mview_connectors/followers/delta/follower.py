"""Delta tables outside of the store as sinks: one version per step, in a folder or object store.

Staging writes data files, and works out which rows of which files go. The token is the actions of a
commit, which holds only as the version right after the one that it was made on: the object of that
version is put if absent. So what a paused runner has staged is refused: a new runner's first
commit, which changes no row, takes the version.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import KIND
from mview.delta.actions import (
    NO_TABLE,
    add_action,
    remove_action,
    table_actions,
)
from mview.delta.parquet import DataFile
from mview.delta.rewrite import Rewriter
from mview.delta.tiers import is_full, pieces
from mview.errors import ConfigError, CorruptionError, MviewError, RetryableError, TargetError
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
    batches,
    check_inserts,
    check_owner,
    failed,
    not_ours,
    refuse_types,
    unfit_keys,
)
from mview.schema import type_name
from mview.secrets import Mask, reveal, secrets_of
from mview_connectors.followers.delta.settings import MADE_OF, OWNER, DeltaSettings
from mview_connectors.followers.folders import check_folder, folder_of, overtaken, reread
from mview_connectors.network import http_caution

if TYPE_CHECKING:
    from mview_connectors.followers.delta.log import TableLog

#: Of the names of data files; see `log.OWN_FILE`.
_PREFIX = "mview"

#: So often a commit without rows is tried again because another one came between.
_TRIES = 20


class DeltaFollower:
    """A Delta table that has an owner.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = DeltaSettings
    capabilities: ClassVar[Capabilities] = Capabilities(
        modes=frozenset({"upsert", "append"}), null_keys=True
    )

    def __init__(self, target: FollowerTarget) -> None:
        self.target = target
        self._settings: DeltaSettings = target.settings
        self._opened: TableLog | None = None
        self._rewriter: Rewriter | None = None

    # --- Follower --------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse keys that cannot be looked up, and names that are no folder."""
        if self._settings.mode == "upsert":
            refuse_types(self.target, unfit_keys(self.target, pa.types.is_nested))
        if not _FOLDER.fullmatch(self.target.table):
            raise ConfigError(
                f"{self.target.table!r} is no name for a table of sink {self.target.sink}",
                where=f"sinks.{self.target.sink}.table",
                allowed="letters, digits, '_', '-' and '.', not at the beginning '_' or '.'",
            )

    def caution(self) -> str | None:
        """A warning for a remote object store without TLS."""
        return http_caution(f"sinks.{self.target.sink}.options", self._settings.options.values())

    def probe(self) -> None:
        """Look whether the place can be reached, and is free or ours; makes nothing."""
        with self._failing("looking at it"):
            if self._folder is not None:
                check_folder(self.target, self._folder)
                if not self._folder.is_dir():
                    return
            log = self._log()
            if log.refresh().version == NO_TABLE:
                self._check_empty(log)
            else:
                self._check_ours(log, writes=False)

    def create(self) -> None:
        """Make the table if it is not there, and take the next version for a new runner."""
        self.check()
        self._opened = self._rewriter = None
        with self._failing("making the table"):
            from mview_connectors.followers.delta.log import LOG

            if self._folder is not None:
                check_folder(self.target, self._folder)
            for _ in range(_TRIES):
                log = self._log()
                head = log.refresh()
                actions: list[dict[str, Any]] = []
                if head.version == NO_TABLE:
                    self._check_empty(log)
                    log.objects.make_shared(LOG)
                    actions = self._new_table()
                else:
                    self._check_ours(log)
                    if log.setting(MADE_OF) != self._made_of() or not self._has_columns(log):
                        now = _now()
                        actions = [remove_action(file, now) for file in head.files.values()]
                        actions += self._new_table()
                    elif log.fence == self.target.fence:
                        return
                marks = log.marking(self.target.fence, is_new=bool(actions))
                if log.commit(head.version, log.identity, [*actions, *marks], _now()):
                    log.check_condition()
                    return
            raise overtaken(self.target)

    def position(self) -> Mark | None:
        """How far the newest version is."""
        with self._failing("reading the mark"):
            log = self._log()
            if log.refresh().version == NO_TABLE:
                return None
            self._check_ours(log, writes=False)
            return log.mark

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Write new rows, and work out which rows of which files go."""
        with self._failing("writing"):
            log = self._begin(step)
            head = log.head
            rows = pa.Table.from_batches(list(batches(delta)), delta.schema)
            kinds = rows[KIND]
            if self._settings.mode == "append":
                check_inserts(self.target, kinds)
                parts = iter([rows.drop_columns([KIND])])
                return self._token(log, step, [], list(self._written(log, parts)))
            weight = np.where(pc.starts_with(kinds, "+").to_numpy(), 1, -1).astype(np.int64)
            rewriter = self._rewriting(log)
            upsert = rewriter.weighted(rows.drop_columns([KIND]).cast(self._schema()), weight)
            try:
                marks = self._settings.deletion_vectors
                plan = rewriter.plan(_PREFIX, upsert, head.files, vectors=marks)
            except CorruptionError as error:
                raise TargetError(
                    f"the table {self.target.table} of sink {self.target.sink} does not have the "
                    "rows that its mark stands for",
                    where=log.where,
                    got=str(error).splitlines()[0],
                    safe="nothing of the step was shown",
                    hint="drop the table there: it is filled anew",
                ) from error
            return self._token(log, step, plan.removes, plan.adds)

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """Write all rows; all files that are there go."""
        with self._failing("writing"):
            log = self._begin(step)
            removes, adds = list(log.head.files), list[DataFile]()
            parts = (pa.Table.from_batches([batch]) for batch in batches(rows))
            try:
                adds += self._written(log, parts)
            except BaseException:
                log.objects.delete(file.path for file in adds)
                raise
            return self._token(log, step, removes, adds)

    def commit(self, token: Token) -> Facts:
        """Put the next version; where there is one, look whose it is."""
        with self._failing("committing"):
            log, step = self._log(), Step(token["step"], token["epoch"], token["after"])
            facts = {"epoch": step.epoch, "version": token["base"] + 1}
            if log.commit(token["base"], token["identity"], token["actions"], _now()):
                with suppress(Exception):  # tried again after the next commit
                    self._checkpoint(log)
                return facts
            is_there = log.refresh().version != NO_TABLE
            if log.has(step):
                return facts
            if is_there:
                self._check_ours(log)
            raise overtaken(self.target)

    def state(self, step: Step, token: Token | None) -> State:
        """What the newest version says, or whether what was staged still holds."""
        with self._failing("asking for a step"):
            log = self._log()
            if log.refresh().version == NO_TABLE:
                return State.UNKNOWN
            if log.has(step):
                return State.COMMITTED
            if token is None:
                return State.UNKNOWN
            if (token["base"], token["identity"]) != (log.head.version, log.identity):
                return State.UNKNOWN
            # What is staged is removed as a whole, from the first file on.
            first = next(iter(_added(token)), None)
            gone = first is not None and log.objects.size(first) is None
            return State.UNKNOWN if gone else State.PREPARED

    def abort(self, step: Step, token: Token | None) -> None:
        """Remove the files that were staged."""
        if token is not None:
            with self._failing("removing what was staged"):
                log = self._log()
                live = log.refresh().files
                log.objects.delete(path for path in _added(token) if path not in live)

    def read(self) -> pa.RecordBatchReader:
        """The rows of the newest version."""
        with self._failing("reading the table"):
            log = self._log()
            head = log.refresh()
        schema = self._schema()

        def read() -> Iterator[pa.RecordBatch]:
            for file in head.files.values():
                with self._failing("reading the table"):
                    try:
                        rows = log.live_rows(file, schema)
                    except FileNotFoundError as error:
                        if file.path not in log.refresh().files:
                            raise reread(self.target, error) from error
                        raise
                    yield from rows.to_batches()

        return pa.RecordBatchReader.from_batches(schema, read())

    def maintain(self, *, thorough: bool) -> Facts:
        """Join small files and write those with many gone rows anew; remove what is old."""
        from mview_connectors.followers.delta.upkeep import DeltaUpkeep

        with self._failing("compacting"):
            log = self._log()
            log.refresh()
            self._check_ours(log)
            upkeep = DeltaUpkeep(log, self._schema(), self.target, self._written, self._checkpoint)
            return upkeep.run(thorough=thorough)

    def close(self) -> None:
        """Nothing stays open."""
        self._opened = self._rewriter = None

    # --- a step ----------------------------------------------------------------------------------

    def _begin(self, step: Step) -> TableLog:
        log = self._log()
        if log.refresh().version == NO_TABLE:
            raise RetryableError(
                f"the table {self.target.table} is gone",
                where=log.where,
                safe="it is made anew and filled",
            )
        self._check_ours(log)
        if log.foreign and not step.is_fill:
            raise overtaken(self.target)  # what others have written goes, when it is filled anew
        admit(self.target, log.mark, step)
        return log

    def _token(
        self, log: TableLog, step: Step, removes: Sequence[str], adds: Sequence[DataFile]
    ) -> Token:
        now, live = _now(), log.head.files
        actions = [remove_action(live[path], now) for path in removes]
        actions += [add_action(file, now) for file in adds]
        return {
            "step": step.id,
            "epoch": step.epoch,
            "after": step.after,
            "base": log.head.version,
            "identity": log.identity,
            "actions": [*actions, *log.marking(self.target.fence, step)],
        }

    def _written(self, log: TableLog, parts: Iterator[pa.Table]) -> Iterator[DataFile]:
        """Files of rows, each written as soon as there are enough."""
        held: list[pa.Table] = []
        schema, key = self._schema(), self.target.schema.key

        def flush() -> Iterator[DataFile]:
            rows = pa.concat_tables(held) if held else schema.empty_table()
            held.clear()
            for piece in pieces(rows):
                yield log.write_file(_PREFIX, piece.cast(schema), key, key)[0]

        for part in parts:
            held.append(part)
            if is_full(sum(rows.num_rows for rows in held), sum(rows.nbytes for rows in held)):
                yield from flush()
        yield from flush()

    # --- the table -------------------------------------------------------------------------------

    def _log(self) -> TableLog:
        if self._opened is None:
            from mview_connectors.followers.delta.log import TableLog
            from mview_connectors.followers.delta.objects import Objects

            if self._folder is not None:
                make_shared_folder(self._folder)
            self._opened = TableLog(Objects(self._place, self._options()), self.target.owner)
        return self._opened

    def _rewriting(self, log: TableLog) -> Rewriter:
        """With what it remembers of files, while the log is the same."""
        if self._rewriter is None:
            key = self.target.schema.key
            owner = f"view {self.target.view} in sink {self.target.sink}"
            self._rewriter = Rewriter(log, self._schema(), key, owner)
        return self._rewriter

    @property
    def _place(self) -> str:
        if self._folder is not None:
            return str(self._folder)
        return f"{self._settings.path.rstrip('/')}/{self.target.table}"

    @property
    def _folder(self) -> Path | None:
        folder = folder_of(self._settings.path)
        return None if folder is None else folder / self.target.table

    def _options(self) -> dict[str, str]:
        place = f"sinks.{self.target.sink}.options"
        return {n: reveal(v, f"{place}.{n}") for n, v in self._settings.options.items()}

    def _schema(self) -> pa.Schema:
        return pa.schema([field.with_nullable(True) for field in self.target.schema.arrow])

    def _made_of(self) -> str:
        columns = [[c.name, type_name(c.type)] for c in self.target.schema.columns]
        how = [self._settings.mode, self._settings.deletion_vectors]
        text = orjson.dumps([columns, list(self.target.schema.key), how])
        return sha256(text).hexdigest()[:32]

    def _has_columns(self, log: TableLog) -> bool:
        """Whether readers see the view's columns: somebody may have changed them."""
        from deltalake import Schema

        ours = Schema.from_arrow(pa.schema([f.remove_metadata() for f in self._schema()])).to_json()
        both = (orjson.loads(text)["fields"] for text in (ours, log.head.metadata["schemaString"]))
        want, there = ({field["name"]: field["type"] for field in fields} for fields in both)
        return bool(want == there)

    def _new_table(self) -> list[dict[str, Any]]:
        kept = f"interval {max(self._settings.history // 1000, 1)} seconds"
        return table_actions(
            self._schema(),
            comment=self.target.comment,
            deletion_vectors=self._settings.deletion_vectors,
            properties={
                OWNER: self.target.owner,
                MADE_OF: self._made_of(),
                "delta.logRetentionDuration": kept,
                "delta.deletedFileRetentionDuration": kept,
            },
        )

    def _check_empty(self, log: TableLog) -> None:
        there = next(log.objects.list(), None)
        if there is not None:
            raise TargetError(
                f"the place of sink {self.target.sink} has files that mview has not written",
                where=log.where,
                got=there.path,
                safe="nothing was written there",
                hint="give the view another one: table: …, or move these away",
            )

    def _check_ours(self, log: TableLog, *, writes: bool = True) -> None:
        owner = log.setting(OWNER)
        if owner is None:
            raise not_ours(self.target, log.where)
        check_owner(self.target, Mark(owner, log.fence if writes else 0, -1))
        if log.foreign.startswith("the protocol"):
            raise TargetError(
                f"somebody has changed how the table {self.target.table} is to be written",
                where=log.where,
                got=log.foreign,
                safe="nothing was written there since",
                hint="drop the table there: it is made and filled anew",
            )

    def _checkpoint(self, log: TableLog, least: int = 100) -> bool:
        """Write a checkpoint, so many versions after the last one."""
        version = log.head.version
        if version - log.checkpoint < least or version == log.checkpoint:
            return False
        from deltalake import DeltaTable

        from mview_connectors.followers.delta.log import LAST_CHECKPOINT, checkpoint_path

        DeltaTable(
            self._place, version=version, storage_options=self._options()
        ).create_checkpoint()
        for path in (checkpoint_path(version), LAST_CHECKPOINT):
            log.objects.settle(path)
        log.checkpoint = version
        return True

    @contextmanager
    def _failing(self, task: str) -> Iterator[None]:
        """Errors of the object store as ours, without secrets."""
        try:
            yield
        except MviewError:
            raise
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{error.name} is not installed",
                where=f"sinks.{self.target.sink}",
                hint="pip install 'mview-engine[delta]' --find-links DIR, where mview's wheel is",
            ) from None
        except Exception as error:
            from mview_connectors.followers.delta.objects import to_be_looked_at, told

            mask = Mask(secrets_of("options", dict(self._settings.options)))
            text, look_at = told(error), to_be_looked_at(error)
            raise failed(
                self.target,
                f"the place of a Delta table failed while {task}: {self._place}",
                mask(text if look_at else f"{type(error).__name__}: {text}"),
                "the newest version tells what was written; it is asked before the next try",
                look_at,
            ) from error


#: A folder's name in every store, that readers do not pass over.
_FOLDER = re.compile(r"[^\W_][\w.-]{0,127}", re.ASCII)


def _now() -> int:
    return int(time.time() * 1000)


def _added(token: Token) -> list[str]:
    """The files that a step has written, not those whose rows it marks."""
    removed = {action["remove"]["path"] for action in token["actions"] if "remove" in action}
    added = (action["add"]["path"] for action in token["actions"] if "add" in action)
    return [path for path in added if path not in removed]
