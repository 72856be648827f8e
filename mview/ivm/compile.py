"""From a view definition to a plan: build the IR, trace every scan, choose how to evaluate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import singledispatch

from mview.errors import UserError
from mview.ivm.aggregates.maintained import maintain, top_aggregate
from mview.ivm.facts.exact import comparable
from mview.ivm.facts.keys import equal_columns, unique_columns
from mview.ivm.facts.result_types import check_result_types
from mview.ivm.plan import Evaluation, NodeNote, Strategy, ViewPlan
from mview.ivm.rewrites.parts import ViewParts, split
from mview.ivm.rewrites.top import Top
from mview.ivm.rewrites.total_order import in_total_order
from mview.ivm.tracing.indexes import Indexer
from mview.ivm.tracing.notes import COMPUTED_KEY, EXTREME, NO_EQUALITY, TOP, Note
from mview.ivm.tracing.steps import Band, Step, Trace, Whole
from mview.ivm.tracing.trace import trace
from mview.plan.checks.allowed import check_text
from mview.plan.checks.sense import check_sense
from mview.plan.checks.ties import check_order
from mview.plan.clocks import CLOCKS, clocks_of, is_clock, with_clocks
from mview.plan.definition import ViewDefinition
from mview.plan.operators import ir
from mview.plan.operators.build import build, check_names, listed_names
from mview.plan.operators.ir import Unsupported
from mview.plan.operators.rules import rewrite
from mview.plan.text.place import did_you_mean
from mview.plan.text.syntax import not_too_deep
from mview.relation import RelationId
from mview.schema import TableSchema, check_free


class OtherColumnsError(Exception):
    """Spark refuses the text over parts, or finds other columns in it: it is not used."""


#: The columns that are read of every table.
Used = Mapping[RelationId, frozenset[str]]

#: Completes the plan of a part or view with what Spark says of its columns.
Analyze = Callable[[ViewPlan, Mapping[RelationId, TableSchema]], ViewPlan]


def compile_view(
    definition: ViewDefinition,
    schemas: Mapping[RelationId, TableSchema],
    analyze: Analyze = lambda plan, schemas: plan,
) -> ViewPlan:
    """The plan of a view, with the plans of its parts.

    Args:
        schemas: of every table and view it may read, by the name used in SQL.
        analyze: sets `result` and `state_result` of a plan. Without it types of computed columns
            of parts are not known, and fewer aggregates of parts count as exact.

    Raises:
        UserError: something stands in the text that no view may have or that makes no sense, a
            name is wrong, the declared key is not in the view, or the view needs FULL
            under policy 'incremental_only'.
    """
    with not_too_deep(definition.text):
        _check(definition)
        known = {**schemas, **CLOCKS}
        with suppress(Unsupported):
            _timed(definition, known)  # what is wrong has its place in the user's own text
        return _compiled(in_total_order(definition.bare, schemas), known, analyze)


def _check(definition: ViewDefinition) -> None:
    """Make sure that the text is one that a view may have, before anything is made of it."""
    text, tree = definition.text, definition.tree
    check_text(text, tree, definition.functions)
    check_sense(text, tree)
    check_order(text, tree)


def _compiled(
    definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema], analyze: Analyze
) -> ViewPlan:
    try:
        timed = _timed(definition, schemas)
        for cut in (split, _uncut):
            with suppress(OtherColumnsError):
                compiler = _Compiler(dict(schemas), analyze)
                return _named(compiler.view(definition, cut(timed, schemas)))
        raise _no_clock_here("Spark takes no subquery there")
    except Unsupported as reason:
        check_names(definition, listed_names(definition) or ())
        return _named(_allowed(analyze(_full_plan(definition, schemas, reason), schemas)))


def _named(plan: ViewPlan) -> ViewPlan:
    """The plan of a view whose columns have no names of ours."""
    names = plan.columns if plan.result is None else plan.result.names
    try:
        check_free(names)
    except UserError as error:
        raise UserError(
            f"view {plan.definition.name}: {error.what}",
            where=f"{plan.definition.file}:{plan.definition.line}",
            allowed=error.allowed,
            hint="give the column another name with AS",
        ) from None
    return plan


def _uncut(definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]) -> ViewParts:
    return ViewParts((), definition)


def _timed(definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]) -> ViewDefinition:
    """The view over clocks; errors have their places in the user's text."""
    timed = with_clocks(definition)
    check_result_types(definition, build(definition, schemas).root, schemas)
    if timed is not definition:
        try:
            build(timed, schemas)
        except Unsupported as reason:
            raise _no_clock_here(str(reason)) from None
    return timed


