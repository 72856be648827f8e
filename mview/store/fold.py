"""A mirror's rows out of its base and its tail of changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from mview.changelog import KIND
from mview.delta.rewrite import Upsert
from mview.errors import CorruptionError, rows_text
from mview.rows.match import Positions, first_rows, match, row_codes
from mview.store.kinds import comes

#: Columns of the changelog, before the table's own.
EPOCH = "__epoch"
#: Key of a mirror whose rows have none: a number per row, which readers do not see.
ROW = "__row"


def fold(base_rows: pa.Table, tail_rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows that are there after the tail.

    Per key, base rows weigh +1 and tail rows +1 or -1 by their kind; the sum is 0 or 1, and where
    it is 1 the row is the positive one of the highest epoch. As every change of a row carries the
    row before, the last epoch of a key decides alone: it ends in a row or in none. So this holds
    for the whole table and for every subset that is chosen by column values on both inputs.

    Args:
        base_rows: any columns, the key among them.
        tail_rows: the same columns, EPOCH and KIND; of the epochs after the base's fold.
        key: the table's primary key.

    Returns:
        Rows with the columns of `base_rows`, in no order.
    """
    if not tail_rows.num_rows:
        return base_rows
    last = settle(tail_rows, key)
    kept = without(base_rows, last.keys, key)
    rows = last.comes.select(base_rows.column_names)
    # Promotion, because the two sides may differ in what they call nullable.
    return pa.concat_tables([kept, rows], promote_options="default")


def settle(tail_rows: pa.Table, key: Sequence[str]) -> Upsert:
    """What a tail comes to: the keys it touches, and the rows it ends with.

    Raises:
        CorruptionError: an epoch gave two rows to one key.
    """
    keys = tail_rows.select(list(key))
    first, group = first_rows(row_codes([keys])[0])
    epochs = tail_rows[EPOCH].to_numpy()
    last = np.empty(len(first), np.int64)
    # The highest, as of several values the one that is assigned last stays. `np.maximum.at` would
    # hold the interpreter all the while, and with it the epochs beside a compaction.
    order = np.argsort(epochs, kind="stable")
    last[group[order]] = epochs[order]
    positive = comes(tail_rows).to_numpy()
    winners = np.flatnonzero(positive & (epochs == last[group]))
    if len(winners) and np.bincount(group[winners]).max() > 1:
        double = winners[np.argmax(np.bincount(group[winners])[group[winners]] > 1)]
        raise CorruptionError(
            f"epoch {epochs[double]} of a changelog gave two rows to one key",
            got=rows_text(keys.slice(int(double), 1).to_pylist()),
            hint="`mview drop` the table and run again: it is loaded anew",
        )
    rows = tail_rows.drop_columns([EPOCH, KIND]).take(winners)
    instead = np.full(len(first), -1, dtype=np.int64)
    instead[group[winners]] = np.arange(len(winners))
    return Upsert(keys.take(first), None, rows, instead)


def without(rows: pa.Table, keys: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows whose key is not among `keys` (which are distinct)."""
    return left_of(rows, match(rows.select(list(key)), keys)[0])


def left_of(rows: pa.Table, hit: Positions) -> pa.Table:
    """The rows but those at some places."""
    return rows.take(pa.array(np.delete(np.arange(rows.num_rows), hit))) if len(hit) else rows
