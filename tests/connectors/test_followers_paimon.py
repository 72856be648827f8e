"""Paimon as a sink: the contract, read by Paimon's own Java reader, and what is its own."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mview_connectors.followers.paimon.environment import interpreter
from mview_connectors.followers.paimon.follower import PaimonFollower, command
from mview_connectors.followers.paimon.settings import _FORMS, PaimonSettings
from pydantic import ValidationError

from mview.errors import ConfigError, FencedError, RetryableError, TargetError, UserError
from mview.follow.following import delta_schema, rows_schema
from mview.follower import Follower, FollowerSettings, FollowerTarget, State, Step
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import VALUES, World, delta_of, raised, schema_of
from mview.testing.view import Row
from tests.connectors.test_followers_refused import Refusing
from tests.connectors.worker_followers import WorkerFollowerContract, WorkerHarness
from tests.connectors.worlds import (
    a_world,
    change,
    is_refused_by_its_writer,
    is_seen_without_a_table,
)
from tests.seeds import of_today
from tests.services.paimon import PaimonReader

pytestmark = [pytest.mark.service, pytest.mark.days(4)]


class PaimonHarness(WorkerHarness):
    def __init__(self, folder: Path, reader: PaimonReader, **options: Any) -> None:
        self.folder, self.reader, self.options = folder, reader, options

    def settings(self, **options: Any) -> FollowerSettings:
        return PaimonSettings(
            type="paimon", warehouse=str(self.folder), **{**self.options, **options}
        )

    def open(self, target: FollowerTarget) -> Follower:
        return PaimonFollower(target)

    def place(self, target: FollowerTarget) -> Path:
        return self.folder / "default.db" / target.table

    def read(self, target: FollowerTarget) -> list[Row] | None:
        return self.reader.read(self.folder, "default", target.table, target.schema.arrow)

    def foreign(self, target: FollowerTarget) -> bool:
        other = PaimonFollower(target)
        schema = base64.b64encode(target.schema.arrow.serialize()).decode()
        other._call("make", schema=schema, key=["k"], options={"bucket": "1"}, comment="")
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
        return self.reader.files(self.folder, "default", target.table)

    def drop(self, target: FollowerTarget) -> bool:
        shutil.rmtree(self.place(target))
        return True

    def files(self, target: FollowerTarget) -> set[Path]:
        return set(self.place(target).glob("bucket-*/*"))


class TestPaimon(WorkerFollowerContract, FollowerContract):
    steps, share = 20, 4

    @pytest.fixture
    def harness(self, tmp_path: Path, paimon_reader: PaimonReader) -> FollowerHarness:
        return PaimonHarness(tmp_path / "warehouse", paimon_reader)


@pytest.mark.long
class TestPaimonInBuckets(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture
    def harness(self, tmp_path: Path, paimon_reader: PaimonReader) -> FollowerHarness:
        return PaimonHarness(tmp_path / "warehouse", paimon_reader, buckets=3)


# --- what is its own -------------------------------------------------------------------------


@pytest.fixture
def harness(tmp_path: Path, paimon_reader: PaimonReader) -> PaimonHarness:
    return PaimonHarness(tmp_path / "warehouse", paimon_reader)


@pytest.fixture
def world(harness: PaimonHarness, tmp_path: Path) -> Iterator[World]:
    with a_world(harness, tmp_path) as made:
        made.view.publish([made.row(n) for n in range(6)])
        made.sync()
        yield made


def place_of(world: World) -> Path:
    harness = world.harness
    assert isinstance(harness, PaimonHarness)
    return harness.place(world.target())


def snapshots(world: World) -> list[dict[str, Any]]:
    """The snapshots as they lie there, the oldest first."""
    files = (place_of(world) / "snapshot").glob("snapshot-*")
    return [
        json.loads(file.read_text()) for file in sorted(files, key=lambda one: int(one.name[9:]))
    ]


def files_of(world: World, folder: str = "bucket-*") -> set[Path]:
    return set(place_of(world).glob(f"{folder}/*"))


def by_others(world: World, program: str) -> None:
    """Run a program of pypaimon's with the table as `t`, as somebody else would."""
    place = place_of(world)
    begin = (
        "import pyarrow as pa; from pypaimon import CatalogFactory\n"
        f"c = CatalogFactory.create({{'warehouse': {str(place.parent.parent)!r}}})\n"
        f"t = c.get_table('default.{place.name}')\n"
    )
    subprocess.run([interpreter(), "-I", "-c", begin + program], check=True)


