"""How much a view reads when tables change: foreseen from its plan and the sizes of its tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from mview.ivm.plan import ViewPlan
from mview.ivm.tracing.steps import Band, Fetch, KeySource, Trace, Whole
from mview.relation import RelationId

#: Rows of a group or partition whose number nobody knows: a guess.
_GROUP_ROWS = 10
#: Of the rows of a table, those whose time a tick passes: a minute of a day, a day of some years.
#: A guess that is corrected by what is read (epoch/views/cost.py).
_BAND_SHARE = 0.001


@dataclass(frozen=True)
class Reads:
    """What is read.

    Attributes:
        lookups: look-ups that are made.
        rows: rows that they find.
    """

    lookups: int
    rows: float


def foreseen_reads(
    plan: ViewPlan, changed: Mapping[RelationId, int], rows: Mapping[RelationId, int]
) -> Reads:
    """The look-ups of an incremental epoch, as if keys were spread evenly.

    Args:
        plan: of the view or part.
        changed: changed rows by table.
        rows: rows of every table that the plan reads.
    """
    if plan.top is not None:
        return Reads(1, min(plan.top.kept, rows[plan.top.part]))
    rows = {**dict.fromkeys(plan.clocks, 1), **rows}
    lookups, needed = 0, defaultdict[RelationId, float](float)
    for trace in plan.traces:
        if changed.get(trace.table):
            lookups += len(trace.steps)
            for step, more in zip(trace.steps, _sizes(plan, trace, changed, rows), strict=True):
                needed[step.table] += more
    read = sum(min(more, rows[table]) for table, more in needed.items())
    if plan.maintained is not None:
        lookups += 1
        read += sum(changed.values())  # at most a group of the state table per changed row
    return Reads(lookups, read)


def _sizes(
    plan: ViewPlan, trace: Trace, changed: Mapping[RelationId, int], rows: Mapping[RelationId, int]
) -> list[float]:
    """The rows that each step of a trace finds."""
    sizes: list[float] = []
    for step in trace.steps:
        most = float(rows[step.table])
        if isinstance(step, Whole):
            sizes.append(most)
            continue
        if isinstance(step, Band):
            sizes.append(_BAND_SHARE * most)
            continue
        sources = (
            (changed.get(source.table, 0) if source.step is None else sizes[source.step], source)
            for source in step.sources
        )
        sizes.append(
            min(most, sum(n * _matches(plan, step, source, rows) for n, source in sources))
        )
    return sizes


def _matches(
    plan: ViewPlan, step: Fetch, source: KeySource, rows: Mapping[RelationId, int]
) -> float:
    """Rows that a key from a row of the source finds."""
    key = plan.schemas[step.table].key
    if key and set(key) <= set(step.columns):
        return 1.0
    if source.table == step.table:
        return _GROUP_ROWS
    return max(1.0, rows[step.table] / max(1, rows[source.table]))
