"""Delta tables outside of the store: the contract, read by delta-rs, and what is their own."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, write_deltalake
from deltalake.schema import PrimitiveType
from mview_connectors.followers.delta import objects, upkeep
from mview_connectors.followers.delta.follower import DeltaFollower
from mview_connectors.followers.delta.objects import Objects
from mview_connectors.followers.delta.settings import DeltaSettings
from pydantic import ValidationError

from mview.clock import SteadyClock, SystemClock
from mview.errors import ElsewhereError, FencedError, RetryableError, TargetError, UserError
from mview.files.modes import private_files
from mview.follower import Follower, FollowerSettings, FollowerTarget, State, Step
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import World, delta_of, normal, raised, schema_of
from mview.testing.view import Row, rows_of


class DeltaHarness(FollowerHarness):
    """A folder, read by delta-rs's own query engine."""

    def __init__(self, place: str | Path, **options: Any) -> None:
        self.place, self.options = str(place), options
        #: What other readers need to reach the place.
        self.shown: dict[str, str] = {}

    def settings(self, **options: Any) -> FollowerSettings:
        return DeltaSettings(type="delta", path=self.place, **{**self.options, **options})

    def open(self, target: FollowerTarget) -> Follower:
        return DeltaFollower(target)

    def table(self, target: FollowerTarget, version: int | None = None) -> DeltaTable:
        return DeltaTable(f"{self.place}/{target.table}", version, self.shown)

    def is_there(self, target: FollowerTarget) -> bool:
        return bool(DeltaTable.is_deltatable(f"{self.place}/{target.table}", self.shown))

    def read(self, target: FollowerTarget) -> list[Row] | None:
        if not self.is_there(target):
            return None
        return content(self.table(target), list(target.schema.names))

    def foreign(self, target: FollowerTarget) -> bool:
        write_deltalake(
            f"{self.place}/{target.table}",
            target.schema.arrow.empty_table(),
            storage_options=self.shown,
        )
        return True

    def pieces(self, target: FollowerTarget) -> int:
        return len(self.table(target).file_uris())

    @contextmanager
    def lost_answers(self) -> Iterator[None]:
        put = Objects.put_if_absent

        def lost(objects: Objects, path: str, content: bytes) -> bool:
            put(objects, path, content)
            return False

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Objects, "put_if_absent", lost)
            yield


class FolderHarness(DeltaHarness):
    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        folder = Path(self.place)
        copy = folder.with_suffix(".copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)

        def restore() -> None:
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)

        return restore

    def drop(self, target: FollowerTarget) -> bool:
        shutil.rmtree(Path(self.place) / target.table)
        return True


def content(table: DeltaTable, names: list[str]) -> list[Row]:
    columns = ", ".join(f'"{name}"' for name in names)
    found = QueryBuilder().register("t", table).execute(f"SELECT {columns} FROM t")
    return rows_of(pa.table(found))


class TestDelta(FollowerContract):
    steps, share = 30, 4

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return FolderHarness(tmp_path / "lake")


@pytest.mark.long
class TestDeltaCopiedOnWrite(FollowerContract):
    steps, share = 30, 8

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return FolderHarness(tmp_path / "lake", deletion_vectors=False)


# --- what is its own -------------------------------------------------------------------------


@pytest.fixture
def harness(tmp_path: Path) -> FolderHarness:
    return FolderHarness(tmp_path / "lake")


@contextmanager
def a_world(harness: DeltaHarness, folder: Path, **options: Any) -> Iterator[World]:
    world = World(harness, folder, **options)
    try:
        world.view.publish([world.row(n) for n in range(40)])
        world.sync()
        yield world
    finally:
        world.close()


@pytest.fixture
def world(harness: FolderHarness, tmp_path: Path) -> Iterator[World]:
    with a_world(harness, tmp_path / "cursors") as world:
        yield world


def change(world: World, number: int) -> None:
    world.view.publish([world.row(number % 40, f"{number}"), world.row(1000 + number)])
    world.sync()


def test_the_epoch_is_a_transaction_and_older_versions_are_read(
    world: World, harness: FolderHarness
) -> None:
    names = list(world.schema.names)
    at = {}
    for number in range(5):
        change(world, number)
        table = harness.table(world.target())
        assert table.transaction_version("store/v/s") == world.view.epoch
        at[table.version()] = normal(world.view.content.values())
    for version, rows in at.items():
        assert normal(content(harness.table(world.target(), version), names)) == rows


