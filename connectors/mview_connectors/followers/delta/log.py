"""The log of a Delta table in an object store: what is live, and commits put if absent.

A commit is one object at exactly the next version. So what was staged on a version is refused as
soon as anybody else, or a newer runner, has made the next one.

How far the table is lies in transactions of Delta's protocol, which outlive the log's older
commits: under the owner the epoch (below 0: none), under the owner and `#fence` the newest runner's
token, under the owner and `#step` a number made of the step's id.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from mview.delta.actions import NO_TABLE, TableVersion, apply, check_paths, commit_info
from mview.delta.checkpoints import CHECKPOINT, actions_in
from mview.delta.log import change_for_readers
from mview.delta.parquet import (
    DataFile,
    Ranges,
    column_ranges,
    described,
    encode,
    read_footer,
    read_parquet,
)
from mview.errors import RetryableError, TargetError
from mview.files.numbered import NUMBERED
from mview.follower import Mark, Step, step_number
from mview_connectors.followers.delta.objects import Objects
from mview_connectors.followers.delta.settings import OWNER

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"

_NOTE = "mview"


class TableLog:
    """One table.

    Args:
        objects: the table's folder.
        owner: who writes there, see `FollowerTarget.owner`.
    """

    def __init__(self, objects: Objects, owner: str) -> None:
        self.objects, self._owner = objects, owner
        self.head = TableVersion(NO_TABLE)
        #: Tells the head's commit from one of its number in another history of the table; empty:
        #: only its checkpoint is there.
        self.identity = ""
        #: The newest version of which there was a commit when the log was last listed.
        self._named = NO_TABLE
        #: Of the newest checkpoint that is known.
        self.checkpoint = NO_TABLE
        #: What others have changed since the owner's last commit; empty: nothing.
        self.foreign = ""

    # --- reading ---------------------------------------------------------------------------------

    def refresh(self) -> TableVersion:
        """The newest version; that of NO_TABLE: there is no table."""
        if not self.identity or not self._stands(self.head.version, self.identity):
            self.head = TableVersion(NO_TABLE)  # somebody has dropped it, or put a copy back
        if self.head.version == NO_TABLE:
            self.checkpoint, self.foreign, self.identity = NO_TABLE, "", ""
            self._begin()
        while (content := self.objects.get(commit_path(self.head.version + 1))) is not None:
            self._follow(self.head.version + 1, self._parsed(content), content)
        if self.head.version < self._named:
            # Or the next commit would fill the gap, and those after it be of another table.
            lost = self.head.version + 1
            raise self._unreadable(f"version {lost} is missing, and there is version {self._named}")
        return self.head

    def _begin(self) -> None:
        """Start at the newest checkpoint, and find out who wrote last before it."""
        names = [entry.path.rpartition("/")[2] for entry in self.objects.list(LOG)]
        self._named = _newest(NUMBERED, names)
        version = _newest(CHECKPOINT, names)
        if version == NO_TABLE:
            if self.objects.get(commit_path(0)) is None and names:
                raise self._unreadable("its log has no beginning that mview can read")
            return
        self.checkpoint = version
        path = checkpoint_path(version)
        try:
            known = actions_in(self.objects.open(path))
        except (ValueError, KeyError, pa.ArrowException) as error:
            raise self._unreadable(str(error)) from error
        self.head = apply(TableVersion(NO_TABLE), version, known, self._count)
        self.identity = _identity(self.objects.get(commit_path(version)))
        actions: list[dict[str, Any]] | None
        while not self._is_own(actions := self._commit(version)):
            if actions is None or change_for_readers(actions, self.head):
                self.foreign = "a commit before a checkpoint"
                return
            version -= 1

    def _commit(self, version: int) -> list[dict[str, Any]] | None:
        content = self.objects.get(commit_path(version)) if version >= 0 else None
        return None if content is None else self._parsed(content)

    def _follow(self, version: int, actions: list[dict[str, Any]], content: bytes) -> None:
        if self._is_own(actions):
            self.foreign = ""
        elif change := change_for_readers(actions, self.head):
            self.foreign = change
        self.head = apply(self.head, version, actions, self._count)
        self.identity = _identity(content)

    def _stands(self, version: int, identity: str) -> bool:
        return _identity(self.objects.get(commit_path(version))) == identity

    def _is_own(self, actions: Sequence[Mapping[str, Any]] | None) -> bool:
        for action in actions or ():
            text = action.get("commitInfo", {}).get("userMetadata")
            if text and f'"{_NOTE}"' in text:
                note = orjson.loads(text)
                return isinstance(note, dict) and note.get(_NOTE) == self._owner
        return False

    def _parsed(self, content: bytes) -> list[dict[str, Any]]:
        try:
            actions: list[dict[str, Any]] = [orjson.loads(line) for line in content.splitlines()]
            if not actions:
                raise ValueError("a commit of it is empty")
            check_paths(actions)
            return actions
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._unreadable(str(error)) from error

    def _unreadable(self, why: str) -> TargetError:
        return TargetError(
            "the log of a Delta table cannot be read",
            where=self.objects.place,
            got=why,
            safe="nothing was written there",
            hint="restore the table there; or drop it: it is filled anew",
        )

    # --- whose, and how far ----------------------------------------------------------------------

    def setting(self, name: str) -> str | None:
        """A property of the table."""
        value: str | None = (self.head.metadata.get("configuration") or {}).get(name)
        return value

    @property
    def fence(self) -> int:
        """The token of the newest runner."""
        return self.head.transactions.get(f"{self._owner}#fence", 0)

    @property
    def mark(self) -> Mark | None:
        """How far the table is; None: it was never filled, or others have changed it."""
        epoch = self.head.transactions.get(self._owner, -1)
        if epoch < 0 or self.foreign:
            return None
        step = self.head.transactions.get(f"{self._owner}#step")
        return Mark(self.setting(OWNER) or "", self.fence, epoch, f"#{step}")

    def has(self, step: Step) -> bool:
        """Whether the newest step is this one."""
        stands = self.head.transactions.get(f"{self._owner}#step")
        return self.head.version != NO_TABLE and not self.foreign and stands == step_number(step.id)

    def marking(
        self, fence: int, step: Step | None = None, *, is_new: bool = False
    ) -> list[dict[str, Any]]:
        """The transactions of a commit of ours, by a runner's token.

        Without a step the table is as far as it was: nowhere, if it is new or others have changed
        it.
        """
        txns = {f"{self._owner}#fence": fence}
        if step is not None:
            txns |= {self._owner: step.epoch, f"{self._owner}#step": step_number(step.id)}
        elif is_new or self.mark is None:
            txns |= {self._owner: -1, f"{self._owner}#step": -1}
        return [{"txn": {"appId": app, "version": number}} for app, number in txns.items()]

    # --- writing ---------------------------------------------------------------------------------

    def commit(self, base: int, identity: str, actions: Sequence[dict[str, Any]], now: int) -> bool:
        """Write the version after `base`; False: somebody else has, and nothing was written.

        Nor is anything written where `base` is of another identity, or gone: a copy of the table
        was put back, whose rows are others, or which ends before it.

        A store that is there again after an error has written it, maybe: clients send it again by
        themselves, and then are told that it is there. So what is there says whose it is.

        Raises:
            RetryableError: it is refused, but nothing is there yet: whose it will be is not known.
        """
        if base != NO_TABLE and not self._stands(base, identity):
            return False
        # Never the bytes of another try, of whoever, in the same millisecond.
        note = commit_info(now, {_NOTE: self._owner, "commit": uuid.uuid4().hex})
        content = b"".join(orjson.dumps(action) + b"\n" for action in (note, *actions))
        path = commit_path(base + 1)
        if not self.objects.put_if_absent(path, content):
            there = self.objects.get(path)
            if there is None:
                raise RetryableError(
                    "an object store has refused a commit of a Delta table, and does not show it",
                    where=f"{self.objects.place}/{path}",
                    safe="nothing is lost; it is looked up again whose commit it is",
                )
            if there != content:
                return False
        if self.head.version == base:
            self._follow(base + 1, [note, *actions], content)
        return True

    def check_condition(self) -> None:
        """Make sure that the store refuses to overwrite a commit; it changes nothing.

        Raises:
            TargetError: it does not.
        """
        path = commit_path(self.head.version)
        content = self.objects.get(path)
        if content is not None and self.objects.put_if_absent(path, content):
            raise TargetError(
                "the object store overwrites what is to be put if absent",
                where=self.objects.place,
                safe="nothing but the table's first commit was written",
                hint="take a store that knows If-None-Match, as S3 does; two runners could "
                "overwrite each other's commits there",
            )

    # --- data files, see mview.delta.rewrite.Files -----------------------------------------------

    @property
    def where(self) -> str:
        """The table's place, for messages."""
        return self.objects.place

    def read_file(
        self, path: str, schema: pa.Schema, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of a file, without regard to deletion vectors."""
        # Parts of it where few columns are wanted.
        known = self.head.files.get(path)
        size = known.size if known is not None and columns is not None else None
        where = f"{self.objects.place}/{path}"
        with self.objects.open(path, size) as file:
            return read_parquet(file, schema, columns, where)

    def live_rows(self, file: DataFile, schema: pa.Schema) -> pa.Table:
        """The rows of a file that count, its columns in the schema's order."""
        rows = self.read_file(file.path, schema).select(schema.names)
        if file.deleted is None:
            return rows
        return rows.take(pa.array(np.delete(np.arange(rows.num_rows), file.deleted.positions)))

    def ranges(self, file: DataFile, names: Sequence[str]) -> Ranges:
        """Bounds of columns, by the footer of a file."""
        with self.objects.open(file.path, file.size) as opened:
            footer = read_footer(opened, f"{self.objects.place}/{file.path}")
        return column_ranges(footer, names)

    def write_file(
        self, prefix: str, rows: pa.Table, names: Sequence[str], told: Sequence[str]
    ) -> tuple[DataFile, Ranges]:
        """Write rows as a new file; see `mview.delta.rewrite.Files`."""
        path = new_path(prefix)
        sink = pa.BufferOutputStream()
        footer = encode(rows, sink)
        content = sink.getvalue().to_pybytes()
        self.objects.put(path, content)
        ranges = column_ranges(footer, names)
        file = described(path, len(content), footer, {column: ranges[column] for column in told})
        return file, ranges

    def _count(self, path: str) -> int:
        """The rows of a file of which the log does not tell them."""
        with self.objects.open(path) as file:
            return int(read_footer(file, f"{self.objects.place}/{path}").num_rows)


#: Data files of ours.
OWN_FILE = re.compile(r"mview-[0-9a-f]{32}\.parquet")


def new_path(prefix: str) -> str:
    """A name for a data file that is none yet."""
    return f"{prefix}-{uuid.uuid4().hex}.parquet"


def commit_path(version: int) -> str:
    """The object of a commit."""
    return f"{LOG}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """The object of a checkpoint."""
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def _identity(commit: bytes | None) -> str:
    """What tells a commit from all others; empty: there is none."""
    return "" if commit is None else hashlib.sha256(commit).hexdigest()[:32]


def _newest(names: re.Pattern[str], there: Iterable[str]) -> int:
    """The greatest version of the files of such names; NO_TABLE: there are none."""
    return max((int(match[1]) for name in there if (match := names.match(name))), default=NO_TABLE)
