"""Comparisons with the time: which become bands, and that a tick which reads a band is right."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Mapping

import pyarrow as pa
import pytest

from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.program import Request
from mview.execute.refusal import NotAdmittedError
from mview.ivm.compile import compile_view
from mview.ivm.explain import explain
from mview.ivm.plan import ViewPlan
from mview.ivm.tracing.steps import Band, Step, Whole
from mview.plan.clocks import DAY, INSTANT, is_clock
from mview.plan.definition import parse_view
from tests.ivm.world import Row, World, random_changes, table_schema
from tests.relations import keyed, rel
from tests.seeds import daily, some_today

SCHEMAS = {
    "s.t": table_schema(
        "id bigint, k int, d date, ts timestamp, at timestamp_ntz, s bigint, x decimal(10,2),"
        " n string",
        "id",
    ),
    "s.u": table_schema("id bigint, k int, d date", "id"),
}
UTC = dt.timezone.utc
START = dt.datetime(2026, 2, 28, 23, 50, tzinfo=UTC)


def ms(at: dt.datetime) -> int:
    return int(at.timestamp() * 1000)


def plan(sql: str) -> ViewPlan:
    return compile_view(parse_view(sql, "v"), keyed(SCHEMAS))


def steps(made: ViewPlan) -> set[Step]:
    """What is read of tables when a clock changes."""
    found = (step for trace in made.traces if is_clock(trace.table) for step in trace.steps)
    return {step for step in found if not is_clock(step.table)}


def codes(made: ViewPlan) -> set[str]:
    return {one.note.code for one in made.nodes if one.note is not None}


# --- plans ---------------------------------------------------------------------------------------

HOUR_AGO = Band(rel("s.t"), "ts", INSTANT, "__now - INTERVAL '1' HOUR")
NOW = Band(rel("s.t"), "ts", INSTANT, "__now")
TODAY = Band(rel("s.t"), "d", DAY, "__today")


def check_bands(sql: str, expected: set[Step]) -> None:
    made = plan(sql)
    assert {step for step in steps(made) if isinstance(step, Band)} == expected
    assert not any(isinstance(step, Whole) for step in steps(made))
    assert "TIME" not in codes(made)


@pytest.mark.parametrize(
    ("condition", "column", "bound"),
    [
        ("ts > now() - interval 1 hour", "ts", "__now - INTERVAL '1' HOUR"),
        ("now() - interval 1 hour <= ts", "ts", "__now - INTERVAL '1' HOUR"),
        ("d = current_date", "d", "__today"),
        ("d <> current_date", "d", "__today"),
        ("d > date_sub(current_date, 7)", "d", "DATE_ADD(__today, 7 * -1)"),
        ("s > unix_timestamp() * 1000", "s", "UNIX_TIMESTAMP(__now) * 1000"),
        ("at < localtimestamp()", "at", "CAST(__now AS TIMESTAMP_NTZ)"),
        # Whatever is made of the outcome: it is that of a row.
        ("not (ts > now() or k = 3)", "ts", "__now"),
        ("case when k = 3 then d > current_date else x > 2 end", "d", "__today"),
    ],
)
def test_a_comparison_with_the_time_is_a_band(condition: str, column: str, bound: str) -> None:
    clock = DAY if "__today" in bound else INSTANT
    check_bands(f"select id from s.t where {condition}", {Band(rel("s.t"), column, clock, bound)})


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "select id from s.t where ts between now() - interval 1 hour and now()",
            {HOUR_AGO, NOW},
        ),
        (
            "select id from s.t where now() between ts and at",
            {NOW, Band(rel("s.t"), "at", INSTANT, "__now")},
        ),
        ("select id from s.t where ts > now() and d <= current_date", {NOW, TODAY}),
        ("select id, d < current_date as past from s.t", {TODAY}),
        ("select k, sum(case when ts > now() then x end) as later from s.t group by k", {NOW}),
        ("select id, rank() over (partition by k order by ts > now()) as n from s.t", {NOW}),
        ("select i from (select id as i, ts as a from s.t where k > 3) where a > now()", {NOW}),
        (
            "select d, n from (select d, count(*) as n from s.t group by d) where d < current_date",
            {TODAY},
        ),
        (
            "select id from (select id, d from s.t union all select id, d from s.u)"
            " where d < current_date",
            {TODAY, Band(rel("s.u"), "d", DAY, "__today")},
        ),
    ],
)
def test_bands_of_one_view_are_united(sql: str, expected: set[Step]) -> None:
    check_bands(sql, expected)


@pytest.mark.parametrize(
    "condition",
    [
        "ts + interval 1 hour > now()",
        "datediff(current_date, d) < 3",
        # The bound is not made of one time alone.
        "ts > now() - make_interval(0, 0, 0, k)",
        "ts > date_add(d, day(current_date))",
        "ts > coalesce(now(), current_date)",
        "now() between ts and coalesce(now(), ts)",
        "now() between ts and ts + make_interval(0, 0, 0, k)",
        # Not sure to be written to Spark as it was read.
        "d > trunc(current_date, 'Q')",
        "ts > now() - interval '1:30' hour to minute",
        # A comparison that is none of integers, or tells NULLs from values.
        "n > current_date",
        "x > unix_timestamp()",
        "d <=> current_date",
        "d in (current_date, date'2020-01-01')",
        # The column is another row's, or the value is used by a subquery.
        "exists (select 1 from s.u where u.k = t.k and t.d < current_date and u.d > t.d)",
        "k = (select count(*) from s.u where u.k = t.k and current_date > t.d)",
    ],
)
def test_other_conditions_read_all_rows(condition: str) -> None:
    check_whole(f"select id from s.t where {condition}")


@pytest.mark.parametrize(
    "sql",
    [
        "select id, now() as at from s.t where ts > now()",
        "select id, datediff(current_date, d) as days from s.t",
        "select id, rank() over (partition by k order by datediff(d, current_date)) as n from s.t",
        "select t.id, u.k from s.t, s.u where t.k = u.k and t.d > date_add(current_date, u.k)",
        # No column of a table.
        "select id from (select id, date(ts) as c from s.t) where c = current_date",
        "select k from (select k, max(d) as last from s.t group by k) where last < current_date",
        "select id from (select id, d from s.t union all select id, null from s.u)"
        " where d < current_date",
    ],
)
def test_other_uses_of_the_time_read_all_rows(sql: str) -> None:
    check_whole(sql)


def check_whole(sql: str) -> None:
    made = plan(sql)
    assert any(isinstance(step, Whole) for step in steps(made)), steps(made)
    assert "TIME" in codes(made)


def test_a_join_goes_on_from_the_band() -> None:
    made = plan("select t.id, u.id as u from s.t join s.u on t.k = u.k where u.d < current_date")
    (text,) = re.findall(r"when clock:day changes, read:\n(.*)\nstrategies", explain(made), re.S)
    assert [line.strip() for line in text.splitlines()] == [
        "1. s.u with d between the old and the new __today",
        "2. s.t by (k) from s.u(k) of changed rows and s.u(k) of rows of 1",
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "select t.id, sum(u.k) as n from s.t join s.u on t.k = u.k where t.d > current_date"
        " group by t.id",
        "select id, sum(k) as n from s.u where d > current_date group by id",
    ],
)
def test_groups_around_a_row_are_read_again_also_from_a_band(sql: str) -> None:
    assert plan(sql).evaluation == "slice_diff"


# --- epochs --------------------------------------------------------------------------------------

VIEWS = {
    "fresh": "select id, ts from s.t where ts > now() - interval 3 minutes",
    "window": "select id, ts from s.t where ts between now() - interval 5 minutes and now()",
    "days": "select id, d from s.t"
    " where d >= date_sub(current_date, 1) and d < date_add(current_date, 1)",
    "mixed": "select id from s.t where ts >= current_date or d < now()",
    "seconds": "select id, s from s.t where s <= 1772322600 + day(current_date) - 20 and k > 0",
    "per_k": "select k, count(*) as n, sum(x) as total from s.t where ts > now() group by k",
    "most": "select max(s) as most, min(k) as least from s.t where ts <= now()",
    "split": "select k, sum(case when ts > now() then x end) as later, count(*) as n from s.t"
    " group by k",
    "distinct_k": "select distinct k from s.t where not (ts > now() and d >= current_date)",
    "joined": "select t.id, u.id as u from s.t join s.u on t.k = u.k"
    " where u.d <= current_date and t.ts > now()",
    "outer_joined": "select t.id, u.id as u from s.t left join s.u on t.k = u.k"
    " where t.ts > now() and (u.d < current_date or u.d is null)",
    "optional": "select u.id, f.id as t from s.u left join (select * from s.t where ts < now()) f"
    " on f.k = u.k",
    "waiting": "select id from s.t where not exists"
    " (select 1 from s.u where u.k = t.k and u.d > current_date)",
    "ranked": "select id, rank() over (partition by k order by ts, id) as place from s.t"
    " where ts between now() and now() + interval 10 minutes",
    "late": "select id, place from (select id, d, ts, row_number() over (partition by k"
    " order by ts, id) as place from s.t) where ts < now()",
    "either": "select id from s.t where ts = now() union select id from s.u where d = current_date",
    "all_days": "select d, n from (select d, count(*) as n from (select d from s.t union all"
    " select d from s.u) group by d) where d < current_date",
    "flag": "select id, ts > now() as later, d = current_date as today from s.t",
    "above": "select k from per_k where n > 1",
}


ONE = pa.table({"one": [1]})
#: Shared, as it keeps what it has planned.
EVALUATOR = LocalEvaluator()


class InProcess:
    """The local executor; for batches, the literals of the pinned time are as it takes them."""

    def __init__(self) -> None:
        self.evaluator = EVALUATOR

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        sql = re.sub(r"(TIMESTAMP'[^']*)Z'", r"\1'", sql)
        sql = re.sub(r"'( AS (__now|__today))\)", r"'\1 FROM one)", sql)
        return self.evaluator.run(sql, {**relations, "one": ONE}, result)


@pytest.mark.parametrize("number", some_today(range(16), 2))
def test_every_tick_equals_the_batch(number: int) -> None:
    """Eight courses of time, each with exact and with generous look-ups."""
    seed, generous = daily(number % 8), number >= 8
    chance = random.Random(seed)
    rows: dict[str, dict[int, Row]] = {"s.t": {}, "s.u": {}}
    world = World(SCHEMAS, VIEWS, InProcess(), generous=generous, pinned_ms=ms(START))
    at = START
    for _ in range(6):
        has_changes, ticks = chance.random() < 0.5, chance.random() < 0.8
        # A clock that goes back is no matter for the bands.
        at += dt.timedelta(seconds=chance.choice([30, 60, 60, 300, 86_400, -90]) if ticks else 0)
        world.epoch({name: _changes(chance, rows, name) for name in rows if has_changes}, ms(at))


def _changes(
    chance: random.Random, rows: dict[str, dict[int, Row]], table: str
) -> list[tuple[int, Row]]:
    def made(key: int) -> Row:
        row: Row = (key, chance.choice([1, 2, 3, None]), _day(chance))
        return (*row, *_times(chance)) if table == "s.t" else row

    return random_changes(chance, rows[table], range(20), 8, 0.8, made)


def _times(chance: random.Random) -> Row:
    """Often just where a bound is."""
    late, later = (
        chance.choice([None, START + dt.timedelta(seconds=30 * chance.randrange(-12, 60))])
        for _ in range(2)
    )
    seconds = chance.choice([None, 1772322600 + chance.randrange(-15, 15)])
    naive = None if later is None else later.replace(tzinfo=None)
    return (late, naive, seconds, chance.choice([None, 1, 2]), "x")


def _day(chance: random.Random) -> dt.date | None:
    return chance.choice([None, START.date() + dt.timedelta(days=chance.randrange(-2, 6))])


def one_tick(sql: str, seconds: int, engine: InProcess | None = None) -> list[Request]:
    """The look-ups of a tick over a table with a row per minute."""
    world = World(SCHEMAS, {"v": sql}, engine or InProcess(), pinned_ms=ms(START))
    times = (START + dt.timedelta(minutes=one) for one in range(-60, 60))
    changes = [
        (1, (n, n % 3, at.date(), at, at.replace(tzinfo=None), n, None, "x"))
        for n, at in enumerate(times)
    ]
    world.epoch({"s.t": changes})
    world.epoch({}, ms(START + dt.timedelta(seconds=seconds)))
    return [request for request in world.requests if request.table == rel("s.t")]


@pytest.mark.parametrize("seconds", [90, -90])
def test_a_tick_asks_for_a_range(seconds: int) -> None:
    (request,) = one_tick("select id from s.t where ts > now() - interval 1 hour", seconds)
    assert request.keys is None
    assert request.within is not None
    ends = [START - dt.timedelta(hours=1), START - dt.timedelta(hours=1, seconds=-seconds)]
    assert [request.within.low.as_py(), request.within.high.as_py()] == sorted(ends)


class FailingBounds(InProcess):
    """Fails over the rows of a clock, as Spark does where a bound overflows, or finds NULL."""

    def __init__(self, found: pa.Table | None) -> None:
        super().__init__()
        self.found = found

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        if "FROM __times" not in sql:
            return super().run(sql, relations, result)
        if self.found is None:
            raise OverflowError
        return self.found


@pytest.mark.parametrize("found", [None, pa.table({"bound": [START, None]})])
def test_a_bound_that_is_not_known_is_no_range(found: pa.Table | None) -> None:
    (request,) = one_tick("select id from s.t where ts > now()", 60, FailingBounds(found))
    assert request.is_whole


def test_a_bound_of_another_type_is_no_range() -> None:
    (request,) = one_tick("select id from s.t where s > day(current_date) * 1.5", 86_400)
    assert request.is_whole


def test_what_may_not_run_in_process_is_left_to_spark() -> None:
    with pytest.raises(NotAdmittedError):
        one_tick("select id from s.t where s > xxhash64(current_date)", 86_400)
