"""What follows the changes: one epoch at a time, errors as they were, nothing begun after one."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mview.config import Config
from mview.errors import AwayError, CorruptionError, DataLostError, RetryableError, UserError
from mview.ingest import live
from mview.ingest.batches import Batch, BatchOffsets, Sorted
from mview.ingest.live import ENOUGH, WORTH_A_JOB, WORTH_READING_BESIDE, Epochs, LiveQuery
from mview.ingest.spec import QuerySpec, TableSpec
from mview.schema import TableSchema
from mview.store.quarantine import MendLog, MendRequest
from tests.relations import rel

OFFSETS = BatchOffsets({}, -1, {})


def test_an_epoch_begins_after_the_one_before() -> None:
    running, most, done = 0, 0, []

    def on_batch(batch: Batch) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        threading.Event().wait(0.02)
        running -= 1
        done.append(batch.number)

    with Epochs(on_batch) as epochs:
        for batch in range(4):
            epochs.begin(Batch({}, {}, OFFSETS, 1, batch))
    assert (most, done) == (1, [0, 1, 2, 3])


def test_what_an_epoch_raises_is_raised_before_the_next_and_at_the_end() -> None:
    begun = []

    def on_batch(batch: Batch) -> None:
        begun.append(batch.number)
        raise CorruptionError(f"epoch {batch.number}")

    def begin(count: int) -> None:
        with Epochs(on_batch) as epochs:
            for batch in range(count):
                epochs.begin(Batch({}, {}, OFFSETS, 1, batch))

    with pytest.raises(CorruptionError, match="epoch 0"):
        begin(1)
    with pytest.raises(CorruptionError, match="epoch 0"):
        begin(3)
    assert begun == [0, 0]


class Logs:
    """Logs with two batches; `advance` fails where told."""

    fails: BaseException | None = None
    asked: tuple[int, ...] = ()
    backlog = 0

    def __init__(self, spec_path: str) -> None:
        """The spec is not needed."""

    def begin(self) -> dict[str, Any]:
        begin = {"connections": {"a": {"p": 0}}, "watermark": -1, "pinned_ms": 0}
        return {**begin, "cuts": {}, "halts": {}}

    def finish(self) -> None:
        """There is an end anyway."""

    def advance(
        self, start: dict[str, Any], most: int, enough: int = sys.maxsize
    ) -> dict[str, Any]:
        Logs.asked += (most,)
        if self.fails is not None:
            raise self.fails
        at = start["connections"]["a"]["p"]
        return {**start, "connections": {"a": {"p": min(2, at + 1)}}}

    def pieces(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return []

    def goes_on(self, error: Exception) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], bool]], list[int]]:
    """Follow these logs to their end; returns where each batch ended."""
    monkeypatch.setattr(live, "Changelogs", Logs)
    spec = QuerySpec(1, Config(path=tmp_path / "mview.yml", store=tmp_path), {}, {}, -1, 1, True)

    def run(until: Callable[[], bool]) -> list[int]:
        taken: list[int] = []

        def on_batch(batch: Batch) -> None:
            taken.append(batch.offsets.connections["a"]["p"])

        LiveQuery(None, spec, tmp_path, on_batch).run(until)  # type: ignore[arg-type]
        return taken

    return run


def test_a_bounded_run_ends_where_nothing_new_comes(run) -> None:
    assert run(lambda: False) == [1, 2]


def test_it_stops_between_two_epochs(run) -> None:
    asked = iter([False, True])
    assert run(lambda: next(asked)) == [1]


def test_it_asks_for_as_many_changes_as_an_epoch_may_take(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(live, "Changelogs", Logs)
    monkeypatch.setattr(Logs, "asked", ())
    spec = QuerySpec(1, Config(path=tmp_path / "mview.yml", store=tmp_path), {}, {}, -1, 1, True)
    most = itertools.cycle([7, 3, 9])
    query = LiveQuery(None, spec, tmp_path, lambda *_: None, lambda: next(most))  # type: ignore[arg-type]
    query.run(lambda: False)
    # Three times, and once more for each epoch that still ran when the next was planned.
    assert len(Logs.asked) >= 3
    assert list(Logs.asked) == [*itertools.islice(itertools.cycle([7, 3, 9]), len(Logs.asked))]


_MANY = WORTH_READING_BESIDE + 1


class Growing(Logs):
    """Logs with two batches, the second of `more` messages; it grows by one as an epoch ends."""

    more, ended = 1, False

    def advance(
        self, start: dict[str, Any], most: int, enough: int = sys.maxsize
    ) -> dict[str, Any]:
        at = start["connections"]["a"]["p"]
        end = 1 if at == 0 else 1 + self.more + self.ended
        return {**start, "connections": {"a": {"p": end}}}

    def pieces(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        count = end["connections"]["a"]["p"] - start["connections"]["a"]["p"]
        return [SimpleNamespace(messages=count)]


@pytest.mark.parametrize(
    ("more", "batches", "beside"),
    [(1, [1, 3], False), (_MANY, [1, _MANY + 1, _MANY + 2], True)],
    ids=["few join what comes meanwhile", "many are read meanwhile"],
)
def test_what_comes_while_an_epoch_runs(tmp_path, monkeypatch, more, batches, beside) -> None:
    monkeypatch.setattr(live, "Changelogs", Growing)
    monkeypatch.setattr(Growing, "more", more)
    monkeypatch.setattr(Growing, "ended", False)
    taken: list[int] = []
    asked, read_beside = threading.Event(), []

    def on_batch(batch: Batch) -> None:
        if batch.number == 0:
            # The second batch is read now, if at all before this epoch ends.
            read_beside.append(asked.wait(timeout=1))
            monkeypatch.setattr(Growing, "ended", True)
        taken.append(batch.offsets.connections["a"]["p"])

    def read(query: LiveQuery, logs: Logs, pieces: list[Any], by_tasks: bool) -> tuple[Any, ...]:
        if pieces[0].messages > 1:
            asked.set()
        return Sorted({}, {}, {}, [])

    monkeypatch.setattr(LiveQuery, "_read", read)
    spec = QuerySpec(1, Config(path=tmp_path / "mview.yml", store=tmp_path), {}, {}, -1, 1, True)
    LiveQuery(None, spec, tmp_path, on_batch).run(lambda: False)  # type: ignore[arg-type]
    assert (taken, read_beside) == (batches, [beside])


class Waiting(Logs):
    """Logs with so many messages, of which `advance` gives as many as it is asked for."""

    length = 0

    def advance(
        self, start: dict[str, Any], most: int, enough: int = sys.maxsize
    ) -> dict[str, Any]:
        end = min(self.length, start["connections"]["a"]["p"] + min(most, enough))
        self.backlog = self.length - end
        return {**start, "connections": {"a": {"p": end}}}

    def pieces(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        count = end["connections"]["a"]["p"] - start["connections"]["a"]["p"]
        return [SimpleNamespace(messages=count)]


@pytest.mark.parametrize(
    ("length", "has_spark", "read"),
    [
        (2 * ENOUGH + 1, True, [(ENOUGH, False), (ENOUGH, False), (1, False)]),
        (WORTH_A_JOB + 1, True, [(WORTH_A_JOB + 1, True)]),
        (ENOUGH, True, [(ENOUGH, False)]),
        (3 * ENOUGH, False, [(ENOUGH, False)] * 3),
    ],
)
def test_many_are_read_by_tasks_and_others_in_parts(
    tmp_path, monkeypatch, length, has_spark, read
) -> None:
    """What waits decides, not what is read: a part here, or all by tasks where there is Spark."""
    monkeypatch.setattr(live, "Changelogs", Waiting)
    monkeypatch.setattr(Waiting, "length", length)
    told: list[tuple[int, bool]] = []

    def look(query: LiveQuery, logs: Logs, pieces: list[Any], by_tasks: bool) -> tuple[Any, ...]:
        told.append((pieces[0].messages, by_tasks))
        return Sorted({}, {}, {}, [])

    monkeypatch.setattr(LiveQuery, "_read", look)
    spark = SimpleNamespace(running=object() if has_spark else None, begin=lambda: None)
    spec = QuerySpec(1, Config(path=tmp_path / "mview.yml", store=tmp_path), {}, {}, -1, 1, True)
    LiveQuery(spark, spec, tmp_path, lambda _: None).run(lambda: False)  # type: ignore[arg-type]
    assert told == read


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (DataLostError("gone", where="t/0"), DataLostError),
        (OSError("no route"), RetryableError),
    ],
)
def test_errors_of_sources(run, monkeypatch, raised, kind) -> None:
    monkeypatch.setattr(Logs, "fails", raised)
    with pytest.raises(kind, match=r"gone|changelogs cannot be read"):
        run(lambda: False)


@pytest.mark.parametrize("place", ["finish", "advance", "pieces", "changes"])
@pytest.mark.parametrize("once", [True, False])
def test_what_is_asked_of_the_quarantine_is_done_while_a_source_is_away(
    tmp_path, monkeypatch, place, once
) -> None:
    """Of any table, as nothing of it is in the source."""

    def away(*_: object) -> Any:
        raise AwayError("Kafka does not answer")

    monkeypatch.setattr(live, "Changelogs", Logs)
    monkeypatch.setattr(Logs, "pieces", lambda *_: ["some"])
    monkeypatch.setattr(live, "_messages", len)
    monkeypatch.setattr(Logs, place, away, raising=False)
    table = TableSpec(rel("a.t"), TableSchema((), ()), tmp_path, "stage", None)
    tables = {table.name: table}
    config = Config(path=tmp_path / "mview.yml", store=tmp_path)
    spec = QuerySpec(1, config, tables, {}, -1, 1, once)
    log, request = MendLog(tmp_path / "mends"), MendRequest(table.name, "retry", ("1.1",))
    log.ask(request)
    batches: list[Batch] = []
    spark = SimpleNamespace(running=None, begin=lambda: None, settle=lambda: None, slots=1)
    query = LiveQuery(spark, spec, tmp_path, batches.append)  # type: ignore[arg-type]
    if place == "finish" and not once:
        ends = iter([False, False, True])
        monkeypatch.setattr(Logs, "changes", lambda *_: (), raising=False)
        query.run(lambda: next(ends))
    else:
        with pytest.raises(AwayError):
            query.run(lambda: False)
    (batch,) = [batch for batch in batches if batch.mends]
    assert [*batch.mends] == [request]
    assert not log.waiting()
    if place != "finish":
        assert batch.offsets.connections == {"a": {"p": 0}}


@pytest.mark.parametrize("kind", [UserError, AwayError, DataLostError])
def test_nothing_follows_an_epoch_that_failed_whatever_is_asked_of_the_quarantine(
    tmp_path, monkeypatch, kind
) -> None:
    """The changes of the one that failed would be passed over."""
    begun, asked = threading.Event(), threading.Event()
    looks: list[int] = []

    class Asked(Growing):
        def advance(self, start: dict[str, Any], *most: int) -> dict[str, Any]:
            if start["connections"]["a"]["p"]:
                asked.set()
            return super().advance(start, *most)

    monkeypatch.setattr(live, "Changelogs", Asked)
    monkeypatch.setattr(LiveQuery, "_read", lambda *_: Sorted({}, {}, {}, []))
    table = TableSpec(rel("a.t"), TableSchema((), ()), tmp_path, "stage", None)
    config = Config(path=tmp_path / "mview.yml", store=tmp_path)
    spec = QuerySpec(1, config, {table.name: table}, {}, -1, 1, True)
    log, request = MendLog(tmp_path / "mends"), MendRequest(table.name, "retry", ("1.1",))
    batches: list[Batch] = []

    def on_batch(batch: Batch) -> None:
        batches.append(batch)
        begun.set()
        assert asked.wait(60)
        threading.Event().wait(0.1)  # it is waited for by now
        raise kind("the epoch fails")

    def until() -> bool:
        if looks:
            assert begun.wait(60)
            log.ask(request)
        looks.append(1)
        return False

    spark = SimpleNamespace(running=None, begin=lambda: None, settle=lambda: None, slots=1)
    query = LiveQuery(spark, spec, tmp_path, on_batch)  # type: ignore[arg-type]
    with pytest.raises(kind, match="the epoch fails"):
        query.run(until)
    assert [batch.number for batch in batches] == [0]
    assert log.waiting()
