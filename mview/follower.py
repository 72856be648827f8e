"""The protocol of sinks that follow a view: its changes, epoch after epoch, exactly once.

An epoch publishes each view's changes in the store. A follower brings them to one table elsewhere
with a cursor of its own, beside the epochs: it may be slow, or down, and nobody else waits. What a
connector has to do is small; what makes it exactly once is in `mview.follow` and is the same for
all: who stages what, when an id is on disk, and what is asked after an error.

One *step* is one commit. The order of calls, all in one thread:

    check ─ create ─ position ─┬─ stage | fill ─ [token on disk] ─ commit ─┐
                               └──────────────── next step ────────────────┘
    after any error or restart:  state ─ (commit | abort | stage again), then position

Every method may be called again with the same arguments, also by another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from mview.changelog import KIND
from mview.config import Count, Duration, Settings
from mview.errors import (
    ConfigError,
    ElsewhereError,
    FencedError,
    MviewError,
    RetryableError,
    TargetError,
    UserError,
    of_the_system,
    several,
)
from mview.schema import TableSchema, type_name

#: What `stage` hands to `commit`, maybe in another process: JSON-able, without secrets.
Token = dict[str, Any]

#: What a commit tells, for people: JSON-able.
Facts = dict[str, Any]

#: upsert: the table has the view's rows, one per key. append: rows that come are added; an update
#: or delete halts the sink. changelog: every change is added, with its kind, old and new rows.
Mode = Literal["upsert", "append", "changelog"]

DAY = 86_400_000

#: What a sink does once somebody has given it what it lacked.
GOES_ON = "the sink goes on by itself"


class FollowerSettings(Settings):
    """A section of `sinks:`, with what the view says for this sink laid over it.

    A connector adds its own fields in a subclass and names the secret ones in `hidden`.
    """

    #: The connector: one of the types below, or the name of another entry point.
    type: str
    #: The table, topic, … that it writes; the view's name where none is given.
    table: Annotated[str, Field(min_length=1)] | None = None
    #: Whether the table is what the view is, or a log of its changes.
    mode: Mode = "upsert"
    #: At most one commit in this time: epochs in between are brought as one.
    every: Duration = 0
    #: Rows of one commit take about so many bytes at the most; a larger epoch comes alone.
    commit_bytes: Count = 64 << 20
    #: Bytes that wait for this sink in the store at the most; beyond, it is compared with its view,
    #: or filled anew.
    spool_bytes: Count = 1 << 30
    #: The same for the age of what waits.
    spool_age: Duration = DAY
    #: How long the target may give no sign of itself in the middle of a step. Beyond, the sink is
    #: shown as silent, and a bounded run ends without it.
    patience: Duration = 900_000


@dataclass(frozen=True)
class Capabilities:
    """What a connector can do; the engine asks nothing else of it.

    Attributes:
        modes: of `FollowerSettings.mode`.
        durable_prepare: what was staged outlives the process: a commit after a restart finds it.
            Where it does not, `stage` may hold an open transaction, and `state` is UNKNOWN after.
        marks: the target keeps a `Mark`, written in the atomic step of the commit.
        fills: `fill` replaces all rows in one atomic step. Without, only an empty target is filled.
        reads: `read` works, so that `mview verify` can compare.
        compares: `read` gives rows as they come, however many there are: who is too far behind is
            brought right by the difference. Without, it is filled anew.
        null_keys: key columns may be NULL, and NULL is one value.
        by_key: `stage` in mode upsert takes `+I` and `+U` rows alone, whether their key is there or
            not, and `-D` rows with nothing but a key, which need not be there: see light mode.
        largest: rows of one commit at the most; None: any number.
    """

    modes: frozenset[Mode]
    durable_prepare: bool = False
    marks: bool = True
    fills: bool = True
    reads: bool = True
    compares: bool = True
    null_keys: bool = False
    by_key: bool = False
    largest: int | None = None


@dataclass(frozen=True)
class FollowerTarget:
    """What a follower writes: one view, for one sink.

    Attributes:
        view: the view.
        sink: the sink's name in the configuration.
        schema: the view's columns and key.
        settings: validated by the connector's own model.
        owner: who writes there, `<store id>/<view>/<sink>`: a target with another one's mark is not
            ours.
        fence: the runner's token: greater than that of every runner before.
        comment: the view's COMMENT.
    """

    view: str
    sink: str
    schema: TableSchema
    settings: Any
    owner: str
    fence: int = 0
    comment: str | None = None

    @property
    def table(self) -> str:
        """The name of the table to write."""
        return self.settings.table or self.view


@dataclass(frozen=True)
class Step:
    """One commit: what it brings a target from and to.

    Attributes:
        id: of this attempt, never of another one; letters, digits and `-`, at most 60: fit for
            labels and transaction ids.
        epoch: after the step the target is what the view is at this epoch.
        after: the epoch at which the target must stand before; None: any, as all rows are replaced.
        rows: rows of the changes; -1: not known.
        base: `Mark.step` of the mark that must stand before, for `admit`; empty: any, or unknown.
    """

    id: str
    epoch: int
    after: int | None
    rows: int = -1
    base: str = field(default="", compare=False)

    @property
    def is_fill(self) -> bool:
        """Whether all rows are replaced."""
        return self.after is None


class State(Enum):
    """What a target knows of a step."""

    #: Nothing: it was never staged, or what was staged is gone. It will not commit by itself.
    UNKNOWN = "unknown"
    #: Begun and not whole: `commit` cannot have succeeded, nor will it.
    INITIALIZED = "initialized"
    #: Staged whole, and not committed: `commit` decides.
    PREPARED = "prepared"
    #: It is being decided right now; ask again.
    COMMITTING = "committing"
    COMMITTED = "committed"
    #: It will never be committed under this id.
    ABORTED = "aborted"


@dataclass(frozen=True)
class Mark:
    """What lies in a target and says how far it is; part of the atomic step.

    Attributes:
        owner: see `FollowerTarget.owner`; empty: the target cannot hold it.
        fence: the token of the runner that wrote it; 0: the target cannot hold it.
        epoch: the target is the view at this epoch.
        step: the id of the step, or `#` and its `step_number`; empty: the target cannot hold it.
    """

    owner: str
    fence: int
    epoch: int
    step: str = ""

    def is_by(self, step: str) -> bool:
        """Whether a step of this id has left it, as far as the target can hold it."""
        return self.step in ("", step, f"#{step_number(step)}")

    def to_text(self) -> str:
        """One line of JSON, for a property or a row."""
        return orjson.dumps([self.owner, self.fence, self.epoch, self.step]).decode()

    @classmethod
    def from_text(cls, text: str) -> Mark:
        """The mark of `to_text`.

        Raises:
            TargetError: it is none.
        """
        try:
            owner, fence, epoch, step = orjson.loads(text)
            return cls(str(owner), int(fence), int(epoch), str(step))
        except (ValueError, TypeError):
            raise TargetError(
                "the mark in a target cannot be read",
                got=text[:200],
                safe="nothing was written",
                hint="drop the table there: it is filled anew",
            ) from None


def step_number(step: str) -> int:
    """A number of 62 bits made of a step's id, for targets that hold no text."""
    return int.from_bytes(sha256(step.encode()).digest()[:8], "big") >> 2


