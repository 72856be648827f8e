"""From weighted rows to changelog rows: `+I -U +U -D` by key, and the counts people ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import RowKind
from mview.connector import WEIGHT
from mview.errors import UserError
from mview.execute.slices import Changes
from mview.rows.match import row_codes
from mview.store.mirror import KIND


@dataclass(frozen=True)
class Delta:
    """What an epoch changes in a relation.

    Attributes:
        rows: changelog rows: KIND and the columns.
    """

    rows: pa.Table

    @cached_property
    def changes(self) -> Changes:
        """The same for views: with WEIGHT instead of KIND, -1 for old rows, 1 for new ones."""
        plus = pc.starts_with(self.rows[KIND], "+")
        weights = pc.if_else(plus, pa.scalar(1, pa.int32()), pa.scalar(-1, pa.int32()))
        return Changes(self.rows.drop_columns([KIND]).append_column(WEIGHT, weights))

    @cached_property
    def changed(self) -> int:
        """The number of changed rows: an update is one."""
        after = pc.not_equal(self.rows[KIND], RowKind.UPDATE_BEFORE.value)
        return int(pc.sum(after).as_py() or 0)

    @property
    def gained(self) -> int:
        """By how many rows the relation grows."""
        plus = pc.sum(pc.starts_with(self.rows[KIND], "+")).as_py() or 0
        return int(2 * plus - self.rows.num_rows)


@dataclass(frozen=True)
class Counts:
    """Keys that appeared, changed, went away; and the change in the number of rows."""

    inserted: int
    updated: int
    deleted: int
    rows: int


def with_kinds(delta: pa.Table, key: Sequence[str], view: str) -> tuple[pa.Table, Counts]:
    """The changelog rows of a consolidated delta.

    Args:
        delta: columns and WEIGHT.
        key: the key; () for a multiset, whose rows are inserted and deleted, never updated.
        view: for the message.

    Returns:
        KIND and the columns (a row of weight n stands n times), and the counts.

    Raises:
        UserError: two rows of the new content have one key.
    """
    weights = delta[WEIGHT].to_numpy()
    positive = weights > 0
    columns = delta.drop_columns([WEIGHT])
    if not key:
        rows = columns.take(pa.array(np.repeat(np.arange(len(weights)), np.abs(weights))))
        plus = np.repeat(positive, np.abs(weights))
        total = int(weights.sum())
        counts = Counts(int(plus.sum()), 0, int((~plus).sum()), total)
        return rows.add_column(0, KIND, _kinds(plus, np.zeros_like(plus))), counts
    codes = row_codes([columns.select(list(key))])[0]
    size = int(codes.max()) + 1 if len(codes) else 0
    comes = np.bincount(codes[positive], weights[positive], size)
    goes = np.bincount(codes[~positive], -weights[~positive], size)
    if (comes > 1).any():
        _refuse(columns.filter(pa.array(comes[codes] > 1)), key, view)
    both = (comes[codes] > 0) & (goes[codes] > 0)
    updated = int(((comes > 0) & (goes > 0)).sum())
    inserted, deleted = int((comes > 0).sum()) - updated, int((goes > 0).sum()) - updated
    counts = Counts(inserted, updated, deleted, inserted - deleted)
    return columns.add_column(0, KIND, _kinds(positive, both)), counts


#: By whether a row comes (2) and whether its key stays (1).
_KINDS = pa.array(
    [
        kind.value
        for kind in (RowKind.DELETE, RowKind.UPDATE_BEFORE, RowKind.INSERT, RowKind.UPDATE_AFTER)
    ]
)


def _kinds(comes: npt.NDArray[np.bool_], stays: npt.NDArray[np.bool_]) -> pa.Array:
    return _KINDS.take(pa.array(2 * comes.astype(np.int8) + stays))


def _refuse(rows: pa.Table, key: Sequence[str], view: str) -> None:
    sample = "; ".join(str(row) for row in rows.slice(0, 3).to_pylist())
    raise UserError(
        f"the key ({', '.join(key)}) of view {view} is not unique",
        got=sample[:600],
        safe="the epoch was not published; the view stays as it was",
        hint="declare a key that is unique, or none: key='…' in WITH (…)",
    )
