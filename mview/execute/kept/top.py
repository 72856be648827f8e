"""The kept first rows of a ranking, after a change (mview/ivm/rewrites/top.py: what they are).

A change that ranks after the last kept row is not looked at; what ranks before is taken in. When
fewer rows are left than the view shows, all rows are ranked again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.execute.slices import consolidate
from mview.ivm.rewrites.top import Top

Rank = Callable[[pa.Table], pa.Table]


def first_rows(rows: pa.Table, top: Top, rank: Rank) -> pa.Table:
    """A new state: the first rows of all rows."""
    return rank(rows).slice(0, top.kept)


def moved(state: pa.Table, change: pa.Table, top: Top, rank: Rank) -> pa.Table | None:
    """The state after a change; None when too few rows are left.

    Args:
        state: in the order of the ranking.
        change: weighted rows of the part, consolidated.
        top: what is kept.
        rank: puts rows in order.
    """
    if not state.num_rows:
        return None
    weights = pa.array(np.ones(state.num_rows, np.int64))
    wanted = state.schema.append(pa.field(WEIGHT, pa.int64()))
    both = [state.append_column(WEIGHT, weights), change.select(wanted.names).cast(wanted)]
    after = consolidate(pa.concat_tables(both))
    # A row that goes but is not in the state ranks after it.
    rows = after.filter(pc.greater(after[WEIGHT], 0)).drop_columns([WEIGHT])
    last = state.slice(state.num_rows - 1)
    marked = pa.concat_tables([_marked(rows, 0), _marked(last, 1)])
    ordered = rank(marked)
    # Behind the old last row (or its equal) the state knows nothing.
    end = int(np.flatnonzero(ordered[_MARK].to_numpy())[0])
    keeps_last = end + 1 < ordered.num_rows and _same(ordered, end)
    before = ordered.slice(0, end + keeps_last + 1)
    inside = before.filter(pc.equal(before[_MARK], 0)).drop_columns([_MARK])
    return inside.slice(0, top.kept) if inside.num_rows >= top.least else None


_MARK = "__mark"


def _marked(rows: pa.Table, mark: int) -> pa.Table:
    return rows.append_column(_MARK, pa.array(np.full(rows.num_rows, mark, np.int8)))


def _same(ordered: pa.Table, end: int) -> bool:
    """Whether the row after the mark is the marked row itself, ranked behind its own mark."""
    pair = ordered.drop_columns([_MARK]).slice(end, 2).to_pylist()
    return bool(pair[0] == pair[1])
