"""Views and parts that an epoch computes as a whole: all rows of a query, minus the old ones.

In process where the query is admitted, else on Spark. What is small is read, computed and compared
at once, by a query that stays planned. What is larger goes through in parts: of the tables, the
result and the old rows no more than a share of `engine.memory` is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import filterfalse

import pyarrow as pa

from mview.epoch.engine import Engine
from mview.epoch.views.build import frames
from mview.epoch.views.results import is_small, result_parts
from mview.execute.delta import Delta
from mview.execute.pieces import differences
from mview.execute.program import ViewDelta
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

#: Begins anew with the first of some parts.
_Again = Callable[[], Iterator[pa.Table]]


def recompute(
    engine: Engine,
    plan: ViewPlan,
    tables: Tables,
    deltas: Mapping[RelationId, Delta],
    old: _Again,
) -> tuple[ViewDelta, str]:
    """A view or part over the tables as they are after this epoch, minus what is published.

    Old and new rows are compared in pieces within a share of `engine.memory`; what is held whole is
    the difference, which an epoch hands on in one.

    Args:
        plan: of the view or part.
        tables: the tables after this epoch.
        deltas: what this epoch changes in them.
        old: its published rows, in parts.

    Returns:
        What changes, and the name of the executor: `spark`, if that ran a part of it.
    """
    rows, ran = _change(engine, plan, plan.full_definition, tables, deltas, old, plan.result)
    relation = plan.state
    if relation is None or plan.state_definition is None:
        return ViewDelta(rows), ran
    kept = engine.relations[relation]

    def before() -> Iterator[pa.Table]:
        return kept.mirror.parts(kept.state)

    asked = plan.state_definition
    state, too = _change(engine, plan, asked, tables, deltas, before, plan.state_result)
    return ViewDelta(rows, state), ran if too == ran else "spark"


def whole_executor(engine: Engine, plan: ViewPlan, tables: Tables) -> str:
    """Where a view or part is computed as a whole, as far as is known before."""
    asked = [(plan.full_definition, plan.result), (plan.state_definition, plan.state_result)]
    for definition, result in asked:
        if definition is not None:
            assert result is not None
            if _Here.of(engine, plan, definition, tables, result) is None:
                return "spark"
    return "local"


def _change(
    engine: Engine,
    plan: ViewPlan,
    definition: ViewDefinition,
    tables: Tables,
    deltas: Mapping[RelationId, Delta],
    old: _Again,
    result: pa.Schema | None,
) -> tuple[pa.Table, str]:
    """The rows of a query now minus its old rows, weighted."""
    assert result is not None
    most = engine.memory.whole
    if (here := _Here.of(engine, plan, definition, tables, result)) is not None:
        try:
            return pa.concat_tables(differences(here.rows(deltas), old(), result, most)), "local"
        except EvaluationError:
            pass  # an outcome that only Spark decides, e.g. an overflow
    small = is_small(_read_by(engine, definition, tables), most)
    with frames(engine, definition, tables) as names:
        sql = bind_tables(definition, names, engine.pinned_ms)
        folder = engine.store.comparison(definition.name)
        new = result_parts(engine.spark.session().sql(sql), result, folder, small)
        return pa.concat_tables(differences(new, old(), result, most)), "spark"


@dataclass(frozen=True)
class _Here:
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
    ) -> _Here | None:
        """The query of a plan or of its state; None: Spark has to run it."""
        read = _read_by(engine, definition, states)
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

    def _parts(self, name: RelationId, schema: pa.Schema, delta: Delta | None) -> Parts:
        """A table: to read it, and to fold its tail, takes longer than to have it from memory."""
        change = None if delta is None else delta.rows
        resident = self.engine.executors.rows_after(name, change, schema.names)
        if resident is not None:
            return resident
        mirror, state = self.engine.relations[name].mirror, self.states[name]
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


def _read_by(
    engine: Engine, definition: ViewDefinition, tables: Tables
) -> list[tuple[Mirror, TableState]]:
    mirrored = filterfalse(is_clock, definition.table_names)
    return [(engine.relations[name].mirror, tables[name]) for name in mirrored]
