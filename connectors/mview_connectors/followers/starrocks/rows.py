"""Rows of a view as StarRocks takes and gives them: types, JSON for loads, requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from mview.errors import UserError
from mview.follower import FollowerTarget, Step, mark_of
from mview_connectors.followers.sql.follower import finite
from mview_connectors.followers.sql.mysql import INTEGERS_AND_DATES

#: Columns of ours.
KIND_COLUMN, MARK_COLUMN = "_mview", "_mark"

#: What a load does with a row, beside its columns: 0 upserts, 1 deletes.
OPERATION = "__op"

#: Bytes of JSON in one request: a back end holds each as a whole while it reads it.
_REQUEST_BYTES = 32 << 20

#: Rows that are turned into JSON at once.
ROWS = 10_000

#: Bytes of JSON in one transaction of a fill, which are many; a step is one, however large.
_FILL_BYTES = 256 << 20

#: Bytes of the longest VARCHAR.
_VARCHAR = 1_048_576


class RowsOfLoads:
    """Makes the objects that loads bring.

    Args:
        target: the view and the sink.
    """

    def __init__(self, target: FollowerTarget) -> None:
        self._target = target

    def json(self, batch: pa.RecordBatch, operation: int) -> Iterator[dict[str, Any]]:
        """Rows as objects; all of a batch are looked at before the first goes out."""
        names = [*batch.schema.names, KIND_COLUMN, OPERATION]
        for begin in range(0, batch.num_rows, ROWS):
            part = batch.slice(begin, ROWS)
            columns = [
                self._values(column, name)
                for name, column in zip(part.schema.names, part.columns, strict=True)
            ]
            for row in zip(*columns, strict=True):
                yield dict(zip(names, (*row, 0, operation), strict=True))

    def _values(self, column: pa.Array, name: str) -> list[Any]:
        """Values that JSON holds exactly; numbers that a reader may take for a double are texts."""
        kind = column.type
        if pa.types.is_floating(kind):
            finite(pa.chunked_array([column]), name, "JSON")
        elif pa.types.is_string(kind):
            longest = pc.max(pc.binary_length(column)).as_py()
            if longest is not None and longest > _VARCHAR:
                raise UserError(
                    f"a value of view {self._target.view} is too long for sink {self._target.sink}",
                    where=f"column {name}",
                    got=f"{longest} bytes",
                    allowed=f"{_VARCHAR} bytes",
                    safe="nothing of the commit was brought; other sinks go on",
                    hint="shorten it in the view: left(…, n)",
                )
        elif pa.types.is_decimal(kind):
            return [None if value is None else f"{value:f}" for value in column.to_pylist()]
        elif pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us")).cast(pa.string())
        elif pa.types.is_date(kind) or pa.types.is_int64(kind):
            column = column.cast(pa.string())
        listed: list[Any] = column.to_pylist()
        return listed

    def mark(self, step: Step) -> dict[str, Any]:
        """The row of the mark; its key columns hold anything."""
        row = {
            name: _nothing(self._target.schema.column(name).type)
            for name in self._target.schema.key
        }
        text = mark_of(self._target, step).to_text()
        return {**row, KIND_COLUMN: 1, MARK_COLUMN: text, OPERATION: 0}


def requests_of(rows: Iterator[dict[str, Any]]) -> Iterator[tuple[int, bytes]]:
    """Rows in requests of bounded size: their number, and an array of JSON."""
    waiting: list[bytes] = []
    size = 0
    for row in rows:
        text = orjson.dumps(row)
        if waiting and size + len(text) > _REQUEST_BYTES:
            yield len(waiting), b"[" + b",".join(waiting) + b"]"
            waiting, size = [], 0
        waiting.append(text)
        size += len(text)
    if waiting:
        yield len(waiting), b"[" + b",".join(waiting) + b"]"


def in_transactions(
    requests: Iterator[tuple[int, bytes]],
) -> Iterator[Iterator[tuple[int, bytes]]]:
    """Requests by transactions of bounded size."""
    ahead = next(requests, None)

    def part() -> Iterator[tuple[int, bytes]]:
        nonlocal ahead
        size = 0
        while ahead is not None and (not size or size + len(ahead[1]) <= _FILL_BYTES):
            size += len(ahead[1])
            yield ahead
            ahead = next(requests, None)

    while ahead is not None:
        yield part()


def column_type(kind: pa.DataType, *, in_key: bool) -> str:
    """StarRocks' type of a column; after `!`: why there is none."""
    if pa.types.is_floating(kind):
        if in_key:
            return "!no floating-point numbers in a key"
        return "FLOAT" if pa.types.is_float32(kind) else "DOUBLE"
    if pa.types.is_decimal(kind):
        if in_key:
            return "!no decimals in a key: cast it to bigint or string"
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_string(kind):
        return f"VARCHAR({_VARCHAR})"
    if pa.types.is_binary(kind):
        return "!no binary: a load has no form of it; hex(…), for example"
    return _TYPES.get(kind, "!no arrays: cast it to a string")


_TYPES = {
    **INTEGERS_AND_DATES,
    pa.timestamp("us", tz="UTC"): "DATETIME",
    pa.timestamp("us"): "DATETIME",
}


def _nothing(kind: pa.DataType) -> Any:
    """A value of a key column that means nothing."""
    if pa.types.is_string(kind):
        return ""
    if pa.types.is_date(kind):
        return "1970-01-01"
    if pa.types.is_timestamp(kind):
        return "1970-01-01 00:00:00"
    return False if pa.types.is_boolean(kind) else 0


def to_arrow(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column's values as the driver gives them."""
    if pa.types.is_boolean(kind):
        return pa.array(values, pa.int8()).cast(kind)
    if pa.types.is_float32(kind):
        return pa.array(values, pa.float64()).cast(kind)
    return pa.array(values, kind)
