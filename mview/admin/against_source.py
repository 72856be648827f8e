"""Tables against their databases, while both go on: no row is called wrong that only has changed.

A first look reads the table once, chunk by chunk, and keeps the rows that our copy does not have
alike. Most of these have changed meanwhile. So they are read again, between two states of the copy:
one from before the read, and one that has every change up to it, as the watermark says. A row that
is in the database as the copy had it before or has it after is right. One that the copy had alike
before and after, but the database otherwise, is wrong: no change was on its way. Any other has
changed once more, and is read again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mview.admin.content import published
from mview.clock import SourceMs, SystemClock, utc_text
from mview.config import Config, secret_values
from mview.errors import RetryableError, UserError, concerning, counted, known_error
from mview.ingest.chunks import chunk_rows
from mview.ingest.mending.rereads import RereadLog, RereadRequest, plan_anew
from mview.ingest.spec import TableSpec
from mview.memory import Memory
from mview.plan.text.place import did_you_mean
from mview.relation import RelationId
from mview.rows.equality import as_shown, identical_rows
from mview.rows.hashing import Hashes, hash_rows
from mview.rows.match import match, row_codes
from mview.secrets import Mask
from mview.snapshot import Chunk, ChunkPlan
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest, TableState, read_until
from mview.store.mirror import Mirror

#: Differing rows that are shown of a table.
_SHOWN = 20

#: Rows that are read again, and of which the difference is worked out: they are held.
_HELD = 200_000

#: Rows that differ are wrong when they do so in as many reads one after the other: within an epoch
#: a row may change and change back, which no state of the copy shows.
_TWICE = 2

#: Reads after which a row that changes all the time is given up.
_ROUNDS = 6

#: Seconds between two looks at what is published, and without a move of the watermark until it is
#: said to stand still.
_LOOK_S, _STILL_S = 0.1, 60.0

#: Bytes of a row's hash, and of what it takes to sort and mark it.
_HASH_BYTES = 32

#: Chunks between two reports of progress.
_SAY_EVERY = 10

V = TypeVar("V")
Say = Callable[[str], None]


@dataclass(frozen=True)
class RowDifference:
    """A row that is otherwise in the database than in our copy.

    Attributes:
        key: of the row, by column.
        only_in: the side that has it alone; `neither`: both have it, with other values.
        columns: those with other values.
    """

    key: Mapping[str, object]
    only_in: Literal["source", "mirror", "neither"]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableVerified:
    """A table of a database against our copy of it, the mirror.

    Attributes:
        table: `<connection>.<table>`.
        epoch: the newest epoch that was compared.
        rows: rows of the table that were read.
        equal: no row differs, and none is undecided.
        differing: rows that differ.
        undecided: rows that differ, and may have changed: see `error`.
        changing: rows that change more often than they can be compared: nothing is said of them.
        sample: some of the differing rows, else of the undecided ones.
        error: why it was not compared, or not to the end; empty: it was.
        repaired: rows that differed, before their chunks were read anew; the rest was found after.
    """

    table: str
    epoch: int
    rows: int
    equal: bool
    differing: int = 0
    undecided: int = 0
    changing: int = 0
    sample: tuple[RowDifference, ...] = ()
    error: str = ""
    repaired: int = 0


def verify_tables(
    config: Config,
    tables: Sequence[RelationId],
    say: Say = lambda _: None,
    *,
    repair: bool = False,
) -> list[TableVerified]:
    """Compare tables with their databases; what fails for one is in its result.

    Args:
        config: the configuration.
        tables: of the store; none: all of them.
        say: is told of progress.
        repair: have the run read chunks anew in which rows differ, and compare once more.

    Raises:
        UserError: nothing was published, or a table is not in the store.
    """
    known = published(config).source_tables
    for table in tables:
        if table not in known:
            hint = did_you_mean(str(table), [str(name) for name in known])
            raise UserError(f"the store has no table {table}", where=str(config.store), hint=hint)
    from mview.execute.queries import limit_memory

    limit_memory(Memory(config.engine.memory).queries)
    return [_verified(config, table, say, repair) for table in tables or sorted(known)]


def _verified(config: Config, table: RelationId, say: Say, repair: bool) -> TableVerified:
    comparison = Comparison(config, table, say)
    try:
        with concerning(f"table {table}"):
            result = comparison.compare()
            if not repair or result.equal:
                return result
            if why := comparison.repair():
                return replace(result, error=why)
            again = Comparison(config, table, say).compare()
            return replace(again, repaired=result.differing + result.undecided)
    except Exception as error:
        told = str(Mask(secret_values(config))(known_error(error).render()))
        return TableVerified(str(table), comparison.epoch, 0, False, error=told)


class _SourceRows(NamedTuple):
    """Rows of the source, and its clock after they were read."""

    rows: pa.Table
    high_ms: SourceMs


@dataclass
class _Findings:
    """What is known of differing rows so far."""

    differing: int = 0
    undecided: int = 0
    changing: int = 0
    why: str = ""
    #: Chunks of the plan with rows that differ.
    chunks: set[int] = field(default_factory=set)
    wrong: list[RowDifference] = field(default_factory=list)
    unsure: list[RowDifference] = field(default_factory=list)


class _Suspects:
    """Keys of rows to be looked at again: so many as may be held, and the count of the others.

    Args:
        key: the columns of the key.
    """

    def __init__(self, key: pa.Schema) -> None:
        self._key, self._lock = key, threading.Lock()
        self._parts, self._held = [key.empty_table()], 0
        self.more = 0
        #: Chunks of those that are not held.
        self.chunks: set[int] = set()

    def add(self, rows: pa.Table, flags: npt.NDArray[np.bool_], plan: ChunkPlan) -> None:
        """Take the rows that are flagged; from any thread."""
        if not flags.any():
            return
        keys = rows.select(self._key.names).filter(pa.array(flags)).cast(self._key)
        with self._lock:
            held = keys.slice(0, _HELD - self._held)
            self._parts.append(held)
            self._held += held.num_rows
            if left := keys.num_rows - held.num_rows:
                self.more += left
                self.chunks |= set(map(int, plan.route(keys.slice(held.num_rows))))

    def keys(self) -> pa.Table:
        """The keys that are held, each once."""
        keys = pa.concat_tables(self._parts)
        (codes,) = row_codes([keys])
        return keys.take(pa.array(np.sort(np.unique(codes, return_index=True)[1])))


class Comparison:
    """One table, its database and our copy.

    Args:
        config: the configuration.
        table: a table of the store.
        say: is told of progress.
    """

    def __init__(self, config: Config, table: RelationId, say: Say = lambda _: None) -> None:
        self._config, self._table, self._say = config, table, say
        self._store = Store(config.store)
        self._outcome = _Findings()
        self._rows = 0
        manifest = published(config)
        #: The newest epoch that was looked at.
        self.epoch = manifest.epoch
        self._schema = manifest.tables[table].schema
        key = [field.with_nullable(True) for field in self._schema.key_arrow]
        self._key = pa.schema(key)
        self._loose = pa.schema([field.with_nullable(True) for field in self._schema.arrow])

    def compare(self) -> TableVerified:
        """Read the table, and decide about each row that differs.

        Raises:
            MviewError: the database or the copy cannot be read.
        """
        self._newest()
        self._plan = plan_anew(self._config, self._table, self._schema)
        suspects, done = self._first_look(), self._outcome
        self._decide(suspects.keys())
        why, more = done.why, suspects.more
        if more:
            why = f"{why}; " if why else ""
            why += f"more rows differ than the {_HELD:,} that are read again"
            done.chunks |= suspects.chunks
        return TableVerified(
            str(self._table),
            self.epoch,
            self._rows,
            not (done.differing or done.undecided or more),
            done.differing,
            done.undecided + more,
            done.changing,
            tuple((done.wrong or done.unsure)[:_SHOWN]),
            why,
        )

    # --- the first look --------------------------------------------------------------------------

    def _first_look(self) -> _Suspects:
        """The rows that are not alike on both sides."""
        manifest, suspects = self._newest(), _Suspects(self._key)
        for chunks in self._groups(manifest.tables[self._table].rows):
            self._look(manifest, chunks, suspects)
        return suspects

    def _groups(self, rows: int) -> Iterator[Sequence[Chunk]]:
        """Chunks whose rows' hashes fit into memory together: nearly always all of them."""
        chunks = self._plan.open_chunks
        fit = Memory(self._config.engine.memory).whole // _HASH_BYTES
        size = max(1, len(chunks) * fit // max(1, rows, self._plan.rows))
        for start in range(0, len(chunks), size):
            yield chunks[start : start + size]

    def _look(self, manifest: Manifest, chunks: Sequence[Chunk], suspects: _Suspects) -> None:
        """Find rows of either side that the other does not have, by their hashes."""
        hashes = [_hashes(part) for part in self._mirrored(manifest, chunks)]
        known = np.unique(np.concatenate([np.empty(0, np.int64), *hashes]))
        del hashes
        seen = np.zeros(len(known), np.bool_)

        def look(batches: Iterator[pa.RecordBatch]) -> int:
            rows = 0
            for batch in batches:
                part = pa.Table.from_batches([batch])
                there, at = _within(known, _hashes(part))
                seen[at[there]] = True  # whichever thread comes first
                suspects.add(part, ~there, self._plan)
                rows += part.num_rows
            return rows

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for number, (rows, _) in enumerate(pool.map(partial(self._read, look), chunks), 1):
                self._rows += rows
                if number % _SAY_EVERY == 0:
                    self._say(f"{self._table}: read {number} of {counted(len(chunks), 'chunk')}")
        if not seen.all():
            for part in self._mirrored(manifest, chunks):
                suspects.add(part, ~seen[_within(known, _hashes(part))[1]], self._plan)

    def repair(self) -> str:
        """Have the chunks in which rows differ read anew; returns why that is not done, yet.

        It corrects what differs and nothing else, so it does not matter what was decided of a row.
        """
        chunks = tuple(sorted(self._outcome.chunks))
        log = RereadLog(self._store.rereads)
        file = log.ask(RereadRequest(self._table, self._plan, chunks))
        many = counted(len(chunks), "chunk")
        self._say(f"{self._table}: waiting for the run to read {many} anew")
        still = _Still(self._store, self._read_until)
        while file.exists():
            if why := still.why():
                return f"{many} to be read anew, when changes are followed: {why}"
            time.sleep(_LOOK_S)
        if refused := log.why_refused(file):
            return (
                f"{many} to be read anew, which cannot be done: {refused.text}; next: "
                f"{refused.hint}"
            )
        return ""

    # --- row by row ------------------------------------------------------------------------------

    def _decide(self, suspects: pa.Table) -> None:
        """Read rows again until each is right, wrong, or given up."""
        times = np.zeros(suspects.num_rows, np.int64)
        for _ in range(_ROUNDS):
            if not suspects.num_rows:
                return
            before = self._newest()
            old = self._copied(before, suspects)
            now = self._read_again(suspects)
            differs = _ThreeReads(suspects, old, now.rows, old).differ()
            if not differs.any():
                return
            suspects, times = suspects.filter(pa.array(differs)), times[differs]
            after, why = self._passed(now.high_ms)
            if after is None:
                self._note(suspects, now.rows, old, undecided=why)
                return
            new = self._copied(after, suspects)
            sides = _ThreeReads(suspects, old, now.rows, new)
            times = np.where(sides.differ(), times + 1, 0)
            wrong = times >= _TWICE
            if wrong.any():
                self._note(suspects.filter(pa.array(wrong)), now.rows, new)
            left = ~wrong & ~sides.explained()
            suspects, times = suspects.filter(pa.array(left)), times[left]
        self._outcome.changing = suspects.num_rows

    def _note(
        self, keys: pa.Table, source: pa.Table, mirror: pa.Table, undecided: str = ""
    ) -> None:
        done, shown = self._outcome, self._differences(keys.slice(0, _SHOWN), source, mirror)
        done.chunks |= set(map(int, self._plan.route(keys)))
        if undecided:
            done.why, done.undecided = undecided, done.undecided + keys.num_rows
            done.unsure += shown
        else:
            done.differing += keys.num_rows
            done.wrong += shown

    def _differences(
        self, keys: pa.Table, source: pa.Table, mirror: pa.Table
    ) -> list[RowDifference]:
        names, told = list(self._key.names), []
        for number in range(keys.num_rows):
            key = keys.slice(number, 1)
            ours, theirs = (
                side.take(pa.array(match(side.select(names), key)[0])) for side in (mirror, source)
            )
            columns: tuple[str, ...] = ()
            only: Literal["source", "mirror", "neither"] = "neither"
            if not ours.num_rows or not theirs.num_rows:
                only = "mirror" if ours.num_rows else "source"
            else:
                columns = tuple(
                    name
                    for name in self._schema.names
                    if not identical_rows([ours[name]], [theirs[name]]).all()
                )
            told.append(RowDifference(key.to_pylist()[0], only, columns))
        return told

    # --- reading ---------------------------------------------------------------------------------

    def _newest(self) -> Manifest:
        """What is published now.

        Raises:
            RetryableError: the table is not loaded, or was loaded anew meanwhile.
        """
        manifest = published(self._config)
        state = manifest.tables.get(self._table)
        if state is not None and state.halted:
            raise RetryableError(
                "the table has halted: it stays as it is until it is loaded anew",
                safe="nothing was changed",
                hint="`mview status` says why; verify it when it is loaded again",
            )
        if state is None or state.phase != "loaded" or state.schema != self._schema:
            raise RetryableError(
                "the table is not loaded" if state else "the table was dropped meanwhile",
                safe="nothing was changed",
                hint="`mview status` shows how far its load is; verify it when it is done",
            )
        self.epoch = manifest.epoch
        return manifest

    def _read(
        self, take: Callable[[Iterator[pa.RecordBatch]], V], chunk: Chunk
    ) -> tuple[V, SourceMs]:
        spec = TableSpec(self._table, self._schema, Path(), "", self._plan)
        return chunk_rows(self._config, spec, chunk, take)

    def _read_again(self, keys: pa.Table) -> _SourceRows:
        """The rows of the source that have these keys."""
        numbers = set(map(int, self._plan.route(keys)))
        parts, high = [self._loose.empty_table()], SourceMs(0)

        def wanted(batches: Iterator[pa.RecordBatch]) -> list[pa.Table]:
            return [self._of_keys(pa.Table.from_batches([batch]), keys) for batch in batches]

        chunks = [chunk for chunk in self._plan.open_chunks if chunk.number in numbers]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for rows, after in pool.map(partial(self._read, wanted), chunks):
                parts += [part.cast(self._loose) for part in rows]
                high = max(high, after)
        return _SourceRows(pa.concat_tables(parts), high)

    def _mirrored(self, manifest: Manifest, chunks: Sequence[Chunk]) -> Iterator[pa.Table]:
        """The rows of our copy that are in some chunks, in parts that are not empty."""
        numbers = [chunk.number for chunk in chunks]
        every = len(numbers) == len(self._plan.bounds) + 1
        for part in self._copy(manifest.tables[self._table]):
            if not every and part.num_rows:
                part = part.filter(pa.array(np.isin(self._plan.route(part), numbers)))
            if part.num_rows:
                yield part

    def _copied(self, manifest: Manifest, keys: pa.Table) -> pa.Table:
        """The rows of our copy that have these keys."""
        parts = [self._of_keys(part, keys) for part in self._copy(manifest.tables[self._table])]
        return pa.concat_tables([self._loose.empty_table(), *parts])

    def _copy(self, state: TableState) -> Iterator[pa.Table]:
        mirror = Mirror(self._store.mirror(self._table), state.schema)
        for part in mirror.parts(state):
            yield part.select(self._loose.names).cast(self._loose)

    def _of_keys(self, rows: pa.Table, keys: pa.Table) -> pa.Table:
        there, _ = match(rows.select(self._key.names).cast(self._key), keys)
        return rows.take(pa.array(there))

    def _until(self, manifest: Manifest) -> SourceMs | None:
        return read_until(manifest.cuts_of([self._table.connection]).values())

    def _read_until(self) -> SourceMs | None:
        return self._until(self._newest())

    def _passed(self, high_ms: SourceMs) -> tuple[Manifest | None, str]:
        """A state of our copy that has all changes up to a time; else why there is none."""
        goal = high_ms + self._config.changes[self._table.connection].delay
        still, told = _Still(self._store, self._read_until), False
        while True:
            manifest = self._newest()
            until = self._until(manifest)
            if until is not None and until > goal:
                return manifest, ""
            if why := still.why():
                return None, why
            if not told:
                self._say(f"{self._table}: waiting for the changes up to {utc_text(goal)} UTC")
                told = True
            time.sleep(_LOOK_S)


class _Still:
    """Whether the changes are followed, from now on.

    Args:
        store: the store.
        read_until: up to which source time changes are published; None: unknown.
    """

    def __init__(self, store: Store, read_until: Callable[[], SourceMs | None]) -> None:
        self._lease, self._read_until = Lease(store.lease, SystemClock()), read_until
        self._moved, self._mark = time.monotonic(), -1

    def why(self) -> str:
        """Why they are not; empty: they are."""
        known = self._read_until()
        watermark = -1 if known is None else known
        seen = "unknown" if known is None else f"{utc_text(watermark)} UTC"
        if self._lease.holder() is None:
            return (
                f"changes since {seen} are not read, as no run follows them: start `mview run`, "
                "and verify while it runs"
            )
        if watermark > self._mark:
            self._moved, self._mark = time.monotonic(), watermark
        elif time.monotonic() - self._moved > _STILL_S:
            return f"the changelog stands still: its watermark is {seen}; see `mview status`"
        return ""


class _ThreeReads:
    """Rows of three reads by key: our copy before, the source between, our copy after.

    Args:
        keys: distinct ones.
        before: rows; of keys that are not wanted, too.
        now: rows.
        after: rows.
    """

    def __init__(self, keys: pa.Table, before: pa.Table, now: pa.Table, after: pa.Table) -> None:
        sides = (before, now, after)
        wanted, *places = row_codes([keys, *(side.select(keys.column_names) for side in sides)])
        contents = row_codes([as_shown(side) for side in sides])
        size = max((codes.max(initial=-1) for codes in (wanted, *places)), default=-1) + 1
        rows = np.full((len(sides), size), -1)
        for number, (place, content) in enumerate(zip(places, contents, strict=True)):
            rows[number, place] = content
        self._before, self._now, self._after = rows[:, wanted]

    def explained(self) -> npt.NDArray[np.bool_]:
        """Which rows were read as our copy had or has them."""
        flags: npt.NDArray[np.bool_] = (self._now == self._before) | (self._now == self._after)
        return flags

    def differ(self) -> npt.NDArray[np.bool_]:
        """Which rows our copy had alike before and after, and the source has otherwise."""
        flags: npt.NDArray[np.bool_] = ~self.explained() & (self._before == self._after)
        return flags


def _hashes(rows: pa.Table) -> Hashes:
    shown = as_shown(rows).columns
    # A column that is alone would be its own hash; the same as a word of two is mixed.
    return hash_rows([*shown, shown[0]])


def _within(known: Hashes, hashes: Hashes) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which hashes are known, and where."""
    if not len(known):
        return np.zeros(len(hashes), np.bool_), np.zeros(len(hashes), np.int64)
    at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return known[at] == hashes, at
