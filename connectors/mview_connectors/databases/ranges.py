"""Key ranges as SQL predicates: row-wise comparison of the chunk columns with bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from mview.snapshot import Chunk, KeyValues

#: SQL text and its parameters.
Predicate = tuple[str, tuple[Any, ...]]

Operator = Literal[">=", ">", "<", "<="]

#: One end of a range.
Limit = tuple[Operator, KeyValues]


def compare(
    columns: Sequence[str], operator: Operator, bound: KeyValues, *, mark: str, row_values: bool
) -> Predicate:
    """`(columns) operator (bound)`, compared as tuples.

    Args:
        columns: quoted column names.
        operator: the comparison.
        bound: one value per column.
        mark: the driver's parameter mark.
        row_values: whether the database uses an index for `(a, b) >= (x, y)`; otherwise the
            comparison is written out as `a > x OR (a = x AND b >= y)`, which every optimizer takes.
    """
    if row_values and len(columns) > 1:
        marks = ", ".join([mark] * len(columns))
        return f"({', '.join(columns)}) {operator} ({marks})", tuple(bound)
    text = f"{columns[-1]} {operator} {mark}"
    parameters: tuple[Any, ...] = (bound[-1],)
    strict = operator[0]
    for column, value in zip(reversed(columns[:-1]), reversed(bound[:-1]), strict=True):
        text = f"({column} {strict} {mark} OR ({column} = {mark} AND {text}))"
        parameters = (value, value, *parameters)
    return text, parameters


def between(
    columns: Sequence[str],
    low: Limit | None,
    high: Limit | None,
    *,
    mark: str,
    row_values: bool,
) -> Predicate:
    """The WHERE clause (with its keyword) of a range; empty where nothing bounds it."""
    parts = [
        compare(columns, operator, bound, mark=mark, row_values=row_values)
        for operator, bound in (limit for limit in (low, high) if limit is not None)
        if bound
    ]
    if not parts:
        return "", ()
    text = " AND ".join(f"({part})" for part, _ in parts)
    return f" WHERE {text}", tuple(value for _, values in parts for value in values)


def limits(
    chunk: Chunk,
) -> tuple[Limit | None, Limit | None]:
    """The lower and upper limit of a chunk, as `between` takes them."""
    low: Limit | None = None if chunk.low is None else (">=", chunk.low)
    if chunk.high is None:
        return low, None
    return low, ("<=" if chunk.closed else "<", chunk.high)
