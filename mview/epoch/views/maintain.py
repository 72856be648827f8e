"""Steps 3 and 4 of an epoch: each view adds its part by itself; one that fails leaves no trace.

What a view changes (its rows where others read them, its parts, its state table, what its sink has
staged) stands apart from the others' until all of it is durable. Only then it is taken into the
epoch: a view whose sink refuses its rows in a writer's thread halts as one whose query fails, with
those that read it, and the epoch is published without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any, TypeVar

import pyarrow as pa

from mview.catalog.spark_functions import function_errors
from mview.epoch.engine import Engine, LiveView
from mview.epoch.halts import (
    at_its_sink,
    halted,
    halting,
    reads_halted,
    reads_halted_table,
    with_rows,
)
from mview.epoch.report import ViewChange
from mview.epoch.stages import Begun
from mview.epoch.tables import Changed, Moved, appended
from mview.epoch.views.cost import FULL, Ran, costs_of, is_quick, with_run
from mview.epoch.views.strategy import Done, Task, perform
from mview.errors import MviewError, concerning
from mview.execute.delta import Counts, Delta, count_changes
from mview.execute.numbered import number_changes
from mview.execute.turns import turn
from mview.ivm.plan import ViewPlan
from mview.relation import RelationId
from mview.session.spark_errors import WorkerEndedError
from mview.store.manifest import TableState, ViewState
from mview.store.mirror import ROW

V = TypeVar("V")

#: Views at a time: while the query of one runs in DuckDB, another computes in Python.
_maintainers = ThreadPoolExecutor(3, "mview-view")

#: Changed rows up to which views that are computed in process come one after the other, with what
#: is written for them: threads hand the interpreter to each other for longer than they save.
_FEW = 2_048


@dataclass(frozen=True)
class Outcome:
    """What one view adds to an epoch.

    Attributes:
        view: the view.
        state: what the manifest will say of it.
        moved: the relations beside its sink.
        appending: state tables that are being appended to, and what they are then.
        staging: what its sink is staging; None: it has nothing to.
        change: for the report; None: no row has changed.
        token: what its sink has staged.
        error: why it halts in this epoch: of the above only its state counts.
    """

    view: LiveView
    state: ViewState
    moved: Moved = field(default_factory=Moved)
    appending: Mapping[RelationId, Future[TableState]] = field(default_factory=dict)
    staging: Future[dict[str, Any]] | None = None
    change: ViewChange | None = None
    token: dict[str, Any] | None = None
    error: MviewError | None = None


#: Views of an epoch, by name, in DAG order.
Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True)
class MaintainedViews:
    """What a batch changes in tables, and in views: some of that is still being written."""

    changed: Changed
    outcomes: Outcomes


# --- 3. views ------------------------------------------------------------------------------------


def maintain(
    engine: Engine,
    damaged: Mapping[str, MviewError],
    begun: Begun,
    changed: Changed,
    *,
    beside: bool = False,
) -> MaintainedViews:
    """Maintain all views, those first that others read; some are still being written then.

    Args:
        damaged: views that halt in this epoch, whatever has changed, and why.
        begun: takes what runs in other threads.
        changed: what has changed in tables and clocks.
        beside: epochs go on meanwhile: no thread is taken from them.
    """
    outcomes: dict[str, Outcome] = {}
    few = sum(delta.changed for delta in changed.deltas.values()) <= _FEW
    for views in _levels(engine.views.values()):
        level = _Level(engine, damaged, begun, changed, dict(outcomes), few)
        live = [view for view in views if _is_live(engine, view)]
        if beside or len(live) == 1:
            side_by_side = []
        else:
            side_by_side = [view for view in live if not (few and _is_quick(engine, view))]
        running = {
            view.name: begun.submit(_maintainers, level.in_turn, view) for view in side_by_side
        }
        maintained = level.in_turn if running else level.outcome
        done = {view.name: maintained(view) for view in live if view.name not in running}
        wait(running.values())
        for view in live:
            outcomes[view.name] = done.get(view.name) or running[view.name].result()
    return MaintainedViews(changed, outcomes)


def _is_quick(engine: Engine, view: LiveView) -> bool:
    """Whether a view takes no time to speak of for few rows."""
    state = engine.manifest.views[view.name]
    return all(is_quick(state, plan.relation) for plan in (*view.plan.parts, view.plan))


def _performed(engine: Engine, task: Task) -> Done | None:
    """`perform`, once more where a Python worker was ended under it: nothing of it shows yet."""
    try:
        with function_errors():
            return perform(engine, task)
    except WorkerEndedError:
        return perform(engine, task)


def _is_live(engine: Engine, view: LiveView) -> bool:
    state = engine.manifest.views.get(view.name)
    return state is not None and not state.stale


def _levels(views: Iterable[LiveView]) -> list[list[LiveView]]:
    """Views that read none of each other; each reads only those of levels before."""
    listed: list[list[LiveView]] = []
    levels: dict[str, int] = {}
    for view in views:
        reads = [levels[name] for name in view.definition.read_views if name in levels]
        level = levels[view.name] = max(reads, default=-1) + 1
        if level == len(listed):
            listed.append([])
        listed[level].append(view)
    return listed


@dataclass(frozen=True)
class _Level:
    """The views of a level, over what none of them changes.

    Attributes:
        above: those of levels before.
        few: few rows have changed.
    """

    engine: Engine
    damaged: Mapping[str, MviewError]
    begun: Begun
    changed: Changed
    above: Outcomes
    few: bool

    def in_turn(self, view: LiveView) -> Outcome:
        """Maintain a view beside others."""
        with turn():
            return self.outcome(view)

    def outcome(self, view: LiveView) -> Outcome:
        """Maintain a view, with its parts."""
        outcome = Outcome(view, self.engine.manifest.views[view.name])
        if view.name in self.damaged:
            return _halted(self.engine, outcome, self.damaged[view.name])
        for table in view.definition.table_names:
            if (halt := self.changed.halts.get(table)) is not None:
                error = reads_halted_table(view.name, table, halt.error())
                return _halted(self.engine, outcome, error)
        read = _read_by(view, self.changed, self.above)
        try:
            _check_inputs(self.engine, view, self.above)
            with concerning(f"view {view.name}"), function_errors():
                for plan in (*view.plan.parts, view.plan):
                    outcome = self._followed(outcome, plan, read)
        except Exception as error:
            return _halting(self.engine, outcome, read, error)
        return outcome

    def _followed(self, before: Outcome, plan: ViewPlan, read: Moved) -> Outcome:
        """A view with one more plan brought up to the epoch: a part is a view without a sink."""
        view, epoch, known = before.view, self.changed.epoch, read | before.moved
        costs = costs_of(before.state, plan.relation)
        task = Task(plan, epoch, known, self.changed.written, costs)
        if (done := _performed(self.engine, task)) is None:
            return before
        facts = with_run(before.state.facts, plan.relation, done.ran, done.costs)
        after = replace(before, state=replace(before.state, facts=facts))
        change, state = Delta(done.delta.rows, plan.key), done.delta.state
        if change.rows.num_rows:
            counts = count_changes(change, str(plan.relation))
            if plan is view.plan:
                staging = self._written(change.rows, self._stage, view, change.rows)
                after = replace(_counted(after, epoch, counts, done.ran), staging=staging)
            if plan is not view.plan or view.is_read:
                relation, delta = plan.relation, self._numbered(view, plan, change)
                table = self._appended(relation, delta)
                after = replace(
                    after, moved=after.moved | Moved({relation: table}, {relation: delta})
                )
        if (relation_of_state := plan.state) and state is not None and state.num_rows:
            delta = Delta(state, plan.state_key)
            count_changes(delta, str(plan.relation))  # refuses what is no key
            # Nothing in the epoch reads a state table once its own view is done: it need not wait.
            append = concerning(f"view {view.name}")(self._appended)
            appending = self._written(state, append, relation_of_state, delta)
            after = replace(
                after,
                moved=after.moved | Moved({}, {relation_of_state: delta}),
                appending={**after.appending, relation_of_state: appending},
            )
        return after

    def _written(self, rows: pa.Table, call: Callable[..., V], *args: Any) -> Future[V]:
        """Have rows written for a view; few changes may have made many."""
        return self.begun.write(self.few and rows.num_rows <= _FEW, call, *args)

    def _numbered(self, view: LiveView, plan: ViewPlan, change: Delta) -> Delta:
        """What changes in the mirror of a view or part."""
        if plan is not view.plan or view.schema.key:
            return change
        epoch, fetch = self.changed.epoch, self.engine.executors.fetch
        return Delta(number_changes(plan.relation, view.schema, change.rows, epoch, fetch), (ROW,))

    def _appended(self, relation: RelationId, delta: Delta) -> TableState:
        state = self.changed.tables[relation]
        return appended(self.engine, self.changed.epoch, relation, delta, state)

    def _stage(self, view: LiveView, rows: pa.Table) -> dict[str, Any]:
        """Have a sink stage rows while other views are maintained."""
        with concerning(f"view {view.name}"), at_its_sink():
            return view.sink.stage(self.changed.epoch, rows)


def _counted(outcome: Outcome, epoch: int, counts: Counts, ran: Ran) -> Outcome:
    state = replace(
        outcome.state,
        rows=outcome.state.rows + counts.rows,
        inserted=counts.inserted,
        updated=counts.updated,
        deleted=counts.deleted,
        facts={**outcome.state.facts, "epoch": epoch, "executor": ran.executor},
    )
    change = ViewChange(
        inserted=counts.inserted,
        updated=counts.updated,
        deleted=counts.deleted,
        rows=state.rows,
        strategy=state.strategy,
        executor=ran.executor,
        chosen=ran.text if ran.strategy == FULL != state.strategy else "",
    )
    return replace(outcome, state=state, change=change)


def _read_by(view: LiveView, changed: Changed, above: Outcomes) -> Moved:
    """The relations that a view can read, as they are after the epoch."""
    read = (above[name].moved for name in view.definition.read_views if name in above)
    return reduce(or_, read, changed.moved)


def _check_inputs(engine: Engine, view: LiveView, above: Outcomes) -> None:
    for name in view.definition.read_views:
        state = engine.manifest.views.get(name)
        if (state is not None and state.stale) or (name in above and above[name].error is not None):
            raise reads_halted(view.name, name)


def _halting(engine: Engine, outcome: Outcome, read: Moved, error: Exception) -> Outcome:
    """A view that halts by what has failed; raises what is of all views."""
    told = halting(error, outcome.view.name, engine.store, engine.spark)
    deltas = (read | outcome.moved).deltas
    return _halted(engine, outcome, with_rows(told, error, engine, outcome.view.plan, deltas))


def _halted(engine: Engine, outcome: Outcome, error: MviewError) -> Outcome:
    published = engine.manifest.views[outcome.view.name]
    return replace(outcome, state=halted(published, error, engine.mask), error=error)


# --- 4. stage ------------------------------------------------------------------------------------


def settle(engine: Engine, begun: Begun, maintained: MaintainedViews) -> MaintainedViews:
    """Wait until all is written, and have views halt whose writers have failed.

    Raises:
        MviewError: a table's mirror could not be written: the epoch fails.
    """
    begun.wait()
    changed = maintained.changed
    changed = replace(changed, tables={**changed.tables, **changed.written()}, writing={})
    settled: dict[str, Outcome] = {}
    # In DAG order: a view has halted before those that read it are looked at.
    for name in (name for name in engine.views if name in maintained.outcomes):
        outcome = maintained.outcomes[name]
        try:
            if outcome.error is None:
                _check_inputs(engine, outcome.view, settled)
                tables = {table: state.result() for table, state in outcome.appending.items()}
                token = None if outcome.staging is None else outcome.staging.result()
                outcome = replace(outcome, moved=outcome.moved | Moved(tables), token=token)
        except Exception as error:
            read = _read_by(outcome.view, changed, settled)
            outcome = _halting(engine, outcome, read, error)
        settled[name] = outcome
    return MaintainedViews(changed, settled)
