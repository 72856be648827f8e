"""Averages of exact numbers, and values beside an extreme: kept up as Spark computes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.connector import WEIGHT
from mview.execute.kept.sums import add_up
from mview.execute.local.evaluate import LocalEvaluator
from mview.ivm.aggregates.averages import Average
from mview.ivm.compile import compile_view
from mview.plan.definition import parse_view
from mview.schema import parse_type
from tests.ivm.world import Row, SparkEngine, World, table_schema
from tests.relations import rel
from tests.seeds import SEED

EXACT = Context(prec=100)

#: Sizes of groups at which an average often ends in a half of its last digit.
SIZES = (1, 3, 7, 20, 32, 96, 160, 320)


def test_the_average_of_few_digits_is_that_of_doubles() -> None:
    """Spark takes 0.29 / 160 = 0.0018125 through DOUBLE for 0.001812."""
    rows = pa.table({"s": pa.array([Decimal("0.29")], pa.decimal128(15, 2)), "c": [160]})
    (found,) = Average("s", "c", whole=False).of(rows).to_pylist()
    assert found == Decimal("0.001812")
    wide = rows.set_column(0, "s", rows["s"].cast(pa.decimal128(22, 2)))
    assert Average("s", "c", whole=False).of(wide).to_pylist() == [Decimal("0.001813")]


def test_no_values_have_no_average_and_wide_ones_no_known_type() -> None:
    total = pa.array([Decimal(0), Decimal(-7)], pa.decimal128(30, 0))
    rows = pa.table({"s": total, "c": [0, 2]})
    assert Average("s", "c", whole=True).of(rows).to_pylist() == [None, -3.5]
    assert Average("s", "c", whole=False).type(pa.decimal128(38, 2)) is None


def test_averages_of_no_known_type_are_computed_again() -> None:
    view = parse_view("select k, avg(x) as a from t group by k", "v", "v.sql")
    plans = [
        compile_view(
            view, {rel("t"): table_schema(f"id bigint, k bigint, x decimal({digits},2)", "id")}
        )
        for digits in (27, 28)
    ]
    assert [plan.maintained is None for plan in plans] == [False, True]


def _values(kind: str, chance: random.Random) -> Callable[[], Any]:
    arrow = parse_type(kind)
    if pa.types.is_integer(arrow):
        high = 2 ** (arrow.bit_width - 1) - 1
        # Sums of DOUBLE are exact below 2^53 only, to Spark.
        high = min(high, 2**43)
        return lambda: chance.choice([0, 1, -1, high, -high, chance.randint(-high, high), None])
    high = 10**arrow.precision - 1
    # As they are below 2^53 units for decimals of few digits.
    most = high if arrow.precision > 11 else min(high, 10**9)

    def value() -> Decimal | None:
        unit = chance.choice([0, 1, 3, -1, most, -most, chance.randint(-most, most), None])
        return None if unit is None else Decimal(unit).scaleb(-arrow.scale, EXACT)

    return value


VIEWS = {
    "shown": "select g, avg(x) as a, count(*) as n from t group by g",
    "computed": "select g, avg(x) + 1 as a from t group by g having avg(x) > -5",
    "filtered": "select g, avg(x) filter (where id % 3 = 0) as a from t group by g",
    "whole": "select avg(x) as a, sum(x) as s from t",
}


@pytest.mark.spark
@pytest.mark.parametrize(
    "kind",
    [
        "decimal(5,2)",
        *(
            pytest.param(kind, marks=pytest.mark.long)
            for kind in ("int", "bigint", "decimal(9,0)", "decimal(11,11)", "decimal(18,2)")
        ),
        pytest.param("decimal(27,9)", marks=pytest.mark.long),
    ],
)
def test_averages_are_those_of_the_batch(spark: SparkSession, kind: str) -> None:
    chance = random.Random(f"{SEED} {kind}")
    value = _values(kind, chance)
    schema = table_schema(f"id bigint, g int, x {kind}", "id")
    world = World({"t": schema}, VIEWS, LocalEvaluator(), batch=SparkEngine(spark))
    assert all(world.plans[rel(name)].maintained is not None for name in VIEWS)
    rows: list[Row] = []
    for group in range(60):
        for _ in range(chance.choice(SIZES)):
            rows.append((len(rows), group, value()))
    if kind == "decimal(5,2)":  # the average of 160 rows with the sum 0.29
        made = [Decimal("0.01")] * 29 + [Decimal("0.00")] * 131
        rows += [(len(rows) + at, 60, one) for at, one in enumerate(made)]
    world.epoch({"t": [(1, row) for row in rows]})
    for _ in range(2):
        gone = chance.sample(range(len(rows)), 40)
        come = [(rows[at][0], rows[at][1], value()) for at in gone]
        world.epoch({"t": [(-1, rows[at]) for at in gone] + [(1, row) for row in come]})
        for at, row in zip(gone, come, strict=True):
            rows[at] = row


@pytest.mark.long
@pytest.mark.spark
def test_an_average_of_an_unknown_type_has_no_state(spark: SparkSession) -> None:
    schema = table_schema("id bigint, g int, x decimal(18,2), y decimal(18,2)", "id")
    engine = SparkEngine(spark)
    world = World({"t": schema}, {"v": "select g, avg(x * y) as a from t group by g"}, engine)
    assert world.plans[rel("v")].maintained is None
    wide = Decimal("9999999999999.99")
    world.epoch({"t": [(1, (at, 0, wide, one)) for at, one in enumerate([wide, wide, -wide])]})
    world.epoch({"t": [(-1, (2, 0, wide, -wide))]})


BESIDE = {
    "one": "select max_by(v, x) as a, min_by(v, x) filter (where v <> 'c') as b from t",
    "expression": "select concat(max_by(v, x), '!') as a, count(*) as n from t",
    "groups": "select x % 2 as k, max_by(v, x) as a from t group by x % 2",
    "branches": "select 'a' as w, max_by(t.v, (x)) as a from t union all select 'b', max(v) from t",
}


@pytest.mark.spark
@pytest.mark.days(3)
def test_the_value_beside_an_extreme(spark: SparkSession) -> None:
    """No two rows have one `x`: else it is the value of any of them."""
    chance = random.Random(f"{SEED} beside")
    schema = table_schema("id bigint, x int, v string", "id")
    world = World({"t": schema}, BESIDE, SparkEngine(spark))
    assert all(
        any(one.maintained and one.maintained.beside for one in (plan, *plan.parts))
        for name, plan in world.plans.items()
        if str(name) in BESIDE and name != rel("groups")
    )
    rows: dict[int, Row] = {}
    for _ in range(8):
        changes = []
        for key in chance.sample(range(6), 2):
            if (old := rows.pop(key, None)) is not None:
                changes.append((-1, old))
            if chance.random() < 0.7:
                order = chance.choice([None, key, key + 6, -key])
                rows[key] = (key, order, chance.choice(["a", "b", "c", None]))
                changes.append((1, rows[key]))
        world.epoch({"t": changes})


def test_the_row_with_the_extreme_goes_or_stays() -> None:
    """State 5 → 'a'; what stands beside the new extreme, where that is known."""

    def after(*parts: tuple[int, int | None, str | None]) -> object:
        state = pa.table({"g": [0], "n": [3], "m": [5], "b": ["a"]})
        schema = pa.schema([(WEIGHT, pa.int32()), *state.schema])
        rows = [{WEIGHT: w, "g": 0, "n": 1, "m": m, "b": b} for w, m, b in parts]
        partial = pa.Table.from_pylist(rows, schema)
        found = add_up(["g"], ["n", "m", "b"], state, partial, {"m": "max"}, {"b": "m"}, True)
        return found and (found["m"][0].as_py(), found["b"][0].as_py())

    assert after((1, 4, "x")) == (5, "a")
    assert after((1, 6, "x")) == (6, "x")
    assert after((1, 6, None)) == (6, None)
    assert after((1, None, None)) == (5, "a")
    assert after((-1, 4, "x")) == (5, "a")
    assert after((-1, 5, "a")) is None
    assert after((-1, 5, "a"), (1, 4, "x")) is None
    assert after((-1, 5, "a"), (1, 5, "x")) == (5, "x")
    assert after((-1, 5, "a"), (1, 7, None)) == (7, None)
