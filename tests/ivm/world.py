"""A small world to maintain views in: tables in memory, exact or generous look-ups, two engines."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import sqlglot
from pyspark.sql import SparkSession

from mview.connector import WEIGHT
from mview.execute.program import Request, ViewDelta, run_view
from mview.execute.slices import Changes
from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.ivm.rewrites.total_order import in_total_order
from mview.plan.clocks import CLOCKS, pinned_rows
from mview.plan.definition import ViewDefinition, order_views, parse_view
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.schema import Column, TableSchema, parse_type, type_name
from tests.relations import keyed

Row = tuple[Any, ...]

#: One object, so that NaN equals itself in rows.
NAN = float("nan")

#: Python rounds to 28 digits else.
_EXACT = Context(prec=100)


def table_schema(text: str, key: str = "") -> TableSchema:
    """`table_schema("id bigint, v string", "id")`; key columns are NOT NULL."""
    keys = tuple(key.split())
    columns = []
    for part in text.split(", "):
        name, kind = part.split(" ", 1)
        not_null = kind.endswith(" not null")
        kind = kind.removesuffix(" not null")
        columns.append(Column(name, parse_type(kind), not (not_null or name in keys)))
    return TableSchema(tuple(columns), keys)


def normal(value: Any) -> Any:
    """A value that compares and prints in one way: one NaN, no -0.0, lists as tuples."""
    if isinstance(value, float):
        if value != value:
            return NAN
        # What is left of a sum that cancels is larger than a subnormal number, of FLOAT too.
        return (value if abs(value) < 1e-37 else round(value, 9)) + 0.0
    if isinstance(value, Decimal):
        return _EXACT.add(_EXACT.normalize(value), 0)
    if isinstance(value, list):
        return tuple(normal(one) for one in value)
    return value


def to_rows(table: pa.Table) -> list[Row]:
    """The rows of a table as normal tuples."""
    columns = [[normal(v) for v in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def random_changes(
    chance: random.Random,
    rows: dict[int, Row],
    keys: Sequence[int],
    count: int,
    share: float,
    made: Callable[[int], Row],
) -> list[tuple[int, Row]]:
    """Weighted rows: of some keys the row goes, and for a share of them another one comes.

    Args:
        chance: makes the choices.
        rows: the table's rows by key; brought up to date.
        keys: all that there may be.
        count: so many of them change.
        share: of these, those that have a row afterwards.
        made: a new row.
    """
    found: list[tuple[int, Row]] = []
    for key in chance.sample(keys, count):
        if (old := rows.pop(key, None)) is not None:
            found.append((-1, old))
        if chance.random() < share:
            rows[key] = made(key)
            found.append((1, rows[key]))
    return found


class Engine(Protocol):
    """Runs Spark SQL over Arrow tables."""

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table: ...


class SparkEngine:
    """Spark itself."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        for name, rows in relations.items():
            nullable = pa.schema([f.with_nullable(True) for f in rows.schema])
            self.spark.createDataFrame(rows.cast(nullable)).createOrReplaceTempView(name)
        rows = self.spark.sql(sql).toArrow()
        # Whether an element can be NULL is no part of a type, see mview/catalog/analyze.py.
        lists = {
            f.name: parse_type(type_name(f.type)) for f in rows.schema if pa.types.is_list(f.type)
        }
        fields = [f.with_type(lists.get(f.name, f.type)) for f in rows.schema]
        return rows.cast(pa.schema(fields)) if lists else rows


