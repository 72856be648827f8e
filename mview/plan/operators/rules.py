"""Rewrites Node -> Node: only what tracing needs, as evaluation uses the query itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch

from sqlglot import exp

from mview.plan.operators import ir
from mview.plan.operators.from_clause import pair_of


def with_children(node: ir.Node, children: tuple[ir.Node, ...]) -> ir.Node:
    """The node over other inputs."""
    if children == node.children:
        return node
    if isinstance(node, ir.Join):
        return replace(node, left=children[0], right=children[1])
    if isinstance(node, ir.SetOp):
        return replace(node, branches=children)
    if isinstance(node, ir.Unary):
        return replace(node, child=children[0])
    raise TypeError(f"no other inputs for {type(node).__name__}")


def join_by_equalities(node: ir.Node) -> ir.Node:
    """Turn a region of inner joins and filters into joins along its equalities.

    `FROM a, b, c WHERE a.x = b.x AND b.y = c.y` has a cross join of a and b in the tree; here each
    relation is joined to one that an equality connects it with, wherever the equality was written.
    """
    if not isinstance(node, ir.Filter) and not _is_inner(node):
        return node
    leaves, predicates = _region(node)
    if len(leaves) < 2:
        return node
    joined, rest = leaves[0], leaves[1:]
    while rest:
        connected = [leaf for leaf in rest if _pairs(predicates, joined, leaf)]
        leaf = connected[0] if connected else rest[0]
        rest.remove(leaf)
        pairs = tuple(dict.fromkeys(_pairs(predicates, joined, leaf)))
        residual = tuple(predicate for predicate in predicates if _spans(predicate, joined, leaf))
        joined = ir.Join(joined, leaf, "inner", pairs, residual)
    local = [expr for expr in predicates if len(_leaves_of(expr, leaves)) < 2]
    for predicate in local:
        joined = ir.Filter(joined, predicate)
    return joined


def _is_inner(node: ir.Node) -> bool:
    return isinstance(node, ir.Join) and node.kind == "inner"


def _region(node: ir.Node) -> tuple[list[ir.Node], list[exp.Expr]]:
    """The inputs of a region of inner joins, and all its predicates."""
    if isinstance(node, ir.Filter):
        leaves, predicates = _region(node.child)
        return leaves, [*predicates, node.condition]
    if isinstance(node, ir.Join) and node.kind == "inner" and not node.merged:
        left, right = _region(node.left), _region(node.right)
        pairs = [_equality(pair) for pair in node.pairs]
        return left[0] + right[0], [*left[1], *right[1], *pairs, *node.residual]
    return [node], []


def _equality(pair: ir.Pair) -> exp.Expr:
    kind = exp.NullSafeEQ if pair.null_safe else exp.EQ
    return kind(this=ir.column(pair.left), expression=ir.column(pair.right))


def _leaves_of(predicate: exp.Expr, leaves: list[ir.Node]) -> list[int]:
    refs = {ir.as_ref(node) for node in predicate.walk() if isinstance(node, exp.Column)}
    return [i for i, leaf in enumerate(leaves) if refs & set(leaf.columns)]


def _pairs(predicates: list[exp.Expr], left: ir.Node, right: ir.Node) -> list[ir.Pair]:
    pairs = (pair_of(predicate, left, right) for predicate in predicates)
    return [pair for pair in pairs if pair is not None]


def _spans(predicate: exp.Expr, left: ir.Node, right: ir.Node) -> bool:
    """Whether the predicate is about both sides, and is no plain equality."""
    refs = {ir.as_ref(node) for node in predicate.walk() if isinstance(node, exp.Column)}
    both = bool(refs & set(left.columns)) and bool(refs & set(right.columns))
    inside = refs <= {*left.columns, *right.columns}
    return both and inside and pair_of(predicate, left, right) is None


def pass_through_project(node: ir.Node) -> ir.Node:
    """Drop a projection that only passes through another projection's columns in order."""
    if isinstance(node, ir.Projection) and isinstance(node.child, ir.Projection):
        refs = [ir.as_ref(expression) for _, expression in node.items]
        inner = dict(node.child.items)
        if refs == list(node.child.columns):
            names = [name for name, _ in node.items]
            items = zip(names, inner.values(), strict=True)
            return replace(node.child, relation=node.relation, items=tuple(items))
    return node


