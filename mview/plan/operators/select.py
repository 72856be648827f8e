"""SELECT: WHERE, GROUP BY, HAVING, windows, the select list, DISTINCT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING, cast

from sqlglot import exp

from mview.plan.functions.effects import (
    aggregate_calls,
    conjuncts,
    generator,
    subqueries,
    walk,
    windows,
)
from mview.plan.functions.windows import put_windows_in_place
from mview.plan.operators import ir
from mview.plan.operators.from_clause import from_clause
from mview.plan.operators.ir import Ref, Unsupported
from mview.plan.operators.orderings import extreme_ordering, window_ordering
from mview.plan.operators.scope import Scope
from mview.plan.text.place import did_you_mean, span

if TYPE_CHECKING:
    from mview.plan.operators.build import Builder, Ctes


_MANY_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)
#: The same behind the keys, as in `GROUP BY a, b WITH ROLLUP`.
_BEHIND = ("rollup", "cube", "grouping_sets")
#: Grouping sets that are told apart.
_MOST_SETS = 4096
#: Where an alias may not stand.
_NO_ALIAS = "Spark takes none there: write what it stands for, or name it in a subquery"


@dataclass
class Core:
    """FROM and WHERE of a SELECT.

    Attributes:
        node: the operator.
        scope: names in reach.
        correlated: conditions of WHERE that use columns of the query around, bound.
    """

    node: ir.Node
    scope: Scope
    correlated: list[exp.Expr] = field(default_factory=list)


def core_of_select(builder: Builder, tree: exp.Select, ctes: Ctes, parent: Scope | None) -> Core:
    """FROM and WHERE."""
    scope = Scope(builder.text, parent=parent)
    core = Core(from_clause(builder, tree, ctes, scope), scope)
    where = tree.args.get("where")
    if where is None:
        return core
    parts = conjuncts(where.this)
    for part in sorted(parts, key=lambda conjunct: bool(subqueries(conjunct))):
        _filter(builder, core, part, ctes)
    return core


def _filter(builder: Builder, core: Core, part: exp.Expr, ctes: Ctes) -> None:
    from mview.plan.operators.subquery import filter_by_subquery

    if subqueries(part):
        core.node = filter_by_subquery(builder, core.node, core.scope, part, ctes)
        return
    outer = set(core.scope.outer)
    bound = builder.bind(part, core.scope)
    if core.scope.outer - outer or _uses(bound, core.scope.outer):
        core.correlated.append(bound)
    else:
        core.node = ir.Filter(core.node, bound)


def _uses(expression: exp.Expr, refs: set[Ref]) -> bool:
    return any(
        ir.as_ref(node) in refs for node in expression.walk() if isinstance(node, exp.Column)
    )


@dataclass
class _Select:
    """State while the clauses after WHERE are built."""

    builder: Builder
    node: ir.Node
    scope: Scope
    ctes: Ctes

    def attach(self, expression: exp.Expr) -> exp.Expr:
        """Bind an expression; its subqueries become joins."""
        from mview.plan.operators.subquery import attach_subqueries

        self.node, plain = attach_subqueries(
            self.builder, self.node, self.scope, expression, self.ctes
        )
        return self.builder.bind(plain, self.scope)


def finish_select(
    builder: Builder, tree: exp.Select, core: Core, ctes: Ctes
) -> tuple[ir.Node, tuple[tuple[str, Ref], ...]]:
    """Everything after WHERE: the operator and the output columns."""
    state = _Select(builder, core.node, core.scope, ctes)
    if tree.args.get("windows"):
        tree = tree.copy()
        put_windows_in_place(tree)
    plain = _expand_stars(builder, tree, core.scope)
    for name, expression in plain:
        if isinstance(expression, exp.Alias):
            core.scope.aliases.setdefault(name.lower(), expression.unalias())
    clauses = (tree.args.get("having"), tree.args.get("qualify"))
    values = [expr.unalias() for _, expr in plain]
    values += [clause.this for clause in clauses if clause]
    core.scope.named = len(core.scope.aliases)
    if tree.args.get("group") is not None or any(map(aggregate_calls, values)):
        bound = _aggregate(state, tree, plain, values)
    else:
        bound = _values(state, plain, values)
    items, tests = bound[: len(plain)], bound[len(plain) :]
    items = _generators(state, plain, items)
    items, tests = _windows(state, items, tests)
    for test in tests:
        state.node = ir.Filter(state.node, test)
    _use_order(state, tree, {name.lower() for name, _ in plain})
    return _project(state, tree, plain, items)


def _values(
    state: _Select, plain: list[tuple[str, exp.Expr]], values: list[exp.Expr]
) -> list[exp.Expr]:
    """The select list and the conditions, bound: each item sees the aliases before it."""
    bound, seen = [], set[str]()
    for number, value in enumerate(values):
        is_item = number < len(plain)
        state.scope.named = len(seen) if is_item else len(state.scope.aliases)
        _check_aliases(state, value, is_item)
        bound.append(state.attach(value))
        if is_item and isinstance(plain[number][1], exp.Alias):
            seen.add(plain[number][0].lower())
    return bound


def _check_aliases(state: _Select, value: exp.Expr, is_item: bool) -> None:
    """Make sure that aliases stand only where Spark takes them.

    Raises:
        UserError: one is in an aggregate, or, in the select list, in a window or a generator.
    """
    calls = [(call, "an aggregate") for call in aggregate_calls(value)]
    if is_item:
        calls += [(window, "a window") for window in windows(value)]
        calls += [(made, "a generator") for made in [generator(value)] if made is not None]
    for call, what in calls:
        for alias, _ in _aliases_in(state, call):
            raise state.builder.text.error(
                f"alias {alias.parts[0].name!r} of the select list is used in {what}",
                span(alias),
                hint=_NO_ALIAS,
            )


def _aliases_in(state: _Select, expression: exp.Expr) -> Iterator[tuple[exp.Column, exp.Expr]]:
    """The names in an expression that are aliases of the select list, and what they stand for."""
    nodes = list(walk(expression))
    lambdas = [node for node in nodes if isinstance(node, exp.Lambda)]
    parameters = {part.name.lower() for node in lambdas for part in node.expressions}
    for node in nodes:
        if not isinstance(node, exp.Column) or node.meta.get("bound"):
            continue
        stands_for = state.scope.stands_for(node)
        if stands_for is not None and node.parts[0].name.lower() not in parameters:
            yield node, stands_for


def _use_order(state: _Select, tree: exp.Select, outputs: set[str]) -> None:
    """Remember the columns that only ORDER BY and such read: the text needs them in its slices."""
    clauses = (tree.args.get(name) for name in ("order", "sort", "distribute", "cluster"))
    for clause in clauses:
        if clause is None:
            continue
        for part in subqueries(clause):
            state.attach(part)
        for column in clause.find_all(exp.Column):
            is_output = len(column.parts) == 1 and column.name.lower() in outputs
            inside = column.find_ancestor(exp.Query) is not tree
            read = None if is_output or inside else state.scope.find(column)
            if read is not None:
                state.builder.use(read.ref)
            elif not is_output and not inside:
                state.scope.resolve(column)


def _expand_stars(builder: Builder, tree: exp.Select, scope: Scope) -> list[tuple[str, exp.Expr]]:
    """The select list as (name, unbound expression); stars become bound columns."""
    items: list[tuple[str, exp.Expr]] = []
    for item in tree.expressions:
        star = item.this if isinstance(item, exp.Column) else item
        if not isinstance(star, exp.Star):
            items.append((item.alias_or_name if _named(item) else "", item))
            continue
        qualifier = (
            ".".join(p.name for p in item.parts[:-1]) if isinstance(item, exp.Column) else None
        )
        columns = scope.star(qualifier)
        if not columns:
            if scope.find(exp.column(*reversed(item.parts[:-1]))) is not None:
                raise Unsupported(
                    "STRUCT_STAR", f"{qualifier}.*, the fields of a struct", "name the fields"
                )
            known = [relation.alias for relation in scope.relations]
            hint = did_you_mean(qualifier or "", known)
            raise builder.text.error(f"unknown table {qualifier!r} of *", span(item), hint=hint)
        dropped = {column.name.lower() for column in star.args.get("except_") or []}
        for name, ref in columns:
            # The text runs verbatim: `*` needs all columns in the slices, also those it drops.
            builder.use(ref)
            if name.lower() not in dropped:
                column = ir.column(ref)
                column.meta["bound"] = True
                items.append((name, column))
    return items


def _named(item: exp.Expr) -> bool:
    return isinstance(item, exp.Alias | exp.Column | exp.Dot | exp.Aliases)


def _aggregate(
    state: _Select,
    tree: exp.Select,
    plain: list[tuple[str, exp.Expr]],
    values: list[exp.Expr],
) -> list[exp.Expr]:
    """Add the aggregate; returns the select list's values and the conditions over its columns."""
    builder = state.builder
    group, sets = _group_by(state, tree, plain)
    if tree.args.get("having"):
        number = len(plain)
        values = [
            *values[:number],
            _with_aliases(state, values[number], group),
            *values[number + 1 :],
        ]
    bound = _values(state, plain, values)
    relation = builder.fresh("agg")
    calls: dict[exp.Expr, str] = {}
    for expression in bound:
        for call in aggregate_calls(expression):
            builder.see(extreme_ordering(call, state.node, group))
            calls.setdefault(call, f"a{len(calls)}")
    names: dict[exp.Expr, str] = {}
    for position, expr in enumerate(group):
        ref = ir.as_ref(expr)
        name = ref.column if ref else f"g{position}"
        if name in names.values() or name in calls.values():
            name = f"g{position}"
        names.setdefault(expr, name)
    _check_grouped(state, bound, set(calls), list(names))
    replaced = [_replace(expr, {**calls, **names}, relation) for expr in bound]
    state.node = ir.Aggregate(
        state.node,
        relation,
        tuple((name, expr) for expr, name in names.items()),
        tuple((name, call) for call, name in calls.items()),
        sets,
    )
    return replaced


