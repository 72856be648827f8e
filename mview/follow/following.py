"""One sink follows one view: steps, and what is asked after every error, start and doubt.

1. settle   after a start or an error: what became of the step that was under way is asked of the
            target, never of the answer; then the target's mark is held against the cursor
2. plan     the next step: the changes after the cursor, of one or more epochs; where these are not
            kept, the difference between the target and the view; or all rows, a fill
3. stage    with its id on disk before, where what is staged outlives the process
4. intend   the token is on disk: from here on the step is committed, by whoever goes on
5. commit
6. record   the cursor moves

| found after a start or error | what is done |
|---|---|
| committed | recorded |
| prepared, its token on disk | committed: another process may have tried |
| prepared, the target is elsewhere by now (it was dropped, restored) | aborted |
| prepared or begun, no token on disk | aborted: nobody has tried |
| being decided | asked again, with back-off; the sink is held meanwhile |
| unknown, aborted | staged again, under a new id |
| of an epoch that the store has gone back from | aborted; committed: the cursor is nowhere |
| the mark is behind the cursor (a backup was restored) | changes since then are brought again |
| the same, of a step that this store does not know (the store was restored, too) | as elsewhere |
| the mark is elsewhere, or behind what is kept | the difference is brought, or it is filled anew |
| the mark is gone | filled anew |
| the mark is another view's or store's | refused |
| the mark has a newer token | fenced |
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import pyarrow as pa

from mview.changelog import KIND
from mview.errors import ElsewhereError, RetryableError, TargetError, UserError, counted
from mview.follow.cursor import CursorLog, Intent, Way
from mview.follow.resync import resync
from mview.follower import Follower, FollowerTarget, Mark, State, Step, Token, check_owner

#: Rows per batch that a sink is given.
BATCH_ROWS = 65_536


class Source(Protocol):
    """What a view has published, for those that follow it."""

    def newest(self) -> int:
        """The last epoch that has changed the view."""
        ...

    def begins(self) -> int:
        """Changes of all epochs after this one are there: one that stands before is filled."""
        ...

    def changes(self, after: int, most_bytes: int, most_rows: int | None) -> ViewChanges:
        """What has changed after an epoch, in one or more epochs, netted; see `Follower.stage`.

        As many epochs as fit, and at least one.
        """
        ...

    def rows(self) -> Content:
        """All rows at the newest epoch."""
        ...


class ViewChanges(NamedTuple):
    """Netted changes up to an epoch: KIND and the view's columns, `-U` right before `+U`."""

    epoch: int
    rows: pa.Table


class Content(NamedTuple):
    """All rows of a view at an epoch, in parts of bounded size."""

    epoch: int
    parts: Iterator[pa.Table]


class DoneStep(NamedTuple):
    """A step that was committed."""

    step: Step
    rows: int
    way: Way


