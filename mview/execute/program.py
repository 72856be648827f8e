"""One epoch of one view: rounds of look-ups, one evaluation over the slices, one delta.

The look-ups are a generator, so that a caller can drive many views in step and send the look-ups
of a round together.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.errors import DataError
from mview.execute.kept.sums import add_up
from mview.execute.kept.top import first_rows, moved
from mview.execute.refusal import RefusalError
from mview.execute.slices import (
    Change,
    Changes,
    before_and_after,
    consolidate,
    difference,
    distinct,
    key_values,
    nullable,
    weighted,
)
from mview.ivm.aggregates.maintained import STATE, VALUE, Maintained, Shown
from mview.ivm.plan import ViewPlan
from mview.ivm.rewrites.top import NUMBER, RANKED, Top
from mview.ivm.tracing.steps import Band, KeySource, Step, Trace, Whole
from mview.relation import RelationId
from mview.rows.ranges import Range, range_of
from mview.schema import TableSchema, as_schema


class BatchNeededError(Exception):
    """An epoch of a view must be computed as a whole, where the tables are."""


class TooManyRowsError(BatchNeededError):
    """It would need too much of a table."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} are needed, too many for the driver")


@dataclass(frozen=True)
class Request:
    """A look-up in the old rows of a table.

    Attributes:
        table: the table.
        keys: distinct values of some columns; rows that equal one of them are wanted. None: all
            rows, or those of the range.
        select: columns to return: those that the view uses, with the primary key.
        null_safe: NULL in a key matches NULL.
        within: the range of one of the columns to return.
        most: so many rows may come.
    """

    table: RelationId
    keys: pa.Table | None
    select: tuple[str, ...]
    null_safe: bool = False
    within: Range | None = None
    most: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all rows are asked for."""
        return self.keys is None and self.within is None

    def check(self, rows: pa.Table) -> None:
        """Check what a look-up has found.

        Raises:
            TooManyRowsError: more rows than may come.
        """
        if self.most is not None and rows.num_rows > self.most:
            raise TooManyRowsError(f"more than {self.most:,} rows of {self.table}")


class Lookups(Protocol):
    """Old rows of tables, as of the last published epoch."""

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        """The rows of every request. More rows than asked for are fine, fewer are not."""
        ...


class Evaluator(Protocol):
    """Runs SQL over small tables."""

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        """The result of a query.

        Args:
            sql: Spark SQL over the relations.
            relations: rows by their names there.
            result: the result's columns as Spark analyzes them; None when not known yet.
        """
        ...


class StateTable(Protocol):
    """The state table of a view, as of the last published epoch."""

    def fetch(self, keys: pa.Table | None) -> pa.Table:
        """The rows of these keys (NULL matches NULL); None: all rows."""
        ...


@dataclass(frozen=True)
class ViewDelta:
    """What an epoch does to a view.

    Attributes:
        rows: the view's columns and WEIGHT, consolidated.
        state: the same for the view's state table; None when it has none.
    """

    rows: pa.Table
    state: pa.Table | None = None


@dataclass(frozen=True)
class Slices:
    """The rows a view is evaluated over, by their names in SQL; empty when nothing changed."""

    relations: Mapping[str, pa.Table]


Rounds = Generator[list[Request], list[pa.Table], Slices]


def fetch_slices(
    plan: ViewPlan, deltas: Mapping[RelationId, Changes], evaluator: Evaluator
) -> Rounds:
    """The slices of an epoch.

    Args:
        deltas: changed rows, by table.
        evaluator: tells the bounds of bands.

    Yields:
        The look-ups of a round; the caller sends back one table for each.
    """
    schemas = plan.slice_schemas
    changed = {}
    for table in plan.tables:
        if table in deltas:
            change = deltas[table].through(schemas[table])
            if change.num_rows:
                changed[table] = change
    if not changed:
        return Slices({})
    values = plan.maintained.values if plan.maintained else ()
    followed = [trace for trace in plan.traces if trace.table in changed]
    # A part with one row that the final query reads: always at hand.
    followed += [Trace(table, table.sql_name, (Whole(table),)) for table in values]
    traces = [_Walk(trace, changed, schemas, evaluator) for trace in followed]
    fetched: dict[RelationId, list[pa.Table]] = {table: [] for table in plan.tables}
    while True:
        requests: dict[tuple[object, ...], Request] = {}
        waiting = [(walk, step) for walk in traces for step in walk.ready()]
        if not waiting:
            break
        asked = [(walk, step, walk.request(step)) for walk, step in waiting]
        for _, _, request in asked:
            if request is not None:
                requests[_same(request)] = _joined(requests.get(_same(request)), request)
        tables = (yield list(requests.values())) if requests else []
        answers = dict(zip(requests, tables, strict=True))
        for request, rows in zip(requests.values(), tables, strict=True):
            fetched[request.table].append(rows)
        for walk, step, request in asked:
            walk.done[step] = None if request is None else answers[_same(request)]
    relations: dict[str, pa.Table] = {}
    for table, schema in schemas.items():
        old, new = before_and_after(schema, fetched[table], changed.get(table))
        relations[plan.slice_name(table, "old")] = old
        relations[plan.slice_name(table, "new")] = new
    return Slices(relations)


def _same(request: Request) -> tuple[object, ...]:
    names = None if request.keys is None else tuple(request.keys.column_names)
    return request.table, request.null_safe, names, request.within


def _joined(known: Request | None, other: Request) -> Request:
    if known is None or known.keys is None or other.keys is None:
        return other
    keys = key_values(
        [known.keys, other.keys], other.keys.schema, null_safe=other.null_safe, or_null=False
    )
    return Request(other.table, keys, other.select, other.null_safe)


#: The old and the new row of a clock.
_TIMES = "__times"


class _Walk:
    """One trace on its way: which steps are done, and their rows."""

    def __init__(
        self,
        trace: Trace,
        changed: Mapping[RelationId, Change],
        schemas: Mapping[RelationId, TableSchema],
        evaluator: Evaluator,
    ) -> None:
        self.trace, self.changed, self.schemas = trace, changed, schemas
        self.evaluator = evaluator
        self.done: dict[int, pa.Table | None] = {}

    def ready(self) -> list[int]:
        """Steps not yet done whose key sources are."""
        return [
            index
            for index, step in enumerate(self.trace.steps)
            if index not in self.done and all(source in self.done for source in _before(step))
        ]

    def request(self, index: int) -> Request | None:
        """The look-up of a step; None when it has no keys."""
        step = self.trace.steps[index]
        schema = self.schemas[step.table]
        if isinstance(step, Whole):
            return Request(step.table, None, schema.names)
        if isinstance(step, Band):
            return Request(step.table, None, schema.names, within=self._range(step))
        parts = [part for source in step.sources for part in self._values(source)]
        types = pa.schema([schema.loose.field(name) for name in step.columns])
        keys = key_values(parts, types, null_safe=step.null_safe, or_null=step.or_null)
        if keys.num_rows == 0:
            return None
        return Request(step.table, keys, schema.names, step.null_safe)

    def _range(self, step: Band) -> Range | None:
        """The values of a band; None where they are not known: all rows are in it."""
        change = self.changed[step.clock]
        times = pa.concat_tables([change.gone, change.come])
        sql = f"SELECT {step.bound} AS bound FROM {_TIMES}"
        try:
            bounds = self.evaluator.run(sql, {_TIMES: times}, None)
        except RefusalError:
            raise
        except Exception:  # it fails in the view as well, should any row get there
            return None
        kind = self.schemas[step.table].column(step.column).type
        return range_of(step.column, kind, bounds["bound"])

    def _values(self, source: KeySource) -> list[pa.Table]:
        names = [str(i) for i in range(len(source.columns))]
        return [
            pa.table([rows[name] for name in source.columns], names=names)
            for rows in self._rows(source)
        ]

    def _rows(self, source: KeySource) -> list[pa.Table]:
        if source.step is None:
            change = self.changed.get(source.table)
            return [] if change is None else [change.gone, change.come]
        rows = self.done[source.step]
        return [] if rows is None else [rows]


def _before(step: Step) -> list[int]:
    return [source.step for source in step.sources if source.step is not None]


def evaluate_slices(
    plan: ViewPlan, slices: Slices, evaluator: Evaluator, state: StateTable | None = None
) -> ViewDelta | None:
    """The delta of a view from its slices; None when nothing changed for it."""
    if not slices.relations:
        return None
    tables = (*plan.indexes, *(() if plan.maintained is None else plan.maintained.values))
    names = {plan.slice_name(table, when) for table in tables for when in ("old", "new")}
    relations = {name: rows for name, rows in slices.relations.items() if name not in names}
    result = evaluator.run(plan.delta_sql, relations, plan.delta_schema)
    if plan.maintained is None:
        return ViewDelta(consolidate(result))
    assert state is not None, f"view {plan.relation} has a state table"
    return _finalize(plan, plan.maintained, consolidate(result), slices, evaluator, state)


class _ExtremeGoneError(Exception):
    """Rows with the smallest or largest value of a group went away: all its rows are needed."""


def _finalize(
    plan: ViewPlan,
    maintained: Maintained,
    partial: pa.Table,
    slices: Slices,
    evaluator: Evaluator,
    state: StateTable,
) -> ViewDelta:
    """Add the change of the accumulators to the state; the view's delta is that of its rows."""
    groups, accumulators = maintained.groups, maintained.accumulators
    fields = [partial.schema.field(name) for name in (WEIGHT, *groups, *accumulators)]
    partial = as_schema(partial, nullable(pa.schema(fields)))
    value_moved = any(
        difference(*(slices.relations[plan.slice_name(table, when)] for when in _WHEN)).num_rows
        for table in maintained.values
    )
    keys = None if value_moved else distinct(partial.select(list(groups)))
    old = state.fetch(keys)
    old = as_schema(old, partial.schema.remove(0))
    with _overflows(plan):
        extremes, beside, genuine = maintained.extremes, maintained.beside, maintained.genuine
        new = add_up(groups, accumulators, old, partial, extremes, beside, genuine)
    if new is None:
        raise _ExtremeGoneError
    if not maintained.always:
        new = new.filter(pc.not_equal(new[accumulators[0]], 0))
    sides = [weighted(old, -1), weighted(new, 1)]
    change = consolidate(pa.concat_tables(sides))
    with _overflows(plan):
        shown = maintained.as_shown(change)
        if maintained.values:
            sides = [maintained.as_shown(rows) for rows in sides]
    if maintained.shown is not None:
        rows = _shown(shown, maintained.shown, plan.finalize_schema)
        return ViewDelta(consolidate(rows), change)
    if not maintained.values:
        rows = evaluator.run(maintained.finalize, {STATE: shown}, plan.finalize_schema)
        return ViewDelta(consolidate(rows), change)
    results = [
        evaluator.run(
            maintained.finalize, {STATE: side} | _values(plan, slices, when), plan.finalize_schema
        )
        for side, when in zip(sides, _WHEN, strict=True)
    ]
    return ViewDelta(consolidate(pa.concat_tables(results)), change)


