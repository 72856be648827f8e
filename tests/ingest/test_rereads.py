"""Chunks of a loaded table that are read anew while its changes are followed; without Spark."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mview.config.file import load_config
from mview.errors import CorruptionError, UserError
from mview.ingest.batches import Batch
from mview.ingest.live import LiveQuery
from mview.ingest.mending import rereads
from mview.ingest.mending.rereads import RereadLog, RereadRequest, plan_anew
from mview.ingest.spec import QuerySpec, TableSpec, open_changelog, open_database
from mview.store.quarantine import MendLog, MendRequest
from tests.relations import rel

_CONFIG = """
store: store
connections: {shop: {drivername: sqlite, database: shop.db}}
changes: {shop: {source: files, format: debezium, path: changes, T: 10ms}}
engine: {chunk_rows: 10}
"""
NOTES = rel("shop.notes")


class Following:
    """A table of 25 rows, its log, and queries that follow it to the end."""

    def __init__(self, folder: Path) -> None:
        (folder / "changes").mkdir()
        (folder / "mview.yml").write_text(_CONFIG)
        self.config, self.folder = load_config(folder / "mview.yml"), folder
        self.db = sqlite3.connect(folder / "shop.db", isolation_level=None)
        self.db.execute("create table notes(id integer primary key, body text)")
        rows = [(number, f"b{number}") for number in range(25)]
        self.db.executemany("insert into notes values (?, ?)", rows)
        self.file = folder / "changes" / "000.jsonl"
        self.file.touch()
        self.requests, self.said = RereadLog(folder / "rereads"), list[str]()
        database = open_database(self.config, "shop")
        self.schema = database.describe("notes")
        database.close()
        changelog = open_changelog(self.config, "shop", ["notes"])
        self.begin = changelog.begin()
        changelog.close()

    def send(self, op: str, row: dict[str, Any], **source: object) -> None:
        size = self.file.stat().st_size + 1
        place = {"connector": "postgresql", "table": "notes", "ts_ms": size}
        place["sequence"] = f'[null,"{size}"]'
        body = {"op": op, "before": None, "after": row, "source": {**place, **source}}
        with self.file.open("a") as out:
            out.write(json.dumps(body) + "\n")

    def run(self) -> list[Batch]:
        """What the epochs of a bounded run get."""
        table = TableSpec(NOTES, self.schema, self.folder / "base", "stage", None, rereads=True)
        tables, start = {NOTES: table}, {"shop": self.begin}
        spec = QuerySpec(1, self.config, tables, start, -1, 1, True)
        batches: list[Batch] = []
        query = LiveQuery(
            None,  # type: ignore[arg-type]  # for many changes
            spec,
            self.folder,
            batches.append,
            rereads=self.folder / "rereads",
            say=self.said.append,
        )
        query.run(lambda: False)
        return batches

    def read(self, batches: list[Batch]) -> dict[int, tuple[list[int], int]]:
        """By chunk: the ids that were read, and how many keys do not count."""
        found = {}
        for batch in batches:
            for reloaded in batch.rereads.get(NOTES, ()):
                marker, excluded = reloaded.release.marker, reloaded.release.excluded
                ids = pq.read_table(self.folder / "base" / marker.file)["id"].to_pylist()
                found[marker.chunk] = (ids, len(excluded))
        return found


def is_quiet(batches: list[Batch]) -> bool:
    return not any(batch.changes or batch.rereads for batch in batches)


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Following]:
    following = Following(tmp_path)
    yield following
    following.db.close()


def test_the_chunks_that_are_asked_for_count_once_and_the_request_goes(following):
    plan = plan_anew(following.config, NOTES, following.schema)
    following.requests.ask(RereadRequest(NOTES, plan, (0, 2)))
    following.db.execute("insert into notes values (99, 'beyond the largest key at planning')")
    batches = following.run()
    assert following.read(batches) == {0: ([*range(10)], 0), 2: ([20, 21, 22, 23, 24, 99], 0)}
    assert not following.requests.waiting()
    assert following.said == [
        "shop.notes: 2 chunks are read anew, what differs is corrected",
        "shop.notes is as its database has it again",
    ]
    assert is_quiet(following.run())


def test_a_request_that_the_run_takes_away_meanwhile_waits_no_more(following, monkeypatch):
    gone, stays = (following.requests.ask(RereadRequest(NOTES)) for _ in range(2))
    files = type(following.requests).files

    def late(log):
        listed = files(log)
        gone.unlink(missing_ok=True)
        return listed

    monkeypatch.setattr(type(following.requests), "files", late)
    assert [*following.requests.waiting()] == [stays]
    stays.write_bytes(b"half")
    with pytest.raises(CorruptionError):
        following.requests.waiting()


def test_rows_of_a_snapshot_are_passed_over_and_the_table_is_read_anew(following):
    following.send("c", {"id": 3, "body": "x"})
    for number in range(5):
        following.send("r", {"id": number, "body": "x"}, snapshot="true")
    batches = following.run()
    changes = [part for batch in batches for part in batch.changes.get(NOTES, [])]
    assert [part["__op"].to_pylist() for part in changes] == [["c"]]
    # A chunk that is read after the log's end could be newer than the cut: the next run has it.
    assert following.read(batches) == {}
    assert len(following.requests.waiting()) == 1
    following.begin = batches[-1].offsets.connections["shop"]
    assert sorted(following.read(following.run())) == [0, 1, 2]
    assert not following.requests.waiting()
    assert sum("the connector reads shop.notes anew" in text for text in following.said) == 1


def test_a_request_that_cannot_be_done_ends_one_run_only(following):
    request = following.requests.ask(RereadRequest(NOTES))
    following.db.execute("alter table notes rename column body to text")
    with pytest.raises(UserError, match=r"shop\.notes") as raised:
        following.run()
    assert not following.requests.waiting()
    # Who asked is told, however long the run takes to end.
    assert following.requests.why_refused(request) == raised.value.what
    assert is_quiet(following.run())


def test_a_table_that_is_not_followed_keeps_its_request(following):
    following.requests.ask(RereadRequest(rel("shop.others")))
    assert is_quiet(following.run())
    assert len(following.requests.waiting()) == 1


def test_what_is_in_quarantine_is_right_by_the_clock_of_the_run(following):
    """Whoever asked may have another clock, and quarantine is dated by the run's."""
    asked = following.requests.ask(RereadRequest(NOTES))
    later = time.time_ns() + 3_600_000_000_000
    asked.rename(asked.with_name(f"{later:020d}-ahead.json"))
    before_ms = time.time_ns() // 1_000_000
    (mend,) = (mend for batch in following.run() for mend in batch.mends)
    assert (mend.table, mend.action) == (NOTES, "reread")
    assert before_ms <= mend.before_ms <= time.time_ns() // 1_000_000


