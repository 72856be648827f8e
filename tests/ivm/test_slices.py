"""Slices: the keys of a look-up, and which rows are one."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from mview.connector import WEIGHT
from mview.execute.slices import (
    Change,
    Changes,
    before_and_after,
    consolidate,
    distinct,
    key_values,
)
from mview.ivm.facts.exact import comparable
from tests.ivm.world import table_schema

KEY = pa.schema([pa.field("k", pa.int32(), False)])


def keys(
    values: list[int | None], *, null_safe: bool = False, or_null: bool = False
) -> list[object]:
    found = key_values(
        [pa.table({"x": pa.array(values, pa.int64())})], KEY, null_safe=null_safe, or_null=or_null
    )
    assert found.schema.types == [pa.int32()]
    return sorted(found["k"].to_pylist(), key=str)


def test_a_number_that_the_column_cannot_hold_matches_nothing() -> None:
    assert keys([2**31, 2**31 - 1, -(2**31), -(2**31) - 1]) == [-(2**31), 2**31 - 1]


def test_a_decimal_that_the_column_cannot_hold_matches_nothing() -> None:
    wide, narrow = pa.decimal128(30, 2), pa.schema([("k", pa.decimal128(4, 2))])
    values = [
        Decimal("123456789012345.00"),
        Decimal("99.99"),
        Decimal("-99.99"),
        Decimal("-100.00"),
        None,
    ]
    part = pa.table({"x": pa.array(values, wide)})
    for null_safe in (False, True):
        got = key_values([part], narrow, null_safe=null_safe, or_null=False)
        assert got.schema.types == narrow.types
        wanted = [Decimal("99.99"), Decimal("-99.99"), *([None] if null_safe else [])]
        assert got["k"].to_pylist() == wanted


def test_null_is_a_key_where_it_matches_null() -> None:
    assert keys([1, None, 1]) == [1]
    assert keys([1, None, 1], null_safe=True) == [1, None]


def test_rows_without_a_partner_are_found_by_null() -> None:
    assert keys([1], null_safe=True, or_null=True) == [1, None]
    assert keys([], null_safe=True, or_null=True) == [None]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.float64())])
def test_zeros_of_both_signs_are_equal_and_look_different(kind: pa.DataType) -> None:
    cells = [[0.0], [-0.0]] if pa.types.is_list(kind) else [0.0, -0.0]
    rows = pa.table({"x": pa.array(cells, kind), WEIGHT: pa.array([1, -1], pa.int32())})
    assert consolidate(rows).num_rows == 2
    assert consolidate(rows, signs=False).num_rows == 0
    assert distinct(rows.select(["x"])).num_rows == 1


def test_copies_without_a_key_are_counted_by_their_looks() -> None:
    schema = table_schema("x double", "")
    parts = [pa.table({"x": values}) for values in ([0.0, -0.0, 1.5, 1.5], [-0.0, 0.0, None])]
    change = Change(pa.table({"x": [-0.0, 1.5]}), pa.table({"x": [2.5]}))
    old, new = before_and_after(schema, parts, change)
    assert sorted(map(str, old["x"].to_pylist())) == ["-0.0", "0.0", "1.5", "1.5", "None"]
    assert sorted(map(str, new["x"].to_pylist())) == ["0.0", "1.5", "2.5", "None"]


def test_copies_of_a_row_go_and_come_as_often_as_they_do() -> None:
    rows = pa.table({"x": [1, 2], "y": [0, 0], WEIGHT: pa.array([-3, 2], pa.int32())})
    change = Changes(rows).through(table_schema("x bigint, y bigint", ""))
    assert change.gone["x"].to_pylist() == [1, 1, 1]
    assert change.come["x"].to_pylist() == [2, 2]


def test_decimals_are_comparable_where_none_is_rounded() -> None:
    of = pa.decimal128
    assert comparable(of(10, 2), of(12, 2))
    assert not comparable(of(10, 2), of(10, 3))
