"""The user's text with other relations, sorted lists, a pinned time: all that is changed in it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from mview.plan.allowed import check_text
from mview.plan.clocks import pinned_relations, pinning_edits
from mview.plan.definition import ViewDefinition
from mview.plan.lists import sorting_edits
from mview.plan.place import Edit, edited
from mview.plan.syntax import parse_select
from mview.schema import quoted


def bind_tables(
    definition: ViewDefinition, names: Mapping[str, str], pinned_ms: int | None = None
) -> str:
    """The view's SELECT reading other relations.

    A table without an alias gets its old (last) name as alias, so that columns written
    `orders.id` still resolve; `shop.orders.id` loses its first part.

    Args:
        definition: the view.
        names: for every table of the view, the SQL of the relation to read instead.
        pinned_ms: what `now()` shall be, in milliseconds; clocks need no name then. None: the time
            functions are left.

    Raises:
        UserError: something stands in the text that no view may have.
    """
    tree = parse_select(definition.text)
    # Here, where every text that Spark gets is made, so that none gets by.
    check_text(definition.text, tree, definition.functions)
    edits = sorting_edits(definition.sql, tree)
    if pinned_ms is not None:
        edits += pinning_edits(definition.sql, tree, pinned_ms)
        names = {**names, **pinned_relations(pinned_ms)}
    for use in definition.tables:
        last = use.name.partition(".")[2] or use.name
        alias = "" if use.alias else f" AS {quoted(last)}"
        edits.append((use.start, use.end, names[use.name] + alias))
    edits.extend(_long_column_edits(definition, tree))
    return edited(definition.sql, edits)


def _long_column_edits(definition: ViewDefinition, tree: exp.Query) -> list[Edit]:
    """Cuts of the connection in `connection.table.column`."""
    pairs = {tuple(use.name.lower().split(".", 1)) for use in definition.tables if not use.alias}
    edits: list[Edit] = []
    for column in tree.find_all(exp.Column):
        parts = column.parts
        if len(parts) < 3 or (parts[0].name.lower(), parts[1].name.lower()) not in pairs:
            continue
        edits.append((parts[0].meta["start"], parts[1].meta["start"], ""))
    return edits