@pytest.mark.parametrize("vectors", [False, True])
def test_what_others_compact_is_taken_in(
    harness: FolderHarness, tmp_path: Path, vectors: bool
) -> None:
    with a_world(harness, tmp_path / "cursors", deletion_vectors=vectors) as world:
        for number in range(4):
            change(world, number)
        mark = world.faulty.position()
        assert harness.table(world.target()).optimize.compact()["numFilesRemoved"] > 1
        assert world.faulty.position() == mark
        change(world, 5)
        world.check()
        harness.table(world.target()).optimize.compact()
        world.start()
        change(world, 6)
        assert world.following.cursor.tried == 7  # and was never filled anew
        world.check()


def test_what_others_write_goes_and_the_table_is_filled_anew(
    world: World, harness: FolderHarness, tmp_path: Path
) -> None:
    more = pa.table(
        {f.name: pa.array([None], f.type) for f in world.schema.arrow}, world.schema.arrow
    )
    for is_new in (False, True):
        write_deltalake(tmp_path / "lake" / "t", more, mode="append")
        assert len(harness.read(world.target()) or ()) == len(world.view.content) + 1
        if is_new:
            world.start()
        assert world.faulty.position() is None
        world.view.publish([world.row(1, f"{is_new}")])
        if not is_new:
            assert "has changed since" in str(raised(world.sync, RetryableError))
        world.sync()
        world.check()


@pytest.mark.parametrize("how", ["added", "replaced"])
def test_columns_that_others_have_changed_are_made_anew(
    world: World, harness: FolderHarness, how: str
) -> None:
    """Or rows would be written whose columns no reader sees."""
    place = f"{harness.place}/{world.target().table}"
    if how == "added":
        DeltaTable(place).alter.add_columns([Field("more", PrimitiveType("string"))])
    else:
        write_deltalake(place, pa.table({"a": [1]}), mode="overwrite", schema_mode="overwrite")
    world.view.publish([world.row(50)])
    raised(world.sync, RetryableError)
    world.sync()
    world.check()
    names = [field.name for field in harness.table(world.target()).schema().fields]
    assert names == list(world.schema.names)
    change(world, 1)
    world.start()
    version = harness.table(world.target()).version()
    change(world, 2)
    world.check()
    assert harness.table(world.target()).version() == version + 2  # the new runner's, and the step


def test_a_new_process_starts_at_a_checkpoint(
    world: World, harness: FolderHarness, tmp_path: Path
) -> None:
    log = tmp_path / "lake" / "t" / "_delta_log"
    for number in range(101):
        change(world, number)
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    last = int(checkpoint.name[:20])
    for commit in log.glob("*.json"):
        if commit.name[:20].isdecimal() and int(commit.name[:20]) < last:
            commit.unlink()
    mark = world.faulty.position()
    world.start()
    world.faulty.create()
    found = world.faulty.position()
    assert mark is not None
    assert found is not None
    assert (found.owner, found.epoch) == (mark.owner, mark.epoch)
    change(world, 7)
    world.check()


def test_a_checkpoint_behind_a_foreign_write_is_no_mark(
    world: World, harness: FolderHarness, tmp_path: Path
) -> None:
    more = pa.table(
        {f.name: pa.array([None], f.type) for f in world.schema.arrow}, world.schema.arrow
    )
    write_deltalake(tmp_path / "lake" / "t", more, mode="append")
    harness.table(world.target()).create_checkpoint()
    world.start()
    assert world.faulty.position() is None
    world.sync()
    world.check()


