"""What is told of views that were built."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mview.run.pipeline import Run
from tests.e2e.running import Notes


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (
            {"v": "FULL"},
            ["view v is kept by LINEAR from now on, before by FULL; why: mview explain"],
        ),
        ({"v": "LINEAR"}, []),
        ({"v": ""}, []),  # it had halted before it had any rows
        ({}, []),
    ],
)
def test_another_strategy_is_told(before: dict[str, str], told: list[str]) -> None:
    state = SimpleNamespace(strategy="LINEAR", rows=1, facts={"executor": "local"})
    manifest = SimpleNamespace(views={"v": state}, epoch=1, watermark=0)
    run = SimpleNamespace(_engine=SimpleNamespace(manifest=manifest), _listener=Notes())
    Run._announce_builds(cast(Any, run), [cast(Any, SimpleNamespace(name="v"))], before)
    assert run._listener.messages == told
    assert [report.views["v"].rows for report in run._listener.epochs] == [1]
