from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from mview_connectors.sinks.delta import DeltaSink
from pyspark.sql import SparkSession

from mview.connector import Sink, SinkTarget
from mview.delta import rewrite
from mview.delta.actions import DELETION_VECTORS
from mview.delta.log import DeltaLog
from mview.errors import ConfigError, CorruptionError, TargetError, UserError
from mview.schema import TableSchema
from tests.connectors.sinks_contract import (
    Driver,
    Row,
    SinkContract,
    SinkHarness,
    delta_of,
    random_epochs,
    rows_of,
    view_schema,
)
from tests.seeds import daily


class DeltaHarness(SinkHarness):
    vectors = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.schema: TableSchema | None = None

    def open(self, schema: TableSchema, comment: str | None = None) -> Sink:
        self.schema = schema
        options = {"path": str(self.folder), "deletion_vectors": self.vectors}
        return DeltaSink(SinkTarget("v", schema, "mview/v/1", options, comment))

    def read(self) -> list[list[Row]]:
        if not DeltaTable.is_deltatable(str(self.folder)):
            return []
        table = DeltaTable(self.folder)
        dataset = table.to_pyarrow_dataset()
        assert self.schema is not None
        assert dataset.schema.names == list(self.schema.names)
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone='UTC'")
            by_duckdb = connection.sql("SELECT * FROM dataset").to_arrow_table()
        names = self.schema.names
        return [rows_of(read, names) for read in (dataset.to_table(), by_duckdb)]

    def write_foreign(self, rows: pa.Table) -> None:
        write_deltalake(self.folder, rows, mode="append")