def lift_values(node: ir.Node) -> ir.Node:
    """Attach a value that only HAVING or the select list uses after the aggregate, not before."""
    if not isinstance(node, ir.Aggregate):
        return node
    used = {
        ir.as_ref(part)
        for _, expr in (*node.group, *node.aggregates)
        for part in expr.walk()
        if isinstance(part, exp.Column)
    }
    lifted: list[ir.Join] = []
    child = node.child
    while isinstance(child, ir.Join) and _is_lone_value(child) and child.value not in used:
        lifted.append(child)
        child = child.left
    above: ir.Node = replace(node, child=child) if lifted else node
    for join in reversed(lifted):
        above = replace(join, left=above)
    return above


def _is_lone_value(join: ir.Join) -> bool:
    return join.kind == "mark" and not (join.pairs or join.residual or join.null_aware)


def drop_idle_limit(node: ir.Node) -> ir.Node:
    """Drop `LIMIT n` over what has one row at most."""
    if not isinstance(node, ir.Limit) or not _IDLE_LIMIT.fullmatch(node.text):
        return node
    return node.child if _has_one_row(node.child) else node


#: LIMIT or FETCH of a positive number; OFFSET may drop the only row.
_IDLE_LIMIT = re.compile(r"LIMIT 0*[1-9]\d*", re.IGNORECASE)


@singledispatch
def _has_one_row(node: ir.Node) -> bool:
    """Whether a node never has more than one row, as far as it is looked at."""
    raise TypeError(f"no number of rows of {type(node).__name__}")


@_has_one_row.register
def _(node: ir.Aggregate) -> bool:
    return not node.group


@_has_one_row.register
def _(node: ir.Join) -> bool:
    sides = node.children[:1] if node.kind == "mark" else node.children
    return all(_has_one_row(side) for side in sides)


@_has_one_row.register(ir.Filter)
@_has_one_row.register(ir.Projection)
@_has_one_row.register(ir.Window)
@_has_one_row.register(ir.Distinct)
def _(node: ir.Filter | ir.Projection | ir.Window | ir.Distinct) -> bool:
    return _has_one_row(node.child)


@_has_one_row.register(ir.Scan)
@_has_one_row.register(ir.Values)
@_has_one_row.register(ir.Limit)
@_has_one_row.register(ir.Generate)
@_has_one_row.register(ir.SetOp)
def _(node: ir.Node) -> bool:
    return False


#: Applied bottom-up, in this order, once.
RULES: tuple[Callable[[ir.Node], ir.Node], ...] = (
    drop_idle_limit,
    pass_through_project,
    join_by_equalities,
    lift_values,
)


def rewrite(node: ir.Node) -> ir.Node:
    """The node with all rules applied, inputs first; a region of joins is rebuilt at its top."""
    for rule in RULES:
        node = _apply(rule, node)
    return node


def _apply(rule: Callable[[ir.Node], ir.Node], node: ir.Node) -> ir.Node:
    if rule is join_by_equalities and (isinstance(node, ir.Filter) or _is_inner(node)):
        leaves, _ = _region(node)
        if len(leaves) > 1:
            return _replace_leaves(rule(node), {leaf: _apply(rule, leaf) for leaf in leaves})
    return rule(with_children(node, tuple(_apply(rule, child) for child in node.children)))


def _replace_leaves(node: ir.Node, leaves: dict[ir.Node, ir.Node]) -> ir.Node:
    if node in leaves:
        return leaves[node]
    return with_children(node, tuple(_replace_leaves(child, leaves) for child in node.children))