def _no_clock_here(why: str) -> Unsupported:
    return Unsupported(
        "TIME_PLACE",
        f"the time is asked for in a place where it is no value by itself: {why}",
        "use it in WHERE, HAVING, GROUP BY or the select list, or in those of a derived table",
    )


@dataclass
class _Compiler:
    """Compiles a view after its parts.

    Args:
        schemas: of the tables, and of the parts so far.
        analyze: see `compile_view`.
        parts: what the view needs beside it, in the order they read each other.
        names: parts that have a name already.
    """

    schemas: dict[RelationId, TableSchema]
    analyze: Analyze
    parts: list[ViewPlan] = field(default_factory=list)
    names: int = 0

    def view(self, definition: ViewDefinition, cut: ViewParts) -> ViewPlan:
        """The plan of a view that is cut into parts."""
        self.names = len(cut.parts)
        for part in cut.parts:
            self._add(
                _allowed(self._analyzed_part(self._compiled(part, cut.tops.get(part.relation))))
            )
        main = self._compiled(cut.main, cut.tops.get(cut.main.relation))
        whole = replace(main, declared=definition, parts=tuple(self.parts))
        if main.plain is not None:
            plain = replace(main.plain, declared=definition, parts=tuple(self.parts))
            whole = replace(whole, plain=plain)
        return _allowed(self.analyze(whole, self.schemas))

    def _analyzed_part(self, part: ViewPlan) -> ViewPlan:
        try:
            return self.analyze(part, self.schemas)
        except UserError:
            # The text of a part is ours (a map, say, is no key): the user's own text is tried next.
            raise OtherColumnsError from None

    def _add(self, part: ViewPlan) -> None:
        self.parts.append(part)
        self.schemas[part.relation] = part.output

    def _compiled(self, definition: ViewDefinition, first: Top | None = None) -> ViewPlan:
        """The plan of a view that is cut already, or of a part; its indexes become parts."""
        built = build(definition, self.schemas)
        root = rewrite(built.root)
        plan = _planned(definition, root, built.used, self.schemas, first)
        without: frozenset[RelationId] = frozenset()
        while failing := _without_keys(plan):
            indexer = Indexer(definition, self.names + 1, without)
            indexed = indexer.rewritten(root, failing)
            known, indexes = dict(self.schemas), []
            for part in indexer.parts():
                indexes.append(self.analyze(_planned(part, *_root(part, known), known), known))
                known[part.relation] = indexes[-1].output
            better = _planned(definition, indexed, built.used, known)
            useless = {
                table
                for index in indexes
                for table in index.tables
                if index.relation not in _looked_up(better) or not _has_order(index.output)
            }
            if useless:
                without |= useless
                continue
            if len(_without_keys(better)) == len(failing):
                break
            for index in indexes:
                self._add(index)
            self.names += len(indexes)
            return better
        return plan


def _root(
    definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]
) -> tuple[ir.Node, Used]:
    built = build(definition, schemas)
    return rewrite(built.root), built.used


def _without_keys(plan: ViewPlan) -> set[ir.Node]:
    """The operators for which all rows are read as their keys are no plain columns."""
    return {
        described.node
        for described in plan.nodes
        if described.note in (COMPUTED_KEY, NO_EQUALITY, EXTREME)
    }


def _looked_up(plan: ViewPlan) -> set[RelationId]:
    """The tables in which some trace looks rows up."""
    traces = [*plan.traces, *(plan.plain.traces if plan.plain is not None else ())]
    return {step.table for trace in traces for step in trace.steps}


def _has_order(index: TableSchema) -> bool:
    """Whether equal values of all its columns are the same value, so that it can be looked into."""
    return all(comparable(column.type, column.type) for column in index.columns)


