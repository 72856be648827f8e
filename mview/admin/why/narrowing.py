"""Of rows that give a result, few that give it: the rest is taken away, part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from mview.relation import RelationId

#: Rows by the relation that they are of.
Rows = Mapping[RelationId, pa.Table]


#: Parts that rows are taken away in, where not all can go. Where every row is needed, four take two
#: thirds of the questions that two do, and where one is, as many.
_PARTS = 4


def narrowed(rows: Rows, holds: Callable[[Rows], bool], may_go_on: Callable[[], bool]) -> Rows:
    """Fewer rows of which the same holds; of one relation after the other.

    What is left was looked at row by row, unless it was stopped: without any single one of these
    rows it did not hold at that time. Of rows that would do for each other, one is left.

    Args:
        rows: it holds of all of them.
        holds: asked some four times for three rows that are left, and a few times where many go.
        may_go_on: whether to go on asking.
    """
    kept = dict(rows)
    for name, table in rows.items():
        there = np.ones(table.num_rows, np.bool_)
        waiting = [(0, table.num_rows)]
        while waiting and may_go_on():
            begin, end = waiting.pop()
            if begin == end:
                continue
            without = there.copy()
            without[begin:end] = False
            fewer = {**kept, name: table.filter(pa.array(without))}
            if holds(fewer):
                kept, there = fewer, without
            elif end - begin > 1:
                step = -(-(end - begin) // _PARTS)
                waiting += [(at, min(at + step, end)) for at in range(begin, end, step)]
    return kept
