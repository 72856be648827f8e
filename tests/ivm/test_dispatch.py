"""An operator that some walk does not know raises there: it must never lose rows in silence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from mview.ivm import bands, compile, exact, keys, lineage
from mview.ivm.fetches import Fetches, Keys
from mview.ivm.indexes import Indexer
from mview.ivm.trace import Tracer
from mview.plan import ir, rules, subquery, tree
from mview.plan.definition import parse_view
from mview.plan.ir import Ref

ROOT = Path(__file__).parents[2]
SCAN = ir.Scan("t", "t", ("id",), ("id",))
REF = SCAN.columns[0]


@dataclass(frozen=True)
class Unknown(ir.Unary):
    """An operator that nobody has heard of."""


@dataclass(frozen=True)
class UnknownPair(ir.Node):
    """One with two inputs."""

    left: ir.Node
    right: ir.Node

    @property
    def children(self) -> tuple[ir.Node, ...]:
        return (self.left, self.right)

    @property
    def columns(self) -> tuple[Ref, ...]:
        return self.left.columns


def walks() -> dict[str, object]:
    """Every dispatch by the type of an operator: its function, called with a node."""
    tracer = Tracer(SCAN, Fetches({}))
    indexer = Indexer(parse_view("select 1 as a", "v"), 1)
    return {
        "describe": tree.describe,
        "_has_one_row": rules._has_one_row,
        "_nullable": lambda node: subquery._nullable(node, REF),
        "origins": lambda node: lineage.origins(node, [REF]),
        "unique_columns": keys.unique_columns,
        "equal_columns": keys.equal_columns,
        "_expressions": lambda node: bands._expressions(node, REF),
        "_strategy": compile._strategy,
        "_made": lambda node: exact._made(node, REF, {}),
        "climb": lambda node: tracer.climb(node, SCAN),
        "pull": lambda node: tracer.pull(node, Keys((REF,), ())),
        "with_plain_keys": indexer.with_plain_keys,
        "traceable": lambda node: indexer.traceable(node, ir.column(REF)),
    }


@pytest.mark.parametrize("name", walks())
@pytest.mark.parametrize("node", [Unknown(SCAN), UnknownPair(SCAN, SCAN)])
def test_a_walk_raises_at_an_operator_that_it_does_not_know(name: str, node: ir.Node) -> None:
    with pytest.raises(TypeError, match=type(node).__name__):
        walks()[name](node)  # type: ignore[operator]


def test_inputs_are_not_left_out() -> None:
    other = ir.Scan("u", "u", ("id",), ("id",))
    with pytest.raises(TypeError, match="UnknownPair"):
        rules.with_children(UnknownPair(SCAN, SCAN), (other, other))


def test_every_dispatch_is_looked_at() -> None:
    """A dispatch that is new must be in `walks`, and must raise in its base case."""
    sources = [*(ROOT / "mview/plan").glob("*.py"), *(ROOT / "mview/ivm").glob("*.py")]
    text = "\n".join(path.read_text() for path in sources)
    found = re.findall(r"@singledispatch(?:method)?\n\s*def (\w+)\(", text)
    assert sorted(found) == sorted(walks())
