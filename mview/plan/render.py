"""The query with other relations, sorted lists, a pinned time: all that is changed in it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from mview.plan.checks.allowed import check_text
from mview.plan.clocks import pin_time, pinned_relations
from mview.plan.definition import ViewDefinition, name_of, tables_of
from mview.plan.functions.lists import sort_lists
from mview.plan.text.dialect import verbatim, write
from mview.relation import RelationId


def bind_tables(
    definition: ViewDefinition, names: Mapping[RelationId, str], pinned_ms: int | None = None
) -> str:
    """The view's SELECT reading other relations.

    A table without an alias gets its old (last) name as alias, so that columns written
    `orders.id` still resolve; `shop.orders.id` and `shop.sales.orders.id` lose what is before it.

    Args:
        names: for every table of the view, the SQL of the relation to read instead.
        pinned_ms: what `now()` shall be, in milliseconds; clocks need no name then. None: the time
            functions are left.

    Raises:
        UserError: something stands in the text that no view may have.
    """
    query = definition.query
    # Here, where every text that Spark gets is made, so that none gets by.
    if definition.functions not in query.allowed:
        check_text(query.text, query.user, definition.functions)
        query.allowed.add(definition.functions)
    tree = query.tree.copy()
    sort_lists(tree)
    if pinned_ms is not None:
        pin_time(tree, pinned_ms)
        names = {**names, **pinned_relations(pinned_ms)}
    tables = list(tables_of(tree))
    _shorten_columns(tree, tables)
    for table in tables:
        if not table.alias:
            alias = exp.to_identifier(table.name, quoted=True)
            table.set("alias", exp.TableAlias(this=alias))
        table.set("this", verbatim(names[name_of(table)]))
        table.set("db", None)
        table.set("catalog", None)
    return write(tree)


def _shorten_columns(tree: exp.Query, tables: list[exp.Table]) -> None:
    """Cut connection and schema off `connection.schema.table.column`."""
    full = {
        tuple(part.name.lower() for part in table.parts)
        for table in tables
        if table.db and not table.alias
    }
    for column in tree.find_all(exp.Column):
        names = tuple(part.name.lower() for part in column.parts[:-1])
        for size in (3, 2):
            if len(names) >= size and names[:size] in full:
                for part in column.parts[: size - 1]:
                    part.pop()
                break