ADD_A_ROW = """
b = t.new_batch_write_builder(); w = b.new_write(); c = b.new_commit()
schema = pa.schema([("k", pa.int64(), False), ("g", pa.string()),
    ("amount", pa.decimal128(12, 2)), ("at", pa.timestamp("us", "UTC"))])
w.write_arrow(pa.Table.from_pylist([{"k": 777}], schema=schema))
c.commit(w.prepare_commit()); w.close(); c.close()
"""


def test_a_step_is_one_snapshot_with_the_mark(world: World) -> None:
    before = len(snapshots(world))
    change(world, 3)
    after = snapshots(world)
    assert len(after) == before + 1
    newest = after[-1]
    mark = world.faulty.position()
    assert mark is not None
    assert newest["properties"]["mview.mark"] == mark.to_text()
    assert newest["commitIdentifier"] == mark.epoch == world.view.epoch
    assert newest["commitUser"] == "store/v/s"
    assert newest["deltaRecordCount"] == 3
    options = json.loads((place_of(world) / "schema" / "schema-0").read_text())
    assert options["primaryKeys"] == ["k"]
    assert options["options"]["bucket"] == "1"
    # Readers see the view's columns and no other.
    assert [field["name"] for field in options["fields"]] == list(world.schema.names)


def test_a_table_that_was_rolled_back_goes_on_from_there(world: World) -> None:
    snapshot = snapshots(world)[-1]["id"]
    change(world, 2)
    change(world, 4)
    by_others(world, f"t.rollback_to({snapshot})")
    world.start()
    change(world, 5)
    world.check()


def test_rows_that_somebody_else_has_added_go(world: World) -> None:
    by_others(world, ADD_A_ROW)
    assert len(world.harness.read(world.target()) or ()) == 7
    # Met by a runner that has not noticed: its step is refused, then all rows are brought.
    world.view.publish([world.row(60)])
    raised(world.sync, TargetError)
    world.sync()
    world.check()
    by_others(world, ADD_A_ROW)
    world.start()
    change(world, 2)
    world.check()


@pytest.mark.parametrize(
    "changes",
    [
        "SchemaChange.drop_column('g')",
        "SchemaChange.rename_column('g', 'h')",
        "SchemaChange.add_column('more', AtomicType('STRING'))",
        "SchemaChange.drop_column('g'), SchemaChange.add_column('g', AtomicType('STRING'))",
    ],
    ids=["dropped", "renamed", "added", "anew"],
)
def test_columns_that_somebody_has_changed_are_told(world: World, changes: str) -> None:
    """Rows would be written without what readers see; one of the same name is another column."""
    by_others(
        world,
        "from pypaimon.schema.schema_change import SchemaChange\n"
        "from pypaimon.schema.data_types import AtomicType\n"
        f"for change in [{changes}]: c.alter_table(t.identifier, [change])\n",
    )
    world.view.publish([world.row(50)])
    before = snapshots(world)
    for call in (world.sync, world.sync, world.faulty.read):
        told = str(raised(call, TargetError))
        assert "somebody has changed the columns of the table t" in told
        assert "drop the table there" in told
    assert snapshots(world) == before
    world.start()
    raised(world.sync, TargetError)
    assert world.harness.drop(world.target())
    world.sync()
    world.check()


def test_another_number_of_buckets_by_somebody_is_told(world: World) -> None:
    """No reader could read the table after the next step."""
    set_buckets = (
        "from pypaimon.schema.schema_change import SchemaChange\n"
        "c.alter_table(t.identifier, [SchemaChange.set_option('bucket', '{}')])\n"
    )
    by_others(world, set_buckets.format(3))
    before = snapshots(world)
    world.view.publish([world.row(50)])
    for call in (world.sync, world.sync, world.faulty.read):
        told = str(raised(call, TargetError))
        assert "bucket = 3" in told
        assert "bucket = 1" in told
    assert snapshots(world) == before
    world.start()
    raised(world.sync, TargetError)
    by_others(world, set_buckets.format(1))
    world.sync()
    world.check()


