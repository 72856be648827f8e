"""Aggregates whose groups need not be read again: count, sum and avg over exact numbers, min, max.

Such an aggregate of S_new minus that of S_old is what has to be added to the group, whatever rows
of the group are missing in both. The sums live in a state table, one row per group, with the number
of rows in the group: at zero the group is gone. The partial query is made of pieces of the user's
own text; the final one reads the state table, so it is generated, from a closed list of operators.

The smallest or largest value of a group is kept as well. While the rows that went away hold a less
extreme value, or the rows that came a more extreme one, it is known; else the epoch is evaluated
again with all rows of the groups at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import sqlglot
from sqlglot import exp

from mview.connector import WEIGHT
from mview.ivm.exact import is_ordered, number_type
from mview.ivm.keys import is_grouping_id
from mview.ivm.steps import Trace
from mview.ivm.trace import value_part
from mview.plan import ir
from mview.plan.definition import ViewDefinition
from mview.plan.faithful import OPERATORS
from mview.plan.ir import Ref
from mview.plan.pieces import Pieces
from mview.plan.syntax import parse_select
from mview.schema import TableSchema

#: The relations of the final query: the state table, and (numbered) parts with one row.
STATE, VALUE = "__state", "__value"

#: `complete`: all rows of the group are at hand, so the value is that of the new rows.
Extreme = Literal["min", "max", "complete"]

#: avg of a decimal with more digits than this could round twice (sum / count, then to its scale).
_MOST_DIGITS_OF_AVG = 15


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
    values: tuple[str, ...] = ()
    complete: tuple[Trace, ...] = ()


@dataclass(frozen=True)
class TopAggregate:
    """The aggregate of a view, with only HAVING and the select list above it.

    Attributes:
        project: the select list.
        having: conditions.
        aggregate: the aggregate.
        values: parts with one row that the two use, and the columns they are attached as.
    """

    project: ir.Project
    having: tuple[ir.Filter, ...]
    aggregate: ir.Aggregate
    values: tuple[tuple[Ref, ir.Scan], ...]


def top_aggregate(root: ir.Node) -> TopAggregate | None:
    """The aggregate of the view, if it has one at its top."""
    if not isinstance(root, ir.Project):
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
    definition: ViewDefinition, root: ir.Node, schemas: Mapping[str, TableSchema]
) -> Maintained | None:
    """The SQL to maintain the view's top aggregate; None when it cannot be done exactly."""
    found = top_aggregate(root)
    tree = parse_select(definition.text)
    if found is None or not isinstance(tree, exp.Select):
        return None
    aggregate = found.aggregate
    text = Pieces(definition.sql, tree)
    by_sets = aggregate.sets is not None
    groups = _set_columns(aggregate, tree) if by_sets else text.group_texts(aggregate, tree)
    if groups is None:
        return None
    kept = _kept(aggregate, text, schemas)
    if kept is None:
        return None
    keys = [*groups, *([_SET] if by_sets else [])]
    by = text.group_text if by_sets else ", ".join(groups)
    values = tuple(dict.fromkeys(scan.table for _, scan in found.values))
    finalize = _finalize(found, kept.values, values)
    if finalize is None:
        return None
    return Maintained(
        partial=_partial(definition, text, keys, by, kept.accumulators),
        groups=tuple(f"__g{i}" for i in range(max(len(keys), 1))),
        accumulators=tuple(kept.accumulators),
        finalize=finalize,
        shown=_shown(found, kept.shown),
        always=not groups,
        extremes=kept.extremes,
        values=values,
    )


@dataclass(frozen=True)
class _Kept:
    """What the state table holds: its accumulators, which are extremes, and the values of them.

    Values that are columns of it are in `shown` as well.
    """

    accumulators: Mapping[str, str]
    extremes: Mapping[str, Extreme]
    values: Mapping[str, exp.Expr]
    shown: Mapping[str, Shown]


def _kept(
    aggregate: ir.Aggregate, text: Pieces, schemas: Mapping[str, TableSchema]
) -> _Kept | None:
    accumulators = {"__n": "count(*)"}
    extremes: dict[str, Extreme] = {}
    values: dict[str, exp.Expr] = {
        name: exp.column(f"__g{i}") for i, (name, _) in enumerate(aggregate.group)
    }
    shown = {name: Shown(f"__g{i}") for i, (name, _) in enumerate(aggregate.group)}
    for i, (name, call) in enumerate(aggregate.aggregates):
        if aggregate.sets is not None and is_grouping_id(call):
            values[name] = exp.column(f"__g{len(aggregate.group)}")
            continue
        made = _accumulate(call, i, text, aggregate, schemas)
        if made is None:
            return None
        own, values[name] = made
        accumulators |= own
        if not isinstance(call, exp.Avg):
            shown[name] = Shown(*own)
        if isinstance(call, exp.Min | exp.Max):
            extremes |= dict.fromkeys(own, "min" if isinstance(call, exp.Min) else "max")
    return _Kept(accumulators, extremes, values, shown)


def _finalize(
    found: TopAggregate, state: Mapping[str, exp.Expr], values: tuple[str, ...]
) -> str | None:
    """The view's rows from those of the state table."""
    known = {Ref(found.aggregate.relation, name): one for name, one in state.items()}
    known |= {ref: _value(scan, values.index(scan.table)) for ref, scan in found.values}
    items = [(name, _over_state(one, known)) for name, one in found.project.items]
    tests = [_over_state(one.condition, known) for one in found.having]
    if any(one is None for one in [*(one for _, one in items), *tests]):
        return None
    listed = ", ".join(f"{one} AS `{name}`" for name, one in items)
    where = f" WHERE {' AND '.join(f'({one})' for one in tests)}" if tests else ""
    return f"SELECT {WEIGHT}, {listed} FROM {STATE}{where}"


