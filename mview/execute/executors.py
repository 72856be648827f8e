"""Which executor runs what, in one place: the choice is made per look-up, view and epoch.

Look-ups run in process where the mirror is resident; SQL runs in process where every operator,
function and type of it is admitted. Everything else is Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa

from mview.connector import WEIGHT
from mview.errors import CorruptionError, DataError, UserError
from mview.execute.culprit import failing_rows
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.local.index import ResidentTable
from mview.execute.local.lookups import LocalLookups
from mview.execute.local.returning import Absent, Returning
from mview.execute.program import (
    BatchNeededError,
    Request,
    TooManyRowsError,
    ViewDelta,
    run_view,
)
from mview.execute.refusal import EvaluationError, NotAdmittedError
from mview.execute.relations import Relation, row_bytes
from mview.execute.slices import Changes
from mview.execute.spark.executor import SparkExecutor
from mview.ivm.plan import ViewPlan
from mview.memory import Memory
from mview.plan.clocks import is_clock, pinned_rows
from mview.relation import RelationId
from mview.rows.match import Positions, rows_at
from mview.rows.parts import Parts
from mview.store.mirror import ROW

Choice = Literal["auto", "spark", "local"]

#: A table with more rows is not brought to the driver whole, nor are more rows of a range: the view
#: is computed as a whole instead.
WHOLE_ROWS = 200_000


class _Read(threading.local):
    rows = 0


class Executors:
    """Look-ups and view deltas over the open relations.

    Args:
        spark: runs anything, at the price of Spark jobs.
        relations: the open mirrors, by relation name.
        choice: `auto`, or one executor forced (tests, benchmarks).
        memory: what may be held in process.
        pinned: tells the published pinned time, in milliseconds, which the clocks show.
    """

    def __init__(
        self,
        spark: SparkExecutor,
        relations: Mapping[RelationId, Relation],
        choice: Choice,
        memory: Memory,
        pinned: Callable[[], int] = lambda: 0,
    ) -> None:
        self._spark, self._relations, self._choice = spark, relations, choice
        self._pinned, self._memory = pinned, memory
        self._lookups = LocalLookups(0 if choice == "spark" else memory.tables)
        #: The columns that rows are looked up by, per relation.
        self._keys: dict[RelationId, set[tuple[str, ...]]] = {}
        self._evaluator = LocalEvaluator()
        #: Why a plan's SQL runs on Spark.
        self.refused: dict[RelationId, str] = {}
        self._read = _Read()
        self._absent = Absent()
        self._returning: Returning | None = None
        #: Changes that will be taken in, and what goes and comes.
        self._foreseen: dict[RelationId, tuple[pa.Table, tuple[pa.Table, pa.Table]]] = {}
        #: Tables that have left memory, and are not copied for Spark yet.
        self._left: list[RelationId] = []
        self._news: list[str] = []
        #: The version of its changelog that each resident table is at.
        self._at: dict[RelationId, int] = {}
        #: Relations that could not be brought into memory as a file of theirs is damaged.
        self.damaged: dict[RelationId, CorruptionError] = {}

    def warm(
        self,
        keys: Mapping[RelationId, Iterable[tuple[str, ...]]],
        among: Collection[RelationId] | None = None,
    ) -> list[RelationId]:
        """Bring mirrors into memory, small ones first; returns those that did not fit.

        Those that are there and were moved along stay. Executors of Spark then have copies of what
        did not fit, see `SparkExecutor.prepare`.

        Args:
            keys: columns that rows will be looked up by, per relation, beside its primary key.
            among: what to bring; None: all.
        """
        self._keys = {
            name: {relation.schema.key, *keys.get(name, ())}
            for name, relation in self._relations.items()
        }
        left_out = []
        self.damaged = {}
        by_rows = sorted(self._relations.items(), key=lambda item: item[1].state.rows)
        for name, relation in by_rows:
            if self._choice == "spark" or relation.state.phase != "loaded":
                continue
            if among is not None and name not in among:
                continue
            if self._at.get(name) == relation.state.changelog_version:
                continue
            size = _least_bytes(relation)
            self._stop_return(name)
            try:
                if self._lookups.fits(size) and self._bring(name, relation):
                    self._absent.remove(name)
                else:
                    left_out.append(name)
                    self._absent.add(name)
            except CorruptionError as error:
                self.damaged[name] = error
            # Else what was needed to read one table adds to what the next one needs.
            pa.default_memory_pool().release_unused()
        for name, columns in self._keys.items():
            for names in columns:
                self._lookups.prepare(name, names)
        for name in left_out:
            self.prepare(name, self._relations[name].base_files)
        return left_out

    def _bring(self, name: RelationId, relation: Relation) -> bool:
        """Make a table resident, unless its rows turn out to be too large."""
        rows = relation.mirror.scan_within(relation.state, self._lookups.room)
        if rows is None or not self._lookups.add(ResidentTable(name, relation.schema.key, rows)):
            return False
        self._at[name] = relation.state.changelog_version
        return True

    def forget(self, relation: RelationId) -> None:
        """Forget a relation that is gone, or begins anew."""
        self._stop_return(relation)
        self._absent.forget(relation)
        self._lookups.drop(relation)
        self._at.pop(relation, None)
        self.refused.pop(relation, None)

    def prepare(self, relation: RelationId, files: Sequence[tuple[str, int]]) -> None:
        """Make base files ready to be looked into on Spark; nothing where memory has the rows.

        May be called beside epochs.

        Args:
            relation: the files' relation.
            files: (path, rows).
        """
        if relation in self._keys and not self._lookups.resident(relation, ()):
            self._spark.prepare(relation, files, self._keys[relation])

    def rows(self, relation: RelationId) -> int:
        """The number of rows of a relation or clock as published."""
        return 1 if is_clock(relation) else self._relations[relation].state.rows

    def numbers(self, relation: RelationId) -> tuple[str, ...]:
        """The column of the numbers of rows that have no key; () where they have one."""
        return (
            () if is_clock(relation) or self._relations[relation].schema.key != (ROW,) else (ROW,)
        )

    def most(self, relation: RelationId, columns: Sequence[str]) -> int:
        """How many rows of a relation or clock a look-up may bring to the driver."""
        if is_clock(relation):
            return 1
        there = self._relations[relation]
        row = row_bytes([there.schema.column(name) for name in columns], text=there.text_bytes)
        return self._memory.found // row

    @property
    def rows_read(self) -> int:
        """Rows that all look-ups of this thread have found so far."""
        return self._read.rows

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        """Rows of relations and clocks as published."""
        replies: dict[int, pa.Table] = {}
        far = []
        for number, request in enumerate(requests):
            if is_clock(request.table):
                replies[number] = pinned_rows(request.table, self._pinned())
            elif self._lookups.resident(request.table, request.select):
                (replies[number],) = self._lookups.fetch([request])
                request.check(replies[number])
            else:
                far.append(number)
        if far:
            answers = self._spark.fetch([requests[number] for number in far])
            replies.update(zip(far, answers, strict=True))
        self._read.rows += sum(rows.num_rows for rows in replies.values())
        return [replies[number] for number in range(len(requests))]

    def run(
        self,
        plan: ViewPlan,
        deltas: Mapping[RelationId, Changes],
    ) -> tuple[ViewDelta | None, str]:
        """One epoch of one view.

        Args:
            deltas: what has changed, by relation.

        Returns:
            The delta (None: nothing changed) and the name of the executor.

        Raises:
            UserError: the local executor is forced and the view's SQL is not admitted.
            BatchNeededError: a table of more than WHOLE_ROWS rows would be needed whole, a range of
                it has so many, or a look-up finds more than its share of memory; or the query fails
                over the changes.
        """
        lookups = _Bounded(self)
        groups = self._groups(plan.state)
        if self._choice != "spark" and plan.relation not in self.refused:
            try:
                return run_view(plan, deltas, lookups, self._evaluator, groups), "local"
            except NotAdmittedError as reason:
                if self._choice == "local":
                    raise UserError(
                        f"view {plan.definition.name} cannot run in process: {reason}",
                        hint="set engine.executor to 'auto'",
                    ) from None
                self.refused[plan.relation] = str(reason)
            except EvaluationError:
                pass  # an outcome that only Spark decides, e.g. an overflow: Spark runs this epoch
        return run_view(plan, deltas, lookups, self._spark, groups), "spark"

    def rows_after(
        self, relation: RelationId, change: pa.Table | None, columns: Sequence[str]
    ) -> Parts | None:
        """All rows of a relation as an epoch will leave them; None: memory does not have it.

        Args:
            relation: its name.
            change: the epoch's weighted rows; None for none.
            columns: what to return.
        """
        if not self._lookups.resident(relation, columns):
            return None
        rows = _sides(change) if change is not None else None
        return self._lookups.after(relation, rows, columns)

    def whole(self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema) -> pa.Table:
        """The rows of a query over whole tables, in process; see `may_run_whole`.

        Args:
            sql: the same text for the same view, as it is planned once.
            relations: what it reads, by the names that it has there.
            result: the columns of the result.

        Raises:
            EvaluationError: Spark has to run it.
        """
        return self._evaluator.run(sql, relations, result)

    def stream(
        self, sql: str, relations: Mapping[str, Parts], result: pa.Schema
    ) -> Iterator[pa.Table]:
        """The same part by part, for what may be larger than memory; see `may_run_whole`.

        Raises:
            EvaluationError: Spark has to run it; no part that came before counts.
        """
        return self._evaluator.stream(sql, relations, result)

    def may_run_whole(self, sql: str, schemas: Mapping[str, pa.Schema], result: pa.Schema) -> bool:
        """Whether a query over whole tables is admitted in process; arguments as for `whole`."""
        if self._choice == "spark":
            return False
        try:
            self._evaluator.prepare(sql, schemas, result)
        except NotAdmittedError:
            return False
        return True

    def _groups(self, state: RelationId | None) -> _State | None:
        return None if state is None else _State(self, state, self._relations[state])

    def failing_rows(
        self,
        plan: ViewPlan,
        deltas: Mapping[RelationId, pa.Table],
        fails: Callable[[Exception], bool],
    ) -> tuple[RelationId, pa.Table] | None:
        """The changed rows over which an epoch of a view fails, see `execute/culprit.py`.

        Args:
            plan: the view's plan; it is not computed as a whole.
            deltas: weighted rows of the changed tables.
            fails: whether an exception of Spark is the failure.
        """
        lookups = _Bounded(self)
        groups = self._groups(plan.state)
        local = self._choice != "spark" and plan.relation not in self.refused

        def failing(some: Mapping[RelationId, pa.Table]) -> bool:
            changes = {name: Changes(rows) for name, rows in some.items()}
            try:
                run_view(plan, changes, lookups, self._evaluator if local else self._spark, groups)
            except TooManyRowsError:
                return False  # that is no failure of these rows: none of them is to be named
            except (EvaluationError, BatchNeededError, DataError):
                return True
            except Exception as error:
                if not fails(error):
                    raise
                return True
            return False

        searched = [name for name in deltas if not name.is_inner]
        return failing_rows(deltas, {name: plan.schemas[name].key for name in searched}, failing)

    def key_numbers(self, relation: RelationId, keys: pa.Table) -> Positions | None:
        """Of each row that a look-up of many keys has just found, which of them it has."""
        return self._lookups.key_numbers(relation, keys)

    def foresee(self, relation: RelationId, rows: pa.Table, codes: Positions | None) -> None:
        """Find what `move` of these very rows needs to find, beside look-ups.

        Args:
            relation: what they change.
            rows: weighted.
            codes: of their keys; by `key_numbers` they tell where the rows are.
        """
        sides = _sides(rows)
        self._foreseen[relation] = rows, sides
        self._lookups.foresee(relation, *sides, codes)

    def move(self, deltas: Mapping[RelationId, pa.Table]) -> None:
        """Follow a published epoch: weighted rows per relation; what comes and goes is news."""
        foreseen, self._foreseen = self._foreseen, {}
        changes = {}
        for name, rows in deltas.items():
            known = foreseen.get(name)
            changes[name] = known[1] if known and known[0] is rows else _sides(rows)
        gone = self._lookups.apply(changes)
        for name in gone:
            self._absent.add(name)
        if gone:
            self._left += gone
            self._news.append(far(gone))
        self._take_in(changes)
        self._at = {
            name: relation.state.changelog_version
            for name, relation in self._relations.items()
            if self._lookups.resident(name, ())
        }

    def bring_back(self) -> Callable[[], None] | None:
        """What brings a table back that memory has room for again, to be run beside the epochs.

        Called when memory follows what is published. The table is in memory after an epoch that
        is published when this has run.

        Returns:
            None: nothing is due.
        """
        if self._returning is not None:
            return None
        for name in self._absent.due():
            relation = self._relations.get(name)
            if relation is None or relation.state.phase != "loaded":
                continue
            # With room to grow: else it would leave soon.
            room = self._lookups.room * 4 // 5
            if _least_bytes(relation) > room:
                self._absent.add(name)
                continue
            read = partial(relation.mirror.scan_within, relation.state, room)
            key, indexed = relation.schema.key, self._keys.get(name, ())
            self._returning = Returning(name, key, read, indexed, self._memory.found)
            return self._returning.run
        return None

    def _take_in(self, changes: Mapping[RelationId, tuple[pa.Table, pa.Table]]) -> None:
        """Keep an epoch's changes for the table on its way back; add it when it is there."""
        returning = self._returning
        if returning is None:
            return
        name = returning.name
        if name in changes:
            returning.note(*changes[name])
        if not returning.has_ended:
            return
        self._returning = None
        try:
            table, why = returning.table(), returning.error
        except CorruptionError as error:
            table, why = None, error
        if table is not None and self._lookups.add(table):
            self._absent.remove(name)
            self._news.append(f"in memory again: {name}")
            return
        self._absent.add(name)
        if why is not None:
            self._news.append(f"{name} stays beyond memory: {why}")

    def _stop_return(self, name: RelationId) -> None:
        if self._returning is not None and self._returning.name == name:
            self._returning.give_up()
            self._returning = None

    def left(self) -> list[RelationId]:
        """Tables that have left memory since this was asked last: `prepare` them for Spark."""
        left, self._left = self._left, []
        return left

    def news(self) -> list[str]:
        """What people should know of tables that left memory, or came back, since the last call."""
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Free what is held in memory."""
        if self._returning is not None:
            self._returning.give_up()
        self._lookups.close()
        self._evaluator.close()


def far(names: Iterable[RelationId]) -> str:
    """What people are told of tables that memory has no room for."""
    return f"looked up on Spark, beyond memory: {', '.join(map(str, names))}"


def _least_bytes(relation: Relation) -> int:
    """What the base files of a relation take in memory at least.

    Only what cannot fit is not read at all: rows have what they have at the least (short texts take
    little), and what their compressed files have.
    """
    rows = sum(rows for _, rows in relation.base_files)
    least = row_bytes(relation.schema.columns, text=4)
    return max(rows * least, relation.mirror.file_bytes(relation.state))


def _sides(change: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows that go, and those that come, of weighted ones."""
    comes = change[WEIGHT].to_numpy() > 0
    content = change.drop_columns([WEIGHT])
    # What comes is kept: as a part of the change it would keep what goes, too.
    return rows_at(content, np.flatnonzero(~comes)), content.filter(pa.array(comes))


