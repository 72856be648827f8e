"""Of which columns of tables and views each column of a view is made.

Only values count: a column by which rows are joined, filtered, grouped or ordered is no source of
the values beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import singledispatch

from sqlglot import exp

from mview.ivm.facts.lineage import branch_columns
from mview.ivm.plan import ViewPlan
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref
from mview.relation import RelationId


@dataclass(frozen=True, order=True)
class SourceColumn:
    """A column of a table or of a view."""

    relation: RelationId
    column: str

    def __str__(self) -> str:
        return f"{self.relation}.{self.column}"


Sources = frozenset[SourceColumn]

#: The columns below a node, those that it does not pass on too, and what they are made of.
_Made = dict[Ref, Sources]

#: What the columns of parts of the view are made of.
_Parts = Mapping[RelationId, Mapping[str, Sources]]

_NONE: Sources = frozenset()


def made_of(plan: ViewPlan) -> dict[str, Sources] | None:
    """What each column of a view is made of.

    Returns:
        By name, in the view's order; a constant, or the number of rows, is made of nothing. None:
        only Spark knows.
    """
    parts: dict[RelationId, Mapping[str, Sources]] = {}
    for part in plan.parts:
        parts[part.relation] = _of_root(part, parts) or {}
    return _of_root(plan, parts)


def _of_root(plan: ViewPlan, parts: _Parts) -> dict[str, Sources] | None:
    if plan.root is None or not plan.columns:
        return None
    made = _made(plan.root, parts)
    shown = {ref.column.lower(): made[ref] for ref in plan.root.columns}
    return {name: shown.get(name.lower(), _NONE) for name in plan.columns}


def _of(expression: exp.Expr, made: Mapping[Ref, Sources]) -> Sources:
    """What an expression is made of; variables of a lambda function are no columns."""
    return _all(made.get(ref, _NONE) for ref in ir.refs_of(expression))


def _all(sources: Iterable[Sources]) -> Sources:
    return _NONE.union(*sources)


@singledispatch
def _made(node: ir.Node, parts: _Parts) -> _Made:
    raise TypeError(f"nobody knows what the columns of {type(node).__name__} are made of")


@_made.register
def _(node: ir.Scan, parts: _Parts) -> _Made:
    inner = parts.get(node.table)
    return {
        Ref(node.relation, name): frozenset({SourceColumn(node.table, name)})
        if inner is None
        else inner.get(name, _NONE)
        for name in node.names
    }


@_made.register
def _(node: ir.Values, parts: _Parts) -> _Made:
    return dict.fromkeys(node.columns, _NONE)


@_made.register(ir.Filter)
@_made.register(ir.Distinct)
@_made.register(ir.Limit)
def _(node: ir.Filter | ir.Distinct | ir.Limit, parts: _Parts) -> _Made:
    return _made(node.child, parts)


@_made.register(ir.Projection)
@_made.register(ir.Aggregate)
@_made.register(ir.Window)
def _(node: ir.Projection | ir.Aggregate | ir.Window, parts: _Parts) -> _Made:
    below = _made(node.child, parts)
    return below | {ref: _of(expression, below) for ref, expression in node.made.items()}


@_made.register
def _(node: ir.Generate, parts: _Parts) -> _Made:
    below = _made(node.child, parts)
    return below | dict.fromkeys(
        (Ref(node.relation, name) for name in node.names),
        _all(below.get(ref, _NONE) for ref in node.made_of),
    )


@_made.register
def _(node: ir.Join, parts: _Parts) -> _Made:
    made = _made(node.left, parts) | _made(node.right, parts)
    made |= {ref: made[pair.left] | made[pair.right] for ref, pair in node.merged}
    if node.value is not None:
        made[node.value] = _all(made.get(ref, _NONE) for ref in node.made_of)
    return made


@_made.register
def _(node: ir.SetOp, parts: _Parts) -> _Made:
    columns = node.columns
    branches = [
        [_made(branch, parts)[ref] for ref in branch_columns(node, branch, columns) if ref]
        for branch in node.branches
    ]
    return {ref: _all(each) for ref, *each in zip(columns, *branches, strict=True)}
