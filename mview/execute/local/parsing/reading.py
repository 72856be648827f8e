"""How a query for the in-process engine is read: calls that sqlglot takes for others stay apart.

A call of which sqlglot drops an argument, or whose unit Spark does not know, is read as one of a
function that nothing is known of: it is not admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from mview.plan.text.grammar import FORMATS, SparkGrammar

#: log10(x) would become log(10, x), which Spark rounds otherwise.
_APART = ("LOG10", "LOG2")
_DATE_UNITS = ("YEAR", "YYYY", "YY", "QUARTER", "MONTH", "MON", "MM", "WEEK")
_TIME_UNITS = (*_DATE_UNITS, "DAY", "DD", "HOUR", "MINUTE", "SECOND")
#: Functions with a unit: where it stands, and what Spark knows; it gives NULL for another one.
_UNITS = {"TRUNC": (1, _DATE_UNITS), "DATE_TRUNC": (0, _TIME_UNITS)}

_OPEN = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSED = (TokenType.R_PAREN, TokenType.R_BRACKET)

_Build = Callable[..., exp.Expr]


def _whole(name: str, build: _Build) -> _Build:
    """What builds the node of a call, where that has all of its arguments."""

    def built(args: list[exp.Expr], dialect: Any = None) -> exp.Expr:
        given = [arg.copy() for arg in args]
        node = _build(build, args, dialect)
        place, units = _UNITS.get(name, (0, None))
        known = units is None or place >= len(given) or given[place].name.upper() in units
        if known and (not given or node != _with_another_last(build, given, dialect)):
            return node
        return exp.Anonymous(this=name.lower(), expressions=given)

    return built


def _build(build: _Build, args: list[exp.Expr], dialect: Any) -> exp.Expr:
    # sqlglot asks again, with a dialect, where it is told that one is missing.
    return build(args) if dialect is None else build(args, dialect=dialect)


def _with_another_last(build: _Build, args: list[exp.Expr], dialect: Any) -> exp.Expr | None:
    """The node of a call with another last argument; None where there is no such call.

    It is the same node where that argument is dropped, as too many are.
    """
    others = [*(arg.copy() for arg in args[:-1]), exp.column("__another")]
    try:
        return _build(build, others, dialect)
    except (AttributeError, IndexError, TypeError, ValueError, SqlglotError):
        return None


def _of_units(build: _Build) -> _Build:
    """`datediff`, which of three arguments is `timestampdiff`: sqlglot takes the days of both."""

    def built(args: list[exp.Expr], dialect: Any = None) -> exp.Expr:
        other = SparkGrammar.FUNCTIONS["TIMESTAMPDIFF"]
        return _build(other if len(args) == 3 else build, args, dialect)

    return built


def _part(args: list[exp.Expr]) -> exp.Expr:
    """`date_part('unit', x)`, which is `extract(unit FROM x)`."""
    part, value = args if len(args) == 2 else (None, None)
    if not isinstance(part, exp.Literal) or not part.is_string:
        return exp.Anonymous(this="date_part", expressions=args)
    return exp.Extract(this=exp.var(part.name), expression=value)


def _not_zero(args: list[exp.Expr]) -> exp.Expr:
    """`nullifzero(x)`."""
    return _of_one("nullifzero", args, lambda x: exp.Nullif(this=x, expression=_zero()))


def _zero_or(args: list[exp.Expr]) -> exp.Expr:
    """`zeroifnull(x)`."""
    return _of_one("zeroifnull", args, lambda x: exp.Coalesce(this=x, expressions=[_zero()]))


def _tried(name: str, kind: str) -> _Build:
    """`try_to_date(x)` and its like, without a format."""
    return lambda args: _of_one(
        name, args, lambda x: exp.TryCast(this=x, to=exp.DataType.build(kind), safe=True)
    )


def _of_one(name: str, args: list[exp.Expr], made: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    return made(args[0]) if len(args) == 1 else exp.Anonymous(this=name, expressions=args)


def _zero() -> exp.Expr:
    return exp.Literal.number(0)


_FUNCTIONS = {
    **SparkGrammar.FUNCTIONS,
    **dict.fromkeys(("DATE_PART", "DATEPART"), _part),
    "NULLIFZERO": _not_zero,
    "ZEROIFNULL": _zero_or,
    "TRY_TO_DATE": _tried("try_to_date", "date"),
    "TRY_TO_TIMESTAMP": _tried("try_to_timestamp", "timestamp"),
    **{name: _of_units(SparkGrammar.FUNCTIONS[name]) for name in ("DATEDIFF", "DATE_DIFF")},
}


class _WholeParser(SparkGrammar):
    FUNCTIONS: ClassVar = {
        name: _whole(name, build) for name, build in _FUNCTIONS.items() if name not in _APART
    }

    def _parse_function_call(self, *args: Any, **options: Any) -> exp.Expr | None:
        token = self._curr
        # Calls that are read word by word, with no list of arguments.
        if token is None or token.text.upper() not in self.FUNCTION_PARSERS:
            return super()._parse_function_call(*args, **options)
        written = self._count_arguments()
        node = call = super()._parse_function_call(*args, **options)
        while isinstance(call, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
            call = call.this
        if not isinstance(call, exp.Func) or len(list(call.iter_expressions())) >= written:
            return node
        unknown = call.replace(exp.Anonymous(this=token.text.lower()))
        return unknown if call is node else node

    def _count_arguments(self) -> int:
        """How many arguments the call has that begins here: what commas of its own separate."""
        depth, commas = 0, 0
        for token in self._tokens[self._index + 1 :]:
            depth += (token.token_type in _OPEN) - (token.token_type in _CLOSED)
            if depth == 0:
                break
            commas += depth == 1 and token.token_type == TokenType.COMMA
        return commas + 1


class _Whole(Spark):
    TIME_MAPPING = FORMATS
    Parser = _WholeParser


def read(sql: str) -> exp.Expr:
    """The tree of a query in Spark's SQL.

    Raises:
        sqlglot.errors.SqlglotError: it cannot be parsed.
    """
    return sqlglot.parse_one(sql, dialect=_Whole)