class DuckEngine:
    """DuckDB, where its semantics agree: fast, for many random views."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": "1"})
        self.translated: dict[str, str] = {}

    def run(
        self, sql: str, relations: Mapping[str, pa.Table], result: pa.Schema | None
    ) -> pa.Table:
        if sql not in self.translated:
            self.translated[sql] = sqlglot.transpile(sql, read="spark", write="duckdb")[0]
        for name, rows in relations.items():
            self.connection.register(name, rows)
        found = self.connection.sql(self.translated[sql]).to_arrow_table()
        for name in relations:
            self.connection.unregister(name)
        return found


class Mirror:
    """Rows of one table or view, as a multiset."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.rows: Counter[Row] = Counter()

    def table(self, rows: Counter[Row] | None = None) -> pa.Table:
        listed = list((self.rows if rows is None else rows).elements())
        arrow = pa.schema([pa.field(c.name, c.type) for c in self.schema.columns])
        return pa.Table.from_pylist([dict(zip(arrow.names, r, strict=True)) for r in listed], arrow)

    def delta(self, changes: Sequence[tuple[int, Row]]) -> pa.Table:
        arrow = pa.schema(
            [*(pa.field(c.name, c.type) for c in self.schema.columns), pa.field(WEIGHT, pa.int64())]
        )
        # By what they look like: as a table's changes are, from 0.0 to -0.0 is one.
        seen = {repr(row): row for _, row in changes}
        weights: Counter[str] = Counter()
        for weight, row in changes:
            weights[repr(row)] += weight
        rows = [
            dict(zip(arrow.names, (*row, weights[text]), strict=True))
            for text, row in seen.items()
            if weights[text]
        ]
        return pa.Table.from_pylist(rows, arrow)

    def apply(self, changes: Sequence[tuple[int, Row]]) -> None:
        for weight, row in changes:
            self.rows[row] += weight
            if not self.rows[row]:
                del self.rows[row]  # else (0.0,) would stay where (-0.0,) comes
        negative = [row for row, count in self.rows.items() if count < 0]
        assert not negative, f"rows with negative multiplicity: {negative}"
        self.rows += Counter()


class Lookups:
    """Look-ups that return exactly what was asked for, or (generous) all rows."""

    def __init__(self, mirrors: Mapping[RelationId, Mirror], generous: bool) -> None:
        self.mirrors, self.generous = mirrors, generous
        self.requests: list[Request] = []

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        self.requests.extend(requests)
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> pa.Table:
        mirror = self.mirrors[request.table]
        rows = mirror.rows
        if request.within is not None and not self.generous:
            at = mirror.schema.names.index(request.within.column)
            low, high = request.within.low.as_py(), request.within.high.as_py()
            rows = Counter(
                {
                    row: count
                    for row, count in rows.items()
                    if row[at] is not None and low <= row[at] <= high
                }
            )
        if request.keys is not None and not self.generous:
            names = mirror.schema.names
            at = [names.index(name) for name in request.keys.column_names]
            wanted = set(to_rows(request.keys))
            assert len(wanted) == request.keys.num_rows, "keys are not distinct"
            rows = Counter(
                {
                    row: count
                    for row, count in rows.items()
                    if (key := tuple(normal(row[i]) for i in at)) in wanted
                    and (request.null_safe or None not in key)
                }
            )
        return mirror.table(rows).select(request.select)


class StateTable:
    """The accumulators of one view."""

    def __init__(self) -> None:
        self.rows: pa.Table | None = None

    def fetch(self, keys: pa.Table | None) -> pa.Table:
        assert self.rows is not None
        if keys is None:
            return self.rows
        wanted = set(to_rows(keys))
        mask = [row in wanted for row in to_rows(self.rows.select(keys.column_names))]
        return self.rows.filter(pa.array(mask, pa.bool_()))

    def apply(self, delta: pa.Table) -> None:
        counts: Counter[Row] = Counter(to_rows(self.rows) if self.rows is not None else [])
        names = [name for name in delta.column_names if name != WEIGHT]
        for row, weight in zip(
            to_rows(delta.select(names)), delta[WEIGHT].to_pylist(), strict=True
        ):
            counts[row] += weight
            assert counts[row] in (0, 1), f"state row {row} has multiplicity {counts[row]}"
        listed = [dict(zip(names, row, strict=True)) for row in counts.elements()]
        self.rows = pa.Table.from_pylist(listed, delta.select(names).schema)


