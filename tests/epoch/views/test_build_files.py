"""How many rows a file of a first build has: as many as its share of the budget can hold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from mview.delta.parquet import read_parquet
from mview.epoch.views.build import _FILE_ROWS, _rows_per_file, _write_here
from mview.memory import Memory
from mview.plan.definition import parse_view
from mview.relation import RelationId
from tests.relations import keyed

TABLES = keyed({"shop.a": (1_000_000, 100), "shop.b": (300, 900_000), "shop.empty": (0, 0)})


@pytest.mark.parametrize(
    ("budget", "tables", "rows"),
    [
        (4 << 30, "shop.a", _FILE_ROWS),
        (128 << 20, "shop.a", (4 << 20) // 100),
        (128 << 20, "shop.b", (4 << 20) // 900_000),
        (4 << 30, "shop.b", (64 << 20) // 900_000),
        (128 << 20, "shop.a cross join shop.b", (4 << 20) // 900_100),
        (128 << 20, "shop.empty", _FILE_ROWS),
    ],
)
def test_wide_rows_make_files_of_few_rows(budget: int, tables: str, rows: int) -> None:
    def mirror(name: RelationId, schema: object) -> object:
        count, width = TABLES[name]
        return SimpleNamespace(nbytes=lambda state: count * width)

    engine = SimpleNamespace(mirror=mirror, memory=Memory(budget))
    states = {name: SimpleNamespace(schema=None, rows=count) for name, (count, _) in TABLES.items()}
    view = parse_view(f"select 1 as one from {tables}", "v")
    assert _rows_per_file(cast(Any, engine), view, cast(Any, states)) == rows


@pytest.mark.parametrize(("ids", "files"), [([3, 1, 5, 2, 4], [[1, 2], [3, 4], [5]]), ([], [])])
def test_files_of_a_build_in_process_are_in_one_order(
    tmp_path: Path, ids: list[int], files: list[list[int]]
) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64()), "double": pa.array([2 * i for i in ids])})
    written = _write_here(rows, tmp_path / "build", ["id"], 2)
    assert [read_parquet(file, None)["id"].to_pylist() for file in written] == files
    assert [read_parquet(file, None)["double"].to_pylist() for file in written] == [
        [2 * number for number in file] for file in files
    ]