@pytest.mark.parametrize("call", ["stage", "commit"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_step_whose_table_is_replaced_under_it_leaves_no_gap_in_the_log(
    world: World, harness: FolderHarness, call: str, is_gone: bool
) -> None:
    restore = harness.backup(world.target())
    change(world, 1)
    if is_gone:
        restore = partial(harness.drop, world.target())
    world.faulty.at(call, "after" if call == "stage" else "before", restore)
    world.view.publish([world.row(2, "on its way")], [(3,)])
    raised(world.sync, RetryableError)
    world.sync()
    world.check()


def test_a_copy_that_has_as_many_versions_again_is_read_anew(
    world: World, harness: FolderHarness
) -> None:
    """Beside a run: a copy was put back, and maintenance, or somebody else, has gone on with it."""
    for number in range(6):
        change(world, number)
    restore = harness.backup(world.target())
    world.view.publish([], [(7,)])
    world.sync()
    restore()
    harness.open(world.target()).maintain(thorough=True)
    world.view.publish([], [(8,)])
    raised(world.sync, ElsewhereError)
    world.sync()
    world.check()


def test_old_versions_and_files_go_and_what_is_staged_stays(
    harness: FolderHarness, tmp_path: Path
) -> None:
    with a_world(harness, tmp_path / "cursors", history="0s") as world:
        for number in range(12):
            change(world, number)
        after = world.view.epoch
        step = Step("step-x", world.view.publish([world.row(7, "staged")]), after, 2)
        old = world.row(7, "7")
        before = {Path(uri).name for uri in harness.table(world.target()).file_uris()}
        token = world.faulty.inner.stage(step, delta_of(world.target(), [(old, old)]))
        time.sleep(0.01)
        other = harness.open(world.target())
        done = other.maintain(thorough=True)
        assert done["files_replaced"] > 4
        assert done["files_removed"] >= done["files_replaced"]
        live = {Path(uri).name for uri in harness.table(world.target()).file_uris()}
        folder = tmp_path / "lake" / "t"
        (staged,) = {a["add"]["path"] for a in token["actions"] if "add" in a} - before
        assert {file.name for file in folder.glob("*.parquet")} == live | {staged}
        # The table has moved on: what was staged before does not hold.
        assert world.faulty.inner.state(step, token) is State.UNKNOWN
        raised(lambda: world.faulty.inner.commit(token), RetryableError)
        world.sync()
        world.check()
        other.maintain(thorough=True)
        change(world, 50)
        time.sleep(0.01)
        harness.table(world.target()).create_checkpoint()
        fresh = harness.open(world.target())
        fresh.maintain(thorough=True)
        commits = [f.name for f in (folder / "_delta_log").glob("*.json") if f.name[0] != "_"]
        assert len(commits) < 8
        world.start()
        change(world, 51)
        world.check()


def test_what_is_staged_stays_where_a_clock_is_days_ahead(
    harness: FolderHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mview maintain` may run on another machine than the runner, and the store has its own."""
    with a_world(harness, tmp_path / "cursors") as world:
        for number in range(3):
            change(world, number)
        step = Step("step-x", world.view.epoch + 1, world.view.epoch, 2)
        token = world.faulty.inner.stage(step, delta_of(world.target(), [(None, world.row(70))]))
        ahead = SystemClock().now() + 30 * 86_400_000
        with monkeypatch.context() as clock:
            clock.setattr(SteadyClock, "now", lambda _: ahead)
            harness.open(world.target()).maintain(thorough=True)
        assert world.faulty.inner.state(step, token) is State.PREPARED
        world.faulty.inner.commit(token)
        there = harness.read(world.target())
        assert there is not None
        assert 70 in {row[0] for row in there}


def test_maintenance_takes_bites_and_begins_again(
    world: World, harness: FolderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        change(world, number)
    compact, met = upkeep.DeltaUpkeep._compact, iter([True, True])

    def meeting(self: Any, bite: Any) -> Any:
        if next(met, False):
            change(world, 20)
        return compact(self, bite)

    monkeypatch.setattr(upkeep.DeltaUpkeep, "_compact", meeting)
    other = harness.open(world.target())
    assert other.maintain(thorough=True)["files_replaced"] > 4
    assert harness.pieces(world.target()) == 1
    world.check()
    change(world, 30)
    world.check()


def test_a_refused_commit_that_is_not_shown_yet_is_nobodys(
    world: World, harness: FolderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the own one, which comes late: what it names stays, and it is told by then."""
    for number in range(4):
        change(world, number)
    late: list[tuple[str, bytes]] = []

    def refuse(objects: Objects, path: str, content: bytes) -> bool:
        late.append((path, content))
        return False

    with monkeypatch.context() as store:
        store.setattr(Objects, "put_if_absent", refuse)
        raised(lambda: harness.open(world.target()).maintain(thorough=False), RetryableError)
    ((path, content),) = late
    assert Objects(f"{harness.place}/{world.target().table}", {}).put_if_absent(path, content)
    world.check()
    assert harness.pieces(world.target()) == 1
    change(world, 30)
    world.check()


@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "empty"])
def test_a_log_with_a_gap_is_not_written_on(
    world: World, harness: FolderHarness, tmp_path: Path, is_there: bool
) -> None:
    """A commit that took the lost one's place would be followed by those of another table."""
    for number in range(4):
        change(world, number)
    log = tmp_path / "lake" / "t" / "_delta_log"
    lost = sorted(log.glob("*.json"))[3]
    content = lost.read_bytes()
    lost.unlink()
    if is_there:
        lost.touch()
    there = sorted(log.iterdir())
    world.start()
    world.view.publish([world.row(50)])
    for _ in range(2):
        error = raised(world.sync, TargetError)
        assert ("is empty" if is_there else "version 3 is missing, and there is version 5") in str(
            error
        )
    assert sorted(log.iterdir()) == there
    lost.write_bytes(content)
    world.sync()
    world.check()
    lost.unlink()
    world.start()
    raised(world.sync, TargetError)
    harness.drop(world.target())
    world.sync()
    world.check()


def test_a_commit_that_a_store_shows_empty_is_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what comes next would be a version too high, which no reader finds."""
    get, shown = Objects.get, [b""]

    def show(self: Objects, path: str) -> bytes | None:
        content = get(self, path)
        return shown.pop() if content is None and shown else content

    monkeypatch.setattr(Objects, "get", show)
    world.view.publish([world.row(50)])
    assert "is empty" in str(raised(world.sync, TargetError))
    assert shown == []
    world.sync()
    world.check()


def test_a_reader_whose_files_are_gone_is_to_read_again(
    world: World, harness: FolderHarness, tmp_path: Path
) -> None:
    """But where the table itself has lost them, it is to be dropped."""
    rows = harness.open(world.target()).read()
    before = set((tmp_path / "lake" / "t").glob("*.parquet"))
    world.view.publish([world.row(50)])
    world.forget()
    world.sync()
    for file in before:
        file.unlink()
    told = raised(rows.read_all, RetryableError)
    assert "has changed while it was read" in str(told)
    world.check()
    rows = harness.open(world.target()).read()
    for file in (tmp_path / "lake" / "t").glob("*.parquet"):
        file.unlink()
    assert "Drop what is left of it" in str(raised(rows.read_all, TargetError))


def test_maintenance_by_an_older_runner_is_refused(world: World) -> None:
    older = world.faulty.inner
    newer = world.harness.open(world.target(world.fence + 1))
    newer.create()
    raised(lambda: older.maintain(thorough=True), FencedError)


def test_appended_rows_are_joined_by_maintenance(harness: FolderHarness, tmp_path: Path) -> None:
    with a_world(harness, tmp_path / "cursors", mode="append") as world:
        for number in range(100, 106):
            world.view.publish([world.row(number)])
            world.sync()
        assert harness.pieces(world.target()) == 7
        assert world.faulty.maintain(thorough=False) == {"files_replaced": 7, "files_written": 1}
        world.check()
        world.view.publish([world.row(100, "changed")])
        raised(world.sync, UserError)


def test_a_table_with_a_row_too_few_is_not_made_worse(
    world: World, harness: FolderHarness, tmp_path: Path
) -> None:
    change(world, 1)
    target = world.target()
    follower = world.faulty.inner
    step = Step("step-y", world.view.publish(), world.following.cursor.epoch, 1)
    delta = delta_of(target, [((77777, *world.row(1)[1:]), None)])
    assert "does not have the rows" in str(raised(lambda: follower.stage(step, delta), TargetError))
    world.check()


def test_a_store_that_overwrites_is_refused(
    harness: FolderHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrite(self: Objects, path: str, content: bytes) -> bool:
        self.put(path, content)
        return True

    monkeypatch.setattr(Objects, "put_if_absent", overwrite)
    world = World(harness, tmp_path / "cursors")
    assert "overwrites" in str(raised(world.faulty.create, TargetError))


def test_what_a_commit_names_is_on_disk_before_it(
    harness: FolderHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder: with the power off the cursor, which is forced, would know of more."""
    forced: list[Path] = []
    monkeypatch.setattr(objects, "force", forced.append)
    with a_world(harness, tmp_path / "cursors") as world:
        change(world, 1)
        table = tmp_path / "lake" / "t"
        commits = [place for place, file in enumerate(forced) if file.suffix == ".json"]
        assert [forced[place] for place in commits] == sorted(table.glob("_delta_log/*.json"))
        assert forced[commits[-1] + 1] == table / "_delta_log"
        names = {Path(uri).name for uri in harness.table(world.target()).file_uris()}
        assert {table, *(table / name for name in names)} <= set(forced[: commits[-1]])


def test_a_folder_is_for_those_who_may_list_it(harness: FolderHarness, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with private_files(), a_world(harness, tmp_path / "cursors") as world:
            for number in range(101):
                change(world, number)
            world.faulty.maintain(thorough=True)
    finally:
        os.umask(before)
    table = tmp_path / "lake" / "t"
    assert list(table.glob("_delta_log/*.checkpoint.parquet"))
    there = [table, *table.rglob("*")]
    assert {oct(one.stat().st_mode & 0o777) for one in there if one.is_dir()} == {"0o755"}
    assert {oct(one.stat().st_mode & 0o777) for one in there if one.is_file()} == {"0o644"}


def test_settings_that_are_refused() -> None:
    for secret in ("aws_secret_access_key", "azure_storage_sas_key", "master_key"):
        with pytest.raises(ValidationError, match=r"not the secret itself"):
            DeltaSettings(type="delta", path="s3://b", options={secret: "plain"})
    for name in ("a/b", "_hidden", ".hidden", ""):
        settings = DeltaSettings(type="delta", path="lake", table=name or "x y")
        target = FollowerTarget("v", "s", schema_of([("k", "int")]), settings, "o")
        raised(DeltaFollower(target).check, UserError)
    key = schema_of([("k", "array<int>")])
    settings = DeltaSettings(type="delta", path="lake")
    raised(DeltaFollower(FollowerTarget("v", "s", key, settings, "o")).check, UserError)
