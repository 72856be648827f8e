"""Equal rows put in an order: one text, one result, for the build, every epoch and `verify`.

Rows that are equal in an ORDER BY come in any order, so two runs of `row_number()`, `lag(x)`,
`ORDER BY … LIMIT` or `max_by(x, y)` over the same rows may differ. Where the key of the rows does
not stand in the order already, the text that runs has it there as well, or all columns of the rows
where they have no key: what is equal in all of them may change places unseen. `max_by(x, y)` takes
the greatest of the x that tie, `min_by` the least. The result is one of those that Spark may give
for the user's text, and always the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from mview.ivm.facts.keys import Schemas, equal_columns, unique_columns
from mview.plan.clocks import CLOCKS
from mview.plan.definition import ViewDefinition
from mview.plan.functions.windows import write_out
from mview.plan.operators import ir
from mview.plan.operators.build import build
from mview.plan.operators.ir import Unsupported
from mview.plan.operators.orderings import Ordering, with_value
from mview.plan.text.place import span
from mview.plan.text.query import ascending, number_of, numbered
from mview.relation import RelationId
from mview.schema import TableSchema


def in_total_order(
    definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]
) -> ViewDefinition:
    """The view with every order that decides something made total.

    A query that the IR cannot express keeps its orders, but for max_by and min_by.

    Args:
        definition: a view as its user wrote it.
        schemas: of the tables and views that it reads.

    Raises:
        UserError: equal rows matter in a place where the text cannot tell them apart.
    """
    known = {**schemas, **CLOCKS}
    try:
        orderings = build(definition, known).orderings
    except Unsupported:
        orderings = ()
    tree = definition.tree.copy()
    changed = _with_values(tree, orderings, known)
    for ordering in orderings:
        if not _is_extreme(ordering) and not _is_total(ordering, known):
            changed |= _complete(definition, tree, ordering, known)
    return definition.with_tree(tree) if changed else definition


def _is_total(ordering: Ordering, schemas: Schemas) -> bool:
    """Whether no two rows can be equal in the order, or there is one row at most."""
    node = ordering.node
    if isinstance(node, ir.Projection | ir.Distinct):
        outputs, node = ordering.by, _below(node)
        by = {_input(ordering.node, ref) for ref in outputs}
    else:
        by = set(ordering.by)
    key, same = unique_columns(node, schemas), equal_columns(node, schemas)
    if key is None:
        return isinstance(node, ir.Aggregate) and not node.group and node.sets is None
    return all(ref in by or same.get(ref, set()) & by for ref in key)


def _is_extreme(ordering: Ordering) -> bool:
    return isinstance(ordering.where, exp.ArgMax | exp.ArgMin)


def _below(node: ir.Node) -> ir.Node:
    return node.child if isinstance(node, ir.Projection) else node


def _input(node: ir.Node, ref: ir.Ref | None) -> ir.Ref | None:
    """The column below a projection that one of its columns is."""
    if isinstance(node, ir.Projection) and ref is not None and ref.relation == node.relation:
        return ir.as_ref(dict(node.items)[ref.column])
    return ref


# -- the query -----------------------------------------------------------------------------------


def _with_values(tree: exp.Query, orderings: Sequence[Ordering], schemas: Schemas) -> bool:
    """Make `max_by(x, y)` take the greatest of the x that have the greatest y; whether one does."""
    extremes = [ordering for ordering in orderings if _is_extreme(ordering)]
    total = {number_of(extreme.where) for extreme in extremes if _is_total(extreme, schemas)}
    total -= {number_of(extreme.where) for extreme in extremes if not _is_total(extreme, schemas)}
    calls = [call for call in tree.find_all(exp.ArgMax, exp.ArgMin) if number_of(call) not in total]
    for call in calls:
        # max_by(DISTINCT x, y) is max_by(x, y).
        value = call.this.expressions[0] if isinstance(call.this, exp.Distinct) else call.this
        call.set("expression", with_value(call.expression, value))
    return bool(calls)


def _complete(
    definition: ViewDefinition, tree: exp.Query, ordering: Ordering, schemas: Schemas
) -> bool:
    """Put more columns into an ORDER BY of a tree; whether it needs some.

    Raises:
        UserError: it cannot be written.
    """
    more = _more(ordering, schemas)
    if more == []:
        return False
    place = numbered(tree, number_of(ordering.where))
    order = _order_of(place) if ordering.may_add and place is not None else None
    if more is None or order is None:
        raise _not_total(definition, ordering)
    # A query that is read twice is seen twice.
    known = [item.this for item in order.expressions]
    for value in more:
        if value not in known:
            order.append("expressions", ascending(value.copy()))
    return True


def _more(ordering: Ordering, schemas: Schemas) -> list[exp.Expr] | None:
    """The columns that tell equal rows apart; None when the text cannot name them."""
    key = unique_columns(ordering.node, schemas)
    if key is not None and all(ref in ordering.names for ref in key):
        return [ordering.names[ref] for ref in key if ref not in ordering.by]
    if not ordering.complete:
        return None
    return [name for ref, name in ordering.names.items() if ref not in ordering.by]


def _order_of(place: exp.Expr) -> exp.Order | None:
    """The ORDER BY of a query or window; a window by a name is written out."""
    if isinstance(place, exp.Window) and place.alias:
        select = place.find_ancestor(exp.Select)
        listed = (select.args.get("windows") or []) if select is not None else []
        same = [column for column in listed if column.name.lower() == place.alias.lower()]
        if same:
            write_out(place, same[0])
    order: exp.Order | None = place.args.get("order")
    return order


def _not_total(definition: ViewDefinition, ordering: Ordering) -> Exception:
    where = ordering.where
    hint = "add columns to ORDER BY that no two rows have alike"
    if isinstance(where, exp.Window) and not ordering.may_add:
        hint += ", or write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    place = span(where)
    if ordering.start is not None:
        place = (ordering.start, ordering.start + 1)
    return definition.text.error(
        "rows that are equal in ORDER BY come in any order, and it is not known what tells them "
        "apart (ORDER_DEPENDENT)",
        place,
        hint=hint,
    )
