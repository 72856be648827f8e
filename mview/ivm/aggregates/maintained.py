"""Aggregates whose groups need not be read again: count, sum and avg over exact numbers, extremes.

Sums of whole numbers are kept with room for any number of rows, and are BIGINT only where they are
shown: a view fails when the sum over the cut does not fit, whatever the epochs and the order of
rows in between. (Spark's own sum fails as soon as one order of adding leaves BIGINT.) Sums of
decimals have the type that Spark gives them; where a slice alone leaves it, all rows decide.

Such an aggregate of S_new minus that of S_old is what has to be added to the group, whatever rows
of the group are missing in both. The sums live in a state table, one row per group, with the number
of rows in the group: at zero the group is gone. The partial query is made of parts of the user's
own; the final one reads the state table, so it is generated, from a closed list of operators.

The smallest or largest value of a group is kept as well, and what stands beside it (`max_by`).
While the rows that went away hold a less extreme value, or the rows that came a more extreme one,
it is known; else the epoch is evaluated again with all rows of the groups at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
from sqlglot import exp

from mview.connector import WEIGHT
from mview.ivm.aggregates.averages import Average, is_known
from mview.ivm.facts.exact import base_type, is_ordered, number_type
from mview.ivm.facts.keys import is_grouping_id
from mview.ivm.tracing.steps import Trace
from mview.ivm.tracing.trace import is_genuine, value_part
from mview.plan.definition import ViewDefinition
from mview.plan.functions.effects import aggregate_calls
from mview.plan.functions.faithful import is_faithful
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref
from mview.plan.operators.orderings import order_in
from mview.plan.text.dialect import fragment
from mview.plan.text.query import named, number_of, numbered, select_over
from mview.relation import RelationId
from mview.schema import TableSchema, as_schema, quoted

#: The relations of the final query: the state table, and (numbered) parts with one row.
STATE, VALUE = "__state", "__value"

#: `complete`: all rows of the group are at hand, so the value is that of the new rows.
Extreme = Literal["min", "max", "complete"]


@dataclass(frozen=True)
class Shown:
    """A column of the state table that is one of the view; NULL where `count` is zero."""

    column: str
    count: str | None = None


@dataclass(frozen=True)
class Maintained:
    """SQL of a view whose top aggregate lives in a state table.

    Attributes:
        partial: accumulators per group over the view's tables, as a definition of its own.
        groups: group columns of the state table.
        accumulators: accumulator columns of the state table; the first counts the group's rows.
        finalize: weighted rows of the view from weighted rows of the state table.
        shown: the same for a view that only shows columns of the state table; else None.
        always: a global aggregate: its one row stays when no rows are left.
        extremes: those of the accumulators that are no sums, but a `min` or `max`.
        beside: accumulators that are the value in a row with an extreme, and the extreme.
        genuine: see `mview.ivm.tracing.trace.is_genuine`.
        wide: sums that `finalize` and `shown` take as BIGINT.
        averages: columns that `finalize` and `shown` take beside those of the state table.
        values: parts with one row that `finalize` reads, as VALUE0, VALUE1, …
        complete: what to fetch when an extreme is not known: all rows of the changed groups.
    """

    partial: ViewDefinition
    groups: tuple[str, ...]
    accumulators: tuple[str, ...]
    finalize: str
    shown: Mapping[str, Shown] | None
    always: bool
    extremes: Mapping[str, Extreme] = field(default_factory=dict)
    beside: Mapping[str, str] = field(default_factory=dict)
    genuine: bool = True
    wide: frozenset[str] = frozenset()
    averages: Mapping[str, Average] = field(default_factory=dict)
    values: tuple[RelationId, ...] = ()
    complete: tuple[Trace, ...] = ()

    def shown_schema(self, state: pa.Schema) -> pa.Schema | None:
        """The columns that `finalize` and `shown` take; None: a type among them is not known."""
        fields = [pa.field(f.name, pa.int64() if f.name in self.wide else f.type) for f in state]
        for name, average in self.averages.items():
            kind = average.type(state.field(average.total).type)
            if kind is None:
                return None
            fields.append(pa.field(name, kind))
        return pa.schema(fields)

    def as_shown(self, rows: pa.Table) -> pa.Table:
        """Rows of the state table with these columns.

        Raises:
            pa.ArrowInvalid: a sum does not fit its type.
        """
        schema = self.shown_schema(rows.schema)
        assert schema is not None, "such a view has no state table"
        for name, average in self.averages.items():
            rows = rows.append_column(name, average.of(rows))
        return as_schema(rows, schema)


@dataclass(frozen=True)
class TopAggregate:
    """The aggregate of a view, with only HAVING and the select list above it.

    Attributes:
        project: the select list.
        having: conditions.
        aggregate: the aggregate.
        values: parts with one row that the two use, and the columns they are attached as.
    """

    project: ir.Projection
    having: tuple[ir.Filter, ...]
    aggregate: ir.Aggregate
    values: tuple[tuple[Ref, ir.Scan], ...]


def top_aggregate(root: ir.Node) -> TopAggregate | None:
    """The aggregate of the view, if it has one at its top."""
    if not isinstance(root, ir.Projection):
        return None
    node, having, values = root.child, [], []
    while isinstance(node, ir.Filter | ir.Join):
        if isinstance(node, ir.Filter):
            having.append(node)
            node = node.child
            continue
        part = value_part(node)
        if part is None or node.value is None:
            return None
        values.append((node.value, part))
        node = node.left
    if not isinstance(node, ir.Aggregate):
        return None
    return TopAggregate(root, tuple(having), node, tuple(values))


def maintain(
    definition: ViewDefinition, root: ir.Node, schemas: Mapping[RelationId, TableSchema]
) -> Maintained | None:
    """The SQL to maintain the view's top aggregate; None when it cannot be done exactly."""
    top = top_aggregate(root)
    tree = definition.tree
    if top is None or not isinstance(tree, exp.Select):
        return None
    aggregate = top.aggregate
    by_sets = aggregate.sets is not None
    groups = _set_columns(aggregate, tree) if by_sets else _groups(aggregate, tree)
    if groups is None:
        return None
    kept = _kept(aggregate, tree, schemas)
    if kept is None:
        return None
    values = tuple(dict.fromkeys(scan.table for _, scan in top.values))
    finalize = _finalize(top, kept.values, values)
    if finalize is None:
        return None
    keys = [*groups, *([fragment(_SET)] if by_sets else [])]
    by = tree.args["group"] if by_sets else exp.Group(expressions=groups)
    return Maintained(
        partial=definition.with_tree(_partial(tree, keys, by if groups else None, kept), key=()),
        groups=tuple(f"__g{i}" for i in range(max(len(keys), 1))),
        accumulators=tuple(kept.accumulators),
        finalize=finalize,
        shown=_shown(top, kept.shown),
        always=not groups,
        extremes=kept.extremes,
        beside=kept.beside,
        genuine=is_genuine(aggregate.child),
        wide=frozenset(kept.wide),
        averages=kept.averages,
        values=values,
    )


