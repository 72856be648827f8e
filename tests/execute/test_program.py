"""What an epoch of a view does when an evaluation fails, and when an extreme value goes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from mview.execute.program import Request, run_view
from mview.execute.refusal import NotAdmittedError
from mview.execute.slices import Changes
from mview.ivm.compile import compile_view
from mview.plan.definition import parse_view
from tests.ivm.world import DuckEngine, Lookups, Mirror, World, table_schema
from tests.relations import keyed, rel

SCHEMAS = {"t": table_schema("id bigint, k bigint, v bigint", "id")}


class Failing:
    """Fails so many times, then evaluates."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.engine = error, times, DuckEngine()

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        if self.times:
            self.times -= 1
            raise self.error
        return self.engine.run(sql, relations, result)


def changed_view(error: Exception, times: int) -> tuple[list[Request], pa.Table | None]:
    """One epoch of a grouped view whose evaluator fails; returns the look-ups and the delta."""
    plan = compile_view(
        parse_view("select k, count(distinct v) n from t group by k", "v"), keyed(SCHEMAS)
    )
    mirror = Mirror(SCHEMAS["t"])
    mirror.apply([(1, (1, 1, 5)), (1, (2, 2, 6))])
    lookups = Lookups({rel("t"): mirror}, generous=False)
    delta = run_view(
        plan, {rel("t"): Changes(mirror.delta([(1, (3, 1, 7))]))}, lookups, Failing(error, times)
    )
    return lookups.requests, delta.rows if delta else None


def test_a_failure_over_slices_is_tried_again_over_all_rows() -> None:
    requests, rows = changed_view(ZeroDivisionError(), 1)
    assert [request.keys is None for request in requests] == [False, True]
    assert rows is not None
    assert rows.num_rows == 2


def test_what_may_not_run_here_is_left_to_another_executor_at_once() -> None:
    with pytest.raises(NotAdmittedError):
        changed_view(NotAdmittedError("operator", "x"), 1)


def _whole_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    seen: list[Request] = []
    real = Lookups.fetch

    def fetch(self: Lookups, requests: Sequence[Request]) -> list[pa.Table]:
        seen.extend(request for request in requests if request.keys is None)
        return real(self, requests)

    monkeypatch.setattr(Lookups, "fetch", fetch)
    return seen


def test_all_rows_are_read_only_when_the_extreme_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(SCHEMAS, {"v": "select max(v) as most from t"}, DuckEngine())
    whole = _whole_reads(world, monkeypatch)
    world.epoch({"t": [(1, (1, 1, 5)), (1, (2, 1, 9)), (1, (3, 1, 7))]})
    world.epoch({"t": [(-1, (1, 1, 5))]})
    world.epoch({"t": [(-1, (2, 1, 9)), (1, (2, 1, 10))]})
    assert whole == []
    world.epoch({"t": [(-1, (2, 1, 10))]})
    assert len(whole) == 1


def test_all_rows_are_ranked_only_when_the_reserve_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(SCHEMAS, {"v": "select id, v from t order by v desc, id limit 2"}, DuckEngine())
    whole = _whole_reads(world, monkeypatch)
    world.epoch({"t": [(1, (n, 1, n)) for n in range(150)]})
    whole.clear()
    world.epoch({"t": [(-1, (n, 1, n)) for n in range(140, 150)]})
    assert whole == []
    world.epoch({"t": [(-1, (n, 1, n)) for n in range(40, 140)]})
    assert len(whole) == 1
