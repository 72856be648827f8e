"""Which numbers are exact: sums of others are computed from all rows of a group."""

from __future__ import annotations

import pytest

from mview.ivm.compile import compile_view
from mview.plan.definition import parse_view
from tests.ivm.world import DuckEngine, World, table_schema
from tests.relations import keyed

SCHEMA = table_schema("id bigint, k bigint, i int, d decimal(10,2), x double", "id")


@pytest.mark.parametrize(
    ("call", "is_kept"),
    [
        ("sum(i + 1.5)", True),
        ("sum(d / 2)", True),
        ("sum(i / 2)", False),
        ("sum(i + x)", False),
        ("sum(coalesce(i, x))", False),
        ("min(d)", True),
        ("min(x)", False),
        ("max(x)", False),
    ],
)
def test_sums_and_ends_of_exact_values_are_kept(call: str, is_kept: bool) -> None:
    view = parse_view(f"select {call} as s from t", "v")
    assert (compile_view(view, keyed({"t": SCHEMA})).maintained is not None) == is_kept


@pytest.mark.parametrize(("other", "is_kept"), [("d", True), ("x", False)])
def test_a_column_of_a_union_is_as_exact_as_its_branches(other: str, is_kept: bool) -> None:
    both = f"select k, i as y from t union all select k, {other} as y from t"
    view = parse_view(f"select k, sum(y) as s from ({both}) group by k", "v")
    assert (compile_view(view, keyed({"t": SCHEMA})).maintained is not None) == is_kept


def test_a_literal_with_a_point_is_no_whole_number() -> None:
    views = {"v": "select k, sum(1.5 * i) as s from t group by k"}
    world = World({"t": SCHEMA}, views, DuckEngine())
    for number in (1, 2, 3):
        world.epoch({"t": [(1, (number, 7, number, None, None))]})
