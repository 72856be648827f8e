"""A comparison in pieces finds what a comparison of the whole finds."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from mview.connector import WEIGHT
from mview.execute import pieces
from mview.execute.pieces import differences
from mview.execute.slices import difference

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