def _planned(
    definition: ViewDefinition,
    root: ir.Node,
    used: Used,
    schemas: Mapping[RelationId, TableSchema],
    first: Top | None = None,
) -> ViewPlan:
    """The plan of a tree."""
    tables = dict.fromkeys([*definition.table_names, *(scan.table for scan in ir.scans(root))])
    read = {name: schemas[name] for name in tables}
    indexes = tuple(name for name in tables if name not in definition.table_names)
    used = {**used, **{name: frozenset(schemas[name].names) for name in indexes}}
    scans = tuple(scan for scan in ir.scans(root) if scan.table not in indexes)
    traces, notes = _traces(root, scans, schemas, root)
    if first is not None:
        notes = dict.fromkeys(notes, TOP)
    plain = ViewPlan(
        definition=definition,
        root=root,
        columns=tuple(ref.column for ref in root.columns),
        key=_key(definition, root, schemas),
        schemas=read,
        used={
            # Of rows without a key one column is read at least: there are as many of it as of them.
            name: tuple(c for c in schema.names if c in used[name]) or schema.names[:1]
            for name, schema in read.items()
        },
        traces=traces,
        evaluation="top" if first else _evaluation(traces, notes, read),
        nodes=_strategies(root, notes, None),
        top=first,
        indexes=indexes,
    )
    return _maintained(plain, root, notes, schemas) or plain


def _maintained(
    plain: ViewPlan,
    root: ir.Node,
    notes: Mapping[ir.Node, Note],
    schemas: Mapping[RelationId, TableSchema],
) -> ViewPlan | None:
    """The plan with a state table for the top aggregate, where that is possible and cheaper."""
    maintained, top = maintain(plain.definition, root, schemas), top_aggregate(root)
    if maintained is None or top is None:
        return None
    scans = tuple(scan for scan in ir.scans(root) if scan.table not in plain.indexes)
    below, notes_below = _traces(top.aggregate.child, scans, schemas, root)
    if _cheap_to_complete(top.aggregate, below, plain.traces, schemas):
        return None
    if maintained.extremes:
        # Groups by plain columns are small as a rule: they are read again.
        if top.aggregate not in notes and not plain.indexes:
            return None
        maintained = replace(maintained, complete=plain.traces)
        if top.aggregate in notes:
            notes_below[top.aggregate] = EXTREME
    return replace(
        plain,
        traces=below,
        evaluation="maintained",
        maintained=maintained,
        nodes=_strategies(root, notes_below, top.aggregate),
        plain=plain,
    )


def _traces(
    root: ir.Node,
    scans: tuple[ir.Scan, ...],
    schemas: Mapping[RelationId, TableSchema],
    view: ir.Node,
) -> tuple[tuple[Trace, ...], dict[ir.Node, Note]]:
    """What is fetched for each scan that is below the root; nothing for the others."""
    below = ir.scans(root)
    indexes = {scan.table for scan in below} - {scan.table for scan in scans}
    traced = [trace(root, scan, schemas, indexes, view) for scan in scans if scan in below]
    notes = {node: note for _, fetches in reversed(traced) for node, note in fetches.notes}
    others = (Trace(scan.table, scan.relation, ()) for scan in scans if scan not in below)
    return (*(fetched for fetched, _ in traced), *others), notes


def _cheap_to_complete(
    aggregate: ir.Aggregate,
    below: tuple[Trace, ...],
    whole: tuple[Trace, ...],
    schemas: Mapping[RelationId, TableSchema],
) -> bool:
    """Whether reading the changed groups again costs less than a state table.

    It does when the look-ups of the join are enough; and when a group is the rows around one row
    of a table (its primary key is in the group key) that changed rows name themselves.
    """
    more = [
        _is_one_hop(step, b)
        for b in whole
        for a in below
        if (a.table, a.relation) == (b.table, b.relation)
        for step in set(b.steps) - set(a.steps)
        if not is_clock(step.table)
    ]
    return not more or (all(more) and _holds_a_primary_key(aggregate, schemas))


def _is_one_hop(step: Step, trace: Trace) -> bool:
    """Whether rows are found by keys of changed rows, those of a band among them."""
    return bool(step.sources) and all(
        source.step is None or isinstance(trace.steps[source.step], Band) for source in step.sources
    )


