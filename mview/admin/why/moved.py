"""What has become of some rows of a table from one epoch to another, change by change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mview.rows.match import row_codes


class MovedRows:
    """Rows of a table at two epochs. A unit is what became of the rows of one key.

    Args:
        then: the rows at the first epoch.
        now: those with the same keys at the second.
        key: its columns; of a relation without a key all columns: equal rows are one unit.
    """

    def __init__(self, then: pa.Table, now: pa.Table, key: Sequence[str]) -> None:
        self._then, self._now = then, now
        self._old, self._new = row_codes([then.select(key), now.select(key)])
        whole = row_codes([then, now])
        held: list[dict[int, list[int]]] = [defaultdict(list), defaultdict(list)]
        for side, units, codes in zip(held, (self._old, self._new), whole, strict=True):
            for unit, code in zip(units.tolist(), codes.tolist(), strict=True):
                side[unit].append(code)
        before, after = held
        #: The units that are not the same at both.
        self._changed = sorted(
            unit
            for unit in before.keys() | after.keys()
            if sorted(before.get(unit, ())) != sorted(after.get(unit, ()))
        )

    def units(self) -> pa.Table:
        """What has changed, as a column of numbers `unit`."""
        return pa.table({"unit": pa.array(self._changed, pa.int64())})

    def after(self, units: pa.ChunkedArray) -> pa.Table:
        """The rows of the first epoch after some of the changes."""
        some = units.to_numpy()
        stays = ~np.isin(self._old, some)
        comes = np.isin(self._new, some)
        return pa.concat_tables(
            [self._then.filter(pa.array(stays)), self._now.filter(pa.array(comes))],
            promote_options="default",
        )

    def told(
        self, units: pa.ChunkedArray
    ) -> Iterator[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]]:
        """The row before and after, per unit; None: it was not there."""
        for unit in units.to_pylist():
            yield (_first(self._then, self._old == unit), _first(self._now, self._new == unit))


def _first(rows: pa.Table, mask: Any) -> Mapping[str, Any] | None:
    there = rows.filter(pa.array(mask))
    return there.slice(0, 1).to_pylist()[0] if there.num_rows else None
