"""`mview backfill`: what is asked for, what is waited for, and how it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.clock import SystemClock
from mview.connector import TableHalt
from mview.ingest.mending.rereads import RereadLog, RereadRequest
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from tests.cli.test_past import published

CONFIG = """
store: data
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    published(tmp_path, 1_700_000_000_000)
    (tmp_path / "mview.yml").write_text(CONFIG)
    return Store(tmp_path / "data")


def mview(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["backfill", *arguments, "-c", "mview.yml"])


def test_without_a_run_it_is_for_the_next_one(store: Store) -> None:
    for _ in range(2):
        result = mview("shop.orders", "--json")
        assert result.exit_code == 0, result.output
        assert "waiting" not in result.stderr
        (told,) = json.loads(result.stdout)
        assert (told["state"], told["why"]) == (
            "asked",
            "nobody runs the store: the next run reads it",
        )
    (request,) = RereadLog(store.rereads).waiting().values()
    assert (str(request.table), request.plan) == ("shop.orders", None)


def test_a_table_whose_changes_nobody_follows_is_refused_at_once(store: Store) -> None:
    Path("mview.yml").write_text("store: data")
    result = mview("shop.orders")
    assert result.exit_code == 1
    assert "changes of shop.orders are not followed" in result.stderr
    assert "put changes.shop into the configuration and run again" in result.stderr
    assert not RereadLog(store.rereads).waiting()


def test_who_waits_is_told_of_a_load_that_comes_first(store: Store) -> None:
    log = ManifestLog(store.manifests)
    newest = log.latest()
    assert newest is not None
    lines = RelationId.of("shop.order_lines")
    loading = replace(newest.tables[RelationId.of("shop.orders")], phase="loading")
    tables = {**newest.tables, lines: loading}
    log.publish(replace(newest, epoch=newest.epoch + 1, tables=tables))
    with a_run(store, lambda requests: requests[0].unlink()):
        result = mview("shop.orders")
    assert "anew, once it has loaded shop.order_lines" in result.stderr


@contextmanager
def a_run(store: Store, answers: Callable[[list[Path]], None]) -> Iterator[None]:
    """Somebody runs the store, and answers the first requests that wait."""

    def run() -> None:
        with Lease(store.lease, SystemClock()):
            held.set()
            end = time.monotonic() + 20
            while not (waiting := RereadLog(store.rereads).waiting()) and time.monotonic() < end:
                time.sleep(0.01)
            answers([*waiting])
            ended.wait(20)

    held, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    assert held.wait(20)
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_run_is_waited_for(store: Store) -> None:
    def done(requests: list[Path]) -> None:
        time.sleep(0.3)
        for file in requests:
            file.unlink()

    with a_run(store, done):
        result = mview("shop.orders")
    assert "shop.orders: as its database has it, 0 rows at epoch 6" in result.stdout
    assert "waiting for the run" in result.stderr


def test_one_that_is_refused_is_told_to_all_who_wait_and_by_status(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Path:
        return file

    log = RereadLog(store.rereads)
    file = log.ask(RereadRequest(RelationId.of("shop.orders")))
    log.refuse(file, TableHalt("another key", "shop.db", "b", "mview drop shop.orders"))
    monkeypatch.setattr("mview.admin.mending.backfill._asked", refused)
    for _ in range(2):
        result = mview("shop.orders")
        assert result.exit_code == 1
        assert result.stdout == (
            "shop.orders: failed, another key (shop.db): b\n  next: mview drop shop.orders\n"
        )
    (told,) = json.loads(mview("shop.orders", "--json").stdout)
    assert (told["state"], told["next"]) == ("failed", "mview drop shop.orders")
    shown = CliRunner().invoke(main, ["status", "-c", "mview.yml"]).stdout
    assert "    not read anew: another key (shop.db): b\n    next: mview drop" in shown


def test_what_was_refused_is_forgotten_after_a_day_or_when_its_table_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, why = RereadLog(store.rereads), TableHalt("no")
    orders, lines = (RelationId.of(f"shop.{name}") for name in ("orders", "order_lines"))
    first, second = (log.ask(RereadRequest(table)) for table in (orders, lines))
    for file in (first, second):
        log.refuse(file, why)
    assert [(request.table, why.what) for request, why in log.refused()] == [
        (orders, "no"),
        (lines, "no"),
    ]
    log.forget_refused(lambda request: request.table == orders)
    assert (log.why_refused(first), log.why_refused(second)) == (None, why)
    first.with_suffix(".refused").write_text("half")
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 3600)
    third = log.ask(RereadRequest(orders))
    assert log.why_refused(second) == why
    monkeypatch.setattr("time.time", lambda: now + 86_500)
    log.ask(RereadRequest(orders))
    assert log.why_refused(second) is None
    assert not [*store.rereads.glob("*.refused")]
    log.refuse(third, why)
    log.refuse(third, why)  # gone meanwhile
    assert len(log.refused()) == 1


def test_a_table_that_halts_is_waited_for_no_longer(store: Store) -> None:
    def halts(_: list[Path]) -> None:
        log = ManifestLog(store.manifests)
        newest = log.latest()
        assert newest is not None
        tables = dict(newest.tables)
        name = RelationId.of("shop.orders")
        tables[name] = replace(tables[name], halted="no key\n  where: there")
        log.publish(replace(newest, epoch=newest.epoch + 1, tables=tables))

    with a_run(store, halts):
        result = mview("shop.orders")
    assert result.exit_code == 1
    assert "shop.orders: failed, its table has halted meanwhile" in result.stdout
    again = mview("shop.orders")
    assert again.exit_code == 1
    assert "shop.orders has halted: no key" in again.stderr
    assert "`mview apply` or the next run loads shop.orders anew" in again.stderr


def test_what_cannot_be_read_anew(store: Store) -> None:
    result = mview("shop.order")
    assert result.exit_code == 1
    assert "the store has no table shop.order" in result.stderr
    assert "shop.orders" in result.stderr
    assert not store.rereads.exists()
