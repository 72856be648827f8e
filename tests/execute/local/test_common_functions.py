"""How many of the functions that analytics SQL uses most run in process: never fewer than now."""

from __future__ import annotations

from tests.execute.local.common_functions import COMMON, OTHERS, of_the_time, place

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
