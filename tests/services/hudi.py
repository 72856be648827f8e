"""hudi-rs: the tests' second opinion on what the sink for Hudi writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from hudi import HudiTableBuilder

from mview.testing.view import rows_of

Row = tuple[Any, ...]


def read_hudi(table: Path, schema: pa.Schema) -> list[Row] | None:
    """The rows of a table by these columns, timestamps as micros; None: there is none."""
    if not (table / ".hoodie" / "hoodie.properties").exists():
        return None
    parts = [pa.record_batch(part) for part in _table(table).read()]
    if not parts:
        return []
    rows = pa.Table.from_batches(parts)
    names = [name for name in rows.schema.names if not name.startswith("_hoodie_")]
    assert names == schema.names
    return rows_of(rows.select(names))


def slices_of(table: Path) -> int:
    """How many files a reader of a table opens."""
    return sum(
        bool(piece.base_file_name) + len(piece.log_file_names)
        for piece in _table(table).get_file_slices()
    )


def _table(table: Path) -> Any:
    return HudiTableBuilder.from_base_uri(table.as_uri()).build()
