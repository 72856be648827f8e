"""From syntax tree to IR: names bound to columns, clauses to operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from sqlglot import exp

from mview.errors import UserError
from mview.plan.clocks import is_clock
from mview.plan.definition import ViewDefinition, name_of
from mview.plan.functions.effects import function_name
from mview.plan.functions.names import GENERATORS
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref, Unsupported
from mview.plan.operators.orderings import Ordering, limit_ordering
from mview.plan.operators.scope import Read, Scope
from mview.plan.operators.select import core_of_select, finish_select
from mview.plan.text.place import Text, did_you_mean, span
from mview.relation import RelationId
from mview.schema import TableSchema


@dataclass(frozen=True)
class Built:
    """A query's IR and its output columns as (name as written, column)."""

    node: ir.Node
    columns: tuple[tuple[str, Ref], ...]


@dataclass(frozen=True)
class BuiltView:
    """A view's IR, the columns that are read of every table, and where order decides."""

    root: ir.Node
    used: Mapping[RelationId, frozenset[str]]
    orderings: tuple[Ordering, ...] = ()


Ctes = Mapping[str, "CteBody"]


@dataclass(frozen=True)
class CteBody:
    """A CTE and the CTEs that it can see."""

    query: exp.Query
    names: tuple[str, ...]
    ctes: Ctes


@dataclass
class Builder:
    """What is shared while one view is built."""

    text: Text
    schemas: Mapping[RelationId, TableSchema]
    #: Types of the declared functions, by name.
    returns: Mapping[str, str]
    relations: set[str] = field(default_factory=set)
    scanned: dict[str, RelationId] = field(default_factory=dict)
    used: dict[RelationId, set[str]] = field(default_factory=dict)
    orderings: list[Ordering] = field(default_factory=list)

    def see(self, ordering: Ordering | None) -> None:
        """Remember a place where the order of rows decides."""
        if ordering is not None:
            self.orderings.append(ordering)

    def fresh(self, name: str) -> str:
        """A relation instance name that was not used yet."""
        candidate, number = name, 1
        while candidate in self.relations:
            number += 1
            candidate = f"{name}#{number}"
        self.relations.add(candidate)
        return candidate

    def use(self, ref: Ref) -> Ref:
        """Remember that a column of a table is read."""
        if ref.relation in self.scanned:
            self.used[self.scanned[ref.relation]].add(ref.column)
        return ref

    def scan(self, table: exp.Table) -> ir.Scan:
        """The scan of a table.

        Raises:
            UserError: there is no such table.
        """
        name = name_of(table)
        schema = self.schemas.get(name)
        if schema is None:
            raise self.text.error(
                f"unknown table {str(name)!r}",
                span_of_name(table),
                hint=_known(name, self.schemas),
            )
        relation = self.fresh(table.alias or table.name)
        self.scanned[relation] = name
        self.used.setdefault(name, set()).update(schema.key)
        # The key of a table is NOT NULL; that of a view may be a group of NULLs.
        not_null = frozenset(c.name for c in schema.columns if not c.nullable)
        return ir.Scan(name, relation, schema.names, schema.key, not_null)

    def query(self, tree: exp.Expr, ctes: Ctes, parent: Scope | None = None) -> Built:
        """The IR of any query: SELECT, set operation, parenthesis, VALUES."""
        built = self._query(tree, self.with_ctes(tree, ctes), parent)
        if isinstance(tree, exp.SetOperation):
            self._check_order(tree, {name.lower() for name, _ in built.columns})
        if not isinstance(tree, exp.Select):
            self.see(limit_ordering(tree, built.node, built.columns, None))
        return Built(self.limited(tree, built.node), built.columns)

    def _query(self, tree: exp.Expr, ctes: Ctes, parent: Scope | None) -> Built:
        if isinstance(tree, exp.Subquery):
            return self.query(tree.this, ctes, parent)
        if isinstance(tree, exp.SetOperation):
            return self._set_operation(tree, ctes)
        if isinstance(tree, exp.Select):
            core = core_of_select(self, tree, ctes, parent)
            node, columns = finish_select(self, tree, core, ctes)
            if core.correlated or core.scope.outer:
                raise Unsupported(
                    "CORRELATION",
                    "a correlated query stands in a place that is not traced",
                    "use a join",
                )
            self.see(limit_ordering(tree, node, columns, core.scope))
            return Built(node, columns)
        raise Unsupported("SYNTAX", f"{type(tree).__name__} is not traced", "write it as SELECT")

    def with_ctes(self, tree: exp.Expr, ctes: Ctes) -> Ctes:
        """The CTEs in reach below a query."""
        with_ = tree.args.get("with_")
        if with_ is None:
            return ctes
        if with_.args.get("recursive"):
            raise Unsupported("RECURSIVE", "a recursive CTE", "bound the recursion with joins")
        seen = dict(ctes)
        for cte in with_.expressions:
            names = tuple(column.name for column in cte.args["alias"].columns)
            seen[cte.alias.lower()] = CteBody(cte.this, names, dict(seen))
        return seen

    def limited(self, tree: exp.Expr, node: ir.Node) -> ir.Node:
        """The node under the query's LIMIT or OFFSET, if it has one."""
        for name in ("limit", "offset", "fetch"):
            if tree.args.get(name) is not None:
                return ir.Limit(node, tree.args[name].sql(dialect="spark").strip())
        return node

    def _set_operation(self, tree: exp.SetOperation, ctes: Ctes) -> Built:
        if tree.args.get("by_name"):
            raise Unsupported("BY_NAME", "UNION BY NAME", "list the columns in the same order")
        sides = [self.query(side, ctes) for side in (tree.left, tree.right)]
        widths = [len(side.columns) for side in sides]
        if widths[0] != widths[1]:
            raise self.text.error(
                f"the sides of {tree.key.upper()} have {widths[0]} and {widths[1]} columns",
                span(tree.right),
            )
        keep_all = not tree.args.get("distinct")
        kind: ir.SetKind = "intersect" if isinstance(tree, exp.Intersect) else "except"
        if isinstance(tree, exp.Union):
            kind = "union all" if keep_all else "union"
        relation = self.fresh(kind.split()[0])
        names = tuple(name for name, _ in sides[0].columns)
        unique = tuple(n if names.index(n) == i else f"{n}_{i}" for i, n in enumerate(names))
        # A branch may carry one column twice: pass each through a projection by position.
        branches = tuple(self.positional(side) for side in sides)
        node = ir.SetOp(branches, kind, relation, unique, keep_all)
        return Built(node, tuple((n, Ref(relation, u)) for n, u in zip(names, unique, strict=True)))

    def _check_order(self, tree: exp.SetOperation, names: set[str]) -> None:
        """Make sure that a set operation is ordered by its columns."""
        order = tree.args.get("order")
        for column in order.find_all(exp.Column) if order is not None else ():
            if column.name.lower() not in names:
                raise self.text.error(
                    f"unknown column {column.name!r}",
                    span(column),
                    hint=did_you_mean(column.name, names),
                )

    def positional(self, built: Built) -> ir.Node:
        """The query with exactly its output columns, in order."""
        refs = tuple(ref for _, ref in built.columns)
        if built.node.columns == refs:
            return built.node
        items = tuple((f"c{i}", ir.column(ref)) for i, ref in enumerate(refs))
        return ir.Projection(built.node, self.fresh("row"), items)

    def bind(self, expression: exp.Expr, scope: Scope) -> exp.Expr:
        """The expression with its columns bound; it must hold no subquery any more."""
        return _Binder(self, scope).bind(expression.copy(), frozenset())


