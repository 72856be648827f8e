"""Steps 3 and 4 of an epoch: each view adds its part by itself; one that fails leaves no trace.

What a view changes (its rows where others read them, its parts, its state table, what its sink has
staged) stands apart from the others' until all of it is durable. Only then it is taken into the
epoch: a view whose sink refuses its rows in a writer's thread halts as one whose query fails, with
those that read it, and the epoch is published without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from mview.catalog.spark_functions import function_errors
from mview.epoch.cost import FULL, Ran, costs_of, with_run
from mview.epoch.engine import Engine, LiveView
from mview.epoch.halts import at_its_sink, halted, halting, reads_halted, with_rows
from mview.epoch.names import VIEW, state_of
from mview.epoch.report import ViewChange
from mview.epoch.strategy import Done, Task, perform
from mview.errors import MviewError, concerning
from mview.execute.kinds import Counts, Delta, with_kinds
from mview.execute.numbered import number_changes
from mview.execute.program import ViewDelta
from mview.execute.turns import turn
from mview.ivm.plan import ViewPlan
from mview.store.manifest import TableState, ViewState

#: Views at a time: while the query of one runs in DuckDB, another computes in Python.
_maintainers = ThreadPoolExecutor(3, "mview-view")

#: What is written while other views are maintained: it waits for files more than it computes.
_writers = ThreadPoolExecutor(8, "mview-write")


@dataclass
class ViewWork:
    """What one view adds to an epoch.

    Attributes:
        view: the view.
        state: what the manifest will say of it.
        tables: the relations beside its sink, as they are after the epoch.
        deltas: what has changed in them.
        appending: state tables that are being appended to, and what they are then.
        staging: what its sink is staging; None: it has nothing to.
        change: for the report; None: no row has changed.
        error: why it halts in this epoch: nothing of the above counts.
    """

    view: LiveView
    state: ViewState
    tables: dict[str, TableState] = field(default_factory=dict)
    deltas: dict[str, Delta] = field(default_factory=dict)
    appending: dict[str, Future[TableState]] = field(default_factory=dict)
    staging: Future[dict[str, Any]] | None = None
    change: ViewChange | None = None
    error: MviewError | None = None

    @property
    def writing(self) -> list[Future[Any]]:
        """All that is being written."""
        return [*self.appending.values(), *([self.staging] if self.staging else [])]


@dataclass(frozen=True)
class Maintained:
    """What the views add to an epoch, those that have halted left out.

    Attributes:
        tables: all relations after the epoch.
        deltas: what has changed in those of views.
        views: what the manifest says of the views.
        tokens: what sinks have staged, by view.
        changes: for the report.
        halted: views that have halted in this epoch.
    """

    tables: dict[str, TableState]
    deltas: dict[str, Delta]
    views: dict[str, ViewState]
    tokens: dict[str, dict[str, Any]]
    changes: dict[str, ViewChange]
    halted: dict[str, MviewError]


class Maintenance:
    """The views of one epoch.

    Args:
        engine: the open store.
        epoch: its number.
        tables: the relations after the steps before.
        deltas: what has changed in tables and clocks.
        damaged: views that halt in this epoch, whatever has changed, and why.
    """

    def __init__(
        self,
        engine: Engine,
        epoch: int,
        tables: Mapping[str, TableState],
        deltas: Mapping[str, Delta],
        damaged: Mapping[str, MviewError],
    ) -> None:
        self._engine, self._epoch = engine, epoch
        self._tables, self._deltas, self._damaged = tables, deltas, damaged
        self._states = engine.manifest.views
        self._works: dict[str, ViewWork] = {}
        self._running: list[Future[None]] = []

    @contextmanager
    def all_durable(self) -> Iterator[None]:
        """Wait for all writers, also after an error: a roll-back must not overtake one."""
        try:
            yield
        finally:
            wait(self._running)
            wait([one for work in self._works.values() for one in work.writing])

    def run(self) -> None:
        """Maintain all views, those first that others read; some are still being written then."""
        for views in _levels(self._engine.views.values()):
            if len(views) == 1:
                self._maintain_or_halt(views[0])
                continue
            self._running += [_maintainers.submit(self._in_turn, view) for view in views]
            wait(self._running)
            for one in self._running:
                one.result()

    def result(self) -> Maintained:
        """What counts of it, when all is durable.

        Raises:
            MviewError: all views have halted: the epoch fails.
        """
        found = Maintained(dict(self._tables), {}, dict(self._states), {}, {}, {})
        # In DAG order: a view has halted before those that read it are looked at.
        for name in self._engine.views:
            if name in self._works:
                self._collect(self._works[name], found)
        if found.halted and all(state.stale for state in found.views.values()):
            raise next(iter(found.halted.values()))
        return found

    def _collect(self, work: ViewWork, found: Maintained) -> None:
        name = work.view.name
        with self._halting(work):
            self._check_inputs(work.view)
            work.tables.update({n: one.result() for n, one in work.appending.items()})
            token = None if work.staging is None else work.staging.result()
        if work.error is not None:
            found.views[name] = halted(self._states[name], work.error, self._engine.mask)
            found.halted[name] = work.error
            return
        found.tables.update(work.tables)
        found.deltas.update(work.deltas)
        found.views[name] = work.state
        if token is not None:
            found.tokens[name] = token
        if work.change is not None:
            found.changes[name] = work.change

    # --- one view --------------------------------------------------------------------------------

    def _in_turn(self, view: LiveView) -> None:
        with turn():
            self._maintain_or_halt(view)

    def _maintain_or_halt(self, view: LiveView) -> None:
        state = self._states.get(view.name)
        if state is None or state.stale:
            return
        work = self._works[view.name] = ViewWork(view, state)
        work.error = self._damaged.get(view.name)
        if work.error is not None:
            return
        with self._halting(work):
            self._check_inputs(view)
            with concerning(f"view {view.name}"), function_errors():
                self._maintain(work)

    @contextmanager
    def _halting(self, work: ViewWork) -> Iterator[None]:
        """Halt the view by what fails in the block; nothing is done where it has halted already."""
        try:
            yield
        except Exception as error:
            if work.error is None:
                engine = self._engine
                told = halting(error, work.view.name, engine.store, engine.spark)
                inputs = self._read_deltas(work)
                work.error = with_rows(told, error, engine, work.view.plan, inputs)

    def _check_inputs(self, view: LiveView) -> None:
        for name in view.definition.table_names:
            state, work = self._states.get(name), self._works.get(name)
            if (state is not None and state.stale) or (work is not None and work.error is not None):
                raise reads_halted(view.name, name)

    def _read_works(self, work: ViewWork) -> list[ViewWork]:
        """What the views that it reads have added, and it itself so far."""
        read = (self._works.get(name) for name in work.view.definition.table_names)
        return [*(one for one in read if one is not None), work]

    def _read_deltas(self, work: ViewWork) -> dict[str, Delta]:
        found = dict(self._deltas)
        for one in self._read_works(work):
            found.update(one.deltas)
        return found

    def _read_tables(self, work: ViewWork) -> dict[str, TableState]:
        found = dict(self._tables)
        for one in self._read_works(work):
            found.update(one.tables)
        return found

    def _maintain(self, work: ViewWork) -> None:
        view = work.view
        for part in view.plan.parts:
            self._maintain_part(work, part)
        done = self._perform(work, view.plan)
        if done is None:
            return
        rows = done.delta.rows
        if rows.num_rows:
            changes, counts = with_kinds(rows, view.schema.key, view.name)
            work.staging = _writers.submit(self._stage, view, rows)
            _count(work, self._epoch, counts, done.ran)
            if view.is_read:
                self._keep(work, VIEW + view.name, self._numbered(view, changes))
        self._keep_state(work, view.plan, done.delta)

    def _maintain_part(self, work: ViewWork, part: ViewPlan) -> None:
        """A part is a view without a sink."""
        done = self._perform(work, part)
        if done is None:
            return
        if done.delta.rows.num_rows:
            changes = with_kinds(done.delta.rows, part.key, part.name)[0]
            self._keep(work, VIEW + part.name, changes)
        self._keep_state(work, part, done.delta)

    def _perform(self, work: ViewWork, plan: ViewPlan) -> Done | None:
        """Bring a view or part up to the epoch and note what it cost; None: nothing has changed."""
        costs = costs_of(work.state, plan.name)
        tables, deltas = self._read_tables(work), self._read_deltas(work)
        done = perform(self._engine, Task(plan, self._epoch, tables, deltas, costs))
        if done is not None:
            facts = with_run(work.state.facts, plan.name, done.ran, done.costs)
            work.state = replace(work.state, facts=facts)
        return done

    def _numbered(self, view: LiveView, changes: pa.Table) -> pa.Table:
        """Changelog rows as the view's mirror keeps them."""
        if view.schema.key:
            return changes
        fetch = self._engine.executors.fetch
        return number_changes(VIEW + view.name, view.schema, changes, self._epoch, fetch)

    # --- what is written -------------------------------------------------------------------------

    def _keep(self, work: ViewWork, relation: str, changes: pa.Table) -> None:
        """Append to a relation that is read in this epoch."""
        work.deltas[relation] = Delta(changes)
        work.tables[relation] = self._appended(relation, work.deltas[relation])

    def _keep_state(self, work: ViewWork, plan: ViewPlan, delta: ViewDelta) -> None:
        """Nothing in the epoch reads a state table once its own view is done: it need not wait."""
        relation = state_of(plan)
        if relation is not None and delta.state is not None and delta.state.num_rows:
            changes = work.deltas[relation] = Delta(
                with_kinds(delta.state, plan.state_key, plan.name)[0]
            )
            append = concerning(f"view {work.view.name}")(self._appended)
            work.appending[relation] = _writers.submit(append, relation, changes)

    def _appended(self, relation: str, delta: Delta) -> TableState:
        return appended(self._engine, self._epoch, relation, delta, self._tables[relation])

    def _stage(self, view: LiveView, rows: pa.Table) -> dict[str, Any]:
        """Have a sink stage rows while other views are maintained."""
        with concerning(f"view {view.name}"), at_its_sink():
            return view.sink.stage(self._epoch, rows)


