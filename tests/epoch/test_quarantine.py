"""What epochs put into quarantine and take out of it, from messages to manifests; without Spark."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mview_connectors.formats.debezium import DebeziumFormat

from mview.admin.mending.quarantine import mend, quarantined
from mview.changelog import encode_position
from mview.config.file import load_config
from mview.connector import Message, TableHalt
from mview.epoch.engine import Engine
from mview.epoch.quarantine import overtaken, sweep
from mview.epoch.report import EpochReport
from mview.epoch.steps import run_epoch
from mview.epoch.upkeep import Upkeep
from mview.errors import CorruptionError, FencedError, UserError
from mview.files import durable
from mview.files.jsonfile import read_checked
from mview.ingest.batches import Batch, BatchOffsets, Reloaded
from mview.ingest.decode.split import decode_split
from mview.ingest.mending.reject import Reject, Rejects
from mview.ingest.spec import TableSpec, open_format
from mview.merge.rules import ChunkState, LoadingTable, Release, on_changes
from mview.relation import RelationId
from mview.rows.key_sets import KeySet
from mview.schema import Column, TableSchema, parse_type
from mview.snapshot import ChunkPlan, Marker
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease, fenced
from mview.store.manifest import FIRST_EPOCH, Manifest
from mview.store.mirror import Mirror
from mview.store.quarantine import MendLog, MendRequest, Quarantine, Quarantined
from tests.epoch.runners import TTL_MS, SetClock
from tests.relations import rel
from tests.seeds import seeds

TABLE = rel("shop.t")
SCHEMA = TableSchema(
    (
        Column("id", parse_type("bigint"), nullable=False),
        Column("n", parse_type("int")),
        Column("big", parse_type("string")),
    ),
    ("id",),
)
SPEC = TableSpec(TABLE, SCHEMA, Path(), "", None, rereads=True)

#: A cell that an update leaves out, as Debezium sends those of PostgreSQL's TOAST.
UNSENT = "__debezium_unavailable_value"

_CONFIG = """
store: store
connections: {shop: {drivername: sqlite, database: none.db}}
changes:
  shop: {source: files, format: debezium, path: changes, T: 1s, on_error: quarantine}