@dataclass
class _Binder:
    builder: Builder
    scope: Scope

    def bind(self, node: exp.Expr, hidden: frozenset[str]) -> exp.Expr:
        """Bind below a node; `hidden` are lambda parameters."""
        if isinstance(node, exp.Column):
            return self._column(node, hidden)
        if isinstance(node, exp.Lambda):
            hidden = hidden | {argument.name.lower() for argument in node.expressions}
        if isinstance(node, exp.Anonymous) and node.name.lower() in self.builder.returns:
            node.meta["returns"] = self.builder.returns[node.name.lower()]
        for part in list(node.iter_expressions()):
            bound = self.bind(part, hidden)
            if bound is not part:
                part.replace(bound)
        return node

    def _column(self, node: exp.Column, hidden: frozenset[str]) -> exp.Expr:
        if not isinstance(node.this, exp.Identifier) or node.parts[0].name.lower() in hidden:
            return node
        if node.meta.get("bound"):
            return node
        meant = self.scope.resolve(node)
        if isinstance(meant, Read):
            self.builder.use(meant.ref)
            bound = meant.expression()
            for column in bound.find_all(exp.Column):
                column.meta.update(bound=True, place=span(node))
            return bound
        return exp.paren(self._alias(node, meant, hidden))

    def _alias(self, node: exp.Column, stands_for: exp.Expr, hidden: frozenset[str]) -> exp.Expr:
        """What an alias stands for, which sees the aliases before it."""
        aliases, named = list(self.scope.aliases), self.scope.named
        self.scope.named = aliases.index(node.parts[0].name.lower())
        try:
            return self.bind(stands_for.copy(), hidden)
        finally:
            self.scope.named = named


