"""Look-ups in copies of Parquet files against a full read of the files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mview.execute.scan import scan_files
from mview.execute.spark import copies
from mview.execute.spark.copies import look_up_files, make_copies
from tests.seeds import seeds

#: An integer that hashes as NULL does.
_LIKE_NULL = 0x6A09E667F3BCC909

_TYPES: dict[str, tuple[pa.DataType, Callable[[random.Random], object]]] = {
    "id": (pa.int64(), lambda draw: draw.choice([None, _LIKE_NULL, draw.randrange(200)])),
    "small": (pa.int32(), lambda draw: draw.choice([None, draw.randrange(-3, 9)])),
    "name": (pa.string(), lambda draw: draw.choice([None, "", "ä", "a" * draw.randrange(20)])),
    "price": (
        pa.decimal128(12, 2),
        lambda draw: draw.choice([None, Decimal(draw.randrange(-99, 99)) / 100]),
    ),
    "ratio": (
        pa.float64(),
        lambda draw: draw.choice([None, float("nan"), 0.0, -0.0, draw.randrange(9) / 4]),
    ),
    "day": (pa.date32(), lambda draw: draw.choice([None, draw.randrange(30)])),
    "list": (pa.list_(pa.int32()), lambda draw: draw.choice([None, [1], [1, draw.randrange(3)]])),
}
_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in _TYPES.items()])


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An executor's local disk; the folder of the copies."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'local'},/nowhere")
    copies._open.cache_clear()
    yield tmp_path / "local" / "mview-copies"
    copies._open.cache_clear()


def _rows(draw: random.Random, count: int, schema: pa.Schema = _SCHEMA) -> pa.Table:
    columns = [[_TYPES[name][1](draw) for _ in range(count)] for name in schema.names]
    arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _distinct(keys: pa.Table, null_safe: bool) -> pa.Table:
    keys = keys if null_safe else keys.drop_null()
    return keys.group_by(keys.column_names).aggregate([]).combine_chunks()


def _as_list(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())


def _write(folder: Path, name: str, rows: pa.Table) -> str:
    pq.write_table(rows, folder / name)
    return str(folder / name)


@pytest.mark.parametrize("seed", seeds(20))
def test_finds_what_a_full_read_finds(disk: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    sizes = [0, 1, draw.randrange(300), draw.randrange(300)]
    files = [_write(tmp_path, f"{n}.parquet", _rows(draw, size)) for n, size in enumerate(sizes)]
    hashable = [name for name in _SCHEMA.names if name != "list"]
    for _ in range(6):
        names = draw.sample(hashable, draw.randrange(1, 3))
        null_safe = draw.random() < 0.5
        schema = pa.schema([_SCHEMA.field(name) for name in names])
        keys = _distinct(_rows(draw, draw.randrange(30), schema), null_safe)
        found = look_up_files(files, _SCHEMA, _SCHEMA, keys, null_safe)
        assert found.schema == _SCHEMA
        assert _as_list(found) == _as_list(scan_files(files, _SCHEMA, keys, null_safe))
        if draw.random() < 0.5:
            copies._open.cache_clear()  # as another worker: it reads the copies that are there
    assert len(list(disk.iterdir())) == len(files)


def test_keys_of_another_type_and_few_columns(disk: Path, tmp_path: Path) -> None:
    file = _write(
        tmp_path, "a", pa.table({"id": pa.array([1, 2, 300], pa.int16()), "x": [7, 8, 9]})
    )
    table = pa.schema([("id", pa.int16()), ("x", pa.int64())])
    keys = pa.table({"id": pa.array([2, 300, 70_000], pa.int64())})
    found = look_up_files([file], pa.schema([("x", pa.int64())]), table, keys, False)
    assert found.to_pylist() == [{"x": 8}, {"x": 9}]


def test_lists_are_looked_up_in_copies(disk: Path, tmp_path: Path) -> None:
    rows = _rows(random.Random(7), 50)
    file = _write(tmp_path, "a", rows)
    values = [None, [1], *([1, n] for n in range(2))]
    keys = pa.table({"list": pa.array(values, _SCHEMA.field("list").type)})
    expected = [row for row in rows.to_pylist() if row["list"] in values]
    found = look_up_files([file], _SCHEMA, _SCHEMA, keys, True)
    assert _as_list(found) == sorted(map(repr, expected))
    assert 0 < len(expected) < 50
    assert disk.exists()


def test_keys_without_a_hash_are_looked_for_in_the_file(disk: Path, tmp_path: Path) -> None:
    rows = _rows(random.Random(7), 50)
    file = _write(tmp_path, "a", rows)
    # SQL compares these two types as doubles: more than one integer may be equal to a key.
    keys = pa.table({"small": pa.array([-1.0, 2.0, 2.5], pa.float64())})
    found = look_up_files([file], _SCHEMA, _SCHEMA, keys, True)
    expected = [row for row in rows.to_pylist() if row["small"] in (-1, 2)]
    assert _as_list(found) == sorted(map(repr, expected))
    assert expected
    assert not disk.exists()


def test_a_full_disk_costs_time_only(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.parent.write_text("a file where the folder should be")
    rows = _rows(random.Random(7), 50)
    file = _write(tmp_path, "a", rows)
    make_copies([file], _SCHEMA, [("id",)])
    keys = _distinct(rows.select(["small"]), null_safe=True)
    assert _as_list(look_up_files([file], _SCHEMA, _SCHEMA, keys, True)) == _as_list(rows)
    assert f"no local copy of {file}, it is read whole" in capsys.readouterr().err


def test_another_file_of_the_same_name_is_seen(disk: Path, tmp_path: Path) -> None:
    schema, keys = pa.schema([("id", pa.int64())]), pa.table({"id": [1]})
    for rows in (1, 2):
        file = _write(tmp_path, "a", pa.table({"id": [1] * rows}))
        assert look_up_files([file], schema, schema, keys, False).num_rows == rows


def test_copies_go_with_their_files(disk: Path, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    first, second = (_write(tmp_path, name, pa.table({"id": [1]})) for name in "ab")
    make_copies([first], schema, [("id",)])
    assert len(list(disk.iterdir())) == 1
    Path(first).unlink()
    make_copies([second], schema, [("id",)])
    (kept,) = disk.iterdir()
    assert (kept / "source").read_text() == second
    assert {file.suffix for file in kept.iterdir()} == {".npy", ".arrow", ""}


def test_copies_are_private(disk: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(_rows(random.Random(1), 9), file)
    before = os.umask(0)
    try:
        make_copies([str(file)], _SCHEMA, [("id",)])
    finally:
        os.umask(before)
    assert disk.stat().st_mode & 0o777 == 0o700
    assert {one.stat().st_mode & 0o777 for one in disk.iterdir()} == {0o700}
    # Where somebody else could have put a copy, none is read.
    disk.chmod(0o777)
    with pytest.raises(PermissionError, match="others may read or write"):
        copies._root()
    make_copies([str(file)], _SCHEMA, [("name",)])
    keys = pa.table({"id": pa.array([1], pa.int64())})
    look_up_files([str(file)], _SCHEMA, _SCHEMA, keys, True)


def test_what_was_looked_at_is_no_memory_of_the_worker(disk: Path, tmp_path: Path) -> None:
    """It is in the system's cache, once: every worker that maps it would count all of it."""
    rows = pa.table({"id": range(400_000), "at": range(400_000)})
    file = tmp_path / "rows.parquet"
    pq.write_table(rows, file)
    make_copies([str(file)], rows.schema, [("id",)])
    assert _mapped_of(disk) < 1_000_000
    keys = pa.table({"id": range(0, 400_000, 100)})
    found = look_up_files([str(file)], rows.schema, rows.schema, keys, True)
    assert found.num_rows == keys.num_rows
    assert _mapped_of(disk) < 1_000_000


def _mapped_of(folder: Path) -> int:
    """Bytes of files below a folder that count as memory of this process."""
    size, is_here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if "-" in head:
            is_here = str(folder) in line
        elif head == "Rss:" and is_here:
            size += int(rest[0]) * 1024
    return size