def mark_of(target: FollowerTarget, step: Step) -> Mark:
    """The mark that a step leaves."""
    return Mark(target.owner, target.fence, step.epoch, step.id)


def check_owner(target: FollowerTarget, mark: Mark) -> None:
    """Refuse a target that is another view's, store's or a newer runner's.

    Raises:
        TargetError: somebody else's.
        FencedError: a newer runner has written there.
    """
    if mark.owner and mark.owner != target.owner:
        raise TargetError(
            f"the table {target.table} of sink {target.sink} is written by somebody else",
            got=f"the mark of {mark.owner}",
            allowed=f"that of {target.owner}, or no such table",
            safe="nothing was written there",
            hint="give the view another table, or drop that one",
        )
    if mark.fence > target.fence:
        raise FencedError(
            f"a newer runner has written to the table {target.table} of sink {target.sink}",
            got=f"token {mark.fence}",
            allowed=f"up to {target.fence}",
            safe="nothing was written there by this one",
            hint="stop this runner; or, if the store was restored from a backup, drop the table "
            "there: it is filled anew",
        )


def admit(target: FollowerTarget, mark: Mark | None, step: Step) -> None:
    """To be called inside the atomic step with the mark that stands there, locked: may it be taken?

    This is the fence of a runner that was paused, and what makes a second commit harmless.

    Raises:
        ElsewhereError: the target does not stand where the step begins.
        FencedError: a newer runner has written there.
    """
    if mark is not None:
        check_owner(target, mark)
    stands = None if mark is None else mark.epoch
    elsewhere = step.after is not None and stands != step.after
    if mark and mark.step and not elsewhere:
        elsewhere = mark.is_by(step.id) or (bool(step.base) and not mark.is_by(step.base))
    if elsewhere:
        raise ElsewhereError(
            f"the table {target.table} of sink {target.sink} does not stand where a step begins",
            got=f"epoch {stands}" + (f", step {mark.step}" if mark and mark.step else ""),
            allowed=f"epoch {step.after}" + (f", step {step.base}" if step.base else ""),
            safe="nothing of the step was written",
        )


