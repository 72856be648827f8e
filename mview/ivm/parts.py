"""Cutting a view into parts: results in between that are kept as tables of their own.

Two things concern all rows of a query at once, so no key can say what a change touches: the value
of a subquery that stands alone, and the first rows of a result. Each is cut out of the text: the
subquery becomes a part with one row, and what a LIMIT is taken from becomes a part with all rows.
A part is maintained like a view of its own; whoever reads it is only touched when it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from mview.errors import UserError
from mview.ivm.distinct_calls import without_distinct_calls
from mview.ivm.keys import unique_columns
from mview.ivm.not_in import without_not_in
from mview.ivm.top import Top
from mview.plan import ir
from mview.plan.build import build
from mview.plan.definition import ViewDefinition, is_cte
from mview.plan.functions import aggregate_calls, windows
from mview.plan.ir import Unsupported
from mview.plan.pieces import Pieces, word_of
from mview.plan.place import edited, span
from mview.plan.rules import rewrite
from mview.plan.syntax import parse_select
from mview.schema import Column, TableSchema

#: What stands around a query that is a table or a condition, and not a value.
_NOT_A_VALUE = (
    exp.From, exp.Join, exp.In, exp.Exists, exp.CTE, exp.SetOperation, exp.Subquery, exp.Lateral,
    exp.Table, exp.Any, exp.All,
)  # fmt: skip
_DIRECTIONS = ("ASC", "DESC", "NULLS FIRST", "NULLS LAST", "NULLS", "FIRST", "LAST")

Schemas = Mapping[str, TableSchema]


@dataclass(frozen=True)
class Split:
    """A view in parts.

    Attributes:
        parts: in the order they read each other.
        main: the view over tables and parts.
        top: how `main` picks its rows, when it is the first rows of a part.
    """

    parts: tuple[ViewDefinition, ...]
    main: ViewDefinition
    top: Top | None = None


def split(definition: ViewDefinition, schemas: Schemas) -> Split:
    """Cut a view into parts; a view without anything to cut comes back as it is.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    return _Cutter(definition.name, dict(schemas)).view(definition)


def is_part(name: str) -> bool:
    """Whether a name in SQL is that of a part: no name that a user can give has a colon."""
    return ":" in name


def part_name(owner: str, number: int) -> str:
    """The name of a part of a view, or of another part of it."""
    return f"{owner.split(':')[0]}:{number}"


def quoted(name: str) -> str:
    """A name in Spark's SQL."""
    return f"`{name.replace('`', '``')}`"