@dataclass
class _Kept:
    """What the state table holds: its accumulators, some of them special, and the values of them.

    Values that are columns are in `shown` as well.
    """

    accumulators: dict[str, exp.Expr] = field(default_factory=lambda: {"__n": fragment("count(*)")})
    extremes: dict[str, Extreme] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    wide: set[str] = field(default_factory=set)
    averages: dict[str, Average] = field(default_factory=dict)
    values: dict[str, exp.Expr] = field(default_factory=dict)
    shown: dict[str, Shown] = field(default_factory=dict)

    def show(self, name: str, column: str, count: str | None = None) -> None:
        """A value of the view is a column; NULL where `count` is zero."""
        self.shown[name] = Shown(column, count)
        self.values[name] = exp.column(column) if count is None else _unless_empty(count, column)


def _kept(
    aggregate: ir.Aggregate, tree: exp.Select, schemas: Mapping[RelationId, TableSchema]
) -> _Kept | None:
    kept = _Kept()
    for i, (name, _) in enumerate(aggregate.group):
        kept.show(name, f"__g{i}")
    for i, (name, call) in enumerate(aggregate.aggregates):
        if aggregate.sets is not None and is_grouping_id(call):
            kept.values[name] = exp.column(f"__g{len(aggregate.group)}")
        elif not _keep(kept, name, call, i, tree, aggregate, schemas):
            return None
    return kept


