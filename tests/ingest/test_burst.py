"""The process that reads beside a run: the same rows, and nothing is lost without it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from mview.changelog import STREAM_ARROW
from mview.config import Config
from mview.config.file import load_config
from mview.connector import TableHalt
from mview.errors import AwayError, UserError
from mview.files.records import plain
from mview.ingest import live
from mview.ingest.batches import Batch, Sorted, sorted_rows
from mview.ingest.burst import process as processes
from mview.ingest.burst.process import ReaderProcess
from mview.ingest.changelogs import Changelogs
from mview.ingest.live import WORTH_READING_BESIDE, LiveQuery
from mview.ingest.spec import QuerySpec, TableSpec
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from tests.patience import wait_for
from tests.relations import rel
from tests.seeds import daily

TABLES = {
    name: TableSpec(
        rel(f"a.{name}"),
        TableSchema(
            (
                Column("id", pa.int64(), nullable=False),
                Column("name", pa.string()),
                Column("amount", pa.decimal128(10, 2)),
            ),
            ("id",),
        ),
        Path("base"),
        "stage",
        None,
    )
    for name in ("t", "u", "odd")
}


def write_changes(folder: Path, rng: random.Random, count: int, odd: str) -> None:
    """Random changes of three tables; one of them gets a value that does not fit."""
    lines = []
    for number in range(count):
        table = rng.choice(["t", "u", "odd"])
        amount = odd if table == "odd" else f"{rng.randint(-9999, 9999) / 100:.2f}"
        row = {"id": rng.randrange(50), "name": rng.choice([None, "", "ä", "x" * 40])}
        change: dict[str, Any] = {"ts": 1000 + number, "position": number, "table": table}
        match rng.choice(["insert", "update", "delete"]):
            case "delete":
                change |= {"op": "delete", "before": {"id": row["id"]}}
            case op:
                change |= {"op": op, "after": {**row, "amount": amount}}
        lines.append(json.dumps(change) + "\n")
    folder.mkdir()
    (folder / "1.jsonl").write_text("".join(lines))


def spec_of(tmp_path: Path, on_error: str = "halt") -> QuerySpec:
    file = tmp_path / "mview.yml"
    file.write_text(
        "store: data\nengine: {max_changes: 500}\n"
        "connections: {a: {drivername: sqlite, database: a.db}}\n"
        f"changes: {{a: {{source: files, format: unified, path: a, T: 1 s, on_error: {on_error}}}}}"
    )
    tables = {table.name: table for table in TABLES.values()}
    start = {"a": {"log": ["", 0, 0]}}
    return QuerySpec(1, load_config(file), tables, start, -1, 2, False)


def ready(spec: str, said: list[str] | None = None) -> ReaderProcess:
    process = ReaderProcess(spec, (said if said is not None else []).append)
    assert not process.ask([]), "before it was begun"
    process.begin()
    assert wait_for(lambda: process.is_ready, 60)
    return process


def read_here(logs: Changelogs, pieces: list[Any]) -> Sorted:
    return sorted_rows(pa.Table.from_batches([b for piece in pieces for b in logs.rows(piece)]))


def tables_of(read: Sorted) -> dict[RelationId, list[Any]]:
    return {name: [t.to_pylist() for t in tables] for name, tables in read.changes.items()}


@pytest.mark.parametrize("seed", [daily(3)])
@pytest.mark.parametrize("on_error", ["halt", "quarantine"])
def test_it_reads_what_is_read_here(tmp_path: Path, on_error: str, seed: int) -> None:
    """Also what halts, and what goes into quarantine."""
    write_changes(tmp_path / "a", random.Random(seed), 2_000, odd="12.345")
    spec = spec_of(tmp_path, on_error).write(tmp_path / "spec.json")
    logs, process = Changelogs(spec), ready(spec)
    at, halts, rejects, batches = logs.begin(), 0, 0, 0
    while (end := logs.advance(at)) != at:
        pieces = logs.pieces(at, end)
        assert process.ask(pieces)
        rows = process.answer()
        assert rows is not None
        there, here = sorted_rows(rows), read_here(logs, pieces)
        assert tables_of(there) == tables_of(here)
        assert there.halts == here.halts
        assert there.rejects == here.rejects
        at, halts, rejects = end, halts + len(there.halts), rejects + len(there.rejects)
        batches += 1
    process.close()
    logs.close()
    assert batches >= 4
    assert (halts > 0, rejects > 0) == ((True, False) if on_error == "halt" else (False, True))


def test_what_it_cannot_read_is_read_here_and_it_goes_on(tmp_path: Path) -> None:
    write_changes(tmp_path / "a", random.Random(1), 1_000, odd="1.00")
    spec = spec_of(tmp_path).write(tmp_path / "spec.json")
    said: list[str] = []
    logs, process = Changelogs(spec), ready(spec, said)
    at = logs.begin()
    middle = logs.advance(at)
    first, second = logs.pieces(at, middle), logs.pieces(middle, logs.advance(middle))
    whole = (tmp_path / "a" / "1.jsonl").read_text()
    (tmp_path / "a" / "1.jsonl").write_text("no change" + whole[len("no change") :])
    assert process.ask(first)
    assert process.answer() is None
    (tmp_path / "a" / "1.jsonl").write_text(whole)
    for pieces in (first, second):
        assert process.ask(pieces)
        rows = process.answer()
        assert rows is not None
        assert tables_of(sorted_rows(rows)) == tables_of(read_here(logs, pieces))
    assert said == []
    process.close()


@pytest.mark.parametrize("when", ["before", "meanwhile", "start", "nothing to start"])
def test_one_that_was_killed_is_told_once_and_not_asked_again(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_changes(tmp_path / "a", random.Random(2), 600, odd="1.00")
    spec = spec_of(tmp_path).write(tmp_path / "spec.json")
    said: list[str] = []
    if "start" in when:
        program = "/bin/false" if when == "start" else str(tmp_path / "gone")
        monkeypatch.setattr(sys, "executable", program)
        process = ReaderProcess(spec, said.append)
        process.begin()
        assert wait_for(lambda: not process.is_ready and said, 60)
    else:
        process = ready(spec, said)
        assert process.pid is not None
        if when == "meanwhile":
            os.kill(process.pid, signal.SIGSTOP)
            assert process.ask([])
            assert not process.waits(0.01)
        os.kill(process.pid, signal.SIGKILL)
        if when == "before":
            assert wait_for(lambda: process.waits(0.01), 60)
        if when == "meanwhile" or process.ask([]):
            assert process.answer() is None
    assert not process.is_ready
    assert not process.ask([])
    process.begin()
    assert not process.ask([])
    (told,) = said
    assert "nothing is lost" in told
    process.close()


def test_one_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_changes(tmp_path / "a", random.Random(2), 600, odd="1.00")
    spec = spec_of(tmp_path).write(tmp_path / "spec.json")
    said: list[str] = []
    process = ready(spec, said)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.1)
    assert process.ask([])
    assert process.answer() is None
    assert not process.is_ready
    assert not psutil.pid_exists(process.pid)
    assert len(said) == 1


def test_it_ends_with_who_has_started_it(tmp_path: Path) -> None:
    """However that ends: the end of the connection is all that it is told."""
    write_changes(tmp_path / "a", random.Random(2), 10, odd="1.00")
    spec = spec_of(tmp_path).write(tmp_path / "spec.json")
    code = (
        "import sys, time\nfrom mview.ingest.burst.process import ReaderProcess\n"
        "process = ReaderProcess(sys.argv[1])\nprocess.begin()\n"
        "while not process.is_ready: time.sleep(0.01)\nprint(process.pid, flush=True)\n"
        "time.sleep(600)"
    )
    command = [sys.executable, "-c", code, spec]
    with psutil.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert wait_for(lambda: not child.is_running() or child.status() == "zombie", 60)


# --- who asks it ------------------------------------------------------------------------------


class Bursts:
    """Logs with a long backlog. They may forget what they are told is published."""

    length, fails_at, halts_at = 0, -1, -1

    def __init__(self, spec: str) -> None:
        self.backlog, self.asked, self.read = self.length, list[int](), list[int]()
        LOGS.append(self)

    def begin(self) -> dict[str, Any]:
        begin = {"connections": {"a": {"p": 0}}, "watermark": -1, "pinned_ms": 0}
        return {**begin, "cuts": {}, "halts": {}}

    def finish(self) -> None:
        """There is an end anyway."""

    def advance(self, start: dict[str, Any], most: int, enough: int = 0) -> dict[str, Any]:
        at = start["connections"]["a"]["p"]
        self.asked.append(at)
        # Where a batch begins that is planned now, the one before it must be published.
        before = max((end for end in ENDS if end < at), default=0)
        assert before in (0, *PUBLISHED), (at, PUBLISHED)
        if self.fails_at == at and self.asked.count(at) == 1:
            raise AwayError("away for a moment")
        end = min(self.length, at + WORTH_READING_BESIDE + 1)
        if end not in ENDS:
            ENDS.append(end)
        self.backlog = self.length - end
        halts = {}
        if at == self.halts_at:
            halts = {str(rel("a.t")): plain(TableHalt.of(UserError("gone")))}
        return {**start, "connections": {"a": {"p": end}}, "halts": halts}

    def pieces(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        count = end["connections"]["a"]["p"] - start["connections"]["a"]["p"]
        return [SimpleNamespace(messages=count, at=start["connections"]["a"]["p"])]

    def changes(self, piece: Any, halts: Any, rejects: Any) -> Iterator[Any]:
        self.read.append(piece.at)
        return iter(())

    def goes_on(self, error: Exception) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


LOGS: list[Bursts] = []
ENDS: list[int] = []
PUBLISHED: list[int] = []


class Helping:
    """A process that reads as long as it is let; it may be gone."""

    is_gone = False

    def __init__(self, spec: str, say: Any) -> None:
        self.done = threading.Event()
        self.read: list[int] = []
        HELPING.append(self)

    def begin(self) -> None:
        """It is there."""

    def ask(self, pieces: list[Any]) -> bool:
        self.read.append(pieces[0].at)
        self.done.clear()
        threading.Timer(0.05, self.done.set).start()
        return True

    def waits(self, seconds: float) -> bool:
        return self.done.wait(seconds)

    def answer(self) -> pa.Table | None:
        assert self.done.wait(60)
        return None if self.is_gone else sorted_nothing()

    def close(self) -> None:
        """Nothing is open."""


HELPING: list[Helping] = []


def sorted_nothing() -> pa.Table:
    return STREAM_ARROW.empty_table()


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Follow bursts to their end; returns the ends of batches."""
    for noted in (LOGS, ENDS, PUBLISHED, HELPING):
        noted.clear()
    monkeypatch.setattr(live, "Changelogs", Bursts)
    monkeypatch.setattr(live, "ReaderProcess", Helping)
    monkeypatch.setattr(Bursts, "length", 6 * (WORTH_READING_BESIDE + 1))
    spec = QuerySpec(1, Config(path=tmp_path / "mview.yml", store=tmp_path), {}, {}, -1, 1, True)

    def run(takes_s: float, fails: int | None = None) -> list[int]:
        def on_batch(batch: Batch) -> None:
            threading.Event().wait(takes_s)
            if batch.number == fails:
                raise UserError("an epoch fails")
            PUBLISHED.append(batch.offsets.connections["a"]["p"])

        spark = SimpleNamespace(running=None, begin=lambda: None)
        LiveQuery(spark, spec, tmp_path, on_batch).run(lambda: False)  # type: ignore[arg-type]
        return PUBLISHED

    return run


