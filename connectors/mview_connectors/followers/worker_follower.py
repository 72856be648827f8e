"""What sinks share that write by a process beside this one: one commit per step, on condition.

Staging writes the files of a step; the token names them and the commit that they were made on.
Committing adds a commit, on condition that no row has changed in between. A new runner first adds
one that changes no row, so that what a paused one holds is refused. The mark is in the commit.

A worker answers these calls; `base` and `carried` are of its `look`, tokens of its `stage`:

| call | what it does |
|---|---|
| `connect(…)` | names the table |
| `look()` | `options`, `latest` commit, newest `mark`, if it `stands`, `carried`, maybe `altered` |
| `make(schema, key, options, comment)`, `drop()` | the table |
| `stage(base, carried, is_fill, mark, epoch)`, with rows | writes files: a token; or `MovedError` |
| `commit(token)` | adds the commit; `MovedError`: rows have changed, nothing was added |
| `move(base, carried, mark, epoch)` | adds a commit that changes no row |
| `holds(token)`, `abort(token)` | whether it can be committed; removes its files |
| `read()` | all rows |
"""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import orjson
import pyarrow as pa

from mview.changelog import KIND
from mview.errors import RetryableError
from mview.files.modes import make_shared_folder
from mview.follower import (
    Facts,
    FollowerTarget,
    Mark,
    State,
    Step,
    Token,
    admit,
    check_owner,
    failed,
    mark_of,
    not_ours,
)
from mview.schema import type_name
from mview_connectors.followers.folders import LOST, check_folder, columns_changed, overtaken
from mview_connectors.followers.workers import Worker, WorkerError, WorkerPool

#: Options of the table: whose it is, and what it is made of.
_OWNER, _COLUMNS = "mview.owner", "mview.columns"

#: The column of kinds in rows that go to a worker.
KIND_THERE = "_kind"


class TableLook(NamedTuple):
    """What the table says of itself.

    Attributes:
        options: of the table.
        latest: names its commit. What is written on the strength of a look is written on this one.
        mark: of the newest commit that has one, whatever came after.
        stands: the rows are what the mark says.
        carried: what a worker hands on from commit to commit.
        altered: the names of the columns, where somebody has changed them.
    """

    options: dict[str, str]
    latest: Any
    mark: Mark | None
    stands: bool
    carried: Any
    altered: list[str] | None = None

    @property
    def position(self) -> Mark | None:
        """The mark, where it says what the rows are."""
        return self.mark if self.mark and self.stands and self.mark.epoch >= 0 else None


#: What is to be seen to where rows cannot be read that are not ours.
_THEIRS = "who else writes into the table: its last rows are not mview's; `mview run` fills it anew"

#: How Python and Java say that files of a table are gone.
_GONE = re.compile(r"FileNotFound(Error|Exception)")


