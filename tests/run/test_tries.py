"""A query that fails is started again; one that gets nowhere is given up."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mview.run import pipeline
from mview.run.pipeline import Run
from mview.schema import Column, TableSchema
from mview.session.spark_errors import WorkerEndedError, WorkerStartError
from mview.store.layout import Store
from tests.relations import rel

T = TableSchema((Column("id", pa.int64(), False),), ("id",))


class Engine:
    """As far as tries are counted."""

    def __init__(self, folder: Path) -> None:
        table = SimpleNamespace(halted=None)
        self.manifest = SimpleNamespace(epoch=1, tables={rel("shop.t"): table})
        self.store, self.lease = Store(folder), SimpleNamespace(token=1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    upkeep = SimpleNamespace(take_back=lambda: None)
    monkeypatch.setattr(pipeline, "Upkeep", lambda engine: upkeep)
    listener: Any = SimpleNamespace(on_message=lambda text: None)
    engine: Any = Engine(tmp_path)
    feed: Any = SimpleNamespace(begins_anew=False)
    return Run(engine, {rel("shop.t"): T}, [], listener, threading.Event(), once=False, feed=feed)


@pytest.mark.parametrize("error", [WorkerStartError("none comes"), WorkerEndedError("killed")])
@pytest.mark.parametrize(("moves", "tries"), [(False, 3), (True, 20)])
def test_tries_are_counted_since_the_last_epoch(
    run: Run, monkeypatch: pytest.MonkeyPatch, moves: bool, tries: int, error: Exception
) -> None:
    tried = []

    def follow(load: bool, once: bool) -> None:
        tried.append(once)
        if len(tried) == 20:
            return
        if moves:
            run._engine.manifest.epoch += 1  # type: ignore[misc]
        raise error

    monkeypatch.setattr(run, "_follow", follow)
    if moves:
        run._query(load=False)
    else:
        with pytest.raises(type(error)):
            run._query(load=False)
    assert len(tried) == tries


def test_where_all_tables_have_halted_nothing_is_followed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[bool] = []
    monkeypatch.setattr(run, "_follow", lambda load, once: followed.append(load))
    run._query(load=False)
    assert followed == [False]
    run._engine.manifest.tables[rel("shop.t")].halted = "why"  # type: ignore[misc]
    run._query(load=False)
    assert followed == [False]
