"""How many of the functions that analytics SQL uses most run in process: never fewer than now."""

from __future__ import annotations

import pytest

from mview.schema import parse_type
from tests.execute.local.common_functions import COLUMNS, COMMON, OTHERS, of_the_time, place

IN_PROCESS = 146


def test_no_fewer_of_the_common_functions_run_in_process() -> None:
    assert len(set(COMMON)) == len(COMMON) == 150
    places = [place(text) for text in COMMON]
    assert places.count("in process") == IN_PROCESS, "say the new number, if it is higher"


def test_other_names_of_them_run_in_process() -> None:
    assert [text for text in OTHERS if place(text) != "in process"] == []


def test_functions_of_the_time() -> None:
    """What a view is refused is not told as a function of the epoch's time."""
    days, instants = {"current_date", "curdate"}, {"current_timestamp", "now", "localtimestamp"}
    assert of_the_time() == days | instants


def test_times_without_a_zone_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of MySQL's DATETIME, PostgreSQL's timestamp, SQL Server and SQLite."""
    with_zone = [place(text) for text in (*COMMON, *OTHERS)]
    for name in ("at", "until"):
        monkeypatch.setitem(COLUMNS, name, parse_type("timestamp_ntz"))
    assert [place(text) for text in (*COMMON, *OTHERS)] == with_zone
