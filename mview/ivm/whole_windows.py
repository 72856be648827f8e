"""Aggregates over a window of all rows, written as values of subqueries.

`sum(x) OVER ()` is the same for every row: `(SELECT sum(x) FROM …)`, over the same FROM and WHERE.
So is one whose PARTITION BY has only constants. As a value it is kept by itself, and rows are only
read in epochs that change it. Over groups the rows are the groups that HAVING leaves:
`sum(sum(x)) OVER ()` is `(SELECT sum(__x) FROM (SELECT sum(x) AS __x FROM … GROUP BY … HAVING …))`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from mview.plan.build import if_accepted
from mview.plan.definition import ViewDefinition
from mview.plan.functions import aggregate_calls, windows
from mview.plan.pieces import Pieces, end_of_call
from mview.plan.place import Edit, edited
from mview.schema import TableSchema


def without_whole_windows(
    definition: ViewDefinition, schemas: Mapping[str, TableSchema]
) -> ViewDefinition:
    """The query with its aggregates over all rows as subqueries, where it has some.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    tree = definition.tree
    if not isinstance(tree, exp.Select) or not _is_over_rows_or_groups(tree):
        return definition
    pieces = Pieces.of(definition.sql, tree)
    found = (one for item in tree.expressions for one in windows(item) if _is_whole(one))
    edits = [edit for one in found if (edit := _edit(one, pieces)) is not None]
    if not edits:
        return definition
    changed = definition.with_sql(edited(definition.sql, edits))
    return if_accepted(changed, definition, schemas)


def _is_over_rows_or_groups(tree: exp.Select) -> bool:
    """Whether the windows see the rows of FROM and WHERE, or groups of them."""
    clauses = ("qualify", "windows", "laterals")
    if tree.args.get("from_") is None or any(tree.args.get(name) for name in clauses):
        return False
    if tree.args.get("group") is not None:
        return True
    return tree.args.get("having") is None and not any(
        aggregate_calls(one) for one in tree.expressions
    )


def _is_whole(window: exp.Window) -> bool:
    constant = all(isinstance(one, exp.Literal) for one in window.args.get("partition_by") or ())
    plain = not any(window.args.get(name) for name in ("order", "spec", "alias"))
    kinds = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
    return plain and constant and isinstance(window.this, kinds)


def _edit(window: exp.Window, pieces: Pieces) -> Edit | None:
    """The place of a call with its OVER, and the subquery that has its value."""
    index = pieces.index_of(window.this)
    if index is None or pieces.argument(window.this) is None:
        return None
    start = pieces.tokens[index].start
    end, over = end_of_call(pieces.tokens, index), end_of_call(pieces.tokens, index, over=False)
    if pieces.group is None:
        # A line break: the body may end in a comment.
        return start, end, f"(SELECT {pieces.sql[start:over]} AS value {pieces.body}\n)"
    if _means_the_list(pieces, pieces.group):
        return None
    inside = pieces.argument(window.this)
    name = pieces.tokens[index].text
    item, value = ("1", f"{name}(*)") if inside == "*" else (inside, f"{name}(__x)")
    tail = pieces.sql[pieces.tokens[pieces.group].start : pieces.having_end]
    rows = f"SELECT {item} AS __x {pieces.body} {tail}"
    return start, end, f"(SELECT {value} AS value FROM ({rows}\n))"


def _means_the_list(pieces: Pieces, group: int) -> bool:
    """Whether GROUP BY and HAVING may mean items of the select list, by name or by number."""
    words = [one for one in pieces.tokens[group + 1 :] if one.token_type != TokenType.STRING]
    names = {one.text.lower() for one in words}
    numbers = any(one.text.isdigit() for one in pieces.tokens[group + 1 : pieces.group_end])
    return numbers or bool(names & (pieces.aliases | {"all"}))
