"""The cost rule: when a view is computed as a whole, and what it learns from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest

from mview.epoch.views.cost import (
    FULL,
    INCREMENTAL,
    REACH,
    Choice,
    Costs,
    Load,
    Pace,
    Ran,
    choose,
    costs_of,
    percent,
    runs_of,
    with_run,
)
from mview.files.records import record
from mview.schema import TableSchema
from mview.store.manifest import ViewState
from tests.relations import keyed, rel

ROWS = 1_000_000
#: 10 µs a row, 20 ms more; 4 s for all rows.
MEASURED = Costs(
    paces={"local": Pace(0.02, ROWS, 10.0)},
    executor="local",
    foreseen=1_000.0,
    read=1_000.0,
    full_rows=2 * ROWS,
    full_seconds=4.0,
    full_executor="spark",
)


def load(changed: int, foreseen: float = 0.0, **changes: Any) -> Load:
    """Changed orders in a join of as many orders as lines."""
    rows = {"shop.orders": ROWS, "shop.lines": ROWS}
    given = Load({rel("shop.orders"): changed}, keyed(rows), foreseen, 2 * ROWS, 1)
    return replace(given, **changes)


def chosen(costs: Costs, given: Load, forced: Any = "auto", only: bool = False) -> Choice:
    return choose(costs, given, forced, incremental_only=only, memory=1_000)


def test_the_cheaper_way_is_taken_by_a_clear_margin() -> None:
    # 20 ms + 10 µs a row: 6 s, that is 1.5 times the 4 s of a FULL, at 598,000 rows.
    assert chosen(MEASURED, load(597_000)).strategy == INCREMENTAL
    assert chosen(MEASURED, load(600_000)) == Choice(
        FULL, "60 % of shop.orders changed, estimated 4.0 s against 6.0 s"
    )


def test_rows_that_are_looked_up_count() -> None:
    few = load(300_000)
    assert chosen(MEASURED, few).strategy == INCREMENTAL
    assert chosen(MEASURED, replace(few, foreseen=400_000)).strategy == FULL
    # They turned out to be a tenth of what the plan let expect.
    learned = replace(MEASURED, read=100.0)
    assert chosen(learned, replace(few, foreseen=400_000)).strategy == INCREMENTAL


def test_no_table_is_read_more_than_whole() -> None:
    slow = replace(MEASURED, full_seconds=22.0)
    assert chosen(slow, load(1_000_000, foreseen=1e9)).strategy == INCREMENTAL


@pytest.mark.parametrize("changed", [1, 999, 1_000, 199_999])
def test_below_a_fifth_of_join_and_aggregate_it_is_incremental(changed: int) -> None:
    """Each changed order is met by one line: the share of both tables is the same."""
    slow = replace(MEASURED, paces={"local": Pace(0.02, ROWS, 9_000.0)})
    assert chosen(slow, load(changed, foreseen=changed)).strategy == INCREMENTAL
    assert chosen(slow, load(200_000, foreseen=200_000)).strategy == FULL


def test_small_epochs_are_incremental_whatever_they_touch() -> None:
    assert chosen(MEASURED, load(999, foreseen=1e9)).strategy == INCREMENTAL
    assert chosen(MEASURED, load(1_000, foreseen=1e9)).strategy == FULL


@pytest.mark.parametrize(
    "costs",
    [
        Costs(),
        replace(MEASURED, paces={}, executor=""),
        replace(MEASURED, full_seconds=0.0),
        # Measured with too few rows to tell of so many.
        replace(MEASURED, paces={"local": Pace(0.02, 600_000 / REACH - 1, 9.0)}),
    ],
)
def test_what_was_not_measured_needs_a_large_share_of_a_large_table(costs: Costs) -> None:
    assert chosen(costs, load(600_000)) == Choice(
        FULL, "60 % of shop.orders changed, not measured yet"
    )
    assert chosen(costs, load(599_999)).strategy == INCREMENTAL


def test_in_process_a_smaller_share_is_tried_as_a_whole() -> None:
    """What a build by Spark took says nothing of it; once tried, it is measured."""
    slow = replace(MEASURED, full_seconds=100.0)
    here = load(100_000, full_executor="local")
    assert chosen(slow, here) == Choice(FULL, "10 % of shop.orders changed, not measured yet")
    assert chosen(slow, replace(here, changed={rel("shop.orders"): 99_999})).strategy == INCREMENTAL
    measured = slow.after_full("local", 2 * ROWS, 0.5)
    assert measured.full_estimate(2 * ROWS) == 0.5
    # 20 ms + 10 µs a row are 1.02 s.
    assert chosen(measured, here).strategy == INCREMENTAL
    assert chosen(measured, load(400_000, full_executor="local")).strategy == FULL


def test_a_small_table_is_followed_until_both_ways_are_measured() -> None:
    small = load(90_000, rows={rel("shop.orders"): 99_999})
    assert chosen(Costs(), small).strategy == INCREMENTAL
    large = load(90_000, rows={rel("shop.orders"): 100_000})
    assert chosen(Costs(), large).strategy == FULL


def test_a_view_that_does_not_fit_into_memory_is_followed() -> None:
    assert chosen(MEASURED, load(900_000, full_bytes=1_000)).strategy == FULL
    found = chosen(MEASURED, load(900_000, full_bytes=1_001))
    assert (found.strategy, "engine.memory" in found.why) == (INCREMENTAL, True)


def test_the_table_with_the_most_changed_rows_is_named() -> None:
    both = {"clock:now": 1, "shop.lines": 3, "shop.orders": 40}
    rows = {"clock:now": 1, "shop.lines": 4, "shop.orders": 400}
    assert (
        chosen(Costs(), replace(load(0), changed=keyed(both), rows=keyed(rows))).why
        == "10 % of shop.orders changed"
    )
    alone = replace(load(0), changed={rel("clock:now"): 1}, rows=keyed(rows))
    assert chosen(Costs(), alone).why == "the time moved"


def test_forced_strategies_and_the_policy() -> None:
    assert chosen(Costs(), load(1), "full").strategy == FULL
    assert chosen(MEASURED, load(900_000), "incremental").strategy == INCREMENTAL
    for forced in ("auto", "full"):
        assert chosen(MEASURED, load(900_000), forced, only=True).strategy == INCREMENTAL


def test_small_epochs_tell_the_fixed_cost_and_large_ones_that_of_a_row() -> None:
    costs = Costs()
    for _ in range(20):
        costs = costs.after_incremental("local", 10, 10, 5, 0.1)
    assert costs.incremental_estimate(15) == pytest.approx(0.1, rel=0.01)
    assert costs.incremental_estimate(50_000) is None
    costs = costs.after_incremental("local", 10_000, 10_000, 10_000, 0.5)
    assert costs.incremental_estimate(40_000) == pytest.approx(0.1 + 2 * 0.4, rel=0.01)
    assert costs.reads(1_000) == pytest.approx(1_000, rel=0.01)


def test_another_executor_has_another_pace() -> None:
    costs = MEASURED.after_incremental("spark", ROWS, 0, 0, 50.0)
    estimate = costs.incremental_estimate(ROWS)
    assert estimate is not None
    assert estimate == pytest.approx(50.0, rel=0.01)
    assert costs.paces["local"] == MEASURED.paces["local"]


def test_a_full_epoch_is_scaled_by_the_rows_but_has_a_start_that_is_not() -> None:
    costs = Costs().after_full("local", 1_000, 2.0)
    assert costs.full_estimate(3_000) == pytest.approx(6.0)
    assert costs.full_estimate(10) == pytest.approx(2.0)
    assert costs.after_full("local", 2_000, 2.0).full_estimate(2_000) == pytest.approx(3.0)


def test_the_history_goes_through_the_manifest_and_stays_small() -> None:
    state = ViewState("hash", "DELTA_JOIN", TableSchema((), ()), {}, 1)
    costs = Costs()
    for epoch in range(1, 50):
        costs = costs.after_incremental("local", epoch, 3.0, epoch, 0.01).after_full(
            "local", 9, 1.0
        )
        ran = Ran(epoch, INCREMENTAL, "1 % of a.b changed", "local", epoch, epoch, 4, 0.01)
        facts = with_run(with_run(state.facts, rel("v:1"), ran, costs), rel("v"), ran, costs)
        text = orjson.dumps(replace(state, facts=facts).to_json())
        state = record(ViewState, orjson.loads(text))
    assert costs_of(state, rel("v")) == costs_of(state, rel("v:1")) == costs
    assert runs_of(state)["v"].epoch == 49
    assert len(json.dumps(state.facts)) < 1_500
    assert costs_of(replace(state, facts={"epoch": 3}), rel("v")) == Costs()


@pytest.mark.parametrize(("share", "text"), [(0.414, "41 %"), (1.0, "100 %"), (0.00312, "0.31 %")])
def test_percentages_are_for_people(share: float, text: str) -> None:
    assert percent(share) == text
