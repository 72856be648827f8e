"""`mview backfill`: what is asked for, what is waited for, and how it ends."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mview.admin.mending.backfill import backfill
from mview.cli import main
from mview.clock import SystemClock
from mview.config.file import load_config
from mview.ingest.mending.rereads import RereadLog, RereadRequest
from mview.relation import RelationId
from mview.store.layout import Store
from mview.store.lease import Lease
from tests.cli.test_past import published


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    published(tmp_path, 1_700_000_000_000)
    return Store(tmp_path / "data")


def mview(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["backfill", *arguments, "-c", "mview.yml"])


def test_without_a_run_it_is_for_the_next_one(store: Store) -> None:
    for _ in range(2):
        result = mview("shop.orders", "--json")
        assert result.exit_code == 0, result.output
        (told,) = json.loads(result.stdout)
        assert (told["state"], told["why"]) == (
            "asked",
            "nobody runs the store: the next run reads it",
        )
    (request,) = RereadLog(store.rereads).waiting().values()
    assert (str(request.table), request.plan) == ("shop.orders", None)


def test_a_run_is_waited_for(store: Store) -> None:
    def run() -> None:
        with Lease(store.lease, SystemClock()):
            held.set()
            end = time.monotonic() + 20
            while not (waiting := RereadLog(store.rereads).waiting()) and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.3)
            for file in waiting:
                file.unlink()
            ended.wait(20)

    held, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    assert held.wait(20)
    result = mview("shop.orders")
    ended.set()
    thread.join()
    assert "shop.orders: as its database has it, 0 rows at epoch 6" in result.stdout
    assert "waiting for the run" in result.stderr


def test_a_run_that_fails_by_it_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the run has ended, and has noted its failure: that takes seconds."""

    def fails(*_: object) -> Path:
        log = RereadLog(store.rereads)
        file = log.ask(request)
        log.refuse(file, "the table has another key")
        return file

    request = RereadRequest(RelationId.of("shop.orders"))
    monkeypatch.setattr("mview.admin.mending.backfill._asked", fails)
    (told,) = backfill(load_config("mview.yml"), ["shop.orders"], lambda text: None)
    assert told.state == "failed"
    assert told.why == "the run ended by an error: the table has another key"
    assert not [*store.rereads.iterdir()]


def test_what_cannot_be_read_anew(store: Store) -> None:
    result = mview("shop.order")
    assert result.exit_code == 1
    assert "the store has no table shop.order" in result.stderr
    assert "shop.orders" in result.stderr
    assert not store.rereads.exists()
