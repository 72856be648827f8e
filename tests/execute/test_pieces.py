"""A comparison in pieces finds what a comparison of the whole finds."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mview.connector import WEIGHT
from mview.execute import pieces, slices
from mview.execute.pieces import differences
from mview.execute.slices import consolidate, difference, weighted
from mview.rows import match

SCHEMAS = {
    "plain": pa.schema([("id", pa.int64()), ("name", pa.string())]),
    "one": pa.schema([("id", pa.int64())]),
    "mixed": pa.schema([("x", pa.float64()), ("l", pa.list_(pa.int32())), ("b", pa.bool_())]),
    "nested": pa.schema([("l", pa.list_(pa.int32()))]),
}
VALUES: dict[pa.DataType, tuple[Any, ...]] = {
    pa.int64(): (None, 0, 1, -1, *range(5, 300)),
    pa.string(): (None, "", "ä", "x" * 50),
    pa.float64(): (None, 0.0, -0.0, math.nan, 1.5),
    pa.list_(pa.int32()): (None, [], [1], [1, None]),
    pa.bool_(): (None, True, False),
}


def random_rows(draw: random.Random, schema: pa.Schema, count: int) -> pa.Table:
    columns = [[draw.choice(VALUES[f.type]) for _ in range(count)] for f in schema]
    return pa.table(columns, schema=schema)


def in_parts(draw: random.Random, rows: pa.Table) -> Iterator[pa.Table]:
    at = 0
    while at < rows.num_rows:
        size = draw.randrange(1, 60)
        yield rows.slice(at, size)
        at += size


def counted(tables: list[pa.Table], signs: bool = True) -> Counter[str]:
    found: Counter[str] = Counter()
    for table in tables:
        for row in table.to_pylist():
            weight = row.pop(WEIGHT)
            found[repr(row) if signs else repr(row).replace("-0.0", "0.0")] += weight
    return found


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("most", [1_000, 1 << 30])
def test_pieces_find_what_the_whole_finds(name: str, most: int, signs: bool) -> None:
    draw, schema = random.Random(f"{name} {most}"), SCHEMAS[name]
    same = random_rows(draw, schema, 200)
    new = pa.concat_tables([same, random_rows(draw, schema, 60)])
    old = pa.concat_tables([random_rows(draw, schema, 60), same])
    found = list(differences(in_parts(draw, new), in_parts(draw, old), schema, most, signs=signs))
    assert counted(found, signs) == counted([difference(new, old, signs=signs)], signs)
    assert all(table.num_rows == len(counted([table], signs)) for table in found)
    nothing = differences(in_parts(draw, old), in_parts(draw, old), schema, most)
    assert not counted(list(nothing))
    assert counted(list(differences([], [], schema, most))) == Counter()


@pytest.mark.parametrize("hashes", ["", "all hashes collide"])
@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("cores", [1, 3])
def test_rows_that_are_paired_first_leave_what_adding_up_leaves(
    cores: int, name: str, signs: bool, hashes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, schema, added = random.Random(f"{name} {signs}"), SCHEMAS[name], []
    monkeypatch.setattr(slices, "_FEW", 0)
    monkeypatch.setattr(match, "_MANY", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    if hashes:
        monkeypatch.setattr(match, "hash_rows", lambda cs: np.zeros(len(cs[0]), np.int64))
        monkeypatch.setattr(match, "is_exact", lambda types: False)

    def noted(rows: pa.Table, *, signs: bool) -> pa.Table:
        added.append(rows.num_rows)
        return consolidate(rows, signs=signs)

    monkeypatch.setattr(slices, "consolidate", noted)
    same = random_rows(draw, schema, 300)
    new = pa.concat_tables([same, random_rows(draw, schema, 30)])
    old = pa.concat_tables([random_rows(draw, schema, 40), same])
    for come, gone in ((new, old), (old, new), (new, new), (old, random_rows(draw, schema, 1))):
        weights = counted([weighted(come, 1)], signs)
        weights.subtract(counted([weighted(gone, 1)], signs))
        found = difference(come, gone, signs=signs)
        assert counted([found], signs) == {row: n for row, n in weights.items() if n}
        assert found.num_rows == len(counted([found], signs))
    if not hashes:
        assert added[2] == 0
        assert added[0] < 670 // 3  # 0.0 may be paired with -0.0


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where first pieces are too large: they are divided again."""
    most, sizes = 3_000, []
    monkeypatch.setattr(pieces, "_BITS", 2)

    def measured(new: pa.Table, old: pa.Table, *, signs: bool) -> pa.Table:
        sizes.append(new.nbytes + old.nbytes)
        return difference(new, old, signs=signs)

    monkeypatch.setattr(pieces, "difference", measured)
    rows = pa.table({"id": range(2_000)})
    parts = [rows.slice(at, 20) for at in range(0, 2_000, 20)]
    found = list(differences(parts, parts[1:], rows.schema, most))
    assert sum(table.num_rows for table in found) == 20
    assert len(sizes) > 4
    assert max(sizes) <= most
