"""The keys that a paused load remembers: right after a restart, and in bounded work per step."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from mview.errors import CorruptionError
from mview.files.fence import Unfenced
from mview.follow.light import seen as module
from mview.follow.light.progress import LightProgress, ProgressLog
from mview.follow.light.seen import SUFFIX, SeenKeys, files_of, without_chunk
from mview.rows.key_sets import KeySet

INTEGER = pa.schema([("id", pa.int64())])
TEXT = pa.schema([("id", pa.string())])
CHUNKS = 4


def rows(key: pa.Schema, ids: list[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids).cast(key.field(0).type)}, schema=key)


def by_chunk(key: pa.Schema, ids: list[int], first: int) -> dict[int, KeySet]:
    """Every chunk has the ids of a remainder."""
    return {
        chunk: KeySet.of(rows(key, mine), key)
        for chunk in range(first, CHUNKS)
        if (mine := [number for number in ids if number % CHUNKS == chunk])
    }


@pytest.mark.parametrize("key", [INTEGER, TEXT], ids=["integer", "text"])
def test_many_steps_write_each_key_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: pa.Schema
) -> None:
    written: list[int] = []
    real = module.put

    def put(file: Path, content: bytes) -> None:
        written.append(len(content))
        real(file, content)

    monkeypatch.setattr(module, "put", put)
    monkeypatch.setattr(module, "MOST", 1 << 12)
    log, keys = ProgressLog(tmp_path, Unfenced(1)), SeenKeys(tmp_path / "light", Unfenced(1), key)
    log.folder.mkdir()
    ids = random.Random(1).sample(range(10**9), 20_000)
    at = LightProgress(1, 1, {}, -1)
    for step, begin in enumerate(range(0, len(ids), 100), 2):
        more = by_chunk(key, ids[begin : begin + 100], 0)
        at = LightProgress(1, 1, {}, -1, seen=keys.with_more(at.seen, more, 0, step))
        written.append(len(orjson.dumps(dict(at.seen))))
        log.write(step, at)
    kept = sum(file.stat().st_size for file in map(log.folder.joinpath, files_of(at.seen)))
    assert sum(written) < 20 * kept + 200 * (1 << 12)
    assert len(files_of(at.seen)) < 10
    # A later runner reads the same; others' files are gone.
    later = SeenKeys(log.folder, Unfenced(2), key)
    asked = sorted(ids[:2000]) + [number + 1 for number in ids[:2000] if number + 1 not in ids]
    for chunk in range(CHUNKS):
        mine = [number for number in asked if number % CHUNKS == chunk]
        told = later.of_rows(at.seen, chunk, rows(key, mine)).tolist()
        assert told == [number in set(ids) for number in mine]
    there = {file.name for file in log.folder.glob(f"*{SUFFIX}")}
    assert there == {name for each in log.steps().values() for name in files_of(each.seen)}


def test_keys_of_chunks_that_are_there_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 100)
    keys = SeenKeys(tmp_path, Unfenced(1), INTEGER)
    seen = keys.with_more({}, by_chunk(INTEGER, [*range(0, 100_000, 7)], 0), 0, 1)
    (first,) = files_of(seen)
    seen = without_chunk(seen, 0, is_last=False)
    more = by_chunk(INTEGER, [*range(3, 100_000, 7)], 1)
    (second,) = files_of(keys.with_more(seen, more, 1, 2))
    assert orjson.loads((tmp_path / first).read_bytes().split(b"\n")[1]).keys() == {*"0123"}
    assert orjson.loads((tmp_path / second).read_bytes().split(b"\n")[1]).keys() == {*"123"}
    assert without_chunk(seen, 3, is_last=True) == {}


def test_a_damaged_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 0)
    keys = SeenKeys(tmp_path, Unfenced(1), INTEGER)
    seen = keys.with_more({}, by_chunk(INTEGER, [1, 2], 0), 0, 1)
    (name,) = files_of(seen)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-9])
    with pytest.raises(CorruptionError, match="progress of a light view"):
        SeenKeys(tmp_path, Unfenced(1), INTEGER).of_rows(seen, 1, rows(INTEGER, [1]))
