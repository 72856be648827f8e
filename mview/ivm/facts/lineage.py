"""Which base-table column a column of the plan is, if it is one unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import product

from mview.plan.operators import ir
from mview.plan.operators.ir import Ref


@dataclass(frozen=True)
class Origin:
    """A base column. `extended`: an outer join may have put NULL in its place."""

    scan: ir.Scan
    column: str
    extended: bool = False

    @property
    def nullable(self) -> bool:
        """Whether the value may be NULL."""
        return self.extended or self.column not in self.scan.not_null


#: One base column per asked column; None where there is none.
Alternative = tuple[Origin | None, ...]


@singledispatch
def origins(node: ir.Node, columns: Sequence[Ref | None]) -> list[Alternative]:
    """The base columns that the columns of a node come from.

    Returns:
        One alternative per way rows reach the node (the branches of a union). Every output row
        takes all its columns from one of the alternatives.
    """
    raise TypeError(f"no lineage through {type(node).__name__}")


@origins.register
def _(node: ir.Scan, columns: Sequence[Ref | None]) -> list[Alternative]:
    return [tuple(Origin(node, ref.column) if ref else None for ref in columns)]


@origins.register
def _(node: ir.Values, columns: Sequence[Ref | None]) -> list[Alternative]:
    return [tuple(None for _ in columns)]


@origins.register(ir.Filter)
@origins.register(ir.Distinct)
@origins.register(ir.Limit)
@origins.register(ir.Window)
@origins.register(ir.Generate)
def _(
    node: ir.Filter | ir.Distinct | ir.Limit | ir.Window | ir.Generate,
    columns: Sequence[Ref | None],
) -> list[Alternative]:
    known = node.child.columns
    return origins(node.child, [ref if ref in known else None for ref in columns])


@origins.register
def _(node: ir.Projection, columns: Sequence[Ref | None]) -> list[Alternative]:
    items = dict(node.items)
    inner = [ir.as_ref(items[ref.column]) if ref else None for ref in columns]
    known = node.child.columns
    return origins(node.child, [ref if ref in known else None for ref in inner])


@origins.register
def _(node: ir.Aggregate, columns: Sequence[Ref | None]) -> list[Alternative]:
    return origins(node.child, [group_column(node, ref) for ref in columns])


def group_column(node: ir.Aggregate, ref: Ref | None) -> Ref | None:
    """The input column that a group column is; None for aggregates and computed group keys."""
    names = [name for name, _ in node.group]
    if ref is None or ref.column not in names:
        return None
    position = names.index(ref.column)
    if node.sets is not None and any(position not in group for group in node.sets):
        return None
    inner = ir.as_ref(node.group[position][1])
    return inner if inner in node.child.columns else None


@origins.register
def _(node: ir.Join, columns: Sequence[Ref | None]) -> list[Alternative]:
    merged = dict(node.merged)
    if not any(ref in merged for ref in columns if ref):
        return _side_by_side(node, columns)
    lefts = [merged[ref].left if ref in merged else ref for ref in columns]
    rights = [merged[ref].right if ref in merged else ref for ref in columns]
    return _side_by_side(node, lefts) + _side_by_side(node, rights)


def _side_by_side(node: ir.Join, columns: Sequence[Ref | None]) -> list[Alternative]:
    sides = []
    for side, extended in ((node.left, ("right", "full")), (node.right, ("left", "full"))):
        known = set(side.columns)
        asked = [ref if ref in known else None for ref in columns]
        # Ways in which rows reach a side that none of the columns comes from are all alike.
        alternatives = origins(side, asked) if any(asked) else [tuple(None for _ in columns)]
        if node.kind in extended:
            alternatives = [tuple(map(_extended, alternative)) for alternative in alternatives]
        sides.append(alternatives)
    return [tuple(a or b for a, b in zip(x, y, strict=True)) for x, y in product(*sides)]


def _extended(origin: Origin | None) -> Origin | None:
    if origin is None or origin.extended:
        return origin
    return Origin(origin.scan, origin.column, extended=True)


@origins.register
def _(node: ir.SetOp, columns: Sequence[Ref | None]) -> list[Alternative]:
    return [
        alternative
        for branch in node.branches
        for alternative in origins(branch, branch_columns(node, branch, columns))
    ]


def branch_columns(
    node: ir.SetOp, branch: ir.Node, columns: Sequence[Ref | None]
) -> list[Ref | None]:
    """The columns of a branch at the positions of the set operation's columns."""
    positions = {name: i for i, name in enumerate(node.names)}
    return [branch.columns[positions[ref.column]] if ref else None for ref in columns]
