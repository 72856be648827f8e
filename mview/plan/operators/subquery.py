"""Subqueries as joins: EXISTS and IN as semi and anti joins, scalar ones as `mark` joins.

A correlated subquery is a function of the inner rows at the correlation keys, whatever it computes
from them; so its right side is only its FROM and WHERE.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, NamedTuple

from sqlglot import exp

from mview.plan.functions.effects import aggregate_calls, subqueries, windows
from mview.plan.operators import ir
from mview.plan.operators.from_clause import pairs_of
from mview.plan.operators.ir import Pair, Ref, Unsupported
from mview.plan.operators.orderings import limit_ordering
from mview.plan.operators.scope import Scope
from mview.plan.operators.select import core_of_select, finish_select
from mview.plan.text.place import span

if TYPE_CHECKING:
    from mview.plan.operators.build import Builder, Ctes


def filter_by_subquery(
    builder: Builder, node: ir.Node, scope: Scope, part: exp.Expr, ctes: Ctes
) -> ir.Node:
    """One condition of WHERE that holds a subquery."""
    inner, negated = part, False
    while isinstance(inner, exp.Paren | exp.Not):
        negated ^= isinstance(inner, exp.Not)
        inner = inner.this
    if isinstance(inner, exp.Exists | exp.In) and inner in subqueries(inner):
        return _join(builder, node, scope, inner, ctes, "anti" if negated else "semi")
    node, plain = attach_subqueries(builder, node, scope, part, ctes, filters=True)
    return ir.Filter(node, builder.bind(plain, scope))


def attach_subqueries(
    builder: Builder,
    node: ir.Node,
    scope: Scope,
    expression: exp.Expr,
    ctes: Ctes,
    *,
    filters: bool = False,
) -> tuple[ir.Node, exp.Expr]:
    """Replace the subqueries of an expression by columns of `mark` joins.

    Args:
        builder: of the view.
        node: the rows the expression is for.
        scope: names in reach.
        expression: not bound yet.
        ctes: in reach.
        filters: the expression is a condition of WHERE: NULL and false drop a row alike.
    """
    if not subqueries(expression):
        return node, expression
    copied = expression.copy()
    for query in subqueries(copied):
        two_valued = filters and is_condition(query)
        # What stands twice is one value: GROUP BY and the select list may both have it.
        content = (folded(query), two_valued)
        ref = scope.values.get(content)
        if ref is None or ref not in node.columns:
            node = _join(builder, node, scope, query, ctes, "mark", two_valued)
            ref = scope.values[content] = node.value
        assert ref is not None
        value = ir.column(ref)
        value.meta.update(bound=True, place=span(query))
        if query is copied:
            copied = value
        else:
            query.replace(value)
    return node, copied


def folded(query: exp.Expr) -> exp.Expr:
    """The query with names as Spark compares them."""
    copied = query.copy()
    for name in copied.find_all(exp.Identifier):
        name.replace(exp.to_identifier(name.name.lower(), quoted=True))
    return copied


def is_condition(expression: exp.Expr) -> bool:
    """Whether only AND and OR stand between an expression and its clause: NULL acts like false."""
    above = expression.parent
    while isinstance(above, exp.Paren | exp.And | exp.Or):
        above = above.parent
    return above is None or isinstance(above, exp.Where | exp.Having | exp.Qualify)


def _join(
    builder: Builder,
    node: ir.Node,
    scope: Scope,
    expr: exp.Expr,
    ctes: Ctes,
    kind: ir.JoinKind,
    is_true_only: bool = False,
) -> ir.Join:
    query = expr.args["query"] if isinstance(expr, exp.In) else expr
    query = _any_row_of(query.this) if isinstance(query, exp.Exists) else query
    while isinstance(query, exp.Subquery) and not query.args.get("with_"):
        query = query.this
    value = Ref(builder.fresh("subquery"), "value") if kind == "mark" else None
    inner = _inner(builder, query, scope, ctes)
    right, output, made_of = inner.node, inner.output, inner.made_of
    pairs, residual = pairs_of(inner.correlated, node, right)
    null_aware = False
    two_valued = kind == "semi" or is_true_only
    if isinstance(expr, exp.In):
        left = builder.bind(expr.this, scope)
        made_of = (*ir.refs_of(left), *made_of)
        pair = _in_pair(left, output, node, right)
        if pair is None:
            residual = (*residual, exp.In(this=left, expressions=[exp.Star()]))
        elif two_valued or not (_nullable(node, pair.left) or _nullable(right, pair.right)):
            pairs = tuple(dict.fromkeys((*pairs, pair)))
        elif not pairs:
            pairs, null_aware = (pair,), True
    made_of = made_of if value else ()
    return ir.Join(node, right, kind, pairs, residual, (), null_aware, value, made_of)


def _any_row_of(query: exp.Expr) -> exp.Expr:
    """What EXISTS asks, without a LIMIT that leaves it a row: it is no matter which."""
    limit = query.args.get("limit")
    number = limit.expression if isinstance(limit, exp.Limit) else None
    idle = isinstance(number, exp.Literal) and number.name.strip("0") != ""
    if not idle or query.args.get("offset") is not None:
        return query
    query = query.copy()
    query.set("limit", None)
    return query


def rows_beside(
    builder: Builder, node: ir.Node, scope: Scope, query: exp.Expr, ctes: Ctes
) -> tuple[ir.Join, list[str]]:
    """The rows of a node, each with the rows from which a LATERAL subquery is made for it.

    Returns:
        The join, whose columns are those of the node, and which says what the rows are made of; the
        names of the subquery's columns.
    """
    while isinstance(query, exp.Subquery) and not query.args.get("with_"):
        query = query.this
    if not isinstance(query, exp.Select):
        raise Unsupported("LATERAL", "LATERAL over a set operation", "write it as a join")
    seen = builder.with_ctes(query, ctes)
    core = core_of_select(builder, query, seen, scope)
    base = core.node
    finished, columns = finish_select(builder, query, core, seen)
    builder.see(limit_ordering(query, finished, columns, core.scope))
    alone = not core.correlated and not core.scope.outer
    right = builder.limited(query, finished) if alone else _all_of(base, finished)
    made_of = tuple(dict.fromkeys(ref for _, ref in columns)) if alone else ()
    for item in () if alone else query.expressions:
        plain = not item.is_star and not subqueries(item)
        made_of += ir.refs_of(builder.bind(item, core.scope)) if plain else right.columns
    pairs, residual = pairs_of(core.correlated, node, right)
    join = ir.Join(node, right, "mark", pairs, residual, made_of=made_of)
    return join, [name for name, _ in columns]


class _Inner(NamedTuple):
    """The right side, its correlated conditions; of its value: the columns, its own if plain."""

    node: ir.Node
    correlated: list[exp.Expr]
    made_of: tuple[Ref, ...]
    output: Ref | None


def _inner(builder: Builder, query: exp.Expr, scope: Scope, ctes: Ctes) -> _Inner:
    if not isinstance(query, exp.Select):
        built = builder.query(query, ctes)
        output = built.columns[0][1]
        return _Inner(built.node, [], (output,), output)
    seen = builder.with_ctes(query, ctes)
    core = core_of_select(builder, query, seen, scope)
    base, outer = core.node, set(core.scope.outer)
    node, columns = finish_select(builder, query, core, seen)
    builder.see(limit_ordering(query, node, columns, core.scope))
    if not core.correlated and not core.scope.outer:
        output = columns[0][1]
        return _Inner(builder.limited(query, node), [], (output,), output)
    if not core.correlated and core.scope.outer - outer and not outer:
        raise Unsupported(
            "CORRELATION",
            "a subquery that uses outer columns only in its select list",
            "use a join",
        )
    item = query.expressions[0].unalias()
    complex_ = (
        query.args.get("group")
        or query.args.get("limit")
        or windows(item)
        or aggregate_calls(item)
        or not isinstance(item, exp.Column)
        or not isinstance(item.this, exp.Identifier)
    )
    right = _all_of(base, node)
    if subqueries(item):
        return _Inner(right, core.correlated, right.columns, None)
    bound = builder.bind(item, core.scope)
    plain = None if complex_ else ir.as_ref(bound)
    return _Inner(right, core.correlated, ir.refs_of(bound), plain)


def _all_of(base: ir.Node, finished: ir.Node) -> ir.Node:
    """FROM and WHERE of a correlated subquery, when its result depends on nothing else."""
    if ir.scans(base) != ir.scans(finished):
        raise Unsupported(
            "CORRELATION",
            "a correlated subquery with another subquery in its select list, HAVING or ORDER BY",
            "use a join",
        )
    return base


def _in_pair(left: exp.Expr, output: Ref | None, node: ir.Node, right: ir.Node) -> Pair | None:
    ref = ir.as_ref(left)
    if ref is None or output is None or ref not in node.columns or output not in right.columns:
        return None
    return Pair(ref, output)


@singledispatch
def _nullable(node: ir.Node, ref: Ref) -> bool:
    """Whether a column may be NULL, as far as the schema says."""
    raise TypeError(f"no NULLs of {type(node).__name__}")


@_nullable.register
def _(node: ir.Scan, ref: Ref) -> bool:
    return ref.column not in node.not_null


@_nullable.register
def _(node: ir.Join, ref: Ref) -> bool:
    sides = {"left": (0, 1), "right": (1, 0), "full": (1, 1)}.get(node.kind, (0, 0))
    for side, extended in zip(node.children, sides, strict=True):
        if ref in side.columns:
            return bool(extended) or _nullable(side, ref)
    return True


@_nullable.register
def _(node: ir.Projection, ref: Ref) -> bool:
    source = ir.as_ref(dict(node.items)[ref.column])
    return source is None or _nullable(node.child, source)


@_nullable.register
def _(node: ir.Aggregate, ref: Ref) -> bool:
    source = ir.as_ref(dict((*node.group, *node.aggregates))[ref.column])
    return node.sets is not None or source is None or _nullable(node.child, source)


@_nullable.register(ir.Filter)
@_nullable.register(ir.Distinct)
@_nullable.register(ir.Limit)
def _(node: ir.Filter | ir.Distinct | ir.Limit, ref: Ref) -> bool:
    return _nullable(node.child, ref)


@_nullable.register(ir.Values)
@_nullable.register(ir.Window)
@_nullable.register(ir.Generate)
@_nullable.register(ir.SetOp)
def _(node: ir.Node, ref: Ref) -> bool:
    return True
