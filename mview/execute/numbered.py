"""Rows without a key that other views read: in its mirror each has a number, which is its key.

The numbers of a first build count up from 0; those of an epoch are negative and hold the epoch, so
no two are equal. Views see rows with multiplicities, never the numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.execute.program import Request
from mview.execute.slices import distinct
from mview.ivm.fetches import comparable
from mview.rows.match import row_codes
from mview.schema import Column, TableSchema
from mview.store.mirror import KIND, ROW

#: Rows that may come in one epoch.
_MOST = 1 << 32


def kept_as(schema: TableSchema) -> TableSchema:
    """The schema of the mirror of a view's rows."""
    if schema.key:
        return schema
    return TableSchema((*schema.columns, Column(ROW, pa.int64(), nullable=False)), (ROW,))


def looked_up(schema: TableSchema) -> tuple[str, ...]:
    """The columns by which rows are found that go; (): by none, all are read."""
    return tuple(one.name for one in schema.columns if comparable(one.type, one.type))


def number_first(rows: pa.Table, begin: int) -> pa.Table:
    """Rows of a first build with their numbers."""
    return rows.append_column(ROW, pa.array(range(begin, begin + rows.num_rows), pa.int64()))


def number_changes(
    relation: str,
    schema: TableSchema,
    changes: pa.Table,
    epoch: int,
    fetch: Callable[[list[Request]], list[pa.Table]],
) -> pa.Table:
    """Changelog rows with the numbers of the rows that go, and new ones for those that come.

    Args:
        relation: the mirror.
        schema: the view's columns, without a key.
        changes: KIND and the columns, a row per copy.
        epoch: its number.
        fetch: looks rows up in the mirror as published.

    Raises:
        ValueError: a row that goes is not there.
    """
    comes = pc.starts_with(changes[KIND], "+").to_numpy()
    numbers = np.zeros(changes.num_rows, np.int64)
    numbers[comes] = -(epoch * _MOST) - np.arange(1, int(comes.sum()) + 1)
    if not comes.all():
        gone = changes.filter(pa.array(~comes)).drop_columns([KIND])
        by = looked_up(schema)
        keys = distinct(gone.select(by)) if by else None
        (old,) = fetch([Request(relation, keys, (*schema.names, ROW), null_safe=True)])
        numbers[~comes] = _numbers(gone, old, relation)
    return changes.append_column(ROW, pa.array(numbers))


def _numbers(
    gone: pa.Table, old: pa.Table, relation: str
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each row that goes the number of one that equals it, each once."""
    here, there = row_codes([gone, old.select(gone.column_names)])
    order, place = np.argsort(here, kind="stable"), np.argsort(there, kind="stable")
    mine, theirs = here[order], there[place]
    # The n-th copy that goes is the n-th copy that is there.
    copy = np.arange(len(mine)) - np.searchsorted(mine, mine)
    at = np.searchsorted(theirs, mine) + copy
    found = np.minimum(at, len(theirs) - 1)
    if not len(theirs) or (theirs[found] != mine).any() or (at != found).any():
        raise ValueError(f"a row that goes is not in the mirror {relation}")
    numbers = np.empty(len(mine), np.int64)
    numbers[order] = old[ROW].to_numpy()[place[found]]
    return numbers