def _with_aliases(state: _Select, having: exp.Expr, group: list[exp.Expr]) -> exp.Expr:
    """HAVING as Spark reads it: a column that is not grouped by gives way to an alias.

    Args:
        having: the condition; not changed.
        group: what is grouped by, bound.
    """
    grouped = {ir.as_ref(expr) for expr in group}
    holder = exp.paren(having.copy())
    inside = {id(node) for call in aggregate_calls(holder) for node in call.walk()}
    for column in [node for node in walk(holder) if isinstance(node, exp.Column)]:
        alias = state.scope.aliases.get(column.name.lower()) if not column.table else None
        read = None if alias is None else state.scope.find(column)
        if id(column) not in inside and read is not None and read.ref not in grouped:
            assert alias is not None
            column.replace(exp.paren(alias.copy()))
    return cast(exp.Expr, holder.this)


def _check_grouped(
    state: _Select, bound: list[exp.Expr], calls: set[exp.Expr], group: list[exp.Expr]
) -> None:
    """Make sure that what stands beside aggregates is the same for all rows of a group.

    Raises:
        UserError: a column of the rows is neither grouped by nor in an aggregate.
    """
    rows = {ref for relation in state.scope.relations for _, ref in relation.columns}
    values = _values_of_rows(state.node)
    keys = {_plain(expr) for expr in group}
    key_refs = {ir.as_ref(expr) for expr in group}

    def visit(expr: exp.Expr) -> None:
        if expr in calls or _plain(expr) in keys:
            return
        ref = ir.as_ref(expr) if isinstance(expr, exp.Column) else None
        # The value of a correlated subquery is one for the group if what it is asked by is.
        loose = [ref] if ref in rows else sorted(values.get(ref, set()) - key_refs, key=str)
        for wrong in loose:
            assert wrong is not None
            raise state.builder.text.error(
                f"column {wrong.column!r} is neither in GROUP BY nor in an aggregate",
                expr.meta.get("place") or (0, 1),
                hint=f"group by it, or take max({wrong.column})",
            )
        for part in expr.iter_expressions():
            visit(part)

    for expr in bound:
        visit(expr)


