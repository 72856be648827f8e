"""What a step does after each answer of a target: a sink in memory whose answers are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mview.changelog import KIND
from mview.errors import ElsewhereError, FencedError, RetryableError, TargetError, UserError
from mview.follow import following
from mview.follow.cursor import CursorLog, Intent
from mview.follow.following import Following, in_batches
from mview.follower import (
    Capabilities,
    FollowerSettings,
    FollowerTarget,
    Mark,
    State,
    Step,
    admit,
    mark_of,
)
from mview.testing.contract import schema_of
from mview.testing.view import MemoryView

SCHEMA = schema_of([("k", "bigint"), ("v", "string")])
TARGET = FollowerTarget("v", "s", SCHEMA, FollowerSettings(type="memory"), "store/v/s", 3)


class Sink:
    """It notes what it is asked for; steps that are staged are known by their ids."""

    def __init__(self, *, durable: bool = True) -> None:
        self.capabilities = Capabilities(
            modes=frozenset({"upsert"}), durable_prepare=durable, compares=False
        )
        self.mark: Mark | None = None
        self.told: State | None = None
        self.staged: dict[str, Step] = {}
        self.calls: list[str] = []
        #: Raised after a call is done: its answer is lost.
        self.lost: set[str] = set()

    def done(self, call: str) -> None:
        self.calls.append(call)
        if call in self.lost:
            self.lost.remove(call)
            raise RetryableError(f"the answer of {call} is lost")

    def create(self) -> None: ...

    def position(self) -> Mark | None:
        return self.mark

    def stage(self, step: Step, rows: pa.RecordBatchReader) -> dict[str, Any]:
        assert step.id not in self.staged, "an id is used once"
        rows.read_all()
        self.staged[step.id] = step
        self.done("stage")
        return {"id": step.id}

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> dict[str, Any]:
        rows.read_all()
        self.staged[step.id] = step
        self.done("fill")
        return {"id": step.id}

    def commit(self, token: dict[str, Any]) -> dict[str, Any]:
        step = self.staged[token["id"]]
        try:
            admit(TARGET, self.mark, step)
        except ElsewhereError:
            self.calls.append("commit")
            raise
        self.mark = mark_of(TARGET, step)
        self.done("commit")
        return {}

    def state(self, step: Step, _token: object) -> State:
        if self.told is not None:
            return self.told
        is_done = self.mark is not None and self.mark.step == step.id
        return State.COMMITTED if is_done else State.UNKNOWN

    def read(self) -> pa.RecordBatchReader:
        self.done("read")
        rows = pa.table({"k": [1], "v": ["a"]}, following.rows_schema(TARGET))
        return rows.to_reader()

    def abort(self, _step: Step, _token: object) -> None:
        self.done("abort")


class World:
    """A view of one row, at its sink."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.sink, self.view = Sink(durable=durable), MemoryView(SCHEMA)
        self.cursors = CursorLog(folder)
        self.view.publish([(1, "a")])
        self.start()
        self.sync()
        self.sink.calls.clear()

    def start(self) -> None:
        """A new process."""
        sink: Any = self.sink
        self.following = Following(sink, TARGET, self.view, self.cursors, lambda: None, lambda: 1)

    def sync(self) -> None:
        while self.following.advance() is not None:
            pass

    def intend(self, token: dict[str, Any] | None) -> Step:
        """What a process has left on disk that ended in the middle of a step."""
        cursor = self.cursors.latest()
        step = Step("left", self.view.publish([(1, "b")]), cursor.epoch, 1)
        self.sink.staged[step.id] = step
        left = replace(cursor, tried=9, intent=Intent(step, token))
        self.cursors.write(left)
        self.start()
        return step


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("told", "token", "calls"),
    [
        (State.PREPARED, {"id": "left"}, ["commit"]),
        (State.PREPARED, None, ["abort", "stage", "commit"]),
        (State.INITIALIZED, None, ["abort", "stage", "commit"]),
        (State.INITIALIZED, {"id": "left"}, ["abort", "stage", "commit"]),
        (State.UNKNOWN, {"id": "left"}, ["stage", "commit"]),
        (State.ABORTED, {"id": "left"}, ["stage", "commit"]),
    ],
)
def test_what_is_done_about_a_step_that_was_left(
    world: World, told: State, token: dict[str, Any] | None, calls: list[str]
) -> None:
    step = world.intend(token)
    world.sink.told = told
    world.sync()
    assert world.sink.calls == calls
    cursor = world.cursors.latest()
    assert (cursor.epoch, cursor.intent) == (step.epoch, None)
    assert (cursor.step == step.id) == (calls == ["commit"])


