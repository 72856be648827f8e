"""The changelogs of all connections as one stream: how far the next batch reads, and its rows.

Offsets are `{"connections": {name: offsets}, "watermark": ms, "pinned_ms": ms, "cuts": {name:
cut}, "halts": {table: halt}}`. The watermark (-1: unknown) is that of all logs together. Where a
batch cuts each log is part of the offset so that a replayed batch stamps the same heartbeat, and so
are the time that its epoch pins, and which tables halt in it: that is said once. A tick is news
like any change.

The heartbeat of a load goes by the cuts of the connections that it loads tables of, and by no
other's: who waits for changes that a read has seen waits for their log alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from mview.changelog import StreamRow, stream_batch, to_ipc
from mview.clock import SourceMs, last_tick, steady_clock
from mview.config import secret_values
from mview.connector import Align, Changelog, Offsets, Progress, Split, TableHalt
from mview.errors import AwayError, DataLostError, MviewError, UserError
from mview.files.records import plain, record
from mview.ingest.away import AwayLogs, is_passing
from mview.ingest.batches import halt_row
from mview.ingest.clocks import Clocks
from mview.ingest.decode.split import decode_split
from mview.ingest.decode.typed import Decoded
from mview.ingest.keys import with_other_keys
from mview.ingest.mending.reject import QuarantineRoom, Reject, Rejects, to_bodies
from mview.ingest.spec import (
    QuerySpec,
    TableSpec,
    latest_time,
    open_changelog,
    open_format,
    read_spec,
    spec_file,
)
from mview.memory import Memory
from mview.relation import RelationId
from mview.secrets import Mask
from mview.store.layout import Store
from mview.store.manifest import Cut

#: Made beside the spec when all chunks of a load are read: a bounded log may end then.
CHUNKS_READ = "chunks-read"

#: A live stream whose watermark moves but brings no change makes an epoch this often at most.
QUIET_MS = 5_000

#: How long one planning call waits for something new before it answers "nothing": long enough to
#: cost little when idle, short enough to stop quickly.
WAIT_MS = 1_000

#: Messages that pay for a task more: it costs as much CPU as to decode so many.
WORTH_A_TASK = 1_000

#: Where offsets cut each log, by connection: `Cut` as JSON has it.
Cuts = dict[str, Any]

#: With several logs each waits this long in its turn, and twice as long in the next, up to a limit:
#: the first bounds what a busy log loses by silent ones, the second what silence costs.
_TURN_MS, _LONGEST_TURN_MS = 10, 80


@dataclass
class Piece(InputPartition):
    """What one task reads: parts of changelogs, and the watermark of a load to stamp (-1: none)."""

    work: list[tuple[str, Split]]
    watermark: int

    @property
    def messages(self) -> int:
        """How many messages that is, about."""
        return sum(split.messages for _, split in self.work)


class Changelogs:
    """The changelogs that a query reads.

    Args:
        spec: the query's, as `QuerySpec.write` names it. Executors get a copy of the object and
            read the file again: clients stay with the driver.
    """

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._changelogs: dict[str, Changelog] = {}
        #: Those that messages are read by, in whatever process.
        self._readers: dict[str, Changelog] = {}
        self._clocks: Clocks | None = None
        self._bounded = False
        self._ended_ms: int | None = None
        #: When it was seen that all chunks of a load are read, monotonic.
        self._chunks_read_at: float | None = None
        self._last_progress = time.monotonic()
        self._halted: set[RelationId] = set()
        #: By connection, loaded tables that have another key by now, as far as no log tells it.
        self._others: dict[str, Mapping[str, TableHalt]] = {}
        #: Those that cannot be read right now, where others can; None: none is gone on without.
        self._away: AwayLogs | None = None
        #: By connection, the tables of logs that have lost what was not read yet.
        self._lost: dict[str, dict[str, TableHalt]] = {}
        #: Why the last one was left.
        self._left: MviewError | None = None
        #: Messages that the last answer of `advance` has left.
        self.backlog = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_changelogs": {}, "_readers": {}, "_clocks": None, "_away": None}

    # --- how far ---------------------------------------------------------------------------------

    def begin(self) -> dict[str, Any]:
        """Where the manifest or the start of the load says."""
        spec = read_spec(self.spec)
        return {
            "connections": spec.start,
            "watermark": spec.watermark,
            "pinned_ms": spec.pinned_ms,
            "cuts": {},
            "halts": {},
        }

    def finish(self) -> None:
        """From now on stop at the ends of all logs, and at the time, as they are at this moment."""
        self._ended_ms = steady_clock().now()
        self._open()
        self._finish()

    def advance(
        self, start: dict[str, Any], most: int = sys.maxsize, enough: int = sys.maxsize
    ) -> dict[str, Any]:
        """How far the next batch reads; `start` when nothing new has come within WAIT_MS.

        Args:
            start: where it begins.
            most: changes of it, beside the bounds of the configuration.
            enough: changes after which it may end; a transaction that has more is whole still.
        """
        spec = read_spec(self.spec)
        # Only what has led to a batch was said: another plan may come instead.
        self._halted |= {RelationId.of(table) for table in start["halts"]}
        self._end_load(spec)
        reached, watermark, cuts = self._advance(start, spec, most, enough)
        self.backlog = sum(part.backlog for part in reached.values())
        if _is_loading(spec):
            self._clocks = self._clocks or Clocks(spec.config)
            self._clocks.check({name: part.watermark for name, part in reached.items()})
        ends = _followed(spec, start) | _offsets(reached)
        moved = ends != start["connections"]
        pinned = start["pinned_ms"]
        if spec.tick_ms:
            now = steady_clock().now() if self._ended_ms is None else self._ended_ms
            pinned = max(pinned, last_tick(now, spec.tick_ms))
        halts = self._halts(reached)
        news = moved or bool(halts) or pinned > start["pinned_ms"]
        if not news and not self._worth_an_epoch(spec, start["cuts"], cuts):
            return start
        self._last_progress = time.monotonic()
        return {
            "connections": ends,
            "watermark": watermark,
            "pinned_ms": pinned,
            "cuts": cuts,
            "halts": {str(table): plain(halt) for table, halt in halts.items()},
        }

    def _halts(self, reached: Mapping[str, Progress]) -> dict[RelationId, TableHalt]:
        """The tables that the logs say to halt, and of which it was not said yet."""
        halts = {n: {**self._others.get(n, {}), **p.halts} for n, p in reached.items()}
        said = {
            RelationId("table", table, connection): halt
            for connection, tables in (halts | self._lost).items()
            for table, halt in tables.items()
        }
        return {table: halt for table, halt in said.items() if table not in self._halted}

    def close(self) -> None:
        """Close all clients."""
        for changelog in self._changelogs.values():
            changelog.close()
        self._changelogs = {}
        self._end_readers()
        if self._clocks is not None:
            self._clocks.close()
        if self._away is not None:
            self._away.close()

    def _open(self) -> dict[str, Changelog]:
        if not self._changelogs and not self._lost:
            spec = read_spec(self.spec)
            if len(spec.start) > 1 and not spec.once:
                config = spec.config
                mask = Mask(secret_values(config))
                store, names = Store(config.store), spec.start.keys()
                self._away = AwayLogs(store, spec.token, mask, names)
            away = set() if self._away is None else self._away.names
            for name in spec.start:
                if name not in away:
                    self._changelogs[name] = self._opened(name)
            if self._bounded:
                self._finish()
        return self._changelogs

    def _opened(self, name: str) -> Changelog:
        spec = read_spec(self.spec)
        read = {t.source_name: t.column_names for t in spec.tables_of(name)}
        loading = [t.source_name for t in spec.tables_of(name) if t.plan is not None]
        if not spec.config.changes[name].is_own_log:
            loaded = [t for t in spec.tables_of(name) if t.plan is None]
            self._others[name] = with_other_keys(spec.config, name, loaded)
        return open_changelog(spec.config, name, list(read), read, loading, spec.reader)

    # --- who is away, and what is lost -----------------------------------------------------------

    def goes_on(self, error: MviewError) -> bool:
        """Whether the log that raised it was left, and others are read: then plan once more."""
        return self._left is error

    def _here(self, at: Mapping[str, Offsets]) -> list[str]:
        """The connections that can be read, with those that answer again."""
        changelogs = self._open()
        if self._away is not None:
            for name, answer in self._away.answered(lambda name: self._asked(name, at[name])):
                try:
                    changelogs[name] = answer.result()
                except DataLostError as error:
                    self._lose(name, error)
        return [name for name in at if name in changelogs]

    def _asked(self, name: str, at: Offsets) -> Changelog:
        """A changelog that has answered."""
        changelog = self._opened(name)
        try:
            changelog.advance(at, 1, 0)
        except BaseException:
            changelog.close()
            raise
        return changelog

    def _leave(self, name: str, error: MviewError, *, answers: bool = False) -> None:
        """Go on without a log that is away or refuses: it stays where it is; that is a cut, too.

        Args:
            name: its connection.
            error: what it raised.
            answers: see `AwayLogs.leave`.

        Raises:
            MviewError: this one, where no other log can be read, or it would be the same later.
        """
        if self._away is None or not is_passing(error):
            raise error
        self._away.leave(name, error, answers=answers)
        if len(self._changelogs) == 1:
            raise error
        self._left = error
        self._changelogs.pop(name).close()

    def _lose(self, name: str, error: DataLostError) -> None:
        """Halt the tables of a log that has not all any more; what was read of it stays as it is.

        Raises:
            DataLostError: this one, where the query has no other log.
        """
        spec = read_spec(self.spec)
        if len(spec.start) == 1:
            raise error
        self._lost[name] = {t.source_name: TableHalt.of(error) for t in spec.tables_of(name)}
        self._left = error
        if self._away is not None:
            self._away.forget(name)
        if (changelog := self._changelogs.pop(name, None)) is not None:
            changelog.close()

    def _end_readers(self) -> None:
        readers, self._readers = self._readers, {}
        for changelog in readers.values():
            changelog.close()

    def _finish(self) -> None:
        self._bounded = True
        for changelog in self._changelogs.values():
            changelog.finish()

    def _end_load(self, spec: QuerySpec) -> None:
        """A bounded load ends its logs only when every chunk is read and T has passed since.

        Earlier ends would miss changes that the chunks have seen, and publish a mixture. Logs with
        heartbeats of their own need no end: their watermark moves on.
        """
        flag = spec_file(self.spec).with_name(CHUNKS_READ)
        if self._bounded or not spec.once or not spec.chunks or not flag.exists():
            return
        now = time.monotonic()  # the clock may be set back meanwhile
        self._chunks_read_at = now if self._chunks_read_at is None else self._chunks_read_at
        delay = max(spec.config.changes[name].delay for name in spec.start)
        if (now - self._chunks_read_at) * 1000 > delay:
            self._bounded = True
            for name, changelog in self._open().items():
                if spec.config.changes[name].source == "files":
                    changelog.finish()

    def _patience_ms(self, spec: QuerySpec) -> int:
        """How long to wait for news: not at all while chunks wait to be read in the same batch."""
        reading = spec.chunks and not spec_file(self.spec).with_name(CHUNKS_READ).exists()
        return 0 if reading else WAIT_MS

    def _advance(
        self, start: dict[str, Any], spec: QuerySpec, changes: int, enough: int
    ) -> tuple[dict[str, Progress], int, Cuts]:
        at, patience_ms = _followed(spec, start), self._patience_ms(spec)
        before = {name: start["cuts"][name] for name in at if name in start["cuts"]}
        deadline = time.monotonic() + patience_ms / 1000
        # One log may wait for its own news; several take turns, so that none delays another.
        turn_ms = patience_ms if len(self._here(at)) == 1 else min(patience_ms, _TURN_MS)
        engine, logs = spec.config.engine, max(1, len(spec.start))
        share = max(1, min(engine.max_changes, changes, enough) // logs)
        room = Memory(engine.memory).batch // logs
        most = min(engine.max_bytes // logs, room)
        align = Align(engine.max_drift, None, max(1, changes // logs), room)
        while True:
            reached = self._reached(at, self._here(at), share, turn_ms, most, align)
            # One that is away tells as much of its time as one that is silent.
            silent = {n: Progress(at[n], None) for n in at.keys() - reached.keys()}
            # The end of a bounded run is no time for which anybody could wait.
            slowest = slowest_of(reached | silent, 0 if self._bounded else engine.alignment)
            if slowest is not None:
                until = replace(align, until=SourceMs(slowest + engine.max_drift))
                nearer = self._reached(at, ahead_of(reached, slowest), share, 0, most, until)
                reached = {n: p for n, p in (reached | nearer).items() if n in self._changelogs}
            known = [p.watermark for p in reached.values() if p.watermark is not None]
            watermark = int(min(known)) if len(known) == len(at) else -1
            watermark = max(watermark, start["watermark"])
            cuts = _cuts(before, reached)
            moved = at | _offsets(reached) != at
            # A watermark not yet worth an epoch is no answer: the next question would come at once.
            news = moved or self._worth_an_epoch(spec, before, cuts)
            news = news or bool(self._halts(reached))
            if news or self._bounded or time.monotonic() >= deadline:
                return reached, watermark, cuts
            turn_ms = max(turn_ms, min(2 * turn_ms, _LONGEST_TURN_MS))

    def _reached(
        self,
        at: Mapping[str, Offsets],
        names: Iterable[str],
        share: int,
        wait_ms: int,
        most: int,
        align: Align,
    ) -> dict[str, Progress]:
        """How far each of some logs goes; one that cannot be read is left out."""
        reached = {}
        for name in names:
            try:
                log = self._changelogs[name]
                reached[name] = log.advance(at[name], share, wait_ms, most, align)
            except (AwayError, UserError) as error:
                self._leave(name, error)
            except DataLostError as error:
                self._lose(name, error)
        return reached

    def _worth_an_epoch(self, spec: QuerySpec, before: Cuts, cuts: Cuts) -> bool:
        """Whether more is known of the time up to which logs are read, and it is to be told."""
        if marks_of(cuts) == marks_of(before):
            return False
        quiet = (time.monotonic() - self._last_progress) * 1000 >= QUIET_MS
        return quiet or self._bounded or _passed(spec, cuts) > _passed(spec, before)

    # --- what is there ---------------------------------------------------------------------------

    def pieces(self, start: dict[str, Any], end: dict[str, Any]) -> list[Piece]:
        """What lies between two offsets, packed into at most as many tasks as there are cores."""
        spec = read_spec(self.spec)
        work: list[tuple[str, Split]] = []
        changelogs = self._open()
        for name, at in _followed(spec, start).items():
            to = end["connections"][name]
            if name not in changelogs:
                if at == to:
                    continue
                # Planned by who is no more, and to be read as it was planned.
                if self._away is not None:
                    self._away.forget(name)
                changelogs[name] = self._opened(name)
            try:
                splits = changelogs[name].splits(at, to)
            except (AwayError, UserError) as error:
                self._leave(name, error)
                raise
            except DataLostError as error:
                self._lose(name, error)
                raise
            work += [(name, split) for split in splits]
        worth = sum(split.messages for _, split in work) // WORTH_A_TASK + 1
        tasks = max(1, min(spec.tasks, len(work), worth))
        pieces = [Piece(part, -1) for part in packed(work, tasks)]
        passed = _passed(spec, end["cuts"])
        if passed > _passed(spec, start["cuts"]):
            pieces[0] = Piece(pieces[0].work, passed)
        return [piece for piece in pieces if piece.work or piece.watermark >= 0]

    def rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Change batches of a piece, then its heartbeat, as Spark takes them.

        The worker of Spark may never see this object again: nothing stays open.
        """
        halts: dict[RelationId, TableHalt] = {}
        rejects: list[Reject] = []
        try:
            rows = [
                StreamRow("changes", str(table), chunk, changes.num_rows, body=to_ipc(changes))
                for table, chunk, changes in self.changes(piece, halts, rejects)
            ]
        finally:
            self._end_readers()
        rows += [halt_row(table, halt) for table, halt in halts.items()]
        rows += [StreamRow("reject", str(t), body=body) for t, body in to_bodies(rejects)]
        if piece.watermark >= 0:
            rows.append(StreamRow("heartbeat", event_time=SourceMs(piece.watermark)))
        if rows:
            yield stream_batch(rows)

    def changes(
        self,
        piece: Piece,
        halts: dict[RelationId, TableHalt] | None = None,
        rejects: list[Reject] | None = None,
    ) -> Iterator[Decoded]:
        """The changes of a piece; in any process.

        What it is read by stays open for the next piece, until `close` or an error.

        Args:
            piece: what is read.
            halts: see `decode_split`.
            rejects: takes what goes into quarantine, of the connections that have one.
        """
        spec = read_spec(self.spec)
        for name in dict.fromkeys(name for name, _ in piece.work):
            splits = [split for connection, split in piece.work if connection == name]
            tables = {table.source_name: table for table in spec.tables_of(name)}
            changelog = self._reader(spec, name, list(tables))
            try:
                latest = latest_time(spec.config, name)
                decoder = open_format(spec.config, name)
                kept, settings = None, spec.config.changes[name]
                if rejects is not None and settings.on_error == "quarantine":
                    room = QuarantineRoom(settings.quarantine_changes, settings.quarantine_bytes)
                    kept = Rejects(cache(partial(_suspects, spec, name)), room)
                read = changelog.read(splits)
                decoded = decode_split(read, decoder, tables, latest, halts, kept)
                if rejects is not None and kept is not None:
                    rejects += kept.taken
                yield from decoded
            except BaseException as error:
                changelog.close()
                if isinstance(error, AwayError | UserError):
                    self._leave(name, error, answers=True)
                elif isinstance(error, DataLostError):
                    self._lose(name, error)
                raise
            if self._away is not None:
                self._away.forget(name)
            if changelog is not self._changelogs.get(name):
                self._readers[name] = changelog

    def _reader(self, spec: QuerySpec, name: str, tables: list[str]) -> Changelog:
        planner = self._changelogs.get(name)
        if planner is not None and getattr(planner, "reads_ahead", False):
            return planner
        return self._readers.pop(name, None) or open_changelog(
            spec.config, name, tables, reader=spec.reader
        )