class _Cutter:
    def __init__(self, view: str, schemas: dict[str, TableSchema]) -> None:
        self.view_name, self.schemas = view, schemas
        self.parts: list[ViewDefinition] = []

    def view(self, definition: ViewDefinition) -> Split:
        plain = without_not_in(definition, self.schemas)
        main = replace(self.without_values(plain), key=definition.key)
        found = self.first_rows(main)
        return Split(tuple(self.parts), *(found or (main, None)))

    def _add(self, part: ViewDefinition, columns: tuple[str, ...]) -> None:
        self.parts.append(part)
        # Types do not matter for cutting; whoever compiles the parts asks Spark for them.
        self.schemas[part.name] = TableSchema(
            tuple(Column(name, pa.string()) for name in columns), part.key
        )

    def _next_name(self) -> str:
        return part_name(self.view_name, len(self.parts) + 1)

    # -- the value of a subquery ---------------------------------------------------------------

    def without_values(self, definition: ViewDefinition) -> ViewDefinition:
        """The query with parts in the place of uncorrelated subqueries that are one value."""
        definition = without_distinct_calls(definition, self.schemas)
        tree = parse_select(definition.text)
        edits: list[tuple[int, int, str]] = []
        for node in tree.find_all(exp.Subquery):
            if isinstance(node.parent, _NOT_A_VALUE) or not _is_one_row(node.this, definition):
                continue
            start, end = Pieces.of(definition.sql, tree).subquery_around(*span(node.this))
            if any(first <= start < last for first, last, _ in edits):
                continue
            inner = definition.sql[start + 1 : end - 1]
            part = self._value_part(definition, tree, node.this, inner)
            if part is not None:
                text = f"(SELECT {quoted(part.key[0])} FROM {quoted(part.name)})"
                edits.append((start, end, text))
        if not edits:
            return definition
        return definition.with_sql(edited(definition.sql, edits), key=())

    def _value_part(
        self, definition: ViewDefinition, tree: exp.Query, query: exp.Select, text: str
    ) -> ViewDefinition | None:
        prefix = ""
        if any(is_cte(table) for table in query.find_all(exp.Table)):
            inside = query.find_ancestor(exp.CTE) is not None or query.args.get("with_") is not None
            if inside or not isinstance(tree, exp.Select) or tree.args.get("with_") is None:
                return None
            prefix = Pieces.of(definition.sql, tree).prefix
        item, name = query.expressions[0], query.expressions[0].alias
        if not isinstance(item, exp.Alias):
            name = "value"
            at = Pieces.of(text, parse_select(replace(definition, sql=text).text)).from_start
            text = f"{text[:at]}AS {name} {text[at:]}"
        inner = self.without_values(definition.with_sql(prefix + text, name=self.view_name, key=()))
        part = replace(inner, name=self._next_name(), key=(name,), policy=definition.policy)
        try:
            build(part, self.schemas)
        except (UserError, Unsupported):
            return None  # correlated: its columns are those of the query around
        self._add(part, (name,))
        return part

    # -- the first rows ------------------------------------------------------------------------

    def first_rows(self, definition: ViewDefinition) -> tuple[ViewDefinition, Top] | None:
        """The query as the first rows of a part; None when it has no LIMIT, or no order."""
        tree = parse_select(definition.text)
        order, limit = tree.args.get("order"), tree.args.get("limit")
        if order is None or limit is None:
            return None
        if not isinstance(tree, exp.Select):
            return self.first_rows(_as_select(definition, tree))
        clauses = [limit, tree.args.get("offset")]
        counts = [one.expression if one is not None else exp.Literal.number(0) for one in clauses]
        if not all(isinstance(one, exp.Literal) and one.is_int for one in counts):
            return None
        names = [ref.column for ref in build(definition, self.schemas).root.columns]
        ranked = self._ranked_part(definition, tree, names)
        if ranked is None:
            return None
        part, keys = ranked
        total = ", ".join([*keys, *(quoted(name) for name in part.key)])
        top = Top(part.name, total, *(int(one.name) for one in counts))
        listed = ", ".join(quoted(name) for name in names)
        tail = f"LIMIT {top.limit}" + (f" OFFSET {top.offset}" if top.offset else "")
        sql = f"SELECT {listed} FROM {quoted(part.name)} ORDER BY {top.order} {tail}"
        main = definition.with_sql(sql)
        return main, top

    def _ranked_part(
        self, definition: ViewDefinition, tree: exp.Select, names: list[str]
    ) -> tuple[ViewDefinition, list[str]] | None:
        """The part with all rows, and the ORDER BY over its columns."""
        pieces = Pieces.of(definition.sql, tree)
        start, end = pieces.at("ORDER BY", pieces.select), pieces.at("LIMIT", pieces.select)
        assert start is not None
        assert end is not None
        hidden: list[str] = []
        keys: list[str] = []
        items = pieces.split(start + 1, end)
        for tokens, ordered in zip(items, tree.args["order"].expressions, strict=True):
            plain = list(tokens)
            while word_of(plain[-1]) in _DIRECTIONS:
                plain.pop()
            rest = " ".join(token.text for token in tokens[len(plain) :])
            column = _output_column(ordered.this, tree, names)
            if column is None:
                column = f"__o{len(hidden)}"
                hidden.append(f"{pieces.text(plain)} AS {column}")
            keys.append(f"{quoted(column)} {rest}".strip())
        if hidden and tree.args.get("distinct"):
            return None
        body = definition.sql[: pieces.tokens[start].start]
        part = definition.with_sql(
            _with_items(body, pieces, hidden), name=self._next_name(), key=()
        )
        root = rewrite(build(part, self.schemas).root)
        if unique_columns(root) is None:
            more = _hidden_key(root, tree) or []
            body = _with_items(body, pieces, [*hidden, *more])
            part = definition.with_sql(body, name=part.name, key=())
            root = rewrite(build(part, self.schemas).root)
        if unique_columns(root) is None:
            part = definition.with_sql(_numbered(body, root), name=part.name, key=())
            root = rewrite(build(part, self.schemas).root)
        key = unique_columns(root)
        if key is None:
            return None
        part = replace(part, key=tuple(ref.column for ref in key))
        self._add(part, tuple(ref.column for ref in root.columns))
        return part, keys


