"""A view whose query fails on the data halts alone: it keeps its last rows, and the others go on.

As a batch query would, it fails until the data or the query is another; the next run builds it
anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from mview.errors import ConfigError, UserError
from mview.ivm.plan import ViewPlan
from mview.runtime.names import inputs_of, state_of
from mview.store.manifest import ViewState

if TYPE_CHECKING:  # `mview status` starts without the engine
    from mview.execute.kinds import Delta
    from mview.runtime.engine import Engine

#: What Spark says of a query that fails on the data, by the classes of SQLSTATE: data exception,
#: and more than one row where one is wanted.
_DATA = re.compile(r"\[([A-Z0-9_.]+)\] (.*?) SQLSTATE: (?:22|21)\w{3}", re.DOTALL)

_SAFE = "the view keeps the rows of its last good epoch, the other views go on"
_NEXT = "correct the row or the query; the next `mview run` builds the view anew"


def of_the_data(error: Exception) -> bool:
    """Whether Spark failed on the data."""
    return _said(error) is not None


def _said(error: Exception) -> re.Match[str] | None:
    return _DATA.search(str(error)) if isinstance(error, PySparkException) else None


def halting(error: Exception, view: str) -> UserError | None:
    """The error for the user, when it halts its view alone; None for all others."""
    if isinstance(error, UserError) and not isinstance(error, ConfigError):
        return error
    if (found := _said(error)) is None:
        return None
    said = " ".join(found.group(2).split())
    what = f"the query of view {view} fails on the data: {found.group(1)}: {said}"
    return UserError(what, safe=_SAFE, hint=_NEXT)


def reads_halted(view: str, halted: str) -> UserError:
    """The error of a view that reads one that has halted."""
    return UserError(
        f"view {view} reads view {halted}, which has halted",
        safe=_SAFE,
        hint="see `mview status` for the reason; the next `mview run` builds both anew",
    )


def has_halted(view: str, epoch: int, why: str) -> UserError:
    """The error of who reads a view at an epoch since it has halted."""
    return UserError(
        f"view {view} has halted: {why.splitlines()[0]}",
        where=f"epoch {epoch}",
        safe="its sink has the rows of its last good epoch",
        hint=_NEXT,
    )


def with_rows(
    error: UserError, engine: Engine, plan: ViewPlan, deltas: Mapping[str, Delta]
) -> UserError:
    """The error with the changed rows that brought it about, where they can be told."""
    for one in (*plan.parts, plan):
        if one.evaluation == "full":
            continue
        inputs = inputs_of(one.tables)
        changed = {n: deltas[r].changes.rows for n, r in inputs.items() if r in deltas}
        found = None
        # To look for them may fail as well; the error without them is still the error.
        with suppress(Exception):
            found = engine.executors.failing_rows(one, inputs, state_of(one), changed, of_the_data)
        if found is not None:
            table, rows = found
            listed = "; ".join(str(row) for row in rows.to_pylist())
            return UserError(error.what, got=listed[:600], where=table, safe=_SAFE, hint=_NEXT)
    return error


def halted(state: ViewState, error: UserError) -> ViewState:
    """The state of a view that has halted."""
    return replace(state, stale=True, halted=str(error.render()))
