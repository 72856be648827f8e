"""Which rows are the same: all that answers it, held against a plain rule over all types."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mview.connector import WEIGHT
from mview.execute.local.index import ResidentTable
from mview.execute.slices import consolidate
from mview.rows import match as match_module
from mview.rows import values as values_module
from mview.rows.equality import identical_rows, same_rows
from mview.rows.hashing import hash_rows
from mview.rows.key_sets import KeySet
from mview.rows.lookup_keys import first_duplicate, typed_keys
from mview.rows.match import IndexedRows, first_rows, match, row_codes
from mview.schema import parse_type
from tests.relations import rel
from tests.seeds import seeds

#: The number of which the hash is that of NULL.
_AS_NULL = 0x6A09E667F3BCC909
#: Two NaNs: the usual one, and one with a sign and other bits.
NAN, ODD = float("nan"), struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\xff")[0]
FLOATS = [0.0, -0.0, NAN, ODD, -math.inf, 1.5, None]
DAY = dt.datetime(1969, 12, 31, 23, tzinfo=dt.timezone.utc)
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False, None],
    "tinyint": [-128, 0, 127, None],
    "bigint": [0, -1, 2**63 - 1, -(2**63), None],
    "float": FLOATS,
    "double": FLOATS,
    "decimal(5,2)": [Decimal("0.00"), Decimal("-0.01"), Decimal("999.99"), None],
    "decimal(38,10)": [Decimal(0), Decimal("9" * 28), Decimal("1e-10"), None],
    "string": ["", "a", "A", "a ", "é", "e\u0301", "a" * 20, None],
    "binary": [b"", b"\0", b"\0\0", None],
    "date": [dt.date(1600, 1, 1), dt.date(1970, 1, 1), None],
    "timestamp": [DAY, DAY + dt.timedelta(microseconds=1), None],
    "timestamp_ntz": [DAY.replace(tzinfo=None), None],
    "array<bigint>": [[], [1], [1, None], [None], [2, 1], None],
    "array<string>": [[], [""], ["a", "b"], ["ab"], ["b", "a"], [None], None],
    "array<decimal(5,2)>": [[], [Decimal("0.00")], [Decimal("0.00"), None], None],
    "array<double>": [[], [0.0], [-0.0], [NAN], [ODD], [1.5, -0.0], [1.5, None], [None], None],
    "array<array<float>>": [[], [[]], [[0.0], []], [[-0.0], []], [[], [0.0]], [[NAN]], [[ODD]]],
}
TOGETHER = [
    ["double", "string"],
    ["array<double>", "bigint", "float"],
    ["array<array<float>>", "array<string>", "decimal(5,2)"],
    ["timestamp", "binary", "boolean", "date"],
]
TYPES = [[kind] for kind in VALUES] + TOGETHER
Rule = Any


def equal(value: Any) -> Any:
    """What equal values have alike."""
    if isinstance(value, list):
        return tuple(map(equal, value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def identical(value: Any) -> Any:
    """What values have alike that look alike."""
    if isinstance(value, list):
        return tuple(map(identical, value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    return value


def keys_of(table: pa.Table, rule: Rule = equal) -> list[Any]:
    return [tuple(map(rule, row.values())) for row in table.to_pylist()]


def a_column(chance: random.Random, kind: str, count: int) -> pa.ChunkedArray:
    """In several pieces, each a slice, with NaNs of several bits."""
    cells = [chance.choice(VALUES[kind]) for _ in range(count + 4)]
    whole = pa.array(cells, parse_type(kind))
    if kind == "float":  # Python's floats lose the bits of a NaN on the way
        bits = np.array([np.nan if v is None else v for v in cells], np.float32).view(np.uint32)
        bits[1::2] |= np.isnan(bits[1::2].view(np.float32)) * np.uint32(1 << 31 | 1)
        empty = np.array([v is None for v in cells])
        whole = pa.array(bits.view(np.float32), mask=empty, from_pandas=False)
    cut = chance.randrange(count + 1)
    return pa.chunked_array([whole.slice(2, cut), whole.slice(2 + cut, count - cut)])


def a_table(chance: random.Random, kinds: Sequence[str], count: int) -> pa.Table:
    return pa.table({f"c{n}": a_column(chance, kind, count) for n, kind in enumerate(kinds)})


@pytest.fixture(params=[values_module._FEW, 0], ids=["", "all as columns"], autouse=True)
def by_values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes few rows as values has a general way beside it."""
    monkeypatch.setattr(values_module, "_FEW", request.param)