def _is_one_row(query: exp.Expr, definition: ViewDefinition) -> bool:
    """Whether a query is an aggregate over all rows, which gives one row always."""
    if not isinstance(query, exp.Select) or len(query.expressions) != 1:
        return False
    more = ("group", "having", "limit", "offset", "distinct", "qualify", "order")
    item = query.expressions[0]
    return (
        not any(query.args.get(name) for name in more)
        and query.args.get("from_") is not None
        and bool(aggregate_calls(item, definition.sql))
        and not windows(item)
    )


def _output_column(one: exp.Expr, tree: exp.Select, names: list[str]) -> str | None:
    """The output column that an ORDER BY item is, if it is one."""
    if isinstance(one, exp.Literal) and not one.is_string and one.is_int:
        return names[int(one.name) - 1]
    if isinstance(one, exp.Column) and len(one.parts) == 1:
        return next((name for name in names if name.lower() == one.name.lower()), None)
    for item in tree.expressions:
        bare = item.this if isinstance(item, exp.Alias) else item
        if bare == one and item.alias_or_name in names:
            return str(item.alias_or_name)
    return None


def _with_items(body: str, pieces: Pieces, items: list[str]) -> str:
    """A SELECT with more items at the end of its list."""
    if not items:
        return body
    return f"{body[: pieces.from_start]}, {', '.join(items)} {body[pieces.from_start :]}"


def _as_select(definition: ViewDefinition, tree: exp.Query) -> ViewDefinition:
    """A set operation with ORDER BY and LIMIT as a SELECT over it."""
    pieces = Pieces.of(definition.sql, tree)
    start = pieces.at("ORDER BY", pieces.select)
    assert start is not None
    at = pieces.tokens[start].start
    sql = f"SELECT * FROM (\n{definition.sql[:at]}\n) AS __all {definition.sql[at:]}"
    return definition.with_sql(sql)


def _numbered(body: str, root: ir.Node) -> str:
    """The rows of a query with a number that tells equal rows apart."""
    names = ", ".join(quoted(ref.column) for ref in root.columns)
    number = f"row_number() OVER (PARTITION BY {names} ORDER BY {quoted(root.columns[0].column)})"
    return f"SELECT {names}, {number} AS __nth FROM (\n{body}\n) AS __rows"


def _hidden_key(root: ir.Node, tree: exp.Select) -> list[str] | None:
    """Select-list items for the key of the rows, where the user left it out."""
    if not isinstance(root, ir.Project):
        return None
    below = root.child
    while isinstance(below, ir.Filter | ir.Window):
        below = below.child
    if isinstance(below, ir.Aggregate) and below.sets is not None:
        return ["grouping_id() AS __k0"] if not tree.find(exp.GroupingSets) else None
    key = unique_columns(root.child)
    froms = [tree.args["from_"].this, *(join.this for join in tree.args.get("joins") or [])]
    aliases = {one.alias_or_name for one in froms if isinstance(one, exp.Table)}
    if not key or any(ref.relation not in aliases for ref in key):
        return None
    return [f"{quoted(ref.relation)}.{quoted(ref.column)} AS __k{i}" for i, ref in enumerate(key)]
