"""Chunks of a loaded table that are read anew while its changes are followed; without Spark."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mview.config.file import load_config
from mview.errors import AwayError, CorruptionError, MviewError
from mview.ingest.batches import Batch
from mview.ingest.live import LiveQuery
from mview.ingest.mending import rereads
from mview.ingest.mending.rereads import RereadLog, RereadRequest, plan_anew
from mview.ingest.spec import QuerySpec, TableSpec, open_changelog, open_database
from mview.snapshot import Marker
from mview.store.quarantine import MendLog, MendRequest
from tests.relations import rel

_CONFIG = """
store: store
connections: {shop: {drivername: sqlite, database: shop.db}}
changes: {shop: {source: files, format: debezium, path: changes, T: 10ms}}
engine: {chunk_rows: 10}
"""
NOTES = rel("shop.notes")


class Lazy:
    """A Spark that nobody starts."""

    running = None

    def begin(self) -> None:
        """It is not needed."""

    settle = begin
    slots = 1


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
        #: What was in a chunk's file when the epoch got it.
        self.rows: dict[str, list[dict[str, Any]]] = {}
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
        batches: list[Batch] = []
        self.follow(lambda: False, batches, once=True)
        return batches

    def follow(
        self, until: Callable[[], bool], batches: list[Batch], *, once: bool = False
    ) -> None:
        """Run until `until()` is true; the epochs get `batches`."""
        table = TableSpec(NOTES, self.schema, self.folder / "base", "stage", None, rereads=True)
        tables, start = {NOTES: table}, {"shop": self.begin}
        spec = QuerySpec(1, self.config, tables, start, -1, 1, once)

        def on_batch(batch: Batch) -> None:
            for reloaded in batch.rereads.get(NOTES, ()):
                file = reloaded.release.marker.file
                self.rows[file] = pq.read_table(self.folder / "base" / file).to_pylist()
            batches.append(batch)

        query = LiveQuery(
            Lazy(),  # type: ignore[arg-type]  # for many changes
            spec,
            self.folder,
            on_batch,
            rereads=self.folder / "rereads",
            say=self.said.append,
        )
        query.run(until)

    def read(self, batches: list[Batch]) -> dict[int, tuple[list[int], int]]:
        """By chunk: the ids that were read, and how many keys do not count."""
        found = {}
        for batch in batches:
            for reloaded in batch.rereads.get(NOTES, ()):
                marker, excluded = reloaded.release.marker, reloaded.release.excluded
                ids = [row["id"] for row in self.rows[marker.file]]
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
    assert not [*(following.folder / "base").rglob("*.parquet")], "of no use any more"
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


def test_a_request_that_cannot_be_done_is_refused_and_the_run_goes_on(following):
    request = following.requests.ask(RereadRequest(NOTES))
    following.db.execute("alter table notes rename column body to text")
    following.send("c", {"id": 3, "body": "x"})
    batches = following.run()
    assert [len(batch.changes.get(NOTES, [])) for batch in batches if batch.changes] == [1]
    assert not any(batch.rereads or batch.halts for batch in batches)
    assert not following.requests.waiting()
    why = following.requests.why_refused(request)
    assert "body" in why.what
    assert "shop.notes" in why.what
    assert why.hint.endswith("once it can be read: mview backfill shop.notes")
    assert sum(why.what in text for text in following.said) == 1
    following.begin = batches[-1].offsets.connections["shop"]
    assert is_quiet(following.run())
    assert following.requests.why_refused(request) == why
    # As soon as it can be read, it is right, and nothing is told of it any more.
    following.db.execute("alter table notes rename column text to body")
    following.requests.ask(RereadRequest(NOTES))
    assert sorted(following.read(following.run())) == [0, 1, 2]
    assert following.requests.refused() == []


def test_a_table_that_the_run_does_not_follow_is_refused_at_once(following):
    request = following.requests.ask(RereadRequest(rel("other.notes")))
    assert is_quiet(following.run())
    why = following.requests.why_refused(request)
    assert why.what == "changes of other.notes are not followed, so it cannot be read anew"
    assert "changes.other" in why.hint


def test_chunks_that_count_stay_where_a_later_one_cannot_be_read(following):
    """Each is a correction by itself; that it is not all, who asked is told."""
    request = following.requests.ask(RereadRequest(NOTES))
    following.db.execute(
        "insert into notes values (12, x'ff') on conflict do update set body=x'ff'"
    )
    batches = following.run()
    counted = following.read(batches)
    assert 1 not in counted
    why = following.requests.why_refused(request)
    assert why.where == "shop.notes.body, row with id=12"
    assert sum(f"{why.what} ({why.where})" in text for text in following.said) == 1
    # Whatever of the table is in quarantine may be of rows that were not read.
    assert not any(batch.mends for batch in [*batches, *following.run()])


@pytest.mark.parametrize("asked", [False, True])
def test_a_table_halts_whose_snapshot_was_passed_over_when_it_cannot_be_read(following, asked):
    """Its rows were in no other message: which of ours are wrong then, nobody knows."""
    people = following.requests.ask(RereadRequest(NOTES)) if asked else None
    following.send("r", {"id": 1, "body": "x"}, snapshot="true")
    following.db.execute("alter table notes rename column body to text")
    (batch, *rest) = [batch for batch in following.run() if batch.changes or batch.halts]
    following.begin = batch.offsets.connections["shop"]
    halts = [b.halts[NOTES] for b in [batch, *rest, *following.run()] if NOTES in b.halts]
    assert len(halts) == 1
    assert "as a snapshot of its connector asks" in halts[0].what
    assert "body" in halts[0].what
    assert not following.requests.waiting()
    assert len(following.requests.refused()) == 1 + asked
    if people is not None:
        assert following.requests.why_refused(people)


def test_a_halt_that_is_not_published_is_told_again_by_the_next_run(following, monkeypatch):
    following.requests.owe(NOTES)
    following.db.execute("alter table notes rename column body to text")

    def killed(self: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rereads.Rereads, "published", killed)
        with pytest.raises(KeyboardInterrupt):
            following.run()
    assert len(following.requests.waiting()) == 1
    assert [b.halts.keys() for b in following.run() if b.halts] == [{NOTES}]
    assert not following.requests.waiting()


def test_a_database_that_is_away_is_asked_again_while_changes_go_on(following, monkeypatch):
    away: list[str] = []

    def lost(*_: object, **__: object) -> Marker:
        away.append("once")
        if len(away) > 4:
            return read(*_, **__)
        raise AwayError("the database does not answer")

    read = rereads.read_chunk
    monkeypatch.setattr(rereads, "read_chunk", lost)
    monkeypatch.setattr(rereads, "_AWAY_S", 0.05)
    following.requests.ask(
        RereadRequest(NOTES, plan_anew(following.config, NOTES, following.schema), (0,))
    )
    batches: list[Batch] = []

    def until() -> bool:
        if away:
            now = int(time.time() * 1000)
            following.send("c", {"id": 3, "body": f"x{now}"}, ts_ms=now)
        return not following.requests.waiting()

    following.follow(until, batches)
    assert [*following.read(batches)] == [0]
    first = next(n for n, batch in enumerate(batches) if batch.changes)
    assert first < next(n for n, batch in enumerate(batches) if batch.rereads)
    assert sum("does not answer" in text for text in following.said) == 1
    assert following.said[-1] == "shop.notes is as its database has it again"


@pytest.mark.parametrize("planned", [True, False])
def test_a_bounded_run_waits_for_it_within_its_bounds(following, monkeypatch, planned):
    def lost(*_: object, **__: object) -> Marker:
        raise AwayError("the database does not answer")

    monkeypatch.setattr(rereads, "read_chunk" if planned else "plan_anew", lost)
    following.requests.ask(RereadRequest(NOTES))
    log, mends = MendLog(following.folder / "mends"), list[MendRequest]()
    batches: list[Batch] = []

    def until() -> bool:
        if not log.waiting() and not mends:
            mends.append(MendRequest(NOTES, "discard", ("1.1",)))
            log.ask(mends[0])
        return False

    with pytest.raises(AwayError):
        following.follow(until, batches, once=True)
    assert len(following.requests.waiting()) == 1
    # What is asked of the quarantine needs no database.
    assert [mend for batch in batches for mend in batch.mends] == mends


@pytest.mark.parametrize("error", [OSError(28, "No space left"), CorruptionError("of the store")])
def test_what_is_of_the_store_ends_the_run_and_the_request_stands(following, monkeypatch, error):
    def fails(*_: object, **__: object) -> Marker:
        raise error

    monkeypatch.setattr(rereads, "read_chunk", fails)
    following.requests.ask(RereadRequest(NOTES))
    with pytest.raises(MviewError):
        following.run()
    assert len(following.requests.waiting()) == 1


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
    assert {row["id"]: row["body"] for row in following.rows[marker.file]}[3] == "retried"