def _values_of_rows(node: ir.Node) -> dict[Ref | None, set[Ref | None]]:
    """The values of subqueries below a SELECT, with the columns that each is asked by."""
    asked: dict[Ref | None, set[Ref | None]] = {}
    for child in node.children:
        asked |= _values_of_rows(child)
    if isinstance(node, ir.Join) and node.value is not None:
        outer = set(node.left.columns)
        parts = [column for condition in node.residual for column in condition.find_all(exp.Column)]
        asked[node.value] = {pair.left for pair in node.pairs}
        asked[node.value] |= {ref for column in parts if (ref := ir.as_ref(column)) in outer}
    return asked


def _plain(expr: exp.Expr) -> str:
    """The expression without parentheses, with operands that may change places in one order."""
    expr = expr.unnest()
    if isinstance(expr, exp.Add | exp.Mul | exp.EQ | exp.And | exp.Or):
        sides = sorted([_plain(expr.left), _plain(expr.right)])
        return f"{expr.key}({','.join(sides)})"
    if isinstance(expr, exp.Column | exp.Literal):
        return expr.sql()
    parts = [_plain(part) for part in expr.iter_expressions()]
    rest = {k: v for k, v in expr.args.items() if isinstance(v, str | bool) and v}
    return f"{expr.key}{sorted(rest.items())}({','.join(parts)})"


