"""What Spark functions do to rows: which aggregate, which generate, which change by themselves."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from mview.plan.functions.names import AGGREGATES, GENERATORS
from mview.plan.text.dialect import called_as

#: Results change with the time: they are those of an epoch's pinned time (mview/plan/clocks.py).
#: `unix_timestamp()` is read as `unix_timestamp(current_timestamp())`.
TIME = frozenset(
    ["current_date", "curdate", "current_timestamp", "current_time", "now", "localtimestamp"]
)
_WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_CLASSES: dict[type[exp.Expr], str] = {
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
    exp.Rand: "rand",
    exp.Randn: "randn",
}


def function_name(node: exp.Expr) -> str | None:
    """The function's name as the user wrote it, in lower case; None when not a function call."""
    if not isinstance(node, exp.Func) or isinstance(node, exp.And | exp.Or):
        return None
    called = called_as(node)
    if called is not None:
        return called.name
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    return _CLASSES.get(type(node), node.sql_name().lower())


def is_aggregate(node: exp.Expr) -> bool:
    """Whether the node is a call of an aggregate function (also inside a window)."""
    return isinstance(node, exp.AggFunc) or function_name(node) in AGGREGATES


def walk(expression: exp.Expr) -> Iterator[exp.Expr]:
    """All nodes of an expression without going into its subqueries."""
    yield from expression.walk(prune=lambda node: isinstance(node, exp.Query))


def aggregate_calls(expression: exp.Expr) -> list[exp.Expr]:
    """The outermost aggregate calls, with FILTER and such around them, that are not windowed."""
    if isinstance(expression, exp.Query):
        return []
    if isinstance(expression, exp.Window):
        parts = [*expression.args.get("partition_by", [])]
        order = expression.args.get("order")
        call = expression.this
        while isinstance(call, _WRAPPERS):
            call = call.this
        inside = [*call.iter_expressions(), *parts, *([order] if order else [])]
        return [call for part in inside for call in aggregate_calls(part)]
    core = expression
    while isinstance(core, _WRAPPERS):
        core = core.this
    if is_aggregate(core):
        return [expression]
    return [call for part in expression.iter_expressions() for call in aggregate_calls(part)]


def windows(expression: exp.Expr) -> list[exp.Window]:
    """The window calls of an expression, outermost first."""
    return [node for node in walk(expression) if isinstance(node, exp.Window)]


def generator(expression: exp.Expr) -> exp.Expr | None:
    """The call in an expression that makes rows of one, such as explode(xs), if there is one."""
    return next((node for node in walk(expression) if function_name(node) in GENERATORS), None)


def subqueries(expression: exp.Expr) -> list[exp.Expr]:
    """The outermost predicates and values that hold a subquery: EXISTS, IN, or a scalar one."""
    if isinstance(expression, exp.Exists) and isinstance(expression.this, exp.Query):
        return [expression]
    if isinstance(expression, exp.In) and expression.args.get("query") is not None:
        return [expression]
    if isinstance(expression, exp.Query):
        return [expression]
    return [query for part in expression.iter_expressions() for query in subqueries(part)]


def conjuncts(expression: exp.Expr) -> list[exp.Expr]:
    """The parts of an AND; of an OR, also what all its branches have in common."""
    expression = expression.unnest()
    if isinstance(expression, exp.And):
        return conjuncts(expression.left) + conjuncts(expression.right)
    if isinstance(expression, exp.Or):
        left, right = conjuncts(expression.left), conjuncts(expression.right)
        return [expression, *(conjunct for conjunct in left if conjunct in right)]
    return [expression]
