"""Cutting a view into parts: results in between that are kept as tables of their own.

Two things concern all rows of a query at once, so no key can say what a change touches: the value
of a subquery that stands alone, and the first rows of a result. Each is cut out of the text: the
subquery (or a derived table or a branch of a set operation that aggregates all rows, to one row)
becomes a part with one row, and what a LIMIT is taken from becomes a part with all rows. First rows
that the query reads as a table are a part, too.
A part is maintained like a view of its own; whoever reads it is only touched when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp

from mview.errors import UserError
from mview.ivm.keys import unique_columns
from mview.ivm.not_in import without_not_in
from mview.ivm.one_group import without_calls_of_all_rows
from mview.ivm.top import Top
from mview.ivm.whole_windows import without_whole_windows
from mview.plan import ir
from mview.plan.build import build
from mview.plan.definition import ViewDefinition, is_cte
from mview.plan.functions import aggregate_calls, windows
from mview.plan.ir import Unsupported
from mview.plan.pieces import Pieces, word_of
from mview.plan.place import Edit, edited, span
from mview.plan.rules import rewrite
from mview.plan.subquery import folded
from mview.schema import Column, TableSchema, quoted

#: What stands around a query that is a table or a condition, and not a value.
_NOT_A_VALUE = (
    exp.From, exp.Join, exp.In, exp.Exists, exp.CTE, exp.SetOperation, exp.Subquery, exp.Lateral,
    exp.Table, exp.Any, exp.All,
)  # fmt: skip
_DIRECTIONS = ("ASC", "DESC", "NULLS FIRST", "NULLS LAST", "NULLS", "FIRST", "LAST")

Schemas = Mapping[str, TableSchema]
#: Makes a part of a query in another: (definition, query, WITH before it, its text) -> columns.
_Cut = Callable[[ViewDefinition, exp.Query, str, str], tuple[str, ...] | None]


@dataclass(frozen=True)
class Split:
    """A view in parts.

    Attributes:
        parts: in the order they read each other.
        main: the view over tables and parts.
        tops: how `main`, or a part, picks its rows when it is the first rows of a part; by name.
    """

    parts: tuple[ViewDefinition, ...]
    main: ViewDefinition
    tops: Mapping[str, Top] = field(default_factory=dict)


def split(definition: ViewDefinition, schemas: Schemas) -> Split:
    """Cut a view into parts; a view without anything to cut comes back as it is.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    return _Cutter(definition.name, dict(schemas)).view(definition)


def is_part(name: str) -> bool:
    """Whether a name in SQL is that of a part: a view's has no colon, a table's has a dot."""
    return ":" in name and "." not in name


def part_name(owner: str, number: int) -> str:
    """The name of a part of a view, or of another part of it."""
    return f"{owner.split(':')[0]}:{number}"


