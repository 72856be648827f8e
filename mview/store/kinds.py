"""Weights become kinds where rows enter a changelog of the store: `+I -U +U -D`, by key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import KIND, RowKind
from mview.connector import WEIGHT
from mview.rows.match import Positions

#: By whether a row comes (2) and whether its key stays (1).
_KINDS = pa.array(
    [
        kind.value
        for kind in (RowKind.DELETE, RowKind.UPDATE_BEFORE, RowKind.INSERT, RowKind.UPDATE_AFTER)
    ]
)


def as_changelog(rows: pa.Table, codes: Positions) -> pa.Table:
    """The changelog rows of weighted ones.

    Args:
        rows: columns and WEIGHT, 1 or -1; of a key at most one row that goes and one that comes.
        codes: the keys of the rows, as `row_codes` tells them apart.

    Returns:
        KIND and the columns.
    """
    comes = rows[WEIGHT].to_numpy() > 0
    columns = rows.drop_columns([WEIGHT])
    has = np.zeros((2, int(codes.max(initial=-1)) + 1), dtype=np.bool_)
    has[comes.astype(np.int8), codes] = True
    kinds = 2 * comes.astype(np.int8) + (has[0] & has[1])[codes]
    return columns.add_column(0, KIND, _KINDS.take(pa.array(kinds)))


def comes(rows: pa.Table) -> pa.ChunkedArray:
    """Which changelog rows come, and do not go."""
    return pc.starts_with(rows[KIND], "+")
