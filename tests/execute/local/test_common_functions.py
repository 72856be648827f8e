"""How many of the functions that analytics SQL uses most run in process: never fewer than now."""

from __future__ import annotations

from tests.execute.local.common_functions import COMMON, place

IN_PROCESS = 145


def test_no_fewer_of_the_common_functions_run_in_process() -> None:
    assert len(set(COMMON)) == len(COMMON) == 150
    places = [place(text) for text in COMMON]
    assert places.count("in process") == IN_PROCESS, "say the new number, if it is higher"
