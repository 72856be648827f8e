"""Views and parts that an epoch computes as a whole: all rows of a query, minus the old ones.

In process where the query is admitted, else on Spark. What is small is read, computed and compared
at once, by a query that stays planned. What is larger goes through in parts: of the tables, the
result and the old rows no more than a share of `engine.memory` is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from mview.store.mirror import ROW

#: Begins anew with the first of some parts.
_Again = Callable[[], Iterator[pa.Table]]


def recompute(
    engine: Engine,
    plan: ViewPlan,
    tables: Mapping[RelationId, TableState],
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
        What changes, and the name of the executor.
    """
    rows, ran = _change(engine, plan, plan.full_definition, tables, deltas, old, plan.result)
    relation = plan.state
    if relation is None or plan.state_definition is None:
        return ViewDelta(rows), ran
    kept = engine.relations[relation]

    def before() -> Iterator[pa.Table]:
        return kept.mirror.parts(kept.state)

    asked = plan.state_definition
    state, _ = _change(engine, plan, asked, tables, deltas, before, plan.state_result)
    return ViewDelta(rows, state), ran


def _change(
    engine: Engine,
    plan: ViewPlan,
    definition: ViewDefinition,
    tables: Mapping[RelationId, TableState],
    deltas: Mapping[RelationId, Delta],
    old: _Again,
    result: pa.Schema | None,
) -> tuple[pa.Table, str]:
    """The rows of a query now minus its old rows, weighted."""
    assert result is not None
    most = engine.memory.whole
    mirrored = filterfalse(is_clock, definition.table_names)
    read = [(engine.relations[name].mirror, tables[name]) for name in mirrored]
    small = is_small(read, most)
    if plan.is_exact and is_small(read, engine.memory.streamed):
        compute = _at_once if small else _in_parts
        try:
            here = compute(engine, definition, tables, deltas, result)
            if here is not None:
                return pa.concat_tables(differences(here, old(), result, most)), "local"
        except EvaluationError:
            pass  # an outcome that only Spark decides, e.g. an overflow
    with frames(engine, definition, tables) as names:
        sql = bind_tables(definition, names, engine.pinned_ms)
        folder = engine.store.comparison(definition.name)
        new = result_parts(engine.spark.session().sql(sql), result, folder, small)
        return pa.concat_tables(differences(new, old(), result, most)), "spark"


def _at_once(
    engine: Engine,
    definition: ViewDefinition,
    tables: Mapping[RelationId, TableState],
    deltas: Mapping[RelationId, Delta],
    result: pa.Schema,
) -> Iterable[pa.Table] | None:
    """The rows of a query over small tables, in process; None: Spark has to run it.

    Tables that are in memory are taken from there: to read them, and to fold their tails, takes
    longer than the query.
    """
    names, sql = _bound(definition)
    # As a view reads them: of rows without a key it sees no numbers.
    shown = {name: _without_numbers(tables[name].schema.arrow) for name in names}
    schemas = {names[name]: schema for name, schema in shown.items()}
    if not engine.executors.may_run_whole(sql, schemas, result):
        return None
    relations = {}
    for name, schema in shown.items():
        change = deltas[name].rows if name in deltas else None
        resident = engine.executors.rows_after(name, change, schema.names)
        if resident is None:
            rows = engine.relations[name].mirror.scan(tables[name], schema.names)
        else:
            rows = resident.table()
        relations[names[name]] = rows
    return [engine.executors.whole(sql, relations, result)]


def _in_parts(
    engine: Engine,
    definition: ViewDefinition,
    tables: Mapping[RelationId, TableState],
    deltas: Mapping[RelationId, Delta],
    result: pa.Schema,
) -> Iterable[pa.Table] | None:
    """The same over tables of any size, part by part; of them, only the columns that are used."""
    names, sql = _bound(definition)
    relations = {}
    for name in names:
        used, state = uses_of([definition], name), tables[name]
        schema = _without_numbers(state.schema.arrow)
        # A table has a column: of one that is only counted, its key comes.
        fields = [f for f in schema if used(f.name) or f.name in state.schema.key] or schema
        schema = pa.schema([field.with_nullable(True) for field in fields])
        change = deltas[name].rows if name in deltas else None
        resident = engine.executors.rows_after(name, change, schema.names)
        relations[names[name]] = resident or _read(engine, name, state, schema)
    schemas = {name: parts.schema for name, parts in relations.items()}
    if not engine.executors.may_run_whole(sql, schemas, result):
        return None
    return engine.executors.stream(sql, relations, result)


def _read(engine: Engine, name: RelationId, state: TableState, schema: pa.Schema) -> Parts:
    mirror = engine.relations[name].mirror
    return Parts(schema, lambda: mirror.parts(state, schema.names))


def _bound(definition: ViewDefinition) -> tuple[dict[RelationId, str], str]:
    """Names for the tables of a query, and the query over these."""
    names = {name: f"whole_{number}" for number, name in enumerate(definition.table_names)}
    return names, bind_tables(definition, names)


def _without_numbers(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != ROW])
