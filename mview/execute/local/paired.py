"""One query over the rows before and after an epoch, in the place of the same query over each.

A view's delta is its query over the new slices, and minus that over the old ones. Of few rows a
query costs what its joins and groups cost to set up; so the rows of both are given to one query,
each with its mark, and rows with different marks neither join nor share a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from mview.connector import WEIGHT
from mview.execute.slices import weighted

#: Clauses of a SELECT that do with the rows of a mark what they do with these alone.
_CLAUSES = {"expressions", "from_", "joins", "where", "group", "having"}
#: What looks at other rows than those that are joined and grouped.
_BEYOND = (exp.Query, exp.SubqueryPredicate, exp.Window, exp.UDTF)


@dataclass(frozen=True)
class Paired:
    """A query over pairs of tables; its rows end with their mark.

    Attributes:
        query: over tables of the first names of the pairs, each with the column WEIGHT.
        marks: its values of the first and of the second table of each pair.
        tables: by the first, the second of each pair.
    """

    query: exp.Expr
    marks: tuple[int, int]
    tables: Mapping[str, str]

    def given(self, relations: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """The tables of the query."""
        return {
            name: pa.concat_tables(
                weighted(relations[table], mark)
                for table, mark in zip((name, other), self.marks, strict=True)
            )
            for name, other in self.tables.items()
        }


def paired(query: exp.Expr) -> Paired | None:
    """The two sides of a UNION ALL as one query; None where they are not to be had so.

    Args:
        query: as it was read; not changed.

    Returns:
        A query of one SELECT with inner and left joins of tables, if the sides have the same, over
        other tables, and each begins its rows with a number of its own.
    """
    if not isinstance(query, exp.Union) or set(_clauses(query)) != {"this", "expression"}:
        return None
    first, second = _marked(query.this), _marked(query.expression)
    if first is None or second is None or first[0] == second[0]:
        return None
    number, select = first
    opposite, again = second
    if not _is_plain(select) or (pairs := _pairs(select, again)) is None:
        return None
    return Paired(_over_marks(select), (number, opposite), pairs)


def _marked(side: exp.Expr) -> tuple[int, exp.Select] | None:
    """Of `SELECT number AS WEIGHT, * FROM (query)`: number and query.

    No column of a user has that name: by another one, rows would be told apart by what they hold.
    """
    if not isinstance(side, exp.Select) or set(_clauses(side)) != {"expressions", "from_"}:
        return None
    inside = side.args["from_"].this
    if not isinstance(inside, exp.Subquery) or set(_clauses(inside)) - {"this", "alias"}:
        return None
    match side.expressions, inside.this:
        case [exp.Alias() as marked, exp.Star() as rest], exp.Select() as select:
            number = marked.this
            if marked.alias == WEIGHT and not _clauses(rest) and number.is_int:
                return int(number.to_py()), select
    return None


def _clauses(node: exp.Expr) -> list[str]:
    return [name for name, value in node.args.items() if value]


def _is_plain(select: exp.Select) -> bool:
    """Whether rows of one mark give what they give alone, if none meets one of another mark."""
    if set(_clauses(select)) - _CLAUSES or "from_" not in _clauses(select):
        return False
    group = select.args.get("group")
    if group is None:
        # Of no rows an aggregate makes one.
        if select.args.get("having") or select.find(exp.AggFunc) is not None:
            return False
    elif set(_clauses(group)) != {"expressions"} or select.find(exp.Rollup, exp.Cube, exp.Tuple):
        return False
    for node in select.walk():
        if isinstance(node, _BEYOND) and node is not select:
            return False
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
            return False  # the mark would be in it
    return _is_table(select.args["from_"].this) and all(map(_is_plain_join, _joins(select)))


def _is_plain_join(join: exp.Join) -> bool:
    if set(_clauses(join)) - {"this", "side", "kind", "on"} or not _is_table(join.this):
        return False
    kinds = {"": ("", "INNER", "CROSS"), "LEFT": ("", "OUTER")}
    return join.kind in kinds.get(join.side, ()) and (not join.side or "on" in _clauses(join))


def _is_table(node: exp.Expr) -> bool:
    return isinstance(node, exp.Table) and not set(_clauses(node)) - {"this", "alias"}


def _joins(select: exp.Select) -> list[exp.Join]:
    return select.args.get("joins") or []


def _pairs(select: exp.Select, again: exp.Select) -> dict[str, str] | None:
    """By the tables of a query those of another one, if it is else the same."""
    again = again.copy()
    pairs: dict[str, str] = {}
    tables, others = list(select.find_all(exp.Table)), list(again.find_all(exp.Table))
    if len(tables) != len(others):
        return None
    for table, other in zip(tables, others, strict=True):
        if pairs.setdefault(table.name, other.name) != other.name:
            return None
        other.set("this", table.this.copy())
    if select != again or len({*pairs, *pairs.values()}) < 2 * len(pairs):
        return None
    return pairs


def _over_marks(select: exp.Select) -> exp.Select:
    """The query with the mark at the end of its rows, each of which is of one."""
    marked = select.copy()
    first = _mark_of(marked.args["from_"].this)
    for join in _joins(marked):
        same = exp.EQ(this=_mark_of(join.this), expression=first.copy())
        on = join.args.get("on")
        join.set("on", same if on is None else exp.and_(on, same, copy=False))
        if join.kind == "CROSS":
            join.set("kind", "INNER")
    if (group := marked.args.get("group")) is not None:
        group.append("expressions", first.copy())
    marked.append("expressions", exp.alias_(first.copy(), WEIGHT))
    return marked


def _mark_of(table: exp.Table) -> exp.Column:
    alias = table.args.get("alias")
    name = table.this if alias is None else alias.this
    return exp.Column(this=exp.to_identifier(WEIGHT), table=name.copy())