def _followed(spec: QuerySpec, start: Mapping[str, Any]) -> dict[str, Offsets]:
    """Where a batch begins; a load that goes on may have noted logs that nobody reads any more."""
    return {name: start["connections"][name] for name in spec.start}


def _offsets(reached: Mapping[str, Progress]) -> dict[str, Offsets]:
    """Where each log is read up to."""
    return {name: progress.offsets for name, progress in reached.items()}


def _cuts(before: Cuts, reached: Mapping[str, Progress]) -> Cuts:
    """Where a batch cuts each log; what was said of one before holds while it says nothing new."""
    cuts = {**before}
    for name, part in reached.items():
        known = record(Cut, before[name]) if name in before else None
        cuts[name] = plain(Cut(part.watermark, part.whole).after(known))
    return cuts


def marks_of(cuts: Cuts) -> dict[str, int]:
    """By connection, up to which source time its log was read, as far as that is known.

    Args:
        cuts: of offsets.
    """
    return {name: cut["until"] for name, cut in cuts.items() if cut["until"] is not None}


def _passed(spec: QuerySpec, cuts: Cuts) -> int:
    """Up to which source time the logs of all loading tables were read; -1: unknown, or none is."""
    marks = marks_of(cuts)
    loading = {table.connection for table in spec.tables.values() if table.plan is not None}
    return min((marks.get(name, -1) for name in loading), default=-1)


