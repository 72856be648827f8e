"""FROM: tables, derived tables, joins and LATERAL VIEW."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlglot import exp

from mview.plan.functions.effects import conjuncts, subqueries
from mview.plan.operators import ir
from mview.plan.operators.ir import Pair, Ref, Unsupported
from mview.plan.operators.scope import FromItem, Scope
from mview.plan.text.place import span

if TYPE_CHECKING:
    from mview.plan.operators.build import Builder, Ctes


def from_clause(builder: Builder, tree: exp.Select, ctes: Ctes, scope: Scope) -> ir.Node:
    """The operator for FROM with its joins; fills the scope's relations."""
    from_ = tree.args.get("from_")
    if from_ is None:
        return ir.Values(builder.fresh("one_row"), ())
    node = _relation(builder, from_.this, ctes, scope)
    # Spark joins from left to right, whether by a comma or by JOIN.
    for join in tree.args.get("joins") or []:
        node = _join(builder, join, node, ctes, scope)
    for lateral in tree.args.get("laterals") or []:
        node = _lateral_view(builder, lateral, node, scope)
    return node


def _relation(builder: Builder, tree: exp.Expr, ctes: Ctes, scope: Scope) -> ir.Node:
    """One item of FROM; adds it to the scope."""
    if tree.args.get("pivots"):
        return _pivot(builder, tree, ctes, scope)
    for part in ("joins", "laterals"):
        if tree.args.get(part):
            raise Unsupported("FROM", f"{part} in FROM", "write it as a derived table with SELECT")
    if isinstance(tree, exp.Table) and isinstance(tree.this, exp.Identifier):
        return _table(builder, tree, ctes, scope)
    if isinstance(tree, exp.Subquery):
        built = builder.query(tree.this, builder.with_ctes(tree, ctes))
        _add(scope, tree, tree.alias, built.columns)
        return built.node
    if isinstance(tree, exp.Values):
        width = len(tree.expressions[0].expressions) if tree.expressions else 0
        names = tuple(c.name for c in tree.args["alias"].columns) if tree.args.get("alias") else ()
        names = names or tuple(f"col{i + 1}" for i in range(max(width, 1)))
        node = ir.Values(builder.fresh(tree.alias or "values"), names)
        _add(scope, tree, tree.alias, tuple((ref.column, ref) for ref in node.columns))
        return node
    raise Unsupported("FROM", f"{type(tree).__name__} in FROM", "read tables or derived tables")


def _table(builder: Builder, tree: exp.Table, ctes: Ctes, scope: Scope) -> ir.Node:
    body = ctes.get(tree.name.lower()) if not tree.db else None
    if body is None:
        scan = builder.scan(tree)
        columns = tuple((ref.column, ref) for ref in scan.columns)
        unread, full = builder.schemas[scan.table].unread, ".".join(p.name for p in tree.parts)
        _add(scope, tree, tree.alias or tree.name, columns, full, unread)
        return scan
    built = builder.query(body.query, body.ctes)
    columns = built.columns
    if body.names:
        if len(body.names) != len(columns):
            raise builder.text.error(
                f"{tree.name} has {len(body.names)} names for {len(columns)} columns", span(tree)
            )
        columns = tuple((n, ref) for n, (_, ref) in zip(body.names, columns, strict=True))
    _add(scope, tree, tree.alias or tree.name, columns)
    return built.node


def _add(
    scope: Scope,
    tree: exp.Expr,
    alias: str,
    columns: tuple[tuple[str, Ref], ...],
    table: str | None = None,
    unread: tuple[str, ...] = (),
) -> None:
    renamed = tree.args["alias"].columns if tree.args.get("alias") else []
    if renamed:
        if len(renamed) != len(columns):
            raise scope.text.error(
                f"{len(renamed)} names for {len(columns)} columns", span(tree.args["alias"])
            )
        columns = tuple((n.name, ref) for n, (_, ref) in zip(renamed, columns, strict=True))
    has_alias = bool(tree.args.get("alias"))
    scope.relations.append(FromItem(alias, columns, None if has_alias else table, unread))


