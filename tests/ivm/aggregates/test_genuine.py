"""Extremes that are kept, over joins of a table with itself: of rows read as partners alone.

The slices of an epoch have such a row without its own partners, so it seems to have none. It does
before the epoch and after it, which cancels in counts and sums, and does not in extremes.
"""

from __future__ import annotations

import random

import pytest

from tests.ivm.random_views import Case, Op
from tests.ivm.test_random_views import outcome
from tests.ivm.world import DuckEngine
from tests.seeds import seeds

#: Rows 2 and 0 lose and get partners; row 4 is read as a partner of row 2, without its own.
MOVES: tuple[tuple[Op, ...], ...] = (
    (("t", (4,), (3, 1, 1)), ("t", (0,), (2, 3, 0))),
    (("t", (2,), (1, 2, 2)), ("t", (3,), (0, 1, 3))),
    (("t", (2,), None),),
)


@pytest.mark.parametrize("shown", ["max(r1.id)", "max_by(r1.v, r1.id)"])
@pytest.mark.parametrize("having", ["", "having count(*) <= (select count(r6.v) from t r6)"])
def test_rows_that_only_seem_to_have_no_partner_do_not_count(shown: str, having: str) -> None:
    sql = (
        f"select r2.k, count(*) as n, {shown} as m from t r1 left join t r2 on r1.k = r2.v "
        f"group by r2.k {having}"
    )
    assert outcome(Case(sql, MOVES), DuckEngine(), generous=False) is None


@pytest.mark.parametrize("shown", ["max(r1.g)", "max_by(r1.id, r1.g)"])
def test_a_row_that_only_seems_to_have_no_partner_does_not_keep_an_extreme(shown: str) -> None:
    """Row 1 goes, which alone had the greatest value; row 4 has it, too, and has a partner."""
    sql = f"select r2.k, {shown} as m from t r1 left join t r2 on r1.k = r2.v group by r2.k"
    moves: tuple[tuple[Op, ...], ...] = (
        (("t", (1,), (9, 7, 6)), ("t", (4,), (3, 7, 1)), ("t", (0,), (2, 0, 3))),
        (("t", (1,), None), ("t", (2,), (1, 0, 5))),
    )
    assert outcome(Case(sql, moves), DuckEngine(), generous=False) is None


def random_case(draw: random.Random) -> Case:
    """Few values, so that rows share extremes and find each other."""
    kind = draw.choice(["left", "right", "full", "inner", "left anti", "left semi"])
    sides = ["r1"] if kind in ("left anti", "left semi") else ["r1", "r2"]
    side, by = draw.choice(sides), draw.choice(sides)
    shown = draw.choice([f"max({side}.v)", f"min({side}.id)", f"max_by({side}.id, {by}.v)"])
    group = draw.choice([f"{by}.k", f"{by}.g", ""])
    sql = f"select {f'{group} as b, ' if group else ''}count(*) as n, {shown} as m from t r1"
    sql += f" {kind} join t r2 on {draw.choice(['r1.k = r2.v', 'r1.k = r2.k and r1.v = r2.v'])}"
    there: set[int] = set()
    epochs = []
    for _ in range(6):
        ops: list[Op] = []
        for key in draw.sample(range(6), draw.randrange(1, 4)):
            goes = key in there and draw.random() < 0.4
            (there.discard if goes else there.add)(key)
            row = (draw.randrange(4), draw.randrange(3), draw.randrange(3))
            ops.append(("t", (key,), None if goes else row))
        epochs.append(tuple(ops))
    return Case(sql + (f" group by {group}" if group else ""), tuple(epochs))


@pytest.mark.parametrize("seed", seeds(3))
def test_extremes_equal_the_batch_query(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        case = random_case(draw)
        assert outcome(case, DuckEngine(), generous=False) is None, case
