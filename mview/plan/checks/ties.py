"""Results that depend on the order in which rows are read: refused, as no view can be right then.

Two runs of such a query over the same rows may differ, so neither the view nor `verify` could say
which one is right. Lists are put in order instead (functions/lists.py).
"""

from __future__ import annotations

from sqlglot import exp

from mview.plan.functions.effects import aggregate_calls, function_name, generator
from mview.plan.text.place import Text, span

_ANY = frozenset(["first", "last", "first_value", "last_value", "any_value"])


def check_order(text: Text, tree: exp.Query) -> None:
    """Make sure that every aggregate gives the same, in whatever order the rows come.

    Raises:
        UserError: one does not; with line, column and what to write.
    """
    for node in tree.walk():
        if isinstance(node, exp.Limit | exp.Offset) and _takes_any(node):
            raise text.error(
                f"{node.key.upper()} without ORDER BY takes any of the rows (ORDER_DEPENDENT)",
                span(node),
                hint="add ORDER BY with columns that no two rows have alike",
            )
        name = function_name(node)
        if name in _ANY and not _along_a_window(node):
            raise text.error(
                f"{name}() takes any of the rows (ORDER_DEPENDENT)",
                span(node),
                hint="min(x), max(x), or the x of the first row: min_by(x, <order>)",
            )
        if name == "mode" and not (_second_is_true(node) or _within(node) is not None):
            raise text.error(
                "mode() takes any of the values that are equally frequent (ORDER_DEPENDENT)",
                span(node),
                hint="mode(x, true) takes the least of them",
            )
        if isinstance(node, exp.GroupConcat) and not _orders_its_own(node):
            raise text.error(
                "listagg() in an order that is not that of its values (ORDER_DEPENDENT)",
                span(node),
                hint="listagg(x, ',') WITHIN GROUP (ORDER BY x)",
            )


def _takes_any(limit: exp.Expr) -> bool:
    """Whether it matters which rows a LIMIT takes, and no order says it."""
    query = limit.parent
    if query is None or query.args.get("order") is not None:
        return False
    # EXISTS asks for any row at all.
    return not isinstance(query.parent, exp.Exists) and not _is_one_row(query)


def _is_one_row(query: exp.Expr) -> bool:
    """Whether a query never has more than one row: it aggregates all rows, or such rows."""
    if isinstance(query, exp.Subquery):
        return _is_one_row(query.this)
    if not isinstance(query, exp.Select) or query.args.get("group") is not None:
        return False
    if any(map(generator, query.expressions)):
        return False
    if any(aggregate_calls(item) for item in query.expressions):
        return True
    from_ = query.args.get("from_")
    joined = [join.this for join in query.args.get("joins") or []]
    return from_ is None or all(_is_one_row(source) for source in (from_.this, *joined))


def _along_a_window(node: exp.Expr) -> bool:
    above = node.parent
    while isinstance(above, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        above = above.parent
    if not isinstance(above, exp.Window):
        return False
    select = above.find_ancestor(exp.Select)
    named = (select.args.get("windows") or []) if select is not None else []
    same = [window for window in named if window.name.lower() == above.alias.lower()]
    return any(window.args.get("order") is not None for window in (above, *same))


def _within(node: exp.Expr) -> exp.WithinGroup | None:
    return node.parent if isinstance(node.parent, exp.WithinGroup) else None


def _second_is_true(node: exp.Expr) -> bool:
    second = [*node.iter_expressions()][1:2]
    return bool(second) and isinstance(second[0], exp.Boolean) and bool(second[0].this)


def _orders_its_own(node: exp.GroupConcat) -> bool:
    order = node.this
    if not isinstance(order, exp.Order):
        return False
    # DISTINCT must be ordered by its own value, says Spark.
    own = order.this.expressions[0] if isinstance(order.this, exp.Distinct) else order.this
    return any(item.this == own for item in order.expressions)
