"""The first rows of a ranking, with a reserve behind them."""

from __future__ import annotations

import pyarrow as pa

from mview.connector import WEIGHT
from mview.execute.kept.top import moved
from mview.ivm.rewrites.top import Top
from tests.relations import rel

TOP = Top(rel("part"), "v", limit=2, offset=1)
STATE = pa.table({"v": [1, 2, 3, 4, 5]})


def after(gone: list[int], come: list[int]) -> list[int] | None:
    weights = pa.array([-1] * len(gone) + [1] * len(come), pa.int64())
    change = pa.table({"v": pa.array([*gone, *come], pa.int64()), WEIGHT: weights})

    def found(mark: str) -> list[int] | None:
        order = [("v", "ascending"), ("__mark", mark)]
        rows = moved(STATE, change, TOP, lambda rows: rows.sort_by(order))
        return None if rows is None else rows["v"].to_pylist()

    # Equal rows may be ranked either way.
    assert found("ascending") == found("descending")
    return found("ascending")


def test_behind_the_last_row_nothing_is_known() -> None:
    assert after([1], [9]) == [2, 3, 4, 5]
    assert after([5], [9]) == [1, 2, 3, 4]
    assert after([9], [0]) == [0, 1, 2, 3, 4, 5]


def test_too_few_rows_are_ranked_again() -> None:
    assert after([1, 2], []) == [3, 4, 5]
    assert after([1, 2, 3], [9]) is None


def test_rows_before_the_first_are_left_out() -> None:
    assert TOP.shown(STATE)["v"].to_pylist() == [2, 3]
