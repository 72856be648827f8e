from __future__ import annotations

import datetime as dt
import errno
import json
import os
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from mview.delta import parquet
from mview.delta.actions import NO_TABLE, table_actions
from mview.delta.log import DeltaLog
from mview.delta.parquet import (
    DataFile,
    check_columns,
    column_ranges,
    comparable,
    describe,
    read_footer,
    read_parquet,
    write_parquet,
)
from mview.delta.tiers import TARGET_ROWS, crowded, pieces
from mview.errors import CorruptionError, FencedError, UserError

SCHEMA = pa.schema([("k", pa.int64())])


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    log = DeltaLog(tmp_path / "t")
    assert log.head.version == NO_TABLE
    log.commit([], [], {"mview": "x"}, table=table_actions(SCHEMA, comment="a 'table'"))
    return log


def add(log: DeltaLog, *values: int) -> DataFile:
    return write_parquet(log.folder, log.new_file("f"), pa.table({"k": values}, SCHEMA), ["k"])


def keys(log: DeltaLog, version: int | None = None) -> list[int]:
    table = DeltaTable(log.folder, version=version).to_pyarrow_table()
    return sorted(table["k"].to_pylist())


def test_commits_as_deltalake_reads_them(log: DeltaLog) -> None:
    first, second = add(log, 1, 2), add(log, 3)
    assert log.commit([first, second], [], {"mview": "x"}, transaction=("w", 4)) == 1
    assert log.commit([add(log, 5)], [first.path, "unknown"], {"mview": "y", "n": 1}) == 2
    assert keys(log) == [3, 5]
    assert keys(log, 1) == [1, 2, 3]
    table = DeltaTable(log.folder)
    assert table.transaction_version("w") == 4
    assert table.metadata().description == "a 'table'"
    assert json.loads(table.history(1)[0]["userMetadata"]).items() >= {"mview": "y", "n": 1}.items()
    assert log.note(2) == {"mview": "y", "n": 1}
    assert (log.head.rows, log.at(1).rows, log.at(0).rows) == (2, 3, 0)


