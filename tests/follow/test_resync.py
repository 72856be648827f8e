"""The difference of two contents as changes: any contents, in pieces, and what is not taken."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from mview.changelog import KIND
from mview.follow.resync import resync
from tests.seeds import seeds

SCHEMA = pa.schema([("k", pa.int64()), ("part", pa.string()), ("v", pa.float64())])
Key = tuple[int | None, str]


def table_of(content: dict[Key, float | None]) -> pa.Table:
    rows = [{"k": k, "part": part, "v": value} for (k, part), value in content.items()]
    return pa.Table.from_pylist(rows, SCHEMA)


def in_parts(rows: pa.Table, size: int = 100) -> Iterator[pa.Table]:
    return (rows.slice(begin, size) for begin in range(0, rows.num_rows, size))


@pytest.mark.parametrize("seed", seeds(3))
def test_the_changes_lead_from_one_content_to_the_other(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    numbers = (None, *range(400))
    old = {(k, part): chance.random() for k in numbers for part in "ab" if chance.random() < 0.8}
    new: dict[Key, float | None] = dict(old)
    for key in chance.sample(sorted(old, key=repr), 60):
        fate = chance.random()
        if fate < 0.4:
            del new[key]
        else:
            new[key] = None if fate < 0.6 else -1.0
    for number in range(30):
        new[1000 + number, "c"] = 0.0
    shuffled = dict(chance.sample(list(new.items()), len(new)))
    most = table_of(old).nbytes
    # Less than both contents: they are compared in pieces.
    monkeypatch.setattr("mview.follow.resync._PIECE", 1)
    changes = resync(
        in_parts(table_of(shuffled)), in_parts(table_of(old)), SCHEMA, ["k", "part"], most
    )
    assert changes is not None
    assert changes.num_rows < 200
    rows = changes.to_pylist()
    content: dict[Key, float | None] = dict(old)
    for before, row in zip([None, *rows], rows, strict=False):
        key, kind = (row["k"], row["part"]), row[KIND]
        if kind in ("-D", "-U"):
            assert content.pop(key) == row["v"]
        else:
            assert key not in content
            content[key] = row["v"]
        if kind == "+U":
            assert before is not None
            assert (before[KIND], before["k"], before["part"]) == ("-U", *key)
    assert content == new


def test_what_is_replaced_as_a_whole() -> None:
    some = table_of({(k, "a"): float(k) for k in range(300)})
    twice = pa.concat_tables([some, some.slice(7, 1)])
    other = pa.concat_tables([some, table_of({(7, "a"): 0.5})])
    for there in (twice, other):
        assert resync(iter([some]), iter([there]), SCHEMA, ["k", "part"], 1 << 20) is None
    none = table_of({})
    assert resync(iter([some]), iter([none]), SCHEMA, ["k", "part"], some.nbytes // 2) is None
    same = resync(iter([some]), iter([some]), SCHEMA, ["k", "part"], 1 << 20)
    assert same is not None
    assert same.num_rows == 0
