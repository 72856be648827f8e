"""Hudi as a sink: the contract, read by hudi-rs, which shares no code with what writes."""

from __future__ import annotations

import base64
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mview_connectors.followers.hudi.environment import ENVIRONMENT
from mview_connectors.followers.hudi.follower import HudiFollower
from mview_connectors.followers.hudi.settings import HudiSettings

from mview.errors import ConfigError, RetryableError, TargetError, UserError
from mview.follow.following import delta_schema, rows_schema
from mview.follower import Follower, FollowerSettings, FollowerTarget, State, Step
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import (
    COLUMNS,
    VALUES,
    World,
    delta_of,
    raised,
    raised_or_not,
    schema_of,
)
from mview.testing.view import Row
from tests.connectors.worker_followers import WorkerFollowerContract, WorkerHarness
from tests.connectors.worlds import a_world, change
from tests.patience import wait_for
from tests.seeds import of_today
from tests.services.hudi import read_hudi, slices_of

pytestmark = [pytest.mark.service, pytest.mark.usefixtures("hudi"), pytest.mark.days(4)]


class HudiHarness(WorkerHarness):
    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options = folder, options

    def settings(self, **options: Any) -> FollowerSettings:
        return HudiSettings(
            type="hudi", path=str(self.folder), **{"history": "0s", **self.options, **options}
        )

    def open(self, target: FollowerTarget) -> Follower:
        return HudiFollower(target)

    def place(self, target: FollowerTarget) -> Path:
        return self.folder / target.table

    def read(self, target: FollowerTarget) -> list[Row] | None:
        return read_hudi(self.place(target), target.schema.arrow)

    def foreign(self, target: FollowerTarget) -> bool:
        other = HudiFollower(target)
        other._call("make", options={})
        other.close()
        return True

    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        copy = self.folder.with_suffix(".copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)

        def restore() -> None:
            shutil.rmtree(self.folder)
            shutil.copytree(copy, self.folder)

        return restore

    def pieces(self, target: FollowerTarget) -> int:
        return slices_of(self.place(target))

    def files(self, target: FollowerTarget) -> set[Path]:
        return {
            file
            for file in self.place(target).iterdir()
            if file.suffix == ".parquet" or ".log." in file.name
        }

    def drop(self, target: FollowerTarget) -> bool:
        shutil.rmtree(self.place(target))
        return True


class TestHudi(WorkerFollowerContract, FollowerContract):
    steps, share = 20, 4

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return HudiHarness(tmp_path / "lake")


@pytest.mark.long
class TestHudiInBuckets(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return HudiHarness(tmp_path / "lake", buckets=3)


# --- what is its own -------------------------------------------------------------------------


@pytest.fixture
def harness(tmp_path: Path) -> HudiHarness:
    return HudiHarness(tmp_path / "lake")


@pytest.fixture
def world(harness: HudiHarness, tmp_path: Path) -> Iterator[World]:
    with a_world(harness, tmp_path) as made:
        made.view.publish([made.row(n) for n in range(6)])
        made.sync()
        yield made


def timeline(world: World) -> list[Path]:
    """The instants as they lie there, the oldest first."""
    assert isinstance(world.harness, HudiHarness)
    folder = world.harness.place(world.target()) / ".hoodie" / "timeline"
    return sorted(file for file in folder.iterdir() if file.is_file())


def files(world: World) -> set[Path]:
    assert isinstance(world.harness, HudiHarness)
    return world.harness.files(world.target())


def staged(world: World, number: int) -> tuple[Step, dict[str, Any]]:
    """A step with one new row, on what stands there."""
    step = Step(f"step-{number}", world.view.epoch + 1, world.following.cursor.epoch, 1)
    delta = delta_of(world.target(), [(None, world.row(number))])
    return step, world.faulty.inner.stage(step, delta)


def test_a_step_is_one_commit_with_the_mark(world: World) -> None:
    before = timeline(world)
    change(world, 3)
    mark = world.faulty.position()
    assert mark is not None
    new = [file for file in timeline(world) if file not in before]
    names = [file.name.partition(".")[2] for file in new]
    assert sorted(names) == ["deltacommit", "deltacommit.inflight", "deltacommit.requested"]
    (done,) = (file for file in new if file.suffix == ".deltacommit")
    assert mark.to_text().encode() in done.read_bytes()


def test_rows_that_somebody_else_has_added_go(world: World) -> None:
    def by_somebody_else(number: int) -> None:
        _, token = staged(world, number)
        content = base64.b64decode(token["staged"]["content"])
        foreign = content.replace(b"mview.mark", b"other.mark")
        token["staged"]["content"] = base64.b64encode(foreign).decode()
        world.faulty.inner.commit(token)

    by_somebody_else(777)
    assert len(world.harness.read(world.target()) or ()) == 7
    # Met by a runner that has not noticed: its step is refused, then all rows are brought.
    world.view.publish([world.row(60)])
    raised(world.sync, TargetError)
    world.sync()
    world.check()
    by_somebody_else(778)
    world.start()
    change(world, 2)
    world.check()


def test_a_table_whose_rows_somebody_has_clustered_is_filled_anew(world: World) -> None:
    """They are in other file groups then than those that a step writes to."""
    change(world, 1)
    rows = world.faulty.read().read_all()
    inner = world.faulty.inner
    assert isinstance(inner, HudiFollower)
    token = inner.fill(Step("theirs", 90, None), rows.to_reader())
    done_by_somebody_else(inner, token, "CLUSTER")
    world.check()
    world.view.publish([world.row(60)])
    raised(world.sync, TargetError)
    world.sync()
    world.check()


def test_a_clustering_that_was_planned_before_a_fill_is_filled_over(
    harness: HudiHarness, tmp_path: Path
) -> None:
    """Done after it, it brings back the rows that the fill has replaced."""
    with a_world(harness, tmp_path, mode="append") as world:
        world.view.publish([world.row(n) for n in range(6)])
        world.sync()
        inner = world.faulty.inner
        planned = inner.fill(Step("theirs", 90, None), inner.read().read_all().to_reader())
        assert isinstance(inner, HudiFollower)
        world.view.publish([world.row(60)])
        world.forget()
        world.sync()
        world.check()
        inner = world.faulty.inner
        assert isinstance(inner, HudiFollower)
        planned["staged"]["base"] = inner._call("look")["latest"]
        done_by_somebody_else(inner, planned, "CLUSTER")
        assert len(world.harness.read(world.target()) or ()) == 13
        world.view.publish([world.row(61)])
        raised(world.sync, TargetError)
        world.sync()
        world.check()


def done_by_somebody_else(follower: HudiFollower, token: Any, kind: str) -> None:
    """Commit a fill as if it were another operation, and not ours."""
    content = base64.b64decode(token["staged"]["content"])
    # As long as it was: Avro's blocks have their size.
    theirs = content.replace(b"\x2cINSERT_OVERWRITE_TABLE", bytes([2 * len(kind)]) + kind.encode())
    mark = b"other.mark".ljust(10 + 22 - len(kind), b".")
    theirs = theirs.replace(b"\x14mview.mark", bytes([2 * len(mark)]) + mark)
    assert len(theirs) == len(content)
    token["staged"]["content"] = base64.b64encode(theirs).decode()
    follower.commit(token)


def test_columns_that_somebody_has_added_are_told(world: World) -> None:
    """Rows would be written without them, and what others have put there would be gone."""
    inner = world.faulty.inner
    assert isinstance(inner, HudiFollower)
    target = inner.target
    schema = schema_of([*COLUMNS, ("more", "string")])
    theirs = HudiFollower(replace(target, schema=schema))
    rows = pa.Table.from_pylist([{"k": 1, "more": "theirs"}], schema=rows_schema(theirs.target))
    look, given = theirs._call("look"), {"is_fill": True, "mark": "", "epoch": 90}
    on = {"base": look["latest"], "carried": look["carried"]}
    token = theirs._call("stage", rows.to_reader(), **on, **given)
    content = base64.b64decode(token["content"]).replace(b"mview.mark", b"other.mark")
    token["content"] = base64.b64encode(content).decode()
    theirs._call("commit", token=token)
    theirs.close()
    world.view.publish([world.row(50)])
    for call in (world.sync, world.faulty.read):
        told = str(raised(call, TargetError))
        assert "somebody has changed the columns of the table t" in told
        assert "more" in told
    assert world.harness.drop(world.target())
    world.sync()
    world.check()


def test_rows_of_others_that_cannot_be_read_are_not_tried_again(world: World) -> None:
    before = files(world)
    _, token = staged(world, 777)
    (theirs,) = files(world) - before
    content = base64.b64decode(token["staged"]["content"]).replace(b"mview.mark", b"other.mark")
    token["staged"]["content"] = base64.b64encode(content).decode()
    world.faulty.inner.commit(token)
    with theirs.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff" * 40)
    told = str(raised(lambda: world.faulty.read().read_all(), TargetError))
    assert "`mview run` fills it anew" in told
    world.start()
    world.sync()
    world.check()


@pytest.mark.parametrize("by", ["commit", "maintenance"])
def test_a_list_of_files_that_another_writer_has_left_goes(world: World, by: str) -> None:
    """Readers believe Hudi's metadata table, which Spark makes; nothing here keeps it up."""
    for number in range(1, 4):
        change(world, number)
    folder = timeline(world)[0].parent.parent
    listed = "hoodie.table.metadata.partitions=files\n"
    with (folder / "hoodie.properties").open("a") as properties:
        properties.write(listed)
    (folder / "metadata" / ".hoodie").mkdir(parents=True)
    if by == "commit":
        change(world, 4)
    else:
        assert world.faulty.inner.maintain(thorough=True)
    assert listed not in (folder / "hoodie.properties").read_text()
    assert not (folder / "metadata").exists()
    world.check()


def test_what_a_process_left_that_died_in_a_commit_is_cleared(world: World) -> None:
    folder = timeline(world)[0].parent
    for state in ("requested", "inflight"):
        (folder / f"20200101000000000.deltacommit.{state}").touch()
    world.check()
    change(world, 3)
    world.check()
    assert not list(folder.glob("20200101*"))


def test_a_compaction_between_a_step_and_its_commit(world: World) -> None:
    for number in range(1, 5):
        change(world, number)
    step, token = staged(world, 50)
    other = world.harness.open(world.target())
    assert other.maintain(thorough=True)["files_merged"] > 0
    assert world.faulty.inner.state(step, token) is State.PREPARED
    world.faulty.inner.commit(token)
    other.close()
    rows = {row[0]: row[1] for row in world.harness.read(world.target()) or ()}
    assert rows[50] == "x"
    assert rows[104] == "x"
    assert 3 not in rows
    assert len(rows) == len(world.view.content) + 1


def test_files_of_steps_that_were_never_committed_go(world: World) -> None:
    before = files(world)
    staged(world, 50)
    left = files(world) - before
    assert left
    change(world, 2)
    kept = files(world)
    live, token = staged(world, 51)
    at_work = files(world) - kept
    world.faulty.inner.maintain(thorough=True)
    assert not left & files(world)
    assert at_work <= files(world)
    assert world.faulty.inner.state(live, token) is State.PREPARED
    world.check()


def test_a_step_that_sleeps_longer_than_the_timeline_is_kept_is_not_seen(world: World) -> None:
    """Hudi takes files for committed that are older than its timeline."""
    before, target = timeline(world), world.target()

    def rows() -> Iterator[pa.RecordBatch]:
        numbers = count(1)
        while set(before) & set(timeline(world)):
            for number in islice(numbers, 8):
                change(world, number)
            world.faulty.inner.maintain(thorough=True)
        yield from delta_of(target, [(None, world.row(777))]).read_all().to_batches()

    slow = world.harness.open(target)
    step = Step("step-slow", world.view.epoch + 1, world.following.cursor.epoch, 1)
    reader = pa.RecordBatchReader.from_batches(delta_schema(target), rows())
    raised_or_not(lambda: slow.stage(step, reader), RetryableError)
    slow.close()
    world.check()
    world.faulty.inner.maintain(thorough=True)
    world.check()


def test_a_compaction_whose_process_was_killed_is_done_by_the_next(world: World) -> None:
    for number in range(1, 4):
        change(world, number)
    other = world.harness.open(world.target())
    assert isinstance(other, HudiFollower)
    other.position()
    assert other._worker is not None

    def planned() -> set[str]:
        ends = ".compaction.requested"
        return {file.name[:17] for file in timeline(world) if file.name.endswith(ends)}

    with ThreadPoolExecutor() as pool:
        done = pool.submit(other.maintain, thorough=True)
        assert wait_for(planned, 60)
        os.kill(other._worker.pid, signal.SIGKILL)
        raised_or_not(done.result, RetryableError)
    other.close()
    change(world, 5)
    world.check()
    world.faulty.inner.maintain(thorough=True)
    world.check()
    assert planned() == {file.name[:17] for file in timeline(world) if file.suffix == ".commit"}


@pytest.mark.long
def test_maintenance_keeps_the_timeline_short(harness: HudiHarness, tmp_path: Path) -> None:
    with a_world(harness, tmp_path) as world:
        world.view.publish([world.row(n) for n in range(200)])
        world.sync()
        for number in range(1, 80):
            change(world, number)
            if number % 15 == 0:
                world.faulty.inner.maintain(thorough=True)
        world.faulty.inner.maintain(thorough=True)
        world.check()
        assert len(timeline(world)) < 120
        assert len(files(world)) < 40
        world.start()
        change(world, 100)
        world.check()


KEYS = [
    kind
    for kind in VALUES
    if kind not in ("float", "double", "binary", "timestamp_ntz") and "array" not in kind
]


@pytest.mark.long
@pytest.mark.parametrize("kind", of_today(KEYS, 3))
def test_keys_of_every_type(harness: HudiHarness, tmp_path: Path, kind: str) -> None:
    schema = schema_of([("k", kind), ("v", "int")])
    harness.options["buckets"] = 3
    with a_world(harness, tmp_path, schema) as world:
        values = VALUES[kind]
        world.view.publish([(value, 0) for value in values])
        world.sync()
        world.view.publish([(values[-1], 1)], [(values[0],)])
        world.sync()
        world.check()
        world.faulty.maintain(thorough=True)
        world.view.publish([(value, 9) for value in values[::2]])
        world.sync()
        world.check()


def test_keys_that_look_alike_in_hudi(harness: HudiHarness, tmp_path: Path) -> None:
    """Hudi has no empty keys, and joins those of several columns by colons and commas."""
    texts = ["", "__empty__", "__empty___", "1", "1,b:2", "2,b:1", "%2C", ",", ":", "a:1"]
    schema = schema_of([("a", "string"), ("b", "string"), ("v", "int")], ("a", "b"))
    with a_world(harness, tmp_path, schema) as world:
        pairs = [(a, b) for a in texts for b in texts]
        world.view.publish([(*pair, 0) for pair in pairs])
        world.sync()
        world.view.publish([(*pair, 1) for pair in pairs[1::2]], pairs[::4])
        world.sync()
        world.check()


# --- settings --------------------------------------------------------------------------------


def test_what_hudi_cannot_have_is_refused() -> None:
    def follower_of(columns: Any, key: Sequence[str] = ("k",), **options: Any) -> HudiFollower:
        settings = HudiSettings(type="hudi", **{"path": "/nowhere", **options})
        return HudiFollower(FollowerTarget("v", "s", schema_of(columns, key), settings, "o", 1))

    for columns, told in (
        ([("k", "double"), ("v", "int")], "column k"),
        ([("k", "binary"), ("v", "int")], "column k"),
        ([("k", "int"), ("v", "timestamp_ntz")], "column v"),
        ([("k", "int"), ("v", "array<array<timestamp_ntz>>")], "column v"),
        ([("k", "int"), ("v", "array<timestamp>")], "column v"),
        ([("k", "int"), ("a b", "int")], "a b"),
        ([("k", "int"), ("_hoodie_file_name", "int")], "_hoodie_file_name"),
    ):
        assert told in str(raised(follower_of(columns).check, UserError))
    for options, told in (
        ({"table": "a/b"}, "name"),
        ({"path": "s3://bucket/lake"}, "no locks"),
    ):
        assert told in str(raised(follower_of([("k", "int")], **options).check, ConfigError))
    follower_of([("k", "double"), ("v", "int")], mode="append").check()
    follower_of([("k", "int")], path="file:///lake").check()


def test_without_the_environment_the_command_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVIEW_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"python -m mview_connectors\.followers\.hudi"):
        ENVIRONMENT.made()
