"""Results as text for people, and as data for JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mview.cli.progress import duration_text
from mview.clock import utc_text
from mview.errors import MviewError, one_line

if TYPE_CHECKING:
    from mview.admin.lights import LightStatus
    from mview.admin.maintain import SinkMaintained
    from mview.admin.status import SinkStatus, StoreStatus, ViewStatus
    from mview.admin.verify import VerifyResult
    from mview.cli.checking import Checked
    from mview.cli.costs import PlanCost
    from mview.epoch.views.cost import Ran
    from mview.ivm.plan import ViewPlan
    from mview.store.failure import Failure


def checked_text(views: Sequence[Checked]) -> str:
    """A line per sound view, a block per wrong one."""
    return "\n".join(_checked_block(view) for view in views)


def _checked_block(view: Checked) -> str:
    name = one_line(view.definition.name)  # of a file that may be called anything
    if view.error:
        return f"{name}: {view.error.render()}"
    if view.plan is None:
        return f"{name}: not checked, it reads a view whose columns only Spark can tell"
    plan = view.plan
    key = f"key {', '.join(plan.key)}" if plan.key else "no key"
    reads = one_line(", ".join(plan.sources)) or "no table"
    return f"{name}: ok, {key}, reads {reads}; {', '.join(_strategies(plan))}"


def _strategies(plan: ViewPlan) -> list[str]:
    """The strategies of a plan's operators, each once, from the top."""
    if plan.refused:
        return ["FULL"]
    every = (plan, *plan.parts)
    strategies: list[str] = list(
        dict.fromkeys(note.strategy for part in every for note in part.nodes)
    )
    return [*strategies, "light"] if plan.definition.mode == "light" else strategies


def checked_json(view: Checked) -> dict[str, Any]:
    """A checked view as data."""
    told: dict[str, Any] = {
        "view": view.definition.name,
        "file": view.definition.file,
        "ok": view.error is None,
    }
    if view.error:
        told["error"] = error_json(view.error)
    if view.plan:
        told["key"] = view.plan.key
        told["tables"] = view.plan.sources
        told["strategies"] = _strategies(view.plan)
    return told


def error_json(error: MviewError) -> dict[str, Any]:
    """The parts of an error that are there."""
    return {name: part for name, part in error.parts.items() if part is not None}


def explained_json(plan: ViewPlan, costs: Callable[[ViewPlan], PlanCost | None]) -> dict[str, Any]:
    """A plan as data: one entry per operator, from the top, with the reason of a FULL."""
    from mview.plan.operators.tree import describe

    refused = {"reason": plan.refused.code, "hint": plan.refused.hint} if plan.refused else {}
    return {
        "view": plan.name,
        "evaluation": plan.evaluation,
        "key": plan.key,
        "tables": plan.sources,
        "operators": [
            {
                "operator": describe(note.node),
                "strategy": note.strategy,
                **({"reason": note.note.code, "hint": note.note.hint} if note.note else {}),
            }
            for note in plan.nodes
        ],
        "cost": asdict(cost) if (cost := costs(plan)) else None,
        "parts": [explained_json(part, costs) for part in plan.parts],
        **refused,
    }


