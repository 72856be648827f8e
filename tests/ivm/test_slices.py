"""Slices: the keys of a look-up, and which rows are one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mview.connector import WEIGHT
from mview.execute.slices import Changes, consolidate, key_values
from mview.ivm.fetches import comparable
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


def test_null_is_a_key_where_it_matches_null() -> None:
    assert keys([1, None, 1]) == [1]
    assert keys([1, None, 1], null_safe=True) == [1, None]


def test_rows_without_a_partner_are_found_by_null() -> None:
    assert keys([1], null_safe=True, or_null=True) == [1, None]
    assert keys([], null_safe=True, or_null=True) == [None]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.float64())])
def test_zeros_of_both_signs_are_one_row(kind: pa.DataType) -> None:
    cells = [[0.0], [-0.0]] if pa.types.is_list(kind) else [0.0, -0.0]
    weights = [pa.array(one, pa.int32()) for one in ([1, -1], [1, 2])]
    none, three = (consolidate(pa.table({"x": pa.array(cells, kind), WEIGHT: w})) for w in weights)
    assert none.num_rows == 0
    assert three[WEIGHT].to_pylist() == [3]


def test_copies_of_a_row_go_and_come_as_often_as_they_do() -> None:
    rows = pa.table({"x": [1, 2], "y": [0, 0], WEIGHT: pa.array([-3, 2], pa.int32())})
    change = Changes(rows).through(table_schema("x bigint, y bigint", ""))
    assert change.gone["x"].to_pylist() == [1, 1, 1]
    assert change.come["x"].to_pylist() == [2, 2]


def test_decimals_are_comparable_where_none_is_rounded() -> None:
    of = pa.decimal128
    assert comparable(of(10, 2), of(12, 2))
    assert not comparable(of(10, 2), of(10, 3))
