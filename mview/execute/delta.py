"""What an epoch changes in a relation or view: rows with weights, and the counts people ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import KIND
from mview.connector import WEIGHT
from mview.errors import UserError, rows_text
from mview.execute.slices import Changes, consolidate
from mview.rows.match import Positions, key_codes
from mview.store.fold import EPOCH
from mview.store.kinds import as_changelog, comes


@dataclass(frozen=True)
class Delta:
    """What an epoch changes in a relation.

    Attributes:
        rows: columns and WEIGHT, negative for old rows, positive for new ones; what is written has
            -1 and 1.
        key: what tells rows apart; () for a view that is a multiset.
        given: `codes`, from who had to know them; None: they are worked out.
    """

    rows: pa.Table
    key: Sequence[str]
    given: Positions | None = None

    @cached_property
    def codes(self) -> Positions:
        """Of each row, the same for the same key; see `row_codes`."""
        known = self.given
        return key_codes(self.rows, self.key).codes if known is None else known

    @cached_property
    def changes(self) -> Changes:
        """The same for views."""
        return Changes(self.rows, self.codes)

    @cached_property
    def changelog(self) -> pa.Table:
        """The same for the store: KIND and the columns."""
        return as_changelog(self.rows, self.codes)

    @cached_property
    def changed(self) -> int:
        """The number of changed rows: an update is one."""
        comes = self.rows[WEIGHT].to_numpy() > 0
        stays = np.zeros(int(self.codes.max(initial=-1)) + 1, np.bool_)
        stays[self.codes[comes]] = True
        return int(comes.sum() + np.count_nonzero(~stays[self.codes[~comes]]))

    @property
    def gained(self) -> int:
        """By how many rows the relation grows."""
        return int(pc.sum(self.rows[WEIGHT]).as_py() or 0)


def delta_of(changelog: pa.Table, key: Sequence[str]) -> Delta:
    """Changelog rows of some epochs of a relation as one change.

    Args:
        changelog: EPOCH, KIND and the relation's columns.
        key: what tells its rows apart.
    """
    weights = pc.if_else(comes(changelog), 1, -1).cast(pa.int32())
    columns = changelog.drop_columns([EPOCH, KIND]).append_column(WEIGHT, weights)
    return Delta(consolidate(columns), key)


@dataclass(frozen=True)
class Counts:
    """Keys that appeared, changed, went away; and the change in the number of rows."""

    inserted: int
    updated: int
    deleted: int
    rows: int


def count_changes(delta: Delta, view: str) -> Counts:
    """The counts of a consolidated delta; rows of a multiset are inserted and deleted.

    Args:
        view: for the message.

    Raises:
        UserError: two rows of the new content have one key.
    """
    weights = delta.rows[WEIGHT].to_numpy()
    positive = weights > 0
    if not delta.key:
        come, total = int(weights[positive].sum()), int(weights.sum())
        return Counts(come, 0, come - total, total)
    codes = delta.codes
    size = int(codes.max(initial=-1)) + 1
    comes = np.bincount(codes[positive], weights[positive], size)
    goes = np.bincount(codes[~positive], minlength=size) > 0
    if (comes > 1).any():
        twice = delta.rows.filter(pa.array(comes[codes] > 1)).drop_columns([WEIGHT])
        _refuse(twice, delta.key, view)
    updated = int(((comes > 0) & goes).sum())
    inserted, deleted = int((comes > 0).sum()) - updated, int(goes.sum()) - updated
    return Counts(inserted, updated, deleted, inserted - deleted)


def _refuse(rows: pa.Table, key: Sequence[str], view: str) -> None:
    raise UserError(
        f"the key ({', '.join(key)}) of view {view} is not unique",
        got=rows_text(rows.slice(0, 3).to_pylist()),
        safe="the epoch was not published; the view stays as it was",
        hint="declare a key that is unique, or none: key='…' in WITH (…)",
    )
