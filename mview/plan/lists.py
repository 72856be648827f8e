"""Lists that an aggregate collects: sorted, as Spark leaves their order open.

Two runs of `collect_list(x)` over the same rows may differ, so a view of it could not be compared
with its batch query. Sorted, it is one of the results that Spark may give, and always the same.
"""

from __future__ import annotations

from sqlglot import exp

from mview.plan.functions import function_name
from mview.plan.pieces import Pieces, end_of_call
from mview.plan.place import Edit

_LISTS = frozenset(["collect_list", "array_agg", "collect_set"])


def sorting_edits(sql: str, tree: exp.Query) -> list[Edit]:
    """Edits that put `sort_array(…)` around what collects a list in no order.

    Args:
        sql: the text.
        tree: the same, parsed.
    """
    calls = [node for node in tree.walk() if function_name(node, sql) in _LISTS]
    open_ = [node for node in calls if not _has_order(node)]
    if not open_:
        return []
    tokens = Pieces.of(sql, tree).tokens
    edits: list[Edit] = []
    for node in open_:
        start = node.meta["start"]
        end = end_of_call(tokens, next(i for i, one in enumerate(tokens) if one.start == start))
        edits += [(start, start, "sort_array("), (end, end, ")")]
    return edits


def _has_order(call: exp.Expr) -> bool:
    """Whether the list is sorted right away, or collected along the order of a window."""
    above = call.parent
    if isinstance(above, exp.Filter):
        above = above.parent
    if not isinstance(above, exp.Window):
        return isinstance(above, exp.ArraySort)
    select = above.find_ancestor(exp.Select)
    named = (select.args.get("windows") or []) if select is not None else []
    same = [one for one in named if one.name.lower() == above.alias.lower()]
    return any(one.args.get("order") is not None for one in (above, *same))
