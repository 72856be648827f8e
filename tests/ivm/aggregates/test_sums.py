"""Sums at the edges of their types: right, or the view's error; never another number."""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Context, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mview.connector import WEIGHT
from mview.errors import DataError
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.program import BatchNeededError
from mview.execute.refusal import EvaluationError
from mview.execute.slices import consolidate
from mview.relation import RelationId
from mview.schema import parse_type
from tests.ivm.world import (
    Engine,
    Row,
    SparkEngine,
    World,
    normal,
    random_changes,
    table_schema,
)
from tests.relations import rel
from tests.seeds import SEED, is_of_today

INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
DECIMALS = ("decimal(5,2)", "decimal(18,0)", "decimal(28,3)", "decimal(38,2)", "decimal(38,38)")

#: What a sum is kept for: shown as it is, in an expression, beside other calls, of a global group.
VIEWS = {
    "shown": "select g, sum(x) s, count(x) c from t group by g",
    "finalized": "select g, sum(x) s, count(*) c from t group by g having count(*) > 0",
    "filtered": "select g, sum(x) filter (where id > 1) s, count(*) c from t group by g",
    "whole": "select sum(x) s, count(*) c from t",
    "extreme": "select sum(x) s, min(x) m, max(x) n, count(*) c from t",
    "distinct": "select g, sum(distinct x) s from t group by g",
    "joined": "select a.g, sum(a.x) filter (where b.id > 1) s, count(*) c"
    " from t a join t b on a.g = b.g group by a.g",
    "doubled": "select g, sum(x) s from (select g, x from t union all select g, x from t) d"
    " group by g",
}
KEYS = range(1, 7)

EXACT = Context(prec=100)


