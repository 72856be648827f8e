"""Rows without a key that other views read: in its mirror each has a number, which is its key.

The numbers of a first build count up from 0; those of an epoch are negative and hold the epoch, so
no two are equal. Views see rows with multiplicities, never the numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from mview.connector import WEIGHT
from mview.execute.program import Request
from mview.execute.slices import distinct, weighted
from mview.ivm.facts.exact import comparable
from mview.relation import RelationId
from mview.rows.equality import as_shown
from mview.rows.match import Positions, row_codes
from mview.schema import Column, TableSchema, as_schema
from mview.store.mirror import ROW

#: Rows that may come in one epoch.
_MOST = 1 << 32


def kept_as(schema: TableSchema) -> TableSchema:
    """The schema of the mirror of a view's rows."""
    if schema.key:
        return schema
    return TableSchema((*schema.columns, Column(ROW, pa.int64(), nullable=False)), (ROW,))


def looked_up(schema: TableSchema) -> tuple[str, ...]:
    """The columns by which rows are found that go; (): by none, all are read."""
    return tuple(column.name for column in schema.columns if comparable(column.type, column.type))


def number_first(rows: pa.Table, begin: int) -> pa.Table:
    """Rows of a first build with their numbers."""
    return rows.append_column(ROW, pa.array(range(begin, begin + rows.num_rows), pa.int64()))


def number_changes(
    relation: RelationId,
    schema: TableSchema,
    changes: pa.Table,
    epoch: int,
    fetch: Callable[[list[Request]], list[pa.Table]],
) -> pa.Table:
    """Weighted rows with the numbers of the rows that go, and new ones for those that come.

    Args:
        schema: the view's columns, without a key.
        changes: columns and WEIGHT.
        epoch: its number.
        fetch: looks rows up in the mirror as published.

    Returns:
        A row per copy, of weight 1 or -1; those that go are the mirror's own.

    Raises:
        ValueError: a row that goes is not there.
    """
    weights = changes[WEIGHT].to_numpy()
    rows = changes.drop_columns([WEIGHT])
    come, gone = (
        rows.take(pa.array(np.repeat(np.arange(len(rows)), np.maximum(n, 0))))
        for n in (weights, -weights)
    )
    numbers = -(epoch * _MOST) - np.arange(1, come.num_rows + 1)
    numbered = weighted(come.append_column(ROW, pa.array(numbers)), 1)
    if not gone.num_rows:
        return numbered
    by = looked_up(schema)
    keys = distinct(gone.select(by)) if by else None
    (old,) = fetch([Request(relation, keys, (*schema.names, ROW), null_safe=True)])
    there = old.select(gone.column_names)
    # Which of 0.0 and -0.0 a value is may be chance: min has another each time.
    places = _places(as_shown(gone), as_shown(there))
    places = _places(gone, there) if places is None else places
    if places is None:
        raise ValueError(f"a row that goes is not in the mirror {relation}")
    published = weighted(old.take(pa.array(places)), -1)
    return pa.concat_tables([as_schema(published, numbered.schema), numbered])


def _places(gone: pa.Table, old: pa.Table) -> Positions | None:
    """For each row that goes one of `old` that equals it, each once; None: there is none."""
    here, there = row_codes([gone, old])
    order, place = np.argsort(here, kind="stable"), np.argsort(there, kind="stable")
    mine, theirs = here[order], there[place]
    # The n-th copy that goes is the n-th copy that is there.
    at = np.searchsorted(theirs, mine) + np.arange(len(mine)) - np.searchsorted(mine, mine)
    if (at >= len(theirs)).any() or (theirs[at] != mine).any():
        return None
    places = np.empty(len(mine), np.int64)
    places[order] = place[at]
    return places
