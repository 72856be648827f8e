"""Queries over whole tables that run in process: for a first build, and for FULL epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import filterfalse

import pyarrow as pa

from mview.epoch.engine import Engine
from mview.epoch.views.results import is_small
from mview.execute.delta import Delta
from mview.execute.refusal import EvaluationError
from mview.ivm.plan import ViewPlan
from mview.plan.clocks import is_clock
from mview.plan.definition import ViewDefinition
from mview.plan.render import bind_tables
from mview.plan.uses import uses_of
from mview.relation import RelationId
from mview.rows.parts import Parts
from mview.store.manifest import TableState
from mview.store.mirror import ROW, Mirror

Tables = Mapping[RelationId, TableState]


@dataclass(frozen=True)
class InProcess:
    """A query over whole tables that may run in process.

    Attributes:
        engine: has the tables.
        tables: they, by their names in the query: what they are, and their columns that are read.
        states: the tables as they are to be read.
        sql: the query.
        result: its columns.
        is_small: all that it reads may be held at once.
    """

    engine: Engine
    tables: Mapping[str, tuple[RelationId, pa.Schema]]
    states: Tables
    sql: str
    result: pa.Schema
    is_small: bool

    @classmethod
    def of(
        cls,
        engine: Engine,
        plan: ViewPlan,
        definition: ViewDefinition,
        states: Tables,
        result: pa.Schema,
    ) -> InProcess | None:
        """The query of a plan or of its state; None: Spark has to run it."""
        read = read_by(engine, definition, states)
        if not plan.is_exact or not is_small(read, engine.memory.streamed):
            return None
        names = {name: f"whole_{number}" for number, name in enumerate(definition.table_names)}
        tables = {
            short: (name, _columns(definition, name, states[name])) for name, short in names.items()
        }
        sql = bind_tables(definition, names)
        schemas = {short: schema for short, (_, schema) in tables.items()}
        if not engine.executors.may_run_whole(sql, schemas, result):
            return None
        return cls(engine, tables, states, sql, result, is_small(read, engine.memory.whole))

    def rows(self, deltas: Mapping[RelationId, Delta]) -> Iterable[pa.Table]:
        """Its rows, in parts.

        Args:
            deltas: what the epoch changes in the tables; a table that is in memory is as before it.

        Raises:
            EvaluationError: Spark has to run it; no part that came before counts.
        """
        given = {
            short: self._parts(name, schema, deltas.get(name))
            for short, (name, schema) in self.tables.items()
        }
        executors = self.engine.executors
        if not self.is_small:
            return executors.stream(self.sql, given, self.result)
        held = {short: parts.table() for short, parts in given.items()}
        return [executors.whole(self.sql, held, self.result)]

    def rows_within(self, most: int) -> pa.Table | None:
        """Its rows at once, where it is small: from files alone, as they are built from.

        Args:
            most: bytes that the tables may have.

        Returns:
            None: Spark has to run it, or the tables turn out to be larger.
        """
        held, room = {}, most
        for short, (name, schema) in self.tables.items():
            mirror = _mirror(self.engine, name, self.states)
            rows = mirror.scan_within(self.states[name], room, schema.names)
            if rows is None:
                return None
            room -= rows.nbytes
            held[short] = rows.cast(schema)
        try:
            return self.engine.executors.whole(self.sql, held, self.result)
        except EvaluationError:
            return None  # an outcome that only Spark decides, e.g. an overflow

    def _parts(self, name: RelationId, schema: pa.Schema, delta: Delta | None) -> Parts:
        """A table: to read it, and to fold its tail, takes longer than to have it from memory."""
        change = None if delta is None else delta.rows
        resident = self.engine.executors.rows_after(name, change, schema.names)
        if resident is not None:
            return resident
        mirror, state = _mirror(self.engine, name, self.states), self.states[name]
        if self.is_small:
            return Parts(schema, lambda: iter([mirror.scan(state, schema.names)]))
        return Parts(schema, lambda: mirror.parts(state, schema.names))


def _columns(definition: ViewDefinition, name: RelationId, state: TableState) -> pa.Schema:
    """The columns of a table that a query may read; of one that is only counted, the key.

    As a view reads them: of rows without a key it sees no numbers.
    """
    fields = [field.with_nullable(True) for field in state.schema.arrow if field.name != ROW]
    used = uses_of([definition], name)
    return pa.schema([f for f in fields if used(f.name) or f.name in state.schema.key] or fields)


def read_by(
    engine: Engine, definition: ViewDefinition, tables: Tables
) -> list[tuple[Mirror, TableState]]:
    """The mirrors of what a query reads, and what of them is to be read."""
    mirrored = filterfalse(is_clock, definition.table_names)
    return [(_mirror(engine, name, tables), tables[name]) for name in mirrored]


def _mirror(engine: Engine, name: RelationId, tables: Tables) -> Mirror:
    return engine.mirror(name, tables[name].schema)