class TestDeltaSink(SinkContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DeltaHarness:
        return DeltaHarness(tmp_path / "a folder" / "v")


class VectorHarness(DeltaHarness):
    """Read by DataFusion: deltalake's Arrow dataset knows no deletion vectors."""

    vectors = True

    def read(self) -> list[list[Row]]:
        if not DeltaTable.is_deltatable(str(self.folder)):
            return []
        assert self.schema is not None
        builder = QueryBuilder().register("v", DeltaTable(self.folder))
        found = pa.table(builder.execute("SELECT * FROM v").read_all())
        assert found.schema.names == list(self.schema.names)
        return [rows_of(found.cast(self.schema.arrow), self.schema.names)]


class TestDeltaSinkWithDeletionVectors(SinkContract):
    # With a low limit files are marked and written anew by turns.
    @pytest.fixture(params=[pytest.param(2048, marks=pytest.mark.long), 4])
    def harness(
        self, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> DeltaHarness:
        monkeypatch.setattr(rewrite, "_MOST_DELETED", request.param)
        return VectorHarness(tmp_path / "a folder" / "v")


def target(folder: Path, schema: TableSchema, **more: Any) -> SinkTarget:
    return SinkTarget("v", schema, "mview/v/1", {"path": str(folder)}, **more)


def test_the_folder_belongs_to_somebody_else(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "v", pa.table({"k": [1]}))
    sink = DeltaSink(target(tmp_path / "v", SinkContract.SMALL))
    with pytest.raises(UserError, match="mview did not make it"):
        sink.stage(1, delta_of(SinkContract.SMALL, {(1, "a"): 1}))
    with pytest.raises(TargetError, match="somebody else changed the columns"):
        sink.rollback(None, None)
    with pytest.raises(UserError):
        sink.drop()
    assert DeltaTable(tmp_path / "v").to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize("path", [None, "relative/v", "/a%20b"])
def test_a_path_that_is_none(path: str | None) -> None:
    with pytest.raises(ConfigError, match="view v"):
        DeltaSink(SinkTarget("v", SinkContract.SMALL, "w", {"path": path}))


def test_comment_and_new_columns(tmp_path: Path) -> None:
    driver = Driver(DeltaHarness(tmp_path / "v"), SinkContract.SMALL)
    driver.apply({(1, "a"): 1})
    wide = view_schema(("k",), ("k", "g", "flag"))
    sink = DeltaSink(target(tmp_path / "v", wide, comment="it's new"))
    sink.rollback(None, driver.published)
    file = sink.staging(2) / "x.parquet"
    pq.write_table(pa.table({"k": [5], "g": ["e"], "flag": [True]}), file)
    facts = sink.commit(sink.stage_full(2, [file]))
    table = DeltaTable(tmp_path / "v")
    assert table.to_pyarrow_table().to_pylist() == [{"k": 5, "g": "e", "flag": True}]
    assert table.metadata().description == "it's new"
    assert table.metadata().id == DeltaTable(tmp_path / "v", version=0).metadata().id
    assert facts == {"version": 1, "epoch": 2, "rows": 1, "table": table.metadata().id}


def test_one_commit_per_epoch_with_its_transaction(tmp_path: Path) -> None:
    driver = Driver(DeltaHarness(tmp_path / "v"), SinkContract.SMALL)
    for number in range(5):
        driver.apply({(number, "a"): 1})
    table = DeltaTable(tmp_path / "v")
    assert table.version() == 4
    assert table.transaction_version("mview/v/1") == 5


def test_rolled_back_files_are_deleted(tmp_path: Path) -> None:
    driver = Driver(DeltaHarness(tmp_path / "v"), SinkContract.SMALL)
    driver.apply({(1, "a"): 1})
    before = set((tmp_path / "v").glob("*.parquet"))
    (driver.sink.staging(2) / "x.parquet").write_bytes(b"half")
    driver.stage({(1, "a"): -1, (1, "b"): 1})
    assert set((tmp_path / "v").glob("*.parquet")) > before
    driver.restart()
    driver.sink.rollback(None, driver.published)
    assert set((tmp_path / "v").glob("**/*.parquet")) == before


def test_large_files_are_changed_in_place_and_only_where_needed(tmp_path: Path) -> None:
    schema = SinkContract.SMALL
    options = {"path": str(tmp_path / "v"), "deletion_vectors": False}
    sink = DeltaSink(SinkTarget("v", schema, "mview/v/1", options))
    files = []
    for number in range(3):
        ids = range(number * 300_000, number * 300_000 + 300_000)
        files.append(sink.staging(1) / f"{number}.parquet")
        pq.write_table(pa.table({"k": ids, "g": ["a"] * 300_000}), files[-1])
    sink.commit(sink.stage_full(1, files))
    first = set(DeltaTable(tmp_path / "v").file_uris())
    weights = {(k, "a"): -1 for k in (5, 299_999, 610_000)} | {(5, "b"): 1, (299_999, "b"): 1}
    facts = sink.commit(sink.stage(2, delta_of(schema, weights)))
    second = set(DeltaTable(tmp_path / "v").file_uris())
    assert len(first & second) == 1
    assert len(second) == 5
    for path in second:
        ids_found = pq.read_table(path)["k"].to_numpy()
        assert (ids_found[1:] > ids_found[:-1]).all()
    assert facts["rows"] == sink.rows(facts).num_rows == 899_999


def test_small_files_stay_few_and_old_files_go(tmp_path: Path) -> None:
    driver = Driver(DeltaHarness(tmp_path / "v"), SinkContract.SMALL)
    kept: dict[int, dict[str, Any]] = {}
    for number in range(130):
        driver.apply({(number, "a"): 1})
        assert driver.published is not None
        kept[number] = driver.published
    assert len(DeltaTable(tmp_path / "v").file_uris()) < 16
    pending = driver.stage({(1000, "a"): 1})
    assert driver.sink.maintain(kept[120], []) > 50
    for number in range(120, 130):
        fresh = driver.harness.open(driver.schema)
        assert fresh.rows(kept[number]).num_rows == number + 1
    driver.publish(driver.sink.commit(pending), {(1000, "a"): 1})
    driver.check()


def test_a_marked_file_is_not_written_anew(tmp_path: Path) -> None:
    schema = SinkContract.SMALL
    options = {"path": str(tmp_path / "v"), "deletion_vectors": "true"}
    sink = DeltaSink(SinkTarget("v", schema, "mview/v/1", options))
    file = sink.staging(1) / "0.parquet"
    pq.write_table(pa.table({"k": range(100_000), "g": ["a"] * 100_000}), file)
    sink.commit(sink.stage_full(1, [file]))
    weights = {(5, "a"): -1, (5, "b"): 1, (70_000, "a"): -1}
    facts = sink.commit(sink.stage(2, delta_of(schema, weights)))
    # The large file, and one for the row that came.
    sizes = [pq.read_metadata(path).num_rows for path in DeltaTable(tmp_path / "v").file_uris()]
    assert sorted(sizes) == [1, 100_000]
    assert facts["rows"] == sink.rows(facts).num_rows == 99_999
    keys = DeltaSink(SinkTarget("v", schema, "mview/v/1", options)).rows(facts)["k"].to_pylist()
    assert keys.count(5) == 1
    assert 70_000 not in keys


def test_few_keys_in_remembered_files_take_no_other_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[int]()

    class Pool:
        def map(self, call: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            taken.append(len(items))
            return map(call, items)

    monkeypatch.setattr(rewrite, "_pool", Pool())
    schema = SinkContract.SMALL
    options = {"path": str(tmp_path / "v"), "deletion_vectors": "true"}
    sink = DeltaSink(SinkTarget("v", schema, "mview/v/1", options))
    files = [sink.staging(1) / f"{number}.parquet" for number in range(3)]
    for number, file in enumerate(files):
        keys = range(number * 20_000, (number + 1) * 20_000)
        pq.write_table(pa.table({"k": keys, "g": ["a"] * 20_000}), file)
    sink.commit(sink.stage_full(1, files))
    for epoch, reads in ((2, [3]), (3, [])):
        weights = {(number * 20_000 + epoch, "a"): -1 for number in range(3)}
        facts = sink.commit(sink.stage(epoch, delta_of(schema, weights)))
        assert facts["rows"] == 60_000 - 3 * (epoch - 1)
        assert taken == reads
        taken.clear()
    many = {(key, "a"): -1 for key in range(10_000, 50_000) if key % 20_000 > 3}
    facts = sink.commit(sink.stage(4, delta_of(schema, many)))
    assert facts["rows"] == 60_000 - 2 * 3 - len(many)
    assert 3 in taken


def test_deletion_vectors_for_a_table_that_had_none(tmp_path: Path) -> None:
    schema = SinkContract.SMALL
    plain = DeltaSink(target(tmp_path / "v", schema))
    facts = plain.commit(plain.stage(1, delta_of(schema, {(1, "a"): 1, (2, "a"): 1})))
    options = {"path": str(tmp_path / "v"), "deletion_vectors": True}
    marking = DeltaSink(SinkTarget("v", schema, "mview/v/1", options))
    facts = marking.commit(marking.stage(2, delta_of(schema, {(1, "a"): -1})))
    assert marking.rows(facts)["k"].to_pylist() == [2]
    # And back: what is marked stays so until its file is written anew.
    again = DeltaSink(target(tmp_path / "v", schema))
    facts = again.commit(again.stage(3, delta_of(schema, {(2, "a"): -1, (3, "a"): 1})))
    assert again.rows(facts)["k"].to_pylist() == [3]
    found = QueryBuilder().register("v", DeltaTable(tmp_path / "v")).execute("SELECT k FROM v")
    assert pa.table(found.read_all())["k"].to_pylist() == [3]


def has_vectors(folder: Path) -> bool:
    return DeltaTable(folder).metadata().configuration.get(DELETION_VECTORS) == "true"


def test_rows_are_marked_where_that_pays(tmp_path: Path) -> None:
    """By default a table has deletion vectors from a size on, and keeps them."""
    schema, folder = SinkContract.SMALL, tmp_path / "v"
    sink = DeltaSink(target(folder, schema))
    sink.commit(sink.stage(1, delta_of(schema, {(k, "a"): 1 for k in range(1_000)})))
    sink.commit(sink.stage(2, delta_of(schema, {(1, "a"): -1})))
    assert not has_vectors(folder)
    # Texts that are all different: some 3 MB.
    wide = {(k, hashlib.sha256(str(k).encode()).hexdigest()): 1 for k in range(1_000, 50_000)}
    sink.commit(sink.stage(3, delta_of(schema, wide)))
    assert has_vectors(folder)
    gone = next(iter(wide))
    before = set(DeltaTable(folder).file_uris())
    facts = sink.commit(sink.stage(4, delta_of(schema, {gone: -1, (7, "a"): -1})))
    assert set(DeltaTable(folder).file_uris()) == before
    assert facts["rows"] == 49_997
    # Another process, and a table that is small again.
    again = DeltaSink(target(folder, schema))
    small = {row: -1 for row in wide if row != gone}
    facts = again.commit(again.stage(5, delta_of(schema, small)))
    assert has_vectors(folder)
    assert again.rows(facts).num_rows == facts["rows"] == 998
    # A view that is built anew.
    file = again.staging(6) / "0.parquet"
    pq.write_table(pa.table({"k": [1, 2], "g": ["a", "b"]}), file)
    facts = again.commit(again.stage_full(6, [file]))
    facts = again.commit(again.stage(7, delta_of(schema, {(2, "b"): -1})))
    assert again.rows(facts)["k"].to_pylist() == [1]


def test_own_commits_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema, read = SinkContract.SMALL, list[int]()
    sink = DeltaSink(target(tmp_path / "v", schema))
    note = DeltaLog.note

    def noted(log: DeltaLog, version: int) -> dict[str, Any] | None:
        read.append(version)
        return note(log, version)

    monkeypatch.setattr(DeltaLog, "note", noted)
    for epoch in range(1, 4):
        sink.commit(sink.stage(epoch, delta_of(schema, {(epoch, "a"): 1})))
    assert read == []
    DeltaTable(tmp_path / "v").alter.set_table_properties({"delta.appendOnly": "false"})
    sink.commit(sink.stage(4, delta_of(schema, {(4, "a"): 1})))
    assert set(read) == {3}  # that of somebody else


def test_a_large_first_build_has_deletion_vectors(tmp_path: Path) -> None:
    texts = [hashlib.sha256(str(k).encode()).hexdigest() for k in range(30_000)]
    rows = pa.table({"k": range(30_000), "g": texts})
    for setting in ("auto", "false"):
        folder = tmp_path / setting
        options = {"path": str(folder), "deletion_vectors": setting}
        sink = DeltaSink(SinkTarget("v", SinkContract.SMALL, "mview/v/1", options))
        pq.write_table(rows, sink.staging(1) / "0.parquet")
        sink.commit(sink.stage_full(1, [sink.staging(1) / "0.parquet"]))
        assert has_vectors(folder) == (setting == "auto")
        sink.commit(sink.stage(2, delta_of(SinkContract.SMALL, {(0, texts[0]): -1})))
        assert has_vectors(folder) == (setting == "auto")
    assert DeltaTable(folder).to_pyarrow_table().num_rows == 29_999


def test_others_join_files_while_rows_are_being_marked(tmp_path: Path) -> None:
    """What was staged by a table's size holds, or is worked out anew, when others commit first."""
    schema, folder = SinkContract.SMALL, tmp_path / "v"
    sink = DeltaSink(target(folder, schema))
    sink.commit(sink.stage(1, delta_of(schema, {(k, "a"): 1 for k in range(100)})))
    wide = {(k, hashlib.sha256(str(k).encode()).hexdigest()): 1 for k in range(100, 30_000)}
    pending = sink.stage(2, delta_of(schema, wide))
    DeltaTable(folder).alter.set_table_properties({"delta.appendOnly": "false"})
    facts = sink.commit(pending)
    assert has_vectors(folder)
    assert sink.rows(facts).num_rows == 30_000


@pytest.mark.parametrize(
    ("options", "private", "told"),
    [
        ({}, False, "when it has more than 1 MB"),
        ({"deletion_vectors": "true"}, False, "has deletion vectors; for readers"),
        ({"deletion_vectors": "false"}, False, None),
        ({}, True, None),
    ],
)
def test_readers_are_told_of(
    tmp_path: Path, options: dict[str, Any], private: bool, told: str | None
) -> None:
    given = {"path": str(tmp_path / "v"), **options}
    made = SinkTarget("v", SinkContract.SMALL, "mview/v/1", given, private=private)
    caution = DeltaSink(made).caution()
    assert caution is None if told is None else told in (caution or "")


def test_an_option_that_is_neither_true_nor_false(tmp_path: Path) -> None:
    options = {"path": str(tmp_path), "deletion_vectors": "yes please"}
    with pytest.raises(ConfigError, match="deletion_vectors"):
        DeltaSink(SinkTarget("v", SinkContract.SMALL, "mview/v/1", options))


@pytest.mark.days(3)
@pytest.mark.spark
@pytest.mark.parametrize(
    "kind", [DeltaHarness, pytest.param(VectorHarness, marks=pytest.mark.long)]
)
def test_spark_reads_it(spark: SparkSession, tmp_path: Path, kind: type[DeltaHarness]) -> None:
    harness = kind(tmp_path / "a folder" / "v")
    driver = Driver(harness, SinkContract.KEYED)
    random_epochs(driver, seed=daily(99), epochs=12)
    assert driver.published is not None
    frame = spark.read.format("delta").load(str(harness.folder))
    assert frame.columns == list(driver.schema.names)
    arrow = frame.toArrow()
    assert Counter(rows_of(arrow, driver.schema.names)) == driver.model
    # Bounds in the log must not hide rows: each look-up by a key is a query of its own.
    for row in random.Random(daily()).sample(sorted(driver.model, key=repr), 8):
        found = frame.where(frame.k.eqNullSafe(row[0]) & frame.g.eqNullSafe(row[1]))
        assert found.count() == 1
    driver.sink.maintain(driver.published, [])
    assert spark.read.format("delta").load(str(harness.folder)).count() == len(driver.model)


def test_a_table_with_a_damaged_file_is_to_be_built_anew_after_repair(tmp_path: Path) -> None:
    sink = DeltaSink(target(tmp_path / "v", SinkContract.SMALL))
    facts = sink.commit(sink.stage(1, delta_of(SinkContract.SMALL, {(1, "a"): 1})))
    (file,) = (tmp_path / "v").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    fresh = DeltaSink(target(tmp_path / "v", SinkContract.SMALL))
    with pytest.raises(CorruptionError, match="mview repair"):
        fresh.rows(facts)
    assert fresh.repair(facts) is False
