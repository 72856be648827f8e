"""Requests to a run that goes on: in their order, and without what only their reader can know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mview.plan.definition import parse_view
from mview.plan.functions.declared import Function
from mview.store.requests.applies import ApplyLog, ApplyRequest


def test_the_oldest_comes_first(tmp_path: Path) -> None:
    log = ApplyLog(tmp_path / "applies")
    files = [log.ask(ApplyRequest((), (name,))) for name in "abc"]
    assert log.files() == files
    log.done(files[0])
    assert [log.read(file).remove for file in log.files()] == [("b",), ("c",)]


def test_functions_are_those_of_the_run_that_takes_it_up(tmp_path: Path) -> None:
    log = ApplyLog(tmp_path / "applies")
    view = parse_view("CREATE MATERIALIZED VIEW v AS SELECT vat(x) AS y FROM shop.t", "v")
    declared = replace(view, functions=(Function("vat", "mine:vat", "int", "python"),))
    file = log.ask(ApplyRequest((declared,)))
    assert log.read(file).views == (view,)
