"""Averages from exact sums and counts, as Spark computes them to the last digit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal

import pyarrow as pa

#: Spark gives sums of decimals that many more digits than its rows have, and averages so many.
_MORE_OF_SUM, _MORE_OF_AVERAGE = 10, 4
_MOST_DIGITS = 38
#: Averages of no more digits than this are computed in DOUBLE by Spark, whatever their type.
_DIGITS_OF_DOUBLE = 15

#: Spark divides to 39 digits and cuts the rest off; rounding half up comes after that.
_DIVIDE = Context(prec=_MOST_DIGITS + 1, rounding=ROUND_DOWN)
_ROUND = Context(prec=2 * _MOST_DIGITS, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class Average:
    """An average of exact numbers, from columns of a state table.

    Attributes:
        total: the column of the sum.
        count: the column of the number of values; where it is zero, the average is NULL.
        whole: it is of whole numbers, else of decimals.
    """

    total: str
    count: str
    whole: bool

    def type(self, total: pa.DataType) -> pa.DataType | None:
        """The average's type, by that of the sum; None: the sum's type does not tell."""
        if self.whole:
            return pa.float64()
        if total.precision >= _MOST_DIGITS:
            return None  # that of rows with 28 digits or more
        digits = total.precision - _MORE_OF_SUM + _MORE_OF_AVERAGE
        return pa.decimal128(digits, min(total.scale + _MORE_OF_AVERAGE, _MOST_DIGITS))

    def of(self, rows: pa.Table) -> pa.Array:
        """The averages of rows of the state table."""
        total = rows[self.total]
        kind = self.type(total.type)
        assert kind is not None, "such a view has no state table"
        divide = _divider(kind, total.type.scale)
        pairs = zip(total.to_pylist(), rows[self.count].to_pylist(), strict=True)
        return pa.array(
            [divide(dividend, count) if count else None for dividend, count in pairs], kind
        )


def is_known(argument: pa.DataType) -> bool:
    """Whether the type of an average of such decimals can be told by that of their sum."""
    return bool(argument.precision + _MORE_OF_SUM < _MOST_DIGITS)


def _divider(kind: pa.DataType, scale: int) -> Callable[[Decimal, int], Decimal | float]:
    """Divides a sum of a scale by a count, to a value of the type of the average."""
    if pa.types.is_floating(kind):
        return lambda total, count: float(total) / float(count)
    unit = Decimal(1).scaleb(-kind.scale)
    if kind.precision <= _DIGITS_OF_DOUBLE:
        shift = 10.0**scale
        return lambda total, count: _ROUND.quantize(
            Decimal(repr(float(_unscaled(total, scale)) / float(count) / shift)), unit
        )
    return lambda total, count: _ROUND.quantize(_DIVIDE.divide(total, Decimal(count)), unit)


def _unscaled(total: Decimal, scale: int) -> int:
    return int(total.scaleb(scale, _ROUND))