def test_options_that_somebody_has_changed_are_taken_in(world: World) -> None:
    by_others(
        world,
        "from pypaimon.schema.schema_change import SchemaChange\n"
        "change = SchemaChange.set_option('snapshot.num-retained.min', '5')\n"
        "c.alter_table(t.identifier, [change])\n",
    )
    world.start()
    change(world, 2)
    world.check()


def test_compaction_between_a_step_and_its_commit(world: World) -> None:
    for number in range(1, 9):
        change(world, number)
    follower, target = world.faulty.inner, world.target()
    epoch = world.following.cursor.epoch
    step = Step("step-a", world.view.epoch + 1, epoch, 2)
    changes = [(world.row(105), None), (world.row(108), world.row(108, "new"))]
    token = follower.stage(step, delta_of(target, changes))
    other = world.harness.open(target)
    other.maintain(thorough=False)
    other.close()
    assert snapshots(world)[-1]["commitKind"] == "COMPACT"
    assert follower.state(step, token) is State.PREPARED
    follower.commit(token)
    rows = {row[0]: row[1] for row in world.harness.read(target) or ()}
    assert 105 not in rows
    assert rows[108] == "new"


KEYS = [kind for kind in VALUES if kind not in ("float", "double") and "array" not in kind]


@pytest.mark.parametrize("kind", of_today(KEYS, 3))
def test_keys_of_every_type_are_where_paimon_looks_for_them(
    harness: PaimonHarness, tmp_path: Path, kind: str
) -> None:
    """In their buckets, which the reader checks, sorted as it merges them, also when compacted."""
    schema = schema_of([("k", kind), ("v", "int")])
    with a_world(harness, tmp_path, schema, buckets=3) as world:
        values = VALUES[kind]
        world.view.publish([(value, 0) for value in values])
        world.sync()
        for number in range(1, 7):
            world.view.publish([(values[-1], number)], [(values[0],)] if number == 3 else [])
            world.sync()
        world.check()
        world.faulty.maintain(thorough=True)
        assert snapshots(world)[-1]["commitKind"] == "COMPACT"
        world.view.publish([(value, 9) for value in values[::2]])
        world.sync()
        world.check()


# --- settings --------------------------------------------------------------------------------


def follower_of(columns: Any, key: Sequence[str] = ("k",), **options: Any) -> PaimonFollower:
    settings = PaimonSettings(type="paimon", **{"warehouse": "/nowhere", **options})
    return PaimonFollower(FollowerTarget("v", "s", schema_of(columns, key), settings, "o", 1))


def test_what_paimon_cannot_have_is_refused() -> None:
    for columns, told in (
        ([("k", "double"), ("v", "int")], "column k"),
        ([("k", "array<int>"), ("v", "int")], "column k"),
        ([("k", "int"), ("_VALUE_KIND", "int")], "_VALUE_KIND"),
        ([("k", "int"), ("_KEY_k", "int")], "_KEY_k"),
    ):
        assert told in str(raised(follower_of(columns).check, UserError))
    columns = [("k", "int")]
    for options, told in (
        ({"table": "a/b"}, "name"),
        ({"table": "t$snapshots"}, "name"),
        ({"warehouse": None}, "warehouse"),
        ({"properties": {"bucket": "7"}}, "buckets"),
        ({"properties": {"deletion-vectors.enabled": "true"}}, "not to be set"),
        ({"properties": {"deduplicate.ignore-delete": "true"}}, "not to be set"),
        ({"properties": {"path": "/elsewhere"}}, "not to be set"),
    ):
        assert told in str(raised(follower_of(columns, **options).check, ConfigError))
    follower_of(columns, catalog={"warehouse": "s3://x"}, warehouse=None).check()


