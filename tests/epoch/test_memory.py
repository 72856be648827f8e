"""A message that is too large for the budget: refused with its place, before it is decoded."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from mview_connectors.formats.unified import UnifiedFormat

from mview.changelog import ChangeEvent
from mview.clock import END_OF_TIME
from mview.config.file import load_config
from mview.connector import Message
from mview.errors import DecodeError
from mview.execute.local import returning
from mview.execute.relations import Relation
from mview.ingest.spec import BoundedFormat, open_changelog, open_format
from mview.memory import MESSAGE_PART, Memory
from mview.schema import Column, TableSchema
from tests.epoch.runners import PATIENCE, TABLE, Runner, SetClock, offset_of
from tests.relations import rel
from tests.store.mirrors import delta_of

MEMORY = 128 << 20


class Counting(UnifiedFormat):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked = 0

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        self.asked += 1
        return super().decode(message)


def line(**change: Any) -> bytes:
    return json.dumps({"table": "t", "ts": 1, **change}).encode()


def of_size(size: int) -> bytes:
    """An insert of so many bytes."""
    without = len(line(op="insert", after={"id": 1, "s": ""}))
    return line(op="insert", after={"id": 1, "s": "x" * (size - without)})


def test_shares_are_the_budget() -> None:
    """What can be held at once comes to the whole; what a look-up finds is computed otherwise."""
    total = 16 << 30
    m = Memory(total)
    held = m.tables + m.files + m.tails.limit + m.whole + m.queries + m.folded + 4 * m.batch
    assert held <= total
    assert m.found <= m.whole
    # DuckDB groups old and new rows of a message, and has room beside them.
    assert m.queries >= 4 * m.message


@pytest.mark.parametrize("topic", ["pg.shop.t/3", "log"])
def test_a_message_of_the_limit_is_taken_and_one_more_byte_refused(topic: str) -> None:
    counting = Counting()
    bounded = BoundedFormat(counting, MEMORY)
    most = MEMORY // MESSAGE_PART
    (event,) = bounded.decode(Message(topic, 41, None, of_size(most)))
    assert event.after is not None
    with pytest.raises(DecodeError) as caught:
        bounded.decode(Message(topic, 42, None, of_size(most + 1)))
    assert counting.asked == 1
    told = caught.value
    assert told.where == f"{topic}, offset 42"
    assert told.got == f"{most + 1} bytes"
    assert str(most) in str(told.allowed)
    # What it says is enough.
    needed = int(str(told.hint).split("engine.memory to ")[1].split(" ")[0])
    BoundedFormat(counting, needed).decode(Message(topic, 42, None, of_size(most + 1)))
    assert "mview drop" in str(told.hint)
    assert not list(bounded.decode(Message(topic, 43, b"{}", None)))


def test_small_budgets_take_what_brokers_take() -> None:
    BoundedFormat(Counting(), 1).decode(Message("t/0", 1, None, of_size(1 << 20)))


def test_all_that_is_read_goes_through_it(tmp_path: Path) -> None:
    """Also what is read for its time alone."""
    (tmp_path / "changes").mkdir()
    file = tmp_path / "changes" / "1.jsonl"
    file.write_bytes(line(op="heartbeat", ts=77) + b"\n" + of_size((1 << 20) + 1) + b"\n")
    (tmp_path / "mview.yml").write_text(
        yaml.safe_dump(
            {
                "store": "store",
                "connections": {"shop": {"drivername": "sqlite", "database": "shop.db"}},
                "changes": {
                    "shop": {"source": "files", "format": "unified", "path": "changes", "T": "1 s"}
                },
                "engine": {"memory": 1 << 20},
            }
        )
    )
    config = load_config(tmp_path / "mview.yml")
    log = open_changelog(config, "shop", ["t"])
    start = {"log": ["1.jsonl", 0, 0], "mark": ""}
    progress = log.advance(start, 100, 0)
    # The line says nothing of the time: whoever takes it raises the error.
    assert progress.watermark == 77
    decoder = open_format(config, "shop")
    messages = list(log.read(log.splits(start, progress.offsets)))
    assert next(iter(decoder.decode(messages[0]))).source_ms == 77 < END_OF_TIME
    with pytest.raises(DecodeError) as caught:
        decoder.decode(messages[1])
    assert caught.value.where == f"{file}, byte {len(line(op='heartbeat', ts=77)) + 1}"


def test_an_epoch_takes_few_changes_of_large_rows(tmp_path: Path) -> None:
    """A delete of a few bytes brings the row that goes into memory, whether base or tail has it."""
    schema = TableSchema(
        (Column("id", pa.int64(), nullable=False), Column("v", pa.string())), ("id",)
    )
    runner = Runner(tmp_path, SetClock()).start()
    engine = runner.engine
    engine.memory = Memory(MEMORY)
    mirror = engine.mirror(rel("shop.t"), schema)
    state = replace(mirror.create(), phase="loaded")
    relation = engine.relations[rel("shop.t")] = Relation(mirror, state)
    assert engine.most_changes() >= 50_000
    large = [random.Random(n).randbytes(50_000).hex() for n in range(8)]
    delta = delta_of([("+I", (n, v)) for n, v in enumerate(large)], schema)
    state = replace(state, changelog_version=mirror.append(1, delta))
    relation.move(state, delta, 1)
    of_tail = engine.most_changes()
    version, folded = mirror.compact(state)
    relation.move(replace(state, base_version=version, folded=folded), None, 2)
    for most in (of_tail, engine.most_changes()):
        assert MEMORY // 16 // 200_000 <= most <= MEMORY // 16 // 100_000
    # The views and their states are no tables: what is looked up in them has a bound of its own.
    engine.relations[rel("v")] = engine.relations.pop(rel("shop.t"))
    assert engine.most_changes() >= 50_000


#: What is not rows: queries that are planned, and what Python, Arrow and DuckDB keep for next time.
BESIDE = 64 << 20


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak")
def test_large_messages_and_tails_keep_the_process_within(tmp_path: Path) -> None:
    """150 messages of a megabyte; tails, old rows and new, are more than twice the budget.

    With a budget of a terabyte all of it is one epoch, and the process grows by 620 MB.
    """
    command = [sys.executable, "-m", "tests.epoch.within", str(tmp_path), str(MEMORY)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["differ"] == 0
    # By bytes, and compacted on the way: no share is passed for a whole run.
    assert told["epochs"] > 50
    assert told["compactions"] > 10
    assert max(told["live"], told["whole"]) < MEMORY + BESIDE, told


def test_a_table_comes_back_to_memory_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep reads it in its thread; the epochs go on, and what they add is there."""
    monkeypatch.setattr(returning, "_FIRST", 0.0)
    runner = Runner(tmp_path, SetClock()).start()
    executors, copied = runner.engine.executors, threading.Event()
    monkeypatch.setattr(executors, "prepare", lambda *_: copied.set())
    runner.epoch()
    assert executors.warm({}) == []
    budget = executors._lookups._memory
    executors._lookups._memory = 0
    runner.epoch()
    runner.upkeep.after_epoch()
    assert executors.rows_after(TABLE, None, ["id"]) is None
    assert executors.news() == [f"looked up on Spark, beyond memory: {TABLE}"]
    assert copied.wait(PATIENCE)
    executors._lookups._memory = budget
    news: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while not news and time.monotonic() < deadline:
        runner.epoch()
        runner.upkeep.after_epoch()
        news = executors.news()
    assert news == [f"in memory again: {TABLE}"]
    runner.epoch()
    resident = executors.rows_after(TABLE, None, ["id"])
    assert resident is not None
    ids = resident.table()["id"].to_pylist()
    assert sorted(ids) == list(range(1, offset_of(runner.engine.manifest) + 1))
    runner.upkeep.close()
    runner.stop()