@pytest.mark.parametrize(
    ("stands", "calls"),
    [
        (None, ["commit", "abort", "fill", "commit"]),
        (Mark("store/v/s", 3, 1, "older"), ["commit", "abort", "stage", "commit"]),
        (Mark("store/v/s", 3, 1, "lost"), ["commit", "abort", "fill", "commit"]),
    ],
)
def test_a_step_is_taken_back_whose_target_is_elsewhere_by_now(
    world: World, stands: Mark | None, calls: list[str]
) -> None:
    """Its table was dropped, or a backup of it was restored, after the step was staged.

    Of a backup with a step that the store does not know, which was restored, too, all is replaced.
    """
    world.cursors.note("older")
    world.view.publish([(1, "not in the backup")])
    world.sync()
    world.sink.calls.clear()
    step = world.intend({"id": "left"})
    world.sink.mark, world.sink.told = stands, State.PREPARED
    world.sync()
    assert world.sink.calls == calls
    cursor = world.cursors.latest()
    assert (cursor.epoch, cursor.intent) == (step.epoch, None)


@pytest.mark.parametrize(
    ("told", "calls"),
    [
        (State.PREPARED, ["abort", "stage", "commit"]),
        (State.UNKNOWN, ["stage", "commit"]),
        (State.COMMITTED, ["fill", "commit"]),
    ],
)
@pytest.mark.parametrize("marks", [True, False])
def test_a_step_of_an_epoch_that_the_store_has_gone_back_from(
    world: World, told: State, calls: list[str], marks: bool
) -> None:
    """It is not committed any more, and where it is, what the target has is of no epoch."""
    world.sink.capabilities = replace(world.sink.capabilities, marks=marks)
    step = world.intend({"id": "left"})
    if told is State.COMMITTED:
        world.sink.commit({"id": "left"})
    world.cursors.go_back(world.cursors.latest(), step.epoch - 1)
    world.sink.told, world.sink.calls = told, []
    world.start()
    world.sync()
    assert world.sink.calls == calls
    cursor = world.cursors.latest()
    assert (cursor.epoch, cursor.intent) == (world.view.epoch, None)


def test_epochs_that_come_again_under_the_numbers_of_lost_ones(world: World) -> None:
    """The sink stands where the new history will have been, with the rows of the old one."""
    for value in "bcd":
        world.view.publish([(1, value)])
        world.sync()
    world.cursors.go_back(world.cursors.latest(), 1)
    world.view = MemoryView(SCHEMA)
    for value in "axyz":
        world.view.publish([(1, value)])
    world.sink.calls.clear()
    world.start()
    assert world.following.cursor.epoch is None
    world.sync()
    assert world.sink.calls == ["fill", "commit"]
    # Once is enough, and what is of this history stays.
    cursor = world.cursors.latest()
    world.cursors.go_back(cursor, 4)
    assert world.cursors.latest() == cursor


def test_a_step_of_before_a_restore_is_never_taken_for_one_of_after_it(world: World) -> None:
    """Token, epoch and count of tries are the same ones: only the rows are others."""
    before = world.cursors.latest()
    world.view.publish([(1, "lost")])
    world.sync()
    lost = world.sink.mark
    world.cursors.write(before)
    world.view = MemoryView(SCHEMA)
    for value in ("a", "kept"):
        world.view.publish([(1, value)])
    world.sink.calls.clear()
    world.start()
    world.sync()
    assert world.sink.calls == ["fill", "commit"]
    assert world.sink.mark != lost
    assert world.cursors.latest().epoch == world.view.epoch


