"""Iceberg as a sink: the contract, read by pyiceberg from the catalog anew, and what is its own."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mview_connectors.followers.iceberg import compaction
from mview_connectors.followers.iceberg import keys as places
from mview_connectors.followers.iceberg import rows as writing
from mview_connectors.followers.iceberg.follower import IcebergFollower
from mview_connectors.followers.iceberg.index import KeyIndex
from mview_connectors.followers.iceberg.settings import IcebergSettings
from pydantic import ValidationError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual
from pyiceberg.types import LongType, StringType

from mview.errors import ConfigError, FencedError, RetryableError, TargetError, UserError
from mview.follower import Follower, FollowerSettings, FollowerTarget, State, Step
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import World, delta_of, normal, raised, schema_of
from mview.testing.view import Row, rows_of
from tests.connectors.worlds import (
    a_world,
    change,
    is_refused_by_its_writer,
    is_seen_without_a_table,
)


class IcebergHarness(FollowerHarness):
    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options = folder, options

    def settings(self, **options: Any) -> FollowerSettings:
        return IcebergSettings(
            type="iceberg", warehouse=str(self.folder), **{**self.options, **options}
        )

    def open(self, target: FollowerTarget) -> Follower:
        return IcebergFollower(target)

    def catalog(self) -> SqlCatalog:
        self.folder.mkdir(exist_ok=True)
        return SqlCatalog(
            "mview", uri=f"sqlite:///{self.folder}/catalog.db", warehouse=f"file://{self.folder}"
        )

    def table(self, target: FollowerTarget) -> Any:
        with self.catalog() as catalog:
            return catalog.load_table(("default", target.table))

    def read(self, target: FollowerTarget) -> list[Row] | None:
        try:
            table = self.table(target)
        except NoSuchTableError:
            return None
        return rows_of(table.scan().to_arrow().select(list(target.schema.names)))

    def foreign(self, target: FollowerTarget) -> bool:
        with self.catalog() as catalog:
            catalog.create_namespace("default")
            table = catalog.create_table(("default", target.table), target.schema.arrow)
            table.append(target.schema.arrow.empty_table())
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
        return int(self.table(target).inspect.files().num_rows)

    def drop(self, target: FollowerTarget) -> bool:
        with self.catalog() as catalog:
            catalog.drop_table(("default", target.table))
        return True

    @contextmanager
    def lost_answers(self) -> Iterator[None]:
        commit = SqlCatalog.commit_table

        def lost(catalog: SqlCatalog, *args: Any) -> Any:
            commit(catalog, *args)
            raise CommitFailedException("it was sent twice")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SqlCatalog, "commit_table", lost)
            yield


@pytest.mark.days(3)
class TestIceberg(FollowerContract):
    steps, share = 20, 4

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return IcebergHarness(tmp_path / "warehouse")


@pytest.mark.long
class TestIcebergInPartitionsWithoutAnIndex(FollowerContract):
    """Every step searches the files for its keys."""

    steps, share = 20, 8

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        folder = tmp_path / "warehouse"
        return IcebergHarness(folder, partition="bucket(3, k)", index_bytes=1)


# --- what is its own -------------------------------------------------------------------------


@pytest.fixture
def harness(tmp_path: Path) -> IcebergHarness:
    return IcebergHarness(tmp_path / "warehouse")


@pytest.fixture
def world(harness: IcebergHarness, tmp_path: Path) -> Iterator[World]:
    with a_world(harness, tmp_path) as made:
        made.view.publish([made.row(n) for n in range(6)])
        made.sync()
        yield made


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.metadata.metrics.default", "none-such"),
        ("write.avro.compression-codec", "ZSTD"),
    ],
)
def test_a_value_that_no_property_has_names_the_properties(
    harness: IcebergHarness, tmp_path: Path, name: str, value: str
) -> None:
    is_refused_by_its_writer(harness, tmp_path, name, value)


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("write.parquet.compression-codec", "none-such", "brotli"),
        ("write.parquet.compression-codec", "none", "uncompressed"),
        ("write.avro.compression-codec", "uncompressed", "null"),
        ("write.metadata.previous-versions-max", "many", "7"),
        ("write.parquet.compression-level", "-1", "3"),
        ("write.metadata.delete-after-commit.enabled", "yes", "False"),
    ],
)
def test_a_value_that_no_property_has_is_seen_without_a_table(
    harness: IcebergHarness, tmp_path: Path, name: str, bad: str, good: str
) -> None:
    is_seen_without_a_table(harness, tmp_path, name, bad, good)


@pytest.mark.parametrize(("enabled", "kept"), [("true", 3), ("false", 7)])
def test_metadata_files_stay_where_the_table_says_so(
    harness: IcebergHarness, tmp_path: Path, enabled: str, kept: int
) -> None:
    properties = {
        "write.metadata.delete-after-commit.enabled": enabled,
        "write.metadata.previous-versions-max": "2",
    }
    with a_world(harness, tmp_path, properties=properties) as world:
        for number in range(5):
            world.view.publish([world.row(number)])
            world.sync()
        # The table is made, moved on for the runner, then comes one for each commit.
        files = list((harness.folder / "default" / "t" / "metadata").glob("*.metadata.json"))
        assert len(files) == kept


def table_of(world: World) -> Any:
    harness = world.harness
    assert isinstance(harness, IcebergHarness)
    return harness.table(world.target())


def test_a_step_is_one_snapshot_with_the_mark_and_right_totals(world: World) -> None:
    before = len(table_of(world).snapshots())
    change(world, 3)
    table = table_of(world)
    assert len(table.snapshots()) == before + 1
    summary = table.current_snapshot().summary
    assert summary["mview.mark"] == world.faulty.position().to_text()  # type: ignore[union-attr]
    told = {name: int(summary[f"total-{name}"]) for name in ("records", "position-deletes")}
    assert told == {"records": 6 + 2, "position-deletes": 2}
    files = table.inspect.files()
    assert int(summary["total-data-files"]) == files["content"].to_pylist().count(0) == 2
    assert int(summary["total-delete-files"]) == files["content"].to_pylist().count(1) == 1
    assert int(summary["total-files-size"]) == sum(files["file_size_in_bytes"].to_pylist())


def test_older_snapshots_are_what_the_view_was(world: World) -> None:
    known = []
    for number in (1, 3, 5):
        known.append((table_of(world).current_snapshot().snapshot_id, dict(world.view.content)))
        change(world, number)
    for snapshot, content in known:
        rows = rows_of(table_of(world).scan(snapshot_id=snapshot).to_arrow())
        assert normal(rows) == normal(content.values())


def test_of_two_steps_on_one_snapshot_the_second_is_refused(world: World) -> None:
    follower, target = world.faulty.inner, world.target()
    epoch = world.following.cursor.epoch
    tokens = []
    for name in ("a", "b"):
        step = Step(f"step-{name}", world.view.epoch + 1, epoch, 1)
        tokens.append(follower.stage(step, delta_of(target, [(None, world.row(50))])))
    follower.commit(tokens[0])
    error = raised(lambda: follower.commit(tokens[1]), RetryableError)
    assert isinstance(error.__cause__, CommitFailedException)
    assert (
        follower.state(Step("step-b", world.view.epoch + 1, epoch, 1), tokens[1]) is State.UNKNOWN
    )
    assert len(world.harness.read(target) or ()) == 7


def test_an_aborted_step_leaves_no_file(world: World, harness: IcebergHarness) -> None:
    def files() -> set[Path]:
        return {one for one in harness.folder.rglob("*") if one.is_file()}

    before = files()
    follower, step = world.faulty.inner, Step("step-a", 90, world.following.cursor.epoch, 2)
    changes = [(world.row(1), None), (None, world.row(50))]
    token = follower.stage(step, delta_of(world.target(), changes))
    assert len(files() - before) == 5  # rows, positions, a manifest of each, the manifest list
    follower.abort(step, token)
    assert files() == before


def test_a_table_that_was_rolled_back_goes_on_from_there(world: World) -> None:
    snapshot = table_of(world).current_snapshot().snapshot_id
    change(world, 2)
    change(world, 4)
    table_of(world).manage_snapshots().rollback_to_snapshot(snapshot).commit()
    world.start()
    change(world, 5)
    world.check()


def test_a_warehouse_that_was_deleted_with_its_catalog_is_made_anew(
    world: World, harness: IcebergHarness
) -> None:
    """Whoever has the deleted SQLite file open goes on to see the table that it names."""
    shutil.rmtree(harness.folder)
    world.view.publish([world.row(60)])
    raised(world.sync, TargetError)
    world.sync()
    world.check()


def test_a_table_whose_files_are_gone_is_told_with_what_to_do(
    world: World, harness: IcebergHarness
) -> None:
    shutil.rmtree(harness.folder / "default")
    world.start()
    assert "Drop what is left of it" in str(raised(world.sync, TargetError))
    harness.drop(world.target())
    world.start()
    change(world, 2)
    world.check()


def test_the_orm_is_whole_before_any_thread_of_a_sink_begins() -> None:
    """Else a changelog that was read meanwhile ended the run with an error of an import."""
    code = (
        "import sys; from mview.connector import load; load('followers', 'iceberg'); "
        "sys.exit('sqlalchemy.orm' not in sys.modules or 'pyiceberg' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rows_that_somebody_else_has_added_go(world: World) -> None:
    table = table_of(world)
    table.append(pa.Table.from_pylist([{"k": 777}], schema=table.schema().as_arrow()))
    world.start()
    change(world, 2)
    world.check()
    table_of(world).delete(EqualTo("k", 3))
    # Met by a runner that has not noticed: its step is refused, then all rows are brought.
    world.view.publish([world.row(60)])
    raised(world.sync, RetryableError)
    world.sync()
    world.check()


def test_a_table_without_a_row_that_its_mark_stands_for_is_not_touched(world: World) -> None:
    follower, step = world.faulty.inner, Step("step-a", 90, world.following.cursor.epoch, 1)
    gone = delta_of(world.target(), [(world.row(99), None)])
    assert "drop the table" in str(raised(lambda: follower.stage(step, gone), TargetError))
    world.check()


def test_keys_of_one_hash_are_told_apart(
    harness: IcebergHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few(columns: list[pa.ChunkedArray]) -> Any:
        return np.array([len(str(value)) % 2 for value in columns[0].to_pylist()], np.int64)

    for module in (places, writing):
        monkeypatch.setattr(module, "hash_rows", few)
    schema = schema_of([("k", "string"), ("v", "int")])
    for is_new in (False, True):
        with a_world(harness, tmp_path / f"{is_new}", schema, table=f"t{is_new}") as world:
            world.view.publish([(f"{n:>{n % 5}}", n) for n in range(40)])
            world.sync()
            for number in range(4):
                keys = list(world.view.content)
                put = [(key, -number) for (key,) in keys[number : number + 9]]
                world.view.publish([*put, (f"new {number}", number)], keys[-3:-1])
                if is_new:
                    world.start()
                world.sync()
                world.check()


def test_the_index_is_bounded_and_made_anew(harness: IcebergHarness, tmp_path: Path) -> None:
    for number, limit in enumerate((16 * 3000, 16 * 1000)):
        options = {"table": f"t{number}", "index_bytes": limit}
        with a_world(harness, tmp_path / f"{number}", **options) as world:
            world.view.publish([world.row(n) for n in range(2000)])
            world.sync()
            for at in range(10):
                world.view.publish([world.row(n, f"{at}") for n in range(at, 2000, 7)])
                if at % 3 == 0:
                    world.start()
                world.sync()
                follower = world.faulty.inner
                assert isinstance(follower, IcebergFollower)
                assert follower._keys is not None
                assert 0 <= follower._keys.nbytes <= limit
                assert (follower._keys.nbytes > 0) == (number == 0)
            world.check()


def test_an_index_finds_what_is_there() -> None:
    chance, index = np.random.default_rng(7), KeyIndex()
    there: dict[int, tuple[str, int]] = {}
    for number in range(300):
        gone = np.array(list(there)[: int(chance.integers(0, 5))], np.int64)
        if len(gone):
            numbers, rows = index.find(gone)
            assert numbers.tolist() == list(range(len(gone)))
            found = [(file, at) for file, part in index.places(rows) for at in part.tolist()]
            assert sorted(found) == sorted(there.pop(int(one)) for one in gone)
            index.remove(gone, rows)
        size = int(chance.integers(0, 20))
        hashes = chance.integers(-(2**62), 2**62, size)
        index.add(f"file {number}", size, np.arange(size), hashes)
        there |= {int(one): (f"file {number}", at) for at, one in enumerate(hashes)}
        assert len(index) == len(there)
        if number % 100 == 0:
            index.pack()
            assert index.nbytes == 16 * len(there)
    assert index.nbytes <= 16 * 3 * len(there)
    assert not len(index.find(np.array([1, 2, 3]))[0])


# --- partitions ------------------------------------------------------------------------------

_TIMES = (0, -1, 1_700_000_000_123_456, -62_135_596_800_000_000, 253_402_300_799_999_999, None)

PARTITIONS = [
    ("v", "string", ("a", "b/c ?#%", "", None, "ä", "long " * 60)),
    ("v", "date", (dt.date(1969, 12, 31), dt.date(2024, 2, 29), None)),
    ("v", "decimal(12,2)", (Decimal("-1.50"), Decimal(3), None)),
    ("v", "boolean", (True, False, None)),
    ("v", "timestamp", _TIMES),
    ("bucket(4, v)", "string", ("a", "b", "", None)),
    ("bucket(4, v)", "timestamp", _TIMES),
    ("bucket(4, v)", "decimal(12,2)", (Decimal("-1.50"), Decimal(3), None)),
    ("bucket(4, v)", "binary", (b"", b"\xff", None)),
    ("bucket(4, v)", "date", (dt.date(1969, 12, 31), None)),
    ("bucket(4, v)", "smallint", (-5, 7, None)),
    ("truncate(3, v)", "string", ("abcdef", "abc", "äöüß", None)),
    ("truncate(10, v)", "bigint", (-1, 0, 15, None)),
    ("truncate(10, v)", "decimal(12,2)", (Decimal("-1.53"), Decimal(3), None)),
    *((f"{unit}(v)", "timestamp", _TIMES) for unit in ("year", "months", "day", "hours")),
    *((f"{unit}(v)", "timestamp_ntz", _TIMES) for unit in ("years", "month", "days", "hour")),
    *((f"{unit}(v)", "date", (dt.date(1969, 12, 31), None)) for unit in ("year", "month", "day")),
]


@pytest.mark.parametrize(("partition", "kind", "values"), PARTITIONS)
def test_partitions(
    harness: IcebergHarness, tmp_path: Path, partition: str, kind: str, values: tuple[Any, ...]
) -> None:
    schema = schema_of([("k", "bigint"), ("v", kind)])
    with a_world(harness, tmp_path, schema, partition=partition) as world:
        world.view.publish([(n, values[n % len(values)]) for n in range(20)])
        world.sync()
        # Rows that move from one partition to another one.
        world.view.publish([(n, values[(n + 1) % len(values)]) for n in range(10)], [(11,), (12,)])
        world.sync()
        world.check()
        table = table_of(world)
        field, source = table.spec().fields[0], table.schema().find_field("v").field_type
        call = field.transform.transform(source)
        for task in table.scan().plan_files():
            rows = harness_rows(table, task.file)
            assert {call(value) for value in rows} == {task.file.partition[0]}
        for one in {value for value in values if value is not None}:
            told = pa.scalar(one, schema.column("v").type).as_py() if kind != "timestamp" else None
            if told is not None and kind != "timestamp_ntz":
                found = table.scan(row_filter=EqualTo("v", told)).to_arrow()
                expected = [row for row in world.view.content.values() if row[1] == one]
                assert normal(rows_of(found)) == normal(expected)


def harness_rows(table: Any, file: Any) -> list[Any]:
    """The values of `v` in a data file, also those of rows that are gone."""
    import pyarrow.parquet as pq

    with table.io.new_input(file.file_path).open() as stream:
        column = pq.read_table(stream)["v"]
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    return list(
        column.cast(pa.int32()).to_pylist() if pa.types.is_date(column.type) else column.to_pylist()
    )


def test_several_partition_fields(harness: IcebergHarness, tmp_path: Path) -> None:
    fields = "day(at), bucket(2, k), g"
    with a_world(harness, tmp_path, partition=fields) as world:
        rows = [(n, "xy"[n % 2], Decimal(n), (n % 3) * 86_400_000_000) for n in range(30)]
        world.view.publish(rows)
        world.sync()
        world.view.publish([(n, "z", Decimal(n), 0) for n in range(0, 30, 4)], [(1,), (2,)])
        world.sync()
        world.check()
        table = table_of(world)
        since = GreaterThanOrEqual("at", "1970-01-02T00:00:00+00:00")
        parts = {task.file.partition[0] for task in table.scan(row_filter=since).plan_files()}
        assert parts == {1, 2}


@pytest.mark.parametrize(
    ("partition", "kind"),
    [
        ("nothing", "int"),
        ("bucket(0, v)", "int"),
        ("bucket(4, w)", "int"),
        ("v, v", "int"),
        ("bucket(4, v), bucket(8, v)", "int"),
        ("day(v)", "int"),
        ("truncate(3, v)", "date"),
        ("hour(v)", "date"),
        ("day(v)", "string"),
        ("v", "double"),
        ("v", "array<int>"),
    ],
)
def test_partitions_that_are_none_are_refused(
    harness: IcebergHarness, tmp_path: Path, partition: str, kind: str
) -> None:
    schema = schema_of([("k", "bigint"), ("v", kind)])
    with a_world(harness, tmp_path, schema, partition=partition) as world:
        world.view.publish([(1, None)])
        error = raised(world.sync, UserError)
        assert partition in str(error) or "column v" in str(error) or "partition" in str(error)


# --- other modes, settings -------------------------------------------------------------------


def test_rows_are_appended(harness: IcebergHarness, tmp_path: Path) -> None:
    with a_world(harness, tmp_path, mode="append") as world:
        for number in range(2):
            world.view.publish([world.row(number)])
            world.sync()
        summary = table_of(world).current_snapshot().summary
        assert summary.operation.value == "append"


def test_lists_in_a_key_are_refused(harness: IcebergHarness, tmp_path: Path) -> None:
    schema = schema_of([("k", "array<int>"), ("v", "int")])
    with a_world(harness, tmp_path, schema) as world:
        assert "column k" in str(raised(world.faulty.check, UserError))


def test_secrets_are_references_and_are_not_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for catalog in (
        {"type": "rest", "uri": "http://localhost:1", "token": "very-secret"},
        {"type": "sql", "uri": "postgresql://me:very-secret@localhost/db"},
        {"s3.secret-access-key": "very-secret"},
        {"adls.connection-string": "AccountName=a;AccountKey=very-secret"},
    ):
        told = raised(
            lambda given=catalog: IcebergSettings(type="iceberg", catalog=given), ValidationError
        )
        assert "${env:" in str(told)
    monkeypatch.setenv("ICEBERG_TOKEN", "very-secret")
    catalog = {
        "type": "rest",
        "uri": "http://127.0.0.1:1/very-secret",
        "token": "${env:ICEBERG_TOKEN}",
        "s3.access-key-id": "who-asks",
    }
    settings = IcebergSettings(type="iceberg", catalog=catalog)
    assert "very-secret" not in repr(settings)
    target = FollowerTarget("v", "s", schema_of([("k", "int")]), settings, "o", 1)
    follower = IcebergFollower(target)
    error = raised(follower.create, RetryableError)
    assert "very-secret" not in str(error)
    follower.close()


@pytest.mark.parametrize("name", ["a?b", "a#b"])
def test_a_place_that_urls_end_at_is_refused(
    harness: IcebergHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def chosen(*_: Any) -> str:
        return f"file://{harness.folder}/{name}"

    monkeypatch.setattr(IcebergFollower, "_location", chosen)
    with a_world(harness, tmp_path, table=name) as world:
        error = raised(world.faulty.create, ConfigError)
        assert "another name" in str(error)
        assert world.faulty.position() is None


def test_a_warehouse_is_needed() -> None:
    target = FollowerTarget(
        "v", "s", schema_of([("k", "int")]), IcebergSettings(type="iceberg"), "o", 1
    )
    raised(IcebergFollower(target).check, ConfigError)


# --- maintenance -----------------------------------------------------------------------------


def test_maintenance_keeps_the_rows_and_the_mark(harness: IcebergHarness, tmp_path: Path) -> None:
    for number, partition in enumerate(("", "bucket(2, k)")):
        options = {"table": f"t{number}", "partition": partition, "history": "1h"}
        with a_world(harness, tmp_path / f"{number}", **options) as world:
            world.view.publish([world.row(n) for n in range(200)])
            world.sync()
            for at in range(1, 25):
                change(world, at * 3)
            mark, files = world.faulty.position(), table_of(world).inspect.files().num_rows
            old = table_of(world).current_snapshot()
            world.faulty.maintain(thorough=True)
            world.check()
            table = table_of(world)
            assert table.inspect.files().num_rows < files / 4
            assert len(table.current_snapshot().manifests(table.io)) <= 4
            assert table.current_snapshot().summary.operation.value == "replace"
            assert world.faulty.position() == mark
            rows = rows_of(table.scan(snapshot_id=old.snapshot_id).to_arrow())
            assert normal(rows) == normal(world.view.content.values())
            change(world, 100)
            world.check()
            world.start()
            change(world, 110)
            world.check()


def test_old_snapshots_and_their_files_go(harness: IcebergHarness, tmp_path: Path) -> None:
    with a_world(harness, tmp_path, history="0s") as world:
        world.view.publish([world.row(n) for n in range(200)])
        world.sync()
        for at in range(1, 25):
            change(world, at * 3)
        tagged = table_of(world).current_snapshot().snapshot_id
        table_of(world).manage_snapshots().create_tag(tagged, "kept").commit()
        before = list(world.view.content.values())
        change(world, 100)
        time.sleep(0.01)
        world.faulty.maintain(thorough=True)
        world.check()
        table = table_of(world)
        assert {one.snapshot_id for one in table.snapshots()} == {
            tagged,
            table.current_snapshot().snapshot_id,
        }
        assert normal(rows_of(table.scan(snapshot_id=tagged).to_arrow())) == normal(before)
        table.manage_snapshots().remove_tag("kept").commit()
        change(world, 101)
        world.faulty.maintain(thorough=True)
        change(world, 103)
        time.sleep(0.01)
        world.faulty.maintain(thorough=True)
        world.check()
        table = table_of(world)
        used = {Path(path) for path in table.inspect.files()["file_path"].to_pylist()}
        there = {one.name for one in harness.folder.rglob("*.parquet")}
        assert there == {one.name for one in used}
        assert len(list(harness.folder.rglob("*.metadata.json"))) <= 22


def test_maintenance_by_an_older_runner_is_refused(world: World) -> None:
    older = world.faulty.inner
    newer = world.harness.open(world.target(world.fence + 1))
    newer.create()
    raised(lambda: older.maintain(thorough=True), FencedError)
    newer.close()


def test_maintenance_begins_again_where_a_step_came_between(
    world: World, harness: IcebergHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        world.view.publish([world.row(number, "b")])
        world.sync()
    files = harness.pieces(world.target())
    compacted, met = compaction.compacted, iter([True, True, False])

    def meeting(*args: Any) -> Any:
        found = compacted(*args)
        if next(met):
            there = set(harness.folder.rglob("*.parquet"))
            world.view.publish([world.row(1, f"{len(there)}")])
            world.sync()
        return found

    monkeypatch.setattr(compaction, "compacted", meeting)
    monkeypatch.setattr(compaction, "_BITE_BYTES", 1 << 40)
    other = harness.open(world.target())
    done = other.maintain(thorough=True)
    other.close()
    assert done["files_replaced"] >= 14 > done["files_written"]
    assert harness.pieces(world.target()) < files
    world.check()
    # What the tries in between had written is gone.
    used = {
        Path(path).name for path in table_of(world).inspect.all_files()["file_path"].to_pylist()
    }
    assert {one.name for one in harness.folder.rglob("*.parquet")} == used


def test_maintenance_takes_bites(
    world: World, harness: IcebergHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_BITE_BYTES", 4_000)
    for number in range(20):
        world.view.publish([world.row(100 + number, "b")])
        world.sync()
    before = harness.pieces(world.target())
    few = world.faulty.maintain(thorough=False)
    assert 0 < few["files_replaced"] < 20
    snapshots = len(table_of(world).snapshots())
    world.faulty.maintain(thorough=True)
    assert len(table_of(world).snapshots()) > snapshots + 1
    assert harness.pieces(world.target()) < before / 2
    assert world.faulty.maintain(thorough=True) == {}
    world.check()


def test_a_reader_whose_files_are_gone_is_to_read_again(
    harness: IcebergHarness, tmp_path: Path
) -> None:
    """But where the table itself has lost them, it is to be dropped."""
    with a_world(harness, tmp_path / "cursors") as world:
        world.view.publish([world.row(number) for number in range(40)])
        world.sync()
        follower = harness.open(world.target())
        rows = follower.read()
        before = set(harness.folder.rglob("*.parquet"))
        world.view.publish([world.row(50)])
        world.forget()
        world.sync()
        for file in before:
            file.unlink()
        told = raised(rows.read_all, RetryableError)
        assert "has changed while it was read" in str(told)
        world.check()
        rows = follower.read()
        for file in harness.folder.rglob("*.parquet"):
            file.unlink()
        assert "Drop what is left of it" in str(raised(rows.read_all, TargetError))
        follower.close()


def _drop_a_column(table: Any) -> None:
    with table.update_schema() as change:
        change.delete_column("g")


def _rename_a_column(table: Any) -> None:
    with table.update_schema() as change:
        change.rename_column("g", "w")


def _add_a_column(table: Any) -> None:
    with table.update_schema() as change:
        change.add_column("more", StringType())


def _drop_and_add_a_column(table: Any) -> None:
    _drop_a_column(table)
    with table.update_schema() as change:
        change.add_column("g", StringType())


@pytest.mark.parametrize(
    "act", [_drop_a_column, _rename_a_column, _add_a_column, _drop_and_add_a_column]
)
def test_columns_that_somebody_has_changed_are_told(
    harness: IcebergHarness, tmp_path: Path, act: Callable[[Any], None]
) -> None:
    """Rows would be written where nobody reads them; a column of the same name is another one."""
    with a_world(harness, tmp_path / "cursors") as world:
        world.view.publish([world.row(number) for number in range(40)])
        world.sync()
        with harness.catalog() as catalog:
            act(catalog.load_table(("default", "t")))
        world.start()
        world.view.publish([world.row(50)])
        there = set(harness.folder.rglob("*.parquet"))
        maintain = harness.open(world.target())
        for call in (
            world.sync,
            maintain.probe,
            maintain.read,
            partial(maintain.maintain, thorough=True),
        ):
            told = str(raised(call, TargetError))
            assert "somebody has changed the columns of the table t" in told
            assert "drop the table there" in told
        maintain.close()
        assert set(harness.folder.rglob("*.parquet")) == there
        harness.drop(world.target())
        world.sync()
        world.check()


def test_wider_types_another_order_and_partition_are_taken_in(
    harness: IcebergHarness, tmp_path: Path
) -> None:
    schema = schema_of([("k", "bigint"), ("n", "int")])
    with a_world(harness, tmp_path / "cursors", schema) as world:
        world.view.publish([(number, number) for number in range(40)])
        world.sync()
        with harness.catalog() as catalog:
            table = catalog.load_table(("default", "t"))
            with table.update_schema() as change:
                change.update_column("n", LongType())
                change.move_first("n")
            with table.update_spec() as spec:
                spec.add_identity("n")
        world.start()
        world.view.publish([(3, 4), (50, 50)], [(7,)])
        world.sync()
        world.check()


def test_what_is_staged_is_staged_again_where_others_have_made_a_branch(
    harness: IcebergHarness, tmp_path: Path
) -> None:
    """The main branch is where it was, and the catalog would refuse the commit for ever."""
    with a_world(harness, tmp_path / "cursors") as world:
        world.view.publish([world.row(number) for number in range(40)])
        world.sync()
        table = harness.table(world.target())
        name = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(name, "theirs").commit()
        table.append(table.scan(limit=1).to_arrow(), branch="theirs")
        world.view.publish([world.row(50)])
        raised(world.sync, RetryableError)
        world.sync()
        world.check()
        assert harness.table(world.target()).scan().use_ref("theirs").to_arrow().num_rows == 41


def test_a_table_whose_properties_are_gone_is_made_anew(
    harness: IcebergHarness, tmp_path: Path
) -> None:
    with a_world(harness, tmp_path / "cursors") as world:
        world.view.publish([world.row(number) for number in range(40)])
        world.sync()
        table = harness.table(world.target())
        with table.transaction() as change:
            change.remove_properties("mview.columns")
        world.start()
        world.view.publish([world.row(50)])
        world.sync()
        world.check()
        with harness.table(world.target()).transaction() as change:
            change.remove_properties("mview.owner")
        told = raised(partial(world.faulty.maintain, thorough=True), TargetError)
        assert "mview has not made" in str(told)
