"""What every sink must do that writes by a process beside this one, whatever it writes to."""

from __future__ import annotations

import os
import signal
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mview_connectors.followers.worker_follower import WorkerFollower
from mview_connectors.followers.workers import WorkerPool

from mview.errors import FencedError, RetryableError
from mview.follow.following import delta_schema
from mview.follower import FollowerTarget, State, Step
from mview.testing import FollowerHarness
from mview.testing.contract import World, delta_of, raised, raised_or_not
from tests.connectors.worlds import a_world, change


class WorkerHarness(FollowerHarness):
    """A harness of such a sink."""

    @abstractmethod
    def files(self, target: FollowerTarget) -> set[Path]:
        """The files of rows that lie there, whoever refers to them."""


class WorkerFollowerContract:
    """Subclass it as `Test…` and give a fixture `harness`."""

    @pytest.fixture
    def sink(self, harness: WorkerHarness, tmp_path: Path) -> Iterator[World]:
        """A sink with six rows."""
        with a_world(harness, tmp_path) as made:
            made.view.publish([made.row(n) for n in range(6)])
            made.sync()
            yield made

    def files(self, sink: World) -> set[Path]:
        assert isinstance(sink.harness, WorkerHarness)
        return sink.harness.files(sink.target())

    def test_of_two_steps_on_one_commit_the_second_is_refused(self, sink: World) -> None:
        follower, target = sink.faulty.inner, sink.target()
        epoch = sink.following.cursor.epoch
        steps = [Step(f"step-{name}", sink.view.epoch + 1, epoch, 1) for name in "ab"]
        tokens = [
            follower.stage(step, delta_of(target, [(None, sink.row(50 + at))]))
            for at, step in enumerate(steps)
        ]
        assert follower.state(steps[1], tokens[1]) is State.PREPARED
        follower.commit(tokens[0])
        raised(lambda: follower.commit(tokens[1]), RetryableError)
        assert follower.state(steps[0], tokens[0]) is State.COMMITTED
        assert follower.state(steps[1], tokens[1]) is State.UNKNOWN
        assert len(sink.harness.read(target) or ()) == 7

    def test_a_commit_is_added_by_one_of_many(self, sink: World) -> None:
        """A race of processes for one place: one wins, and the others know it."""
        target, epoch = sink.target(), sink.following.cursor.epoch
        followers = [sink.harness.open(target) for _ in range(3)]
        tokens = [
            follower.stage(
                Step(f"step-{at}", sink.view.epoch + 1, epoch, 1),
                delta_of(target, [(None, sink.row(50 + at))]),
            )
            for at, follower in enumerate(followers)
        ]
        with ThreadPoolExecutor() as pool:
            done = [
                pool.submit(follower.commit, token)
                for follower, token in zip(followers, tokens, strict=True)
            ]
        assert sum(answer.exception() is None for answer in done) == 1
        assert len(sink.harness.read(target) or ()) == 7
        for follower in followers:
            follower.close()

    @pytest.mark.parametrize("call", ["stage", "move"])
    def test_a_newer_runner_between_a_look_and_what_is_done_on_it(
        self, sink: World, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = sink.target(sink.fence + (call == "move"))
        older = sink.harness.open(target)
        assert isinstance(older, WorkerFollower)
        newer, make = sink.harness.open(sink.target(sink.fence + 5)), older._call

        def called(name: str, *args: Any, **arguments: Any) -> Any:
            if name == call:
                newer.create()
            return make(name, *args, **arguments)

        monkeypatch.setattr(older, "_call", called)
        step = Step("step-a", sink.view.epoch + 1, sink.following.cursor.epoch, 1)

        def write() -> None:
            older.create()
            older.commit(older.stage(step, delta_of(target, [(None, sink.row(50))])))

        raised(write, RetryableError if call == "move" else FencedError)
        mark = newer.position()
        assert mark is not None
        assert mark.fence == sink.fence + 5
        assert len(sink.harness.read(target) or ()) == 6
        for follower in (older, newer):
            follower.close()

    def test_an_aborted_step_leaves_no_file(self, sink: World) -> None:
        before = self.files(sink)
        follower, step = sink.faulty.inner, Step("step-a", 90, sink.following.cursor.epoch, 2)
        changes = [(sink.row(1), None), (None, sink.row(50))]
        token = follower.stage(step, delta_of(sink.target(), changes))
        assert self.files(sink) > before
        follower.abort(step, token)
        assert self.files(sink) == before

    def test_an_abort_of_what_is_committed_is_refused(self, sink: World) -> None:
        follower, step = sink.faulty.inner, Step("step-a", 90, sink.following.cursor.epoch, 1)
        token = follower.stage(step, delta_of(sink.target(), [(None, sink.row(50))]))
        follower.commit(token)
        raised(lambda: follower.abort(step, token), RetryableError)
        assert len(sink.harness.read(sink.target()) or ()) == 7

    def test_rows_that_are_cut_off_leave_no_file(self, sink: World) -> None:
        before = self.files(sink)
        target = sink.target()

        def rows() -> Iterator[pa.RecordBatch]:
            yield from delta_of(target, [(None, sink.row(50))]).read_all().to_batches()
            raise OSError("a file of the store cannot be read")

        reader = pa.RecordBatchReader.from_batches(delta_schema(target), rows())
        step = Step("step-a", 90, sink.following.cursor.epoch, 1)
        with pytest.raises(OSError, match="of the store"):
            sink.faulty.inner.stage(step, reader)
        assert self.files(sink) == before
        change(sink, 3)
        sink.check()

    def test_rows_of_a_damaged_file_are_not_taken_for_none(self, sink: World) -> None:
        """What fails amid an answer's rows is told, and the next call gets its own answer."""
        mark, files = sink.faulty.position(), self.files(sink)
        whole = {file: file.read_bytes() for file in files}
        for file in files:
            file.write_bytes(b"no rows")
        raised(lambda: sink.faulty.read().read_all(), RetryableError)
        assert sink.faulty.position() == mark
        for file in files:
            file.write_bytes(whole[file])
        sink.check()

    def test_a_process_that_is_killed_in_any_call(self, sink: World) -> None:
        follower = sink.faulty.inner
        assert isinstance(follower, WorkerFollower)

        def kill() -> None:
            assert follower._worker is not None
            os.kill(follower._worker.pid, signal.SIGKILL)
            os.waitid(os.P_PID, follower._worker.pid, os.WEXITED | os.WNOWAIT)

        number = 200
        for call in ("stage", "commit"):
            for when in ("before", "after"):
                number += 1
                sink.view.publish([sink.row(number), sink.row(1, f"{number}")])
                sink.faulty.at(call, when, kill)  # type: ignore[arg-type]
                raised_or_not(sink.sync, RetryableError)
                sink.sync()
                sink.check()

    def test_many_sinks_share_few_processes(
        self, harness: WorkerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worlds = [World(harness, tmp_path / str(n), table=f"shared{n}") for n in range(5)]
        follower = worlds[0].faulty.inner
        assert isinstance(follower, WorkerFollower)
        pool = WorkerPool(follower.pool._what, follower.pool._command, most=2)
        monkeypatch.setattr(type(follower), "pool", pool)

        def follow(world: World) -> None:
            for text in ("a", "b"):
                world.view.publish([world.row(n, text) for n in range(20)])
                world.sync()

        with ThreadPoolExecutor(len(worlds)) as threads:
            list(threads.map(follow, worlds))
        assert pool._started == 2
        for world in worlds:
            world.check()
        for world in worlds:
            world.close()
        assert len(pool._idle) == pool._started == 2
        pool._end_all()
