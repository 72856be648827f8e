"""Bursts of changes, which a process beside the run reads: each epoch is right, also without it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mview.ingest import live as following
from mview.ingest.burst.process import ReaderProcess
from mview.ingest.live import WORTH_READING_BESIDE
from tests.e2e.running import live, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth
from tests.seeds import daily

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

VIEWS = {
    "segments": "select segment, count(*) as n from shop.customers group by segment",
    "orders_of": "select c.name, count(*) as n from shop.orders o join shop.customers c"
    " on c.id = o.customer_id group by c.name",
}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    shop.heartbeat()
    yield shop
    shop.close()


def burst(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Changes of customers and orders; keys come back after they were deleted."""
    changes: list[dict[str, Any]] = []
    for _ in range(count):
        key = rng.randrange(900)
        if rng.random() < 0.2:
            table = rng.choice(["customers", "orders"])
            changes.append({"table": table, "op": "delete", "key": {"id": key}})
        elif rng.random() < 0.5:
            row = {"id": key, "name": f"n{rng.randrange(9)}", "segment": rng.choice(["A", None])}
            changes.append({"table": "customers", "op": "insert", "after": row})
        else:
            row = {"id": key, "customer_id": rng.randrange(900), "day": "2024-02-29"}
            changes.append({"table": "orders", "op": "insert", "after": row})
    return changes


@pytest.mark.parametrize("is_killed", [False, True])
def test_every_epoch_is_right(shop: Shop, monkeypatch: pytest.MonkeyPatch, is_killed: bool) -> None:
    rng = random.Random(daily())
    monkeypatch.setattr(following, "_SETTLED_S", 0.0)
    processes: list[ReaderProcess] = []
    answers: list[bool] = []
    begin, answer = ReaderProcess.begin, ReaderProcess.answer

    def begin_noted(process: ReaderProcess) -> None:
        begin(process)
        if process not in processes:
            processes.append(process)

    def answer_noted(process: ReaderProcess) -> pa.Table | None:
        if is_killed and len(answers) == 2:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        rows = answer(process)
        answers.append(rows is not None)
        return rows

    monkeypatch.setattr(ReaderProcess, "begin", begin_noted)
    monkeypatch.setattr(ReaderProcess, "answer", answer_noted)
    config, views = shop.config(max_changes=4 * WORTH_READING_BESIDE), views_of(**VIEWS)
    truth = Truth(config, shop, views)
    with live(config, *views) as running:
        running.epochs("segments", 1)
        running.until(lambda: processes and processes[-1].is_ready)
        for _ in range(2):
            shop.log_at_once(burst(rng, 12 * WORTH_READING_BESIDE))
            running.to_the_end(shop)
        said = [text for text in running.notes.messages if "reads many changes" in text]
    truth.check_end()  # and each epoch
    assert len(answers) >= 3
    # A kill may come too late for what it has read by then.
    assert answers[:2] == [True, True]
    assert len(said) == is_killed
    assert all(answers) or is_killed