class Following:
    """Brings a view to a sink, step by step. For one thread.

    Args:
        follower: the sink.
        target: what it was made with.
        source: the view.
        cursors: where the sink stands.
        check: raises when this runner may not write any more.
        now: wall milliseconds.
        alive: called whenever something moves: a call may go on for as long as rows do.
    """

    def __init__(
        self,
        follower: Follower,
        target: FollowerTarget,
        source: Source,
        cursors: CursorLog,
        check: Callable[[], None],
        now: Callable[[], int],
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._alive = alive
        self._follower, self._target, self._source = follower, target, source
        self._cursors, self._check, self._now = cursors, check, now
        self.cursor = cursors.latest()
        self._is_settled = False

    @property
    def is_behind(self) -> bool:
        """Whether something published is not there yet, as far as is known."""
        epoch = self.cursor.epoch
        return not self._is_settled or epoch is None or epoch < self._due()

    def _due(self) -> int:
        return max(self._source.newest(), self._source.begins())

    def advance(self) -> DoneStep | None:
        """Bring one step; None: nothing is to be brought.

        Raises:
            Exception: whatever failed; the next call first finds out what came of it.
        """
        if not self._is_settled:
            self._settle()
            self._is_settled = True
        if not self.is_behind:
            return None
        self._is_settled = False
        done = self._step()
        self._is_settled = True
        return done

    # --- a step ----------------------------------------------------------------------------------

    def _step(self) -> DoneStep:
        follower, epoch = self._follower, self.cursor.epoch
        settings, largest = self._target.settings, follower.capabilities.largest
        self._check()
        self._alive()
        begins = self._source.begins()
        if epoch is None or epoch < begins:
            mark = follower.position() if follower.capabilities.marks else None
            done = self._by_difference(mark)
            if done is None:
                stands = epoch if mark is None else mark.epoch
                if stands is not None:
                    self._check_fillable(stands, f"changes are kept after epoch {begins}")
                done = self._fill()
            return done
        changes = self._source.changes(epoch, settings.commit_bytes, largest)
        if largest is not None and changes.rows.num_rows > largest:
            raise UserError(
                f"an epoch has more changes than sink {self._target.sink} takes at once",
                got=f"{counted(changes.rows.num_rows, 'row')} in epoch {changes.epoch}",
                allowed=counted(largest, "row"),
                safe="nothing of it was brought; other sinks go on",
                hint="take a smaller engine.max_changes",
            )
        rows = changes.rows.num_rows
        intent = self._begin("changes", changes.epoch, epoch, rows, self.cursor.step)
        return self._stage(intent, changes.rows)

    def _stage(self, intent: Intent, changes: pa.Table) -> DoneStep:
        rows = _Counted(iter([changes]), self._keyed)
        reader = self._reader(rows.tables(), with_kind=True)
        return self._commit(intent, self._follower.stage(intent.step, reader), rows)

    def _fill(self) -> DoneStep:
        """Bring all rows."""
        content = self._source.rows()
        intent = self._begin("fill", content.epoch, None, -1)
        rows = _Counted(content.parts, self._keyed)
        reader = self._reader(rows.tables(), with_kind=False)
        return self._commit(intent, self._follower.fill(intent.step, reader), rows)

    def _by_difference(self, mark: Mark | None) -> DoneStep | None:
        """Bring what differs between the target and the view, as changes since the target's mark.

        What stands there is read after its mark: a step of somebody else in between moves the mark,
        and then ours is refused. None: all rows are to be brought.
        """
        follower, target = self._follower, self._target
        able, content = follower.capabilities, self._source.rows()
        if not (able.reads and able.compares and target.settings.mode == "upsert"):
            return None
        if mark is None or mark.epoch >= content.epoch:
            return None  # nothing was there; or of another history, and targets count upwards
        intent = self._begin("difference", content.epoch, mark.epoch, -1, mark.step)
        there = (pa.Table.from_batches([batch]) for batch in self._living(follower.read()))
        most, schema = target.settings.commit_bytes, rows_schema(target)
        changes = resync(content.parts, there, schema, target.schema.key, most)
        if changes is None or changes.num_rows > (able.largest or changes.num_rows):
            return None
        return self._stage(intent, changes)

    def _begin(self, way: Way, epoch: int, after: int | None, rows: int, base: str = "") -> Intent:
        tried = self.cursor.tried + 1
        step = Step(self._id(epoch, tried), epoch, after, rows, base)
        intent = Intent(step, None, way, self._now())
        self.cursor = replace(self.cursor, tried=tried, intent=intent)
        # What takes long is on disk in any case, for those who look at the status.
        if self._follower.capabilities.durable_prepare or way != "changes":
            self._cursors.write(self.cursor)
        return intent

    def _id(self, epoch: int, tried: int) -> str:
        owner = hashlib.sha256(self._target.owner.encode()).hexdigest()[:16]
        # By chance, too: a store that was restored counts its tokens, epochs and tries once more,
        # and a step of the time that is gone would be taken for its own.
        return f"{owner}-{self._target.fence}-{epoch}-{tried}-{secrets.token_hex(4)}"

    def _commit(self, intent: Intent, token: Token, rows: _Counted) -> DoneStep:
        self.cursor = replace(self.cursor, intent=replace(intent, token=token))
        self._cursors.write(self.cursor)
        self._check()
        self._alive()
        self._follower.commit(token)
        self._record(intent.step, rows.count)
        return DoneStep(intent.step, rows.count, intent.way)

    def _record(self, step: Step, rows: int) -> None:
        self.cursor = replace(
            self.cursor,
            epoch=step.epoch,
            step=step.id,
            committed_ms=self._now(),
            rows=self.cursor.rows + rows,
            intent=None,
        )
        self._cursors.write(self.cursor)
        self._cursors.note(step.id)

    def _reader(self, tables: Iterator[pa.Table], *, with_kind: bool) -> pa.RecordBatchReader:
        schema = delta_schema(self._target) if with_kind else rows_schema(self._target)
        parts = (
            batch
            for table in tables
            for batch in in_batches(table.select(schema.names).cast(schema))
        )
        return pa.RecordBatchReader.from_batches(schema, self._living(parts))

    def _living(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._alive()
            yield batch

    def _keyed(self, rows: pa.Table) -> None:
        """Refuse NULL in a key, where the target has no such thing."""
        target = self._target
        if self._follower.capabilities.null_keys or target.settings.mode != "upsert":
            return
        for name in target.schema.key:
            if rows[name].null_count:
                raise UserError(
                    f"a row of view {target.view} has NULL in its key, which sink {target.sink} "
                    "cannot hold",
                    where=f"column {name}",
                    safe="nothing of the commit was brought; other sinks go on",
                    hint="leave such rows out, or give them a value: coalesce(…)",
                )

    def _check_fillable(self, epoch: int, why: str) -> None:
        """Refuse to replace what is there, where the target has no such thing."""
        target = self._target
        if self._follower.capabilities.fills:
            return
        raise TargetError(
            f"sink {target.sink} of view {target.view} would have to be filled anew, which it "
            "cannot be",
            got=f"it stands at epoch {epoch}; {why}",
            safe="nothing was written there; other sinks go on",
            hint=f"empty or drop {target.table} there, or name another table",
        )

    # --- after a start or an error ---------------------------------------------------------------

    def _settle(self) -> None:
        """Find out where the target stands, whatever happened before."""
        self._check()
        self._follower.create()
        tried = self.cursor.tried
        self.cursor = self._cursors.latest()
        self.cursor = replace(self.cursor, tried=max(tried, self.cursor.tried))
        if self.cursor.intent is not None:
            self._finish(self.cursor.intent)
        if self._follower.capabilities.marks:
            self._follow_mark(self._follower.position())

    def _finish(self, intent: Intent) -> None:
        follower, step, token = self._follower, intent.step, intent.token
        state, is_lost = follower.state(step, token), intent.way == "lost"
        if state is State.PREPARED and token is not None and not is_lost:
            try:
                follower.commit(token)
                state = State.COMMITTED
            except ElsewhereError:
                # The table was dropped, or a backup restored; or the step is there by now.
                state = follower.state(step, token)
        if state is State.COMMITTED:
            if is_lost:
                self.cursor = replace(self.cursor, epoch=None, step="", intent=None)
                self._cursors.write(self.cursor)
            else:
                self._record(step, max(step.rows, 0))
            return
        if state in (State.PREPARED, State.INITIALIZED):
            follower.abort(step, token)
        elif state is State.COMMITTING:
            raise RetryableError(
                f"sink {self._target.sink} is still committing",
                got=f"step {step.id}",
                safe="it is asked again; nothing is staged meanwhile",
            )
        elif state not in (State.UNKNOWN, State.ABORTED):
            raise TypeError(f"nobody knows what to do about a step that is {state}")
        self.cursor = replace(self.cursor, intent=None)
        self._cursors.write(self.cursor)

    def _follow_mark(self, mark: Mark | None) -> None:
        """Hold the target's mark against the cursor: the mark is right."""
        cursor = self.cursor
        if mark is not None:
            check_owner(self._target, mark)
            if mark.epoch == cursor.epoch and mark.is_by(cursor.step):
                return
        is_behind = mark is not None and cursor.epoch is not None and mark.epoch < cursor.epoch
        if mark is not None and is_behind and any(map(mark.is_by, self._cursors.noted())):
            # A backup of the target: all that was published since is brought again.
            moved = replace(cursor, epoch=mark.epoch, step=mark.step)
        elif cursor.epoch is None and mark is None:
            return
        else:
            moved = replace(cursor, epoch=None, step="")
        self.cursor = moved
        self._cursors.write(moved)


class _Counted:
    """Parts of rows, looked at and counted as they pass."""

    def __init__(self, parts: Iterator[pa.Table], look: Callable[[pa.Table], None]) -> None:
        self._parts, self._look, self.count = parts, look, 0

    def tables(self) -> Iterator[pa.Table]:
        """The parts."""
        for part in self._parts:
            self._look(part)
            self.count += part.num_rows
            yield part


def rows_schema(target: FollowerTarget) -> pa.Schema:
    """The view's columns, all nullable: NOT NULL is the source's promise, not ours."""
    return pa.schema([field.with_nullable(True) for field in target.schema.arrow])


def delta_schema(target: FollowerTarget) -> pa.Schema:
    """KIND and the view's columns."""
    return pa.schema([pa.field(KIND, pa.string(), False), *rows_schema(target)])


def in_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """A delta in batches; no `-U` is the last of one, as its `+U` comes next."""
    whole = rows.combine_chunks()
    begin, end = 0, whole.num_rows
    while begin < end:
        upto = min(begin + BATCH_ROWS, end)
        if KIND in whole.column_names and whole[KIND][upto - 1].as_py() == "-U":
            upto += 1
        yield from whole.slice(begin, upto - begin).to_batches()
        begin = upto
