"""Views of the time: plans, and epochs with a clock that the test moves."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from mview.errors import UserError
from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.plan.clocks import DAY, INSTANT, pinned_rows
from mview.plan.definition import parse_view
from mview.relation import RelationId
from tests.ivm.world import Row, SparkEngine, World, random_changes, table_schema
from tests.relations import keyed, rel
from tests.seeds import daily

SCHEMAS = {
    "s.t": table_schema("id bigint, k bigint, d date, ts timestamp, x decimal(10,2)", "id"),
    "s.u": table_schema("id bigint, k bigint, d date", "id"),
}
UTC = dt.timezone.utc
START = dt.datetime(2026, 2, 28, 23, 58, tzinfo=UTC)


def ms(at: dt.datetime) -> int:
    return int(at.timestamp() * 1000)


def plan(sql: str, policy: str = "") -> ViewPlan:
    text = f"create materialized view v with (policy='{policy}') as {sql}" if policy else sql
    return compile_view(parse_view(text, "v", "v.sql"), keyed(SCHEMAS))


# --- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "asked", "clock"),
    [
        ("current_date", "(SELECT __today FROM `clock:day`)", DAY),
        ("CURRENT_DATE()", "(SELECT __today FROM `clock:day`)", DAY),
        ("curdate( )", "(SELECT __today FROM `clock:day`)", DAY),
        ("now()", "(SELECT __now FROM `clock:now`)", INSTANT),
        ("current_timestamp", "(SELECT __now FROM `clock:now`)", INSTANT),
        ("current_timestamp()", "(SELECT __now FROM `clock:now`)", INSTANT),
        ("localtimestamp()", "CAST((SELECT __now FROM `clock:now`) AS TIMESTAMP_NTZ)", INSTANT),
        ("unix_timestamp()", "unix_timestamp((SELECT __now FROM `clock:now`))", INSTANT),
    ],
)
def test_time_functions_read_a_clock(call: str, asked: str, clock: RelationId) -> None:
    made = plan(f"select id, {call} as c from s.t -- now() in a comment")
    assert made.definition.sql == f"SELECT id, {asked} AS c FROM s.t"
    assert made.clocks == (clock,)
    assert made.sources == (rel("s.t"),)


def test_what_only_looks_like_the_time_is_left() -> None:
    made = plan(
        "select id, unix_timestamp(ts) as current_timestamp, 'now()' as b, t.d as `current_date`"
        " from s.t where d > '2026-01-01'"
    )
    assert made.clocks == ()
    assert made.columns == ("id", "current_timestamp", "b", "current_date")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("current_date(3)", "with 1 argument"),
        ("current_time()", "cannot be pinned"),
        ("date'today'", "'today' as a date"),
        ("cast('now' as timestamp)", "'now' as a date"),
        ("to_date(' Tomorrow ')", "as a date"),
        ("current_user()", "SESSION_DEPENDENT"),
        ("rand()", "NONDETERMINISTIC"),
    ],
)
def test_refused(item: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        plan(f"select id,\n  {item} as a from s.t")
    assert str(error.value.where).startswith("v.sql:2:"), error.value.where


def test_other_errors_have_their_places_in_the_users_text() -> None:
    with pytest.raises(UserError, match="unknown column 'nope'") as error:
        plan("select id from s.t where d > current_date and nope = 1")
    assert error.value.where == "v.sql:1:47"


@pytest.mark.parametrize(
    "sql",
    [
        "select id from s.t where d >= current_date",
        "select k, count(*) as n from s.t where ts > now() - interval 1 hour group by k",
        "select id from s.t where exists (select 1 from s.u where u.k = t.k and u.d < curdate())",
    ],
)
def test_incremental(sql: str) -> None:
    assert plan(sql, "incremental_only").evaluation != "full"


def test_full_where_the_time_is_no_value_by_itself() -> None:
    sql = "select t.id, u.id as u from s.t left join s.u on t.k = u.k and u.d < current_date"
    made = plan(sql)
    assert made.evaluation == "full"
    assert made.clocks == (DAY,)
    assert made.definition.sql == sql
    assert made.refused is not None
    assert made.refused.code == "TIME_PLACE"


def test_a_value_of_the_select_list_reads_no_table_when_the_day_changes() -> None:
    made = plan("select k, current_date as today, sum(x) as s from s.t group by k")
    assert {trace.table: trace.steps for trace in made.traces} == {rel("s.t"): (), DAY: ()}


def test_a_clock_shows_the_pinned_time() -> None:
    at = dt.datetime(2026, 2, 28, 23, 59, 59, 250_000, tzinfo=UTC)
    assert pinned_rows(DAY, ms(at)).to_pylist() == [{"__today": dt.date(2026, 2, 28)}]
    assert pinned_rows(INSTANT, ms(at)).to_pylist() == [{"__now": at}]


# --- epochs --------------------------------------------------------------------------------------

VIEWS = {
    "fresh": "select id, ts from s.t where ts > now() - interval 2 minutes",
    "due": "select id, d from s.t where d <= current_date",
    "ages": "select id, datediff(current_date(), d) as days, unix_timestamp() as at,"
    " localtimestamp() as clock from s.t",
    "per_k": "select k, count(*) as n, sum(x) as x from s.t"
    " where ts > current_timestamp - interval 2 minutes group by k",
    "parts": "select k, sum(case when ts > now() then x end) as later, max(d) as last,"
    " current_date as today from s.t group by k having max(d) >= current_date",
    "grouped": "select d < current_date as past, count(*) as n from s.t group by 1",
    "joined": "select t.id, u.id as u from s.t join s.u on t.k = u.k and u.d < current_date",
    "waiting": "select id from s.t where not exists"
    " (select 1 from s.u where u.k = t.k and u.d <= current_date)",
    "newest": "select id, ts from s.t where ts <= now() order by ts desc, id limit 3",
    "above": "select n, count(*) as c from per_k group by n",
    "ranked": "select id, rank() over (partition by k order by abs(datediff(d, current_date)), id)"
    " as place from s.t",
    "either": "select id from s.t where d = current_date union select id from s.u where d < now()",
}


@pytest.mark.spark
def test_rows_expire_without_input(spark: SparkSession) -> None:
    world = World(SCHEMAS, {"v": VIEWS["fresh"]}, SparkEngine(spark), pinned_ms=ms(START))
    row = (1, 1, None, START, None)
    assert world.epoch({"s.t": [(1, row)]})["v"] == [(1, (1, START))]
    assert world.epoch({}, ms(START + dt.timedelta(seconds=119)))["v"] == []
    assert world.epoch({}, ms(START + dt.timedelta(seconds=120)))["v"] == [(-1, (1, START))]


@pytest.mark.spark
def test_a_row_between_two_ticks_sees_the_pinned_time(spark: SparkSession) -> None:
    world = World(SCHEMAS, {"v": VIEWS["newest"]}, SparkEngine(spark), pinned_ms=ms(START))
    later = START + dt.timedelta(seconds=30)
    assert world.epoch({"s.t": [(1, (1, 1, None, later, None))]})["v"] == []
    assert world.epoch({}, ms(later))["v"] == [(1, (1, later))]


@pytest.mark.spark
def test_a_day_view_rests_until_midnight(spark: SparkSession) -> None:
    world = World(SCHEMAS, {"v": VIEWS["due"]}, SparkEngine(spark), pinned_ms=ms(START))
    tomorrow = (START + dt.timedelta(days=1)).date()
    world.epoch({"s.t": [(1, (1, 1, tomorrow, None, None))]})
    assert world.epoch({}, ms(START + dt.timedelta(seconds=119)))["v"] == []
    assert not world.requests
    assert world.epoch({}, ms(START + dt.timedelta(seconds=120)))["v"] == [(1, (1, tomorrow))]
    assert {request.table for request in world.requests} == {rel("s.t")}


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.days(3)
@pytest.mark.parametrize("generous", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_epoch_equals_the_batch_at_its_time(spark: SparkSession, generous: bool) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    chance = random.Random(daily(int(generous)))
    world = World(SCHEMAS, VIEWS, SparkEngine(spark), generous=generous, pinned_ms=ms(START))
    assert all(
        plan.evaluation != "full" for name, plan in world.plans.items() if name != rel("grouped")
    )
    rows: dict[str, dict[int, Row]] = {"s.t": {}, "s.u": {}}
    at = START
    for seconds, has_changes in [(0, True), (30, True), (150, False), (0, True), (86_400, False)]:
        at += dt.timedelta(seconds=seconds)
        changes = {name: _changes(chance, rows, name) for name in rows if has_changes}
        world.epoch(changes, ms(at))


def _changes(
    chance: random.Random, rows: dict[str, dict[int, Row]], table: str
) -> list[tuple[int, Row]]:
    def made(key: int) -> Row:
        row: Row = (key, chance.choice([1, 2, None]), _day(chance))
        if table == "s.t":
            row = (*row, START + dt.timedelta(seconds=chance.randrange(-200, 400)))
            row = (*row, chance.choice([None, Decimal("2.50"), Decimal("-7.00")]))
        return row

    return random_changes(chance, rows[table], range(12), 5, 0.7, made)


def _day(chance: random.Random) -> dt.date | None:
    return chance.choice([None, START.date() + dt.timedelta(days=chance.randrange(-2, 4))])
