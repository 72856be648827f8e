"""Rows are taken away in parts: the answer is that of row by row, with fewer questions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mview.admin.why.narrowing import Rows, narrowed
from mview.relation import RelationId

TABLE = RelationId.of("shop.orders")


def asked(count: int, needed: set[int]) -> tuple[list[int], int]:
    """The rows that are left of so many, of which some are needed, and how often was asked."""
    questions = 0

    def holds(rows: Rows) -> bool:
        nonlocal questions
        questions += 1
        return needed <= set(rows[TABLE]["id"].to_pylist())

    few = narrowed({TABLE: pa.table({"id": range(count)})}, holds, lambda: True)
    return few[TABLE]["id"].to_pylist(), questions


@pytest.mark.parametrize(
    ("count", "needed", "most"),
    [
        (1000, set(range(1000)), 1400),
        (1000, {617}, 25),
        (1000, set(), 1),
        (1000, {0, 999}, 45),
        (7, {1, 5}, 9),
        (1, {0}, 1),
        (0, set(), 0),
    ],
)
def test_what_is_needed_is_left(count: int, needed: set[int], most: int) -> None:
    left, questions = asked(count, needed)
    assert left == sorted(needed)
    assert questions <= most


def test_of_rows_that_do_for_each_other_the_first_is_left() -> None:
    few = narrowed(
        {TABLE: pa.table({"id": range(100)})},
        lambda rows: any(n % 10 == 3 for n in rows[TABLE]["id"].to_pylist()),
        lambda: True,
    )
    assert few[TABLE]["id"].to_pylist() == [3]
