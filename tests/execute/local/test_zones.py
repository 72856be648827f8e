"""Zones that run in process have the same times there as in Java, which Spark runs."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from mview.execute.local.admitted.zones import from_zone, is_known, to_zone
from mview.execute.queries import closed_database
from tests.seeds import daily

_COMMON = (
    *("Europe/Berlin", "Europe/London", "America/New_York", "America/Los_Angeles"),
    *("America/Sao_Paulo", "Asia/Shanghai", "Asia/Tokyo", "Asia/Kolkata", "Australia/Sydney"),
    *("Australia/Lord_Howe", "Pacific/Apia"),
)
_TIMES = 20_000
#: Seconds between two times: some hours within fourteen years, or days up to the year 9999.
_STEPS = (21_600, 12_500_000)


def zones(spark: SparkSession) -> list[str]:
    assert spark._jvm is not None
    known = sorted(filter(is_known, spark._jvm.java.time.ZoneId.getAvailableZoneIds()))
    assert len(known) > 450
    return known


def differing(spark: SparkSession, names: list[str], step: int) -> list[str]:
    """The zones of which some time is another one, to the zone or from it."""
    first = 2 * 86_400
    if step < 86_400:
        first += 86_400 * random.Random(daily()).randrange(365 * 54)
    number = f"((unix_seconds(t) - {first}) div {step}) % 1009 + 1"
    ways = ("from_utc_timestamp", "to_utc_timestamp")
    sums = [
        f"sum((unix_seconds({way}(t, '{zone}')) - unix_seconds(t)) * ({number}))"
        for zone in names
        for way in ways
    ]
    times = f"SELECT timestamp_seconds({first} + id * {step}) AS t FROM range(0, {_TIMES})"
    wanted = spark.sql(f"SELECT {', '.join(sums)} FROM ({times})").collect()[0]
    ours = [
        f"sum((epoch_us({moved('t', zone)}) - epoch_us(t)) // 1000000 * (n % 1009 + 1))"
        for zone in names
        for moved in (to_zone, from_zone)
    ]
    made = f"SELECT make_timestamp(({first} + range * {step}) * 1000000) AS t, range AS n"
    row = (
        closed_database()
        .execute(f"SELECT {', '.join(ours)} FROM ({made} FROM range(0, {_TIMES}))")
        .fetchone()
    )
    assert row is not None
    return [
        names[number // len(ways)]
        for number, (mine, his) in enumerate(zip(row, wanted, strict=True))
        if int(mine) != int(his)
    ]


@pytest.mark.parametrize("step", _STEPS)
def test_some_zones_have_java_s_times(spark: SparkSession, step: int) -> None:
    chosen = random.Random(daily()).sample(zones(spark), 3)
    assert differing(spark, [*_COMMON[daily() % 4 :: 4], *chosen], step) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("step", _STEPS)
def test_all_zones_have_java_s_times(spark: SparkSession, step: int) -> None:
    known = zones(spark)
    parts = (known[first : first + 40] for first in range(0, len(known), 40))
    assert [zone for part in parts for zone in differing(spark, part, step)] == []


def test_a_time_that_a_zone_has_twice_or_never(spark: SparkSession) -> None:
    """Around changes of the clock, each quarter of an hour."""
    names = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]
    for first in (1_711_756_800, 1_729_900_800, 1_325_203_200, 1_712_361_600):
        grid = f"timestamp_seconds({first} + id * 900)"
        for name in names:
            wanted = spark.sql(
                f"SELECT unix_seconds(to_utc_timestamp({grid}, '{name}')) FROM range(0, 400)"
            ).collect()
            times = f"SELECT make_timestamp(({first} + range * 900) * 1000000) AS t"
            text = f"SELECT epoch_us({from_zone('t', name)}) // 1000000"
            ours = closed_database().execute(f"{text} FROM ({times} FROM range(0, 400))").fetchall()
            assert [row[0] for row in ours] == [row[0] for row in wanted]