def _replace(expression: exp.Expr, names: dict[exp.Expr, str], relation: str) -> exp.Expr:
    """The expression with group expressions and aggregate calls read from the aggregate."""
    if expression in names:
        column = ir.column(Ref(relation, names[expression]))
        column.meta["bound"] = True
        return column
    for part in list(expression.iter_expressions()):
        changed = _replace(part, names, relation)
        if changed is not part:
            part.replace(changed)
    return expression


def _group_by(
    state: _Select, tree: exp.Select, plain: list[tuple[str, exp.Expr]]
) -> tuple[list[exp.Expr], tuple[tuple[int, ...], ...] | None]:
    """The distinct group expressions, and for ROLLUP and such every set of their positions."""
    group = tree.args.get("group")
    if group is None:
        return [], None
    if group.args.get("all"):
        chosen = [expr.unalias() for _, expr in plain if not aggregate_calls(expr)]
        return [_item_as_key(state, expr) for expr in chosen], None
    listed: list[exp.Expr] = []

    def position(expr: exp.Expr) -> int:
        bound = _group_item(state, expr, plain)
        if bound not in listed:
            listed.append(bound)
        return listed.index(bound)

    many = [expr for expr in group.expressions if isinstance(expr, _MANY_SETS)]
    keys = [expr for expr in group.expressions if not isinstance(expr, _MANY_SETS)]
    choices = [_sets_of(expr, position) for expr in (*keys, *many)]
    behind = [part for kind in _BEHIND for part in group.args.get(kind) or []]
    for expr in behind:
        # GROUP BY a, b WITH ROLLUP is GROUP BY ROLLUP (a, b).
        given = expr if expr.expressions else type(expr)(expressions=[k.copy() for k in keys])
        choices = [_sets_of(given, position)]
    if not many and not behind:
        return listed, None
    if prod(map(len, choices)) > _MOST_SETS:
        raise Unsupported("GROUPING_SETS", f"more than {_MOST_SETS} grouping sets", "group by less")
    # Of the clauses each set of one goes with each set of the others.
    return listed, tuple(tuple(sorted(set().union(*sets))) for sets in product(*choices))


def _sets_of(expr: exp.Expr, position: Callable[[exp.Expr], int]) -> list[set[int]]:
    """The grouping sets of an item of GROUP BY: those of ROLLUP and such, or one."""
    expr = expr.unnest()
    if isinstance(expr, exp.GroupingSets):
        return [made for part in expr.expressions for made in _sets_of(part, position)]
    if not isinstance(expr, exp.Tuple | exp.Rollup | exp.Cube):
        return [{position(expr)}]
    parts = [set().union(*_sets_of(part, position)) for part in expr.expressions]
    sizes = range(len(parts), -1, -1)
    if isinstance(expr, exp.Tuple):
        return [set().union(*parts)]
    if isinstance(expr, exp.Rollup):
        return [set().union(*parts[:size]) for size in sizes]
    if 2 ** len(parts) > _MOST_SETS:
        raise Unsupported("GROUPING_SETS", f"more than {_MOST_SETS} grouping sets", "group by less")
    return [set().union(*chosen) for size in sizes for chosen in combinations(parts, size)]


