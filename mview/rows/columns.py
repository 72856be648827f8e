"""Work on each column of a table by itself: by several threads where there are many rows.

Arrow copies and compares the columns of a table one after the other, and lets Python go on
meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

#: Rows from which on threads pay: of fewer, a thread takes longer to wake up than it helps.
_MANY = 1 << 15

_beside = ThreadPoolExecutor(os.cpu_count(), "mview-column")


def each(rows: int, work: Callable[..., T], *columns: Sequence[Any]) -> list[T]:
    """What some work gives for each column, in their order.

    Args:
        rows: of a column, about.
        work: for any thread; may not use this itself. What it raises is raised.
        columns: of one table or several: the first ones of all come together, and so on.
    """
    run = map if rows < _MANY else _beside.map
    return list(run(work, *columns))
