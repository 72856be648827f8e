"""Snapshot chunks: primary-key ranges of a table, how keys route to them, and their markers."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from mview.files.records import fields, record

#: A key or bound: values of the chunk columns, in order.
KeyValues = tuple[Any, ...]


@dataclass(frozen=True)
class Chunk:
    """The rows whose chunk columns are in [low, high), or [low, high] in the last chunk.

    Attributes:
        number: position in the plan, from 0.
        low: inclusive lower bound; None = no bound.
        high: upper bound, None = no bound: exclusive, but inclusive where `closed`. None and
            `closed`: of a table that was empty at planning: no rows.
    """

    number: int
    low: KeyValues | None
    high: KeyValues | None
    closed: bool = False


@dataclass(frozen=True)
class ChunkPlan:
    """How a table is split, frozen before its first chunk is read.

    Attributes:
        table: `<connection>.<table>`.
        columns: the chunk columns: the longest prefix of the primary key that the database and this
            engine order alike (integers, dates, binary-collated strings). Empty: one chunk.
        bounds: ascending; bound i is where chunk i ends (exclusive) and chunk i+1 begins.
        maximum: the largest key at planning; the last chunk reads up to it. None: no rows.
        rows: estimated rows of the table, for the progress bar.
    """

    table: str
    columns: tuple[str, ...]
    bounds: tuple[KeyValues, ...]
    maximum: KeyValues | None
    rows: int

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks in order; at least one, also for an empty table."""
        lows: list[KeyValues | None] = [None, *self.bounds]
        highs: list[KeyValues | None] = [*self.bounds, self.maximum]
        last = len(lows) - 1
        return tuple(
            Chunk(n, low, high, closed=n == last)
            for n, (low, high) in enumerate(zip(lows, highs, strict=True))
        )

    @property
    def open_chunks(self) -> tuple[Chunk, ...]:
        """The same, the last one without an end: with the rows that came after planning."""
        *first, last = self.chunks
        return (*first, replace(last, high=None, closed=False))

    def route(self, keys: pa.Table) -> Sequence[int]:
        """The chunk number of each row of `keys` (which has at least the chunk columns).

        A key above the planned maximum routes to the last chunk: it can only come by the changelog.
        """
        if not self.bounds:
            return [0] * keys.num_rows
        if len(self.columns) == 1 and pa.types.is_integer(keys.schema.field(self.columns[0]).type):
            bounds = np.array([bound[0] for bound in self.bounds], dtype=np.int64)
            values = keys.column(self.columns[0]).to_numpy()
            return [int(n) for n in np.searchsorted(bounds, values, side="right")]
        columns = [keys.column(name).to_pylist() for name in self.columns]
        ordered = [tuple(map(_order_form, bound)) for bound in self.bounds]
        return [
            bisect_right(ordered, tuple(map(_order_form, key)))
            for key in zip(*columns, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """A JSON form; see `from_json`."""
        return {
            "table": self.table,
            "columns": list(self.columns),
            "bounds": [_values_to_json(bound) for bound in self.bounds],
            "maximum": None if self.maximum is None else _values_to_json(self.maximum),
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, data: object) -> ChunkPlan:
        """The plan of a JSON form written by `to_json`.

        Raises:
            ValueError: it is another one.
        """
        form = fields(
            data,
            {
                "table": str,
                "columns": tuple[str, ...],
                "bounds": list[list[Any]],
                "maximum": list[Any] | None,
                "rows": int,
            },
        )
        bounds, maximum = form.pop("bounds"), form.pop("maximum")
        return cls(
            **form,
            bounds=tuple(map(_values_from_json, bounds)),
            maximum=None if maximum is None else _values_from_json(maximum),
        )


def _order_form(value: Any) -> Any:
    # Strings order by their UTF-8 bytes, as binary collations do; str order differs above U+FFFF
    # only in UTF-16 databases, bytes never do.
    return value.encode() if isinstance(value, str) else value


def _values_to_json(values: KeyValues) -> list[Any]:
    encoded: list[Any] = []
    for value in values:
        if isinstance(value, dt.datetime):
            encoded.append({"timestamp": value.isoformat()})
        elif isinstance(value, dt.date):
            encoded.append({"date": value.isoformat()})
        elif isinstance(value, int | str):
            encoded.append(value)
        else:
            raise TypeError(f"{type(value).__name__} cannot be a chunk bound")
    return encoded


#: Makes values of their texts, by the kind that stands beside them.
_TIMES: Mapping[str, Callable[[str], dt.date]] = {
    "date": dt.date.fromisoformat,
    "timestamp": dt.datetime.fromisoformat,
}


def _values_from_json(values: list[Any]) -> KeyValues:
    decoded: list[Any] = []
    for value in values:
        if isinstance(value, dict):
            ((kind, text),) = value.items()
            parse = _TIMES.get(kind)
            if parse is None or not isinstance(text, str):
                raise ValueError(f"a bound is {value}")
            decoded.append(parse(text))
        elif type(value) in (int, str):
            decoded.append(value)
        else:
            raise ValueError(f"a bound is {value}")
    return tuple(decoded)


@dataclass(frozen=True)
class Marker:
    """What is known of one staged snapshot chunk: the body of a marker row.

    Attributes:
        table: `<connection>.<table>`.
        chunk: number of the chunk in the table's plan.
        file: staged Parquet file, relative to the mirror's base folder; "" for an empty chunk.
        rows: rows in the file.
        size: bytes of the file.
        digest: CRC-32 of the file (hex): a torn or foreign file is never registered.
        high_ms: source clock after the read.
    """

    table: str
    chunk: int
    file: str
    rows: int
    size: int
    digest: str
    high_ms: int

    def to_json(self) -> dict[str, Any]:
        """A JSON form; see `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Marker:
        """The marker of a JSON form written by `to_json`.

        Raises:
            ValueError: it is another one.
        """
        return record(cls, data)
