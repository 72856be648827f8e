"""What names mean in a query, before it is resolved by sqlglot: tables, bare columns, aliases."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from sqlglot import exp

from mview.execute.local.expressions import only
from mview.execute.refusal import NotAdmittedError
from mview.plan.functions.effects import conjuncts

#: Where Spark looks among the aliases of the select list first.
_ALIASES_FIRST = ("having", "order", "sort", "qualify")

#: The mark of a join by USING.
_MERGES = "merges"


def name_tables(tree: exp.Expr, known: Mapping[str, Any]) -> None:
    """Give every table one identifier, e.g. `shop.orders`, and keep its alias."""
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        name = ".".join(part.name for part in table.parts).lower()
        only(table, "this", "db", "catalog", "alias")
        if name in ctes and name in known:
            raise NotAdmittedError("name", f"CTE {name} with the name of a table")
        if name in ctes:
            continue
        if name not in known:
            raise NotAdmittedError("name", f"table {name}")
        alias = exp.TableAlias(this=exp.to_identifier(table.alias or table.name))
        table.replace(exp.Table(this=exp.to_identifier(name, quoted=True), alias=alias))


def name_columns(tree: exp.Expr, known: Mapping[str, AbstractSet[str]]) -> None:
    """Put the table before bare columns that one table of the same FROM has.

    In `SELECT upper(s) AS s FROM t WHERE s <> ''` each `s` but the alias is the table's: Spark
    looks there first. In HAVING and ORDER BY it does not: they are left.

    Args:
        tree: a query whose tables have their names.
        known: columns of the tables, in lower case.
    """
    ctes = _results(tree, known)
    for select in tree.find_all(exp.Select):
        sources = _sources(select, known, ctes)
        if sources is None:
            continue
        merged = {
            column.name.lower()
            for join in select.args.get("joins") or ()
            for column in join.args.get("using") or ()
        }
        for column in select.find_all(exp.Column):
            if column.table or column.parent_select is not select:
                continue
            named = [alias for alias, columns in sources if column.name.lower() in columns]
            if column.name.lower() in merged:
                continue
            if len(named) == 1 and _clause(column, select) not in _ALIASES_FIRST:
                column.set("table", named[0].copy())


def _results(
    tree: exp.Expr, known: Mapping[str, AbstractSet[str]]
) -> Mapping[str, AbstractSet[str] | None]:
    """The columns of what WITH names, by its name in lower case; None: they are not plain."""
    ctes = list(tree.find_all(exp.CTE))
    results: dict[str, AbstractSet[str] | None] = {}
    for _ in ctes:  # each reads those before it
        made = {cte.alias.lower(): _listed(cte, known, results) for cte in ctes}
        if made == results:
            break
        results = made
    return results


def _sources(
    select: exp.Select,
    known: Mapping[str, AbstractSet[str]],
    ctes: Mapping[str, AbstractSet[str] | None],
) -> list[tuple[exp.Identifier, AbstractSet[str]]] | None:
    """The aliases in FROM with their columns; None: not all of them are plain."""
    first, joins = select.args.get("from_"), select.args.get("joins") or ()
    if first is None or select.args.get("laterals"):
        return None
    if any(join.args.get("method") for join in joins):
        return None
    sources: list[tuple[exp.Identifier, AbstractSet[str]]] = []
    for source in (first.this, *(join.this for join in joins)):
        alias = source.args.get("alias")
        columns, called = None, alias and alias.this
        if isinstance(source, exp.Table):
            name = source.name.lower()
            columns, called = known.get(name, ctes.get(name)), called or source.this
        elif isinstance(source, exp.Subquery):
            columns = _listed(source, known, ctes)
        if columns is None or called is None or (alias and alias.columns):
            return None
        sources.append((called, columns))
    return sources


def _listed(
    query: exp.CTE | exp.Subquery,
    known: Mapping[str, AbstractSet[str]],
    ctes: Mapping[str, AbstractSet[str] | None],
) -> AbstractSet[str] | None:
    """The columns of a query's result by their names; None where they are not plain."""
    alias = query.args.get("alias")
    if alias is None or alias.columns or not isinstance(query.this, exp.Query):
        return None
    first: exp.Expr = query.this
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    if not isinstance(first, exp.Select):
        return None
    names: set[str] = set()
    for item in first.expressions:
        star = item.this if isinstance(item, exp.Column) else item
        shown = {item.alias_or_name.lower()}
        if isinstance(star, exp.Star):
            shown = _starred(first, item, star, known, ctes)
        if not shown or "" in shown:
            return None
        names |= shown
    return names or None


