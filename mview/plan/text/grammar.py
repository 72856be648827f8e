"""What binds tighter in an expression, as Spark's grammar has it.

sqlglot reads `a | b & c` from left to right, and `p = q IS NULL` as `p = (q IS NULL)`. Spark has a
level for each of `&`, `^` and `|`, compares before it asks IS, IN, BETWEEN or LIKE, and takes what
these are given with its comparisons, too. Levels, the tightest first:

    COLLATE    -x +x ~x    * / % DIV    + - ||    << >>    &    ^    |
    = <> < <= > >= <=>    IS IN BETWEEN LIKE RLIKE    NOT    AND    OR

A sign before a number is a part of the number: `-1::string` is '-1'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parser import IsPredicatePrecedence
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

_BITS = (
    (TokenType.AMP, exp.BitwiseAnd),
    (TokenType.CARET, exp.BitwiseXor),
    (TokenType.PIPE, exp.BitwiseOr),
)
_SHIFTS = ((TokenType.LT, exp.BitwiseLeftShift), (TokenType.GT, exp.BitwiseRightShift))


#: Letters of formats of times, as sqlglot has them of Spark, but those that mean something else
#: there: `YYYY`, years of weeks, is an error, and `y` has as many digits as the year.
FORMATS = {k: v for k, v in Spark.TIME_MAPPING.items() if k not in ("y", "Y", "YYYY", "YY")}

#: The first token of a number: `.5` has two.
_NUMBER_BEGINS = (TokenType.NUMBER, TokenType.DOT)


def _negative(parser: SparkGrammar) -> exp.Expr:
    """What stands behind a minus, with it."""
    token, after = parser._curr, parser._next
    value = parser._parse_unary()
    casts, below = [], value
    while token.token_type in _NUMBER_BEGINS and isinstance(below, exp.Cast):
        casts.append(below)
        below = below.this
    if casts and after.start <= token.end:
        casts.pop()  # 2L has the tokens of 2::BIGINT, all in one place
    if not casts:
        return parser.expression(exp.Neg(this=value))
    number = casts[-1].this
    casts[-1].set("this", parser.expression(exp.Neg(this=number)))
    return casts[0]


def _joined(**sides: exp.Expr) -> exp.DPipe:
    """`||` as sqlglot has it of Spark: of what is no string, too."""
    return exp.DPipe(**sides, safe=True)


class SparkGrammar(SparkParser):
    """sqlglot's parser, with Spark's precedence."""

    # Whatever IS is asked of has been read before.
    IS_PREDICATE_PRECEDENCE = IsPredicatePrecedence.HIGH
    COMPARISON: ClassVar = {**SparkParser.EQUALITY, **SparkParser.COMPARISON}
    TERM: ClassVar[dict[Any, Any]] = {
        TokenType.DASH: exp.Sub,
        TokenType.PLUS: exp.Add,
        TokenType.DPIPE: _joined,
    }
    UNARY_PARSERS: ClassVar = {**SparkParser.UNARY_PARSERS, TokenType.DASH: _negative}

    def _parse_equality(self, parse_is: bool = True) -> exp.Expr | None:
        """A condition without AND and OR: a value, and what is asked of it."""
        return self._parse_range()

    def _parse_bitwise(self) -> exp.Expr | None:
        """A value: comparisons, and all that binds tighter."""
        this = self._parse_bits(len(_BITS))
        while self._match_set(self.COMPARISON):
            operator = self.COMPARISON[self._prev.token_type]
            this = self._build_predicate(operator, this, self._parse_bits(len(_BITS)))
        return this

    def _parse_bits(self, level: int) -> exp.Expr | None:
        if level == 0:
            return self._parse_shifts()
        token, operator = _BITS[level - 1]
        return self._parse_left(
            lambda: self._parse_bits(level - 1),
            lambda: operator if self._match(token) else None,
        )

    def _parse_shifts(self) -> exp.Expr | None:
        return self._parse_left(
            self._parse_term,
            lambda: next((made for sign, made in _SHIFTS if self._match_pair(sign, sign)), None),
        )

    def _parse_left(
        self,
        operand: Callable[[], exp.Expr | None],
        operator: Callable[[], type[exp.Binary] | None],
    ) -> exp.Expr | None:
        """Operands with operators of one level between them, from the left."""
        this = operand()
        while (made := operator()) is not None:
            this = self.expression(made(this=this, expression=operand()))
        return this

    def _parse_factor_operand(self) -> exp.Expr | None:
        this = super()._parse_factor_operand()
        while self._match(TokenType.COLLATE):
            this = self.expression(exp.Collate(this=this, expression=self._parse_unary()))
            self._normalize_collate(this)
        return this