class World:
    """Tables and the views over them, kept up to date epoch by epoch."""

    def __init__(
        self,
        schemas: Mapping[str, TableSchema],
        views: Mapping[str, str] | Sequence[ViewDefinition],
        engine: Engine,
        *,
        generous: bool = False,
        batch: Engine | None = None,
        pinned_ms: int = 0,
    ) -> None:
        self.engine, self.batch = engine, batch or engine
        self.generous, self.pinned_ms = generous, pinned_ms
        self.mirrors = {name: Mirror(s) for name, s in {**keyed(schemas), **CLOCKS}.items()}
        for clock in CLOCKS:
            self.mirrors[clock].apply([(1, row) for row in to_rows(pinned_rows(clock, pinned_ms))])
        given = (
            [parse_view(sql, name, name) for name, sql in views.items()]
            if isinstance(views, Mapping)
            else list(views)
        )
        #: The look-ups of the last epoch.
        self.requests: list[Request] = []
        #: Parts stand before the views they are of.
        self.plans: dict[RelationId, ViewPlan] = {}
        self.batches: dict[RelationId, ViewDefinition] = {}
        self.states: dict[RelationId, StateTable] = {}
        known = keyed(schemas)
        for definition in order_views(given):
            plan = compile_view(definition, known, self.open)
            self.batches[definition.relation] = in_total_order(definition, known)
            known[definition.relation] = TableSchema(
                self.mirrors[definition.relation].schema.columns, plan.key
            )

    def open(self, plan: ViewPlan, schemas: Mapping[RelationId, TableSchema]) -> ViewPlan:
        """Build a view or part; parts come before what reads them."""
        self.batches[plan.relation] = plan.definition
        first = self.compute(plan.relation)
        columns = tuple(Column(f.name, f.type) for f in first.schema)
        mirror = self.mirrors[plan.relation] = Mirror(TableSchema(columns, plan.key))
        mirror.apply([(1, row) for row in to_rows(first)])
        self.states[plan.relation] = state = StateTable()
        if plan.state_definition is not None:
            state.rows = self._batch(plan.state_definition)
            if plan.maintained is not None and not plan.maintained.shown_schema(state.rows.schema):
                assert plan.plain is not None
                plan = plan.plain
        self.plans[plan.relation] = replace(plan, result=first.schema)
        return self.plans[plan.relation]

    def compute(self, name: RelationId) -> pa.Table:
        """A view as a batch query over all rows: the user's own text; for a part, its text."""
        return self._batch(self.batches[name])

    def _batch(self, definition: ViewDefinition) -> pa.Table:
        names = {table: f"b{i}" for i, table in enumerate(definition.table_names)}
        relations = {name: self.mirrors[table].table() for table, name in names.items()}
        sql = bind_tables(definition, names, self.pinned_ms)
        return self.batch.run(sql, relations, None)

    def epoch(
        self, changes: Mapping[str, Sequence[tuple[int, Row]]], pinned_ms: int | None = None
    ) -> dict[str, list[tuple[int, Row]]]:
        """Run one epoch; every view is checked against the batch query at its pinned time.

        Returns:
            The delta of every view, sorted.
        """
        moved = keyed(changes)
        if pinned_ms is not None:
            moved |= self._tick(pinned_ms)
        self.requests.clear()
        deltas = {name: Changes(self.mirrors[name].delta(rows)) for name, rows in moved.items()}
        applied = {name: list(rows) for name, rows in moved.items()}
        found = {}
        for name, plan in self.plans.items():
            lookups = Lookups(self.mirrors, self.generous)
            delta = run_view(plan, deltas, lookups, self.engine, self.states[name])
            self.requests += lookups.requests
            rows = [] if delta is None else self._weighted(delta)
            if delta is not None and delta.state is not None:
                self.states[name].apply(delta.state)
            if not name.is_inner:
                found[str(name)] = sorted(rows, key=lambda one: (str(one[1]), one[0]))
            if delta is not None and rows:
                deltas[name] = Changes(delta.rows)
                applied[name] = rows
        for name, rows in applied.items():
            self.mirrors[name].apply(rows)
        for name in self.plans:
            want, got = Counter(to_rows(self.compute(name))), self.mirrors[name].rows
            assert want == got, (
                f"view {name} is wrong: too many {dict(got - want)}, missing {dict(want - got)}"
            )
        return found

    def _tick(self, pinned_ms: int) -> dict[RelationId, list[tuple[int, Row]]]:
        """The changes of the clocks that show another time."""
        self.pinned_ms = pinned_ms
        new = {clock: to_rows(pinned_rows(clock, pinned_ms))[0] for clock in CLOCKS}
        old = {clock: next(iter(self.mirrors[clock].rows)) for clock in CLOCKS}
        return {c: [(-1, old[c]), (1, new[c])] for c in CLOCKS if old[c] != new[c]}

    def _weighted(self, delta: ViewDelta) -> list[tuple[int, Row]]:
        names = [name for name in delta.rows.column_names if name != WEIGHT]
        weights = delta.rows[WEIGHT].to_pylist()
        return list(zip(weights, to_rows(delta.rows.select(names)), strict=True))