def status_text(store: StoreStatus) -> str:
    """A store in a few lines: who runs it, its epoch, tables, views."""
    lines = [f"store {store.store}: {store.running or 'nobody runs it'}"]
    failed = _failure_lines(store.failure) if store.failure else []
    lights = _light_lines(store.lights)
    if store.published_ms is None:
        nothing = [] if lights else ["nothing was published yet"]
        return "\n".join([*lines, *nothing, *failed, *lights])
    ago = duration_text(max(0, time.time_ns() // 1_000_000 - store.published_ms))
    lines += [f"epoch {store.epoch:,}, published {ago} ago", *failed]
    tables = [
        (table.name, f"{table.rows:,} rows", table.phase)
        if table.phase != "loading"
        else (table.name, f"{table.rows:,} rows", f"loading, {table.chunks_released} chunks done")
        for table in store.tables
    ]
    views = [
        (view.name, f"{view.rows:,} rows", view.strategy, _freshness(view), view.path)
        for view in store.views
    ]
    lines += ["", "tables", *_aligned(tables), "", "views"]
    for line, view in zip(_aligned(views), store.views, strict=True):
        lines += [line, *(f"    {part}" for part in view.halted.splitlines())]
        lines += _sink_lines(view.sinks)
        lines += _aligned([_run_cells(ran) for ran in view.runs], indent=4)
    return "\n".join([*lines, *lights])


def _light_lines(lights: Sequence[LightStatus]) -> list[str]:
    """A line per sink of a view in light mode, with its error below."""
    if not lights:
        return []
    cells = []
    for light in lights:
        phase = light.phase
        if phase == "loading":
            phase = f"loading, {light.chunks} of {light.chunks_in_all} chunks are there"
        rows = f"{light.rows:,} rows brought"
        lag = f"lag {duration_text(light.lag_ms)}"
        cells.append((light.view, f"sink {light.sink}", light.table, phase, rows, lag))
    lines = ["", "light views"]
    for line, light in zip(_aligned(cells), lights, strict=True):
        lines += [line, *(f"      {part}" for part in light.error.splitlines())]
    return lines


def _sink_lines(sinks: Sequence[SinkStatus]) -> list[str]:
    """A line per sink that follows a view, with its error below."""
    cells = []
    for sink in sinks:
        epoch = "not filled yet" if sink.epoch is None else f"epoch {sink.epoch:,}"
        lag = "up to date"
        if sink.waiting:
            epochs = f"{sink.waiting:,} epochs behind"
            if sink.anew:
                epochs = "being compared" if sink.anew == "difference" else "being filled"
            elif sink.waiting < 0:
                epochs = "to be compared or filled"
            lag = f"{epochs}, {sink.waiting_bytes:,} bytes, {duration_text(sink.lag_ms)}"
        cells.append((f"sink {sink.name}", sink.table, epoch, lag))
    lines = []
    for line, sink in zip(_aligned(cells, indent=4) if cells else [], sinks, strict=True):
        lines += [line, *(f"      {part}" for part in sink.error.splitlines())]
    return lines


def _run_cells(ran: Ran) -> tuple[str, ...]:
    """What is told of an epoch of a view."""
    return (
        f"epoch {ran.epoch:,}",
        ran.strategy,
        ran.executor,
        f"{ran.changed:,} rows changed",
        f"{ran.read:,} read",
        f"{ran.seconds:.2f} s",
        ran.why,
    )


def _failure_lines(failure: Failure) -> list[str]:
    """When the last run ended by an error, over what, and the error's own block."""
    subject = f", {one_line(failure.subject)}" if failure.subject else ""
    head = f"the last run ended by an error, {utc_text(failure.at_ms)} UTC{subject}:"
    return ["", head, *(f"  {line}" for line in failure.error.render().splitlines())]


def _freshness(view: ViewStatus) -> str:
    if view.halted:
        return "HALTED"
    lag = f"lag {duration_text(view.lag_ms)}"
    if view.freshness_ms is None:
        return lag
    promised = duration_text(view.freshness_ms)
    return f"{lag} of {promised}, MISSED" if view.missed else f"{lag} of {promised}"


def _aligned(rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """Rows as lines whose columns stand below each other."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        (
            " " * indent
            + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def verified_text(results: Sequence[VerifyResult]) -> str:
    """A line per view that is right, a block with sample rows per view that is not."""
    return "\n".join(_verified_block(result) for result in results)


def _verified_block(result: VerifyResult) -> str:
    name = f"{result.view}, sink {result.sink}" if result.sink else result.view
    if result.equal:
        return f"{name}: OK, {result.rows:,} rows equal at epoch {result.epoch}"
    if result.error:
        return f"{name}: NOT COMPARED at epoch {result.epoch}: {result.error}"
    other = "the view" if result.sink else "its batch query"
    lines = [f"{name}: DIFFERS from {other} at epoch {result.epoch}"]
    for title, rows in (
        ("missing in the sink", result.missing),
        ("only in the sink", result.extra),
    ):
        lines += [f"  {title}: {_row_text(row)}" for row in rows]
    return "\n".join(lines)


def maintained_text(result: SinkMaintained) -> str:
    """A line: what was done to the table of a view in a sink."""
    name = f"{result.view}, sink {result.sink}"
    if result.error:
        return f"{name}: NOT MAINTAINED: {result.error}"
    done = ", ".join(f"{what.replace('_', ' ')} {n:,}" for what, n in result.done.items())
    return f"{name}: {done or 'nothing was to be done'}"


def _row_text(row: Mapping[str, object]) -> str:
    return one_line(", ".join(f"{name}={value}" for name, value in row.items()))
