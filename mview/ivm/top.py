"""The first n rows of a query: a reserve of the next ones is kept, so that few epochs read all.

The state is a prefix of the ranking. A change that ranks after its last row is not looked at; what
ranks before is taken in. While at least n rows are left, the first n of the state are the first n
of all rows; when fewer are left, all rows are ranked again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.ivm.slices import consolidate
from mview.plan.definition import ViewDefinition

#: The relation that is ranked, and the number of each of its rows.
RANKED, NUMBER = "__ranked", "__number"


@dataclass(frozen=True)
class Top:
    """ORDER BY … LIMIT over a part.

    Attributes:
        part: the part that holds all rows.
        order: ORDER BY over the part's columns; the part's key comes last, so that it is total.
        limit: rows of the view.
        offset: rows before them that are left out.
    """

    part: str
    order: str
    limit: int
    offset: int = 0

    @property
    def least(self) -> int:
        """Rows the state needs."""
        return self.offset + self.limit

    @property
    def kept(self) -> int:
        """Rows the state holds when it is new."""
        return 2 * self.least + 100

    @property
    def ranking(self) -> str:
        """The query that ranks rows."""
        return f"SELECT {NUMBER} FROM {RANKED} ORDER BY {self.order}"

    def shown(self, state: pa.Table) -> pa.Table:
        """The view's rows of a state."""
        return state.slice(self.offset, self.limit)


def part_definition(main: ViewDefinition, top: Top) -> ViewDefinition:
    """The state table as a query over the part."""
    sql = f"SELECT * FROM `{top.part}` ORDER BY {top.order} LIMIT {top.kept}"
    return main.with_sql(sql, key=())


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