def test_a_chunk_is_read_again_where_changes_are_taken_out_of_quarantine(following, monkeypatch):
    """They may be newer than what was read, and no batch has them: their rows would go back."""
    asked: list[MendRequest] = []

    def waiting(log: MendLog, tables: object) -> dict[Path, MendRequest]:
        """The request comes when the chunk was read, and before it counts."""
        if not asked and begun:
            begun[0].future.result(60)
            asked.append(MendRequest(NOTES, "retry", ("1.1",)))
            following.db.execute("update notes set body = 'retried' where id = 3")
            return {following.folder / "asked.json": asked[0]}
        return {}

    read: list[str] = []
    begun: list[rereads._Reading] = []
    monkeypatch.setattr(MendLog, "of", waiting)
    begin = rereads.Rereads._read
    monkeypatch.setattr(
        rereads.Rereads,
        "_read",
        lambda self, *some: (begin(self, *some), begun.append(self._readings[-1])),
    )
    take = rereads.Rereads._take
    monkeypatch.setattr(
        rereads.Rereads,
        "_take",
        lambda self, some: (take(self, some), read.append(str(some.number))),
    )
    plan = plan_anew(following.config, NOTES, following.schema)
    following.requests.ask(RereadRequest(NOTES, plan, (0,)))
    batches = following.run()
    assert read == ["0", "0"]
    (marker,) = (r.release.marker for b in batches for r in b.rereads.get(NOTES, ()))
    rows = pq.read_table(following.folder / "base" / marker.file).to_pylist()
    assert {row["id"]: row["body"] for row in rows}[3] == "retried"
