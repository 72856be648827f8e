"""NOT IN with NULLs, written so that a NULL on either side concerns few rows.

`x NOT IN (S)` is true when S is empty; else when x is not NULL, S has no NULL, and no row of S is
x. Whether S is empty and whether it has a NULL are values of all of S, which seldom change: they
are cut out as parts like any other value. What is left is NOT EXISTS with an equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from mview.errors import UserError
from mview.plan.definition import ViewDefinition
from mview.plan.operators import ir
from mview.plan.operators.build import build
from mview.plan.operators.ir import Unsupported
from mview.plan.operators.subquery import is_condition
from mview.plan.text.dialect import fragment
from mview.relation import RelationId
from mview.schema import TableSchema


def without_not_in(
    definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]
) -> ViewDefinition:
    """The query with every NOT IN that may meet a NULL rewritten, where that can be done.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    while _meets_null(build(definition, schemas).root):
        tree = _rewritten(definition.tree)
        if tree is None:
            return definition
        changed = definition.with_tree(tree)
        try:
            build(changed, schemas)
        except (UserError, Unsupported):
            return definition  # S is correlated: it is no table
        definition = changed
    return definition


def _meets_null(node: ir.Node) -> bool:
    own = isinstance(node, ir.Join) and node.null_aware
    return own or any(_meets_null(child) for child in node.children)


def _rewritten(query: exp.Query) -> exp.Query | None:
    """The query with the outermost NOT INs rewritten; None where there are none."""
    tree = query.copy()
    candidates = list(_candidates(tree))
    for negation, test in candidates:
        if negation.root() is tree:
            negation.replace(_condition(test.this, test.args["query"]))
    return tree if candidates else None


def _candidates(tree: exp.Query) -> Iterator[tuple[exp.Not, exp.In]]:
    """Negated INs of a plain column where false and NULL come to the same."""
    for test in tree.find_all(exp.In):
        plain = isinstance(test.this, exp.Column) and isinstance(test.this.this, exp.Identifier)
        if test.args.get("query") is None or not plain:
            continue
        above = test.parent
        while isinstance(above, exp.Paren):
            above = above.parent
        if isinstance(above, exp.Not) and is_condition(above):
            yield above, test


def _condition(x: exp.Expr, query: exp.Expr) -> exp.Expr:
    """What `x NOT IN query` comes to in a place where NULL acts like false."""
    alias = exp.TableAlias(this=exp.to_identifier("__in"), columns=[exp.to_identifier("__x")])
    rows = exp.Subquery(this=query.this if isinstance(query, exp.Subquery) else query, alias=alias)

    def over(item: str) -> exp.Select:
        return exp.Select(expressions=[fragment(item)], from_=exp.From(this=rows.copy()))

    same = over("1")
    same.set("where", exp.Where(this=fragment("__x = x", x=x)))
    return fragment(
        "((empty OR (x IS NOT NULL AND NOT has_null)) AND NOT there)",
        empty=exp.Subquery(this=over("count(*) = 0 AS none")),
        has_null=exp.Subquery(this=over("count(*) > count(__x) AS some")),
        there=exp.Exists(this=same),
        x=x,
    )
