"""Which changed rows a query fails on: the changes are halved until one is left that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.relation import RelationId
from mview.rows.match import row_codes

#: Rows that are shown where not one row alone fails, as where a sum overflows.
_SHOWN = 3


def failing_rows(
    deltas: Mapping[RelationId, pa.Table],
    keys: Mapping[RelationId, Sequence[str]],
    fails: Callable[[Mapping[RelationId, pa.Table]], bool],
) -> tuple[RelationId, pa.Table] | None:
    """The changes without which an epoch of a view does not fail.

    Args:
        deltas: weighted rows of the changed tables.
        keys: of the tables that are searched; () for one without.
        fails: whether the epoch fails with these changes; any part of them is an epoch.

    Returns:
        A table and the new version of its row, or of some that fail only together; None: none.
    """
    if not fails(deltas):
        return None
    for table, key in keys.items():
        rows = deltas[table]
        if fails({**deltas, table: rows.slice(0, 0)}):
            continue
        (codes,) = row_codes([rows.select(list(key) or rows.drop_columns([WEIGHT]).column_names)])
        _, numbers = np.unique(codes, return_inverse=True)
        low, high = 0, int(numbers.max()) + 1
        while high - low > 1:
            half = (low + high) // 2
            for begin, end in ((low, half), (half, high)):
                if fails({**deltas, table: rows.filter((numbers >= begin) & (numbers < end))}):
                    low, high = begin, end
                    break
            else:
                break
        left = rows.filter((numbers >= low) & (numbers < high))
        new = left.filter(pc.greater(left[WEIGHT], 0))
        return table, (new if new.num_rows else left).drop_columns([WEIGHT]).slice(0, _SHOWN)
    return None
