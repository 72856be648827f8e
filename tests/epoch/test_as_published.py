"""Rows that go and hold a sum of DOUBLE are those that were published, to the last digit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mview.connector import WEIGHT
from mview.epoch.views.strategy import _as_published
from mview.execute.program import BatchNeededError
from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.plan.definition import parse_view
from tests.ivm.world import table_schema
from tests.relations import keyed

SCHEMAS = {"t": table_schema("id bigint, g bigint, x double", "id")}
#: What was published, and more than was asked for.
KEPT = pa.table({"g": [None, 7, 1], "s": [0.6, 9.0, 0.5]})


def planned(sql: str) -> ViewPlan:
    return compile_view(parse_view(sql, "v"), keyed(SCHEMAS))


def engine(relations: dict[str, Any], kept: pa.Table = KEPT) -> Any:
    def fetch(requests: list[Any]) -> list[pa.Table]:
        (request,) = requests
        assert request.null_safe
        assert request.keys.column_names == ["g"]
        return [kept.select(request.select)]

    return SimpleNamespace(relations=keyed(relations), executors=SimpleNamespace(fetch=fetch))


def change(*rows: tuple[Any, float, int]) -> pa.Table:
    groups, sums, weights = zip(*rows, strict=True)
    return pa.table({WEIGHT: pa.array(weights, pa.int32()), "g": groups, "s": sums})


def found(rows: pa.Table) -> set[tuple[Any, ...]]:
    return {(row["g"], row["s"], row[WEIGHT]) for row in rows.to_pylist()}


KEYED = "select g, sum(x) as s from t group by g"


def test_by_their_keys_where_views_read_them() -> None:
    rows = change((None, 0.6000000000000001, -1), (None, 0.7, 1), (1, 0.5, -1), (1, 0.5, 1))
    one = _as_published(engine({"v": None}), planned(KEYED), rows)
    assert found(one) == {(None, 0.6, -1), (None, 0.7, 1)}
    assert one.schema.equals(rows.schema)
    # The sink finds them by their keys.
    assert _as_published(engine({}), planned(KEYED), rows) is rows


def test_without_a_key_only_a_comparison_tells() -> None:
    plan = planned("select sum(x) as s from t group by g")
    rows = change((1, 0.5, -1)).drop_columns(["g"])
    with pytest.raises(BatchNeededError, match="depends on the order"):
        _as_published(engine({}), plan, rows)
    come = change((1, 0.5, 1)).drop_columns(["g"])
    assert _as_published(engine({}), plan, come) is come


def test_one_row_of_all_is_read() -> None:
    plan = planned("select count(*) as n from (select g from t group by g having sum(x) > 1)")
    assert plan.maintained is not None
    assert plan.maintained.always
    sink = SimpleNamespace(parts=lambda facts: iter([pa.table({"n": [3]})]))
    rows = pa.table({WEIGHT: pa.array([-1, 1], pa.int32()), "n": [4, 5]})
    kept = engine({})
    kept.views = {"v": SimpleNamespace(sink=sink)}
    kept.manifest = SimpleNamespace(views={"v": SimpleNamespace(sink={})})
    one = _as_published(kept, plan, rows)
    assert {(row["n"], row[WEIGHT]) for row in one.to_pylist()} == {(3, -1), (5, 1)}


def test_exact_sums_are_as_computed() -> None:
    rows = change((1, 2.0, -1))
    assert (
        _as_published(engine({}), planned("select g, count(*) as s from t group by g"), rows)
        is rows
    )
