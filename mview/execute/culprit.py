"""Which row a view's query fails on: changed rows are halved until one is left that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.execute.program import Evaluator, Lookups, drive, fetch_slices
from mview.ivm.plan import ViewPlan
from mview.ivm.slices import changed_rows
from mview.plan.clocks import is_clock

#: Rows that are shown where not one row alone fails, as where a sum overflows.
_SHOWN = 3


def failing_rows(
    plan: ViewPlan,
    deltas: Mapping[str, pa.Table],
    lookups: Lookups,
    evaluator: Evaluator,
    fails: Callable[[Exception], bool],
) -> tuple[str, pa.Table] | None:
    """The changed rows that make a view's query fail.

    Args:
        plan: the view; it is maintained by slices.
        deltas: weighted rows of the changed tables, by the plan's names.
        lookups: old rows.
        evaluator: runs the query, once or twice for every halving.
        fails: whether an exception of the evaluator is the failure that is looked for.

    Returns:
        A table and one of its rows, or some that fail only together; None: no such table.
    """
    slices = drive(fetch_slices(plan, deltas), lookups).relations
    relations: dict[str, pa.Table] = {}
    for table in plan.definition.table_names:
        new, old = (plan.slice_name(table, when) for when in ("new", "old"))
        relations |= {new: slices[new], old: slices[old].schema.empty_table()}

    def failing(name: str, *parts: pa.Table) -> bool:
        rows = {**relations, name: pa.concat_tables(parts)}
        try:
            evaluator.run(plan.delta_sql, rows, plan.delta_schema)
        except Exception as error:
            if not fails(error):
                raise
            return True
        return False

    for table in plan.definition.table_names:
        if table not in deltas or is_clock(table):
            continue
        name = plan.slice_name(table, "new")
        rows = relations[name]
        change = changed_rows(deltas[table], plan.slice_schema(table))
        # The new versions of changed rows stand at the end of a slice.
        come = change.filter(pc.greater(change[WEIGHT], 0)).num_rows
        kept, suspects = rows.slice(0, rows.num_rows - come), rows.slice(rows.num_rows - come)
        if failing(name, rows) and not failing(name, kept):
            return table, _halved(suspects, partial(failing, name, kept))
    return None


def _halved(rows: pa.Table, failing: Callable[[pa.Table], bool]) -> pa.Table:
    while rows.num_rows > 1:
        half = rows.num_rows // 2
        parts = rows.slice(0, half), rows.slice(half)
        found = next((part for part in parts if failing(part)), None)
        if found is None:
            break
        rows = found
    return rows.slice(0, _SHOWN)
