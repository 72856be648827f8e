"""Cutting a view into parts: results in between that are kept as tables of their own.

Two things concern all rows of a query at once, so no key can say what a change touches: the value
of a subquery that stands alone, and the first rows of a result. Each is cut out of the query: the
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
from mview.ivm.facts.keys import unique_columns
from mview.ivm.rewrites.not_in import without_not_in
from mview.ivm.rewrites.one_group import without_calls_of_all_rows
from mview.ivm.rewrites.top import Top
from mview.ivm.rewrites.whole_windows import without_whole_windows
from mview.plan.definition import ViewDefinition, is_cte
from mview.plan.functions.effects import aggregate_calls, generator, windows
from mview.plan.operators import ir
from mview.plan.operators.build import build
from mview.plan.operators.ir import Unsupported
from mview.plan.operators.rules import rewrite
from mview.plan.operators.subquery import folded
from mview.plan.text.dialect import fragment, write
from mview.plan.text.query import ascending, column, named, select_columns, select_from
from mview.relation import RelationId
from mview.schema import Column, TableSchema

#: What stands around a query that is a table or a condition, and not a value.
_NOT_A_VALUE = (
    exp.From, exp.Join, exp.In, exp.Exists, exp.CTE, exp.SetOperation, exp.Subquery, exp.Lateral,
    exp.Table, exp.Any, exp.All,
)  # fmt: skip

Schemas = Mapping[RelationId, TableSchema]
#: Makes a part of a copy of a query in another: (definition, query) -> columns.
_Cut = Callable[[ViewDefinition, exp.Query], tuple[str, ...] | None]


@dataclass(frozen=True)
class ViewParts:
    """A view in parts.

    Attributes:
        parts: in the order they read each other.
        main: the view over tables and parts.
        tops: how `main`, or a part, picks its rows when it is the first rows of a part.
    """

    parts: tuple[ViewDefinition, ...]
    main: ViewDefinition
    tops: Mapping[RelationId, Top] = field(default_factory=dict)


def split(definition: ViewDefinition, schemas: Schemas) -> ViewParts:
    """Cut a view into parts; a view without anything to cut comes back as it is.

    Args:
        definition: a view that `build` accepts.
        schemas: of the tables it reads.
    """
    return _Cutter(dict(schemas)).view(definition)


class _Cutter:
    def __init__(self, schemas: dict[RelationId, TableSchema]) -> None:
        self.schemas = schemas
        self.parts: list[ViewDefinition] = []
        self.tops: dict[RelationId, Top] = {}

    def view(self, definition: ViewDefinition) -> ViewParts:
        plain = without_not_in(definition, self.schemas)
        main = replace(self.without_values(plain), key=definition.key)
        if (cut := self.first_rows(main)) is not None:
            main, self.tops[main.relation] = cut
        return ViewParts(tuple(self.parts), main, self.tops)

    def _add(self, part: ViewDefinition, columns: tuple[str, ...]) -> None:
        self.parts.append(part)
        # Types do not matter for cutting; whoever compiles the parts asks Spark for them.
        self.schemas[part.relation] = TableSchema(
            tuple(Column(name, pa.string()) for name in columns), part.key
        )

    @property
    def _next(self) -> int:
        """The number of the next part."""
        return len(self.parts) + 1

    # -- the value of a subquery ---------------------------------------------------------------

    def without_values(self, definition: ViewDefinition) -> ViewDefinition:
        """The query with parts in the place of uncorrelated subqueries that are one value."""
        definition = without_calls_of_all_rows(definition, self.schemas)
        definition = without_whole_windows(definition, self.schemas)
        tree = definition.tree.copy()
        same: dict[exp.Expr, exp.Select] = {}
        for node in list(tree.find_all(exp.Subquery, exp.CTE, exp.Select)):
            query = node if isinstance(node, exp.Select) else node.this
            cut = self._how_to_cut(node, query)
            if cut is None or node.root() is not tree:
                continue
            # What stands twice, in GROUP BY and in the select list, is one part.
            if (content := folded(query)) not in same:
                names = self._part(definition, tree, query, cut)
                if names is None:
                    continue
                same[content] = select_columns(names, self.parts[-1].relation.sql_name)
            query.replace(same[content].copy())
        return definition.with_tree(tree, key=()) if same else definition

    def _how_to_cut(self, node: exp.Expr, query: exp.Expr) -> _Cut | None:
        """What a query inside another is to be, if anything."""
        if isinstance(node, exp.Select):
            is_branch = isinstance(node.parent, exp.SetOperation)
            is_named = node.arg_key == "this"
            is_value = is_branch and _is_one_row(query, many=True, is_named=is_named)
            return self._value_part if is_value else None
        is_row, is_list = _is_a_table(node), isinstance(node.parent, exp.In)
        if not (is_row or is_list) and isinstance(node.parent, _NOT_A_VALUE):
            return None
        if not is_list and _is_one_row(query, many=is_row):
            return self._value_part
        first = query.args.get("order") is not None and query.args.get("limit") is not None
        return self._first_part if first else None

    def _part(
        self, definition: ViewDefinition, tree: exp.Query, query: exp.Query, cut: _Cut
    ) -> tuple[str, ...] | None:
        """The columns of a new part for a query in another; None when it cannot be one."""
        alone = query.copy()
        if any(is_cte(table) for table in query.find_all(exp.Table)):
            inside = query.find_ancestor(exp.CTE) is not None or query.args.get("with_") is not None
            if inside or not isinstance(tree, exp.Select) or tree.args.get("with_") is None:
                return None
            alone.set("with_", definition.tree.args["with_"].copy())
        before = len(self.parts)
        taken = cut(definition, alone)
        if taken is None:
            # Its own parts are read by nobody then.
            for part in self.parts[before:]:
                self.tops.pop(part.relation, None)
            del self.parts[before:]
        return taken

    def _value_part(self, definition: ViewDefinition, query: exp.Query) -> tuple[str, ...] | None:
        names = _name_items(query)
        inner = self.without_values(definition.with_tree(query, part=0, key=()))
        part = replace(inner, part=self._next, key=names, policy=definition.policy)
        try:
            build(part, self.schemas)
        except (UserError, Unsupported):
            return None  # correlated: its columns are those of the query around
        self._add(part, names)
        return names

    def _first_part(self, definition: ViewDefinition, query: exp.Query) -> tuple[str, ...] | None:
        try:
            inner = definition.with_tree(query, part=0, key=())
            first = self.first_rows(self.without_values(inner))
        except (UserError, Unsupported):
            return None
        if first is None:
            return None
        part = replace(first[0], part=self._next, policy=definition.policy)
        names = tuple(ref.column for ref in build(part, self.schemas).root.columns)
        self.tops[part.relation] = first[1]
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
            return self.first_rows(definition.with_tree(_as_select(tree)))
        clauses = [limit, tree.args.get("offset")]
        counts = [
            clause.expression if clause is not None else exp.Literal.number(0) for clause in clauses
        ]
        if not all(isinstance(clause, exp.Literal) and clause.is_int for clause in counts):
            return None
        names = [ref.column for ref in build(definition, self.schemas).root.columns]
        ranked = self._ranked_part(definition, tree, names)
        if ranked is None:
            return None
        part, keys = ranked
        keys += [ascending(column(name)) for name in part.key]
        top = Top(
            part.relation, ", ".join(map(write, keys)), *(int(clause.name) for clause in counts)
        )
        rows = select_columns(names, part.relation.sql_name)
        rows = rows.order_by(*keys, copy=False).limit(top.limit, copy=False)
        if top.offset:
            rows = rows.offset(top.offset, copy=False)
        return definition.with_tree(rows), top

    def _ranked_part(
        self, definition: ViewDefinition, tree: exp.Select, names: list[str]
    ) -> tuple[ViewDefinition, list[exp.Expr]] | None:
        """The part with all rows, and the ORDER BY over its columns."""
        body = tree.copy()
        for clause in ("order", "limit", "offset"):
            body.set(clause, None)
        keys: list[exp.Expr] = []
        hidden = 0
        for ordered in tree.args["order"].expressions:
            name = _output_column(ordered.this, names)
            value = ordered.this if name else _over_rows(ordered.this, tree)
            if value is None:
                return None
            name = name or _item_of(value, tree, names)
            if name is None:
                name = f"__o{hidden}"
                hidden += 1
                body.append("expressions", named(value.copy(), name))
            by = ordered.copy()
            by.set("this", column(name))
            keys.append(by)
        if hidden and tree.args.get("distinct"):
            return None
        part = definition.with_tree(body, part=self._next, key=())
        root = rewrite(build(part, self.schemas).root)
        if unique_columns(root, self.schemas) is None:
            body = body.copy()
            for item in _hidden_key(root, tree, self.schemas) or ():
                body.append("expressions", item)
            part = definition.with_tree(body, part=part.part, key=())
            root = rewrite(build(part, self.schemas).root)
        if unique_columns(root, self.schemas) is None:
            part = definition.with_tree(_numbered(body.copy(), root), part=part.part, key=())
            root = rewrite(build(part, self.schemas).root)
        key = unique_columns(root, self.schemas)
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
        node.args.get(name) for name in plain
    )


def _is_one_row(query: exp.Expr, *, many: bool, is_named: bool = True) -> bool:
    """Whether a query is an aggregate over all rows, which gives one row always.

    Args:
        many: it may have several columns, and literals beside them; else it has one.
        is_named: each of the several has a name that is used.
    """
    if not isinstance(query, exp.Select):
        return False
    more = ("group", "having", "limit", "offset", "distinct", "qualify", "order")
    items = query.expressions
    computed = items
    if many:
        names = [item.alias.lower() for item in items if is_named or item.alias]
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
        and not any(map(generator, computed))
    )


def _name_items(query: exp.Query) -> tuple[str, ...]:
    """Give every column of a tree a name; the names."""
    names = []
    for number, item in enumerate(query.expressions):
        names.append(item.alias or ("value" if len(query.expressions) == 1 else f"__v{number}"))
        if not item.alias:
            item.replace(named(item.copy(), names[-1]))
    return tuple(names)


def _output_column(value: exp.Expr, names: list[str]) -> str | None:
    """The output column that an ORDER BY item names, if it does."""
    if isinstance(value, exp.Literal) and not value.is_string and value.is_int:
        return names[int(value.name) - 1]
    if isinstance(value, exp.Column) and len(value.parts) == 1:
        return next((name for name in names if name.lower() == value.name.lower()), None)
    return None


def _over_rows(value: exp.Expr, tree: exp.Select) -> exp.Expr | None:
    """An ORDER BY expression as an item of the select list; None where it cannot be one.

    A bare name in ORDER BY is a column of the result first: `-x` after `SELECT abs(x) AS x` is
    `-(abs(x))` in the list, where `x` is a column of the rows.
    """
    aliases: dict[str, list[exp.Expr]] = {}
    for item in tree.expressions:
        if isinstance(item, exp.Alias):
            aliases.setdefault(item.alias.lower(), []).append(item.this)
    made = exp.paren(value.copy(), copy=False)
    for name in list(made.find_all(exp.Column)):
        meant = aliases.get(name.parts[0].name.lower())
        if meant is None or _is_table(name, tree):
            continue
        inside = name.find_ancestor(exp.Query, exp.AggFunc, exp.Window) is not None
        if len(meant) > 1 or len(name.parts) > 1 or inside or generator(meant[0]):
            return None
        name.replace(exp.paren(meant[0]))
    over: exp.Expr = made.this
    return over


def _is_table(name: exp.Column, tree: exp.Select) -> bool:
    """Whether the first of several words of a name is a table of FROM."""
    froms = [tree.args["from_"].this] if tree.args.get("from_") else []
    froms += [join.this for join in tree.args.get("joins") or ()]
    froms += tree.args.get("laterals") or ()
    tables = {source.alias_or_name.lower() for source in froms}
    return len(name.parts) > 1 and name.parts[0].name.lower() in tables


def _item_of(value: exp.Expr, tree: exp.Select, names: list[str]) -> str | None:
    """The output column that has an expression over the rows, if there is one."""
    items = (item for item in tree.expressions if item.unalias() == value)
    return next((str(i.alias_or_name) for i in items if i.alias_or_name in names), None)


def _as_select(tree: exp.Query) -> exp.Select:
    """A set operation with ORDER BY and LIMIT as a SELECT over it."""
    rows = tree.copy()
    clauses = {name: rows.args.get(name) for name in ("order", "limit", "offset")}
    for name in clauses:
        rows.set(name, None)
    made = select_from(rows, [exp.Star()], "__all")
    for name, clause in clauses.items():
        made.set(name, clause)
    return made


def _numbered(body: exp.Query, root: ir.Node) -> exp.Select:
    """The rows of a query with a number that tells equal rows apart; it becomes a part of it."""
    names = [ref.column for ref in root.columns]
    number = exp.Window(
        this=exp.RowNumber(),
        partition_by=[column(name) for name in names],
        order=exp.Order(expressions=[ascending(column(names[0]))]),
        over="OVER",
    )
    items = [*(column(name) for name in names), named(number, "__nth")]
    return select_from(body, items, "__rows")


def _hidden_key(
    root: ir.Node, tree: exp.Select, schemas: Mapping[RelationId, TableSchema]
) -> list[exp.Expr] | None:
    """Select-list items for the key of the rows, where the user left it out."""
    if not isinstance(root, ir.Projection):
        return None
    below = root.child
    while isinstance(below, ir.Filter | ir.Window):
        below = below.child
    if isinstance(below, ir.Aggregate) and below.sets is not None:
        return [fragment("grouping_id() AS __k0")] if not tree.find(exp.GroupingSets) else None
    key = unique_columns(root.child, schemas)
    froms = [tree.args["from_"].this, *(join.this for join in tree.args.get("joins") or [])]
    aliases = {source.alias_or_name for source in froms if isinstance(source, exp.Table)}
    if not key or any(ref.relation not in aliases for ref in key):
        return None
    columns = (exp.column(ref.column, table=ref.relation, quoted=True) for ref in key)
    return [named(column, f"__k{i}") for i, column in enumerate(columns)]