def _group_item(state: _Select, expr: exp.Expr, plain: list[tuple[str, exp.Expr]]) -> exp.Expr:
    if isinstance(expr, exp.Literal) and not expr.is_string and expr.name.isdigit():
        position = int(expr.name)
        if not 1 <= position <= len(plain):
            raise state.builder.text.error(
                f"GROUP BY position {position} is not in the select list of {len(plain)}",
                span(expr),
            )
        return _item_as_key(state, plain[position - 1][1].unalias()).unnest()
    for _, stands_for in _aliases_in(state, expr):
        _check_key(state, stands_for)
    return state.attach(expr).unnest()


def _item_as_key(state: _Select, item: exp.Expr) -> exp.Expr:
    _check_key(state, item)
    return state.attach(item)


def _check_key(state: _Select, item: exp.Expr) -> None:
    """Make sure that an item of the select list that rows are grouped by is made of no alias."""
    for alias, _ in _aliases_in(state, item):
        raise state.builder.text.error(
            f"GROUP BY an expression that is made of alias {alias.parts[0].name!r}",
            span(alias),
            hint=_NO_ALIAS,
        )


def _windows(
    state: _Select, items: list[exp.Expr], tests: list[exp.Expr]
) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """Add one Window per distinct partitioning; its calls become columns."""
    everything = [*items, *tests]
    by_partition: dict[tuple[exp.Expr, ...], dict[exp.Expr, str]] = {}
    count = 0
    for expression in everything:
        for window in windows(expression):
            state.builder.see(window_ordering(window, state.node, state.scope))
            partition = tuple(window.args.get("partition_by") or ())
            functions = by_partition.setdefault(partition, {})
            if window not in functions:
                functions[window] = f"w{count}"
                count += 1
    for partition, functions in by_partition.items():
        relation = state.builder.fresh("window")
        everything = [_replace(expr, functions, relation) for expr in everything]
        listed = tuple((name, call) for call, name in functions.items())
        state.node = ir.Window(state.node, relation, partition, listed)
    return everything[: len(items)], everything[len(items) :]


def _generators(
    state: _Select, plain: list[tuple[str, exp.Expr]], items: list[exp.Expr]
) -> list[exp.Expr]:
    """Generators of the select list (`explode(xs) AS x`): windows see the rows that they make."""
    done = []
    for (name, original), item in zip(plain, items, strict=True):
        call = generator(item)
        if call is None:
            done.append(item)
            continue
        if isinstance(original, exp.Aliases) or not name:
            raise Unsupported("GENERATOR", "a generator with several columns", "use LATERAL VIEW")
        relation = state.builder.fresh("generated")
        made_of, text = ir.refs_of(call), call.sql(dialect="spark")
        state.node = ir.Generate(state.node, relation, (name,), made_of, text)
        done.append(ir.column(Ref(relation, name)))
    return done


def _project(
    state: _Select,
    tree: exp.Select,
    plain: list[tuple[str, exp.Expr]],
    items: list[exp.Expr],
) -> tuple[ir.Node, tuple[tuple[str, Ref], ...]]:
    names = [name for name, _ in plain]
    unique = [
        name if name and name not in names[:i] else f"{name or 'c'}_{i}"
        for i, name in enumerate(names)
    ]
    relation = state.builder.fresh("select")
    node: ir.Node = ir.Projection(state.node, relation, tuple(zip(unique, items, strict=True)))
    if tree.args.get("distinct"):
        node = ir.Distinct(node)
    return node, tuple((name, Ref(relation, u)) for name, u in zip(names, unique, strict=True))
