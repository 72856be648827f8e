"""TPC-H views kept by the engine's own parts: resident look-ups, local evaluation, Spark else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from mview.connector import WEIGHT
from mview.execute.local.evaluate import EvaluationError, LocalEvaluator
from mview.execute.local.refusal import NotAdmittedError
from mview.execute.program import Request, run_view
from mview.execute.scan import scan_table
from mview.execute.spark import SparkExecutor
from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.ivm.slices import consolidate, new_slice, old_slice
from mview.plan.definition import ViewDefinition, load_views
from mview.plan.render import bind_tables
from mview.runtime.analyze import relation_name
from mview.runtime.views import analyzer
from mview.schema import Column, TableSchema
from tests.tpch.data import SCHEMAS, Tpch

QUERIES = Path(__file__).parents[2] / "sql" / "tpch"


def loose(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema])


@dataclass
class Stored:
    """A table, part or state: rows now, and what the epoch changes."""

    schema: TableSchema
    rows: pa.Table
    delta: pa.Table | None = None

    def settle(self) -> None:
        if self.delta is not None:
            before = old_slice(self.schema, [self.rows], None)
            self.rows = new_slice(self.schema, before, self.delta)
            self.delta = None


@dataclass
class TpchWorld:
    """All tables and views, epoch by epoch."""

    spark: SparkSession
    data: Tpch
    definitions: Sequence[ViewDefinition] = ()
    plans: dict[str, ViewPlan] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)
    states: dict[str, Stored] = field(default_factory=dict)
    #: Tables that a view read whole, by view, with the number of epochs.
    whole: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.definitions = self.definitions or load_views([QUERIES])
        self.local, self.remote = LocalEvaluator(), SparkExecutor(self.spark, {})
        for name, rows in self.data.tables().items():
            arrow = loose(SCHEMAS[name].arrow)
            columns = zip(*rows, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, arrow, strict=True)]
            self.stored[name] = Stored(SCHEMAS[name], pa.table(arrays, schema=arrow))
        self._register(list(self.stored))
        for definition in self.definitions:
            compile_view(definition, SCHEMAS, self._build)

    def _build(self, plan: ViewPlan, schemas: Mapping[str, TableSchema]) -> ViewPlan:
        plan = analyzer(self.spark)(plan, schemas)
        self.plans[plan.name] = plan
        assert plan.result is not None
        rows = self.batch(plan.definition).cast(plan.result)
        self.stored[plan.name] = Stored(plan.output, rows)
        self._register([plan.name])
        if plan.state_definition is not None:
            state = self.batch(plan.state_definition)
            self.states[plan.name] = Stored(_schema_of(state.schema, plan.state_key), state)
        return plan

    def _register(self, names: Sequence[str]) -> None:
        for name in names:
            frame = self.spark.createDataFrame(self.stored[name].rows)
            frame.createOrReplaceTempView(f"all_{relation_name(name)}")

    def batch(self, definition: ViewDefinition) -> pa.Table:
        """A query over all rows, on Spark."""
        names = {table: f"all_{relation_name(table)}" for table in definition.table_names}
        return self.spark.sql(bind_tables(definition, names)).toArrow()

    def epoch(self, changes: int) -> dict[str, int]:
        """Run an epoch; returns the number of changed rows per view."""
        deltas: dict[str, pa.Table] = {}
        for name, rows in self.data.refresh(changes).items():
            if rows:
                deltas[name] = _weighted(rows, loose(SCHEMAS[name].arrow))
                self.stored[name].delta = deltas[name]
        found = {}
        for name, plan in self.plans.items():
            lookups = _Lookups(self.stored)
            state = _State(self.states[name]) if name in self.states else None
            delta = run_view(plan, deltas, lookups, self, state)
            self.whole[name] = self.whole.get(name, 0) + lookups.whole
            found[name] = 0 if delta is None else delta.rows.num_rows
            if delta is None:
                continue
            deltas[name] = delta.rows
            self.stored[name].delta = delta.rows
            if delta.state is not None:
                self.states[name].delta = delta.state
        for one in (*self.stored.values(), *self.states.values()):
            one.settle()
        self._register([name for name in self.stored if name in SCHEMAS])
        return found

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        """In process where that is admitted, as the engine does."""
        try:
            return self.local.run(sql, relations, result)
        except (NotAdmittedError, EvaluationError):
            return self.remote.run(sql, relations, result)

    def differences(self) -> dict[str, str]:
        """Views that differ from the batch query of the user's text."""
        wrong = {}
        for definition in self.definitions:
            have = self.stored[definition.name].rows
            want = self.batch(definition).cast(have.schema)
            weights = [pa.array([w] * t.num_rows, pa.int32()) for t, w in ((want, 1), (have, -1))]
            both = [t.append_column(WEIGHT, w) for t, w in zip((want, have), weights, strict=True)]
            rows = consolidate(pa.concat_tables(both))
            if rows.num_rows:
                wrong[definition.name] = str(rows.slice(0, 4).to_pylist())
        return wrong


def _schema_of(arrow: pa.Schema, key: tuple[str, ...]) -> TableSchema:
    return TableSchema(tuple(Column(f.name, f.type) for f in arrow), key)


def _weighted(rows: Sequence[tuple[int, tuple[object, ...]]], arrow: pa.Schema) -> pa.Table:
    columns = zip(*(row for _, row in rows), strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, arrow, strict=True)]
    weights = pa.array([weight for weight, _ in rows], pa.int32())
    return pa.table([*arrays, weights], schema=arrow.append(pa.field(WEIGHT, pa.int32())))


class _Lookups:
    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self.stored, self.whole = stored, 0

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        found = []
        for one in requests:
            rows = self.stored[one.table].rows
            wanted = pa.schema([rows.schema.field(name) for name in one.select])
            self.whole += one.keys is None and rows.num_rows > 1
            found.append(scan_table(rows, wanted, one.keys, one.null_safe))
        return found


class _State:
    def __init__(self, stored: Stored) -> None:
        self.stored = stored

    def fetch(self, keys: pa.Table | None) -> pa.Table:
        return scan_table(self.stored.rows, self.stored.rows.schema, keys, True)