@pytest.mark.parametrize(
    ("name", "value"), [("target-file-size", "zz"), ("file.compression", "none-such")]
)
def test_a_value_that_no_option_has_names_the_properties(
    harness: PaimonHarness,
    tmp_path: Path,
    name: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here it is seen by its writer alone."""
    monkeypatch.delitem(_FORMS, name)
    is_refused_by_its_writer(harness, tmp_path, name, value)


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("target-file-size", "zz", "64 mb"),
        ("target-file-size", "1 pb", "1GB"),
        ("file.compression", "none-such", "snappy"),
        ("file.compression.zstd-level", "high", "3"),
        ("snapshot.num-retained.min", "all", "2"),
        ("snapshot.time-retained", "long", "2 h"),
        ("write-only", "yes", "true"),
    ],
)
def test_a_value_that_no_option_has_is_seen_without_a_table(
    harness: PaimonHarness, tmp_path: Path, name: str, bad: str, good: str
) -> None:
    is_seen_without_a_table(harness, tmp_path, name, bad, good)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "AccessDenied", "look at the credentials of the storage"),
        (404, "NoSuchBucket", "look at the warehouse: its bucket"),
    ],
)
def test_a_store_that_refuses_is_to_be_looked_at(
    status: int, code: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same would be refused again and again."""
    monkeypatch.setenv("S3_KEY", "very-secret")
    server = Refusing()
    server.status, server.code = status, code
    catalog = {
        "fs.s3.endpoint": server.url,
        "fs.s3.accessKeyId": "${env:S3_KEY}",
        "fs.s3.accessKeySecret": "${env:S3_KEY}",
        "fs.s3.region": "us-east-1",
    }
    follower = follower_of([("k", "int")], warehouse="s3://lake/p", catalog=catalog)
    told = str(raised(follower.create, TargetError))
    follower.close()
    server.stop()
    assert words in told
    assert "very-secret" not in told


def test_without_the_environment_the_command_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVIEW_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"python -m mview_connectors\.followers\.paimon"):
        command()


def test_secrets_are_references_and_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for catalog in (
        {"metastore": "rest", "uri": "http://localhost:1", "token": "very-secret"},
        {"metastore": "jdbc", "uri": "postgresql://me:very-secret@localhost/db"},
    ):
        told = raised(
            lambda given=catalog: PaimonSettings(type="paimon", catalog=given), ValidationError
        )
        assert "${env:" in str(told)
    monkeypatch.setenv("PAIMON_SECRET", "very-secret")
    catalog = {"metastore": "${env:PAIMON_SECRET}"}
    follower = follower_of([("k", "int")], catalog=catalog)
    error = raised(follower.create, RetryableError)
    assert "Unknown catalog" in str(error)
    assert "very-secret" not in str(error)
    follower.close()


# --- maintenance -----------------------------------------------------------------------------


def test_maintenance_keeps_the_rows_and_the_mark(harness: PaimonHarness, tmp_path: Path) -> None:
    with a_world(harness, tmp_path, buckets=2, history="1h") as world:
        world.view.publish([world.row(n) for n in range(200)])
        world.sync()
        for at in range(1, 25):
            change(world, at * 3)
        mark = world.faulty.position()
        rows = sum(one["deltaRecordCount"] for one in snapshots(world))
        assert rows > len(world.view.content)
        world.faulty.maintain(thorough=True)
        world.check()
        newest = snapshots(world)[-1]
        assert newest["commitKind"] == "COMPACT"
        assert newest["totalRecordCount"] == len(world.view.content)
        assert world.faulty.position() == mark
        # Few are no reason to write anything.
        world.faulty.maintain(thorough=True)
        assert snapshots(world)[-1] == newest
        change(world, 100)
        world.check()
        world.start()
        change(world, 110)
        world.check()


@pytest.mark.long
def test_a_large_run_is_not_joined_and_deletes_stay(harness: PaimonHarness, tmp_path: Path) -> None:
    with a_world(harness, tmp_path, compact_bytes=400_000, history="0s") as world:
        world.view.publish([world.row(n, f"{n * 7919 % 5003}") for n in range(8000)])
        world.sync()
        for at in range(1, 8):
            change(world, at * 3)
        # All of it together is less than the limit: one run at the top.
        world.faulty.maintain(thorough=True)
        world.check()
        assert snapshots(world)[-1]["commitKind"] == "COMPACT"
        world.options["compact_bytes"] = 50_000
        world.start()
        total = len(world.view.content)
        for at in range(10, 18):
            change(world, at * 3)
        world.faulty.maintain(thorough=True)
        newest = snapshots(world)[-1]
        assert newest["commitKind"] == "COMPACT"
        assert newest["totalRecordCount"] > total
        world.check()
        for at in range(20, 28):
            change(world, at * 3)
            world.check()