def _join(builder: Builder, join: exp.Join, left: ir.Node, ctes: Ctes, scope: Scope) -> ir.Node:
    kind, on = _kind(join), join.args.get("on")
    if isinstance(join.this, exp.Lateral):
        if join.this.args.get("view"):
            return _lateral_view(builder, join.this, left, scope)
        return _lateral(builder, join.this, left, ctes, scope, on)
    before = len(scope.relations)
    right = _relation(builder, join.this, ctes, scope)
    added = scope.relations[before:]
    if join.args.get("using") or join.method == "NATURAL":
        return _using(builder, join, kind, left, right, scope, before)
    conditions = conjuncts(on) if on is not None else []
    queries = [part for part in conditions if subqueries(part)]
    if queries and kind != "inner":
        raise Unsupported(
            "SUBQUERY_IN_ON", f"a subquery in ON of a {kind} join", "join a derived table"
        )
    bound = [builder.bind(part, scope) for part in conditions if part not in queries]
    pairs, residual = pairs_of(bound, left, right)
    if scope.outer:
        raise Unsupported("CORRELATION", "ON uses a column of the query around", "move it to WHERE")
    if kind in ("semi", "anti"):
        del scope.relations[before:]
    assert added
    joined = ir.Join(left, right, kind, pairs, residual)
    return _filtered(builder, joined, scope, queries, ctes)


def _filtered(
    builder: Builder, node: ir.Node, scope: Scope, queries: list[exp.Expr], ctes: Ctes
) -> ir.Node:
    """The rows for which conditions with subqueries are true."""
    from mview.plan.operators.subquery import filter_by_subquery

    for part in queries:
        node = filter_by_subquery(builder, node, scope, part, ctes)
    return node


def _kind(join: exp.Join) -> ir.JoinKind:
    if join.kind in ("SEMI", "ANTI"):
        return "semi" if join.kind == "SEMI" else "anti"
    if join.side == "LEFT":
        return "left"
    if join.side == "RIGHT":
        return "right"
    return "full" if join.side == "FULL" else "inner"


def pair_of(part: exp.Expr, left: ir.Node, right: ir.Node) -> Pair | None:
    """The predicate as an equality of a left and a right column, if it is one."""
    if not isinstance(part, exp.EQ | exp.NullSafeEQ):
        return None
    ref, other = ir.as_ref(part.left), ir.as_ref(part.right)
    if ref is None or other is None:
        return None
    null_safe = isinstance(part, exp.NullSafeEQ)
    if ref in left.columns and other in right.columns:
        return Pair(ref, other, null_safe)
    if other in left.columns and ref in right.columns:
        return Pair(other, ref, null_safe)
    return None


def pairs_of(
    parts: Iterable[exp.Expr], left: ir.Node, right: ir.Node
) -> tuple[tuple[Pair, ...], tuple[exp.Expr, ...]]:
    """The equalities of a left and a right column among predicates, and the others."""
    pairs: dict[Pair, None] = {}
    others = []
    for part in parts:
        if (pair := pair_of(part, left, right)) is None:
            others.append(part)
        else:
            pairs[pair] = None
    return tuple(pairs), tuple(others)


def _using(
    builder: Builder,
    join: exp.Join,
    kind: ir.JoinKind,
    left: ir.Node,
    right: ir.Node,
    scope: Scope,
    before: int,
) -> ir.Node:
    """JOIN … USING and NATURAL JOIN."""
    sides = [_names(scope.relations[:before], scope.merged), _names(scope.relations[before:], {})]
    names = list(join.args.get("using") or [])
    if join.method == "NATURAL":
        names = [exp.to_identifier(name) for name in sides[0] if name in sides[1]]
        for relation in scope.relations:
            for _, ref in relation.columns:
                builder.use(ref)
    pairs, merged = [], []
    for name in names:
        low = name.name.lower()
        for side in sides:
            if low not in side:
                raise builder.text.error(f"unknown column {name.name!r} in USING", span(name))
        pair = Pair(builder.use(sides[0][low]), builder.use(sides[1][low]))
        pairs.append(pair)
        scope.merged[low] = pair.right if kind == "right" else pair.left
        if kind == "full":
            scope.merged[low] = Ref(builder.fresh("using"), pair.left.column)
            merged.append((scope.merged[low], pair))
    if kind in ("semi", "anti"):
        del scope.relations[before:]
    return ir.Join(left, right, kind, tuple(pairs), merged=tuple(merged))


