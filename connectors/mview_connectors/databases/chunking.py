"""Where to cut a table: bounds found over the key's index, with the maximum key frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from mview.schema import TableSchema
from mview.snapshot import KeyValues

#: A whole-number key is cut by arithmetic when at least this part of its span is used: then the
#: chunks are at least about half full, and no query is needed.
_DENSE = 0.5


@dataclass(frozen=True)
class Size:
    """What the database's statistics say of a table: both are estimates."""

    rows: int
    row_bytes: int

    def limit(self, rows: int, size: int) -> int:
        """Rows per chunk so that a chunk has at most `rows` rows and about `size` bytes."""
        return max(1, min(rows, size // max(1, self.row_bytes)))


class KeyLookups(Protocol):
    """Cheap look-ups over the chunk columns of one table, all answered from an index."""

    def minimum(self) -> KeyValues | None:
        """The smallest key; None for an empty table."""
        ...

    def maximum(self) -> KeyValues | None:
        """The largest key; None for an empty table."""
        ...

    def skip(self, low: KeyValues, rows: int, maximum: KeyValues) -> KeyValues | None:
        """The key `rows` rows after the first one >= `low`; None beyond `maximum`."""
        ...

    def after(self, key: KeyValues, maximum: KeyValues) -> KeyValues | None:
        """The smallest key greater than `key`; None beyond `maximum`."""
        ...


def whole_number(arrow: pa.DataType) -> bool:
    """Whether all values of the type are integers (bigint unsigned is a decimal of scale 0)."""
    return bool(pa.types.is_integer(arrow) or (pa.types.is_decimal(arrow) and arrow.scale == 0))


def find_bounds(
    keys: KeyLookups,
    schema: TableSchema,
    columns: tuple[str, ...],
    maximum: KeyValues,
    size: Size,
    limit: int,
) -> tuple[KeyValues, ...]:
    """The bounds between chunks of at most `limit` rows up to `maximum`.

    Where the chunk columns are not the whole key, rows that agree in all of them stay together, so
    a chunk can be larger.
    """
    low = keys.minimum()
    if low is None:
        return ()
    if len(schema.key) == 1 and whole_number(schema.column(columns[0]).type):
        span = maximum[0] - low[0] + 1
        if size.rows >= span * _DENSE:
            # Keys are unique: a range as wide as the limit cannot hold more rows than that.
            return tuple((bound,) for bound in range(low[0] + limit, maximum[0] + 1, limit))
    bounds: list[KeyValues] = []
    while (bound := keys.skip(low, limit, maximum)) is not None:
        if bound == low:
            bound = keys.after(low, maximum)
            if bound is None:
                break
        bounds.append(bound)
        low = bound
    return tuple(bounds)
