"""Aggregates over a window of all rows, written as values of subqueries.

`sum(x) OVER ()` is the same for every row: `(SELECT sum(x) FROM …)`, over the same FROM and WHERE.
So is one whose PARTITION BY has only constants. As a value it is kept by itself, and rows are only
read in epochs that change it. Over groups the rows are the groups that HAVING leaves:
`sum(sum(x)) OVER ()` is `(SELECT sum(__x) FROM (SELECT sum(x) AS __x FROM … GROUP BY … HAVING …))`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from mview.plan.definition import ViewDefinition
from mview.plan.functions.effects import aggregate_calls, generator, windows
from mview.plan.operators.build import if_accepted
from mview.plan.text.query import named, select_from, select_over
from mview.relation import RelationId
from mview.schema import TableSchema


def without_whole_windows(
    definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]
) -> ViewDefinition:
    """The query with its aggregates over all rows as subqueries, where it has some.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    query = definition.tree
    if not isinstance(query, exp.Select) or not _is_over_rows_or_groups(query):
        return definition
    tree = query.copy()
    whole = [window for item in tree.expressions for window in windows(item) if _is_whole(window)]
    if not whole or (query.args.get("group") is not None and _means_the_list(query)):
        return definition
    for window in whole:
        window.replace(exp.Subquery(this=_value(window.this, query)))
    return if_accepted(definition.with_tree(tree), definition, schemas)


def _is_over_rows_or_groups(tree: exp.Select) -> bool:
    """Whether the windows see the rows of FROM and WHERE, or groups of them."""
    clauses = ("qualify", "windows", "laterals")
    if tree.args.get("from_") is None or any(tree.args.get(name) for name in clauses):
        return False
    if any(map(generator, tree.expressions)):
        return False  # they see the rows that it makes
    if tree.args.get("group") is not None:
        return True
    return tree.args.get("having") is None and not any(
        aggregate_calls(item) for item in tree.expressions
    )


def _is_whole(window: exp.Window) -> bool:
    constant = all(
        isinstance(value, exp.Literal) for value in window.args.get("partition_by") or ()
    )
    plain = not any(window.args.get(name) for name in ("order", "spec", "alias"))
    kinds = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
    return plain and constant and isinstance(window.this, kinds)


def _value(call: exp.Expr, query: exp.Select) -> exp.Select:
    """The query of the value that a call over all rows, or over all groups, has."""
    call = call.copy()
    if query.args.get("group") is None:
        return select_over(query, [named(call, "value")])
    if isinstance(call.this, exp.Star):
        item = exp.Literal.number(1)
    else:
        item = call.this
        call.set("this", exp.column("__x"))
    groups = select_over(query, [named(item, "__x")], "group", "having")
    return select_from(groups, [named(call, "value")])


def _means_the_list(query: exp.Select) -> bool:
    """Whether GROUP BY and what follows may mean items of the select list, by name or by number."""
    group = query.args["group"]
    clauses = [query.args[name] for name in ("group", "having", "order") if query.args.get(name)]
    names = {place.name.lower() for clause in clauses for place in clause.find_all(exp.Identifier)}
    numbers = any(place.is_int for place in group.find_all(exp.Literal))
    aliases = {item.alias.lower() for item in query.expressions if item.alias}
    return bool(numbers or group.args.get("all") or names & aliases)
