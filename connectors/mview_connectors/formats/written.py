"""Arrow values as JSON has them, each as exact as it was: what `formats.values` reads again.

| type | JSON |
|---|---|
| boolean | true, false |
| integers | numbers |
| float, double | numbers that give the same value again; "NaN", "Infinity", "-Infinity" |
| decimal | text with all its decimal places: "12.50" |
| string | text |
| binary | base64 |
| date | "2024-02-29" |
| timestamp | "2024-02-29T23:59:59.123456Z", always UTC |
| timestamp_ntz | the same without Z |
| arrays | lists |
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from mview.schema import Column
from mview_connectors.formats.values import convert

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as orjson writes them; NULL is None."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # older versions of Arrow, of no chunks
            column = pa.concat_arrays(column.chunks) if column.chunks else pa.array([], column.type)
    kind = column.type
    if pa.types.is_list(kind):
        return _lists(column)
    if pa.types.is_timestamp(kind):
        column = pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    elif pa.types.is_date(kind):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(kind):
        return [None if value is None else decimal_text(value) for value in values]
    if pa.types.is_binary(kind):
        return [None if v is None else base64.b64encode(v).decode() for v in values]
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        return [_float(value) for value in values]
    return values


def decimal_text(value: Decimal) -> str:
    """A decimal without an exponent."""
    return format(value, "f")


def _float(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else _NOT_FINITE[str(value)]


def _lists(column: pa.ListArray) -> list[Any]:
    items = iter(json_values(column.flatten()))
    sizes = pc.list_value_length(column).to_pylist()
    return [None if size is None else [next(items) for _ in range(size)] for size in sizes]


def json_rows(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows as JSON objects of these columns."""
    columns = [json_values(rows.column(name)) for name in names]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def json_keys(rows: pa.RecordBatch, key: Sequence[str]) -> list[bytes]:
    """A text per row that is equal for equal keys: -0.0 is 0.0."""
    columns = []
    for name in key:
        values = json_values(rows.column(name))
        if pa.types.is_floating(rows.column(name).type):
            values = [v + 0.0 if type(v) is float else v for v in values]
        columns.append(values)
    return [
        orjson.dumps(dict(zip(key, values, strict=True))) for values in zip(*columns, strict=True)
    ]


#: Rows that are Python objects at once.
_ROWS = 10_000


def read_rows(
    texts: Iterable[bytes], schema: pa.Schema, *, may_lack: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of objects that `json_rows` has made, as they come.

    Args:
        texts: an object each.
        schema: the columns; what else an object has is left out.
        may_lack: others write there, too: what an object lacks is NULL.
    """
    ahead = iter(texts)
    while rows := [orjson.loads(text) for text in islice(ahead, _ROWS)]:
        columns = []
        for field in schema:
            name = field.name
            values = [row.get(name) if may_lack else row[name] for row in rows]
            columns.append(convert(values, Column(name, field.type), {}))
        yield pa.record_batch(columns, schema=schema)