def _shown(found: TopAggregate, state: Mapping[str, Shown]) -> dict[str, Shown] | None:
    """The view's columns as those of the state table; None where the view computes or filters."""
    shown = {}
    for name, one in found.project.items:
        ref = ir.as_ref(one)
        if ref is None or ref.relation != found.aggregate.relation or ref.column not in state:
            return None
        shown[name] = state[ref.column]
    return None if found.having else shown


def _value(scan: ir.Scan, number: int) -> exp.Expr:
    """The one value of a part, in `finalize`."""
    column = exp.to_identifier(scan.names[0], quoted=True)
    select = exp.select(exp.column(column)).from_(f"{VALUE}{number}")
    return select.subquery()


#: Which grouping set a row of ROLLUP and such belongs to: NULL alone does not tell.
_SET = "grouping_id()"


def _set_columns(aggregate: ir.Aggregate, tree: exp.Select) -> list[str] | None:
    """The texts of the group columns of one ROLLUP, CUBE or GROUPING SETS without repeated sets."""
    group = tree.args["group"]
    clauses = list(group.find_all(exp.Rollup, exp.Cube, exp.GroupingSets))
    if len(clauses) != 1:
        return None
    (clause,) = clauses
    if isinstance(clause, exp.GroupingSets):
        sets = [frozenset(c.sql() for c in one.find_all(exp.Column)) for one in clause.expressions]
        if len(set(sets)) != len(sets):
            return None
    texts: dict[str, set[str]] = {}
    for column in group.find_all(exp.Column):
        texts.setdefault(column.name.lower(), set()).add(column.sql(dialect="spark"))
    found: list[str] = []
    for _, bound in aggregate.group:
        ref = ir.as_ref(bound)
        known = texts.get(ref.column.lower(), set()) if ref is not None else set()
        if len(known) != 1:
            return None
        found += known
    return found


def _partial(
    definition: ViewDefinition,
    text: Pieces,
    groups: list[str],
    group_by: str,
    accumulators: Mapping[str, str],
) -> ViewDefinition:
    keys = [f"{one} AS __g{i}" for i, one in enumerate(groups)] or ["0 AS __g0"]
    listed = ", ".join([*keys, *(f"{one} AS {name}" for name, one in accumulators.items())])
    by = f"\nGROUP BY {group_by}" if groups else ""
    sql = f"{text.prefix}SELECT {listed}\n{text.body}{by}"
    return definition.with_sql(sql, key=())


def _accumulate(
    call: exp.Expr,
    number: int,
    text: Pieces,
    aggregate: ir.Aggregate,
    schemas: Mapping[str, TableSchema],
) -> tuple[dict[str, str], exp.Expr] | None:
    """The accumulators of one call, and its value from them."""
    value = text.argument(call)
    kind = type(call)
    if value is None or kind not in (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max):
        return None
    argument = call.this
    if kind in (exp.Min, exp.Max):
        if call.expressions or not is_ordered(argument, aggregate.child, schemas):
            return None
        name = f"__m{number}"
        return {name: f"{'min' if kind is exp.Min else 'max'}({value})"}, exp.column(name)
    total, count = f"__s{number}", f"__c{number}"
    if kind is exp.Count:
        if isinstance(argument, exp.Distinct) or call.expressions:
            return None
        return {count: f"count({value})"}, exp.column(count)
    number_kind = number_type(argument, aggregate.child, schemas)
    if number_kind is None:
        return None
    if kind is exp.Sum:
        made = {total: f"sum({value})", count: f"count({value})"}
        return made, _unless_empty(count, total)
    if number_kind == "int":
        made = {total: f"sum(CAST(({value}) AS DECIMAL(20,0)))", count: f"count({value})"}
        return made, _unless_empty(count, f"CAST({total} AS DOUBLE) / CAST({count} AS DOUBLE)")
    digits = _decimal_column(argument, aggregate.child, schemas)
    if digits is None or digits.precision > _MOST_DIGITS_OF_AVG:
        return None
    made = {total: f"sum({value})", count: f"count({value})"}
    result = f"DECIMAL({digits.precision + 4},{digits.scale + 4})"
    return made, _unless_empty(count, f"CAST({total} / CAST({count} AS DECIMAL(20,0)) AS {result})")


def _unless_empty(count: str, value: str) -> exp.Expr:
    parsed: exp.Expr = sqlglot.parse_one(f"CASE WHEN {count} > 0 THEN {value} END", dialect="spark")
    return exp.paren(parsed)


def _decimal_column(
    argument: exp.Expr, node: ir.Node, schemas: Mapping[str, TableSchema]
) -> pa.Decimal128Type | None:
    ref = ir.as_ref(argument)
    for scan in ir.scans(node):
        if ref is not None and ref in scan.columns:
            return schemas[scan.table].column(ref.column).type
    return None


def _over_state(expression: exp.Expr, known: Mapping[Ref, exp.Expr]) -> str | None:
    """The expression over the aggregate's columns as SQL over the state table."""
    copied = exp.paren(expression.copy())
    for node in list(copied.walk()):
        if not isinstance(node, OPERATORS):
            return None
        ref = ir.as_ref(node) if isinstance(node, exp.Column) else None
        if ref is not None:
            if ref not in known:
                return None
            node.replace(known[ref].copy())
    return str(copied.this.sql(dialect="spark"))
