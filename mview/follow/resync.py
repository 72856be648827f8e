"""What brings a target right that is too far behind: the difference of what it has and the view is.

Both are read as streams and compared in pieces, the rows of a key in the same one, so that nothing
but the difference is held; see `mview.execute.pieces`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import KIND
from mview.connector import WEIGHT
from mview.execute.pieces import in_pieces
from mview.execute.slices import difference
from mview.follow.net import netted
from mview.rows.match import row_codes
from mview.store.fold import EPOCH

#: Bytes that are compared at once at the least: smaller pieces only make more files.
_PIECE = 16 << 20


def resync(
    new: Iterator[pa.Table],
    old: Iterator[pa.Table],
    schema: pa.Schema,
    key: Sequence[str],
    most: int,
) -> pa.Table | None:
    """The changes that make one content of another one.

    Args:
        new: what is to be there, in parts.
        old: what is there, in parts.
        schema: the columns of both.
        key: what tells rows apart in `new`.
        most: bytes of the changes at the most, and about as many are compared at once.

    Returns:
        KIND and the columns, each `-U` right before its `+U`. None: they are too many, or `old`
        has two rows of one key: it is to be replaced as a whole.
    """
    changes: list[pa.Table] = []
    size = 0
    for now, before in in_pieces(new, old, schema, max(most, _PIECE), by=key):
        if _has_twins(before, key):
            return None
        piece = difference(now, before)
        comes = pc.greater(piece[WEIGHT], 0)
        rows = (
            piece.drop_columns([WEIGHT])
            .append_column(KIND, pc.if_else(comes, "+I", "-D"))
            .append_column(EPOCH, pa.repeat(pa.scalar(0, pa.int64()), piece.num_rows))
        )
        changes.append(netted(rows, key))
        size += changes[-1].nbytes
        if size > most:
            return None
    return pa.concat_tables(changes)


def _has_twins(rows: pa.Table, key: Sequence[str]) -> bool:
    """Whether two rows have one key."""
    (codes,) = row_codes([rows.select(list(key))])
    return bool(len(np.unique(codes)) < rows.num_rows)
