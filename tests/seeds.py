"""Seeds of random tests: new ones every day, in one place, so that a failure can be run again.

Which of many cases the everyday lane runs comes from the day, too. The long lane has a fifth of
the others, by the day as well (`MVIEW_DAYS=all`: all), and of a few lists the cases of today alone
(`of_today`).

The report's header and every failure say `MVIEW_SEED=…`; with it in the environment the same cases
run again on any day.
"""

from __future__ import annotations

import datetime as dt
import os
import zlib
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

#: What all seeds of this run come from. In the environment, so that every process of the run, also
#: one that starts after midnight, has the same.
SEED = int(os.environ.setdefault("MVIEW_SEED", str(dt.date.today().toordinal())))

T = TypeVar("T")

#: Between the seeds of two days: no test takes more.
_APART = 100_000


def daily(number: int = 0) -> int:
    """The seed of today with this number, below 100,000."""
    assert 0 <= number < _APART
    return SEED * _APART + number


def seeds(count: int, first: int = 0) -> range:
    """So many seeds, from `daily(first)`: for loops, and for `parametrize`."""
    return range(daily(first), daily(first) + count)


def is_of_today(place: int, days: int) -> bool:
    """Whether the case at this place of a list is one of today's: each has its day in so many."""
    return (place + SEED) % days == 0


def has_its_day(name: str, days: int) -> bool:
    """Whether a test has its day today: one in each row of so many days, in another order in each.

    Else what goes by places (`some_today`) and by names would meet always or never.
    """
    return is_of_today(zlib.crc32(f"{name} {SEED // days}".encode()), days)


def of_today(cases: Iterable[T], days: int) -> list[T]:
    """Those of today alone, where they are too many for the long lane, too."""
    return [case for place, case in enumerate(cases) if is_of_today(place, days)]


def some_today(cases: Iterable[Any], days: int) -> list[Any]:
    """All cases, for `parametrize`: those that are not of today are for the long lane."""
    return [
        pytest.param(case, marks=() if is_of_today(place, days) else pytest.mark.long)
        for place, case in enumerate(cases)
    ]
