"""An operator: rows pass as they are, with a hint for the engine that computes them.

What each walk needs to know of it stands here; one that was left out raises when it meets a `Hint`.
In mview each of these is a rule beside those of the other operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from mview.ivm import compile, made_of
from mview.ivm.facts import exact, keys, lineage
from mview.ivm.tracing import bands
from mview.ivm.tracing.indexes import Indexer
from mview.ivm.tracing.trace import Tracer
from mview.plan.operators import ir, orderings, rules, subquery, tree


@dataclass(frozen=True)
class Hint(ir.Unary):
    """All rows of its input."""

    text: str


# What it is, and which columns it has.
tree.describe.register(Hint, lambda node: f"Hint {node.text}")
ir.computed.register(Hint, lambda node: {})
orderings._passed_on.register(Hint, lambda node: node.child)
lineage.origins.register(Hint, lambda node, columns: lineage.origins(node.child, columns))
made_of._made.register(Hint, lambda node, parts: made_of._made(node.child, parts))
exact._made.register(Hint, lambda node, ref, schemas: exact._made(node.child, ref, schemas))
subquery._nullable.register(Hint, lambda node, ref: subquery._nullable(node.child, ref))

# How many rows it has, and what tells them apart.
rules._has_one_row.register(Hint, lambda node: rules._has_one_row(node.child))
keys.unique_columns.register(Hint, lambda node: keys.unique_columns(node.child))
keys.equal_columns.register(Hint, lambda node: keys.equal_columns(node.child))

# What must be read when a table changes: up from the changed rows, and down for their partners.
compile._strategy.register(Hint, lambda node: "LINEAR")
bands._expressions.register(Hint, lambda node, value: [])
Tracer.climb.register(Hint, lambda self, node, scan: self.climb(node.child, scan))
Tracer.pull.register(Hint, lambda self, node, keys: self.pull(node.child, keys))
Indexer.traceable.register(Hint, lambda self, node, one: self.traceable(node.child, one))