def edges(kind: str) -> list[Any]:
    """The ends of a type, their neighbours, halves, and what is near zero."""
    if kind in INTEGERS:
        low, high = -(2 ** (INTEGERS[kind] - 1)), 2 ** (INTEGERS[kind] - 1) - 1
        return [low, low + 1, low // 2, -1, 0, 1, high // 2 + 1, high - 1, high, None]
    arrow = parse_type(kind)
    high = 10**arrow.precision - 1
    units = [-high, -high // 2, -1, 0, 1, high // 2 + 1, high - 1, high]
    return [Decimal(unit).scaleb(-arrow.scale, EXACT) for unit in units] + [None]


def limit(kind: str) -> tuple[Any, Any]:
    """The least and the greatest value of a sum over a type."""
    if kind in INTEGERS:
        return -(2**63), 2**63 - 1
    arrow = parse_type(kind)
    high = Decimal(10 ** min(38, arrow.precision + 10) - 1).scaleb(-arrow.scale, EXACT)
    return high.copy_negate(), high


def fits(view: str, kind: str, rows: dict[int, Row]) -> bool:
    """Whether all sums of a view are within their type."""
    low, high = limit(kind)
    groups: dict[Any, list[Any]] = {}
    for key, group, value in rows.values():
        if value is not None and not (view == "filtered" and key <= 1):
            groups.setdefault(None if view in ("whole", "extreme") else group, []).append(value)
    found = [(group, set(one) if view == "distinct" else one) for group, one in groups.items()]
    with localcontext(EXACT):
        return all(low <= sum(one) * times(view, group, rows) <= high for group, one in found)


def times(view: str, group: Any, rows: dict[int, Row]) -> int:
    """How often each row of a group is in its sum."""
    if view == "joined":
        return sum(key > 1 and other == group for key, other, _ in rows.values())
    return 2 if view == "doubled" else 1


class Sums(World):
    """One view over `t(id, g, x)`, of which the batch may fail by the order of its rows."""

    def __init__(self, view: str, kind: str, engine: Engine, batch: Engine) -> None:
        self.failed = 0
        super().__init__(
            {"t": table_schema(f"id bigint, g int, x {kind}", "id")},
            {"v": VIEWS[view]},
            engine,
            batch=batch,
        )

    def compute(self, name: RelationId) -> pa.Table:
        """As the batch has it; where that fails by the order of rows, as it is."""
        try:
            return super().compute(name)
        except (PySparkException, EvaluationError):
            self.failed += 1
            return self.mirrors[name].table()


def attack(
    world: Sums, view: str, kind: str, chance: random.Random, epochs: int
) -> tuple[int, int]:
    """Random epochs; returns how many were published and how many refused."""
    rows: dict[int, Row] = {}
    published = refused = 0
    values = edges(kind)

    def made(key: int) -> Row:
        return key, chance.randrange(2), chance.choice(values)

    for _ in range(epochs):
        after = dict(rows)
        changes = random_changes(chance, after, list(KEYS), chance.randrange(1, 4), 0.8, made)
        if not changes:
            continue
        good = fits(view, kind, after)
        try:
            world.epoch({"t": changes})
        except (DataError, PySparkException):
            failed, decided = True, True
        except (EvaluationError, BatchNeededError):
            failed, decided = True, not (kind in DECIMALS or view == "distinct")
        else:
            failed, decided = False, True
        if failed:
            assert not good or not decided, f"refused over {after}"
            refused += decided
            continue
        assert good, f"published {world.mirrors[rel('v')].rows} over {after}"
        rows = after
        published += 1
    return published, refused


#: Those whose sums can leave their type by few rows.
NARROW = ("bigint", "decimal(38,2)", "decimal(38,38)")
#: Views whose sums are kept in a state table.
KEPT = ("shown", "finalized", "whole", "extreme")


@pytest.mark.parametrize("kind", [*INTEGERS, *DECIMALS])
def test_in_process(kind: str) -> None:
    chance = random.Random(f"{SEED} {kind}")
    for view in VIEWS:
        world = Sums(view, kind, LocalEvaluator(), LocalEvaluator())
        published, refused = attack(world, view, kind, chance, 25 if kind in NARROW else 5)
        assert published
        if kind == "bigint" and view in KEPT:
            assert refused


#: Over the edge in one epoch and back in the next; over it on one side only of what is added up.
@pytest.mark.parametrize("view", ["shown", "finalized", "whole", "extreme"])
def test_a_sum_that_is_within_bounds_in_the_end(view: str) -> None:
    high = 2**63 - 1
    world = Sums(view, "bigint", LocalEvaluator(), LocalEvaluator())
    world.epoch({"t": [(1, (1, 0, high)), (1, (2, 0, -high))]})
    world.epoch({"t": [(1, (3, 0, high))]})
    with pytest.raises(DataError, match="view v fails on the data: ARITHMETIC_OVERFLOW"):
        world.epoch({"t": [(1, (4, 0, 5))]})
    world.epoch(
        {"t": [(1, (4, 0, high)), (1, (5, 0, high)), (1, (6, 0, -high)), (-1, (1, 0, high))]}
    )
    with pytest.raises(DataError):
        world.epoch({"t": [(-1, (2, 0, -high))]})


def test_weights_never_wrap() -> None:
    most = 2**31 - 1
    for kind in (pa.int64(), pa.float64()):
        rows = pa.table({"a": pa.array([1, 1], kind), WEIGHT: pa.array([most, 1], pa.int32())})
        with pytest.raises(pa.ArrowInvalid):
            consolidate(rows)


def of_today(kind: int) -> list[str]:
    """Views for the kind at a place of the list: each view meets each kind on one day in three."""
    return [view for place, view in enumerate(VIEWS) if is_of_today(place + kind, 3)]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "views", "epochs"),
    [
        ("bigint", ("shown",), 5),
        *(
            pytest.param(kind, of_today(place), 10, marks=pytest.mark.long)
            for place, kind in enumerate((*INTEGERS, *DECIMALS))
        ),
    ],
)
def test_on_spark(spark: SparkSession, kind: str, views: Iterable[str], epochs: int) -> None:
    chance = random.Random(f"{SEED} {kind} on Spark")
    for view in views:
        world = Sums(view, kind, SparkEngine(spark), SparkEngine(spark))
        attack(world, view, kind, chance, epochs)


#: Two values above zero leave their type in any order; one of them alone is within it.
_OVER = {"bigint": (2**63 - 1, 1), "decimal(38,2)": (Decimal("9" * 36 + ".99"), Decimal(1))}


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["bigint", pytest.param("decimal(38,2)", marks=pytest.mark.long)])
def test_what_is_tried_is_null_over_the_edge(spark: SparkSession, kind: str) -> None:
    views = {
        "added": "select id, try_add(x, x) as s from t",
        "summed": "select g, try_sum(x) as s, try_avg(x) as a from t group by g",
        "whole": "select try_sum(x) as s, count(*) as c from t",
    }
    schemas = {"t": table_schema(f"id bigint, g int, x {kind}", "id")}
    world = World(schemas, views, SparkEngine(spark), batch=SparkEngine(spark))
    high, one = _OVER[kind]
    world.epoch({"t": [(1, (1, 0, high)), (1, (2, 1, one))]})
    (found,) = world.mirrors[rel("whole")].rows
    assert found == (None, 2)
    world.epoch({"t": [(1, (3, 0, one)), (-1, (2, 1, one))]})
    ((group, total, _),) = world.mirrors[rel("summed")].rows
    assert (group, total) == (0, None)
    world.epoch({"t": [(-1, (3, 0, one)), (1, (4, 1, None))]})
    assert {row[:2] for row in world.mirrors[rel("summed")].rows} == {
        (0, normal(high)),
        (1, None),
    }
    assert (1, None) in world.mirrors[rel("added")].rows
