"""A column that changes from 0.0 to -0.0 changes: its text does. NaN never does."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mview.connector import WEIGHT
from mview.execute.slices import Changes
from mview.rows.equality import identical_rows
from tests.ivm.world import DuckEngine, World, table_schema

NAN = float("nan")


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.float64())])
def test_cells_are_compared_bit_by_bit(kind: pa.DataType) -> None:
    def column(*values: float | None) -> pa.ChunkedArray:
        cells = [[one] for one in values] if pa.types.is_list(kind) else [*values]
        return pa.chunked_array([pa.array(cells[:2], kind), pa.array(cells[2:], kind)])

    left = column(0.0, 0.0, NAN, None, None, 1.5)
    right = column(0.0, -0.0, -NAN, None, 0.0, 2.5)
    same = identical_rows([left], [right]).tolist()
    assert same == [True, False, True, True, False, False]


def test_an_update_from_zero_to_negative_zero_is_seen() -> None:
    schema = table_schema("id bigint, x double", "id")
    rows = pa.table(
        {"id": [1, 1, 2, 2], "x": [0.0, -0.0, NAN, NAN], WEIGHT: pa.array([-1, 1] * 2, pa.int32())}
    )
    change = Changes(rows).through(schema)
    assert (change.gone["id"].to_pylist(), change.come["id"].to_pylist()) == ([1], [1])
    assert str(change.come["x"][0].as_py()) == "-0.0"


def test_the_text_of_it_follows() -> None:
    schema = table_schema("id bigint, x double", "id")
    views = {"v": "select id, cast(x as string) as t from t"}
    world = World({"t": schema}, views, DuckEngine())
    world.epoch({"t": [(1, (1, 0.0))]})
    found = world.epoch({"t": [(-1, (1, 0.0)), (1, (1, -0.0))]})
    assert found == {"v": [(1, (1, "-0.0")), (-1, (1, "0.0"))]}