def _holds_a_primary_key(
    aggregate: ir.Aggregate, schemas: Mapping[RelationId, TableSchema]
) -> bool:
    refs = {ref for _, value in aggregate.group if (ref := ir.as_ref(value)) is not None}
    same = equal_columns(aggregate.child, schemas)
    refs |= {other for ref in refs for other in same.get(ref, ())}
    return any(
        scan.key and {ir.Ref(scan.relation, name) for name in scan.key} <= refs
        for scan in ir.scans(aggregate.child)
    )


def _full_plan(
    definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema], reason: Unsupported
) -> ViewPlan:
    clocks = clocks_of(definition)
    read = {name: schemas[name] for name in (*definition.table_names, *clocks)}
    wholes = tuple(Whole(table) for table in read)
    return ViewPlan(
        definition=definition,
        root=None,
        columns=(),
        key=definition.key,
        schemas=read,
        used={name: schema.names for name, schema in read.items()},
        traces=tuple(Trace(table, table.sql_name, wholes) for table in read),
        evaluation="full",
        indexes=clocks,
        refused=Note(reason.code, reason.message, reason.hint),
    )


def _key(
    definition: ViewDefinition, root: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> tuple[str, ...]:
    names = [ref.column for ref in root.columns]
    for column in definition.key:
        if column not in names:
            raise UserError(
                f"key column {column!r} is not a column of view {definition.name!r}",
                where=f"{definition.file}:{definition.line}",
                allowed=", ".join(names),
                hint=did_you_mean(column, names),
            )
    if definition.key:
        return definition.key
    return tuple(ref.column for ref in unique_columns(root, schemas) or ())


def _evaluation(
    traces: tuple[Trace, ...], notes: Mapping[ir.Node, Note], read: Mapping[RelationId, TableSchema]
) -> Evaluation:
    everything = {Whole(table) for table in read}
    whole = traces and all(everything <= set(trace.steps) for trace in traces)
    return "full" if whole and any(note.always for note in notes.values()) else "slice_diff"


def _strategies(
    root: ir.Node, notes: Mapping[ir.Node, Note], maintained: ir.Aggregate | None
) -> tuple[NodeNote, ...]:
    listed: list[NodeNote] = []

    def visit(node: ir.Node) -> None:
        note = notes.get(node)
        strategy = "SELF_MAINTAINED" if node is maintained else _strategy(node)
        inner = isinstance(node, ir.Join) and node.kind == "inner"
        if note is not None and note.always and not (inner and note is NO_EQUALITY):
            strategy = "FULL"
        listed.append(NodeNote(node, strategy, note))
        for child in node.children:
            visit(child)

    visit(root)
    return tuple(listed)


@singledispatch
def _strategy(node: ir.Node) -> Strategy:
    """The strategy of an operator, unless a note or a state table says another."""
    raise TypeError(f"no strategy for {type(node).__name__}")


@_strategy.register(ir.Scan)
@_strategy.register(ir.Values)
@_strategy.register(ir.Filter)
@_strategy.register(ir.Projection)
@_strategy.register(ir.Generate)
def _(node: ir.Node) -> Strategy:
    return "LINEAR"


@_strategy.register(ir.Aggregate)
@_strategy.register(ir.Distinct)
@_strategy.register(ir.Window)
@_strategy.register(ir.Limit)
def _(node: ir.Node) -> Strategy:
    return "AFFECTED_KEYS"


@_strategy.register
def _(node: ir.Join) -> Strategy:
    return "DELTA_JOIN" if node.kind == "inner" else "AFFECTED_KEYS"


@_strategy.register
def _(node: ir.SetOp) -> Strategy:
    return "LINEAR" if node.kind == "union all" else "AFFECTED_KEYS"


def _allowed(plan: ViewPlan) -> ViewPlan:
    if plan.definition.policy != "incremental_only":
        return plan
    note = plan.refused or next((n.note for n in plan.nodes if n.strategy == "FULL"), None)
    if note is not None:
        raise UserError(
            f"view {plan.definition.name!r} must be incremental, but needs FULL ({note.code}): "
            f"{note.message}",
            where=f"{plan.definition.file}:{plan.definition.line}",
            hint=f"{note.hint}; or remove policy='incremental_only'",
        )
    return plan