def _finalize(
    top: TopAggregate, state: Mapping[str, exp.Expr], values: tuple[RelationId, ...]
) -> str | None:
    """The view's rows from those of the state table."""
    known = {Ref(top.aggregate.relation, name): value for name, value in state.items()}
    known |= {ref: _value(scan, values.index(scan.table)) for ref, scan in top.values}
    items = [(name, _over_state(value, known)) for name, value in top.project.items]
    tests = [_over_state(value.condition, known) for value in top.having]
    if any(value is None for value in [*(value for _, value in items), *tests]):
        return None
    listed = ", ".join(f"{value} AS {quoted(name)}" for name, value in items)
    where = f" WHERE {' AND '.join(f'({value})' for value in tests)}" if tests else ""
    return f"SELECT {WEIGHT}, {listed} FROM {STATE}{where}"


def _shown(top: TopAggregate, state: Mapping[str, Shown]) -> dict[str, Shown] | None:
    """The view's columns as those of the state table; None where the view computes or filters."""
    shown = {}
    for name, value in top.project.items:
        ref = ir.as_ref(value)
        if ref is None or ref.relation != top.aggregate.relation or ref.column not in state:
            return None
        shown[name] = state[ref.column]
    return None if top.having else shown


def _value(scan: ir.Scan, number: int) -> exp.Expr:
    """The one value of a part, in `finalize`."""
    column = exp.to_identifier(scan.names[0], quoted=True)
    select = exp.select(exp.column(column)).from_(f"{VALUE}{number}")
    return select.subquery()


#: Which grouping set a row of ROLLUP and such belongs to: NULL alone does not tell.
_SET = "grouping_id()"


def _set_columns(aggregate: ir.Aggregate, tree: exp.Select) -> list[exp.Expr] | None:
    """The group columns of one ROLLUP, CUBE or GROUPING SETS without repeated sets."""
    group = tree.args["group"]
    clauses = list(group.find_all(exp.Rollup, exp.Cube, exp.GroupingSets))
    if len(clauses) != 1 or aggregate.repeats:
        return None
    written: dict[str, dict[exp.Expr, None]] = {}
    for column in group.find_all(exp.Column):
        written.setdefault(column.name.lower(), {})[column] = None
    columns: list[exp.Expr] = []
    for _, bound in aggregate.group:
        ref = ir.as_ref(bound)
        known = written.get(ref.column.lower(), {}) if ref is not None else {}
        if len(known) != 1:
            return None
        columns += known
    return columns


def _groups(aggregate: ir.Aggregate, tree: exp.Select) -> list[exp.Expr] | None:
    """Every group expression as the query has it; None when they cannot be told."""
    group = tree.args.get("group")
    if group is None:
        return [] if not aggregate.group else None
    listed = group.expressions
    if group.args.get("all"):
        listed = [item.unalias() for item in tree.expressions if not aggregate_calls(item)]
    if len(listed) != len(aggregate.group) or tree.args.get("from_") is None:
        return None
    return [
        _meant(item, bound, tree) for item, (_, bound) in zip(listed, aggregate.group, strict=True)
    ]


