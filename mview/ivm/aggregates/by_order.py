"""Aggregates whose last digit depends on the order in which their rows are read.

Computed twice over the same rows they may differ, so the rows that such a view loses are known from
what was published, not from computing them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from mview.ivm.facts.exact import number_type
from mview.plan.operators import ir
from mview.relation import RelationId
from mview.schema import TableSchema

_ALWAYS = (
    exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.Corr,
    exp.CovarPop, exp.CovarSamp, exp.Skewness, exp.Kurtosis,
)  # fmt: skip
_NAMES = frozenset(["mean", "std", "try_avg", "try_sum"])


def is_by_order(root: ir.Node, schemas: Mapping[RelationId, TableSchema]) -> bool:
    """Whether some value in a view depends on the order in which rows are read.

    Args:
        root: the view's plan.
        schemas: of the tables it reads.
    """
    return any(_is_by_order(call, node, schemas) for call, node in _calls(root))


def _calls(node: ir.Node) -> Iterator[tuple[exp.Expr, ir.Node]]:
    """All that is computed, aggregate calls and those of windows too, with the rows it is over."""
    for call in ir.computed(node).values():
        yield call, node.children[0]
    for child in node.children:
        yield from _calls(child)


def _is_by_order(call: exp.Expr, node: ir.Node, schemas: Mapping[RelationId, TableSchema]) -> bool:
    while isinstance(call, exp.Filter | exp.Window):
        call = call.this
    if isinstance(call, exp.Sum | exp.Avg):
        return number_type(call.this, node, schemas) is None
    if isinstance(call, exp.Anonymous):
        return call.name.lower() in _NAMES
    return isinstance(call, _ALWAYS) or type(call).__name__.startswith("Regr")
