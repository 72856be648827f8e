"""Light mode: a sink follows the table of a view itself, without an epoch, mirror or Delta table.

A step brings a chunk of the table, changes of its log, or both. What a step brings is put by its
key: `+I` rows of a chunk, `+U` rows and `-D` keys of changes. Two versions of a row are ordered so:

- changes by their position in the log, as everywhere (`merge/net.py`): steps are taken in order
  and once each, by the mark in the target's own transaction, so an older step never comes after a
  newer one, whatever is read or sent again;
- a row of a chunk is version 0: it is left out where a change has touched its key since the load
  began, be it by a delete. These keys (`seen.py`) are all that is remembered; those of a chunk
  go when the chunk is brought, so nothing is left when all are.

What a chunk has read may be ahead of the log. The view is right at a cut of the table as soon as
the log has passed the last read of a chunk plus T: then it is `loaded`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mview.changelog import KIND
from mview.clock import END_OF_TIME, SourceMs
from mview.config import Config
from mview.connector import WEIGHT, TableHalt
from mview.errors import (
    DataLostError,
    DecodeError,
    MviewError,
    RetryableError,
    counted,
    of_the_system,
    typed,
)
from mview.files.fence import Fence
from mview.files.records import plain, record
from mview.follow.following import Content, ViewChanges
from mview.follow.light.progress import KEPT, LightLoad, LightProgress, ProgressLog
from mview.follow.light.readers import leave_sink, note_reader, noted_reader, reader_of
from mview.follow.light.seen import SeenKeys, without_chunk
from mview.follow.light.view import LightView
from mview.ingest.changelogs import CHUNKS_READ, Changelogs
from mview.ingest.chunks import chunk_rows
from mview.ingest.load_plan import (
    LoadStart,
    begin_offsets,
    begin_positions,
    plan_load,
)
from mview.ingest.pace import HELD_S, Pacer
from mview.ingest.rhythm import Rhythm
from mview.ingest.spec import QuerySpec, TableSpec, log_reader
from mview.merge.net import Netted, net_changes, old_and_new
from mview.relation import RelationId
from mview.rows.key_sets import KeySet
from mview.schema import TableSchema
from mview.store.manifest import Cut, Manifest


class _Due(NamedTuple):
    """A step that may be brought.

    Attributes:
        after: where the target must stand.
        progress: what it has then.
        rows: KIND and the view's columns.
        is_fill: nothing is left of what was there: the table was truncated.
    """

    after: int
    progress: LightProgress
    rows: pa.Table
    is_fill: bool


class LightSource:
    """What a sink of a light view follows: the view's table and its log. For one thread.

    Args:
        config: the configuration.
        view: the view.
        sink: the sink's name.
        folder: where the sink's progress is kept.
        fence: the runner's right to write.
        once: take what is there.
        say: is told when a load begins and when it is complete.
    """

    def __init__(
        self,
        config: Config,
        view: LightView,
        sink: str,
        folder: Path,
        fence: Fence,
        once: bool,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._view, self._once, self._say = config, view, once, say
        self._folder, self._fence = folder, fence
        self._reader = reader_of(config, view.definition, sink)
        self._what = f"view {view.name}, sink {sink}"
        self._progress, self._pace = ProgressLog(folder, fence), Pacer(config)
        self._seen = SeenKeys(self._progress.folder, fence, view.source.key_arrow)
        self._rhythm = Rhythm()
        self._steps: dict[int, LightProgress] | None = None
        self._loads: dict[tuple[int, int], LightLoad] = {}
        self._logs: tuple[tuple[int, bool], Changelogs] | None = None
        #: How far the log was read, beyond what is noted: the end of a bounded log is not.
        self._start: tuple[int, dict[str, Any]] | None = None
        self._due: _Due | None = None
        #: A target that stands below is to be filled, whatever is known.
        self._lost = 0
        #: The step of a load that no target is known to have begun.
        self._begun: int | None = None
        #: It waits for the database or its log.
        self.is_reading = False

    # --- what a sink asks ------------------------------------------------------------------------

    @property
    def schema(self) -> TableSchema | None:
        """The view's columns."""
        return self._view.schema

    def move(self, manifest: Manifest) -> bool:
        """Epochs are of other views, and tell nothing."""
        return True

    def give(self, columns: TableSchema) -> None:
        """They are those of its text."""

    def waiting_bytes(self, after: int) -> int:
        """None: what waits for the sink waits in the log."""
        return 0

    def newest(self) -> int:
        """The step that is due; 0: none is."""
        return 0 if self._due is None else self._due.after + 1

    def begins(self) -> int:
        """The log can be read on from here: a target that stands before is filled anew."""
        if self._due is not None and self._due.is_fill:
            return self._due.after + 1
        steps = self._known()
        mine = [step for step, at in steps.items() if self._is_mine(at)]
        return max(self._lost, min(mine, default=max(steps, default=0) + 1))

    def changes(self, after: int, most_bytes: int, most_rows: int | None) -> ViewChanges:
        """The step that is due; an empty one where it turns out that none is."""
        if self._due is None or self._due.after != after:
            self.look(after)
        due = self._due
        if due is None or due.is_fill:
            return ViewChanges(after, self._delta([], []))
        self._note(after + 1, due.progress)
        return ViewChanges(after + 1, due.rows)

    def rows(self) -> Content:
        """What a target is filled with: nothing, as a load begins; or what a truncate has left."""
        due = self._due
        if due is not None and due.is_fill:
            self._note(due.after + 1, due.progress)
            return Content(due.after + 1, iter([due.rows.drop_columns([KIND])]))
        if self._begun is None:
            step = max(self._lost, max(self._known(), default=0) + 1)
            with self._reading():
                self._note(step, self._begin(step))
            self._begun = step
        return Content(self._begun, iter(()))

    def look(self, after: int) -> bool:
        """Look for what has come since the target stands at a step; may take a second.

        Returns:
            Whether more may come: a bounded run has an end.

        Raises:
            MviewError: the database or the log cannot be read, or what they say cannot be taken.
        """
        known, self._due, self._begun = self._known(), None, None
        if after not in known:
            self._lost = after + 1  # somebody removed it
            return True
        with self._reading():
            self._due = self._next(after, known[after])
        return self._due is not None or not (self._once and self._known()[after].loaded)

    def close(self) -> None:
        """Close what is open."""
        logs, self._logs = self._logs, None
        if logs is not None:
            logs[1].close()

    # --- a step ----------------------------------------------------------------------------------

    def _next(self, after: int, at: LightProgress) -> _Due | None:
        """The step after one; None: nothing has come that the view shows."""
        chunks, logs = self._load(at).plan.chunks.chunks, self._opened(at)
        if at.loaded and not self._once:
            time.sleep(self._rhythm.left_s())
        if self._start is None or self._start[0] != after:
            self._start = after, self._place(at)
        start = self._start[1]
        end = logs.advance(start)
        self._check({name: record(TableHalt, halt) for name, halt in end["halts"].items()})
        table = self._table(self._load(at))
        left = [(table, chunk) for chunk in chunks[at.chunks :]]
        may_read = bool(left and self._pace.take(left, 1))
        if end == start and not may_read:
            if left:
                time.sleep(HELD_S)
            return None
        self._rhythm.begin()
        pieces = logs.pieces(start, end) if end != start else []
        taken = dict[RelationId, TableHalt]()
        batches = [decoded.changes for piece in pieces for decoded in logs.changes(piece, taken)]
        self._check(taken)
        source = self._view.source
        netted = net_changes(batches, source, at.positions, at.newest)
        # Nothing is known of old rows, and need not be: what a change leaves out is refused here.
        come = old_and_new(netted, source.arrow.empty_table(), source)[0].drop_columns([WEIGHT])
        shown, then = self._view.shown(come), self._taken(at, end, netted)
        if netted.truncated:
            # What chunks have of before is gone, and what they have of after is in the log.
            then = replace(then, chunks=len(chunks), seen={}, loaded=True)
            return _Due(after, then, self._delta([("+U", shown)], []), is_fill=True)
        parts = [("+U", shown)]
        # Also where no chunk may be read now: a replica may give a later one from before.
        then = self._touched(then, after + 1, come, netted.deleted)
        if may_read:
            rows, then = self._chunk(then)
            parts.append(("+I", self._view.shown(rows)))
        if not at.loaded and then.chunks == len(chunks):
            if not self._chunks_read.exists():
                self._chunks_read.touch()  # once: a bounded load waits T from here
            delay = self._config.changes[self._connection].delay
            then = replace(then, loaded=end["watermark"] > then.high_ms + delay)
        delta = self._delta(
            parts, [self._view.hidden(come, shown), self._view.keys(netted.deleted)]
        )
        if delta.num_rows:
            return _Due(after, replace(then, rows=at.rows + delta.num_rows), delta, is_fill=False)
        # The target, as it stands, is what the view is there, too.
        self._note(after, then)
        self._start = after, end
        return None

    def _check(self, halts: Mapping[Any, TableHalt]) -> None:
        """Raise where the table halts; another one is not read."""
        for halt in halts.values():
            raise self._halted(halt)

    def _halted(self, halt: TableHalt) -> DecodeError:
        """A light view is not loaded anew by itself: its table in the sink would be emptied."""
        first = f"{halt.hint}; then " if halt.hint else ""
        drop = f"`mview drop {typed(self._view.name)}`"
        then = f"{drop} and run again: its tables in sinks are filled anew"
        safe = "the table in the sink stays as it is"
        return DecodeError(**{**halt.error().parts, "safe": safe, "hint": f"{first}{then}"})

    def _taken(self, at: LightProgress, end: dict[str, Any], netted: Netted) -> LightProgress:
        newest = {p: max(ms, at.newest.get(p, ms)) for p, ms in netted.newest.items()}
        return replace(
            at,
            offsets=end["connections"][self._connection],
            # The end of a bounded log is not a time.
            watermark=end["watermark"] if end["watermark"] < END_OF_TIME else at.watermark,
            positions={**at.positions, **netted.high_water},
            newest={**at.newest, **newest},
        )

    def _touched(self, then: LightProgress, step: int, *changed: pa.Table) -> LightProgress:
        """Remember what changes of a step have touched in chunks that are not there yet."""
        chunks = self._load(then).plan.chunks
        if then.chunks == len(chunks.chunks):
            return then
        key, more = self._view.source.key_arrow, dict[int, KeySet]()
        for rows in changed:
            routes = np.asarray(chunks.route(rows))
            for chunk in np.unique(routes[routes >= then.chunks]).tolist():
                keys = KeySet.of(rows.filter(pa.array(routes == chunk)), key)
                more[chunk] = more[chunk].union(keys) if chunk in more else keys
        if not more:
            return then
        return replace(then, seen=self._seen.with_more(then.seen, more, then.chunks, step))

    def _chunk(self, then: LightProgress) -> tuple[pa.Table, LightProgress]:
        """The rows of the next chunk that no change has touched."""
        load, number = self._load(then), then.chunks
        table = self._table(load)
        chunk = load.plan.chunks.chunks[number]
        rows, high = chunk_rows(self._config, table, chunk, partial(_whole, self._view.source))
        overtaken = self._seen.of_rows(then.seen, number, rows)
        is_last = number + 1 == len(load.plan.chunks.chunks)
        seen = without_chunk(then.seen, number, is_last=is_last)
        then = replace(then, chunks=number + 1, seen=seen, high_ms=max(high, then.high_ms))
        return rows.filter(pa.array(~overtaken)), then

    def _delta(self, parts: Sequence[tuple[str, pa.Table]], gone: Sequence[pa.Table]) -> pa.Table:
        """KIND and the view's columns; of keys that go, NULL in the others."""
        columns = [column.with_nullable(True) for column in self._view.schema.arrow]
        schema = pa.schema([pa.field(KIND, pa.string()), *columns])
        tables = [schema.empty_table()]
        for kind, rows in [*parts, *(("-D", keys) for keys in gone)]:
            size = rows.num_rows
            if size:
                cells = {KIND: pa.repeat(kind, size)}
                cells |= {
                    column.name: rows[column.name].cast(column.type)
                    if column.name in rows.column_names
                    else pa.nulls(size, column.type)
                    for column in columns
                }
                tables.append(pa.table(cells, schema=schema))
        return pa.concat_tables(tables)

    # --- loads, logs, progress -------------------------------------------------------------------

    def _begin(self, step: int) -> LightProgress:
        """Begin to load: note where the log is, then plan the chunks."""
        config, table = self._config, self._view.table
        self.close()  # a place in a log that somebody reads cannot be left
        if noted_reader(config, self._folder) not in (None, self._reader):
            leave_sink(config, self._folder, self._fence)
        note_reader(self._folder, self._reader, self._fence)
        schemas = {table: self._view.source}
        reader = None if self._reader is None else log_reader(config, self._reader.light)
        offsets, ends = begin_offsets(config, {}, [table], {table}, schemas, reader)
        begin, since = begin_positions(config, table, ends, {})
        start = LoadStart(offsets, -1, 0)
        plan = plan_load(config, table, self._view.source, start, begin, since)
        self._chunks_read.unlink(missing_ok=True)
        runner = self._progress.begin(step, LightLoad(self._view.digest, plan))
        count = len(plan.chunks.chunks)
        many = f"{counted(count, 'chunk')}, {counted(plan.chunks.rows, 'row')}"
        self._say(f"{self._what}: loading {table}, {many}")
        asked = plan.asked_ms + config.changes[self._connection].delay
        newest = dict.fromkeys(begin, asked)
        return LightProgress(step, runner, offsets[self._connection], -1, dict(begin), newest)

    def _load(self, at: LightProgress) -> LightLoad:
        name = at.load, at.runner
        if name not in self._loads:
            self._loads = {**self._loads, name: self._progress.load(at)}
        return self._loads[name]

    def _is_mine(self, at: LightProgress) -> bool:
        return self._load(at).definition == self._view.digest

    def _opened(self, at: LightProgress) -> Changelogs:
        """The log; opened again where a load is complete, as a load reads in another way."""
        if self._logs is None or self._logs[0] != (at.load, at.loaded):
            is_news = self._logs is not None and at.loaded
            self.close()
            load = self._load(at)
            table = self._table(load)
            if at.loaded:
                table = replace(table, plan=None, since={})
            place = self._place(at)
            spec = QuerySpec(
                generation=0,
                config=self._config,
                tables={table.name: table},
                start=place["connections"],
                watermark=at.watermark,
                tasks=1,
                once=self._once,
                light="" if self._reader is None else self._reader.light,
            )
            logs = Changelogs(spec.write(self._progress.spec))
            self._logs = (at.load, at.loaded), logs
            if at.loaded:
                if self._once:
                    logs.finish()
                if is_news:
                    self._say(f"{self._what}: loaded, and live")
        return self._logs[1]

    def _table(self, load: LightLoad) -> TableSpec:
        plan, folder = load.plan, self._progress.folder
        return TableSpec(
            self._view.table, self._view.source, folder, "", plan.chunks, dict(plan.since)
        )

    def _place(self, at: LightProgress) -> dict[str, Any]:
        connections = {self._connection: at.offsets}
        place = {"connections": connections, "watermark": at.watermark, "pinned_ms": 0}
        known = Cut(None if at.watermark < 0 else SourceMs(at.watermark), None)
        return {**place, "cuts": {self._connection: plain(known)}, "halts": {}}

    @property
    def _connection(self) -> str:
        return self._view.table.connection

    @property
    def _chunks_read(self) -> Path:
        return self._progress.folder / CHUNKS_READ

    def _known(self) -> dict[int, LightProgress]:
        if self._steps is None:
            is_mine = noted_reader(self._config, self._folder) == self._reader
            # Of another reader's place nothing is known.
            self._steps = self._progress.steps() if is_mine else {}
        return self._steps

    def _note(self, step: int, progress: LightProgress) -> None:
        self._progress.write(step, progress)
        self._steps = {**self._known(), step: progress}
        steps = sorted(number for number in self._steps if number >= progress.load)[-KEPT:]
        self._steps = {number: self._steps[number] for number in steps}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Errors of clients as ours; what they have open is opened anew."""
        self.is_reading = True
        try:
            yield
        except DataLostError as error:
            self.close()
            view = self._view.name
            hint = (
                f"`mview drop {typed(view)}` and run it again: its tables in sinks are filled anew"
            )
            raise DataLostError(**{**error.parts, "hint": hint}) from error
        except MviewError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise of_the_system(error) or RetryableError(
                f"the changelog of {self._view.table} cannot be read",
                got=f"{type(error).__name__}: {error}"[:2000],
                safe="what was brought stays",
                hint="it is tried again; add --debug for the place",
            ) from error
        finally:
            self.is_reading = False


def _whole(source: TableSchema, batches: Iterator[pa.RecordBatch]) -> pa.Table:
    schema = pa.schema([field.with_nullable(True) for field in source.arrow])
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)