STEP = WORTH_READING_BESIDE + 1
ALL = [n * STEP for n in range(1, 7)]


@pytest.mark.parametrize("takes_s", [0.0, 0.02, 0.2], ids=["short", "middle", "long"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_what_comes_next_is_planned_while_it_reads_once_the_epoch_is_published(
    follow: Any, monkeypatch: pytest.MonkeyPatch, takes_s: float, is_gone: bool
) -> None:
    monkeypatch.setattr(Helping, "is_gone", is_gone)
    assert follow(takes_s) == ALL
    assert HELPING[0].read == [0, *ALL[:-1]]
    assert LOGS[0].read == ([0, *ALL[:-1]] if is_gone else [])
    assert [*dict.fromkeys(LOGS[0].asked)] == [0, *ALL]


def test_an_epoch_that_fails_is_not_told_as_published(follow: Any) -> None:
    with pytest.raises(UserError, match="an epoch fails"):
        follow(0.01, fails=2)
    assert ALL[:2] == PUBLISHED


def test_what_fails_while_it_is_planned_ahead_is_planned_again(
    follow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bursts, "fails_at", ALL[2])
    assert follow(0.0) == ALL
    assert LOGS[0].asked.count(ALL[2]) == 2


def test_nothing_is_planned_behind_a_halt_that_is_not_published(
    follow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, by the plan that is read."""
    monkeypatch.setattr(Bursts, "halts_at", ALL[1])
    planned: list[int] = []
    plan = LiveQuery._plan_ahead

    def look(query: LiveQuery, logs: Any, plan_: Any, epochs: Any) -> None:
        plan(query, logs, plan_, epochs)
        if query._ahead is not None:
            planned.append(query._ahead.start["connections"]["a"]["p"])

    monkeypatch.setattr(LiveQuery, "_plan_ahead", look)
    assert follow(0.0) == ALL
    assert planned
    assert ALL[2] not in planned