"""


class Log:
    """A table of a store, its engine, and its log: `five` is a number that nobody can read yet."""

    def __init__(self, folder: Path, clock: SetClock) -> None:
        self.clock, self.sent, self.read = clock, 0, 0
        file = folder / "mview.yml"
        if not file.exists():
            file.write_text(_CONFIG)
        self.config = load_config(file)
        self.store = Store(self.config.store)

    def seed(self) -> Log:
        state = replace(Mirror(self.store.mirror(TABLE), SCHEMA).create(), phase="loaded")
        manifest = Manifest(
            FIRST_EPOCH, 0, self.clock.now(), 1, -1, offsets={"shop": {}}, tables={TABLE: state}
        )
        ManifestLog(self.store.manifests).publish(manifest)
        return self

    @contextmanager
    def opened(self) -> Iterator[Log]:
        with Lease(self.store.lease, self.clock, TTL_MS) as lease:
            spark = SimpleNamespace(slots=1)
            self.engine = Engine(self.config, cast(Any, spark), lease, self.clock)
            self.engine.open_relations()
            self.upkeep = Upkeep(self.engine)
            try:
                yield self
            finally:
                self.upkeep.close()
                self.engine.executors.close()

    def message(self, op: str, at: int | None = None, file: str = "log", **row: Any) -> Message:
        """A message of a change, the next one of the log; `at`: its position, where it is older."""
        self.sent += 1
        position = self.sent if at is None else at
        source = {"connector": "postgresql", "table": "t", "ts_ms": position}
        source["sequence"] = f'[null,"{position}"]'
        before, after = (row, None) if op == "d" else (None, {"n": None, "big": None} | row)
        body = {"op": op, "before": before, "after": after if op != "t" else None, "source": source}
        return Message(file, self.sent, None, json.dumps(body).encode())

    def epoch(
        self,
        *messages: Message,
        mends: Sequence[MendRequest] = (),
        rejected: Sequence[Reject] = (),
        anew: Sequence[Reloaded] = (),
    ) -> EpochReport:
        halts: dict[RelationId, TableHalt] = {}
        rejects = Rejects(lambda _: [SPEC], taken=[*rejected])
        decoder = open_format(self.config, "shop")
        rows = decode_split(messages, decoder, {"t": SPEC}, halts=halts, rejects=rejects)
        manifest = self.engine.manifest
        offsets = BatchOffsets({"shop": {"log": self.sent + 1}}, -1, {})
        changes = {TABLE: [row.changes for row in rows]} if rows else {}
        number = (manifest.generation, manifest.batch + 1)
        batch = Batch(
            changes,
            {},
            offsets,
            *number,
            {TABLE: anew} if anew else {},
            halts,
            rejects.taken,
            mends,
        )
        self.clock.ms += 1_000
        return run_epoch(self.engine, self.upkeep, batch, {})

    def mend(self, action: Any, *ids: str, before_ms: int = 0) -> EpochReport:
        return self.epoch(mends=[MendRequest(TABLE, action, ids, before_ms)])

    def chunk(self, rows: dict[int, tuple[int, str]], state: ChunkState) -> Reloaded:
        """All rows of the table, as they were read anew."""
        self.read += 1
        told = [{"id": id_, "n": n, "big": big} for id_, (n, big) in rows.items()]
        file = self.engine.relations[TABLE].mirror.staged(f"anew-{self.read}.parquet")
        pq.write_table(pa.Table.from_pylist(told, SCHEMA.arrow), file)
        marker = Marker(str(TABLE), 0, file.name, len(rows), file.stat().st_size, "", 1)
        return Reloaded(ChunkPlan(str(TABLE), (), (), None, 0), Release(marker, state.seen))

    @property
    def files(self) -> Quarantine:
        return Quarantine(self.store.quarantined(TABLE))

    @property
    def aside(self) -> list[Quarantined]:
        return self.files.read(self.engine.manifest.tables[TABLE].quarantine)

    @property
    def rows(self) -> dict[int, tuple[int | None, str | None]]:
        kept = Mirror(self.store.mirror(TABLE), SCHEMA).scan(self.engine.manifest.tables[TABLE])
        return {row["id"]: (row["n"], row["big"]) for row in kept.to_pylist()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    # Processes are stopped here, not the power: what is written is there without being forced.
    monkeypatch.setattr(durable, "force", lambda path: None)
    return SetClock()


@pytest.fixture
def log(tmp_path: Path, clock: SetClock) -> Iterator[Log]:
    with Log(tmp_path, clock).seed().opened() as log:
        yield log


@pytest.fixture
def learn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the format read `five`."""
    convert = DebeziumFormat.convert

    def lenient(self: Any, values: Sequence[Any], column: Column) -> Any:
        return convert(self, [5 if value == "five" else value for value in values], column)

    return lambda: monkeypatch.setattr(DebeziumFormat, "convert", lenient)


def test_it_comes_back_by_a_retry(log: Log, learn: Any) -> None:
    log.epoch(log.message("c", id=1, n="five"), log.message("c", id=2, n=2))
    assert log.rows == {2: (2, None)}
    (change,) = log.aside
    log.mend("retry", change.id)
    assert [c.tried_ms for c in log.aside] == [log.clock.ms]
    learn()
    log.mend("retry", change.id)
    assert (log.aside, log.rows) == ([], {1: (5, None), 2: (2, None)})


# --- who wakes late ------------------------------------------------------------------------------


