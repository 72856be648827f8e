"""The admitted functions of dates and times."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from mview.execute.local.admitted.entries import FLAGS, SPARK_DECIDES, Admitted, binary, unary
from mview.execute.local.admitted.formats import READ, SECONDS_WRITTEN, WRITTEN, read_as, written
from mview.execute.local.admitted.signatures import (
    DATES,
    Sign,
    as_times,
    dated,
    day_after,
    exactly,
    moved_by_days,
    moved_date,
    moved_day,
    moved_day_by,
    moved_months,
    one_of,
)
from mview.execute.local.admitted.spark_types import (
    BIGINT,
    DATE,
    DOUBLE,
    INT,
    INTEGERS,
    STRING,
    TIMESTAMP,
)

_DAYS = {"unit": ("DAY",)}
_PART = one_of(DATES, INT)
#: Of a date and of a time without a zone, Spark makes a time with one, and days of times.
_DAY = as_times(DATE, DATE)
#: Microseconds of units that are always as long, in UTC.
MICROSECONDS = {
    "WEEK": 604_800_000_000,
    "DAY": 86_400_000_000,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
}
_TRUNCATED = {
    "YEAR": ("'year'", "'yyyy'", "'yy'"),
    "QUARTER": ("'quarter'",),
    "MONTH": ("'month'", "'mm'", "'mon'"),
    "WEEK": ("'week'",),
}


def _named(name: str, sign: Sign, duckdb: str) -> Admitted:
    """A function of one operand that sqlglot has no class for."""
    rule = unary(name, exp.Anonymous, f"{name}({{0}})", sign, duckdb)
    return replace(rule, parts=("expressions",), form={"this": name})


def _truncated_time(unit: str) -> Admitted:
    name, text = f"date_trunc_{unit.lower()}", f"date_trunc('{unit}', {{0}})"
    rule = unary(name, exp.TimestampTrunc, text, as_times(TIMESTAMP, TIMESTAMP))
    return replace(rule, form={"unit": unit.lower()})


def _truncated_date(unit: str, word: str) -> Admitted:
    rule = unary(
        f"trunc_{word}",
        exp.DateTrunc,
        f"trunc({{0}}, {word})",
        _DAY,
        f"date_trunc('{unit}', {{0}})",
    )
    return replace(rule, form={"unit": word})


def _apart_by(unit: str, micros: int) -> Admitted:
    """How many whole units lie between two times."""
    return Admitted(
        f"timestampdiff_{unit.lower()}",
        exp.TimestampDiff,
        f"timestampdiff({unit}, {{1}}, {{0}})",
        f"((epoch_us({{0}}) - epoch_us({{1}})) // {micros})",
        as_times(TIMESTAMP, BIGINT),
        form={"unit": unit.lower()},
    )


def time_of(micros: int) -> str:
    """DuckDB text: the time after so many units since 1970; Spark decides on years but 1 to 9999.

    Args:
        micros: of a unit.
    """
    first, last = -62_135_596_800 * 1_000_000 // micros, 253_402_300_800 * 1_000_000 // micros - 1
    text = f"make_timestamp(CAST({{0}} AS BIGINT) * {micros}) WHEN {{0}} IS NOT NULL"
    text = f"(CASE WHEN {{0}} BETWEEN {first} AND {last} THEN {text}"
    return f"{text} THEN CAST({SPARK_DECIDES} AS TIMESTAMP) END)"


def units_of(micros: int) -> str:
    """DuckDB text: the whole units since 1970, those before it counted from the one before."""
    rest = f"((epoch_us({{0}}) % {micros} + {micros}) % {micros})"
    return f"((epoch_us({{0}}) - {rest}) // {micros})"


def _of_unix(name: str, micros: int) -> Admitted:
    return replace(_named(name, one_of(INTEGERS, TIMESTAMP), time_of(micros)), defers=True)


def _to_unix(name: str, node: type[exp.Expr], micros: int) -> Admitted:
    return unary(name, node, f"{name}({{0}})", one_of((TIMESTAMP,), BIGINT), units_of(micros))


def _in_format(name: str, node: type[exp.Expr], sign: Sign, duckdb: str) -> Admitted:
    """A function of a value and a literal format."""
    rule = Admitted(name, node, f"{name}({{0}}, {{1}})", duckdb, sign, ("this", "format"), FLAGS)
    return replace(rule, defers=True)


def _apart_by_months(unit: str, months: int) -> Admitted:
    """How many whole units of so many months lie between two times, as `java.time` counts them."""
    rule = _apart_by(unit, 1)
    return replace(rule, duckdb=f"({_WHOLE_MONTHS} // {months})")


def _extracted(part: str, function: str, sign: Sign = _PART) -> Admitted:
    rule = unary(f"extract_{part}", exp.Extract, f"extract({part} FROM {{0}})", sign)
    return replace(rule, duckdb=function, parts=("expression",), form={"this": part})


#: As the parser writes the format that unix_timestamp has where none is given.
_UNIX: exp.Expr = exp.maybe_parse("unix_timestamp(x)", dialect="spark")
_DEFAULT_FORMAT = _UNIX.args["format"].sql("spark")
# By whole months where both are one day of the month, or the last one; else by days of 31.
_MONTHS = "((year({0}) - year({1})) * 12 + month({0}) - month({1}))"
_MONTHS_BETWEEN = (
    "CASE WHEN day({0}) = day({1}) OR ({0} = last_day({0}) AND {1} = last_day({1})) "
    f"THEN {_MONTHS}::DOUBLE ELSE floor(({_MONTHS}::DOUBLE "
    "+ ((day({0}) - day({1})) * 86400) / 2678400::DOUBLE) * 1e8 + 0.5::DOUBLE) / 1e8 END"
)
# A last day that is not over counts as the one before it; then by months of 32 days.
_END_DAY = (
    "(CAST({0} AS DATE) + CASE WHEN CAST({0} AS DATE) > CAST({1} AS DATE) "
    "AND CAST({0} AS TIME) < CAST({1} AS TIME) THEN -1 WHEN CAST({0} AS DATE) < CAST({1} AS DATE) "
    "AND CAST({0} AS TIME) > CAST({1} AS TIME) THEN 1 ELSE 0 END)"
)
_PACKED = "((year(%s) * 12 + month(%s)) * 32 + day(%s))"
_WHOLE_MONTHS = f"(({_PACKED.replace('%s', _END_DAY)} - {_PACKED.replace('%s', '{1}')}) // 32)"
_WEEK = "['MO', 'TU', 'WE', 'TH', 'FR', 'SA', 'SU']"
_NEXT = (
    f"({{0}} + 1 + CAST((list_position({_WEEK}, upper(left({{1}}, 2))) - isodow({{0}}) + 6) % 7 "
    "AS INTEGER))"
)
# Far from where either engine leaves its range.
_ELSE = f"WHEN {{0}} IS NOT NULL AND {{1}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS DATE) END"
_MOVED_DAYS = f"(CASE WHEN {{1}} BETWEEN -100000 AND 100000 THEN {{0}} + {{1}} {_ELSE})"
_MOVED_MONTHS = f"(CASE WHEN {{1}} BETWEEN -1200 AND 1200 THEN {{0}} + to_months({{1}}) {_ELSE})"
_MADE = (
    f"CASE WHEN {{0}} BETWEEN 1 AND 9999 THEN make_date({{0}}, {{1}}, {{2}}) "
    f"WHEN {{0}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS DATE) END"
)

TIMES: tuple[Admitted, ...] = (
    replace(unary("to_date", exp.TsOrDsToDate, "to_date({0})", dated, "{0}"), form={"format": ""}),
    unary("to_time", exp.TimeStrToTime, "{0}", one_of(DATES)),
    unary("year", exp.Year, "year({0})", _PART),
    unary("quarter", exp.Quarter, "quarter({0})", _PART),
    unary("month", exp.Month, "month({0})", _PART),
    unary("day", exp.Day, "day({0})", _PART),
    unary("dayofmonth", exp.DayOfMonth, "dayofmonth({0})", _PART),
    unary("dayofyear", exp.DayOfYear, "dayofyear({0})", _PART),
    unary("dayofweek", exp.DayOfWeek, "dayofweek({0})", _PART, "(dayofweek({0}) + 1)"),
    _named("weekday", _PART, "(isodow({0}) - 1)"),
    unary("weekofyear", exp.WeekOfYear, "weekofyear({0})", _PART),
    *(_extracted(p, f"{p}({{0}})") for p in ("year", "quarter", "month", "day", "week")),
    *(_extracted(part, "(dayofweek({0}) + 1)") for part in ("dow", "dayofweek")),
    _extracted("doy", "dayofyear({0})"),
    _extracted("yearofweek", "isoyear({0})"),
    *(_extracted(p, f"{p}({{0}})", as_times(TIMESTAMP, INT)) for p in ("hour", "minute")),
    *(
        unary(name, node, f"{name}({{0}})", as_times(TIMESTAMP, INT))
        for name, node in (("hour", exp.Hour), ("minute", exp.Minute), ("second", exp.Second))
    ),
    unary("last_day", exp.LastDay, "last_day({0})", _DAY),
    *map(_truncated_time, ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND")),
    *(_truncated_date(unit, word) for unit, words in _TRUNCATED.items() for word in words),
    replace(
        _extracted("second", "", as_times(TIMESTAMP, pa.decimal128(8, 6))),
        duckdb="(CAST(microsecond({0}) AS DECIMAL(8,0)) * CAST('0.000001' AS DECIMAL(7,6)))",
    ),
    unary("dayname", exp.Dayname, "dayname({0})", one_of(DATES, STRING), "left(dayname({0}), 3)"),
    unary(
        "monthname",
        exp.Monthname,
        "monthname({0})",
        one_of(DATES, STRING),
        "left(monthname({0}), 3)",
    ),
    binary("next_day", exp.NextDay, "next_day({0}, {1})", day_after, _NEXT),
    # A day without four digits of a year halts a light view: it is no reason to refuse all.
    replace(_in_format("date_format", exp.TimeToStr, written(DATES), WRITTEN), defers=False),
    _in_format("from_unixtime", exp.UnixToStr, written(INTEGERS), SECONDS_WRITTEN),
    replace(_in_format("to_date", exp.TsOrDsToDate, read_as(DATE), READ), name="to_date_by"),
    _in_format("to_timestamp", exp.StrToTime, read_as(TIMESTAMP), READ),
    _of_unix("timestamp_seconds", 1_000_000),
    _of_unix("timestamp_millis", 1_000),
    _of_unix("timestamp_micros", 1),
    _to_unix("unix_seconds", exp.UnixSeconds, 1_000_000),
    _to_unix("unix_millis", exp.UnixMillis, 1_000),
    unary(
        "unix_date",
        exp.UnixDate,
        "unix_date({0})",
        one_of((DATE,), INT),
        "({0} - DATE '1970-01-01')",
    ),
    replace(
        unary(
            "date_from_unix_date",
            exp.DateFromUnixDate,
            "date_from_unix_date({0})",
            one_of((INT,), DATE),
            f"(CASE WHEN {{0}} BETWEEN -719162 AND 2932896 THEN DATE '1970-01-01' + {{0}} "
            f"WHEN {{0}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS DATE) END)",
        ),
        defers=True,
    ),
    unary(
        "unix_micros",
        exp.UnixMicros,
        "unix_micros({0})",
        one_of((TIMESTAMP,), BIGINT),
        "epoch_us({0})",
    ),
    replace(
        unary(
            "unix_timestamp",
            exp.StrToUnix,
            "unix_timestamp({0})",
            as_times(TIMESTAMP, BIGINT),
        ),
        duckdb="(epoch_us({0}) // 1000000)",
        fixed={"format": (_DEFAULT_FORMAT,)},
    ),
    Admitted(
        "months_between",
        exp.MonthsBetween,
        "months_between({0}, {1})",
        _MONTHS_BETWEEN,
        exactly((DATE, DATE), DOUBLE),
    ),
    replace(
        _named("make_date", exactly((INT, INT, INT), DATE), _MADE),
        spark="make_date({0}, {1}, {2})",
        arity=(3,),
        defers=True,
    ),
    Admitted(
        "date_add",
        exp.TsOrDsAdd,
        "date_add({0}, {1})",
        "({0} + {1})",
        moved_date,
        fixed=_DAYS,
    ),
    binary("add_days", exp.Add, "{0} + {1}", moved_day),
    binary("subtract_days", exp.Sub, "{0} - {1}", moved_day),
    replace(
        Admitted("date_add_of", exp.TsOrDsAdd, "date_add({0}, {1})", _MOVED_DAYS, moved_by_days),
        fixed=_DAYS,
        defers=True,
    ),
    replace(binary("add_days_of", exp.Add, "{0} + {1}", moved_day_by, _MOVED_DAYS), defers=True),
    replace(
        binary("subtract_days_of", exp.Sub, "{0} - {1}", moved_day_by),
        duckdb=_MOVED_DAYS.replace("+ {1}", "- {1}"),
        defers=True,
    ),
    replace(
        Admitted(
            "add_months_of", exp.AddMonths, "add_months({0}, {1})", _MOVED_MONTHS, moved_by_days
        ),
        defers=True,
    ),
    Admitted(
        "add_months",
        exp.AddMonths,
        "add_months({0}, {1})",
        "({0} + to_months({1}))",
        moved_months,
    ),
    Admitted(
        "datediff",
        exp.DateDiff,
        "datediff({0}, {1})",
        "({0} - {1})",
        as_times(DATE, INT),
        fixed={"date_part_boundary": (True, False)},
    ),
    *(_apart_by(unit, micros) for unit, micros in MICROSECONDS.items()),
    *(_apart_by_months(*unit) for unit in (("MONTH", 1), ("QUARTER", 3), ("YEAR", 12))),
)