def state_by_mark(mark: Mark | None, step: Step) -> State:
    """For targets where the mark in the atomic step is all that outlives a process.

    A mark without an id of steps speaks by its epoch.
    """
    done = mark is not None and (mark.is_by(step.id) if mark.step else mark.epoch >= step.epoch)
    return State.COMMITTED if done else State.UNKNOWN


class Follower(Protocol):
    """A table somewhere that follows a view. Made by `factory(target)`, which opens nothing.

    Registered in the entry-point group `mview.followers` under the name that `type:` gives. All
    methods but `check` and `caution` may raise RetryableError (or any error of a driver): it is
    tried again with back-off. UserError and its kind stand until somebody acts; they are tried
    again more seldom.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do, whatever the target."""
        ...

    def check(self) -> None:
        """Refuse columns, keys and options that it cannot take exactly; connects to nothing.

        Raises:
            UserError: which column, its type, and why.
        """
        ...

    def caution(self) -> str | None:
        """A warning where the way to the target is not safe; connects to nothing."""
        ...

    def create(self) -> None:
        """Make the table if it is not there, and this runner's: called first in every run.

        Where the target can, the fence's token goes in here, so that an older runner, paused in a
        commit, fails. A table of ours with other columns is made anew, without a mark.

        Raises:
            TargetError: a table is there that is not ours.
            FencedError: a newer runner's.
        """
        ...

    def position(self) -> Mark | None:
        """What the target says of itself; None: it was never filled.

        Asked by who only reads, too, under no runner's token: a newer one is no error here.
        """
        ...

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Bring changes so far that `commit` cannot fail for what is in them.

        Args:
            step: the commit to be.
            delta: batches of KIND and the view's columns, netted: of a key at most one old and one
                new row, `-U` right before its `+U` in the same batch. Maybe none.
        """
        ...

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """The same for a whole new content: batches of the view's columns, maybe none."""
        ...

    def commit(self, token: Token) -> Facts:
        """Show what was staged. Raises where it is not certain that it is shown, once."""
        ...

    def state(self, step: Step, token: Token | None) -> State:
        """What became of a step; asked of the target, never remembered.

        Args:
            step: the step, maybe of a process that is gone.
            token: of `stage`; None: there was no answer.

        Raises:
            MviewError: it cannot be told now: the sink is held.
        """
        ...

    def abort(self, step: Step, token: Token | None) -> None:
        """Remove what was staged; never called once `commit` was. Nothing where nothing is."""
        ...

    def read(self) -> pa.RecordBatchReader:
        """The rows as readers see them: the view's columns, for comparison."""
        ...

    def maintain(self, *, thorough: bool) -> Facts:
        """Compact what the target does not compact itself, remove what no reader needs any more.

        The rows and the mark stay as they are. Called by a runner between steps, and by
        `mview maintain` in a process of its own, under the runner's token, while that one stages
        and commits: what may be staged is left alone, and whoever meets a commit of the other
        begins again after it.

        Args:
            thorough: until nothing is left to do, however long it takes. Else what takes seconds:
                the next step waits for it.

        Returns:
            What was done: numbers by what they count. Empty: nothing was to be done.

        Raises:
            FencedError: a newer runner has written there.
        """
        ...

    def close(self) -> None:
        """Free connections, roll back what is open; may be called more than once."""
        ...


@runtime_checkable
class Probing(Protocol):
    """A follower that can ask its target, before anything is written, whether it keeps its options.

    `mview check` does, unless it is offline.
    """

    def probe(self) -> None:
        """Ask.

        Raises:
            UserError: the server does not allow an option.
            RetryableError: it cannot be asked now.
        """
        ...


class FollowerFactory(Protocol):
    """What an entry point names: a class with the model of its options."""

    #: `mview check` validates options by it.
    settings: ClassVar[type[FollowerSettings]]
    capabilities: ClassVar[Capabilities]

    def __call__(self, target: FollowerTarget) -> Follower:
        """The follower of a target; opens nothing."""
        ...


