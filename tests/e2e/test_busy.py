"""A machine too busy to start Spark's Python workers in time: the query is started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mview.ingest.live import LiveQuery
from mview.ingest.load import LoadQuery
from mview.session.spark_errors import WorkerStartError
from tests.e2e.running import Notes, live, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth

pytestmark = [pytest.mark.spark, pytest.mark.slow]

VIEWS = {
    "totals": "select product, count(*) as n, sum(amount) as t from shop.lines group by product"
}


def interrupted_once(monkeypatch: pytest.MonkeyPatch, query: type[LoadQuery | LiveQuery]) -> None:
    """The first query of a kind ends after a while, for want of a worker."""
    interrupted: list[object] = []
    run = query.run

    def run_a_while(self: Any, until: Callable[[], bool]) -> None:
        if interrupted:
            return run(self, until)
        interrupted.append(self)
        end = time.monotonic() + 3
        run(self, lambda: time.monotonic() > end or until())
        raise WorkerStartError("a Python worker of Spark did not start in time")

    monkeypatch.setattr(query, "run", run_a_while)


def tries(notes: Notes) -> int:
    return sum("trying again" in message for message in notes.messages)


@pytest.mark.long
def test_queries_are_started_again(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_once(monkeypatch, LoadQuery)
    interrupted_once(monkeypatch, LiveQuery)
    shop = Shop(tmp_path, size=40)
    try:
        config = shop.config()
        truth = Truth(config, shop, views_of(**VIEWS))
        with shop.busy(pause=0.02), live(config, *views_of(**VIEWS)) as running:
            running.until(lambda: tries(running.notes) == 2)
            running.epochs("totals", 3)
        shop.heartbeat()
        run_once(config, *views_of(**VIEWS))
        assert set(truth.check_end().views) == set(VIEWS)
    finally:
        shop.close()


@pytest.mark.days(5)
def test_it_is_given_up_in_the_end(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: LoadQuery, until: Callable[[], bool]) -> None:
        raise WorkerStartError("a Python worker of Spark did not start in time")

    monkeypatch.setattr(LoadQuery, "run", never)
    shop = Shop(tmp_path, size=8)
    try:
        with pytest.raises(WorkerStartError):
            run_once(shop.config(), *views_of(**VIEWS))
    finally:
        shop.close()