@contextmanager
def _overflows(plan: ViewPlan) -> Iterator[None]:
    """Sums that do not fit their types are the view's error."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the query of view {plan.definition.name} fails on the data: "
            f"ARITHMETIC_OVERFLOW: a sum does not fit its type: {error}",
            safe="the view keeps the rows of its last good epoch, the other views go on",
            hint="correct the row or the query; `mview apply` or the next run builds the view anew",
        ) from None


_WHEN: tuple[Literal["old", "new"], ...] = ("old", "new")


def _shown(state: pa.Table, columns: Mapping[str, Shown], schema: pa.Schema | None) -> pa.Table:
    """Rows of a view that shows columns of its state table."""
    values = {WEIGHT: state[WEIGHT]}
    for name, source in columns.items():
        value = state[source.column]
        if source.count is not None:
            value = pc.if_else(
                pc.greater(state[source.count], 0), value, pa.scalar(None, value.type)
            )
        values[name] = value
    rows = pa.table(values)
    return rows if schema is None else as_schema(rows, nullable(schema))


def _values(plan: ViewPlan, slices: Slices, when: Literal["old", "new"]) -> dict[str, pa.Table]:
    assert plan.maintained is not None
    return {
        f"{VALUE}{number}": slices.relations[plan.slice_name(table, when)]
        for number, table in enumerate(plan.maintained.values)
    }


def _run_top(
    top: Top,
    plan: ViewPlan,
    deltas: Mapping[RelationId, Changes],
    lookups: Lookups,
    evaluator: Evaluator,
    state: StateTable,
) -> ViewDelta | None:
    """The first rows of a part: its change is taken into the rows that are kept."""
    schema = plan.schemas[top.part]
    change = deltas[top.part].through(schema) if top.part in deltas else None
    if change is None or not change.num_rows:
        return None

    def rank(rows: pa.Table) -> pa.Table:
        numbered = rows.append_column(NUMBER, pa.array(range(rows.num_rows), pa.int64()))
        result = pa.schema([pa.field(NUMBER, pa.int64())])
        return rows.take(evaluator.run(top.ranking, {RANKED: numbered}, result)[NUMBER])

    old = rank(before_and_after(schema, [state.fetch(None)], None)[0])
    new = moved(old, change.weighted, top, rank)
    if new is None:
        (everything,) = lookups.fetch([Request(top.part, None, schema.names)])
        _, rows = before_and_after(schema, [everything], change)
        new = first_rows(rows, top, rank)
    shown = [weighted(top.shown(old), -1), weighted(top.shown(new), 1)]
    rows = pa.concat_tables(shown).select([*plan.columns, WEIGHT])
    kept = difference(new, old)
    return ViewDelta(consolidate(rows), kept)


def run_view(
    plan: ViewPlan,
    deltas: Mapping[RelationId, Changes],
    lookups: Lookups,
    evaluator: Evaluator,
    state: StateTable | None = None,
) -> ViewDelta | None:
    """One epoch of one view.

    Args:
        deltas: per table, what has changed.
        lookups: old rows.
        evaluator: runs the view's query.
        state: the view's state table, for plans with `maintained`.

    Returns:
        The view's delta; None when nothing changed for it.

    Raises:
        BatchNeededError: only a batch can tell the view's rows, or that there are none.
        DataError: a sum does not fit its type.
    """
    if plan.top is not None:
        assert state is not None, f"view {plan.relation} has a state table"
        return _run_top(plan.top, plan, deltas, lookups, evaluator, state)

    def sliced(traced: ViewPlan) -> Slices:
        return _drive(fetch_slices(traced, deltas, evaluator), lookups)

    slices = sliced(plan)
    try:
        try:
            return evaluate_slices(plan, slices, evaluator, state)
        except _ExtremeGoneError:
            assert plan.maintained is not None
            plan = _with_all_groups(plan, plan.maintained)
            slices = sliced(plan)
            return evaluate_slices(plan, slices, evaluator, state)
    except (RefusalError, BatchNeededError, DataError):
        raise  # another executor decides, or a sum over all rows has
    except Exception:
        if not slices.relations or plan.evaluation == "full":
            raise
    # Groups that did not change may be incomplete in the slices, and a query can fail on them
    # (1 / sum(x)) where it does not on all rows. If it fails on all rows as well, those before the
    # epoch or an order of adding may be why: the batch over the new rows alone decides.
    whole = _with_all_rows(plan)
    slices = sliced(whole)
    try:
        return evaluate_slices(whole, slices, evaluator, state)
    except (RefusalError, BatchNeededError, DataError):
        raise
    except Exception as error:
        raise BatchNeededError("the query failed over the changes") from error


def _with_all_rows(plan: ViewPlan) -> ViewPlan:
    """The plan for an epoch in which all rows of all tables are fetched."""
    whole = replace(plan, traces=tuple(Trace(t, t.sql_name, _all(plan)) for t in plan.tables))
    if plan.maintained is not None:
        whole = replace(whole, maintained=_with_known_extremes(plan.maintained))
    return whole


def _with_all_groups(plan: ViewPlan, maintained: Maintained) -> ViewPlan:
    """The plan for an epoch in which all rows of the changed groups are fetched."""
    known = _with_known_extremes(maintained)
    return replace(plan, traces=maintained.complete, maintained=known)


def _with_known_extremes(maintained: Maintained) -> Maintained:
    """For an evaluation over all rows of the changed groups: their extremes are what it finds."""
    every = (*maintained.extremes, *maintained.beside)
    return replace(maintained, extremes=dict.fromkeys(every, "complete"), beside={})


def _all(plan: ViewPlan) -> tuple[Whole, ...]:
    return tuple(Whole(table) for table in plan.definition.table_names)


def _drive(rounds: Rounds, lookups: Lookups) -> Slices:
    try:
        requests = next(rounds)
        while True:
            requests = rounds.send(lookups.fetch(requests))
    except StopIteration as end:
        slices: Slices = end.value
        return slices