class _Bounded:
    """Look-ups that bring no more to the driver than it has room for."""

    def __init__(self, executors: Executors) -> None:
        self._executors = executors

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        """See `Lookups`."""
        for request in requests:
            if request.is_whole and self._executors.rows(request.table) > WHOLE_ROWS:
                raise TooManyRowsError(f"all rows of {request.table}")
        tables = self._executors.fetch([self._bounded(request) for request in requests])
        return [rows.select(request.select) for request, rows in zip(requests, tables, strict=True)]

    def _bounded(self, request: Request) -> Request:
        most = self._executors.most(request.table, request.select)
        if request.within is not None:
            # A range is large where the time moved far: after a pause, say.
            most = min(most, WHOLE_ROWS)
        select = (*request.select, *self._executors.numbers(request.table))
        return replace(request, most=most, select=select)


class _State:
    """The aggregate state of a view."""

    def __init__(self, executors: Executors, name: RelationId, relation: Relation) -> None:
        self._executors, self._name, self._relation = executors, name, relation

    def fetch(self, keys: pa.Table | None) -> pa.Table:
        """See `State`."""
        names = self._relation.schema.names
        most = self._executors.most(self._name, names)
        if keys is None and self._executors.rows(self._name) > most:
            raise TooManyRowsError(f"all rows of {self._name}")
        request = Request(self._name, keys, names, null_safe=True, most=most)
        return self._executors.fetch([request])[0]
