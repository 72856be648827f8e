"""Functions that the golden cases declare."""

from __future__ import annotations

from decimal import Decimal

import pandas as pd


def initials(name: str | None) -> str:
    """The first letters of the words; of no name `?`, not NULL."""
    return "?" if name is None else "".join(word[0] for word in name.split()).lower()


def fee(amount: Decimal | None) -> Decimal | None:
    """A tenth, in cents."""
    return None if amount is None else (amount / 10).quantize(Decimal("0.01"))


def near(left: int | None, right: int | None) -> bool | None:
    """Whether two numbers differ by one at most."""
    return None if left is None or right is None else abs(left - right) <= 1


def labels(numbers: pd.Series) -> pd.Series:
    """The numbers as text: 3 is `3`, also where another row of the batch has no number."""
    return numbers.astype("string").fillna("none")


def halves(numbers: pd.Series) -> pd.Series:
    """The even numbers halved; NULL for the odd ones and for NULL."""
    return (numbers // 2).mask(numbers % 2 != 0)
