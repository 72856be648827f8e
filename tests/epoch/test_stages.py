"""The stages of an epoch: in order, those with nothing to do left out, each with its time."""

from __future__ import annotations

import pytest

from mview.epoch.stages import Stage, run_stages


def test_each_stage_that_has_something_to_do_is_told():
    told = []
    stages = [
        Stage(lambda value: [*value, 1], "net"),
        Stage(lambda value: [*value, 2], "intent", only=lambda value: False),
        Stage(lambda value: [*value, 3], "publish"),
        Stage(lambda value: [*value, 4], "publish"),
    ]
    value = run_stages(stages, [], lambda name, seconds: told.append((name, seconds >= 0)))
    assert value == [1, 3, 4]
    assert told == [("net", True), ("publish", True), ("publish", True)]


def test_a_stage_that_fails_is_not_told():
    told = []
    stages = [Stage(lambda value: value, "net"), Stage(lambda value: 1 // 0, "views")]
    with pytest.raises(ZeroDivisionError):
        run_stages(stages, 0, lambda name, seconds: told.append(name))
    assert told == ["net"]