def appended(
    engine: Engine, epoch: int, relation: str, delta: Delta, state: TableState
) -> TableState:
    """A relation with the changes of an epoch."""
    version = engine.relations[relation].mirror.append(epoch, delta.rows)
    return replace(state, changelog_version=version, rows=state.rows + delta.gained)


def _count(work: ViewWork, epoch: int, counts: Counts, ran: Ran) -> None:
    state = work.state
    work.state = replace(
        state,
        rows=state.rows + counts.rows,
        inserted=counts.inserted,
        updated=counts.updated,
        deleted=counts.deleted,
        facts={**state.facts, "epoch": epoch, "executor": ran.executor},
    )
    work.change = ViewChange(
        inserted=counts.inserted,
        updated=counts.updated,
        deleted=counts.deleted,
        rows=work.state.rows,
        strategy=state.strategy,
        executor=ran.executor,
        chosen=ran.text if ran.strategy == FULL != state.strategy else "",
    )


def _levels(views: Iterable[LiveView]) -> list[list[LiveView]]:
    """Views that read none of each other; each reads only those of levels before."""
    found: list[list[LiveView]] = []
    levels: dict[str, int] = {}
    for view in views:
        reads = [levels[name] for name in view.definition.table_names if name in levels]
        level = levels[view.name] = max(reads, default=-1) + 1
        if level == len(found):
            found.append([])
        found[level].append(view)
    return found