def packed(work: Sequence[tuple[str, Split]], tasks: int) -> list[list[tuple[str, Split]]]:
    """Work in so many parts of about as many messages, each in the order of the whole."""
    places: list[list[int]] = [[] for _ in range(tasks)]
    sizes = [0] * tasks
    for place in sorted(range(len(work)), key=lambda place: -work[place][1].messages):
        least = sizes.index(min(sizes))
        places[least].append(place)
        sizes[least] += work[place][1].messages
    return [[work[place] for place in sorted(part)] for part in places]


def _suspects(spec: QuerySpec, connection: str, partition: str) -> list[TableSpec]:
    """The tables of which a partition may have changes; none where a message has blocks of all."""
    if spec.config.changes[connection].is_own_log:
        return []
    suspects = []
    for table in spec.tables_of(connection):
        with closing(open_changelog(spec.config, connection, [table.source_name])) as changelog:
            if changelog.has(partition):
                suspects.append(table)
    return suspects


def _is_loading(spec: QuerySpec) -> bool:
    return any(table.plan is not None for table in spec.tables.values())


def slowest_of(progress: Mapping[str, Progress], patience: int = 0) -> SourceMs | None:
    """How far the slowest connection is, if there is one that others must wait for.

    A log that still has messages to be read counts as slow. One that is silent has told all it
    knows; whether nothing has happened there, or what reads it is behind, nobody can tell.

    Args:
        progress: how far each would be read.
        patience: milliseconds of source time by which a silent one may hold the others.
    """
    slow = [p.watermark for p in progress.values() if p.backlog and p.watermark is not None]
    known = [p.watermark for p in progress.values() if p.watermark is not None]
    if patience and known:
        behind = min(known) if len(known) == len(progress) else SourceMs(0)
        slow.append(SourceMs(max(behind, max(known) - patience, 0)))
    return min(slow) if slow and len(progress) > 1 else None


def ahead_of(progress: Mapping[str, Progress], slowest: SourceMs) -> list[str]:
    """The connections that are further than the slowest: these may be too far."""
    return [n for n, p in progress.items() if p.watermark is None or p.watermark > slowest]
