"""A benchmark's views kept by the engine's own parts: look-ups in memory, local evaluation, Spark
for the rest. The oracle is Spark's batch run of the user's text over the generator's own tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from mview.catalog.analyze import Analyst, relation_names
from mview.connector import WEIGHT
from mview.epoch.views.opening import analyzer
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.program import Request, run_view
from mview.execute.refusal import RefusalError
from mview.execute.scan import scan_table
from mview.execute.slices import Changes, before_and_after, consolidate, difference, weighted
from mview.execute.spark.executor import SparkExecutor
from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.plan.definition import ViewDefinition, load_views
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.rows.match import match
from mview.schema import Column, TableSchema, as_schema
from mview.session.lazy import Spark
from tests.relations import keyed
from tests.tpc.generate import Generator

#: Queries over little data, each planned anew: to interpret them is half the work of compiling.
_SMALL_DATA = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
#: Rows that Spark is given once, by columns, instead of with every query.
_MANY_ROWS = 5000


@contextmanager
def small_data(spark: SparkSession) -> Iterator[None]:
    """Spark's settings for many queries over little data."""
    before = {name: spark.conf.get(name) for name in _SMALL_DATA}
    for name, value in _SMALL_DATA.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@dataclass
class Stored:
    """A table, part, view or state: rows now, and what the epoch changes."""

    schema: TableSchema
    rows: pa.Table
    delta: pa.Table | None = None

    def settle(self) -> None:
        if self.delta is not None:
            _, self.rows = before_and_after(
                self.schema, [self.rows], Changes(self.delta).through(self.schema)
            )
            self.delta = None


class BenchmarkWorld:
    """All tables and views, epoch by epoch.

    Args:
        spark: the oracle, and the executor of what does not run in process.
        data: the tables and their changes.
        queries: a folder of view files.
    """

    def __init__(self, spark: SparkSession, data: Generator, queries: Path) -> None:
        self.spark, self.data = spark, data
        self._cached: dict[RelationId, DataFrame] = {}
        self._names: dict[RelationId, str] = {}
        self.local, self.remote = LocalEvaluator(), SparkExecutor(Spark.of(spark), {})
        self.definitions: Sequence[ViewDefinition] = load_views([queries])
        #: Views, by name.
        self.views: dict[str, ViewPlan] = {}
        #: Views and their parts, each after what it reads.
        self.plans: dict[RelationId, ViewPlan] = {}
        self.states: dict[RelationId, Stored] = {}
        self.stored = {
            name: Stored(schema, data.tables[str(name)])
            for name, schema in keyed(data.schemas).items()
        }
        self._register(keyed(data.tables))
        for definition in self.definitions:
            plan = compile_view(definition, keyed(data.schemas), analyzer(Analyst(Spark.of(spark))))
            self.views[definition.name] = plan
            for one in (*plan.parts, plan):
                self._build(one)

    def _build(self, plan: ViewPlan) -> None:
        self.plans[plan.relation] = plan
        assert plan.result is not None
        rows = self.batch(plan.definition).cast(plan.result)
        self.stored[plan.relation] = Stored(plan.output, rows)
        self._register({plan.relation: rows})
        if plan.state_definition is not None:
            state = self.batch(plan.state_definition)
            columns = tuple(Column(f.name, f.type) for f in state.schema)
            self.states[plan.relation] = Stored(TableSchema(columns, plan.state_key), state)

    def _register(self, tables: Mapping[RelationId, pa.Table]) -> None:
        for name, rows in tables.items():
            if name in self._cached:
                self._cached.pop(name).unpersist()
            frame = self.spark.createDataFrame(rows)
            if rows.num_rows > _MANY_ROWS:
                frame = self._cached[name] = frame.coalesce(1).cache()
            self._names = relation_names([name]) | self._names
            frame.createOrReplaceTempView(self._names[name])

    def batch(self, definition: ViewDefinition) -> pa.Table:
        """A query over all rows, on Spark."""
        return self.spark.sql(bind_tables(definition, self._names)).toArrow()

    def epoch(self, changes: int) -> dict[str, int]:
        """Run an epoch; returns the number of changed rows per view and part."""
        deltas = keyed(self.data.refresh(changes))
        for name, rows in deltas.items():
            self.stored[name].delta = rows
        found = {}
        whole = []
        for name, plan in self.plans.items():
            state = _State(self.states[name]) if name in self.states else None
            moved = {name: Changes(rows) for name, rows in deltas.items()}
            delta = run_view(plan, moved, _Lookups(self.stored), self, state)
            found[str(name)] = 0 if delta is None else delta.rows.num_rows
            if delta is None:
                continue
            rows = self._as_published(plan, delta.rows)
            if rows is None:
                whole.append(plan)
                continue
            deltas[name] = self.stored[name].delta = rows
            if delta.state is not None:
                self.states[name].delta = delta.state
        for one in (*self.stored.values(), *self.states.values()):
            one.settle()
        self._register(keyed(self.data.tables))
        for plan in whole:
            kept = self.stored[plan.relation]
            kept.rows = self.batch(plan.definition).cast(kept.rows.schema)
        return found

    def _as_published(self, plan: ViewPlan, rows: pa.Table) -> pa.Table | None:
        """The change with the rows that go as they are kept, as `mview.epoch` does it: computed
        again, a deviation, say, may have another last digit. None: the view is computed anew."""
        goes = pc.less(rows[WEIGHT], 0)
        if not plan.is_by_order or not pc.any(goes).as_py():
            return rows
        old = self.stored[plan.relation].rows
        if plan.maintained is None or not plan.maintained.always:
            if not plan.key:
                assert not plan.definition.part, "a part is read by its changes"
                return None
            key = list(plan.key)
            old = old.take(pa.array(match(old.select(key), rows.filter(goes).select(key))[0]))
        gone = weighted(old, -1).select(rows.column_names)
        come = rows.filter(pc.invert(goes))
        return consolidate(pa.concat_tables([come, as_schema(gone, rows.schema)]))

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        """In process where that is admitted, as the engine does."""
        try:
            return self.local.run(sql, relations, result)
        except RefusalError:
            return self.remote.run(sql, relations, result)

    def empty(self) -> set[str]:
        """Views without rows."""
        return {
            name for name in self.views if not self.stored[RelationId("view", name)].rows.num_rows
        }

    def differences(self) -> dict[str, str]:
        """Views that differ from the batch query of the user's text: rows, with weights."""
        wrong = {}
        for definition in self.definitions:
            have = self.stored[definition.relation].rows
            want = self.batch(definition).cast(have.schema)
            rows = difference(_rounded(have), _rounded(want))
            if rows.num_rows:
                wrong[definition.name] = str(rows.slice(0, 4).to_pylist())
        return wrong


def _rounded(rows: pa.Table) -> pa.Table:
    """Floats to nine digits: the order of rows, and so the last bits of a sum, are Spark's."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            values = rows[field.name].to_pylist()
            texts = pa.array([None if v is None else f"{v:.9g}" for v in values], pa.string())
            rows = rows.set_column(place, field.name, texts)
    return rows


@dataclass
class _Lookups:
    stored: Mapping[RelationId, Stored]

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        found = []
        for one in requests:
            rows = self.stored[one.table].rows
            wanted = pa.schema([rows.schema.field(name) for name in one.select])
            found.append(scan_table(rows, wanted, one.keys, one.null_safe))
        return found


@dataclass
class _State:
    stored: Stored

    def fetch(self, keys: pa.Table | None) -> pa.Table:
        return scan_table(self.stored.rows, self.stored.rows.schema, keys, True)
