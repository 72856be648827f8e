"""Slices: the keys of a look-up, and which rows are one."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Context, Decimal

import pyarrow as pa
import pytest

from mview.connector import WEIGHT
from mview.execute.kept.sums import add_up
from mview.execute.slices import (
    Change,
    Changes,
    before_and_after,
    consolidate,
    distinct,
    key_values,
)
from mview.ivm.facts.exact import comparable
from mview.rows import values as values_module
from mview.rows.match import first_rows, row_codes
from tests.ivm.world import table_schema
from tests.seeds import seeds

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


GROUPS = {
    "a": [pa.array(["x", "", None]), pa.array([b"\0", b"", None])],
    "b": [pa.array([1, 2**31 - 1, None], pa.int32()), pa.array([True, False, None])],
    "c": [pa.array([0, 1, None], pa.decimal128(4, 1)), pa.array([0, 2**40, None]).view("date64")],
}
EXACT = Context(prec=100)
SUMS = [
    pa.int64(),
    pa.int16(),
    pa.decimal128(5, 2),
    pa.decimal128(30, 0),
    pa.decimal128(38, 10),
    pa.decimal128(38, 38),
]


def summed(state: pa.Table, partial: pa.Table, groups: list[str], few: int) -> object:
    """What `add_up` tells; `few` as in mview/rows/values.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values_module, "_FEW", few)
        names = [name for name in state.column_names if name not in groups]
        try:
            rows = add_up(groups, names, state, partial, {}, {}, True)
        except pa.ArrowInvalid:
            return "does not fit"
    assert rows is not None
    assert rows.schema == state.schema
    assert distinct(rows.select(groups)).num_rows == rows.num_rows if groups else True
    return Counter(map(repr, rows.to_pylist()))


def numbers(chance: random.Random, kind: pa.DataType, count: int, digits: int) -> pa.Array:
    """Some of so many digits at the most, and NULLs."""
    most = 10**digits
    units = [chance.choice([None, chance.randrange(1 - most, most)]) for _ in range(count)]
    if pa.types.is_integer(kind):
        return pa.array(units, kind)
    scaled = [None if u is None else Decimal(u).scaleb(-kind.scale, EXACT) for u in units]
    return pa.array(scaled, kind)


def part_of(
    chance: random.Random, keys: dict[str, pa.Array], kinds: list[pa.DataType], count: int
) -> pa.Table:
    """Rows with a group of the keys, and numbers of which the sums may not fit."""
    columns = {
        name: values.take([chance.randrange(3) for _ in range(count)])
        for name, values in keys.items()
    }
    for number, kind in enumerate(kinds):
        most = 2 if kind == pa.int16() else 15 if pa.types.is_integer(kind) else kind.precision
        columns[f"n{number}"] = numbers(chance, kind, count, chance.randint(1, most))
    return pa.table(columns)


def test_sums_of_few_rows_are_those_of_many() -> None:
    for seed in seeds(60):
        chance = random.Random(seed)
        keys = {name: chance.choice(GROUPS[name]) for name in "abc"[: chance.randrange(4)]}
        kinds = [pa.int64(), *(chance.choice(SUMS) for _ in range(2))]
        state = part_of(chance, keys, kinds, 9 if keys else 1)
        state = state.take(pa.array(first_rows(row_codes([state.select(list(keys))])[0])[0]))
        partial = part_of(chance, keys, kinds, chance.randrange(1, 20))
        signs = [chance.choice([1, -1]) for _ in range(len(partial))]
        partial = partial.append_column(WEIGHT, pa.array(signs, pa.int32()))
        few, many = (summed(state, partial, list(keys), few) for few in (256, 0))
        assert few == many, seed


@pytest.mark.parametrize("few", [256, 0])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "kind", [kind for kind in SUMS if pa.types.is_decimal(kind) or kind == pa.int16()], ids=str
)
def test_a_sum_that_does_not_fit_is_refused(kind: pa.DataType, sign: int, few: int) -> None:
    digits = kind.precision if pa.types.is_decimal(kind) else 15

    def column(number: int) -> pa.Array:
        if pa.types.is_integer(kind):
            return pa.array([number], kind)
        return pa.array([Decimal(number).scaleb(-kind.scale, EXACT)], kind)

    most = 10**digits - 1 if pa.types.is_decimal(kind) else 2**digits - 1
    if sign < 0 and pa.types.is_integer(kind):
        most += 1
    rows = pa.array([1], pa.int64())
    state = pa.table({"n": rows, "sum": column(sign * most)})
    partial = pa.table({"n": rows, "sum": column(1)})
    goes, comes = (
        partial.append_column(WEIGHT, pa.array([weight], pa.int32())) for weight in (-sign, sign)
    )
    assert summed(state, goes, [], few) != "does not fit"
    assert summed(state, comes, [], few) == "does not fit"