class WorkerFollower(ABC):
    """A table that a worker writes.

    Args:
        target: the view and the sink.
    """

    #: Where its processes come from.
    pool: ClassVar[WorkerPool]
    #: What fails when a call does.
    place: ClassVar[str]

    def __init__(self, target: FollowerTarget) -> None:
        self.target = target
        # The last one that was lent to it, and whether it is.
        self._worker: Worker | None = None
        self._is_lent = False

    @abstractmethod
    def check(self) -> None:
        """See `Follower`."""

    @abstractmethod
    def _connection(self) -> dict[str, Any]:
        """Arguments of `connect`."""

    @abstractmethod
    def _folder(self) -> Path | None:
        """What the tables are in, on this machine; None: they are elsewhere."""

    @abstractmethod
    def _made_of(self) -> list[Any]:
        """What the table is made of beside columns and key: others mean another table."""

    @abstractmethod
    def _table_options(self) -> dict[str, str]:
        """Options of a new table."""

    def _masked(self, text: str) -> str:
        """An error's text without secrets."""
        return text

    def _to_be_looked_at(self, _error: WorkerError) -> str | None:
        """What somebody must see to after an error; None: the same may succeed later."""
        return None

    # --- Follower --------------------------------------------------------------------------------

    def probe(self) -> None:
        """Look whether there is what its processes run with, and the folder can be written."""
        self.pool.check()
        if (folder := self._folder()) is not None:
            check_folder(self.target, folder)

    def create(self) -> None:
        """Make the table if it is not there, and move it on for a new runner."""
        self.check()
        if (folder := self._folder()) is not None:
            check_folder(self.target, folder)
            make_shared_folder(folder)
        with self._failing("making the table"):
            look = self._look()
            if look is not None:
                if _OWNER not in look.options:
                    raise not_ours(self.target)
                fence = look.mark.fence if look.mark else 0
                check_owner(self.target, Mark(look.options[_OWNER], fence, -1))
                if look.options.get(_COLUMNS) != self._columns():
                    self._call("drop")
                    look = None
                else:
                    self._check_altered(look)
            if look is None:
                self._make()
                look = self._look()
                assert look is not None
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
                    carried=look.carried,
                    mark=mark.to_text(),
                    epoch=max(mark.epoch, 0),
                )

    def position(self) -> Mark | None:
        """The mark in the latest commit that has changed rows."""
        with self._failing("reading the mark"):
            look = self._look()
            return None if look is None else look.position

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Write the files of the changes."""
        names = [KIND_THERE if name == KIND else name for name in delta.schema.names]
        renamed = pa.schema(
            [field.with_name(name) for field, name in zip(delta.schema, names, strict=True)]
        )
        rows = (pa.RecordBatch.from_arrays(batch.columns, schema=renamed) for batch in delta)
        return self._stage(step, pa.RecordBatchReader.from_batches(renamed, rows))

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """Write the files of all rows; the commit takes the old ones away."""
        return self._stage(step, rows)

    def commit(self, token: Token) -> Facts:
        """Add the commit, once; where it is refused, look what is there."""
        with self._failing("committing"):
            facts = {"epoch": token["epoch"]}
            try:
                return {**facts, "snapshot": self._call("commit", token=token["staged"])}
            except WorkerError as error:
                if self._is_there(token["step"], error):
                    return facts
                raise overtaken(self.target) from error

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
                self._call("abort", token=token["staged"])

    def read(self) -> pa.RecordBatchReader:
        """The rows, by the worker's own merge."""
        schema = pa.schema([field.with_nullable(True) for field in self.target.schema.arrow])
        theirs = None
        with self._failing("reading the table"):
            look = self._look()
            if look is not None:
                self._check_altered(look)
                theirs = None if look.stands else _THEIRS
        with self._failing("reading the table", theirs):
            rows = self._call("read")

        def read() -> Iterator[pa.RecordBatch]:
            with self._failing("reading the table", theirs):
                for batch in rows:
                    columns = [batch.column(field.name).cast(field.type) for field in schema]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, read())

    def close(self) -> None:
        """Let the process go."""
        self._give_back()
        self._worker = None
        self.pool.leave(self)

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
            self._check_altered(look)
            admit(self.target, look.position, step)
            try:
                staged = self._call(
                    "stage",
                    rows,
                    base=look.latest,
                    carried=look.carried,
                    is_fill=step.is_fill,
                    mark=mark_of(self.target, step).to_text(),
                    epoch=step.epoch,
                )
            except WorkerError as error:
                self._is_there(step.id, error)
                raise overtaken(self.target) from error
            return {"step": step.id, "epoch": step.epoch, "staged": staged}

    def _is_there(self, step: str, error: WorkerError) -> bool:
        """Whether the newest mark is that of a step that was refused as rows have changed."""
        if error.kind != "MovedError":
            raise error
        look = self._look()
        if look is None or look.mark is None:
            return False
        if look.mark.step == step:
            return True
        check_owner(self.target, look.mark)
        return False

    # --- the table -------------------------------------------------------------------------------

    def _look(self) -> TableLook | None:
        seen = self._call("look")
        if seen is None:
            return None
        text = seen["mark"]
        return TableLook(**{**seen, "mark": None if text is None else Mark.from_text(text)})

    def _check_altered(self, look: TableLook) -> None:
        """Refuse a table whose columns others have changed: rows would lack what readers see."""
        if look.altered is not None:
            raise columns_changed(self.target, look.altered)

    def _make(self) -> None:
        self._call(
            "make",
            schema=self._schema(),
            key=list(self.target.schema.key),
            options={
                **self._table_options(),
                _OWNER: self.target.owner,
                _COLUMNS: self._columns(),
            },
            comment=self.target.comment or "",
        )

    def _schema(self) -> str:
        """The columns, an Arrow schema in base 64."""
        key = self.target.schema.key
        schema = pa.schema(
            [field.with_nullable(field.name not in key) for field in self.target.schema.arrow]
        )
        return base64.b64encode(schema.serialize()).decode()

    def _columns(self) -> str:
        """What the table is made of; another text means another table."""
        schema = self.target.schema
        columns = [[column.name, type_name(column.type)] for column in schema.columns]
        return orjson.dumps([columns, list(schema.key), *self._made_of()]).decode()

    # --- the process -----------------------------------------------------------------------------

    def _call(self, name: str, rows: pa.RecordBatchReader | None = None, **arguments: Any) -> Any:
        # It may have died since, or rows of it were not read to their end: nothing is lost with it.
        if self._worker is not None and not self._worker.is_idle:
            self._give_back()
        if not self._is_lent:
            self._worker, self._is_lent = self.pool.take(self._worker), True
        worker = self._worker
        assert worker is not None
        if worker.user is not self:
            worker.user = None
            worker.call("connect", **self._connection())
            worker.user = self
        return worker.call(name, rows, **arguments)

    @contextmanager
    def _failing(self, task: str, look_at: str | None = None) -> Iterator[None]:
        """Errors of the worker as ours, without secrets; a process in doubt is let go.

        Args:
            task: what fails then.
            look_at: what is to be seen to, where the error itself says nothing of that.
        """
        try:
            yield
        except WorkerError as error:
            self._give_back()
            raise failed(
                self.target,
                f"the {self.place} failed while {task}",
                self._masked(str(error)),
                "the mark in the table tells what was written; it is asked before the next try",
                look_at=LOST
                if _GONE.search(str(error))
                else self._to_be_looked_at(error) or look_at,
            ) from error
        except BaseException:
            self._give_back()
            raise
        if self._worker is not None and self._worker.is_idle:  # else rows of it are being read
            self._give_back()

    def _give_back(self) -> None:
        """Let others have the process."""
        if self._is_lent:
            assert self._worker is not None
            self._is_lent = False
            self.pool.give_back(self._worker)
