"""A plan as text: strategies in a tree, key, state, and what is read for each changed table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mview.ivm.plan import NodeNote, Strategy, ViewPlan
from mview.ivm.tracing.notes import Note
from mview.ivm.tracing.steps import Band, KeySource, Step, Trace, Whole
from mview.plan.operators import ir
from mview.plan.operators.tree import print_tree

_MEANING: dict[Strategy, str] = {
    "LINEAR": "works on changed rows alone",
    "DELTA_JOIN": "changed rows meet their partners, which are looked up",
    "SELF_MAINTAINED": "kept per group: rows of the group are not read again",
    "AFFECTED_KEYS": "the touched keys, groups or partitions are read and computed again",
    "FULL": "all rows are read and computed again whenever something changes",
}


def explain(plan: ViewPlan, cost: Callable[[ViewPlan], Sequence[str]] = lambda _: ()) -> str:
    """What `mview explain` prints.

    First the parts that the view is cut into, then the view: its key, what is kept beside it, the
    tree with the strategy of each operator, reasons, and what is read when a table changes. Last
    comes the meaning of the strategies.

    Args:
        cost: lines on the cost of the view or a part, where something is known of it.
    """
    blocks = [
        "\n".join([_block(part), *(f"  {line}" for line in cost(part))])
        for part in (*plan.parts, plan)
    ]
    used = {note.strategy for part in (*plan.parts, plan) for note in part.nodes}
    if plan.refused is not None:
        used.add("FULL")
    width = max(map(len, used), default=0)
    words = [f"  {name:{width}}  {text}" for name, text in _MEANING.items() if name in used]
    return "\n".join([*blocks, "strategies:", *words])


def _block(plan: ViewPlan) -> str:
    what = "part" if plan.declared is None and plan.refused is None else "view"
    lines = [f"{what} {plan.relation}: {_evaluation(plan)}"]
    lines.append(f"  key: {', '.join(plan.key) if plan.key else 'none, equal rows are counted'}")
    lines.append(f"  kept beside it: {_kept(plan)}")
    if plan.root is not None:
        notes = {id(note.node): note for note in plan.nodes}
        tree = print_tree(plan.root, lambda node: _mark(node, notes[id(node)]))
        lines += [f"  {line}" for line in tree.splitlines()]
    lines += [f"  {line}" for line in _reasons(plan)]
    return "\n".join([*lines, *_reads(plan)])


def _reads(plan: ViewPlan) -> list[str]:
    """What is read when a table changes."""
    if plan.top is not None:
        part, least = plan.top.part, plan.top.least
        return [
            f"  when {part} changes, read:",
            f"    nothing; all rows of {part} when fewer than {least} of the kept rows are left",
        ]
    lines = []
    for trace in plan.traces:
        lines.append(f"  when {_use(trace)} changes, read:")
        lines += [f"    {number}. {_step(step)}" for number, step in enumerate(trace.steps, 1)]
        if not trace.steps:
            lines.append("    nothing")
    return lines


def _evaluation(plan: ViewPlan) -> str:
    if plan.evaluation == "full":
        return "FULL"
    partly = any(note.strategy == "FULL" for note in plan.nodes)
    return "incremental, in part FULL" if partly else "incremental"


def _kept(plan: ViewPlan) -> str:
    if plan.definition.mode == "light":
        return "nothing, nor its rows, nor its table: it is light, and its sinks have the rows"
    if plan.top is not None:
        return f"the first {plan.top.kept} rows of {plan.top.part}"
    if plan.maintained is None:
        return "nothing" if plan.declared is not None else "its rows"
    rows = ", with its rows" if plan.declared is None else ""
    columns = ", ".join([*plan.maintained.groups, *plan.maintained.accumulators])
    return f"a state table with one row per group ({columns}){rows}"


def _mark(node: ir.Node, note: NodeNote) -> str:
    if isinstance(node, ir.Scan | ir.Values):
        return ""
    return f"  [{note.strategy}]" if note.note is None else f"  [{note.strategy} {note.note.code}]"


def _reasons(plan: ViewPlan) -> list[str]:
    notes = [note.note for note in plan.nodes if note.note is not None]
    if plan.refused is not None:
        notes.append(plan.refused)
    return [line for note in dict.fromkeys(notes) for line in _reason(note)]


def _reason(note: Note) -> list[str]:
    hint = [f"  what to change: {note.hint}"] if note.hint else []
    return [f"{note.code}: {note.message}", *hint]


def _use(trace: Trace) -> str:
    if trace.relation in (trace.table.sql_name, str(trace.table)):
        return str(trace.table)
    return f"{trace.table} as {trace.relation}"


def _step(step: Step) -> str:
    if isinstance(step, Whole):
        return f"{step.table}: all rows"
    if isinstance(step, Band):
        return f"{step.table} with {step.column} between the old and the new {step.bound}"
    keys = " and ".join(_source(source) for source in step.sources)
    null = " (NULL matches NULL)" if step.null_safe else ""
    extra = " and NULL" if step.or_null else ""
    return f"{step.table} by ({', '.join(step.columns)}) from {keys}{extra}{null}"


def _source(source: KeySource) -> str:
    rows = "changed rows" if source.step is None else f"rows of {source.step + 1}"
    return f"{source.table}({', '.join(source.columns)}) of {rows}"