def _meant(item: exp.Expr, bound: exp.Expr, tree: exp.Select) -> exp.Expr:
    """What an item of GROUP BY means: perhaps an item of the select list, by number or by name."""
    listed: list[exp.Expr] = [entry.unalias() for entry in tree.expressions]
    if isinstance(item, exp.Literal) and item.is_int:
        return listed[int(item.name) - 1]
    ref = ir.as_ref(bound)
    if not isinstance(item, exp.Column) or len(item.parts) > 1:
        return item
    if ref is not None and ref.column.lower() == item.name.lower():
        return item
    names = [entry.alias.lower() for entry in tree.expressions]
    word = item.name.lower()
    return listed[names.index(word)] if word in names else item


def _partial(
    tree: exp.Select, keys: Sequence[exp.Expr], group: exp.Expr | None, kept: _Kept
) -> exp.Select:
    items: list[exp.Expr] = [named(value.copy(), f"__g{i}") for i, value in enumerate(keys)]
    items = items or [fragment("0 AS __g0")]
    items += [named(value, name) for name, value in kept.accumulators.items()]
    partial = select_over(tree, items, "with_")
    partial.set("group", group and group.copy())
    return partial


def _keep(
    kept: _Kept,
    name: str,
    call: exp.Expr,
    number: int,
    tree: exp.Select,
    aggregate: ir.Aggregate,
    schemas: Mapping[RelationId, TableSchema],
) -> bool:
    """Add the accumulators of one call, and its value from them; False: it cannot be kept."""
    bound = call.this if isinstance(call, exp.Filter) else call
    own = numbered(tree, number_of(bound))
    if own is None or not isinstance(own.this, exp.Expr) or _names_an_item(own, bound, tree):
        return False
    condition = None
    if isinstance(call, exp.Filter):
        around = own.parent
        if not isinstance(around, exp.Filter) or _names_an_item(around, call, tree):
            return False
        condition = around.expression.this
    inside = own.this
    if isinstance(bound, exp.CountIf | exp.LogicalOr | exp.LogicalAnd):
        _keep_test(kept, name, bound, number, inside, condition)
        return True
    if type(bound) in _EXTREMES:
        return _keep_extreme(kept, name, bound, number, own, condition, aggregate, schemas)
    if type(bound) not in (exp.Count, exp.Sum, exp.Avg):
        return False
    value, count = _where(inside, condition), f"__c{number}"
    if isinstance(bound, exp.Count):
        if isinstance(bound.this, exp.Distinct) or bound.expressions:
            return False
        kept.accumulators[count] = fragment("count(v)", v=value)
        kept.show(name, count)
        return True
    kind = number_type(bound.this, aggregate.child, schemas)
    if kind is None or (isinstance(bound, exp.Avg) and not _is_known(bound, aggregate, schemas)):
        return False
    exact = "CAST((v) AS DECIMAL(20,0))" if kind == "int" else "v"
    total = f"__s{number}"
    kept.accumulators[total] = fragment(f"sum({exact})", v=value)
    kept.accumulators[count] = fragment("count(v)", v=value)
    if isinstance(bound, exp.Avg):
        average = f"__a{number}"
        kept.averages[average] = Average(total, count, whole=kind == "int")
        kept.show(name, average)
        return True
    if kind == "int":
        kept.wide.add(total)
    kept.show(name, total, count)
    return True


def _names_an_item(own: exp.Expr, bound: exp.Expr, tree: exp.Select) -> bool:
    """Whether a call uses an alias of the select list, which means nothing without the list."""
    columns = {ref.column.lower() for n in bound.walk() if (ref := ir.as_ref(n)) is not None}
    aliases = {item.alias.lower() for item in tree.expressions if item.alias} - columns
    return any(name.name.lower() in aliases for name in own.find_all(exp.Identifier))


def _where(value: exp.Expr, condition: exp.Expr | None) -> exp.Expr:
    """A row that the condition leaves out is NULL to the aggregate, which it leaves out, too."""
    if condition is None:
        return value
    value = exp.Literal.number(1) if isinstance(value, exp.Star) else exp.paren(value)
    return fragment("CASE WHEN c THEN v END", c=condition, v=value)


