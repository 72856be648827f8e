"""Keys that are no plain columns: each becomes a column of an index, a part with the table's key.

`GROUP BY date_trunc('month', at)` touches the groups of the changed rows, but no column of the
table finds the rows of a group. An index part does: `SELECT id, date_trunc('month', at) AS x0 FROM
t`. In the tree that is traced (not in the query, which runs as it is) the table is joined to its
index by the primary key, and the expression is the index's column. So a trace goes from changed
rows to their index rows, by x0 to those of the same group, and by id to the table's rows. The index
changes only when its table does, in the same epoch, so its own changes need no trace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import cast

from sqlglot import exp

from mview.plan.definition import ViewDefinition, table_of
from mview.plan.functions.faithful import is_faithful
from mview.plan.operators import ir
from mview.plan.operators.ir import Pair, Ref
from mview.plan.operators.rules import with_children
from mview.plan.text.query import column, named
from mview.relation import RelationId

_DIVISIONS = (exp.Div, exp.IntDiv, exp.Mod)

#: A node, changed where an expression over it had to become a column, and that column.
Found = tuple[ir.Node, Ref]


@dataclass
class _Index:
    """An index in the making: the table and the expressions over its columns."""

    part: int
    table: RelationId
    key: tuple[str, ...]
    expressions: list[exp.Expr] = field(default_factory=list)

    def column(self, expression: exp.Expr) -> str:
        if expression not in self.expressions:
            self.expressions.append(expression)
        return f"x{self.expressions.index(expression)}"

    @property
    def names(self) -> tuple[str, ...]:
        return (*(f"k{i}" for i in range(len(self.key))), *self._computed)

    @property
    def _computed(self) -> list[str]:
        return [f"x{i}" for i in range(len(self.expressions))]

    def query(self) -> exp.Select:
        items = [named(column(name), f"k{i}") for i, name in enumerate(self.key)]
        for value, name in zip(self.expressions, self._computed, strict=True):
            items.append(named(value.copy(), name))
        from_ = exp.From(this=table_of(self.table))
        query = exp.Select(expressions=items, from_=from_)
        for identifier in query.find_all(exp.Identifier):
            identifier.set("quoted", True)
        return query


@dataclass
class Indexer:
    """Adds indexes to a tree.

    Args:
        view: whose parts the indexes are.
        first: number of the first of them.
        without: tables that get no index.
    """

    view: ViewDefinition
    first: int
    without: Collection[RelationId] = ()
    _indexes: dict[RelationId, _Index] = field(default_factory=dict)

    def rewritten(self, node: ir.Node, failing: Collection[ir.Node]) -> ir.Node:
        """The tree with the keys of the failing operators as columns, where that can be done."""
        children = tuple(self.rewritten(child, failing) for child in node.children)
        changed = with_children(node, children)
        return self.with_plain_keys(changed) if node in failing else changed

    def parts(self) -> tuple[ViewDefinition, ...]:
        """The definitions of the indexes."""
        return tuple(self._definition(index) for index in self._indexes.values())

    def _definition(self, index: _Index) -> ViewDefinition:
        key = tuple(f"k{i}" for i in range(len(index.key)))
        return self.view.with_tree(index.query(), part=index.part, key=key)

    # -- the keys of an operator ---------------------------------------------------------------

    @singledispatchmethod
    def with_plain_keys(self, node: ir.Node) -> ir.Node:
        """The operator with its keys as columns that can be traced."""
        raise TypeError(f"no keys of {type(node).__name__}")

    @with_plain_keys.register
    def _(self, node: ir.Aggregate) -> ir.Node:
        child, group = node.child, []
        for name, value in node.group:
            child, value = self._plain(child, value)
            group.append((name, value))
        return replace(node, child=child, group=tuple(group))

    @with_plain_keys.register
    def _(self, node: ir.Window) -> ir.Node:
        child, partition = node.child, []
        for value in node.partition:
            child, value = self._plain(child, value)
            partition.append(value)
        return replace(node, child=child, partition=tuple(partition))

    @with_plain_keys.register(ir.Distinct)
    @with_plain_keys.register(ir.SetOp)
    def _(self, node: ir.Distinct | ir.SetOp) -> ir.Node:
        for ref in node.columns:
            traced = self.traceable(node, ir.column(ref))
            node = node if traced is None else traced[0]  # type: ignore[assignment]
        return node

    @with_plain_keys.register
    def _(self, node: ir.Join) -> ir.Node:
        left, right, pairs, residual = node.left, node.right, [], []
        for pair in node.pairs:
            left, mine = self._plain(left, ir.column(pair.left))
            right, other = self._plain(right, ir.column(pair.right))
            pairs.append(_pair(mine, other, pair.null_safe))
        for value in node.residual:
            sides = _sides(value, node)
            here = self.traceable(left, sides[0]) if sides else None
            there = self.traceable(right, sides[1]) if sides else None
            if here is None or there is None:
                residual.append(value)
                continue
            left, right = here[0], there[0]
            pairs.append(Pair(here[1], there[1], isinstance(value, exp.NullSafeEQ)))
        return replace(node, left=left, right=right, pairs=tuple(pairs), residual=tuple(residual))

    def _plain(self, child: ir.Node, value: exp.Expr) -> tuple[ir.Node, exp.Expr]:
        traced = self.traceable(child, value)
        return (child, value) if traced is None else (traced[0], ir.column(traced[1]))

    # -- an expression over a node as a column of it -------------------------------------------

    @singledispatchmethod
    def traceable(self, node: ir.Node, value: exp.Expr) -> Found | None:
        """The node with the expression as a column that comes unchanged from a table or index.

        Returns:
            None where that cannot be: the value of an aggregate, columns of several tables.
        """
        raise TypeError(f"no index below {type(node).__name__}")

    @traceable.register(ir.Values)
    @traceable.register(ir.Limit)
    def _(self, node: ir.Values | ir.Limit, value: exp.Expr) -> Found | None:
        return None

    @traceable.register
    def _(self, node: ir.Scan, value: exp.Expr) -> Found | None:
        refs = _refs(value)
        if not refs or not refs <= set(node.columns):
            return None
        if (ref := ir.as_ref(value)) is not None:
            return node, ref
        if not node.key or not is_faithful(value) or node.table in self.without:
            return None
        part = self.first + len(self._indexes)
        index = self._indexes.setdefault(node.table, _Index(part, node.table, node.key))
        own = _over(value, {ref: exp.column(ref.column) for ref in node.columns})
        made = index.column(_without_errors(own))
        relation = f"{node.relation} index"
        key = index.names[: len(node.key)]
        pairs = (
            Pair(Ref(node.relation, mine), Ref(relation, other))
            for mine, other in zip(node.key, key, strict=True)
        )
        of_view = RelationId("view", self.view.name, part=index.part)
        scan = ir.Scan(of_view, relation, index.names, key)
        return ir.Join(node, scan, "inner", tuple(pairs)), Ref(relation, made)

    @traceable.register(ir.Filter)
    @traceable.register(ir.Window)
    @traceable.register(ir.Generate)
    def _(self, node: ir.Filter | ir.Window | ir.Generate, value: exp.Expr) -> Found | None:
        if not _refs(value) <= set(node.child.columns):
            return None
        traced = self.traceable(node.child, value)
        return None if traced is None else (replace(node, child=traced[0]), traced[1])

    @traceable.register
    def _(self, node: ir.Projection, value: exp.Expr) -> Found | None:
        items = dict(node.items)
        inner = _over(value, {ref: items[ref.column] for ref in node.columns})
        traced = self.traceable(node.child, inner)
        if traced is None:
            return None
        child, ref = traced
        # A column stays what it is called; an expression goes up as one more column.
        own = ir.as_ref(value)
        name = str(ref) if own is None else own.column
        items[name] = ir.column(ref)
        return replace(node, child=child, items=tuple(items.items())), Ref(node.relation, name)

    @traceable.register
    def _(self, node: ir.Aggregate, value: exp.Expr) -> Found | None:
        position = _position([name for name, _ in node.group], value)
        if position is None or node.sets is not None:
            return None
        name, key = node.group[position]
        child, plain = self._plain(node.child, key)
        group = (*node.group[:position], (name, plain), *node.group[position + 1 :])
        return replace(node, child=child, group=group), Ref(node.relation, name)

    @traceable.register
    def _(self, node: ir.Distinct, value: exp.Expr) -> Found | None:
        traced = self.traceable(node.child, value) if ir.as_ref(value) is not None else None
        return None if traced is None else (replace(node, child=traced[0]), traced[1])

    @traceable.register
    def _(self, node: ir.SetOp, value: exp.Expr) -> Found | None:
        position = _position(node.names, value)
        if position is None:
            return None
        branches = []
        for branch in node.branches:
            column = branch.columns[position]
            traced = self.traceable(branch, ir.column(column))
            if traced is None or traced[1] != column:
                return None
            branches.append(traced[0])
        return replace(node, branches=tuple(branches)), Ref(node.relation, node.names[position])

    @traceable.register
    def _(self, node: ir.Join, value: exp.Expr) -> Found | None:
        refs, plain = _refs(value), ir.as_ref(value) is not None
        # An expression over a row of NULLs need not be NULL, as a column of it is.
        if refs <= set(node.left.columns) and (plain or node.kind not in ("right", "full")):
            traced = self.traceable(node.left, value)
            return None if traced is None else (self._over_left(node, traced[0]), traced[1])
        if refs <= set(node.right.columns) and (plain or node.kind not in ("left", "full")):
            traced = self.traceable(node.right, value)
            return None if traced is None else (replace(node, right=traced[0]), traced[1])
        return None

    def _over_left(self, node: ir.Join, left: ir.Node) -> ir.Node:
        """The join over another left side; two joins of one table to its index are one."""
        same = isinstance(left, ir.Join) and isinstance(node.right, ir.Scan)
        if same and left.left == node.left and left.pairs == node.pairs:  # type: ignore[attr-defined]
            return left
        return replace(node, left=left)


def _pair(left: exp.Expr, right: exp.Expr, null_safe: bool) -> Pair:
    mine, other = ir.as_ref(left), ir.as_ref(right)
    assert mine is not None
    assert other is not None
    return Pair(mine, other, null_safe)


def _refs(expression: exp.Expr) -> set[Ref | None]:
    """The columns of an expression; with None for what is no bound column."""
    return {ir.as_ref(node) for node in expression.find_all(exp.Column)}


def _over(expression: exp.Expr, columns: Mapping[Ref, exp.Expr]) -> exp.Expr:
    """The expression with other expressions in the place of columns."""
    if (ref := ir.as_ref(expression)) in columns:
        assert ref is not None
        return columns[ref].copy()
    copied = expression.copy()
    for node in list(copied.find_all(exp.Column)):
        if (ref := ir.as_ref(node)) in columns:
            assert ref is not None
            node.replace(exp.paren(columns[ref].copy()))
    return copied


def _without_errors(expression: exp.Expr) -> exp.Expr:
    """NULL where an operator would raise: an index has rows that the view's filters leave out.

    A row that they don't leave out is computed by the view itself, too, and raises there.
    """
    whole = exp.paren(expression)
    # From the innermost on: those around keep what is within them.
    for node in reversed(list(whole.find_all(exp.Cast, exp.TsOrDsToDate, *_DIVISIONS))):
        if isinstance(node, exp.Cast):
            if node.to.this not in exp.DataType.TEXT_TYPES:
                node.replace(exp.TryCast(this=node.this, to=node.to, safe=True))
        elif isinstance(node, exp.TsOrDsToDate):
            date = exp.DataType.build("date")
            node.replace(exp.TryCast(this=node.this, to=date, safe=True))
        elif _may_be_zero(node.expression):
            divisor = exp.Nullif(this=node.expression.copy(), expression=exp.Literal.number(0))
            node.set("expression", divisor)
    return cast(exp.Expr, whole.this)


def _may_be_zero(divisor: exp.Expr) -> bool:
    return not isinstance(divisor.unnest(), exp.Literal | exp.Nullif)


def _position(names: Collection[str], value: exp.Expr) -> int | None:
    """The position of the column that an expression is."""
    ref = ir.as_ref(value)
    return list(names).index(ref.column) if ref is not None and ref.column in names else None


def _sides(test: exp.Expr, join: ir.Join) -> tuple[exp.Expr, exp.Expr] | None:
    """The sides of an equality, that of the left input first."""
    if not isinstance(test, exp.EQ | exp.NullSafeEQ):
        return None
    for left, right in ((test.left, test.right), (test.right, test.left)):
        ends = _refs(left), _refs(right)
        if all(ends) and ends[0] <= set(join.left.columns) and ends[1] <= set(join.right.columns):
            return left, right
    return None
