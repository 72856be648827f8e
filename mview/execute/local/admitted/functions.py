"""The admitted list: every operator and function that may run in DuckDB, and on which types.

tests/execute/local/test_admission.py runs each entry on every combination of types that its
signature accepts, with extreme values, on Spark and on DuckDB: an entry that differs fails there.
What is not in this list runs on Spark.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from mview.execute.local.admitted.aggregates import AGGREGATES
from mview.execute.local.admitted.entries import (
    SPARK_DECIDES,
    Admitted,
    binary,
    many,
    rounded_text,
    unary,
    whole_digits,
)
from mview.execute.local.admitted.lists import LISTS
from mview.execute.local.admitted.signatures import (
    any_to,
    as_wide,
    chosen,
    compared,
    decimal_quotient,
    decimal_rest,
    either,
    exactly,
    integers,
    listed,
    long_plus,
    long_quotient,
    long_times,
    merged,
    not_float,
    number,
    one_of,
    plus,
    quotient,
    rounded,
    rounded_before,
    rounded_double,
    shifted,
    signed,
    spread,
    squared,
    times,
    two_doubles,
    whole,
    whole_quotient,
    with_double,
)
from mview.execute.local.admitted.spark_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    INTEGERS,
    duckdb_type,
)
from mview.execute.local.admitted.texts import TEXTS
from mview.execute.local.admitted.times import TIMES

_COMPARISONS = (
    ("eq", exp.EQ, "="),
    ("ne", exp.NEQ, "<>"),
    ("lt", exp.LT, "<"),
    ("le", exp.LTE, "<="),
    ("gt", exp.GT, ">"),
    ("ge", exp.GTE, ">="),
)
# NULL divided by zero is NULL.
_ZERO = "CASE WHEN {1} = 0 AND {0} IS NOT NULL THEN CAST(error('division by zero') AS %s) "
_DIVIDED = _ZERO % "DOUBLE" + "ELSE {0} / {1} END"
_WHOLE = _ZERO % "BIGINT" + "ELSE {0} // nullif({1}, 0) END"
# The smallest integer modulo -1 overflows in DuckDB, and is 0 in Spark.
_REST = _ZERO % "BIGINT" + "WHEN {1} = -1 THEN {0} - {0} ELSE {0} % nullif({1}, 0) END"
_POSITIVE_REST = (
    _ZERO % "BIGINT" + "WHEN {1} = -1 THEN {0} - {0} WHEN {0} % nullif({1}, 0) < 0 "
    "THEN ({0} % nullif({1}, 0) + {1}) % nullif({1}, 0) ELSE {0} % nullif({1}, 0) END"
)
_DOUBLE_REST = _ZERO % "DOUBLE" + "ELSE {0} % {1} END"
_SAME = "{0} IS NOT DISTINCT FROM {1}"
_NAN = "coalesce(isnan({0}), FALSE)"
_DECIMALS = (
    "CASE WHEN {1} = 0 AND {0} IS NOT NULL THEN error('division by zero') "
    f"ELSE {rounded_text('{0}', whole_digits('{1}'))} END"
)
# To round doubles the digits: 127 bits must hold that.
_LONG_DECIMALS = (
    f"CASE WHEN abs({whole_digits('{0}')}) >= 85070591730234615865843651857942052864 "
    f"THEN CAST({SPARK_DECIDES} AS VARCHAR) ELSE {_DECIMALS} END"
)
# Spark goes to the nearest BIGINT from beyond, and takes NaN as 0.
_WHOLE_OF = (
    "CASE WHEN abs({0}) < 9e15 THEN %s({0}) "
    f"WHEN {{0}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS DOUBLE) END"
)
_SIGN = "CASE WHEN {0} = 0 OR isnan({0}) THEN {0} WHEN {0} > 0 THEN 1 WHEN {0} < 0 THEN -1 END"
_LOGARITHM = "CASE WHEN {0} > 0 THEN strict_%s({0}) END"
_LOG_OF = "CASE WHEN {0} > 0 AND {1} > 0 THEN strict_ln({0}) / strict_ln({1}) END"
_NO_NAN = "CASE WHEN isnan({0}) THEN {1} ELSE {0} END"
_BITS = "bit_count({0}::BIGINT)"
_TRUTHS = (BOOLEAN, BOOLEAN)
# By its decimal digits, as Spark does: those before and behind the point that a double can have.
_ROUNDED = (
    "CASE WHEN abs({0}) < 1 THEN CAST(round(CAST(CAST({0} AS VARCHAR) AS DECIMAL(38,37))%s) "
    "AS DOUBLE) WHEN abs({0}) < 1e17 "
    "THEN CAST(CAST(round(CAST(CAST({0} AS VARCHAR) AS DECIMAL(38,20))%s) AS VARCHAR) AS DOUBLE) "
    "ELSE {0} END"
)

# DuckDB solves what compares an operator with a constant (x + 1 > 5, - x = 0) for x, so that it is
# no error, as it is in Spark, if x + 1 has no place in its type. It does not where functions stand.
_NEGATED = "multiply({0}, -1)"

_TRIED = "CASE WHEN {1} <> 0 THEN {0} / {1} END"
_TRIED_OPERATORS = (
    ("try_add", exp.SafeAdd, "+"),
    ("try_subtract", exp.SafeSubtract, "-"),
    ("try_multiply", exp.SafeMultiply, "*"),
)


def _tried(name: str, node: type[exp.Expr], sign: str, kind: pa.DataType) -> Admitted:
    """An operator of integers that is NULL where the result has no place in their type."""
    text = f"TRY_CAST(CAST({{0}} AS HUGEINT) {sign} CAST({{1}} AS HUGEINT) AS {duckdb_type(kind)})"
    rule = binary(f"{name}_of_{kind}", node, f"{name}({{0}}, {{1}})", as_wide(kind))
    return replace(rule, duckdb=text)


SCALARS: tuple[Admitted, ...] = (
    binary("add", exp.Add, "{0} + {1}", plus, "add({0}, {1})"),
    binary("subtract", exp.Sub, "{0} - {1}", plus, "subtract({0}, {1})"),
    binary("multiply", exp.Mul, "{0} * {1}", times, "multiply({0}, {1})"),
    *(
        replace(binary(f"{name}_long_decimals", node, f"{{0}} {sign} {{1}}", of), defers=True)
        for name, node, sign, of in (
            ("add", exp.Add, "+", long_plus),
            ("subtract", exp.Sub, "-", long_plus),
            ("multiply", exp.Mul, "*", long_times),
        )
    ),
    binary("divide", exp.Div, "{0} / {1}", quotient, _DIVIDED),
    binary("divide_decimals", exp.Div, "{0} / {1}", decimal_quotient, _DECIMALS),
    replace(
        binary("divide_long_decimals", exp.Div, "{0} / {1}", long_quotient, _LONG_DECIMALS),
        defers=True,
    ),
    binary("div", exp.IntDiv, "{0} div {1}", whole_quotient, _WHOLE),
    binary("mod", exp.Mod, "{0} % {1}", integers, _REST),
    binary("mod_of_doubles", exp.Mod, "{0} % {1}", with_double, _DOUBLE_REST),
    binary("mod_of_decimals", exp.Mod, "{0} % {1}", decimal_rest),
    binary("try_divide", exp.SafeDivide, "try_divide({0}, {1})", quotient, _TRIED),
    binary(
        "try_divide_decimals",
        exp.SafeDivide,
        "try_divide({0}, {1})",
        decimal_quotient,
        rounded_text("{0}", whole_digits("{1}")),
    ),
    *(
        _tried(name, node, sign, kind)
        for name, node, sign in _TRIED_OPERATORS
        for kind in (INT, BIGINT)
    ),
    unary("negate_integers", exp.Neg, "(- {0})", one_of(INTEGERS), _NEGATED),
    unary("negate", exp.Neg, "(- {0})", number),
    unary("abs", exp.Abs, "abs({0})", number),
    *(binary(name, node, f"{{0}} {op} {{1}}", compared) for name, node, op in _COMPARISONS),
    binary("same", exp.NullSafeEQ, "{0} <=> {1}", compared, _SAME),
    binary("distinct", exp.NullSafeNEQ, "{0} IS DISTINCT FROM {1}", compared),
    binary("and", exp.And, "{0} AND {1}", exactly(_TRUTHS, BOOLEAN)),
    binary("or", exp.Or, "{0} OR {1}", exactly(_TRUTHS, BOOLEAN)),
    unary("not", exp.Not, "(NOT {0})", one_of((BOOLEAN,))),
    replace(
        binary("between", exp.Between, "{0} BETWEEN {1} AND {2}", compared),
        parts=("this", "low", "high"),
        arity=(3,),
    ),
    many("in", exp.In, "{0} IN ({rest})", listed),
    many("coalesce", exp.Coalesce, "coalesce({all})", merged),
    many("greatest", exp.Greatest, "greatest({all})", not_float),
    many("least", exp.Least, "least({all})", not_float),
    *(
        replace(
            binary(f"{name}_of_doubles", node, f"{name}({{0}}, {{1}})", two_doubles),
            # Of 0.0 and -0.0, which are equal, the first.
            duckdb=f"(CASE WHEN {{0}} IS NULL OR {{1}} {sign} {{0}} THEN {{1}} ELSE {{0}} END)",
            parts=("this", "expressions"),
            fixed={"ignore_nulls": (True,)},
        )
        for name, node, sign in (("greatest", exp.Greatest, ">"), ("least", exp.Least, "<"))
    ),
    replace(
        binary("if", exp.If, "if({0}, {1}, {2})", chosen, "CASE WHEN {0} THEN {1} ELSE {2} END"),
        parts=("this", "true", "false"),
        arity=(3,),
    ),
    replace(
        binary("nvl2", exp.Nvl2, "nvl2({0}, {1}, {2})", either),
        duckdb="(CASE WHEN {0} IS NOT NULL THEN {1} ELSE {2} END)",
        parts=("this", "true", "false"),
        arity=(3,),
    ),
    replace(
        unary("isnull", exp.Anonymous, "isnull({0})", any_to(BOOLEAN), "({0} IS NULL)"),
        parts=("expressions",),
        form={"this": "isnull"},
    ),
    replace(
        unary("isnotnull", exp.Anonymous, "isnotnull({0})", any_to(BOOLEAN), "({0} IS NOT NULL)"),
        parts=("expressions",),
        form={"this": "isnotnull"},
    ),
    unary("isnan", exp.IsNan, "isnan({0})", one_of((FLOAT, DOUBLE), BOOLEAN), _NAN),
    binary("equal_null", exp.EqualNull, "equal_null({0}, {1})", compared, _SAME),
    replace(
        binary("pmod", exp.Anonymous, "pmod({0}, {1})", integers, _POSITIVE_REST),
        parts=("expressions",),
        form={"this": "pmod"},
    ),
    replace(unary("floor", exp.Floor, "floor({0})", whole, _WHOLE_OF % "floor"), defers=True),
    replace(unary("ceil", exp.Ceil, "ceil({0})", whole, _WHOLE_OF % "ceil"), defers=True),
    unary("floor_of_integers", exp.Floor, "floor({0})", one_of(INTEGERS, BIGINT), "{0}"),
    unary("ceil_of_integers", exp.Ceil, "ceil({0})", one_of(INTEGERS, BIGINT), "{0}"),
    replace(
        unary("round", exp.Round, "round({all})", rounded),
        parts=("this", "decimals"),
        arity=(1, 2),
    ),
    unary("round_double", exp.Round, "round({0})", exactly((DOUBLE,), DOUBLE), _ROUNDED % ("", "")),
    replace(
        binary("round_double_to", exp.Round, "round({0}, {1})", rounded_double),
        duckdb=_ROUNDED % (", {1}", ", {1}"),
        parts=("this", "decimals"),
    ),
    replace(
        binary("round_before_point", exp.Round, "round({0}, {1})", rounded_before),
        # Of a decimal that is NULL, DuckDB makes 0 where it has no such digits.
        duckdb="CASE WHEN {0} IS NOT NULL THEN round({0}, {1}) END",
        parts=("this", "decimals"),
    ),
    binary("power", exp.Pow, "power({0}, {1})", squared, "{0} * {0}"),
    binary("power_of_any", exp.Pow, "power({0}, {1})", spread, "strict_power({0}, {1})"),
    unary("sign", exp.Sign, "sign({0})", signed, _SIGN),
    unary(
        "sqrt", exp.Sqrt, "sqrt({0})", one_of((INT, DOUBLE), DOUBLE), "sqrt(CAST({0} AS DOUBLE))"
    ),
    unary("exp", exp.Exp, "exp({0})", spread, "strict_exp({0})"),
    # NULL where there is none, as in Spark; NaN has itself.
    unary("ln", exp.Ln, "ln({0})", spread, _LOGARITHM % "ln"),
    replace(
        unary("log10", exp.Anonymous, "log10({0})", spread, _LOGARITHM % "log10"),
        parts=("expressions",),
        form={"this": "log10"},
    ),
    replace(
        unary("log2", exp.Anonymous, "log2({0})", spread, _LOG_OF.format("{0}", "2::DOUBLE")),
        parts=("expressions",),
        form={"this": "log2"},
    ),
    binary("log", exp.Log, "log({0}, {1})", spread, _LOG_OF.format("{1}", "{0}")),
    unary("radians", exp.Radians, "radians({0})", spread, "({0} * 0.017453292519943295::DOUBLE)"),
    unary("degrees", exp.Degrees, "degrees({0})", spread, "({0} * 57.29577951308232::DOUBLE)"),
    binary("nanvl", exp.Nanvl, "nanvl({0}, {1})", spread, _NO_NAN),
    binary("bit_and", exp.BitwiseAnd, "{0} & {1}", integers),
    binary("bit_or", exp.BitwiseOr, "{0} | {1}", integers),
    binary("bit_xor", exp.BitwiseXor, "{0} ^ {1}", integers, "xor({0}, {1})"),
    unary("bit_not", exp.BitwiseNot, "(~ {0})", one_of(INTEGERS)),
    binary("shiftright", exp.BitwiseRightShift, "shiftright({0}, {1})", shifted, "{0} >> {1}"),
    unary("bit_count", exp.BitwiseCount, "bit_count({0})", one_of(INTEGERS, INT), _BITS),
    *LISTS,
    *TEXTS,
    *TIMES,
)

ADMITTED: tuple[Admitted, ...] = SCALARS + AGGREGATES
