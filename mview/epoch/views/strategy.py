"""Bringing a view or part up to an epoch: by its changes, or as a whole where that is cheaper.

The choice is made per epoch, view and part (cost.py); what it was and what it cost is kept with the
view in the manifest, so a history is as long as the manifests are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.epoch.engine import Engine
from mview.epoch.halts import at_its_sink
from mview.epoch.tables import Moved
from mview.epoch.views.cost import (
    FULL,
    INCREMENTAL,
    Choice,
    Costs,
    Load,
    Ran,
    choose,
    full_rows,
    is_few,
)
from mview.epoch.views.whole import recompute, whole_executor
from mview.execute.delta import Delta
from mview.execute.program import BatchNeededError, Request, ViewDelta
from mview.execute.relations import row_bytes
from mview.execute.slices import consolidate, distinct, weighted
from mview.execute.turns import aside, seconds
from mview.ivm.plan import ViewPlan
from mview.ivm.reads import foreseen_reads
from mview.plan.clocks import is_clock
from mview.relation import RelationId
from mview.rows.match import match
from mview.schema import Column, as_schema
from mview.store.manifest import TableState


@dataclass(frozen=True)
class Task:
    """A view or part in one epoch.

    Attributes:
        plan: its plan.
        epoch: the epoch that is being made.
        known: all relations as they are after the epoch, and what has changed so far.
        written: waits for relations that are still being written: only then they can be read.
        costs: what it has cost up to now.
    """

    plan: ViewPlan
    epoch: int
    known: Moved
    written: Callable[[], Mapping[RelationId, TableState]]
    costs: Costs

    @property
    def tables(self) -> Mapping[RelationId, TableState]:
        """The relations."""
        return self.known.tables

    @property
    def deltas(self) -> Mapping[RelationId, Delta]:
        """What has changed in them."""
        return self.known.deltas


@dataclass(frozen=True)
class Done:
    """What became of a task: the delta, how it came about, and the costs with it."""

    delta: ViewDelta
    ran: Ran
    costs: Costs


def perform(engine: Engine, task: Task) -> Done | None:
    """Bring a view or part up to the epoch; None when nothing changed for it."""
    changed = {name: task.deltas[name] for name in task.plan.tables if name in task.deltas}
    if not changed:
        return None
    load = _load(engine, task, changed)
    choice = _choice(engine, task, load)
    began, read = seconds(), engine.executors.rows_read
    if choice.strategy == INCREMENTAL:
        try:
            delta, executor = _follow(engine, task, load)
        except BatchNeededError as reason:
            choice = Choice(FULL, str(reason))
        else:
            took, read = seconds() - began, engine.executors.rows_read - read
            costs = task.costs.after_incremental(
                executor, load.changed_rows, load.foreseen, read, took
            )
    if choice.strategy == FULL:
        with aside():  # nothing that a view costs, and no other one waits for it
            tables = {**task.tables, **task.written()}
        began, read = seconds(), load.full_rows
        old = partial(_published, engine, task.plan)
        delta, executor = recompute(engine, task.plan, tables, task.deltas, old)
        took = seconds() - began
        costs = task.costs.after_full(executor, read, took)
    if delta is None:
        return None
    ran = Ran(
        epoch=task.epoch,
        strategy=choice.strategy,
        why=choice.why,
        executor=executor,
        changed=load.changed_rows,
        read=read,
        output=delta.rows.num_rows,
        seconds=round(took, 3),
    )
    return Done(delta, ran, costs)


def _choice(engine: Engine, task: Task, load: Load) -> Choice:
    plan, settings = task.plan, engine.config.engine
    if plan.evaluation == "full":
        notes = [plan.refused, *(node.note for node in plan.nodes)]
        codes = dict.fromkeys(note.code for note in notes if note is not None)
        return Choice(FULL, f"the query needs it: {', '.join(codes)}")
    only = plan.definition.policy == "incremental_only"
    return choose(
        task.costs, load, settings.strategy, incremental_only=only, memory=settings.memory
    )


def _load(engine: Engine, task: Task, changed: Mapping[RelationId, Delta]) -> Load:
    plan = task.plan
    counts = {name: delta.changed for name, delta in changed.items()}
    # Rows that go away are changed rows, too.
    rows = {
        name: max(task.tables[name].rows, engine.manifest.tables[name].rows)
        for name in plan.tables
        if not is_clock(name)
    }
    rows |= dict.fromkeys(plan.clocks, 1)
    kept = [(_rows_of(engine, plan), _row_bytes(engine, plan.relation, plan.output.columns))]
    # Asked for where it counts only: a query is read for it.
    few = is_few(sum(counts.values()))
    if (state := plan.state) is not None:
        there = task.tables[state]
        kept.append((there.rows, _row_bytes(engine, state, there.schema.columns)))
    return Load(
        changed=counts,
        rows=rows,
        foreseen=foreseen_reads(plan, counts, rows).rows,
        full_rows=full_rows(plan, task.tables),
        full_bytes=2 * sum(rows * width for rows, width in kept),
        full_executor="spark" if few else whole_executor(engine, plan, task.tables),
    )


def _row_bytes(engine: Engine, relation: RelationId, columns: Sequence[Column]) -> int:
    """About the bytes of a row: as its files have it, of what is kept in some."""
    there = engine.relations.get(relation)
    return row_bytes(columns) if there is None else row_bytes(columns, text=there.text_bytes)


def _rows_of(engine: Engine, plan: ViewPlan) -> int:
    if not plan.definition.part:
        return engine.manifest.views[plan.definition.name].rows
    return engine.relations[plan.relation].state.rows


def _follow(engine: Engine, task: Task, load: Load) -> tuple[ViewDelta | None, str]:
    """The delta from the changes (None: nothing has changed), and the executor."""
    plan = task.plan
    deltas = {name: task.deltas[name].changes for name in load.changed}
    delta, executor = engine.executors.run(plan, deltas)
    if delta is not None:
        delta = replace(delta, rows=_as_published(engine, plan, delta.rows))
    return delta, executor


def _as_published(engine: Engine, plan: ViewPlan, rows: pa.Table) -> pa.Table:
    """The change of a view with the rows that go as they were published.

    Sums of DOUBLE, say, may have another last digit when they are computed again.

    Raises:
        BatchNeededError: nothing tells which rows of the view they are.
    """
    names = tuple(name for name in rows.column_names if name != WEIGHT)
    goes = pc.less(rows[WEIGHT], 0)
    if not plan.is_by_order or not pc.any(goes).as_py():
        return rows
    if plan.maintained is not None and plan.maintained.always:
        old = pa.concat_tables(_published(engine, plan))
    elif not plan.key:
        raise BatchNeededError("rows without a key hold a value that depends on the order of rows")
    elif plan.relation not in engine.relations:
        return rows  # nobody reads the view, and its sink finds rows by their keys
    else:
        keys = rows.filter(goes).select(list(plan.key))
        request = Request(plan.relation, distinct(keys), names, null_safe=True)
        (rows_by_key,) = engine.executors.fetch([request])
        old = rows_by_key.take(pa.array(match(rows_by_key.select(list(plan.key)), keys)[0]))
    come = rows.filter(pc.invert(goes))
    gone = weighted(old.select(names), -1).select(rows.column_names)
    return consolidate(pa.concat_tables([come, as_schema(gone, rows.schema)]))


def _published(engine: Engine, plan: ViewPlan) -> Iterator[pa.Table]:
    """The rows of a view or part as they are published, in parts."""
    if not plan.definition.part:
        name = plan.definition.name
        with at_its_sink():
            yield from engine.views[name].sink.parts(engine.manifest.views[name].sink)
        return
    kept = engine.relations[plan.relation]
    yield from kept.mirror.parts(kept.state)