def _names(relations: list[FromItem], merged: dict[str, Ref]) -> dict[str, Ref]:
    refs = {name.lower(): ref for relation in relations for name, ref in relation.columns}
    return refs | merged


def _lateral(
    builder: Builder,
    tree: exp.Lateral,
    node: ir.Node,
    ctes: Ctes,
    scope: Scope,
    on: exp.Expr | None,
) -> ir.Node:
    """LATERAL (SELECT …): rows made from each row and what the subquery finds for it."""
    from mview.plan.operators.subquery import rows_beside

    if not isinstance(tree.this, exp.Subquery):
        raise Unsupported("LATERAL", "LATERAL over a function", "write LATERAL VIEW")
    beside, names = rows_beside(builder, node, scope, tree.this, ctes)
    relation = builder.fresh(tree.alias or "lateral")
    # Two columns of one name can be read by * only.
    unique = tuple(n if names.index(n) == i else f"{n}_{i}" for i, n in enumerate(names))
    made = ir.Generate(beside, relation, unique, beside.made_of, f"LATERAL {tree.alias}")
    columns = tuple((n, Ref(relation, u)) for n, u in zip(names, unique, strict=True))
    _add(scope, tree, tree.alias or relation, columns)
    if on is None:
        return made
    if subqueries(on):
        raise Unsupported("SUBQUERY_IN_ON", "a subquery in ON of LATERAL", "move it to WHERE")
    # What ON leaves over of a row depends on that row alone, also in an outer join.
    return ir.Filter(made, builder.bind(on, scope))


def _pivot(builder: Builder, tree: exp.Expr, ctes: Ctes, scope: Scope) -> ir.Node:
    """PIVOT: groups by all columns that it does not name; one column per value and aggregate."""
    pivot, *more = tree.args["pivots"]
    values = [value for field in pivot.args["fields"] for value in field.expressions]
    calls = pivot.expressions
    named = len(calls) == 1 or all(isinstance(call, exp.Alias) for call in calls)
    plain = all(isinstance(value, exp.PivotAlias | exp.Literal) for value in values)
    if more or pivot.args.get("unpivot") or not (named and plain):
        raise Unsupported(
            "PIVOT",
            "UNPIVOT, or PIVOT with a value or aggregate that has no name",
            "name them with AS; for UNPIVOT write stack(…)",
        )
    below, inside = tree.copy(), Scope(builder.text)
    below.set("pivots", None)
    child = _relation(builder, below, ctes, inside)
    for _, ref in inside.star(None):
        builder.use(ref)
    parts = [*calls, *(field.this for field in pivot.args["fields"])]
    bound = [builder.bind(part, inside) for part in parts]
    read = {ir.as_ref(node) for part in bound for node in part.find_all(exp.Column)}
    group = tuple((name, ir.column(ref)) for name, ref in inside.star(None) if ref not in read)
    relation = builder.fresh(pivot.alias or "pivot")
    names = [column.name for column in pivot.args["columns"]]
    made = tuple((name, exp.Pivot(expressions=[expr.copy() for expr in bound])) for name in names)
    node = ir.Aggregate(child, relation, group, made)
    _add(scope, pivot, pivot.alias, tuple((ref.column, ref) for ref in node.columns))
    return node


def _lateral_view(builder: Builder, tree: exp.Lateral, node: ir.Node, scope: Scope) -> ir.Node:
    """LATERAL VIEW [OUTER] generator(…) alias AS names."""
    call = builder.bind(tree.this, scope)
    alias = tree.args.get("alias")
    names = tuple(c.name for c in alias.columns) if alias else ()
    names = names or ("col",)
    relation = builder.fresh(alias.name if alias and alias.name else "generated")
    made = ir.Generate(node, relation, names, ir.refs_of(call), call.sql(dialect="spark"))
    columns = tuple((name, Ref(relation, name)) for name in names)
    scope.relations.append(FromItem(tree.alias or relation, columns))
    return made
