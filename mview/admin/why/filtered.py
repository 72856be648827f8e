"""The rows that a view's filters drop, whatever else they meet: no result is made of them.

To leave them out at once spares trying each: of a large group they may be most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import singledispatch

import pyarrow as pa
from sqlglot import exp

from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.refusal import RefusalError
from mview.plan.operators import ir
from mview.relation import RelationId

#: A row among those that are looked at.
_NUMBER = "__number"

_Found = Iterator[tuple[ir.Scan, Sequence[exp.Expr]]]


def conditions(root: ir.Node) -> dict[RelationId, list[exp.Expr]]:
    """By table, what its rows must meet at one of the places that read it; those without are not.

    A condition has the names of the table's columns, without a relation.
    """
    places: dict[RelationId, list[exp.Expr | None]] = defaultdict(list)
    for scan, terms in _kept(root, ()):
        mine = [term for term in terms if _is_of(term, scan)]
        places[scan.table].append(exp.and_(*map(_unbound, mine)) if mine else None)
    return {
        table: [term for term in terms if term is not None]
        for table, terms in places.items()
        if None not in terms
    }


def passing(rows: pa.Table, terms: Sequence[exp.Expr], evaluator: LocalEvaluator) -> pa.Table:
    """The rows that meet one of some conditions; all, where only Spark could tell."""
    asked = {column.name.lower() for term in terms for column in term.find_all(exp.Column)}
    given = rows.select([name for name in rows.column_names if name.lower() in asked])
    given = given.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    query = exp.select(_NUMBER).from_("r").where(exp.or_(*terms))
    try:
        met = evaluator.run(query.sql("spark"), {"r": given}, None)
    except RefusalError:
        return rows
    return rows.take(met[_NUMBER].combine_chunks().sort())


@singledispatch
def _kept(node: ir.Node, terms: tuple[exp.Expr, ...]) -> _Found:
    """The scans below, with the conditions above that may be of their columns.

    Above what looks at several rows together a condition says nothing of single ones.
    """
    for child in node.children:
        yield from _kept(child, ())


@_kept.register
def _(node: ir.Scan, terms: tuple[exp.Expr, ...]) -> _Found:
    yield node, terms


@_kept.register
def _(node: ir.Filter, terms: tuple[exp.Expr, ...]) -> _Found:
    yield from _kept(node.child, (*terms, *_parts(node.condition)))


@_kept.register
def _(node: ir.Join, terms: tuple[exp.Expr, ...]) -> _Found:
    of_both = tuple(part for term in node.residual for part in _parts(term))
    # Of an outer join the rows of the side that is kept come whatever is said beside ON.
    left = of_both if node.kind in ("inner", "semi", "right") else ()
    right = of_both if node.kind in ("inner", "semi", "left", "anti") else ()
    yield from _kept(node.left, (*terms, *left))
    yield from _kept(node.right, (*terms, *right))


def _parts(condition: exp.Expr) -> list[exp.Expr]:
    if isinstance(condition, exp.Paren):
        return _parts(condition.this)
    return [*condition.flatten()] if isinstance(condition, exp.And) else [condition]


def _is_of(term: exp.Expr, scan: ir.Scan) -> bool:
    refs = ir.refs_of(term)
    return bool(refs) and all(ref.relation == scan.relation for ref in refs)


def _unbound(term: exp.Expr) -> exp.Expr:
    term = term.copy()
    for column in term.find_all(exp.Column):
        column.set("table", None)
    return term
