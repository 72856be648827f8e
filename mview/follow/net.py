"""Changes of several epochs as one: per key the row before all of them and the row after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import KIND, RowKind
from mview.rows.equality import identical_rows
from mview.rows.match import row_codes
from mview.store.fold import EPOCH
from mview.store.kinds import comes


def netted(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Net the changelog rows of one or more epochs.

    Every change carries the row before it, so the first row of a key tells whether there was one
    before, and the last whether there is one after. What ends as it began is left out.

    Args:
        rows: EPOCH, KIND and the columns, in any order; of an epoch and key at most one old and one
            new row.
        key: what tells rows apart.

    Returns:
        KIND and the columns, each `-U` right before its `+U`.
    """
    columns = rows.drop_columns([EPOCH, KIND])
    if not rows.num_rows:
        return columns.add_column(0, KIND, pa.array([], pa.string()))
    codes = row_codes([columns.select(list(key))])[0]
    is_new = comes(rows).to_numpy()
    order = np.lexsort((is_new, rows[EPOCH].to_numpy(), codes))
    ranked = codes[order]
    begins = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    ends = np.concatenate([begins[1:], [len(ranked)]]) - 1
    first, last = order[begins], order[ends]
    was, is_there = ~is_new[first], is_new[last]
    same = identical_rows(columns.take(first).columns, columns.take(last).columns)
    same &= was & is_there
    was, is_there = was & ~same, is_there & ~same
    both = was & is_there
    old = pc.if_else(both, RowKind.UPDATE_BEFORE.value, RowKind.DELETE.value)
    new = pc.if_else(both, RowKind.UPDATE_AFTER.value, RowKind.INSERT.value)
    # Old and new of a key side by side: even places are old rows, odd ones new.
    picked = np.stack([first, last], axis=1).ravel()
    wanted = np.stack([was, is_there], axis=1).ravel()
    half = np.arange(len(first)).repeat(2)
    news = np.tile([False, True], len(first))[wanted]
    kinds = pc.if_else(pa.array(news), new.take(half[wanted]), old.take(half[wanted]))
    return columns.take(pa.array(picked[wanted])).add_column(0, KIND, kinds)
