"""The condition on a table's rows as SQL: the database gives at least the rows that fulfil it.

It compares in its own way (a text whatever its case, say), so it is asked only where that takes all
rows that we take. Who reads them looks at each once more (`mview.rows.where`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from mview.rows.where import Among, Compared, IsNull, parse_where, typed, weakened
from mview.schema import TableSchema
from mview_connectors.databases.ranges import Predicate


class Comparable(NamedTuple):
    """How the names of a database's types begin whose values it compares as we do.

    Attributes:
        ordered: numbers and times, by all operators.
        texts: equal for us is equal for the database; not the other way.
    """

    ordered: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def asked_for(
    schema: TableSchema, comparable: Comparable, quote: Callable[[str], str], mark: str
) -> Predicate:
    """What a statement's WHERE may have of the condition; empty: nothing.

    Args:
        schema: the table.
        comparable: the database's types.
        quote: a column's name in SQL.
        mark: the driver's parameter mark.
    """

    def may_ask(leaf: Compared | Among | IsNull) -> bool:
        column = schema.column(leaf.column)
        kind = column.source_type.lower()
        if pa.types.is_boolean(column.type) or column.read_as[1]:
            return False  # numbers, for some; another type than the database's
        if isinstance(leaf, IsNull):
            # MySQL takes some dates for NULL.
            return kind.startswith(comparable.ordered) and not pa.types.is_temporal(column.type)
        if kind.startswith(comparable.ordered):
            return True
        is_equal = not leaf.is_not if isinstance(leaf, Among) else leaf.operator == "="
        return is_equal and kind.startswith(comparable.texts)

    def sql(leaf: Compared | Among | IsNull) -> Predicate:
        name = quote(leaf.column)
        if isinstance(leaf, IsNull):
            return f"{name} IS {'NOT ' if leaf.is_not else ''}NULL", ()
        if isinstance(leaf, Compared):
            value: Any = typed(leaf.column, leaf.value, schema).as_py()
            return f"{name} {leaf.operator} {mark}", (value,)
        values = tuple(typed(leaf.column, value, schema).as_py() for value in leaf.values)
        word = "NOT IN" if leaf.is_not else "IN"
        return f"{name} {word} ({', '.join([mark] * len(values))})", values

    parts, parameters = [], []
    for any_of in weakened(parse_where(schema.where), may_ask):
        asked = [sql(leaf) for leaf in any_of]
        parts.append(f"({' OR '.join(text for text, _ in asked)})")
        parameters += [value for _, values in asked for value in values]
    return " AND ".join(parts), tuple(parameters)
