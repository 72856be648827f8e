"""Lists that an aggregate collects: sorted, as Spark leaves their order open.

Two runs of `collect_list(x)` over the same rows may differ, so a view of it could not be compared
with its batch query. Sorted, it is one of the results that Spark may give, and always the same.
"""

from __future__ import annotations

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from mview.plan.functions import function_name
from mview.plan.pieces import Pieces, word_of
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
        end = _end(tokens, next(i for i, one in enumerate(tokens) if one.start == start))
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


def _end(tokens: list[Token], name: int) -> int:
    """The character after a call with its FILTER and OVER."""
    last = _closing(tokens, name + 1)
    while last + 1 < len(tokens) and word_of(tokens[last + 1]) in ("FILTER", "OVER"):
        # OVER may be followed by a name alone.
        last = _closing(tokens, last + 2)
    return tokens[last].end + 1


def _closing(tokens: list[Token], first: int) -> int:
    """The index of the parenthesis that closes the one at an index."""
    depth = 0
    for index in range(first, len(tokens)):
        depth += {"(": 1, ")": -1}.get(word_of(tokens[index]), 0)
        if depth == 0:
            return index
    raise ValueError("a parenthesis is open")