def test_a_runner_that_was_paused_deletes_nothing_of_its_successor(
    tmp_path: Path, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Quarantine.read
    with Log(tmp_path, clock).seed().opened() as log:
        log.epoch(log.message("c", id=1, n="five"))
        state = log.engine.manifest.tables[TABLE].quarantine

        def paused(self: Quarantine, named: Any) -> list[Quarantined]:
            """Another runner takes over meanwhile, and puts something aside."""
            monkeypatch.setattr(Quarantine, "read", read)
            clock.ms += TTL_MS + 1
            later = Log(tmp_path, clock)
            later.sent = 10
            with later.opened():
                later.epoch(later.message("c", id=2, n="five"))
            aside = self._folder / f"_{'0' * 32}{durable.ASIDE}"
            aside.touch()  # it is at the next one
            return read(self, named)

        monkeypatch.setattr(Quarantine, "read", paused)
        with pytest.raises(FencedError), fenced(log.engine.lease):
            sweep(log.engine, [TABLE])
        assert log.engine.manifest.tables[TABLE].quarantine == state
        newest = ManifestLog(log.store.manifests).latest()
        assert newest is not None
        changes = log.files.read(newest.tables[TABLE].quarantine)
        assert [c.rows.to_pylist() for c in changes if c.rows] == [[{"id": 1}], [{"id": 2}]]
        assert [log.files.message(change)["offset"] for change in changes] == [1, 11]
        assert [*log.store.quarantined(TABLE).glob(f"_*{durable.ASIDE}")]


def test_the_list_of_the_epoch_before_stays(log: Log) -> None:
    """Should the newest manifest be damaged, the store goes on from the one before."""
    for number in range(1, 4):
        log.epoch(log.message("c", id=number, n="five"))
    epochs = ManifestLog(log.store.manifests)
    newest = log.engine.manifest.epoch
    for epoch, ids in ((newest, [1, 2, 3]), (newest - 1, [1, 2])):
        changes = log.files.read(epochs.read(epoch).tables[TABLE].quarantine)
        assert [c.rows["id"].to_pylist() for c in changes if c.rows] == [[n] for n in ids]
        assert all(log.files.message(change) for change in changes)
    # As an older version has left it.
    before = epochs.read(newest - 1).tables[TABLE].quarantine
    assert before is not None
    (log.store.quarantined(TABLE) / before.list).unlink()
    sweep(log.engine, [TABLE])
    assert len(log.aside) == 3
    log.epoch(log.message("c", id=4, n="five"))
    assert len([*log.store.quarantined(TABLE).glob("*.list.json")]) == 2
    log.mend("discard", *(change.id for change in log.aside))
    assert log.aside == []
    assert len([*log.store.quarantined(TABLE).glob("*.list.json")]) == 1
    log.epoch(log.message("c", id=9, n=9))
    assert not [*log.store.quarantined(TABLE).iterdir()]


# --- rows that are read anew ---------------------------------------------------------------------


def test_what_stays_of_a_row_that_was_taken_again_waits_for_the_next_backfill(
    log: Log, learn: Any
) -> None:
    """The backfill may have read the row before: then the retry has put it back."""
    log.epoch(log.message("c", id=1, n="five"), log.message("c", id=2, n="five"))
    log.epoch(log.message("u", id=1, n="six"), log.message("u", id=3, n="six"))
    first, other, second, apart = (change.id for change in log.aside)
    begun = log.clock.ms + 500  # the backfill
    learn()
    log.mend("retry", first)
    assert (log.rows, [c.id for c in log.aside]) == ({1: (5, None)}, [other, second, apart])
    log.mend("reread", before_ms=begun)
    assert [change.id for change in log.aside] == [second]
    log.mend("reread", before_ms=log.clock.ms + 1)
    assert log.aside == []


@pytest.mark.parametrize("before", ["nothing", "an update"])
def test_an_update_that_leaves_cells_out_holds_back_what_is_read_anew(
    log: Log, before: str
) -> None:
    """Its row does not count in the chunk that is read at that time."""
    log.epoch(log.message("c", id=1, n=1, big="x"), log.message("c", id=2, n=2, big="y"))
    log.epoch(log.message("u", id=1, n="five", big="new"))
    if before == "an update":
        log.epoch(log.message("u", id=1, n=3, big=UNSENT))
    begun = log.clock.ms + 500
    log.epoch(log.message("u", id=2, n=3, big=UNSENT), log.message("c", id=3, n=3))
    log.mend("reread", before_ms=begun)
    assert log.aside == []
    log.epoch(log.message("u", id=1, n="five", big="new"))
    if before == "an update":
        log.epoch(log.message("u", id=1, n=4, big=UNSENT))
    begun = log.clock.ms + 500
    log.epoch(log.message("u", id=1, n=6, big=UNSENT))
    log.mend("reread", before_ms=begun)
    assert [change.overtaken for change in log.aside] == [("partly",)]
    log.mend("reread", before_ms=log.clock.ms + 1)
    assert log.aside == []


def test_a_change_that_is_sent_again_holds_back_what_is_read_anew(log: Log) -> None:
    log.epoch(log.message("c", id=1, n=1), log.message("u", id=1, n="five"))
    begun = log.clock.ms + 500
    log.epoch(log.message("c", at=1, id=1, n=1))
    log.mend("reread", before_ms=begun)
    assert [change.overtaken for change in log.aside] == [("no",)]
    # A newer change that tells the whole row is right by itself.
    log.epoch(log.message("u", id=1, n=7))
    log.mend("reread", before_ms=log.clock.ms)
    assert log.aside == []


def test_with_an_unknown_key_any_update_that_leaves_cells_out_holds_it_back(log: Log) -> None:
    torn = log.message("u", id=1, n=5)
    log.epoch(log.message("c", id=1, n=1, big="x"), torn._replace(value=(torn.value or b"")[:-9]))
    begun = log.clock.ms + 500
    log.epoch(log.message("u", id=1, n=2, big="whole"))
    assert log.aside[0].needed_ms < begun
    log.epoch(log.message("u", id=1, n=2, big=UNSENT))
    assert log.aside[0].at_ms < begun < log.aside[0].needed_ms
    log.mend("reread", before_ms=begun)
    assert len(log.aside) == 1


# --- what is in no row any more -------------------------------------------------------------------


def test_a_late_change_from_before_a_truncate_is_not_put_aside(log: Log) -> None:
    log.epoch(log.message("c", id=1, n=1), log.message("c", file="other", id=2, n="five"))
    log.epoch(log.message("t"))
    assert [change.overtaken for change in log.aside] == [("wholly",)]
    log.mend("discard", log.aside[0].id)
    log.epoch(log.message("c", at=2, file="third", id=3, n="five"))
    assert log.aside == []
    log.epoch(log.message("c", id=4, n="five"))
    assert [c.rows.to_pylist() for c in log.aside if c.rows] == [[{"id": 4}]]


def test_messages_that_are_damaged_are_told_and_the_run_goes_on(log: Log, learn: Any) -> None:
    log.epoch(log.message("c", id=1, n="five"))
    log.epoch(log.message("c", id=2, n="five"))
    learn()
    damaged, sound = log.aside
    (log.store.quarantined(TABLE) / damaged.messages).write_bytes(b"torn")
    report = log.mend("retry", damaged.id, sound.id)
    assert "cannot be read" in report.quarantine[0]
    assert log.rows == {2: (5, None)}
    (left,) = log.aside
    assert (left.id, left.why.what) == (damaged.id, "a message in quarantine cannot be read")
    assert "`mview backfill`" in left.why.hint
    log.mend("discard", damaged.id)
    assert log.aside == []


def test_a_list_that_is_damaged_halts_its_table_alone(tmp_path: Path, clock: SetClock) -> None:
    """Nobody knows any more which rows are wrong: it is loaded anew, and the run goes on."""
    with Log(tmp_path, clock).seed().opened() as log:
        log.epoch(log.message("c", id=1, n="five"))
        state = log.engine.manifest.tables[TABLE].quarantine
        assert state is not None
    file = log.store.quarantined(TABLE) / state.list
    file.write_bytes(file.read_bytes().replace(b"five", b"six "))
    with pytest.raises(CorruptionError, match=r"mview drop"):
        quarantined(log.config)
    with Log(tmp_path, clock).opened() as later:
        later.sent = 10
        report = later.epoch(later.message("c", id=2, n=2))
        halt = report.tables[TABLE]
        assert halt.what == "the list of changes in quarantine cannot be read"
        assert (halt.where, halt.hint[:9]) == (str(file), "run again")
        assert later.engine.manifest.tables[TABLE].halted
        assert later.engine.manifest.offsets == {"shop": {"log": 12}}, "it was published"
        later.epoch(later.message("c", id=3, n=3))


def test_what_builds_on_another_one_in_quarantine_waits_for_it(log: Log, learn: Any) -> None:
    log.epoch(log.message("c", id=1, n="six", big="x"), log.message("c", id=2, n="six", big="x"))
    log.epoch(log.message("u", id=1, n="five", big=UNSENT), log.message("c", id=3, n="five"))
    learn()
    report = log.mend("retry", *(change.id for change in log.aside))
    assert [text.partition(": change ")[2][:22] for text in report.quarantine] == [
        "2.1 stays in quarantin",
        "2.2 stays in quarantin",
        "3.1 stays in quarantin",
        "3.2 is taken out of qu",
    ]
    assert "this one builds on it" in log.aside[2].why.what
    assert log.rows == {3: (5, None)}


def test_a_retry_of_all_takes_about_as_long_as_its_changes(
    log: Log, learn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the messages of an epoch once, and looks at what is of the same rows only."""
    log.epoch(*(log.message("c", id=n % 20, n="five") for n in range(40)))
    reads, looked_at = [], []
    monkeypatch.setattr(
        "mview.store.quarantine.read_checked",
        lambda file, *more: reads.append(file.name) or read_checked(file, *more),
    )
    monkeypatch.setattr(
        "mview.epoch.quarantine.overtaken",
        lambda changes, *more: looked_at.append(len(changes)) or overtaken(changes, *more),
    )
    learn()
    log.mend("retry", *(change.id for change in log.aside))
    assert len(log.rows) == 20
    # The list for this test alone, as the engine has it; and all messages at once.
    assert [name.split(".")[1] for name in reads] == ["list", "messages"]
    assert sum(looked_at) <= 40 + 20


def test_a_block_is_decoded_once_however_many_of_its_changes_are_taken_again(
    log: Log, learn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database's own log has many changes in a message."""
    decode, decoded = DebeziumFormat.decode, []

    def lines(self: Any, message: Message) -> list[Any]:
        decoded.append(message.offset)
        parts = [message._replace(value=line) for line in (message.value or b"").split(b"\n")]
        return [event for part in parts for event in decode(self, part)]

    monkeypatch.setattr(DebeziumFormat, "decode", lines)
    for first in (1, 11):
        changes = [log.message("c", id=n, n="five") for n in range(first, first + 10)]
        log.epoch(changes[-1]._replace(value=b"\n".join(m.value or b"" for m in changes)))
    assert len(log.aside) == 20
    learn()
    decoded.clear()
    log.mend("retry", *(change.id for change in log.aside))
    assert log.rows == dict.fromkeys(range(1, 21), (5, None))
    assert decoded == [10, 20]


# --- how much there may be ------------------------------------------------------------------------


def test_a_message_of_many_changes_is_kept_once(log: Log) -> None:
    """A database's own log has blocks of changes; each of them is one in quarantine."""
    block = Message("log", 1, None, b"x" * 10_000)
    why = TableHalt("no such value")
    changes = [Reject(TABLE, block, why, n, encode_position((n + 1,))) for n in range(100)]
    log.epoch(rejected=changes)
    assert [(change.bytes, change.number) for change in log.aside] == [(10_000, 0)] * 100
    state = log.engine.manifest.tables[TABLE].quarantine
    assert state is not None
    assert (state.changes, state.bytes) == (100, 10_000)
    messages = log.store.quarantined(TABLE) / log.aside[0].messages
    assert messages.stat().st_size < 20_000


def test_a_table_halts_where_its_quarantine_is_full(log: Log) -> None:
    why = TableHalt("no such value")
    blocks = [Message("log", n, None, b"x" * (5 << 20)) for n in range(1, 5)]
    changes = [Reject(TABLE, m, why, 0, encode_position((m.offset,))) for m in blocks]
    report = log.epoch(rejected=changes[:3])
    assert (report.tables, len(log.aside)) == ({}, 3)
    report = log.epoch(rejected=changes[3:])
    assert "the quarantine of connection shop is full" in report.tables[TABLE].what
    assert "4 changes of 20,971,520 bytes" in report.tables[TABLE].got


# --- what is asked for ----------------------------------------------------------------------------


def test_a_row_of_a_snapshot_is_taken_again(log: Log, learn: Any) -> None:
    """The connector reads the table anew, which is followed: then the run does so, too."""
    log.epoch(log.message("r", id=1, n="five"))
    assert [change.position for change in log.aside] == [""]
    learn()
    log.mend("retry", log.aside[0].id)
    assert (log.aside, log.rows) == ([], {1: (5, None)})


def test_messages_are_listed_while_the_run_deletes_what_it_has_taken(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        log.epoch(log.message("c", id=number, n="five"))
    taken, read = log.aside[1], Quarantine.message

    def meanwhile(self: Quarantine, change: Quarantined) -> dict[str, Any]:
        if change.id == taken.id:
            monkeypatch.setattr(Quarantine, "message", read)
            log.mend("discard", taken.id)
            log.epoch(log.message("c", id=9, n=9))  # the store might have gone back until then
            assert not (log.store.quarantined(TABLE) / taken.messages).exists()
        return read(self, change)

    monkeypatch.setattr(Quarantine, "message", meanwhile)
    told = quarantined(log.config, with_messages=True)
    assert [json.loads(change.message or "")["after"]["id"] for change in told] == [0, 2]


def test_all_are_discarded_only_where_nothing_builds_on_them(log: Log) -> None:
    log.epoch(log.message("c", id=1, n="five", big="x"), log.message("c", id=2, n="five"))
    log.epoch(log.message("u", id=1, n=6, big=UNSENT))
    first, second = (change.id for change in log.aside)
    with pytest.raises(UserError, match=r"build on changes in quarantine") as caught:
        mend(log.config, "discard", str(TABLE), [], print, wait=False)
    assert caught.value.got == first
    assert "mview backfill shop.t" in str(caught.value)
    for ids in ([second], [first, second]):
        answers = mend(log.config, "discard", str(TABLE), ids, print, wait=False)
        assert [answer.state for answer in answers] == ["asked"] * len(ids)


@pytest.mark.parametrize("how", ["halted", "dropped", "retried"])
def test_a_request_of_a_table_that_is_loaded_anew_is_not_told_as_taken(
    log: Log, learn: Any, how: str
) -> None:
    log.epoch(log.message("c", id=1, n="five"))
    (change,) = log.aside
    learn()

    def meanwhile(_: str) -> None:
        engine, requests = log.engine, MendLog(log.store.mends)
        if how == "retried":
            log.epoch(mends=[*requests.waiting().values()])
        else:
            state = engine.manifest.tables[TABLE]
            after = {TABLE: replace(state, halted="no such column")} if how == "halted" else {}
            anew = {TABLE: replace(state, quarantine=None)}
            for number, tables in enumerate((after, anew), engine.manifest.generation + 1):
                engine.commit(engine.next_manifest(generation=number, tables=tables), {})
        assert requests.of([]) == {}

    (answer,) = mend(log.config, "retry", str(TABLE), [change.id], meanwhile)
    if how == "retried":
        assert (answer.state, answer.why) == ("taken", "")
    else:
        assert answer.state == "discarded"
        assert "its table has halted" in answer.why


@pytest.mark.parametrize("when", ["before", "with", "after", "another row", "half"])
def test_it_is_told_whether_a_change_that_is_taken_again_was_overtaken(
    log: Log, learn: Any, when: str
) -> None:
    log.epoch(log.message("c", id=1, n="five"))
    newer = log.message("u", id=2 if when == "another row" else 1, n=6)
    if when == "half":
        newer = log.message("u", id=1, n=6, big=UNSENT)
    if when == "before":
        log.epoch(newer)
    (change,) = log.aside
    learn()

    def meanwhile(_: str) -> None:
        messages = [] if when in ("before", "after") else [newer]
        log.epoch(*messages, mends=[*MendLog(log.store.mends).of([TABLE]).values()])
        if when == "after":
            log.epoch(newer)
        MendLog(log.store.mends).of([])

    (answer,) = mend(log.config, "retry", str(TABLE), [change.id], meanwhile)
    expected = {"before": "overtaken", "with": "overtaken", "half": "stays"}
    assert answer.state == expected.get(when, "taken")
    assert ("had no effect" in answer.why) == (answer.state == "overtaken")
    assert not [*log.store.mends.iterdir()]


@pytest.mark.parametrize("other", ["log", "another"])
def test_a_row_with_another_key_waits_where_other_partitions_have_changes(
    log: Log, learn: Any, other: str
) -> None:
    """As one that can be read halts its table: an older change of that row may come from there."""
    log.epoch(log.message("c", id=1, n=1), log.message("c", file=other, id=3, n=3))
    moved = log.message("u", id=2, n="five")
    body = json.loads(moved.value or b"") | {"before": {"id": 1, "n": 1, "big": None}}
    log.epoch(moved._replace(value=json.dumps(body).encode()))
    learn()
    log.mend("retry", *(change.id for change in log.aside))
    if other == "log":
        assert (log.aside, log.rows) == ([], {2: (5, None), 3: (3, None)})
        return
    assert [("other partitions" in c.why.what, c.why.where) for c in log.aside] == [
        (True, "log, offset 3, table t")
    ]
    log.epoch(log.message("u", at=2, file="another", id=1, n=2))
    assert log.rows == {1: (2, None), 3: (3, None)}


def test_of_two_of_one_row_the_newer_has_overtaken_the_older(log: Log, learn: Any) -> None:
    log.epoch(log.message("c", id=1, n="five"), log.message("c", id=2, n="five"))
    log.epoch(log.message("u", id=1, n="five"))
    ids = [change.id for change in log.aside]
    learn()

    def meanwhile(_: str) -> None:
        log.epoch(mends=[*MendLog(log.store.mends).of([TABLE]).values()])
        MendLog(log.store.mends).of([])

    answers = mend(log.config, "retry", str(TABLE), [], meanwhile)
    assert [(answer.id, answer.state) for answer in answers] == [
        (ids[0], "overtaken"),
        (ids[1], "taken"),
        (ids[2], "taken"),
    ]


@pytest.mark.parametrize("first", ["retry", "discard"])
def test_of_two_requests_at_once_the_later_one_is_told_that_it_did_nothing(
    log: Log, learn: Any, first: Any
) -> None:
    log.epoch(log.message("c", id=1, n="five"))
    (change,) = log.aside
    learn()
    MendLog(log.store.mends).ask(MendRequest(TABLE, first, (change.id,)))

    def meanwhile(_: str) -> None:
        log.epoch(mends=[*MendLog(log.store.mends).of([TABLE]).values()])
        MendLog(log.store.mends).of([])

    other = "discard" if first == "retry" else "retry"
    (answer,) = mend(log.config, other, str(TABLE), [change.id], meanwhile)
    assert answer.state == "gone"
    assert "another command" in answer.why


def test_answers_for_which_nobody_waits_are_forgotten_after_a_day(tmp_path: Path) -> None:
    log = MendLog(tmp_path)
    first = log.ask(MendRequest(TABLE, "retry", ("1.1",)))
    log.note_idle(first, {"1.1": "gone"})
    old = first.with_name(f"{time.time_ns() - 90_000 * 10**9:020d}-a.json")
    first.rename(old)
    first.with_suffix(".idle").rename(old.with_suffix(".idle"))
    os.utime(old.with_suffix(".idle"), (0, time.time() - 90_000))
    (tmp_path / "notes.idle").touch()  # somebody else's
    second = log.ask(MendRequest(TABLE, "retry", ("1.2",)))
    log.note_idle(second, {"1.2": "overtaken"})
    assert log.idle(old) == {}
    assert log.idle(second) == {"1.2": "overtaken"}
    assert log.idle(second) == {}
    assert (tmp_path / "notes.idle").exists()


# --- any order of all of it -----------------------------------------------------------------------


class World:
    """A database and its log, of which some changes cannot be read, or are sent again."""

    KEYS = range(2)

    def __init__(self, log: Log, random: Random, learn: Callable[[bool], None]) -> None:
        self.log, self.random, self.learn = log, random, learn
        self.rows: dict[int, tuple[int, str]] = {}
        self.told: list[str] = []
        self._older: list[dict[str, Any]] = []
        #: What is being read anew: since when, the rows (None: not read yet), and the keys seen.
        self._anew: tuple[int, dict[int, tuple[int, str]] | None, ChunkState] | None = None
        self._done_ms = 0

    def step(self) -> None:
        """An epoch: some changes, and what is asked for; then what is wrong is in quarantine."""
        random, log = self.random, self.log
        messages = [self._change() for _ in range(random.choice([0, 0, 1, 1, 2]))]
        mends, anew = [], []
        if self._done_ms and random.random() < 0.5:  # when other chunks are done, too
            mends.append(MendRequest(TABLE, "reread", before_ms=self._done_ms))
            self._done_ms = 0
        ids = [change.id for change in log.aside]
        if ids and random.random() < 0.3:
            some = random.sample(ids, random.choice([1, 1, len(ids)]))
            mends.insert(random.randint(0, len(mends)), MendRequest(TABLE, "retry", tuple(some)))
            if self._anew is not None:  # as the run does it: what was read is read again
                self._anew = (self._anew[0], None, ChunkState(KeySet.empty(SCHEMA.key_arrow)))
        self.learn(random.random() < 0.5)
        if self._anew is None:
            if not self._done_ms and random.random() < 0.7:
                self._anew = (log.clock.ms, None, ChunkState(KeySet.empty(SCHEMA.key_arrow)))
        else:
            anew = self._read_on(messages)
        self.told.append(f"{[m.value for m in messages]} {mends} {anew}")
        report = log.epoch(*messages, mends=mends, anew=anew)
        assert not report.tables, self.told
        covered: set[int] = set()
        for change in log.aside:
            if change.rows is None:
                return  # it may be of any row
            keys = change.rows["id"].to_pylist()
            marked = zip(keys, change.overtaken, strict=True)
            covered |= {key for key, mark in marked if mark != "wholly"}
        for key in self.KEYS:
            assert key in covered or log.rows.get(key) == self.rows.get(key), (key, self.told)

    def _read_on(self, messages: list[Message]) -> list[Reloaded]:
        assert self._anew is not None
        begun_ms, read, state = self._anew
        loading = LoadingTable(TABLE, SCHEMA, 0)
        decoder = open_format(self.log.config, "shop")
        rejects = Rejects(lambda _: [SPEC])
        for part in decode_split(messages, decoder, {"t": SPEC}, halts={}, rejects=rejects):
            state = on_changes(state, part.changes, loading)
        if state.emptied:
            read, state = None, ChunkState(KeySet.empty(SCHEMA.key_arrow))
        elif read is not None and self.random.random() < 0.5:
            self._anew, self._done_ms = None, begun_ms
            return [self.log.chunk(read, state)]
        elif read is None:
            read = dict(self.rows)
        self._anew = (begun_ms, read, state)
        return []

    def _change(self) -> Message:
        random, log = self.random, self.log
        if self._older and random.random() < 0.1:
            return log.message(**random.choice(self._older))
        key = random.choice(self.KEYS)
        before = self.rows.get(key)
        if random.random() < 0.02:
            self.rows.clear()
            return log.message("t")
        body: dict[str, Any] = {"id": key}
        if before is not None and random.random() < 0.1:
            del self.rows[key]
            op = "d"
        else:
            op, number = ("c" if before is None else "u"), random.randint(0, 9)
            big = random.choice("xyz") if before is None or random.random() < 0.3 else before[1]
            self.rows[key] = (number, big)
            body["n"] = f"learned {number}" if number > 4 else number
            body["big"] = UNSENT if before is not None and big == before[1] else big
        told = log.message(op, **body)
        self._older.append({"op": op, "at": log.sent, **body})
        if op == "u" and key in log.rows and random.random() < 0.06:
            self._older.pop()
            return told._replace(value=(told.value or b"")[:-9])
        return told


@pytest.mark.parametrize("seed", seeds(6))
def test_a_row_is_as_its_database_has_it_or_in_quarantine(
    log: Log, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    convert = DebeziumFormat.convert
    is_lenient = False

    def learn(value: bool) -> None:
        nonlocal is_lenient
        is_lenient = value

    def lenient(self: Any, values: Sequence[Any], column: Column) -> Any:
        if is_lenient and column.name == "n":
            values = [int(v[-1:]) if type(v) is str and "learned" in v else v for v in values]
        return convert(self, values, column)

    monkeypatch.setattr(DebeziumFormat, "convert", lenient)
    world = World(log, Random(seed), learn)
    for _ in range(40):
        world.step()
