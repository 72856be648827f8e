"""Ranges of a column's values: what a look-up of a band asks for."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from mview.rows.hashing import hash_rows


@dataclass(frozen=True)
class Range:
    """The values of a column between two bounds of its type, both included; never NULL.

    The type is one whose values compare as their integers do: a whole number, date or timestamp.

    Attributes:
        column: the column.
        low: the lower bound.
        high: the upper bound.
    """

    column: str
    low: pa.Scalar
    high: pa.Scalar

    @property
    def hashes(self) -> tuple[int, int]:
        """The bounds as the column's hashes are, which order as the values do."""
        low, high = hash_rows([pa.chunked_array([[self.low, self.high]], self.low.type)])
        return int(low), int(high)

    def rows_of(self, rows: pa.Table) -> pa.Table:
        """Those of the rows whose value is in the range."""
        column = rows[self.column]
        inside = pc.and_(pc.greater_equal(column, self.low), pc.less_equal(column, self.high))
        return rows.filter(inside)


def range_of(column: str, kind: pa.DataType, bounds: pa.ChunkedArray) -> Range | None:
    """The range from the least to the greatest bound.

    Args:
        kind: its type, a whole number, date or timestamp.
        bounds: of any type.

    Returns:
        The range; a superset where SQL compares dates with times, as it takes the day's start for
        them. None when a bound is NULL, or is not compared with the column as its integers are.
    """
    fitted = None if bounds.null_count or not len(bounds) else _fitted(bounds, kind)
    if fitted is None:
        return None
    ends = pc.min_max(fitted)
    return Range(column, ends["min"], ends["max"])


def _fitted(bounds: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    if pa.types.is_integer(bounds.type) and pa.types.is_integer(kind):
        # The wider type: Arrow compares a column with it, and it holds bounds beyond the column's.
        return bounds.cast(pa.int64())
    if pa.types.is_temporal(bounds.type) and pa.types.is_temporal(kind):
        # A timestamp becomes its day, also before 1970; all times are read in UTC.
        return bounds.cast(kind, safe=False)
    return None
