"""Damage on the disk is told with its file; it is never another row."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from mview.delta import checkpoints
from mview.delta.actions import table_actions
from mview.delta.log import DeltaLog
from mview.delta.parquet import read_parquet, write_parquet
from mview.errors import CorruptionError, RetryableError, known_error
from mview.execute.scan import scan_files
from tests.seeds import seeds

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.string()),
        ("m", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
    ]
)


def rows(count: int) -> pa.Table:
    start = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
    return pa.table(
        {
            "id": range(count),
            "s": [f"c{n % 7}" if n % 5 else None for n in range(count)],
            "m": [Decimal(n) / 4 for n in range(count)],
            "at": [start + dt.timedelta(n) for n in range(count)],
            "x": [n / 3 for n in range(count)],
        },
        SCHEMA,
    )


def flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    place = rng.randrange(len(data) * 8)
    data[place // 8] ^= 1 << place % 8
    file.write_bytes(data)


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("count", [30, 3000])
def test_a_flipped_bit_of_a_data_file(tmp_path: Path, count: int, seed: int) -> None:
    table, rng = rows(count), random.Random(seed)
    write_parquet(tmp_path, "f.parquet", table, ["id"])
    good = (tmp_path / "f.parquet").read_bytes()
    told = 0
    for number in range(200):
        file = tmp_path / f"{number}.parquet"
        file.write_bytes(good)
        flip(file, rng)
        for read in (
            lambda: read_parquet(file, SCHEMA),  # noqa: B023
            lambda: scan_files([str(file)], SCHEMA, None, False),  # noqa: B023
        ):
            try:
                assert read().equals(table)
            except CorruptionError as error:
                told += 1
                assert error.where == str(file)  # noqa: PT017
                assert "`mview repair` the view, or `mview drop` the table" in str(error.hint)  # noqa: PT017
    assert told > 200
    assert read_parquet(tmp_path / "f.parquet", SCHEMA).equals(table)


@pytest.mark.parametrize("seed", seeds(2))
def test_a_flipped_bit_of_a_commit(tmp_path: Path, seed: int) -> None:
    log = DeltaLog(tmp_path)
    log.commit([], [], {"mview": "x"}, table=table_actions(SCHEMA))
    for n in range(3):
        log.commit([write_parquet(tmp_path, f"{n}.parquet", rows(5))], [], {"mview": "x"})
    file, rng = tmp_path / "_delta_log" / f"{2:020d}.json", random.Random(seed)
    good, want = file.read_bytes(), log.head.files
    for _ in range(300):
        file.write_bytes(good)
        flip(file, rng)
        fresh = DeltaLog(tmp_path)
        try:
            assert fresh.head.files == want
        except CorruptionError as error:
            assert error.where == str(file)  # noqa: PT017
    file.write_bytes(good[:-40])
    with pytest.raises(CorruptionError, match=r"(?s)version 2 of a Delta table.*`mview drop`"):
        DeltaLog(tmp_path).refresh()


@pytest.mark.parametrize(
    ("folder", "helps"),
    [
        ("views/sums/data", "mview repair sums,"),
        ("beside/sums~3astate/base", "mview repair sums,"),
        ("beside/sums/base", "mview repair sums,"),
        ("tables/shop.orders/base", "mview drop shop.orders,"),
        ("tables/shop.o~c3~b6/base", "restore the file; or"),
        ("views/mine/tables/shop.orders/base", "mview drop shop.orders,"),
        ("lake/sums", "restore the file; or"),
        ("lake/views/others", "restore the file; or"),
        ("lake/tables/shop.orders", "restore the file; or"),
        ("lake/tables/shop.orders/data", "restore the file; or"),
    ],
)
def test_one_way_is_named_that_helps(tmp_path: Path, folder: str, helps: str) -> None:
    (tmp_path / folder / "_delta_log").mkdir(parents=True)
    file = tmp_path / folder / "f.parquet"
    file.write_bytes(b"half")
    with pytest.raises(CorruptionError) as told:
        read_parquet(file, SCHEMA)
    assert str(told.value.hint).startswith(helps)
    (tmp_path / folder / "_delta_log" / f"{0:020d}.json").write_text("half")
    with pytest.raises(CorruptionError) as told:
        DeltaLog(tmp_path / folder).refresh()
    assert str(told.value.hint).startswith(helps)


def checkpointed(folder: Path, kept: int = 119) -> tuple[Path, dict[str, Any]]:
    """A table with a checkpoint at version 119, and the log from `kept` on; its files there."""
    log = DeltaLog(folder)
    log.commit([], [], {"mview": "x"}, table=table_actions(SCHEMA))
    for n in range(120):
        gone = [f"{n - 2}.parquet"] if n > 1 and n % 3 else []
        added = write_parquet(folder, f"{n}.parquet", rows(1), ["id", "s"])
        log.commit([added], gone, {"mview": "x"}, transaction=("app", n))
    then = dict(log.at(120).files)
    log.clean(kept)
    (file,) = (folder / "_delta_log").glob("*120.checkpoint.parquet")
    return file, then


@pytest.mark.parametrize("seed", seeds(2))
def test_a_flipped_bit_of_a_checkpoint(tmp_path: Path, seed: int) -> None:
    file, want = checkpointed(tmp_path, kept=120)
    good, rng = file.read_bytes(), random.Random(seed)
    told = 0
    for _ in range(300):
        file.write_bytes(good)
        flip(file, rng)
        try:
            assert DeltaLog(tmp_path).head.files == want
        except CorruptionError as error:
            told += 1
            assert error.where == str(file)  # noqa: PT017
            assert "`mview repair` the view, or `mview drop` the table" in str(error.hint)  # noqa: PT017
    assert told > 50
    for bad in (good[:-100], b""):
        file.write_bytes(bad)
        with pytest.raises(CorruptionError, match=r"(?s)version 120 .*checkpoint.parquet"):
            DeltaLog(tmp_path).at(120)


def test_a_damaged_checkpoint_is_passed_over_where_the_log_leads_on(tmp_path: Path) -> None:
    file, want = checkpointed(tmp_path, kept=0)
    file.write_bytes(b"none")
    assert DeltaLog(tmp_path).head.files == want


def test_a_checkpoint_is_on_disk_before_the_log_before_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the power between the two the table would be lost."""
    done: list[Path | None] = []  # what was forced; None: something was deleted
    unlink = Path.unlink

    def deleting(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".json":
            done.append(None)
        unlink(path, missing_ok)

    monkeypatch.setattr(checkpoints, "force", done.append)
    monkeypatch.setattr(Path, "unlink", deleting)
    file, _ = checkpointed(tmp_path, kept=120)
    before = done[: done.index(None)]
    place = before.index(file)
    assert {file.with_name("_last_checkpoint"), file.parent} <= set(before[place:])


def test_the_log_before_a_torn_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tear(folder: str) -> None:
        for made in Path(folder).glob("_delta_log/*.checkpoint.parquet"):
            made.write_bytes(b"")

    class Tearing(DeltaTable):
        def create_checkpoint(self) -> None:
            super().create_checkpoint()
            tear(str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "DeltaTable", Tearing)
        with pytest.raises(CorruptionError, match="version 120 "):
            checkpointed(tmp_path, kept=120)
    log = DeltaLog(tmp_path)
    assert len(log.head.files) == len(DeltaLog(tmp_path).at(120).files) > 3
    # One that was sealed, and then torn by a power cut, is made again before anything goes.
    for n in range(200, 320):
        log.commit([write_parquet(tmp_path, f"{n}.parquet", rows(1))], [], {"mview": "x"})
    want = log.at(120).files
    log.clean(120)
    assert DeltaLog(tmp_path).at(120).files == want
    assert not (tmp_path / "_delta_log" / f"{119:020d}.json").exists()


def test_a_checkpoint_of_somebody_else_counts_only_without_a_log(tmp_path: Path) -> None:
    _, want = checkpointed(tmp_path, kept=120)
    log = DeltaLog(tmp_path)
    for n in range(200, 204):
        log.commit([write_parquet(tmp_path, f"{n}.parquet", rows(1))], [], {"mview": "x"})
    DeltaTable(tmp_path).create_checkpoint()
    (theirs,) = (tmp_path / "_delta_log").glob("*124.checkpoint.parquet")
    # The same version as ours, by somebody else: the seal is of what it says, not of its bytes.
    DeltaTable(tmp_path, version=120).create_checkpoint()
    want |= {f"{n}.parquet": log.head.files[f"{n}.parquet"] for n in range(200, 204)}
    assert DeltaLog(tmp_path).head.files == want
    good, content = theirs.read_bytes(), pq.read_table(theirs)
    pq.write_table(content.filter(pc.is_null(content["add"])), theirs)
    assert DeltaLog(tmp_path).head.files == want
    # Somebody has ended the log, too: there is nothing else to go by.
    theirs.write_bytes(good)
    for commit in (tmp_path / "_delta_log").glob("*.json"):
        if commit.name != f"{124:020d}.json":
            commit.unlink()
    assert DeltaLog(tmp_path).head.files == want


def test_seals_go_with_their_checkpoints(tmp_path: Path) -> None:
    file, _ = checkpointed(tmp_path, kept=120)
    log = DeltaLog(tmp_path)
    for n in range(200, 320):
        log.commit([write_parquet(tmp_path, f"{n}.parquet", rows(1))], [], {"mview": "x"})
    log.clean(log.head.version)
    assert not file.exists()
    assert len([*(tmp_path / "_delta_log").glob("*.seal")]) == 1
    assert len(DeltaTable(tmp_path).file_uris()) == len(log.head.files)
    log.drop()
    assert not (tmp_path / "_delta_log").exists()


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission"),
        (errno.ENOTDIR, "a file is in the place of a folder"),
    ],
)
def test_what_the_disk_refuses_is_no_fault_of_mview(number: int, what: str) -> None:
    plain = OSError(number, os.strerror(number), "/store/manifest/7.json")
    by_spark = RuntimeError(f"Job aborted: java.io.IOException: {os.strerror(number)}")
    by_arrow = OSError(f"[Errno {number}] Error writing bytes to file: {os.strerror(number)}")
    caused = RuntimeError("the query ended")
    caused.__cause__ = plain
    for error in (plain, by_spark, by_arrow, caused):
        block = known_error(error)
        assert isinstance(block, RetryableError)
        assert what in block.what
        assert "report it" not in block.render()
        assert "run the same command again" in block.render()
    assert "/store/manifest/7.json" in known_error(plain).render()
    assert "report it" in known_error(ValueError("x")).render()


def test_the_note_of_a_commit_does_not_show_its_digest(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path)
    log.commit([], [], {"mview": "x"}, table=table_actions(SCHEMA))
    assert log.note(0) == {"mview": "x"}
    text = (tmp_path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()[0]
    assert len(json.loads(json.loads(text)["commitInfo"]["userMetadata"])["digest"]) == 16


@pytest.mark.parametrize("other", [pa.decimal128(12, 3), pa.timestamp("ms", "UTC")])
def test_a_footer_with_another_scale_is_damage(tmp_path: Path, other: pa.DataType) -> None:
    """A flipped bit there would make other numbers of all values, which fit as well."""
    name = "m" if pa.types.is_decimal(other) else "at"
    table = rows(30).select([name])
    write_parquet(tmp_path, "f.parquet", table.cast(pa.schema([(name, other)])), [])
    for read in (
        lambda file: read_parquet(file, table.schema),
        lambda file: scan_files([str(file)], table.schema, None, False),
    ):
        with pytest.raises(CorruptionError, match="cannot be read"):
            read(tmp_path / "f.parquet")