def test_a_file_that_could_not_be_written_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: each further try would else make it fuller, by another name."""

    def cut(rows: pa.Table, sink: pa.NativeFile, **_: object) -> None:
        sink.write(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device")

    put, sizes = os.write, []

    def part(handle: int, content: memoryview) -> int:
        sizes.append(content.nbytes)
        if sizes[0] != content.nbytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(handle, content[:4])

    for rows, holder, name, refuses in (
        (pa.table({"k": range(1 << 18)}), pq, "write_table", cut),
        (pa.table({"k": [1]}), os, "write", part),  # a small one is written at once
    ):
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, refuses)
            with pytest.raises(OSError, match="No space") as error:
                write_parquet(tmp_path, "a.parquet", rows)
        assert error.value.filename == str(tmp_path / "a.parquet")
        assert not list(tmp_path.iterdir())


def test_foreign_commits_are_seen_and_fence(log: DeltaLog) -> None:
    write_deltalake(log.folder, pa.table({"k": [9]}), mode="append")
    with pytest.raises(FencedError, match=r"(?s)version 1.*WRITE by delta-rs"):
        log.commit([add(log, 1)], [], {"mview": "x"})
    assert log.head.version == 0
    assert log.refresh().version == 1
    assert log.note(1) is None
    log.commit([add(log, 1)], [], {"mview": "x"})
    assert keys(log) == [1, 9]
    assert not list((log.folder / "_delta_log").glob("*.tmp"))


def test_of_many_writers_one_gets_the_version(log: DeltaLog) -> None:
    writers = [DeltaLog(log.folder) for _ in range(6)]
    won: list[int] = []
    barrier = threading.Barrier(len(writers))

    def write(number: int) -> None:
        writers[number].refresh()
        barrier.wait(timeout=30)
        try:
            writers[number].commit([add(writers[number], number)], [], {"mview": "x"})
            won.append(number)
        except FencedError:
            pass

    threads = [threading.Thread(target=write, args=(n,)) for n in range(len(writers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys(log) == won
    assert len(won) == 1


def test_revert(log: DeltaLog) -> None:
    first = add(log, 1)
    log.commit([first], [], {"mview": "x"}, transaction=("w", 1))
    wider = table_actions(pa.schema([*SCHEMA, pa.field("n", pa.int64())]))[-1:]
    log.commit([add(log, 2)], [first.path], {"mview": "x"}, transaction=("w", 2), table=wider)
    assert DeltaTable(log.folder).to_pyarrow_table().column_names == ["k", "n"]
    assert log.revert(1, {"mview": "back"}, ("w", -1)) == 3
    assert keys(log) == [1]
    assert DeltaTable(log.folder).to_pyarrow_table().column_names == ["k"]
    assert DeltaTable(log.folder).transaction_version("w") == -1
    assert log.revert(1, {"mview": "back"}, ("w", -1)) == 3


def test_clean_keeps_every_version_from_the_oldest_on(log: DeltaLog) -> None:
    live: list[str] = []
    for number in range(130):
        file = add(log, number)
        log.commit([file], live, {"mview": "x"}, transaction=("w", number))
        live = [file.path]
    pending = add(log, 1000)
    (log.folder / "garbage.parquet").write_bytes(b"left by a dead writer")
    assert log.clean(120) == 120
    assert [keys(log, version) for version in range(120, 131)] == [[v - 1] for v in range(120, 131)]
    assert (log.folder / pending.path).exists()
    logs = sorted(p.name for p in (log.folder / "_delta_log").iterdir())
    assert logs[:2] == [f"{120:020d}.checkpoint.parquet", f"{120:020d}.json"]
    fresh = DeltaLog(log.folder)
    assert fresh.head == log.head
    assert fresh.head.transactions == {"w": 129}
    assert fresh.at(125).files == log.at(125).files
    with pytest.raises(CorruptionError, match="version 0 of a Delta table"):
        fresh.at(100)
    log.discard([pending.path])
    assert log.clean(125) == 5
    log.commit([add(log, 7)], live, {"mview": "x"})
    assert keys(log) == [7]


def test_drop(log: DeltaLog) -> None:
    log.commit([add(log, 1)], [], {"mview": "x"})
    log.drop()
    assert log.refresh().version == NO_TABLE
    assert not DeltaTable.is_deltatable(str(log.folder))
    assert log.commit([add(log, 2)], [], {"mview": "x"}, table=table_actions(SCHEMA)) == 0
    assert keys(log) == [2]


def test_a_path_with_every_kind_of_character(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path / "a=b c#é")
    file = write_parquet(log.folder, "s t/x=1 %41#.parquet", pa.table({"k": [1]}), ["k"])
    log.commit([file], [], {"mview": "x"}, table=table_actions(SCHEMA))
    assert keys(log) == [1]
    assert list(DeltaLog(log.folder).head.files) == [file.path]
    assert read_parquet(log.folder / file.path, SCHEMA).column_names == ["k"]


def test_bounds_of_every_type(tmp_path: Path) -> None:
    zone = dt.timezone.utc
    table = pa.table(
        {
            "i": pa.array([3, 1, None], pa.int32()),
            "s": ["b", "é" * 40, None],
            "d": [dt.date(2020, 1, 1), dt.date(1, 1, 1), None],
            "at": pa.array(
                [
                    dt.datetime(2020, 1, 1, tzinfo=zone),
                    dt.datetime(1900, 1, 1, 0, 0, 0, 7, zone),
                    None,
                ],
                pa.timestamp("us", "UTC"),
            ),
            "wall": pa.array([dt.datetime(9999, 1, 1), None, None], pa.timestamp("us")),
            "m": pa.array([Decimal("1.20"), Decimal("-3.40"), None], pa.decimal128(9, 2)),
            "w": pa.array([Decimal("1.20"), Decimal("-3.40"), None], pa.decimal128(30, 2)),
            "f": [1.0, float("nan"), None],
            "none": pa.array([None] * 3, pa.int64()),
        }
    )
    file = write_parquet(tmp_path, "x.parquet", table, table.column_names)
    footer = read_footer(tmp_path / "x.parquet")
    ranges = column_ranges(footer, [*table.column_names, "unknown"])
    for name in ("i", "s", "d", "at", "wall", "m", "w"):
        values = [value for value in comparable(table[name]) if value is not None]
        found = ranges[name]
        assert found is not None
        assert (found.low, found.high) == (min(values), max(values)), name
        assert found.nulls == table[name].null_count
    for name in ("f", "none", "unknown"):
        assert ranges[name] is None
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "i": 1,
        "s": "b",
        "d": "0001-01-01",
        "at": "1900-01-01T00:00:00.000007Z",
        "wall": "9999-01-01T00:00:00.000000",
    }
    assert read_parquet(tmp_path / "x.parquet", table.schema, ["m", "i"]).equals(
        table.select(["m", "i"])
    )


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="cannot be read"):
        read_footer(tmp_path / "none.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptionError, match="cannot be read"):
        read_parquet(tmp_path / "torn.parquet", SCHEMA)
    pq.write_table(pa.table({"k": [1], "x": [1]}), tmp_path / "wide.parquet")
    with pytest.raises(UserError, match=r"(?s)other columns.*k, x"):
        check_columns(tmp_path / "wide.parquet", SCHEMA)
    at = pa.table({"k": pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("ns"))})
    pq.write_table(at, tmp_path / "int96.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(UserError, match="INT96"):
        check_columns(tmp_path / "int96.parquet", SCHEMA)
    assert describe(tmp_path, "int96.parquet", ["k"]).rows == 1


def test_small_files_are_grouped_by_size() -> None:
    def files(rows: int, count: int) -> list[DataFile]:
        return [DataFile(f"{rows}-{n}", 0, rows, "") for n in range(count)]

    assert crowded(files(5, 7) + files(5000, 7) + files(200_000, 50)) == []
    assert crowded(files(5, 8) + files(5000, 8)) == files(5, 8)
    assert crowded(files(5, 3) + files(5000, 9)) == files(5000, 9)
    parts = pieces(pa.table({"k": range(3 * TARGET_ROWS)}))
    assert [part.num_rows for part in parts] == [TARGET_ROWS] * 3
    assert pieces(pa.table({"k": pa.array([], pa.int64())})) == []


def test_a_small_file_is_written_as_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"k": [1, 2, None], "s": ["a", "a", None], "l": [[1], [], None]})
    at_once = write_parquet(tmp_path, "a.parquet", rows, ["k", "s"])
    monkeypatch.setattr(parquet, "_WHOLE", -1)
    in_parts = write_parquet(tmp_path, "b.parquet", rows, ["k", "s"])
    files = [(tmp_path / name).read_bytes() for name in ("a.parquet", "b.parquet")]
    assert files[0] == files[1]
    assert replace(in_parts, path=at_once.path) == at_once
    assert at_once.size == len(files[0])
    assert read_parquet(tmp_path / "a.parquet", rows.schema).equals(rows)
