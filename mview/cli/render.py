"""Results as text for people, and as data for JSON."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import yaml

from mview.cli.display.progress import duration_text
from mview.cli.options import default_config
from mview.clock import utc_text
from mview.errors import MviewError, counted, one_line, printable, row_text, typed

if TYPE_CHECKING:
    from mview.admin.against_source import TableVerified
    from mview.admin.doctor import Finding
    from mview.admin.drop import Going
    from mview.admin.init import NewProject
    from mview.admin.lights import LightStatus
    from mview.admin.mending.environments import EnvironmentStatus
    from mview.admin.mending.maintain import SinkMaintained
    from mview.admin.migrate import Migrated
    from mview.admin.status import SinkStatus, StoreStatus, TableStatus, ViewStatus
    from mview.admin.verify import VerifyResult
    from mview.cli.checking import Checked
    from mview.cli.costs import PlanCost
    from mview.cli.planning import Planned
    from mview.cli.results import (
        ByChanceJson,
        CheckedJson,
        ErrorJson,
        ExplainedJson,
        OperatorJson,
    )
    from mview.epoch.views.cost import Ran
    from mview.ivm.plan import NodeNote, ViewPlan
    from mview.relation import RelationId
    from mview.store.failure import Failure
    from mview.store.requests.applies import ApplyAnswer
    from mview.trial.files import ByChance
    from mview.trial.trying import TrialOutcome


#: What a line begins with.
_MARKS = {"ok": "✓", "caution": "!", "wrong": "✗"}


def doctor_text(findings: Sequence[Finding]) -> str:
    """A line per question, and what must be mended, counted."""
    lines = []
    for finding in findings:
        hint = f"; next: {finding.next}" if finding.next else ""
        line = f"{_MARKS[finding.state]} {finding.about}: {finding.text}{hint}"
        lines.append(one_line(" ".join(line.split())))
    wrong = sum(finding.state == "wrong" for finding in findings)
    return "\n".join([*lines, f"{wrong} to be mended" if wrong else "nothing to be mended"])


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
    reads = one_line(", ".join(map(str, plan.sources))) or "no table"
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


def checked_json(view: Checked) -> CheckedJson:
    """A checked view as data."""
    told: CheckedJson = {
        "view": view.definition.name,
        "file": view.definition.file,
        "ok": view.error is None,
    }
    if view.error:
        told["error"] = error_json(view.error)
    if view.plan:
        told["key"] = view.plan.key
        told["tables"] = [str(table) for table in view.plan.sources]
        told["strategies"] = _strategies(view.plan)
    return told


def error_json(error: MviewError) -> ErrorJson:
    """The parts of an error that are there."""
    parts = {name: part for name, part in error.parts.items() if part is not None}
    return cast("ErrorJson", parts)


def explained_text(plan: ViewPlan, costs: Callable[[ViewPlan], PlanCost | None]) -> str:
    """A plan as a tree: strategies, reasons, where it runs, what it costs."""
    from mview.cli.costs import cost_lines
    from mview.execute.place import places
    from mview.ivm.explain import explain

    where = {} if plan.definition.mode == "light" else places(plan)
    return explain(
        plan,
        lambda part: [
            *([where[part.relation]] if part.relation in where else []),
            *cost_lines(costs(part)),
        ],
    )


def explained_json(
    plan: ViewPlan,
    costs: Callable[[ViewPlan], PlanCost | None],
    where: Mapping[RelationId, str] | None = None,
) -> ExplainedJson:
    """A plan as data: one entry per operator, from the top, with the reason of a FULL."""
    from mview.execute.place import places
    from mview.plan.operators.tree import describe

    if where is None and plan.definition.mode != "light":
        where = places(plan)
    told: ExplainedJson = {
        "view": str(plan.relation),
        "evaluation": plan.evaluation,
        "key": plan.key,
        "tables": [str(table) for table in plan.sources],
        "operators": [_operator_json(describe(note.node), note) for note in plan.nodes],
        "place": (where or {}).get(plan.relation),
        "cost": costs(plan),
        "parts": [explained_json(part, costs, where) for part in plan.parts],
    }
    if plan.refused:
        told |= {"reason": plan.refused.code, "hint": plan.refused.hint}
    return told


def _operator_json(operator: str, note: NodeNote) -> OperatorJson:
    told: OperatorJson = {"operator": operator, "strategy": note.strategy}
    if note.note:
        told |= {"reason": note.note.code, "hint": note.note.hint}
    return told


def status_text(store: StoreStatus) -> str:
    """A store in a few lines: who runs it, its epoch, tables, views."""
    lines = [f"store {store.store}: {store.running or 'nobody runs it'}"]
    failed = _failure_lines(store.failure) if store.failure else []
    lights = _light_lines(store.lights)
    if store.published_ms is None:
        nothing = [] if lights else ["nothing was published yet"]
        nothing += [f"asked for, not built yet: {one_line(name)}" for name in store.unbuilt]
        return "\n".join([*lines, *nothing, *failed, *lights])
    now = time.time_ns() // 1_000_000
    ago = duration_text(max(0, now - store.published_ms))
    lines += [f"epoch {store.epoch:,}, published {ago} ago", *failed]
    tables = [(table.name, counted(table.rows, "row"), _phase(table)) for table in store.tables]
    sources = [
        (source.name, _read_up_to(source.lag_ms), _WHOLE[source.whole]) for source in store.sources
    ]
    if sources:
        lines += ["", "sources"]
        for line, source in zip(aligned(sources), store.sources, strict=True):
            lines.append(line)
            if source.away:
                away = duration_text(max(0, now - source.away_since_ms))
                lines.append(f"    away for {away}: {one_line(source.away)}")
    lines += ["", "tables"]
    for line, table in zip(aligned(tables), store.tables, strict=True):
        lines.append(line)
        if table.refused:
            lines.append(f"    not read anew: {one_line(table.refused)}")
            lines.append(f"    next: {one_line(table.next)}")
    lines += ["", "views"]
    lines += view_lines(store.views, store.store, store.unbuilt)
    aside = ["", "environments", *environment_lines(store.environments)]
    return "\n".join([*lines, *lights, *(aside if store.environments else ())])


def view_lines(
    views: Sequence[ViewStatus], store: str | None = None, unbuilt: Sequence[str] = ()
) -> list[str]:
    """A line per view, with what is wrong, its sinks and its epochs below.

    Args:
        views: the views.
        store: its folder, where it is told already: what is in it is named from there.
        unbuilt: views that are asked for; they come first.
    """
    above = "" if store is None else f"{store}/"
    # Of those that are not built the names alone are a column: what is said of them has none.
    names = [one_line(name) for name in (*unbuilt, *(view.name for view in views))]
    width = max(map(len, names), default=0)
    names = [name.ljust(width) for name in names]
    lines = [f"  {name}  asked for, not built yet" for name in names[: len(unbuilt)]]
    cells = [
        (name, counted(v.rows, "row"), v.strategy, _freshness(v), v.path.removeprefix(above))
        for name, v in zip(names[len(unbuilt) :], views, strict=True)
    ]
    for line, view in zip(aligned(cells) if cells else [], views, strict=True):
        lines += [line, *(f"    {part}" for part in view.halted.splitlines())]
        lines += [f"    {one_line(view.cause)}"] if view.cause else []
        if view.degraded:
            lines.append(f"    DEGRADED: {one_line(view.degraded)}: mview quarantine list")
        lines += sink_lines(view.sinks)
        lines += aligned([_run_cells(ran) for ran in view.runs], indent=4)
    return lines


def _phase(table: TableStatus) -> str:
    """How far the load of a table is, and what holds or slows it."""
    if table.phase == "loaded" and table.quarantined:
        return f"{table.phase}; {counted(table.quarantined, 'change')} in quarantine"
    if table.phase == "loaded":
        return table.phase
    if table.phase == "halted":
        return f"HALTED: {table.held.splitlines()[0]}"
    told = ["not begun"]
    if table.phase == "loading":
        done = counted(table.chunks_released, "chunk")
        if table.chunks is not None:
            done = f"{table.chunks_released:,} of {counted(table.chunks, 'chunk')}"
        rows = ""
        if table.rows_expected is not None:
            rows = f", about {counted(table.rows_expected, 'row')} in all"
        told = [f"loading, {done} done{rows}"]
    said = table.load
    for prefix, whose in (("", ""), ("connection_", " of its connection")):
        if rate := said.get(f"{prefix}rows_per_second"):
            told.append(f"{rate:,} rows/s{whose} at the most")
        if window := said.get(f"{prefix}window"):
            told.append(f"window{whose} {window}")
    if priority := said.get("priority"):
        told.append(f"priority {priority}")
    if beside := said.get("tables_at_once"):
        told.append(f"{counted(int(str(beside)), 'table')} at once")
    return "; ".join([*told, *([table.held] if table.held else [])])


#: Whether views show whole transactions of a source.
_WHOLE = {
    True: "whole transactions",
    False: "IN PART: one transaction is larger than engine.memory has room for; it goes on",
    None: "its changelog does not tell of transactions",
}


def _read_up_to(lag_ms: int | None) -> str:
    return "no time known" if lag_ms is None else f"read up to {duration_text(lag_ms)} ago"


def _light_lines(lights: Sequence[LightStatus]) -> list[str]:
    """A line per sink of a view in light mode, with its error below."""
    if not lights:
        return []
    cells = []
    for light in lights:
        phase = light.phase
        if phase == "loading":
            phase = f"loading, {light.chunks:,} of {counted(light.chunks_in_all, 'chunk')} there"
        rows = f"{counted(light.rows, 'row')} brought"
        lag = f"lag {duration_text(light.lag_ms)}"
        cells.append((light.view, f"sink {light.sink}", light.table, phase, rows, lag))
    lines = ["", "light views"]
    for line, light in zip(aligned(cells), lights, strict=True):
        lines += [
            line,
            *_waits_line(light),
            *(f"      {part}" for part in light.error.splitlines()),
        ]
    return lines


def _waits_line(sink: SinkStatus | LightStatus) -> list[str]:
    if not sink.waits_for or sink.error:
        return []
    since = utc_text(sink.waits_since_ms)
    return [f"      waits for its {sink.waits_for}, which has not answered since {since} UTC"]


def sink_lines(sinks: Sequence[SinkStatus]) -> list[str]:
    """A line per sink that follows a view, with its error below."""
    cells = []
    for sink in sinks:
        epoch = "not filled yet" if sink.epoch is None else f"epoch {sink.epoch:,}"
        lag = "up to date"
        if sink.waiting:
            epochs = f"{counted(sink.waiting, 'epoch')} behind"
            if sink.anew:
                epochs = "being compared" if sink.anew == "difference" else "being filled"
            elif sink.waiting < 0:
                epochs = "to be compared or filled"
            lag = f"{epochs}, {sink.waiting_bytes:,} bytes, {duration_text(sink.lag_ms)}"
        cells.append((f"sink {sink.name}", sink.table, epoch, lag))
    lines = []
    for line, sink in zip(aligned(cells, indent=4) if cells else [], sinks, strict=True):
        lines += [line, *_waits_line(sink), *(f"      {part}" for part in sink.error.splitlines())]
    return lines


def _run_cells(ran: Ran) -> tuple[str, ...]:
    """What is told of an epoch of a view."""
    return (
        f"epoch {ran.epoch:,}",
        ran.strategy,
        ran.executor,
        f"{counted(ran.changed, 'row')} changed",
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


def aligned(rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
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


#: Lines of a query that are shown of what changed in it.
_MOST_DIFF = 20


def planned_text(planned: Planned) -> str:
    """What a run would do: a line per view, what it breaks and costs below; then tables."""
    lines = []
    for view in planned.views:
        why, *where = printable(view.why).split("\n")
        lines.append(f"{view.fate:9} view {one_line(view.view)}{': ' if why else ''}{why}")
        lines += [f"          {line}" for line in where]  # of the query, with a mark below
        lines += [f"          {one_line(line)}" for line in view.diff[:_MOST_DIFF]]
        if (more := len(view.diff) - _MOST_DIFF) > 0:
            lines.append(f"          and {counted(more, 'line')} more")
        if view.takes:
            lines.append(f"          takes up  {', '.join(view.takes)}")
        lines += [f"          breaks  {one_line(what)}" for what in view.breaking]
        if view.strategy and view.strategy_before not in ("", view.strategy):
            lines.append(f"          strategy  {view.strategy_before} -> {view.strategy}")
        if view.rows is not None:
            took = "not measured yet" if view.seconds is None else f"about {view.seconds:.2g} s"
            lines.append(f"          reads  {counted(view.rows, 'row')}, {took}")
        if view.rollback:
            to = "it has now" if view.fate == "changed" else "it had before its last change"
            back = f"`mview rollback {typed(view.view)}`"
            lines.append(f"          rollback  {back}, to the text that {to}")
    for name in planned.load:
        why = f" anew: {planned.anew[name]}" if name in planned.anew else ""
        lines.append(f"load      table {one_line(name)}{one_line(why)}")
    lines += [f"shares    table {one_line(n)}, as production has it" for n in planned.shared]
    of = f" --env {planned.environment}" if planned.environment else ""
    lines += [
        f"goes on   view {one_line(name)}: it is in the store and not in these files; "
        f"to remove it: `mview drop{of} {typed(name)}`"
        for name in planned.not_given
    ]
    return "\n".join(lines)


def environment_lines(environments: Sequence[EnvironmentStatus]) -> list[str]:
    """Environments, a line each."""
    cells = []
    for told in environments:
        behind = "no table yet"
        if told.behind is not None:
            behind = f"{counted(told.behind, 'epoch')} behind production"
        views = ", ".join(told.views) or "no view yet"
        runs = told.running or "nobody runs it"
        cells.append((told.name, told.problem or runs, *(() if told.problem else (behind, views))))
    width = max(map(len, cells), default=0)
    return aligned([(*row, *[""] * (width - len(row))) for row in cells])


def applied_text(answer: ApplyAnswer) -> str:
    """What a run has done with views that were given to it, a line each."""
    if answer.state != "done":
        return f"{answer.state}:\n{answer.error}"
    lines = [f"view {one_line(name)}: {one_line(done)}" for name, done in answer.views.items()]
    for name, why in answer.halted.items():
        lines += [f"view {one_line(name)} has halted:", *(f"  {line}" for line in why.splitlines())]
    return "\n".join([*lines, f"live at epoch {answer.epoch:,}"])


def begun_text(begun: NewProject) -> str:
    """What a database has, what was written, and the commands that come next."""
    tables = []
    for table in begun.tables:
        what = f"left out: {table.why}"
        if not table.why and table.rows is not None:
            what = f"about {counted(table.rows, 'row')}"
        what += f"; not all columns: {table.partly}" if table.partly else ""
        tables.append((table.name, ", ".join(table.key), what))
    lines = ["tables", *aligned(tables)] if tables else ["the database has no table"]
    if begun.missing:
        lines += ["", "missing, before they can be followed"]
        lines += [f"  {one_line(what)}" for what in begun.missing]
    lines += ["", *(f"triggers made: {one_line(table)}" for table in begun.triggers)]
    lines += [f"written: {one_line(file)}" for file in begun.files]
    if begun.view:
        config = begun.files[0]
        given = () if config == default_config() else ("--config", config)
        if not begun.is_readable:
            lines += [f"set first what {one_line(config)} has as a comment: a key; then"]
        lines += [shlex.join(("mview", what, begun.view, *given)) for what in ("check", "run")]
    elif not begun.is_readable:
        lines += [
            "nothing was written: no table can be read yet; change one in the database, then run "
            "the same command again; or write a mview.yml with the settings that are named: "
            "docs/configuration.md"
        ]
    return "\n".join(lines)


def going_text(what: Going) -> str:
    """What a drop takes and what it leaves, a line each."""
    lines = [
        f"goes:  view {one_line(name)}, {counted(rows, 'row')}" for name, rows in what.views.items()
    ]
    lines += [
        f"goes:  our copy of {one_line(name)}, {counted(rows, 'row')}; "
        "the next run that needs it loads it"
        for name, rows in what.tables.items()
    ]
    lines += [
        f"goes:  {counted(changes, 'change')} of {one_line(name)} in quarantine; "
        "what is loaded has all rows as they are then"
        for name, changes in what.quarantined.items()
    ]
    lines += [
        f"stays: our copy of {one_line(name)}, {counted(rows, 'row')}, "
        "kept up though no view reads it; "
        f"to remove it: `mview drop {typed(name)}`"
        for name, rows in what.unread.items()
    ]
    lines += [f"stays: view {one_line(name)}, built anew by the next run" for name in what.rebuilt]
    lines += [
        f"stays: the table in sink {one_line(table)}, and is not kept fresh any more"
        for table in what.in_sinks
    ]
    return "\n".join(lines)


def verified_text(results: Sequence[VerifyResult]) -> str:
    """A line per view that is right, a block with sample rows per view that is not."""
    return "\n".join(_verified_block(result) for result in results)


def _verified_block(result: VerifyResult) -> str:
    name = f"{result.view}, sink {result.sink}" if result.sink else result.view
    if result.incomparable:
        return f"{name}: not compared, {result.incomparable}"
    if result.equal and result.degraded:
        return (
            f"{name}: DEGRADED, {counted(result.rows, 'row')} equal at epoch {result.epoch}, but "
            f"{result.degraded}: mview quarantine list"
        )
    if result.equal:
        return f"{name}: OK, {counted(result.rows, 'row')} equal at epoch {result.epoch}"
    if result.error:
        return f"{name}: NOT COMPARED at epoch {result.epoch}: {result.error}"
    other = "the view" if result.sink else "its batch query"
    lines = [f"{name}: DIFFERS from {other} at epoch {result.epoch}"]
    for title, rows in (
        ("missing in the sink", result.missing),
        ("only in the sink", result.extra),
    ):
        lines += [f"  {title}: {row_text(row)}" for row in rows]
    if result.sink:  # whoever has changed them: most sinks are not told of it
        lines.append("  next: drop the table there; a run fills it anew")
    return "\n".join(lines)


def source_text(results: Sequence[TableVerified]) -> str:
    """A line per table that is as its database has it, a block with rows per table that is not."""
    return "\n".join(_source_block(result) for result in results)


def _source_block(result: TableVerified) -> str:
    name, at = one_line(result.table), f"at epoch {result.epoch}"
    busy = f"; {result.changing:,} of them changing too often to tell" if result.changing else ""
    if result.equal:
        mended = f"; {result.repaired:,} differed before" if result.repaired else ""
        return f"{name}: OK, {counted(result.rows, 'row')} as in the database {at}{mended}{busy}"
    if not (result.differing or result.undecided):
        return f"{name}: NOT COMPARED {at}: {result.error}"
    lines = []
    if result.differing:
        why = f": {result.error}" if result.error and not result.undecided else ""
        many = counted(result.differing, "row")
        lines.append(f"{name}: DIFFERS from the database {at} in {many}{why}")
    if result.undecided:
        lines.append(f"{name}: UNDECIDED {at}, {counted(result.undecided, 'row')}: {result.error}")
    if result.changing:
        lines.append(f"  {counted(result.changing, 'row')} changing too often to tell")
    titles = {"source": "not in our copy", "mirror": "not in the database"}
    for row in result.sample:
        what = titles.get(row.only_in) or f"other values in {', '.join(row.columns)}"
        lines.append(f"  {row_text(row.key)}: {one_line(what)}")
    if (left := result.differing + result.undecided - len(result.sample)) > 0:
        lines.append(f"  and {left:,} more")
    return "\n".join(lines)


def maintained_text(result: SinkMaintained) -> str:
    """A line: what was done to the table of a view in a sink."""
    name = f"{result.view}, sink {result.sink}"
    if result.error:
        return f"{name}: NOT MAINTAINED: {result.error}"
    done = ", ".join(f"{what.replace('_', ' ')} {n:,}" for what, n in result.done.items())
    return f"{name}: {done or 'nothing was to be done'}"


def migrated_text(result: Migrated) -> str:
    """What was done to a store of an older version."""
    if result.before is None:
        return f"{result.store}: there is no store yet; the first run makes one"
    if not result.done:
        return f"{result.store}: of format {result.format} already, nothing was to be done"
    steps = [f"  {what}" for what in result.done]
    return "\n".join([f"{result.store}: format {result.before} -> {result.format}", *steps])


def outcome_text(outcome: TrialOutcome) -> str:
    """A test in a line; what failed in the lines below."""
    name = one_line(outcome.name)
    if outcome.passed:
        spark = "  (on Spark)" if outcome.on_spark else ""
        return f"✓ {name}  {outcome.seconds:.2f} s{spark}"
    return "\n".join([f"✗ {name}  {outcome.where}", *(f"    {line}" for line in outcome.failures)])


def outcomes_text(outcomes: Sequence[TrialOutcome]) -> str:
    """How many tests passed."""
    failed = sum(not outcome.passed for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    reasons = sorted({reason for outcome in outcomes for reason in outcome.on_spark})
    lines = [f"{len(outcomes) - failed} passed, {failed} failed in {seconds:.1f} s"]
    return "\n".join([*lines, *(f"Spark was needed: {one_line(reason)}" for reason in reasons)])


def recorded_text(file: Path, times: int) -> str:
    """What `--record` has written into a test file."""
    if not times:
        return f"nothing to record in {file}: what passed has an expect everywhere"
    return f"recorded {counted(times, 'expect')} in {file}"


def by_chance_text(result: ByChance) -> str:
    """How random tests went; the one that failed as a test file."""
    last = result.seed + result.tests - 1
    if result.failed is None or result.outcome is None:
        return f"{result.tests} random tests passed (seeds {result.seed} to {last})"
    test = {"tests": [by_chance_json(result)["failed"]]}
    text = yaml.safe_dump(test, sort_keys=False, allow_unicode=True)
    lines = [f"random test of seed {last} failed:", *result.outcome.failures]
    return "\n".join([*lines, "", "as a test:", text.rstrip()])


def by_chance_json(result: ByChance) -> ByChanceJson:
    """How random tests went, as data."""
    failed = None if result.failed is None else result.failed.model_dump(exclude_defaults=True)
    return {"tests": result.tests, "seed": result.seed, "failed": failed, "outcome": result.outcome}
