"""Lists that an aggregate collects: sorted, as Spark leaves their order open.

Two runs of `collect_list(x)` over the same rows may differ, so a view of it could not be compared
with its batch query. Sorted, it is one of the results that Spark may give, and always the same.
"""

from __future__ import annotations

from sqlglot import exp

from mview.plan.functions.effects import function_name

_LISTS = frozenset(["collect_list", "array_agg", "collect_set"])


def sort_lists(tree: exp.Query) -> None:
    """Put `sort_array(…)` around what collects a list in no order, in a tree."""
    for call in [node for node in tree.walk() if function_name(node) in _LISTS]:
        if _has_order(call):
            continue
        whole = call
        while isinstance(whole.parent, exp.Filter | exp.Window) and whole.arg_key == "this":
            whole = whole.parent
        sorted_ = exp.Anonymous(this="sort_array")
        whole.replace(sorted_)
        sorted_.append("expressions", whole)


def _has_order(call: exp.Expr) -> bool:
    """Whether the list is sorted right away, or collected along the order of a window."""
    above = call.parent
    if isinstance(above, exp.Filter):
        above = above.parent
    if not isinstance(above, exp.Window):
        return isinstance(above, exp.ArraySort)
    select = above.find_ancestor(exp.Select)
    named = (select.args.get("windows") or []) if select is not None else []
    same = [window for window in named if window.name.lower() == above.alias.lower()]
    return any(window.args.get("order") is not None for window in (above, *same))
