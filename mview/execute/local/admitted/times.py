"""The admitted functions of dates and times."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from mview.execute.local.admitted.entries import (
    SPARK_DECIDES,
    Admitted,
    binary,
    unary,
    years_alike,
)
from mview.execute.local.admitted.signatures import (
    DATES,
    Sign,
    as_times,
    dated,
    exactly,
    moved_date,
    moved_day,
    moved_months,
    one_of,
)
from mview.execute.local.admitted.spark_types import BIGINT, DATE, DOUBLE, INT, STRING, TIMESTAMP

_DAYS = {"unit": ("DAY",)}
_PART = one_of(DATES, INT)
#: Of a date and of a time without a zone, Spark makes a time with one, and days of times.
_DAY = as_times(DATE, DATE)
#: Microseconds of units that are always as long, in UTC.
_LONG = {
    "WEEK": 604_800_000_000,
    "DAY": 86_400_000_000,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
}
#: Formats of date_format, as sqlglot reads them and as DuckDB writes them.
_FORMATS = {
    "yyyy-MM-dd": "%Y-%m-%d",
    "yyyy-MM": "%Y-%m",
    "yyyyMMdd": "%Y%m%d",
    "yyyyMM": "%Y%m",
    "yyyy": "%Y",
    "MM": "%m",
    "dd": "%d",
    "HH": "%H",
    "HH:mm": "%H:%M",
    "HH:mm:ss": "%H:%M:%S",
    "yyyy-MM-dd HH": "%Y-%m-%d %H",
    "yyyy-MM-dd HH:mm": "%Y-%m-%d %H:%M",
    "yyyy-MM-dd HH:mm:ss": "%Y-%m-%d %H:%M:%S",
    "yyyy/MM/dd": "%Y/%m/%d",
    "dd.MM.yyyy": "%d.%m.%Y",
    "dd/MM/yyyy": "%d/%m/%Y",
    "MM/dd/yyyy": "%m/%d/%Y",
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


def _written(spark: str, duckdb: str) -> Admitted:
    text = f"date_format({{0}}, '{spark}')"
    node: exp.Expr = exp.maybe_parse(text.format("x"), dialect="spark")
    rule = unary(
        f"date_format_{spark}", exp.TimeToStr, text, one_of(DATES, STRING),
        years_alike("{0}", f"strftime({{0}}, '{duckdb}')"),
    )  # fmt: skip
    return replace(rule, form={"format": str(node.args["format"].sql("spark")).lower()})


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
_MADE = (
    f"CASE WHEN {{0}} BETWEEN 1 AND 9999 THEN make_date({{0}}, {{1}}, {{2}}) "
    f"WHEN {{0}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS DATE) END"
)

TIMES: tuple[Admitted, ...] = (
    unary("to_date", exp.TsOrDsToDate, "to_date({0})", dated, "{0}"),
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
    *(_extracted(p, f"{p}({{0}})", as_times(TIMESTAMP, INT)) for p in ("hour", "minute")),
    *(
        unary(name, node, f"{name}({{0}})", as_times(TIMESTAMP, INT))
        for name, node in (("hour", exp.Hour), ("minute", exp.Minute), ("second", exp.Second))
    ),
    unary("last_day", exp.LastDay, "last_day({0})", _DAY),
    *map(_truncated_time, ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND")),
    *(_truncated_date(unit, word) for unit, words in _TRUNCATED.items() for word in words),
    *(_written(spark, duckdb) for spark, duckdb in _FORMATS.items()),
    unary(
        "unix_date",
        exp.UnixDate,
        "unix_date({0})",
        one_of((DATE,), INT),
        "({0} - DATE '1970-01-01')",
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
    *(_apart_by(unit, micros) for unit, micros in _LONG.items()),
)
