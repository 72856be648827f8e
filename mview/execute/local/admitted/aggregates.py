"""The admitted aggregates."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from mview.execute.local.admitted.entries import SPARK_DECIDES, Admitted, aggregate, rounded_text
from mview.execute.local.admitted.signatures import (
    any_to,
    averaged,
    averaged_decimals,
    extreme,
    gathered,
    one_of,
    percentile,
    several,
    spread,
    total,
)
from mview.execute.local.admitted.spark_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    INTEGERS,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
)

_SUM = "CAST(sum({distinct}{0}){tail} AS DECIMAL(38,{scale}))"
_AVERAGE_OF_DECIMALS = rounded_text(_SUM, "CAST(count({distinct}{0}){tail} AS HUGEINT)")
# Spark adds up doubles: in any order the same while no sum can pass 2^53.
_AVERAGE_OF_BIGINTS = (
    "CASE WHEN CAST(max(abs(CAST({0} AS HUGEINT))){tail} AS HUGEINT) "
    "* count({distinct}{0}){tail} <= 9007199254740992 "
    "THEN CAST(sum({distinct}{0}){tail} AS DOUBLE) / count({distinct}{0}){tail} "
    f"WHEN count({{0}}){{tail}} > 0 THEN CAST({SPARK_DECIDES} AS DOUBLE) END"
)
_LIST = "list({distinct}{0}){tail}"
_SOME = "list_filter(%s, lambda x: x IS NOT NULL)"
# What lies at a part of the way through the sorted values, between the two beside it as Spark
# weighs them. Which of 0.0 and -0.0 comes first is Spark's own.
_BETWEEN = (
    "CASE WHEN v[CAST(floor(p) AS BIGINT) + 1] = v[CAST(ceil(p) AS BIGINT) + 1] "
    "THEN v[CAST(floor(p) AS BIGINT) + 1] ELSE (ceil(p) - p) * v[CAST(floor(p) AS BIGINT) + 1] "
    "+ (p - floor(p)) * v[CAST(ceil(p) AS BIGINT) + 1] END"
)
_PERCENTILE = (
    f"list_transform([list_sort({_SOME % _LIST})], lambda v: CASE "
    f"WHEN list_contains(list_transform(v, lambda x: CAST(x AS VARCHAR)), '-0.0') "
    f"THEN CAST({SPARK_DECIDES} AS DOUBLE) WHEN len(v) > 0 THEN "
    f"list_transform([(len(v) - 1) * %s], lambda p: {_BETWEEN})[1] END)[1]"
)
#: What some aggregates of doubles are called, here and in DuckDB.
_SPREADS = (
    ("stddev", exp.Stddev, "stddev_samp"),
    ("stddev_samp", exp.StddevSamp, "stddev_samp"),
    ("stddev_pop", exp.StddevPop, "stddev_pop"),
    ("variance", exp.Variance, "var_samp"),
    ("var_pop", exp.VariancePop, "var_pop"),
)


def _of_two(name: str, node: type[exp.Expr], least: int) -> Admitted:
    """An aggregate of two doubles, which is NULL for fewer pairs than it needs."""
    rule = aggregate(name, node, f"{name}({{0}}, {{1}})", spread)
    text = f"CASE WHEN regr_count({{0}}, {{1}}){{tail}} > {least} "
    text += f"THEN {name}({{0}}, {{1}}){{tail}} END"
    return replace(rule, duckdb=text, parts=("this", "expression"), arity=(2,), by_order=True)


def _correlation() -> Admitted:
    """Where one side has one value only there is none, and Spark raises."""
    rule = _of_two("corr", exp.Corr, 1)
    text = "corr({0}, {1}){tail}"
    real = f"CASE WHEN isnan({text}) THEN CAST({SPARK_DECIDES} AS DOUBLE) ELSE {text} END"
    return replace(rule, duckdb=rule.duckdb.replace(text, real), defers=True)


def _estimated(name: str, kinds: tuple[pa.DataType, ...], register: str) -> Admitted:
    """approx_count_distinct: the registers of its sketch, each at what a value shows it."""
    rule = aggregate(name, exp.ApproxDistinct, "approx_count_distinct({0})", one_of(kinds, BIGINT))
    shown = f"list(DISTINCT {register}){{tail}}"
    return replace(rule, duckdb=f"coalesce(registers_estimate({shown}), 0)")


AGGREGATES: tuple[Admitted, ...] = (
    aggregate("count", exp.Count, "count({0})", any_to(BIGINT)),
    replace(
        aggregate("count_of_several", exp.Count, "count(DISTINCT {0}, {1})", several),
        duckdb="count({distinct}CASE WHEN {present} THEN row({all}) END){tail}",
        arity=(2,),
    ),
    aggregate("sum", exp.Sum, "sum({0})", total),
    aggregate("min", exp.Min, "min({0})", extreme),
    aggregate("max", exp.Max, "max({0})", extreme),
    # 0.0 and -0.0 are equal: which of the two comes back is chance, in Spark, too.
    *(
        replace(
            aggregate(f"{name}_of_doubles", node, f"{name}({{0}})", one_of((FLOAT, DOUBLE))),
            duckdb=f"{name}({{0}}){{tail}}",
            by_order=True,
        )
        for name, node in (("min", exp.Min), ("max", exp.Max))
    ),
    aggregate("avg", exp.Avg, "avg({0})", averaged),
    replace(
        aggregate("sum_of_doubles", exp.Sum, "sum({0})", one_of((DOUBLE,))),
        duckdb="sum({distinct}{0}){tail}",
        by_order=True,
    ),
    replace(
        aggregate("avg_of_doubles", exp.Avg, "avg({0})", one_of((DOUBLE,))),
        duckdb="avg({distinct}{0}){tail}",
        by_order=True,
    ),
    replace(
        aggregate("avg_of_bigints", exp.Avg, "avg({0})", one_of((BIGINT,), DOUBLE)),
        duckdb=_AVERAGE_OF_BIGINTS,
        defers=True,
    ),
    replace(
        aggregate("avg_of_decimals", exp.Avg, "avg({0})", averaged_decimals),
        duckdb=_AVERAGE_OF_DECIMALS,
    ),
    *(
        replace(
            aggregate(name, node, f"{name}({{0}})", spread),
            duckdb=f"{text}({{distinct}}{{0}}){{tail}}",
            by_order=True,
        )
        for name, node, text in _SPREADS
    ),
    _correlation(),
    _of_two("covar_pop", exp.CovarPop, 0),
    _of_two("covar_samp", exp.CovarSamp, 1),
    replace(
        aggregate("median", exp.Median, "median({0})", spread),
        duckdb=_PERCENTILE % "0.5::DOUBLE",
        defers=True,
    ),
    replace(
        aggregate("percentile", exp.Quantile, "percentile({0}, {1})", percentile),
        duckdb=_PERCENTILE % "{1}",
        parts=("this", "quantile"),
        arity=(2,),
        defers=True,
    ),
    # A view has its lists sorted, see mview/plan/functions/lists.py.
    replace(
        aggregate("collect_list", exp.ArrayAgg, "sort_array(collect_list({0}))", gathered),
        duckdb=f"coalesce(list_sort({_SOME % _LIST}), [])",
        fixed={"nulls_excluded": (True,)},
    ),
    replace(
        aggregate("collect_set", exp.ArrayUniqueAgg, "sort_array(collect_set({0}))", gathered),
        duckdb=f"coalesce(list_sort({_SOME % 'list(DISTINCT {0}){tail}'}), [])",
    ),
    replace(
        aggregate("count_if", exp.CountIf, "count_if({0})", one_of((BOOLEAN,), BIGINT)),
        duckdb="count({distinct}CASE WHEN {0} THEN TRUE END){tail}",
    ),
    aggregate("bool_and", exp.LogicalAnd, "bool_and({0})", one_of((BOOLEAN,))),
    aggregate("bool_or", exp.LogicalOr, "bool_or({0})", one_of((BOOLEAN,))),
    *(
        replace(
            aggregate(name, exp.Anonymous, f"{name}({{0}})", one_of((BOOLEAN,))),
            duckdb=f"{same}({{distinct}}{{0}}){{tail}}",
            parts=("expressions",),
            form={"this": name},
        )
        for name, same in (("every", "bool_and"), ("some", "bool_or"))
    ),
    *(
        replace(
            aggregate(f"all_{name}", node, f"{name}({{0}})", one_of(INTEGERS)),
            duckdb=f"{name}({{distinct}}{{0}}){{tail}}",
        )
        for name, node in (
            ("bit_and", exp.BitwiseAndAgg),
            ("bit_or", exp.BitwiseOrAgg),
            ("bit_xor", exp.BitwiseXorAgg),
        )
    ),
    _estimated("estimated_texts", (STRING,), "register_of_text({0})"),
    _estimated(
        "estimated_integers",
        (BOOLEAN, TINYINT, SMALLINT, INT),
        "register_of_int(CAST({0} AS INTEGER))",
    ),
    _estimated("estimated_bigints", (BIGINT,), "register_of_long({0})"),
    _estimated(
        "estimated_dates", (DATE,), "register_of_int(CAST({0} - DATE '1970-01-01' AS INTEGER))"
    ),
    _estimated("estimated_times", (TIMESTAMP, TIMESTAMP_NTZ), "register_of_long(epoch_us({0}))"),
)
