"""Expressions that sqlglot writes as it has read them: only these may stand in generated SQL.

sqlglot changes the meaning of a few functions on its way through (`trunc(d, 'Q')`,
`to_date(s, fmt)`, `percentile_cont`), so the list is closed; a test holds it against Spark.
"""

from __future__ import annotations

import re

import sqlglot
from sqlglot import exp

#: Operators and literals.
OPERATORS = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod,
    exp.Neg, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.And, exp.Or, exp.Not, exp.Is,
    exp.Null, exp.Boolean, exp.Between, exp.In, exp.Coalesce, exp.Case, exp.If, exp.Abs,
    exp.Cast, exp.DataType, exp.DataTypeParam,
)  # fmt: skip

_FUNCTIONS = (
    exp.NullSafeEQ, exp.Like, exp.DPipe, exp.Lower, exp.Upper, exp.Trim, exp.Length, exp.Substring,
    exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfWeek, exp.DayOfYear, exp.Hour, exp.Minute,
    exp.TimestampTrunc, exp.TsOrDsToDate, exp.Var, exp.Floor, exp.Ceil, exp.Round, exp.Sign,
    exp.Nullif, exp.Greatest, exp.Least, exp.Left, exp.Right, exp.Replace, exp.Reverse,
    exp.IntDiv, exp.Anonymous, exp.DayOfMonth, exp.Initcap, exp.WeekOfYear, exp.Extract,
    exp.LastDay, exp.AddMonths, exp.MD5, exp.RegexpLike, exp.TsOrDsAdd,
    exp.TimeToStr, exp.Concat, exp.UnixSeconds, exp.UnixMillis, exp.UnixMicros,
    exp.Second, exp.Dayname, exp.Monthname, exp.NextDay, exp.DateDiff, exp.TimestampDiff,
    exp.MonthsBetween, exp.Pad, exp.Repeat, exp.Translate, exp.SplitPart, exp.SubstringIndex,
    exp.StrPosition, exp.Contains, exp.StartsWith, exp.EndsWith, exp.Ascii, exp.ILike,
    exp.RegexpExtract, exp.RegexpReplace, exp.SHA2, exp.Nvl2, exp.JSONExtractScalar, exp.JSONPath,
    exp.JSONPathRoot,
)  # fmt: skip


#: How sqlglot reads `unix_timestamp(x)`, which it writes as such.
_UNIX_TIMESTAMP = sqlglot.parse_one("unix_timestamp(x)", dialect="spark").args["format"]
_UNITS = ("YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND")
_WHOLE_NUMBER = re.compile(r"-?\d+")
#: Formats of dates whose letters have one meaning on both sides.
_FORMAT = re.compile(r"(%([mdHMSI]strict|-[mdHMSI]|[YybBaAp])|[-/:. _,])+")
#: Units of trunc() that no others are read as: of 'Q', which is NULL in Spark, QUARTER is made.
_DATE_UNITS = ("YYYY", "YY", "MON", "MM")


def is_faithful(expression: exp.Expr) -> bool:
    """Whether the expression means the same to Spark when sqlglot writes it."""
    return all(_is_known(node) for node in expression.walk())


def _is_known(node: exp.Expr) -> bool:
    if isinstance(node, exp.Literal):
        return not node.is_string or (node.name.isprintable() and not set("\\'") & set(node.name))
    if isinstance(node, exp.TimeToStr | exp.UnixToStr):
        return _FORMAT.fullmatch(node.args["format"].name) is not None
    if isinstance(node, exp.TimeStrToTime):
        # What date_format is read to make of its operand: it is not written.
        return isinstance(node.parent, exp.TimeToStr)
    if isinstance(node, exp.DateTrunc):
        return node.args["unit"].name.upper() in _DATE_UNITS
    if isinstance(node, exp.JSONPathKey):
        return isinstance(node.this, str) and node.this.isidentifier()
    if isinstance(node, exp.Concat):
        # Adjacent literals also come as this node, and 'it''s' as two of them, with a quote lost.
        return bool(node.args.get("safe"))
    if isinstance(node, exp.StrToUnix):
        return bool(node.args.get("format") == _UNIX_TIMESTAMP)
    if isinstance(node, exp.Interval):
        return _is_plain_interval(node)
    if isinstance(node, exp.TsOrDsToDate):
        return node.args.get("format") is None
    if isinstance(node, exp.Cast):
        return node.args.get("format") is None
    if isinstance(node, exp.In):
        return node.args.get("query") is None
    return type(node) in OPERATORS or type(node) in _FUNCTIONS


def _is_plain_interval(node: exp.Interval) -> bool:
    """Whether it is so many of one unit."""
    number, unit = node.this, node.args.get("unit")
    plain = isinstance(number, exp.Literal) and _WHOLE_NUMBER.fullmatch(number.name)
    return bool(plain) and isinstance(unit, exp.Var) and unit.name.upper().rstrip("S") in _UNITS