# --- what connectors share -----------------------------------------------------------------------


def check_mode(target: FollowerTarget, capabilities: Capabilities) -> None:
    """Refuse a mode that the connector has not, and upserts without a key where columns are known.

    Raises:
        UserError: with what is allowed.
    """
    mode = target.settings.mode
    if mode not in capabilities.modes:
        raise ConfigError(
            f"sink {target.sink} has no mode {mode!r}",
            allowed=", ".join(sorted(capabilities.modes)),
        )
    if mode == "upsert" and target.schema.columns and not target.schema.key:
        raise UserError(
            f"view {target.view} has no key, which sink {target.sink} needs to find its rows by",
            hint="declare one that is unique: WITH (key = '…')",
        )


def not_ours(target: FollowerTarget, where: str | None = None) -> TargetError:
    """The refusal of a table that stands where the target is to be.

    Args:
        target: the view and the sink.
        where: its place; the sink's section, where none is given.
    """
    return TargetError(
        f"there is a table {target.table} that mview has not made",
        where=where or f"sinks.{target.sink}",
        safe="nothing was written there",
        hint="give the view another one: table: …; or, if mview made it and somebody has removed "
        "its mark, drop it there: it is filled anew",
    )


def failed(
    target: FollowerTarget, what: str, got: str, safe: str, look_at: str | None = None
) -> MviewError:
    """What an error of a target's client becomes.

    Args:
        target: the view and the sink.
        what: failed, and while what.
        got: the client's words, without secrets.
        safe: what tells what became of the step.
        look_at: what somebody must look at first; None: the same may succeed later.
    """
    kind: type[MviewError] = RetryableError if look_at is None else TargetError
    refused = of_the_system(Exception(got), then=GOES_ON)
    passes = "it is tried again" if refused is None else refused.hint
    return kind(
        what,
        where=f"{target.table} of sinks.{target.sink}",
        got=got[:500],
        safe=safe,
        hint=passes if look_at is None else f"look at {look_at}",
    )


def unfit_keys(target: FollowerTarget, *unfit: Callable[[pa.DataType], bool]) -> dict[str, str]:
    """Key columns of types that no row is found by, with why; see `refuse_types`.

    Args:
        target: the view and the sink.
        unfit: is a type one of them?
    """
    kinds = {name: target.schema.column(name).type for name in target.schema.key}
    names = [name for name, kind in kinds.items() if any(is_unfit(kind) for is_unfit in unfit)]
    return dict.fromkeys(names, "another type, as it is in the key")


def check_inserts(target: FollowerTarget, kinds: pa.Array | pa.ChunkedArray) -> None:
    """Refuse changes other than new rows: what `append` halts at.

    Raises:
        UserError: a row was updated or deleted.
    """
    others = kinds.filter(pc.not_equal(kinds, "+I"))
    if len(others):
        raise UserError(
            f"a row of view {target.view} was updated or deleted, and sink {target.sink} takes "
            "new ones only",
            got=f"a change of kind {others[0].as_py()}",
            safe="nothing of the commit was written; other sinks go on",
            hint="mode: upsert, or changelog where the sink has it",
        )


def refuse_types(target: FollowerTarget, reasons: Mapping[str, str]) -> None:
    """Refuse columns that a connector cannot hold exactly.

    Args:
        target: the view and the sink.
        reasons: why, by column.

    Raises:
        UserError: all of them.
    """
    if reasons:
        raise several(
            [
                UserError(
                    f"column {name} of view {target.view} cannot be held by sink {target.sink}",
                    got=type_name(target.schema.column(name).type),
                    allowed=why,
                    hint="cast it in the view, or leave it out",
                )
                for name, why in reasons.items()
            ]
        )


def new_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of a delta's batch: the rows to insert or update, the view's columns."""
    plus = pc.starts_with(batch.column(KIND), "+")
    return batch.filter(plus).drop_columns([KIND])


def gone_keys(batch: pa.RecordBatch, key: tuple[str, ...]) -> pa.RecordBatch:
    """Of a delta's batch: the keys of rows to delete, the key columns."""
    gone = pc.equal(batch.column(KIND), "-D")
    return batch.filter(gone).select(list(key))


def batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches of a reader that have rows."""
    return (batch for batch in reader if batch.num_rows)
