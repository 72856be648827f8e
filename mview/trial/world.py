"""Tables and views in memory, kept up as a run keeps them up, and compared with the batch.

The plan, the look-ups it asks for, the evaluation and the state are those of a run. What is not
here: a store, epochs on disk, sinks, and look-ups by files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.epoch.halts import told_of
from mview.errors import DataError, one_line
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.program import BatchNeededError, Evaluator, Request, ViewDelta, run_view
from mview.execute.refusal import EvaluationError, NotAdmittedError
from mview.execute.slices import Changes, consolidate, difference, nullable, weighted
from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.ivm.rewrites.total_order import in_total_order
from mview.plan.clocks import CLOCKS, pinned_rows, with_clocks
from mview.plan.definition import ViewDefinition, order_views
from mview.plan.operators.build import listed_names
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.rows.match import match
from mview.schema import Column, TableSchema, as_schema
from mview.session.spark_errors import SPARK_ERRORS

#: Starts Spark, for a reason, or says why it is not to be had.
StartSpark = Callable[[str], Evaluator]


@contextmanager
def _of(view: RelationId) -> Iterator[None]:
    """What Spark raises of a view's query, as an error of the view."""
    try:
        yield
    except SPARK_ERRORS as error:
        nothing, hint = "nothing was written", "correct the row or the query"
        raise told_of(error, f"view {view}", safe=nothing, hint=hint) from error


class TrialEngine:
    """Runs queries in process, and on Spark what only Spark can decide.

    Args:
        spark: starts it when the first such query comes.
    """

    def __init__(self, spark: StartSpark) -> None:
        self._local, self._start = LocalEvaluator(), spark
        self._spark: Evaluator | None = None
        #: Why queries went to Spark, by query.
        self.reasons: dict[str, str] = {}

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        """The result of a query; see `Evaluator`."""
        if sql not in self.reasons:
            try:
                return self._local.run(sql, relations, result)
            except NotAdmittedError as error:
                self.reasons[sql] = str(error.reason)
            except EvaluationError as error:
                # These rows: Spark says whether it is an error, the next ones are tried here again.
                return self._with_spark(one_line(str(error))).run(sql, relations, result)
        return self._with_spark(self.reasons[sql]).run(sql, relations, result)

    def view(
        self,
        definition: ViewDefinition,
        rows: Callable[[RelationId], pa.Table],
        columns: Sequence[str],
    ) -> pa.Table:
        """The rows of a view as its batch query.

        Args:
            definition: the view.
            rows: of what it reads, by name.
            columns: its columns as they are written, as what runs in process has names in small
                letters; (): of those that the text lists.

        Raises:
            UserError: Spark does not take the text, or fails on the rows.
        """
        timed = with_clocks(definition)
        names = {name: f"p{number}" for number, name in enumerate(timed.table_names)}
        relations = {text: rows(name) for name, text in names.items()}
        with _of(definition.relation):
            result = self.run(bind_tables(timed, names), relations, None)
        written = columns or listed_names(definition)
        return result.rename_columns(written) if written else result

    def _with_spark(self, reason: str) -> Evaluator:
        if self._spark is None:
            self._spark = self._start(reason)
        return self._spark

    def close(self) -> None:
        """Free what runs in process."""
        self._local.close()


class Multiset:
    """The rows of a table or view, as a multiset."""

    def __init__(self, name: RelationId, schema: TableSchema) -> None:
        self.name, self.schema = name, schema
        self._shape = pa.schema([pa.field(c.name, c.type) for c in schema.columns])
        self.table: pa.Table = self._shape.empty_table()

    @classmethod
    def of(cls, name: RelationId, schema: TableSchema, rows: pa.Table) -> Multiset:
        """A relation with rows."""
        made = cls(name, schema)
        made.table = made.after(weighted(rows, 1))
        return made

    def after(self, delta: pa.Table) -> pa.Table:
        """The rows, when some have come and gone.

        Args:
            delta: the columns and WEIGHT.

        Raises:
            DataError: a row goes that is not there.
        """
        rows = as_schema(delta.select(self._shape.names), self._shape)
        change = rows.append_column(WEIGHT, delta[WEIGHT].cast(pa.int32()))
        added = consolidate(pa.concat_tables([weighted(self.table, 1), change]))
        times = added[WEIGHT].to_numpy()
        if (times < 0).any():
            gone = added.filter(pc.less(added[WEIGHT], 0)).select(self._shape.names)
            raise DataError(f"a row goes from {self.name} that is not there: {first_of(gone)}")
        at = np.repeat(np.arange(added.num_rows), times)
        return added.select(self._shape.names).take(pa.array(at, pa.int64()))

    def look_up(self, keys: pa.Table | None, *, null_safe: bool) -> pa.Table:
        """The rows whose columns equal one of the keys; None: all."""
        if keys is None:
            return self.table
        if not null_safe:
            for name in keys.column_names:
                keys = keys.filter(pc.is_valid(keys[name]))
        ours, _ = match(self.table.select(keys.column_names), keys)
        return self.table.take(pa.array(ours))


