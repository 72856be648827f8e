"""KeySet: membership, exactness, and bytes per key."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mview.errors import CorruptionError, UserError
from mview.rows.key_sets import KeySet
from mview.schema import parse_type
from tests.seeds import seeds

EXTREMES = [-(2**63), -1, 0, 1, 2**63 - 1]
CASES: dict[str, tuple[list[str], list[tuple[Any, ...]]]] = {
    "bigint": (["bigint"], [(n,) for n in EXTREMES]),
    "tinyint": (["tinyint"], [(n,) for n in (-128, 0, 5, 127)]),
    "date": (["date"], [(dt.date(1969, 1, 1),), (dt.date(2020, 1, 1),), (dt.date(9999, 1, 1),)]),
    "timestamp": (
        ["timestamp"],
        [(dt.datetime(2020, 1, 1, n, tzinfo=dt.timezone.utc),) for n in range(5)],
    ),
    "string": (["string"], [("",), ("a",), ("a\0",), ("ä",), ("a" * 300,)]),
    "binary": (["binary"], [(b"",), (b"\0",), (b"\0\0",)]),
    "decimal": (["decimal(20,2)"], [(Decimal("1.00"),), (Decimal("-1.00"),), (Decimal("10.00"),)]),
    "double": (["double"], [(1.5,), (0.0,), (-2.0,)]),
    "two strings": (["string", "string"], [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", "")]),
    "two numbers": (["int", "int"], [(1, 1), (1, 2), (2, 1), (2, 2)]),
    "mixed": (
        ["string", "int", "boolean", "decimal(5,1)"],
        [
            ("a", 1, True, Decimal(1)),
            ("a", 1, False, Decimal(1)),
            ("a", 2, True, Decimal(1)),
            ("a1", 1, True, Decimal(1)),
            ("a", 1, True, Decimal("1.1")),
        ],
    ),
}


def rows_of(types: list[str], rows: list[tuple[Any, ...]]) -> tuple[pa.Table, pa.Schema]:
    schema = pa.schema([pa.field(f"k{n}", parse_type(t), False) for n, t in enumerate(types)])
    dicts = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.Table.from_pylist(dicts, schema=schema), schema


@pytest.mark.parametrize("name", CASES)
def test_holds_exactly_its_keys(name: str) -> None:
    types, keys = CASES[name]
    for seed in seeds(10):
        rng = random.Random(seed)
        inside = rng.sample(keys, rng.randint(0, len(keys)))
        table, schema = rows_of(types, inside + inside[:1])
        found = KeySet.from_bytes(KeySet.of(table, schema).to_bytes())
        assert len(found) == len(inside)
        every, _ = rows_of(types, keys)
        assert found.contains(every, schema).tolist() == [key in inside for key in keys]


@pytest.mark.parametrize("name", CASES)
def test_union_and_bytes(name: str) -> None:
    types, keys = CASES[name]
    table, schema = rows_of(types, keys)
    left, right = KeySet.of(table.slice(0, 2), schema), KeySet.of(table.slice(1), schema)
    whole = KeySet.of(table, schema)
    assert left.union(right) == whole == KeySet.from_bytes(whole.to_bytes())
    assert KeySet.empty(schema).union(whole) == whole.union(KeySet.empty(schema)) == whole
    assert KeySet.from_bytes(KeySet.empty(schema).to_bytes()) == KeySet.empty(schema) != whole


def test_one_key_whatever_the_file_calls_its_type() -> None:
    table, schema = rows_of(
        ["string", "timestamp"], [("x", dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc))]
    )
    other = table.cast(pa.schema([("k0", pa.large_string()), ("k1", pa.timestamp("us", "+02:00"))]))
    chunked = pa.concat_tables([other.slice(0, 0), other, other])
    assert KeySet.of(table, schema).contains(chunked, schema).all()


def test_zero_has_no_sign() -> None:
    zero, schema = rows_of(["double"], [(0.0,)])
    minus, _ = rows_of(["double"], [(-0.0,)])
    assert KeySet.of(zero, schema).contains(minus, schema).all()


def test_null_key_is_refused() -> None:
    table = pa.table({"k0": pa.array([1, None], pa.int64())})
    with pytest.raises(UserError, match="'k0' is NULL"):
        KeySet.of(table, table.schema)


def test_other_bytes_are_refused() -> None:
    with pytest.raises(CorruptionError):
        KeySet.from_bytes(b"x123")
    with pytest.raises(CorruptionError):
        KeySet.from_bytes(b"h123")


def test_five_percent_of_keys_cost_less_than_a_byte_per_row() -> None:
    rng = np.random.default_rng(1)
    changed = rng.choice(100_000, 5_000, replace=False)
    numbers = pa.table({"k0": pa.array(changed * 3 + 10**12)})
    texts = pa.table({"k0": pa.array([f"customer-{n:012d}" for n in changed])})
    sizes = [len(KeySet.of(table, table.schema).to_bytes()) for table in (numbers, texts)]
    assert sizes[0] < 1.3 * 5_000
    assert sizes[1] < 16.01 * 5_000
