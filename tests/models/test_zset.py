"""The laws of Z-sets, on random ones."""

from __future__ import annotations

import random

import pytest

from mview.changelog import RowKind
from tests.models.zset import ZSet
from tests.seeds import seeds

Pair = tuple[int, int]


def some(rng: random.Random) -> ZSet[Pair]:
    rows = ((rng.randrange(4), rng.randrange(3)) for _ in range(8))
    return ZSet.summed((row, rng.randint(-2, 2)) for row in rows)


def join(left: ZSet[Pair], right: ZSet[Pair]) -> ZSet[tuple[int, int, int]]:
    return left.join(right, lambda a: a[0], lambda b: b[0], lambda a, b: (*a, b[1]))


@pytest.mark.parametrize("seed", seeds(30))
def test_laws(seed: int) -> None:
    rng = random.Random(seed)
    a, b, c = some(rng), some(rng), some(rng)
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a - a == ZSet() == a * 0
    assert not a - a
    assert a * 2 == a + a
    assert (a + b).filter(lambda row: sum(row) > 2) == a.filter(
        lambda row: sum(row) > 2
    ) + b.filter(lambda row: sum(row) > 2)
    assert (a + b).map(sum) == a.map(sum) + b.map(sum)
    assert (a + b).flat_map(list) == a.flat_map(list) + b.flat_map(list)
    assert join(a + b, c) == join(a, c) + join(b, c)
    assert join(a, b + c) == join(a, b) + join(a, c)
    keys = (lambda row: row[0], lambda row: row[0])
    assert a.semi_join(b, *keys) + a.anti_join(b, *keys) == a
    assert a.distinct().is_set
    assert sum(a.group(sum).values(), ZSet[Pair]()) == a


def test_weights() -> None:
    table = ZSet.of("aab")
    assert (table.weight("a"), table.weight("z"), len(table), "b" in table) == (2, 0, 2, True)
    assert sorted(table.rows()) == ["a", "a", "b"]
    assert table.is_table
    assert not table.is_set
    assert set(table) == {"a", "b"}
    assert hash(table) == hash(ZSet({"b": 1, "a": 2}))
    with pytest.raises(ValueError, match="negative"):
        (-table).rows()


def test_changelog_rows_are_weights() -> None:
    rows = [(RowKind.INSERT, "a"), (RowKind.UPDATE_BEFORE, "a"), (RowKind.UPDATE_AFTER, "b")]
    assert ZSet.from_changelog(rows) == ZSet({"b": 1})
    assert ZSet.from_changelog([*rows, (RowKind.DELETE, "b")]) == ZSet()


def test_aggregate_and_null_keys() -> None:
    rows = ZSet.of([("x", 1), ("x", 2), ("y", 5)])
    sums = rows.aggregate(lambda r: r[0], lambda k, z: (k, sum(v * w for (_, v), w in z.items())))
    assert sums == ZSet.of([("x", 3), ("y", 5)])
    nulls = ZSet.of([(None, 1)])
    assert not nulls.join(nulls, lambda r: r[0], lambda r: r[0], lambda a, b: (a, b))
    assert nulls.anti_join(nulls, lambda r: r[0], lambda r: r[0]) == nulls
