"""Views and parts that an epoch computes as a whole: all rows of a query, minus the old ones.

In process where the query is admitted, else on Spark. What is small is read, computed and compared
at once, by a query that stays planned. What is larger goes through in parts: of the tables, the
result and the old rows no more than a share of `engine.memory` is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from mview.epoch.engine import Engine
from mview.epoch.views.build import frames
from mview.epoch.views.in_process import InProcess, Tables, read_by
from mview.epoch.views.results import is_small, result_parts
from mview.execute.delta import Delta
from mview.execute.pieces import differences
from mview.execute.program import ViewDelta
from mview.execute.refusal import EvaluationError
from mview.ivm.plan import ViewPlan
from mview.plan.definition import ViewDefinition
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.session.texts import query

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
            if InProcess.of(engine, plan, definition, tables, result) is None:
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
    if (here := InProcess.of(engine, plan, definition, tables, result)) is not None:
        try:
            return pa.concat_tables(differences(here.rows(deltas), old(), result, most)), "local"
        except EvaluationError:
            pass  # an outcome that only Spark decides, e.g. an overflow
    small = is_small(read_by(engine, definition, tables), most)
    with frames(engine, definition, tables) as names:
        sql = bind_tables(definition, names, engine.pinned_ms)
        folder = engine.store.comparison(definition.name)
        new = result_parts(query(engine.spark.session(), sql), result, folder, small)
        return pa.concat_tables(differences(new, old(), result, most)), "spark"