class _Cutter:
    def __init__(self, view: str, schemas: dict[str, TableSchema]) -> None:
        self.view_name, self.schemas = view, schemas
        self.parts: list[ViewDefinition] = []
        self.tops: dict[str, Top] = {}

    def view(self, definition: ViewDefinition) -> Split:
        plain = without_not_in(definition, self.schemas)
        main = replace(self.without_values(plain), key=definition.key)
        if (found := self.first_rows(main)) is not None:
            main, self.tops[main.name] = found
        return Split(tuple(self.parts), main, self.tops)

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
        definition = without_calls_of_all_rows(definition, self.schemas)
        definition = without_whole_windows(definition, self.schemas)
        tree = definition.tree
        edits: list[Edit] = []
        same: dict[exp.Expr, str] = {}
        for node in tree.find_all(exp.Subquery, exp.CTE, exp.Select):
            query = node if isinstance(node, exp.Select) else node.this
            cut = self._how_to_cut(node, query, definition)
            if cut is None:
                continue
            around = Pieces.of(definition.sql, tree)
            if isinstance(node, exp.Select):
                start, end = around.select_around(_first_call(node, definition.sql))
            else:
                start, end = around.subquery_around(*span(query))
                start, end = start + 1, end - 1
            if any(first <= start < last for first, last, _ in edits):
                continue
            # What stands twice, in GROUP BY and in the select list, is one part.
            if (content := folded(query)) not in same:
                names = self._part(definition, tree, query, definition.sql[start:end], cut)
                if names is None:
                    continue
                listed = ", ".join(map(quoted, names))
                same[content] = f"SELECT {listed} FROM {quoted(self.parts[-1].name)}"
            edits.append((start, end, same[content]))
        if not edits:
            return definition
        return definition.with_sql(edited(definition.sql, edits), key=())

    def _how_to_cut(
        self, node: exp.Expr, query: exp.Expr, definition: ViewDefinition
    ) -> _Cut | None:
        """What a query inside another is to be, if anything."""
        if isinstance(node, exp.Select):
            is_branch = isinstance(node.parent, exp.SetOperation)
            named = node.arg_key == "this"
            one = is_branch and _is_one_row(query, definition, many=True, named=named)
            return self._value_part if one else None
        is_row, is_list = _is_a_table(node), isinstance(node.parent, exp.In)
        if not (is_row or is_list) and isinstance(node.parent, _NOT_A_VALUE):
            return None
        if not is_list and _is_one_row(query, definition, many=is_row):
            return self._value_part
        first = query.args.get("order") is not None and query.args.get("limit") is not None
        return self._first_part if first else None

    def _part(
        self, definition: ViewDefinition, tree: exp.Query, query: exp.Query, text: str, cut: _Cut
    ) -> tuple[str, ...] | None:
        """The columns of a new part for a query in another; None when it cannot be one."""
        prefix = ""
        if any(is_cte(table) for table in query.find_all(exp.Table)):
            inside = query.find_ancestor(exp.CTE) is not None or query.args.get("with_") is not None
            if inside or not isinstance(tree, exp.Select) or tree.args.get("with_") is None:
                return None
            prefix = Pieces.of(definition.sql, tree).prefix
        before = len(self.parts)
        found = cut(definition, query, prefix, text)
        if found is None:
            # Its own parts are read by nobody then.
            for part in self.parts[before:]:
                self.tops.pop(part.name, None)
            del self.parts[before:]
        return found

    def _value_part(
        self, definition: ViewDefinition, query: exp.Query, prefix: str, text: str
    ) -> tuple[str, ...] | None:
        text, names = _with_names(text, query)
        inner = self.without_values(definition.with_sql(prefix + text, name=self.view_name, key=()))
        part = replace(inner, name=self._next_name(), key=names, policy=definition.policy)
        try:
            build(part, self.schemas)
        except (UserError, Unsupported):
            return None  # correlated: its columns are those of the query around
        self._add(part, names)
        return names

    def _first_part(
        self, definition: ViewDefinition, query: exp.Query, prefix: str, text: str
    ) -> tuple[str, ...] | None:
        try:
            inner = definition.with_sql(prefix + text, name=self.view_name, key=())
            found = self.first_rows(self.without_values(inner))
        except (UserError, Unsupported):
            return None
        if found is None:
            return None
        part = replace(found[0], name=self._next_name(), policy=definition.policy)
        names = tuple(ref.column for ref in build(part, self.schemas).root.columns)
        self.tops[part.name] = found[1]
        self._add(part, names)
        return names

    # -- the first rows ------------------------------------------------------------------------

    def first_rows(self, definition: ViewDefinition) -> tuple[ViewDefinition, Top] | None:
        """The query as the first rows of a part; None when it has no LIMIT, or no order."""
        tree = definition.tree
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


def _is_a_table(node: exp.Expr) -> bool:
    """Whether a query is read as a table: in FROM, or by the name that WITH gives it."""
    if isinstance(node, exp.CTE):
        alias, with_ = node.args["alias"], node.parent
        recursive = with_ is not None and with_.args.get("recursive")
        return not recursive and not alias.columns
    plain = set(node.args) - {"this", "alias"}
    return isinstance(node.parent, exp.From | exp.Join) and not any(
        node.args.get(one) for one in plain
    )


def _is_one_row(
    query: exp.Expr, definition: ViewDefinition, *, many: bool, named: bool = True
) -> bool:
    """Whether a query is an aggregate over all rows, which gives one row always.

    Args:
        query: the query.
        definition: whose text it is from.
        many: it may have several columns, and literals beside them; else it has one.
        named: each of the several has a name that is used.
    """
    if not isinstance(query, exp.Select):
        return False
    more = ("group", "having", "limit", "offset", "distinct", "qualify", "order")
    items = query.expressions
    computed = items
    if many:
        names = [item.alias.lower() for item in items if named or item.alias]
        shaped = "" not in names and len(set(names)) == len(names)
        computed = [item for item in items if not isinstance(item.unalias(), exp.Literal)]
    else:
        shaped = len(items) == 1
    return (
        shaped
        and bool(computed)
        and not any(query.args.get(name) for name in more)
        and query.args.get("from_") is not None
        and all(aggregate_calls(item) and not windows(item) for item in computed)
    )


def _first_call(query: exp.Select, sql: str) -> exp.Expr:
    """An aggregate call of a query's own select list."""
    call = next(call for item in query.expressions for call in aggregate_calls(item))
    while "start" not in call.meta:
        call = call.this
    return call


def _with_names(text: str, query: exp.Query) -> tuple[str, tuple[str, ...]]:
    """The text of a query in which every column has a name, and the names."""
    names = [item.alias for item in query.expressions]
    if "" not in names:
        return text, tuple(names)
    pieces = Pieces(text, exp.Select())
    assert pieces.from_ is not None
    edits: list[Edit] = []
    for number, tokens in enumerate(pieces.split(pieces.select + 1, pieces.from_)):
        if not names[number]:
            names[number] = "value" if len(names) == 1 else f"__v{number}"
            at = tokens[-1].end + 1
            edits.append((at, at, f" AS {names[number]}"))
    return edited(text, edits), tuple(names)


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