def _is_known(
    call: exp.Avg, aggregate: ir.Aggregate, schemas: Mapping[RelationId, TableSchema]
) -> bool:
    """Whether the type of the average may be told; Spark tells it of what is no plain column."""
    ref = ir.as_ref(call.this)
    kind = None if ref is None else base_type(ref, aggregate.child, schemas)
    return kind is None or not pa.types.is_decimal(kind) or is_known(kind)


#: Aggregates that are an extreme value, or the value beside one.
_EXTREMES: Mapping[type[exp.Expr], Extreme] = {
    exp.Min: "min", exp.Max: "max", exp.ArgMin: "min", exp.ArgMax: "max"
}  # fmt: skip


def _keep_extreme(
    kept: _Kept,
    name: str,
    call: exp.Expr,
    number: int,
    own: exp.Expr,
    condition: exp.Expr | None,
    aggregate: ir.Aggregate,
    schemas: Mapping[RelationId, TableSchema],
) -> bool:
    kind, extreme = _EXTREMES[type(call)], f"__m{number}"
    if isinstance(call, exp.Min | exp.Max):
        if call.expressions or not is_ordered(call.this, aggregate.child, schemas):
            return False
        kept.accumulators[extreme] = fragment(f"{kind}(v)", v=_where(own.this, condition))
        kept.show(name, extreme)
    else:
        user = order_in(call.expression)
        compared = [call.expression] if user is None else [user, call.this]
        ordered = all(is_ordered(value, aggregate.child, schemas) for value in compared)
        if call.args.get("count") is not None or not ordered:
            return False
        compare, order = own.expression, order_in(own.expression) or own.expression
        beside = f"__b{number}"
        kept.accumulators[extreme] = fragment(f"{kind}(v)", v=_where(order, condition))
        kept.accumulators[beside] = fragment(
            f"{kind}_by(v, o)", v=own.this, o=_where(compare, condition)
        )
        kept.beside[beside] = extreme
        kept.show(name, beside)
    kept.extremes[extreme] = kind
    return True


def _keep_test(
    kept: _Kept,
    name: str,
    call: exp.Expr,
    number: int,
    value: exp.Expr,
    condition: exp.Expr | None,
) -> None:
    """`count_if`, `bool_or` and `bool_and` as counts of the rows that hold, and of those that tell.

    A row tells when the test is not NULL. Some hold: more than none do. All hold: as many as tell.
    """
    holds, tells = f"__h{number}", f"__c{number}"
    test = _where(value, condition)
    kept.accumulators[holds] = fragment("count(CASE WHEN t THEN 1 END)", t=test)
    if isinstance(call, exp.CountIf):
        kept.show(name, holds)
        return
    kept.accumulators[tells] = fragment("count(t)", t=test)
    answer = f"{holds} > 0" if isinstance(call, exp.LogicalOr) else f"{holds} = {tells}"
    kept.values[name] = _unless_empty(tells, answer)


def _unless_empty(count: str, value: str) -> exp.Expr:
    return exp.paren(fragment(f"CASE WHEN {count} > 0 THEN {value} END"))


def _over_state(expression: exp.Expr, known: Mapping[Ref, exp.Expr]) -> str | None:
    """The expression over the aggregate's columns as SQL over the state table."""
    copied = exp.paren(expression.copy())
    # Functions of other names may be declared ones, which run over the rows of tables only.
    if not is_faithful(copied) or copied.find(exp.Anonymous) is not None:
        return None
    for node in list(copied.walk()):
        ref = ir.as_ref(node) if isinstance(node, exp.Column) else None
        if ref is not None:
            if ref not in known:
                return None
            node.replace(known[ref].copy())
    return str(copied.this.sql(dialect="spark"))
