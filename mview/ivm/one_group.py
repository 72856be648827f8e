"""Aggregates over all rows, written as values of subqueries.

`SELECT count(DISTINCT x) FROM t` has one group, so any change would need all rows. Written as
`(SELECT count(__x0) FROM (SELECT DISTINCT x AS __x0 FROM t))` the DISTINCT touches the changed
values of x only, and the count over it is added up. Of several columns count takes the rows in
which none is NULL: `(SELECT count(*) FROM (SELECT DISTINCT …) WHERE __x0 IS NOT NULL AND …)`.

An expression that cannot be computed from a state table is left as the user wrote it, over values
that can: `datediff((SELECT max(d) FROM t), (SELECT min(d) FROM t))`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from mview.plan.build import if_accepted
from mview.plan.definition import ViewDefinition
from mview.plan.faithful import is_faithful
from mview.plan.functions import aggregate_calls, windows
from mview.plan.pieces import Pieces, end_of_call
from mview.plan.place import Edit, edited
from mview.schema import TableSchema

#: What is added up, or kept, without reading rows again.
_KEPT = (
    exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.ArgMin, exp.ArgMax, exp.CountIf,
    exp.LogicalOr, exp.LogicalAnd,
)  # fmt: skip


def without_calls_of_all_rows(
    definition: ViewDefinition, schemas: Mapping[str, TableSchema]
) -> ViewDefinition:
    """The query with aggregates over all rows as subqueries, where that is better.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    tree = definition.tree
    if not isinstance(tree, exp.Select) or not _is_one_group(tree):
        return definition
    pieces = Pieces.of(definition.sql, tree)
    calls = [c for one in tree.expressions for c in aggregate_calls(one)]
    every = all(map(_is_kept, calls)) and not all(map(_is_over_state, tree.expressions))
    edits = [_edit(one, pieces) for one in calls if every or _is_distinct(one)]
    if not edits or None in edits:
        return definition
    if len(edits) == len(calls):
        # Nothing is left to aggregate: the values are a row without FROM.
        edits.append((pieces.from_start, pieces.body_end, ""))
    changed = definition.with_sql(edited(definition.sql, filter(None, edits)))
    return if_accepted(changed, definition, schemas)


def _is_one_group(tree: exp.Select) -> bool:
    clauses = ("group", "having", "qualify", "order", "limit", "offset", "distinct", "windows")
    return tree.args.get("from_") is not None and not (
        any(tree.args.get(name) for name in clauses)
        or any(windows(one) for one in tree.expressions)
    )


def _is_distinct(call: exp.Expr) -> bool:
    core = call.this if isinstance(call, exp.Filter) else call
    kinds = (exp.Count, exp.Sum, exp.Avg)
    return isinstance(core, kinds) and isinstance(core.this, exp.Distinct)


def _is_kept(call: exp.Expr) -> bool:
    return isinstance(call.this if isinstance(call, exp.Filter) else call, _KEPT)


def _is_over_state(item: exp.Expr) -> bool:
    """Whether what stands around the calls of an item can be written again over a state table."""
    around = exp.paren(item.copy())
    for node in list(around.find_all(exp.Subquery, *_KEPT)):
        whole = node.parent if isinstance(node.parent, exp.Filter) else node
        whole.replace(exp.null())
    bare = around.this.this if isinstance(around.this, exp.Alias) else around.this
    return is_faithful(bare) and bare.find(exp.Anonymous) is None


def _edit(call: exp.Expr, pieces: Pieces) -> Edit | None:
    """The place of a call, and the subquery that has its value."""
    core = call.this if isinstance(call, exp.Filter) else call
    condition = pieces.condition(call) if isinstance(call, exp.Filter) else ""
    inside, index = pieces.argument(core), pieces.index_of(core)
    if inside is None or condition is None or index is None:
        return None
    start, end = pieces.tokens[index].start, end_of_call(pieces.tokens, index, over=False)
    if not _is_distinct(core):
        # A line break: the body may end in a comment.
        return start, end, f"(SELECT {pieces.sql[start:end]} AS value {pieces.body}\n)"
    names, rows = _different_rows(inside, condition, pieces.body)
    if len(names) == 1:
        name = pieces.tokens[index].text
        return start, end, f"(SELECT {name}({names[0]}) AS value FROM ({rows}\n))"
    if not isinstance(core, exp.Count):
        return None
    complete = " AND ".join(f"{name} IS NOT NULL" for name in names)
    return start, end, f"(SELECT count(*) AS value FROM ({rows}\n) WHERE {complete})"


def _different_rows(inside: str, condition: str, body: str) -> tuple[list[str], str]:
    """The names of what stands after DISTINCT in a call, and the query of its different rows.

    To the call a row that FILTER leaves out is one of NULLs, which it leaves out, too.
    """
    pieces = Pieces(f"SELECT {inside} {body}", exp.Select())
    assert pieces.from_ is not None
    texts = [pieces.text(one) for one in pieces.split(pieces.select + 2, pieces.from_)]
    if condition:
        texts = [f"CASE WHEN {condition} THEN ({one}) END" for one in texts]
    names = [f"__x{i}" for i in range(len(texts))]
    listed = (f"{text} AS {name}" for text, name in zip(texts, names, strict=True))
    return names, f"SELECT DISTINCT {', '.join(listed)} {body}"