def first_of(rows: pa.Table) -> str:
    """The first row, for messages."""
    (row,) = rows.slice(0, 1).to_pylist()
    return ", ".join(f"{name}={shown(value)}" for name, value in row.items())


def shown(value: object) -> str:
    """A value as a test file would have it."""
    return "NULL" if value is None else str(value)


class _KeptState:
    """The rows that are kept to maintain a view."""

    def __init__(self, rows: Multiset | None) -> None:
        self.rows = rows

    def of(self, name: RelationId) -> Multiset:
        """The rows, of a view that has some."""
        if self.rows is None:
            raise AssertionError(f"{name} has no state")
        return self.rows

    def fetch(self, keys: pa.Table | None) -> pa.Table:
        """See `StateTable`."""
        if self.rows is None:
            raise AssertionError("a view without a state asks for it")
        return self.rows.look_up(keys, null_safe=True)


class TrialWorld:
    """Tables, and views over them, epoch by epoch.

    Args:
        schemas: of the tables.
        views: in any order.
        engine: runs their queries.
        pinned_ms: what `now()` is.

    Raises:
        UserError: a view cannot be planned, or computed over empty tables.
    """

    def __init__(
        self,
        schemas: Mapping[RelationId, TableSchema],
        views: Sequence[ViewDefinition],
        engine: TrialEngine,
        pinned_ms: int,
    ) -> None:
        self._engine, self._pinned_ms = engine, pinned_ms
        self._rows = {name: Multiset(name, schema) for name, schema in schemas.items()}
        for clock, schema in CLOCKS.items():
            self._rows[clock] = Multiset.of(clock, schema, pinned_rows(clock, pinned_ms))
        #: Parts stand before the views they are of.
        self._plans: dict[RelationId, ViewPlan] = {}
        self._batches: dict[RelationId, ViewDefinition] = {}
        self._columns: dict[RelationId, Sequence[str]] = {}
        self._states: dict[RelationId, _KeptState] = {}
        self.views = order_views(views)
        known = dict(schemas)
        for definition in self.views:
            plan = compile_view(definition, known, self._open)
            self._batches[definition.relation] = in_total_order(definition, known)
            columns = self._rows[definition.relation].schema.columns
            known[definition.relation] = TableSchema(columns, plan.key)

    def _open(self, plan: ViewPlan, schemas: Mapping[RelationId, TableSchema]) -> ViewPlan:
        """Build a view or part; parts come before what reads them."""
        self._batches[plan.relation] = plan.definition
        self._columns[plan.relation] = plan.columns
        first = self._batch(plan.definition, plan.columns)
        columns = tuple(Column(field.name, field.type) for field in first.schema)
        schema = TableSchema(columns, plan.key)
        self._rows[plan.relation] = Multiset.of(plan.relation, schema, first)
        self._states[plan.relation] = _KeptState(None)
        if plan.state_definition is not None:
            kept = self._batch(plan.state_definition, plan.state_columns)
            if plan.maintained is not None and not plan.maintained.shown_schema(kept.schema):
                # Kept up by other means: its sums are of a type that is not added up.
                if plan.plain is None:
                    raise AssertionError("sums of this type need a plain plan")
                plan = plan.plain
            else:
                shape = tuple(Column(field.name, field.type) for field in kept.schema)
                state = Multiset.of(plan.relation.state, TableSchema(shape, ()), kept)
                self._states[plan.relation] = _KeptState(state)
        self._plans[plan.relation] = replace(plan, result=first.schema)
        return self._plans[plan.relation]

    def rows(self, name: RelationId) -> pa.Table:
        """What a table or a view shows."""
        return self._rows[name].table

    def schema(self, name: RelationId) -> TableSchema:
        """The columns of a table or a view."""
        return self._rows[name].schema

    def batch(self, name: RelationId) -> pa.Table:
        """A view as the batch query over all rows."""
        return self._batch(self._batches[name], self._columns[name])

    def _batch(
        self,
        definition: ViewDefinition,
        columns: Sequence[str],
        after: Mapping[RelationId, pa.Table] | None = None,
    ) -> pa.Table:
        def rows(name: RelationId) -> pa.Table:
            return (after or {}).get(name, self._rows[name].table)

        return self._engine.view(definition, rows, columns)

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        """The look-ups of a round; see `Lookups`."""
        return [self._fetch(request) for request in requests]

    def _fetch(self, request: Request) -> pa.Table:
        rows = self._rows[request.table].look_up(request.keys, null_safe=request.null_safe)
        if request.within is not None:
            column = rows[request.within.column]
            low, high = (
                bound.cast(column.type) for bound in (request.within.low, request.within.high)
            )
            inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
            rows = rows.filter(inside)
        return rows.select(list(request.select))

    def epoch(
        self, deltas: Mapping[RelationId, pa.Table], pinned_ms: int | None = None
    ) -> dict[RelationId, pa.Table]:
        """Take changes, and bring every view up to them.

        Args:
            deltas: per table its columns and WEIGHT.
            pinned_ms: what `now()` is from here on; None: as before.

        Returns:
            Per view that it should show otherwise: what it shows minus what the batch query gives,
            as the view's columns and WEIGHT.

        Raises:
            UserError: a view cannot be computed, or a row goes that is not there.
        """
        moved = dict(deltas) | self._ticked(pinned_ms)
        changed = {name: Changes(delta) for name, delta in moved.items()}
        after = {name: self._rows[name].after(delta) for name, delta in moved.items()}
        states: list[tuple[Multiset, pa.Table]] = []
        for name, plan in self._plans.items():
            if not moved.keys() & set(plan.tables):
                continue
            delta = self._delta(plan, changed, after)
            if delta.state is not None:
                states.append((self._states[name].of(name), delta.state))
            if delta.rows.num_rows:
                changed[name], moved[name] = Changes(delta.rows), delta.rows
                after[name] = self._rows[name].after(delta.rows)
        # All views have seen the old rows: now they go.
        for name, table in after.items():
            self._rows[name].table = table
        for rows, change in states:
            rows.table = rows.after(change)
        wrong = {}
        for view in self.views:
            apart = differences(self.rows(view.relation), self.batch(view.relation))
            if apart.num_rows:
                wrong[view.relation] = apart
        return wrong

    def _delta(
        self,
        plan: ViewPlan,
        changed: Mapping[RelationId, Changes],
        after: Mapping[RelationId, pa.Table],
    ) -> ViewDelta:
        """What an epoch does to a view or part."""
        name = plan.relation
        try:
            if plan.evaluation != "full":
                with _of(name):
                    delta = run_view(plan, changed, self, self._engine, self._states[name])
                return delta or ViewDelta(weighted(self._rows[name].table.slice(0, 0), 1))
        except BatchNeededError:
            pass
        rows = difference(self._batch(plan.definition, plan.columns, after), self._rows[name].table)
        if plan.state_definition is None or self._states[name].rows is None:
            return ViewDelta(rows)
        kept = self._batch(plan.state_definition, plan.state_columns, after)
        return ViewDelta(rows, difference(kept, self._states[name].of(name).table))

    def _ticked(self, pinned_ms: int | None) -> dict[RelationId, pa.Table]:
        """The changes of the clocks."""
        if pinned_ms is None or pinned_ms == self._pinned_ms:
            return {}
        self._pinned_ms = pinned_ms
        ticked = {}
        for clock in CLOCKS:
            change = difference(pinned_rows(clock, pinned_ms), self._rows[clock].table)
            if change.num_rows:
                ticked[clock] = change
        return ticked


#: So many digits of a DOUBLE count: sums in another order differ in the ones after.
_DIGITS = 12


def differences(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """Multiset that are there, minus those wanted: the columns of `wanted` and WEIGHT."""
    loose = nullable(wanted.schema)
    return difference(_rounded(as_schema(rows, loose)), _rounded(wanted.cast(loose)), signs=False)


def _rounded(rows: pa.Table) -> pa.Table:
    for number, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            values = [
                None if value is None else float(f"{value:.{_DIGITS}g}")
                for value in rows.column(number).to_pylist()
            ]
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(number, field, pa.array(values, field.type))
    return rows