@pytest.fixture(params=[False, True], ids=["", "all hashes collide"])
def collide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(match_module, "hash_rows", lambda cs: np.zeros(len(cs[0]), np.int64))
        monkeypatch.setattr(match_module, "is_exact", lambda types: False)
        monkeypatch.setattr(match_module, "tells", lambda columns: False)


@pytest.mark.usefixtures("collide")
@pytest.mark.parametrize("kinds", TYPES, ids=" ".join)
@pytest.mark.parametrize("few", [match_module._FEW, 0])
def test_all_answers_are_one(kinds: list[str], few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_module, "_FEW", few)
    for seed in seeds(3):
        chance = random.Random(seed)
        left, right = (a_table(chance, kinds, count) for count in (40, 25))
        ours, theirs = keys_of(left), keys_of(right)
        # Codes: equal for equal rows, over several tables.
        codes = np.concatenate(row_codes([left, left.slice(0, 0), right])).tolist()
        by_key = defaultdict(set)
        for key, code in zip(ours + theirs, codes, strict=True):
            by_key[key].add(code)
        assert len(by_key) == len(set(codes)) == sum(map(len, by_key.values()))
        # Pairs, with and without an index.
        wanted = right.take(first_rows(row_codes([right])[0])[0])
        places = {key: n for n, key in enumerate(keys_of(wanted))}
        assert len(places) == wanted.num_rows
        expected = [(n, places[key]) for n, key in enumerate(ours) if key in places]
        found = match(left, wanted), IndexedRows.of(left).match(IndexedRows.of(wanted))
        for pairs in found:
            assert list(zip(*map(np.ndarray.tolist, pairs), strict=True)) == expected
        # Row by row.
        some, others = left.slice(0, 25), right
        same = [a == b for a, b in zip(ours[:25], theirs, strict=True)]
        assert same_rows(some.columns, others.columns).tolist() == same
        looks = zip(keys_of(some, identical), keys_of(others, identical), strict=True)
        assert identical_rows(some.columns, others.columns).tolist() == [a == b for a, b in looks]
        # Duplicates, and keys that are looked up.
        twice = first_duplicate(left)
        assert (twice is None) == (len(set(ours)) == len(ours))
        assert twice is None or ours.count(ours[twice]) > 1
        assert typed_keys(left.schema, left.column_names, right, True) is not None


def test_the_number_that_has_the_hash_of_null_is_not_null() -> None:
    here, there = (pa.table({"c": pa.array(v, pa.int64())}) for v in ([1, _AS_NULL], [None, 1]))
    for rows, wanted in ((here, there), (there, here)):
        ours, theirs = IndexedRows.of(rows).match(IndexedRows.of(wanted))
        assert rows.take(ours).equals(wanted.take(theirs))
        assert len(ours) == 1


@pytest.mark.parametrize("wide", [(2**32, 1), (5, -1), (None, 3)])
def test_two_small_numbers_that_have_the_hash_of_others_are_not_those(
    wide: tuple[Any, Any],
) -> None:
    def rows(*pairs: tuple[Any, Any]) -> pa.Table:
        sides = zip("ab", zip(*pairs, strict=True), strict=True)
        return pa.table({name: pa.array([*side], pa.int64()) for name, side in sides})

    word = int(hash_rows(rows(wide).columns)[0]) % 2**64
    small = word >> 32, word % 2**32
    assert hash_rows(rows(wide).columns) == hash_rows(rows(small).columns)
    here, there = rows((1, 1), small, (1, 2)), rows((1, 2), wide, (7, 7))
    assert match(here, there)[0].tolist() == [2]
    assert match(there, here)[0].tolist() == [0]
    table = ResidentTable(rel("c.t"), ("a", "b"), there)
    assert table.lookup(["a", "b"], here, null_safe=True).to_pylist() == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("few", [match_module._FEW, 1])