@pytest.mark.long
def test_old_snapshots_and_their_files_go(harness: PaimonHarness, tmp_path: Path) -> None:
    with a_world(harness, tmp_path, history="0s") as world:
        world.view.publish([world.row(n) for n in range(200)])
        world.sync()
        for at in range(1, 12):
            change(world, at * 3)
        by_others(world, "t.create_tag('kept')")
        tagged = len(world.view.content)
        for at in range(12, 15):
            change(world, at * 3)
        time.sleep(0.01)
        world.faulty.maintain(thorough=True)
        world.check()
        assert len(snapshots(world)) == 10
        by_others(
            world,
            "t = t.copy({'scan.tag-name': 'kept'}); b = t.new_read_builder()\n"
            "n = b.new_read().to_arrow(b.new_scan().plan().splits()).num_rows\n"
            f"assert n == {tagged}, n",
        )
        kept = files_of(world)
        tag = json.loads((place_of(world) / "tag" / "tag-kept").read_text())
        by_others(world, "t.delete_tag('kept')")
        for at in range(74, 86):
            change(world, at)
        world.faulty.maintain(thorough=True)
        for at in range(86, 97):
            change(world, at)
        world.faulty.maintain(thorough=True)
        world.check()
        assert not kept & files_of(world)
        # Nothing is there that no snapshot names; what a tag had pypaimon may leave.
        named, of_tag = (
            {one[name] for one in many for name in ("baseManifestList", "deltaManifestList")}
            for many in (snapshots(world), [tag])
        )
        lists = {one.name for one in files_of(world, "manifest") if "-list-" in one.name}
        assert lists - of_tag == named


@pytest.mark.long
def test_a_table_with_branches_keeps_its_snapshots(harness: PaimonHarness, tmp_path: Path) -> None:
    with a_world(harness, tmp_path, history="0s") as world:
        world.view.publish([world.row(1)])
        world.sync()
        by_others(world, "t.create_tag('b'); t.branch_manager().create_branch('b', 'b')")
        for at in range(1, 15):
            change(world, at)
        before = snapshots(world)
        world.faulty.maintain(thorough=True)
        assert [one["id"] for one in snapshots(world)[:-1]] == [one["id"] for one in before]
        world.check()


def test_maintenance_by_an_older_runner_is_refused(world: World) -> None:
    older = world.faulty.inner
    newer = world.harness.open(world.target(world.fence + 1))
    newer.create()
    raised(lambda: older.maintain(thorough=False), FencedError)
    newer.close()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_rows(harness: PaimonHarness, tmp_path: Path) -> None:
    schema = schema_of([("k", "bigint"), ("v", "string")])
    with a_world(harness, tmp_path, schema, buckets=2) as world:
        target, follower = world.target(), world.faulty.inner
        follower.create()
        numbers = np.arange(200_000)

        def reader(kinds: Sequence[str], texts: str) -> pa.RecordBatchReader:
            batches = []
            for begin in range(0, len(numbers), 30_000):
                keys = numbers[begin : begin + 30_000]
                values = pa.array([f"{texts}{key}" for key in keys.tolist()])
                columns = [pa.array(np.repeat(kind, len(keys))) for kind in kinds]
                schema = delta_schema(target) if kinds else rows_schema(target)
                batches.append(pa.record_batch([*columns, pa.array(keys), values], schema))
            return pa.RecordBatchReader.from_batches(schema, batches)

        follower.commit(follower.fill(Step("step-a", 1, None), reader((), "a")))
        follower.commit(follower.stage(Step("step-b", 2, 1, len(numbers)), reader(("+U",), "b")))
        rows = dict(harness.read(target) or ())
        assert len(rows) == len(numbers)
        assert all(value == f"b{key}" for key, value in rows.items())
        numbers = numbers[::2]
        follower.commit(follower.stage(Step("step-c", 3, 2, len(numbers)), reader(("-D",), "b")))
        assert {key for key, _ in harness.read(target) or ()} == set(range(1, 200_000, 2))


def test_rows_after_which_others_cannot_be_read_are_not_all(
    harness: PaimonHarness, tmp_path: Path
) -> None:
    harness.options["buckets"] = 3
    with a_world(harness, tmp_path) as world:
        world.view.publish([world.row(n) for n in range(40)])
        world.sync()
        buckets = sorted({file.parent for file in files_of(world)})
        assert len(buckets) == 3
        (last,) = (file for file in files_of(world) if file.parent == buckets[-1])
        last.write_bytes(b"no rows")
        raised(lambda: world.faulty.read().read_all(), RetryableError)
        assert world.faulty.position() is not None
