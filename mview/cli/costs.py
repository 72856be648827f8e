"""What keeping a view up costs, from the sizes of its tables and what epochs took so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mview.epoch.views.cost import Costs, costs_of, full_rows
from mview.errors import counted
from mview.ivm.plan import ViewPlan
from mview.ivm.reads import foreseen_reads
from mview.plan.clocks import is_clock
from mview.relation import RelationId
from mview.store.manifest import Manifest

#: Changed rows that a cost is told for.
_CHANGED = 1_000


@dataclass(frozen=True)
class DeltaCost:
    """What changed rows of a table cost.

    Attributes:
        table: the table.
        changed: changed rows.
        lookups: look-ups that they lead to.
        rows_read: rows that these find.
        seconds: what an epoch of so many takes, as measured; None: not measured yet.
    """

    table: str
    changed: int
    lookups: int
    rows_read: int
    seconds: float | None


@dataclass(frozen=True)
class PlanCost:
    """The costs of a view or part.

    Attributes:
        epoch: the epoch whose sizes and measurements were taken.
        deltas: by changed table; none where every change leads to FULL.
        full_rows: rows of all its tables.
        full_seconds: to compute it as a whole; None: not measured yet.
    """

    epoch: int
    deltas: tuple[DeltaCost, ...]
    full_rows: int
    full_seconds: float | None


def plan_cost(plan: ViewPlan, manifest: Manifest | None) -> PlanCost | None:
    """The costs of a view or part; None before all its tables are in the store."""
    reads = [name for name in plan.tables if not is_clock(name)]
    if manifest is None or not set(reads) <= set(manifest.tables):
        return None
    if any(name.is_table and manifest.tables[name].phase == "loading" for name in reads):
        return None  # so far it has a part of its rows, or none
    rows = {name: manifest.tables[name].rows for name in reads}
    view = manifest.views.get(plan.definition.name)
    costs = Costs() if view is None else costs_of(view, plan.relation)
    full = full_rows(plan, manifest.tables)
    deltas = [] if plan.evaluation == "full" else [_delta(plan, t, rows, costs) for t in rows]
    return PlanCost(manifest.epoch, tuple(deltas), full, costs.full_estimate(full))


def _delta(
    plan: ViewPlan, table: RelationId, rows: dict[RelationId, int], costs: Costs
) -> DeltaCost:
    foreseen = foreseen_reads(plan, {table: _CHANGED}, rows)
    read = min(costs.reads(foreseen.rows), sum(rows.values()))
    seconds = costs.incremental_estimate(_CHANGED + read)
    return DeltaCost(str(table), _CHANGED, foreseen.lookups, round(read), seconds)


def cost_lines(cost: PlanCost | None) -> Sequence[str]:
    """The costs as `explain` prints them."""
    if cost is None:
        return ["cost: not known before its tables are loaded"]
    lines = [
        f"  {delta.changed:,} changed rows of {delta.table}:"
        f" {counted(delta.lookups, 'look-up')},"
        f" about {counted(delta.rows_read, 'row')} read, {_seconds(delta.seconds)}"
        for delta in cost.deltas
    ]
    full = f"  full: {counted(cost.full_rows, 'row')} read, {_seconds(cost.full_seconds)}"
    return [f"cost, as of epoch {cost.epoch}:", *lines, full]


def _seconds(seconds: float | None) -> str:
    return "not measured yet" if seconds is None else f"{seconds:.2g} s"
