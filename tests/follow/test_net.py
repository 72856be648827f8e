"""Changes of several epochs as one, held against a plain model."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from mview.changelog import KIND
from mview.follow.net import netted
from mview.store.fold import EPOCH
from tests.seeds import seeds

Row = tuple[Any, ...]


def table_of(log: list[tuple[int, str, Row]]) -> pa.Table:
    columns = list(zip(*(row for _, _, row in log), strict=True)) or [(), ()]
    return pa.table(
        {
            EPOCH: pa.array([epoch for epoch, _, _ in log], pa.int64()),
            KIND: pa.array([kind for _, kind, _ in log], pa.string()),
            "k": pa.array(columns[0], pa.int64()),
            "v": pa.array(columns[1], pa.string()),
        }
    )


def rows(table: pa.Table) -> list[Row]:
    return list(zip(*(table[n].to_pylist() for n in (KIND, "k", "v")), strict=True))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([], []),
        ([(1, "+I", (1, "a"))], [("+I", 1, "a")]),
        ([(1, "+I", (1, "a")), (2, "-D", (1, "a"))], []),
        ([(1, "-D", (1, "a")), (2, "+I", (1, "a"))], []),
        ([(1, "-D", (1, "a")), (2, "+I", (1, "b"))], [("-U", 1, "a"), ("+U", 1, "b")]),
        ([(2, "+U", (1, "b")), (2, "-U", (1, "a"))], [("-U", 1, "a"), ("+U", 1, "b")]),
        ([(1, "-U", (1, "a")), (1, "+U", (1, None)), (2, "-D", (1, None))], [("-D", 1, "a")]),
        ([(1, "-U", (1, None)), (1, "+U", (1, "")), (3, "-U", (1, "")), (3, "+U", (1, None))], []),
    ],
)
def test_rows_of_one_key(log: list[tuple[int, str, Row]], expected: list[Row]) -> None:
    assert rows(netted(table_of(log), ["k"])) == expected


def test_random_changes() -> None:
    for seed in seeds(50):
        chance = random.Random(seed)
        before = {k: chance.choice("ab") for k in range(6) if chance.random() < 0.5}
        content, log = dict(before), []
        for epoch in range(1, chance.randrange(2, 9)):
            for key in chance.sample(range(6), chance.randrange(4)):
                old, new = content.pop(key, None), chance.choice(["a", "b", "c", None])
                if old == new:
                    if old is not None:
                        content[key] = old
                    continue
                if old is not None:
                    log.append((epoch, "-D" if new is None else "-U", (key, old)))
                if new is not None:
                    log.append((epoch, "+I" if old is None else "+U", (key, new)))
                    content[key] = new
        chance.shuffle(log)
        found = rows(netted(table_of(log), ["k"]))
        after = dict(before)
        for place, (kind, key, value) in enumerate(found):
            if kind == "-U":
                assert found[place + 1][:2] == ("+U", key), seed
            if kind.startswith("-"):
                assert after.pop(key) == value, seed
            else:
                assert key not in after, seed
                after[key] = value
        assert after == content, seed
        changed = [key for key in {*before, *content} if before.get(key) != content.get(key)]
        assert sorted({key for _, key, _ in found}) == sorted(changed), seed


def test_a_row_that_looks_different_has_changed() -> None:
    """Also from 0.0 to -0.0, which are equal; not from one NaN to another."""
    for old, new, kinds in ((0.0, -0.0, ["-U", "+U"]), (float("nan"), -float("nan"), [])):
        values = [[old], [new]]
        rows = pa.table({EPOCH: [1, 1], KIND: ["-U", "+U"], "k": [1, 1], "v": values})
        assert netted(rows, ["k"])[KIND].to_pylist() == kinds
