"""The admitted list: every operator and function that may run in DuckDB, and on which types.

tests/execute/local/test_admission.py runs each entry on every combination of types that its
signature accepts, with extreme values, on Spark and on DuckDB: an entry that differs fails there.
What is not in this list runs on Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from mview.execute.local.signatures import (
    DATES,
    Sign,
    all_of,
    any_to,
    averaged,
    chosen,
    compared,
    exactly,
    extreme,
    integers,
    listed,
    merged,
    moved_date,
    not_float,
    number,
    one_of,
    pattern,
    plus,
    quotient,
    sliced,
    times,
    total,
    whole_quotient,
)
from mview.execute.local.spark_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    INT,
    STRING,
)


@dataclass(frozen=True)
class Admitted:
    """One operator or function.

    Attributes:
        name: unique name, shown in test names.
        node: the class sqlglot parses it to.
        spark: how a user writes it; `{0}` is the first operand.
        duckdb: what runs instead. `{0}` … are operands cast as the signature says, `{all}` is the
            list of them.
        sign: the signature for operands of these types; None: not admitted.
        parts: the arguments of `node` that are operands, in order (a list counts as many).
        fixed: arguments of `node` that are not operands, with the SQL texts they may have.
        arity: numbers of operands that the tests use.
        aggregate: whether it is an aggregate, which may also stand over a window.
    """

    name: str
    node: type[exp.Expr]
    spark: str
    duckdb: str
    sign: Sign
    parts: tuple[str, ...] = ("this", "expression")
    fixed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    arity: tuple[int, ...] = (2,)
    aggregate: bool = False


#: Arguments that sqlglot sets to steer its own generators.
_FLAGS = {"typed": (False,), "safe": (True, False), "big_int": (True,), "coalesce": (False,)}


def _unary(name: str, node: type[exp.Expr], text: str, sign: Sign, duckdb: str = "") -> Admitted:
    return Admitted(name, node, text, duckdb or text, sign, ("this",), _FLAGS, arity=(1,))


def _binary(name: str, node: type[exp.Expr], text: str, sign: Sign, duckdb: str = "") -> Admitted:
    return Admitted(name, node, text, f"({duckdb or text})", sign, fixed=_FLAGS)


def _many(name: str, node: type[exp.Expr], text: str, sign: Sign) -> Admitted:
    flags: dict[str, tuple[Any, ...]] = {"ignore_nulls": (True,)}
    parts = ("this", "expressions")
    return Admitted(name, node, text, f"({text})", sign, parts, flags, arity=(2, 3))


def _aggregate(name: str, node: type[exp.Expr], text: str, sign: Sign) -> Admitted:
    return replace(_unary(name, node, text, sign), aggregate=True)


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
_TRUTHS = (BOOLEAN, BOOLEAN)
_DAYS = {"unit": ("DAY",)}

SCALARS: tuple[Admitted, ...] = (
    _binary("add", exp.Add, "{0} + {1}", plus),
    _binary("subtract", exp.Sub, "{0} - {1}", plus),
    _binary("multiply", exp.Mul, "{0} * {1}", times),
    _binary("divide", exp.Div, "{0} / {1}", quotient, _DIVIDED),
    _binary("div", exp.IntDiv, "{0} div {1}", whole_quotient, _WHOLE),
    _binary("mod", exp.Mod, "{0} % {1}", integers, _REST),
    _unary("negate", exp.Neg, "(- {0})", number),
    _unary("abs", exp.Abs, "abs({0})", number),
    *(_binary(name, node, f"{{0}} {op} {{1}}", compared) for name, node, op in _COMPARISONS),
    _binary("same", exp.NullSafeEQ, "{0} <=> {1}", compared, "{0} IS NOT DISTINCT FROM {1}"),
    _binary("distinct", exp.NullSafeNEQ, "{0} IS DISTINCT FROM {1}", compared),
    _binary("and", exp.And, "{0} AND {1}", exactly(_TRUTHS, BOOLEAN)),
    _binary("or", exp.Or, "{0} OR {1}", exactly(_TRUTHS, BOOLEAN)),
    _unary("not", exp.Not, "(NOT {0})", one_of((BOOLEAN,))),
    replace(
        _binary("between", exp.Between, "{0} BETWEEN {1} AND {2}", compared),
        parts=("this", "low", "high"),
        arity=(3,),
    ),
    _many("in", exp.In, "{0} IN ({rest})", listed),
    _many("coalesce", exp.Coalesce, "coalesce({all})", merged),
    _many("greatest", exp.Greatest, "greatest({all})", not_float),
    _many("least", exp.Least, "least({all})", not_float),
    replace(
        _binary("if", exp.If, "if({0}, {1}, {2})", chosen, "CASE WHEN {0} THEN {1} ELSE {2} END"),
        parts=("this", "true", "false"),
        arity=(3,),
    ),
    replace(
        _binary("concat", exp.Concat, "concat({all})", all_of(STRING, STRING), "{joined}"),
        parts=("expressions",),
        arity=(2, 3),
    ),
    _binary("pipes", exp.DPipe, "{0} || {1}", all_of(STRING, STRING)),
    _unary("length", exp.Length, "length({0})", one_of((STRING,), INT)),
    _unary("trim", exp.Trim, "trim({0})", one_of((STRING,)), "trim({0}, ' ')"),
    replace(
        _binary("substring", exp.Substring, "substring({0}, {1}, {2})", sliced),
        parts=("this", "start", "length"),
        arity=(3,),
    ),
    _binary("like", exp.Like, "{0} LIKE {1}", pattern),
    _unary("to_date", exp.TsOrDsToDate, "to_date({0})", one_of(DATES, DATE), "CAST({0} AS DATE)"),
    _unary("year", exp.Year, "year({0})", one_of(DATES, INT)),
    _unary("month", exp.Month, "month({0})", one_of(DATES, INT)),
    _unary("day", exp.Day, "day({0})", one_of(DATES, INT)),
    _unary("dayofmonth", exp.DayOfMonth, "dayofmonth({0})", one_of(DATES, INT)),
    Admitted(
        "date_add",
        exp.TsOrDsAdd,
        "date_add({0}, {1})",
        "({0} + {1})",
        moved_date,
        fixed=_DAYS,
    ),
    Admitted(
        "datediff",
        exp.DateDiff,
        "datediff({0}, {1})",
        "({0} - {1})",
        exactly((DATE, DATE), INT),
        fixed=_DAYS,
    ),
)

AGGREGATES: tuple[Admitted, ...] = (
    _aggregate("count", exp.Count, "count({0})", any_to(BIGINT)),
    _aggregate("sum", exp.Sum, "sum({0})", total),
    _aggregate("min", exp.Min, "min({0})", extreme),
    _aggregate("max", exp.Max, "max({0})", extreme),
    _aggregate("avg", exp.Avg, "avg({0})", averaged),
    _aggregate("bool_and", exp.LogicalAnd, "bool_and({0})", one_of((BOOLEAN,))),
    _aggregate("bool_or", exp.LogicalOr, "bool_or({0})", one_of((BOOLEAN,))),
)

ADMITTED: tuple[Admitted, ...] = SCALARS + AGGREGATES