def test_one_that_is_being_decided_is_asked_again(world: World) -> None:
    world.intend({"id": "left"})
    world.sink.told = State.COMMITTING
    for _ in range(2):
        with pytest.raises(RetryableError, match="still committing"):
            world.sync()
    assert world.sink.calls == []


@pytest.mark.parametrize("durable", [True, False])
def test_an_answer_that_is_lost_decides_nothing(tmp_path: Path, durable: bool) -> None:
    """What is asked then is the target, and no id is used twice."""
    world = World(tmp_path, durable=durable)
    world.sink.lost = {"stage", "commit"}
    epoch = world.view.publish([(1, "b")])
    for _ in range(2):
        with pytest.raises(RetryableError, match="is lost"):
            world.sync()
    world.sync()
    assert world.sink.calls == ["stage", "stage", "commit"]
    assert world.cursors.latest().epoch == epoch


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        (lambda mark: mark, []),
        (lambda mark: replace(mark, step=""), []),
        (lambda mark: replace(mark, step="another"), ["fill", "commit"]),
        (lambda mark: replace(mark, epoch=99), ["fill", "commit"]),
        (lambda _: None, ["fill", "commit"]),
    ],
)
def test_the_mark_is_right_and_not_the_cursor(
    world: World, change: Callable[[Any], Mark | None], calls: list[str]
) -> None:
    world.sink.mark = change(world.sink.mark)
    world.start()
    world.sync()
    assert world.sink.calls == calls


def test_a_mark_of_somebody_else_is_refused(world: World) -> None:
    mark = world.sink.mark
    assert mark is not None
    for other, error in (
        (replace(mark, owner="store/w/s"), TargetError),
        (replace(mark, fence=4), FencedError),
    ):
        world.sink.mark = other
        world.start()
        with pytest.raises(error):
            world.sync()
    assert world.sink.calls == []


def test_no_batch_ends_between_an_old_row_and_its_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "BATCH_ROWS", 2)
    kinds = ["+I", "-U", "+U", "-D", "+I", "-U", "+U"]
    rows = pa.table({KIND: kinds, "k": list(range(7))})
    parts = [batch.column(KIND).to_pylist() for batch in in_batches(rows)]
    assert parts == [["+I", "-U", "+U"], ["-D", "+I"], ["-U", "+U"]]


def test_an_epoch_that_is_too_large_for_a_sink_is_told(world: World) -> None:
    world.sink.capabilities = replace(world.sink.capabilities, largest=2)
    world.start()
    world.view.publish([(2, "b"), (3, "c")])
    world.sync()
    world.view.publish([(4, "d"), (5, "e"), (6, "f")])
    with pytest.raises(UserError, match="more changes than"):
        world.sync()
    assert world.sink.calls == ["stage", "commit"]


@pytest.mark.parametrize(
    ("epoch", "calls"), [(1, ["read", "stage", "commit"]), (99, ["fill", "commit"])]
)
def test_a_target_is_compared_where_it_is_behind_and_filled_where_it_is_ahead(
    world: World, epoch: int, calls: list[str]
) -> None:
    """One that is ahead was written in another history of the store, and targets count upwards."""
    world.sink.capabilities = replace(world.sink.capabilities, compares=True)
    world.view.publish([(1, "b")])
    world.view.forget()
    assert world.sink.mark is not None
    world.sink.mark = replace(world.sink.mark, epoch=epoch)
    world.start()
    world.sync()
    assert world.sink.calls == calls
    assert world.cursors.latest().epoch == world.view.epoch


@pytest.mark.parametrize("null_keys", [True, False])
def test_a_null_in_a_key(world: World, null_keys: bool) -> None:
    world.sink.capabilities = replace(world.sink.capabilities, null_keys=null_keys)
    world.view.publish([(None, "b")])
    if not null_keys:
        with pytest.raises(UserError, match="NULL in its key"):
            world.sync()
        world.view.publish([], [(None,)])
    world.sync()
    assert world.sink.calls == ["stage", "commit"]