def span_of_name(table: exp.Table) -> tuple[int, int]:
    """Characters of a table's name without its alias."""
    parts = table.parts
    return min(p.meta["start"] for p in parts), max(p.meta["end"] for p in parts) + 1


def build(definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]) -> BuiltView:
    """The IR of a view.

    Args:
        schemas: of every table and view that it may read, by name.

    Raises:
        UserError: a table, column or function is unknown, a column is ambiguous, or an output
            column has no own name.
        Unsupported: the IR cannot express the query.
    """
    read = tuple((name, schemas.get(name)) for name in definition.table_names)
    # One query is asked for by several steps of planning, with the same tables.
    asked = ("build", definition.relation, definition.functions)
    known = definition.query.known.get(asked)
    if isinstance(known, tuple) and known[0] == read and None not in dict(read).values():
        return cast(BuiltView, known[1])
    built = _build(definition, schemas)
    definition.query.known[asked] = read, built
    return built


def _build(definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]) -> BuiltView:
    returns = {function.name: function.returns for function in definition.functions}
    builder = Builder(definition.text, schemas, returns)
    tree = definition.tree
    _check_tables(definition, schemas)
    built = builder.query(tree, {})
    check_names(definition, [name for name, _ in built.columns])
    root = builder.positional(built)
    if not isinstance(root, ir.Projection) or tuple(n for n, _ in root.items) != tuple(
        n for n, _ in built.columns
    ):
        items = tuple((name, ir.column(ref)) for name, ref in built.columns)
        root = ir.Projection(built.node, builder.fresh(str(definition.relation)), items)
    used = {table: frozenset(names) for table, names in builder.used.items()}
    return BuiltView(root, used, tuple(builder.orderings))


def if_accepted(
    changed: ViewDefinition, before: ViewDefinition, schemas: Mapping[RelationId, TableSchema]
) -> ViewDefinition:
    """`changed` where `build` accepts it, else `before`: not every rewriting is a query."""
    try:
        build(changed, schemas)
    except (UserError, Unsupported):
        return before
    return changed


def _check_tables(definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]) -> None:
    for use in definition.tables:
        if use.name not in schemas:
            raise definition.text.error(
                f"unknown table {str(use.name)!r}",
                (use.start, use.end),
                hint=_known(use.name, schemas),
            )


def _known(name: RelationId, schemas: Mapping[RelationId, TableSchema]) -> str | None:
    known = did_you_mean(str(name), (str(table) for table in schemas if not is_clock(table)))
    if name.is_table:
        return known
    # Without a connection it can only be a view.
    view = "a view that is not in the store yet: give its file or folder, too"
    table = f"a table is written <connection>.{name}"
    return "; ".join(hint for hint in (known, table, view) if hint is not None)


def check_names(definition: ViewDefinition, columns: Sequence[str]) -> None:
    """Refuse columns without a name, and names that stand twice.

    Args:
        columns: the names, in order; "" for none.

    Raises:
        UserError: with the column.
    """
    names = [name.lower() for name in columns]
    for position, name in enumerate(columns):
        if not name:
            raise UserError(
                f"column {position + 1} of view {definition.name!r} has no name",
                where=f"{definition.file}:{definition.line}",
                hint=_naming(definition, position),
            )
        if names.index(name.lower()) != position:
            raise UserError(
                f"two columns of view {definition.name!r} are called {name!r}",
                where=f"{definition.file}:{definition.line}",
                hint="rename one with AS, or list the columns instead of *",
            )


def _naming(definition: ViewDefinition, position: int) -> str:
    items = _items(definition) or []
    if position < len(items) and isinstance(items[position], exp.Literal):
        # Engines whose names stand in double quotes: here these make a text.
        name = items[position].name
        return f"what stands in quotes is a text; a column in backticks: `{name}`"
    return "give it one: <expression> AS <name>"


def listed_names(definition: ViewDefinition) -> list[str] | None:
    """The columns of a view as its text lists them, "" for one without a name.

    None where a `*` or a generator stands for several.
    """
    items = _items(definition)
    if items is None:
        return None
    return [
        item.alias_or_name if isinstance(item, exp.Alias | exp.Column) else "" for item in items
    ]


def _items(definition: ViewDefinition) -> list[exp.Expr] | None:
    """What a view selects; None where its text does not list it all."""
    tree: exp.Expr = definition.tree
    while isinstance(tree, exp.Subquery | exp.SetOperation):
        tree = tree.this
    if not isinstance(tree, exp.Select) or tree.is_star:
        return None
    items = tree.expressions
    if any(isinstance(e, exp.Aliases) or function_name(e) in GENERATORS for e in items):
        return None
    return list(items)