def _starred(
    select: exp.Select,
    item: exp.Expr,
    star: exp.Star,
    known: Mapping[str, AbstractSet[str]],
    ctes: Mapping[str, AbstractSet[str] | None],
) -> set[str]:
    """The columns that a `*` or `t.*` stands for; none: they are not plain."""
    sources = _sources(select, known, ctes)
    if sources is None or star.args.get("rename"):
        return set()
    table = item.table.lower() if isinstance(item, exp.Column) else ""
    shown = (columns for called, columns in sources if table in ("", called.name.lower()))
    left_out = {column.name.lower() for column in star.args.get("except_") or ()}
    return set().union(*shown) - left_out


def _clause(column: exp.Column, select: exp.Select) -> str | None:
    """In which clause of a SELECT a column stands."""
    node: exp.Expr = column
    while node.parent is not select and node.parent is not None:
        node = node.parent
    return node.arg_key


def check_names(tree: exp.Expr, known: Mapping[str, AbstractSet[str]]) -> None:
    """Refuse aliases that hide a column and are then used bare: which is meant differs."""
    columns = {column for table in known.values() for column in table}
    shared = [s for cte in tree.find_all(exp.CTE) for s in cte.find_all(exp.Select)]
    for select in tree.find_all(exp.Select):
        below = [s for s in [*select.find_all(exp.Select), *shared] if s is not select]
        others = {name.lower() for s in below for name in s.named_selects}
        for item in select.expressions:
            name = item.alias.lower() if isinstance(item, exp.Alias) else ""
            if name not in columns | others:
                continue
            if isinstance(item.this, exp.Column) and item.this.name.lower() == name:
                continue
            for column in select.find_all(exp.Column):
                if column.name.lower() == name and not column.table:
                    raise NotAdmittedError("name", f"alias {name} that hides a column")


def mark_using(tree: exp.Expr) -> None:
    """Mark joins by USING, before names are resolved, which turns NATURAL into a plain join too."""
    for join in tree.find_all(exp.Join):
        only(join, "this", "side", "kind", "on", "using")
        join.meta[_MERGES] = bool(join.args.get("using"))


def merges(join: exp.Join) -> bool:
    """Whether a join was one by USING, which makes one column of two."""
    return bool(join.meta.get(_MERGES))


def join_merged(tree: exp.Expr) -> None:
    """Have every JOIN … USING go by what the joins before it have made of its columns.

    Of `a FULL JOIN b USING (k) JOIN c USING (k)` the second k is that of b where a has no row, but
    sqlglot resolves it to `a.k = c.k`.

    Args:
        tree: a query that is resolved; its joins are marked by `mark_using`.
    """
    for select in tree.find_all(exp.Select):
        merged: dict[str, exp.Expr] = {}
        for join in select.args.get("joins") or ():
            if merges(join):
                _join_by(join, merged)


def _join_by(join: exp.Join, merged: dict[str, exp.Expr]) -> None:
    """Set the condition of a join, and note what it makes of its columns."""
    pairs: list[exp.Expr] = []
    for pair in conjuncts(join.args["on"]):
        assert isinstance(pair, exp.EQ)
        given, right = pair.left, pair.right
        left = merged.get(right.name, given)
        if isinstance(given, exp.Coalesce) and right.name not in merged:
            raise NotAdmittedError("clause", f"USING ({right.name}) of several columns")
        pairs.append(exp.EQ(this=left.copy(), expression=right.copy()))
        if join.kind not in ("SEMI", "ANTI"):
            merged[right.name] = _merged(join.side, left, right)
    join.set("on", exp.and_(*pairs))


def _merged(side: str, left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """The column that a join of that side makes of two."""
    if side == "FULL":
        return exp.Coalesce(this=left.copy(), expressions=[right.copy()])
    return right if side == "RIGHT" else left