def test_rows_in_runs_are_paired(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_module, "_FEW", few)
    for seed in seeds(4):
        chance = random.Random(seed)
        runs = [sorted(chance.sample(range(400), 100)) for _ in range(chance.randrange(1, 15))]
        pairs = [(first, number) for number, run in enumerate(runs) for first in run]
        rows = pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})
        wanted = chance.sample(pairs, 60) + [(1000 + n, 0) for n in range(20)]
        chance.shuffle(wanted)
        places = {pair: number for number, pair in enumerate(wanted)}
        found = match(rows, pa.table({"a": [a for a, _ in wanted], "b": [b for _, b in wanted]}))
        expected = [(n, places[pair]) for n, pair in enumerate(pairs) if pair in places]
        assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == expected


@pytest.mark.parametrize("kinds", TYPES, ids=" ".join)
def test_equal_rows_have_one_hash(kinds: list[str]) -> None:
    table = a_table(random.Random(3), kinds, 200)
    by_key = defaultdict(set)
    for key, found in zip(keys_of(table), hash_rows(table.columns).tolist(), strict=True):
        by_key[key].add(found)
    assert all(len(hashes) == 1 for hashes in by_key.values())
    assert len({hash for hashes in by_key.values() for hash in hashes}) == len(by_key)


@pytest.mark.parametrize("kinds", TYPES, ids=" ".join)
def test_sets_of_keys(kinds: list[str]) -> None:
    chance = random.Random(4)
    left, right = (a_table(chance, kinds, count).drop_null() for count in (9, 40))
    members = KeySet.of(left, left.schema)
    there = set(keys_of(left))
    assert len(members) == len(there)
    assert members.contains(right, left.schema).tolist() == [k in there for k in keys_of(right)]
    assert KeySet.from_bytes(members.to_bytes()) == members


@pytest.mark.parametrize("kinds", TYPES, ids=" ".join)
def test_rows_with_weights_are_added_up(kinds: list[str]) -> None:
    for seed in seeds(3):
        chance = random.Random(seed)
        table = a_table(chance, kinds, 40)
        weights = [chance.choice([-1, 1, 1, 2]) for _ in range(40)]
        expected: Counter[Any] = Counter()
        for key, weight in zip(keys_of(table, identical), weights, strict=True):
            expected[key] += weight
        added = consolidate(table.append_column(WEIGHT, pa.array(weights, pa.int32())))
        found = keys_of(added.drop_columns([WEIGHT]), identical)
        assert len(found) == len(set(found))
        assert added.schema.field(WEIGHT).type == pa.int32()
        sums = dict(zip(found, added[WEIGHT].to_pylist(), strict=True))
        assert sums == {key: weight for key, weight in expected.items() if weight}


@pytest.mark.parametrize("kinds", TYPES, ids=" ".join)
def test_null_on_one_side_alone(kinds: list[str]) -> None:
    chance = random.Random(5)
    left = a_table(chance, kinds, 40)
    right = left.slice(0, 20).drop_null()
    ours, theirs = row_codes([left, right])
    places = [n for n, row in enumerate(left.slice(0, 20).to_pylist()) if None not in row.values()]
    assert theirs.tolist() == ours[places].tolist()


def test_few_rows_need_no_object_of_python() -> None:
    """A text that is none, a day and an instant beyond its calendar."""
    texts = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xff\xff")
    )
    days, instants = pa.array([2**31 - 1] * 2, pa.int32()), pa.array([2**63 - 1] * 2, pa.int64())
    kinds = [pa.date32(), *map(parse_type, ("timestamp", "timestamp_ntz"))]
    columns = [days.view(kinds[0]), instants.view(kinds[1]), instants.view(kinds[2])]
    rows = pa.table([texts, *columns], names=list("abcd"))
    assert row_codes([rows])[0].tolist() == [0, 0]


def test_many_wide_columns_do_not_overflow() -> None:
    size = 3000
    rng = np.random.default_rng(1)
    table = pa.table({f"c{n}": rng.permutation(size) for n in range(8)})
    (codes,) = row_codes([table])
    assert len(set(codes.tolist())) == size
