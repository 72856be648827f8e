"""A plan as indented text, one operator per line."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

from sqlglot import exp

from mview.plan.operators import ir


def print_tree(node: ir.Node, note: Callable[[ir.Node], str] = lambda _: "") -> str:
    """The tree; `note` adds text to the end of an operator's line."""
    lines: list[str] = []

    def visit(below: ir.Node, depth: int) -> None:
        lines.append(f"{'  ' * depth}{describe(below)}{note(below)}".rstrip())
        for child in below.children:
            visit(child, depth + 1)

    visit(node, 0)
    return "\n".join(lines)


def _text(expression: exp.Expr) -> str:
    return expression.sql(dialect="spark").replace("`", "")


@singledispatch
def describe(node: ir.Node) -> str:
    """One line about an operator."""
    raise TypeError(f"no description of {type(node).__name__}")


@describe.register(ir.Values)
@describe.register(ir.Distinct)
def _(node: ir.Values | ir.Distinct) -> str:
    return type(node).__name__


@describe.register
def _(node: ir.Scan) -> str:
    alias = "" if node.relation == node.table.sql_name else f" as {node.relation}"
    return f"Scan {node.table}{alias}"


@describe.register
def _(node: ir.Filter) -> str:
    return f"Filter {_text(node.condition)}"


@describe.register
def _(node: ir.Projection) -> str:
    return f"Project {', '.join(name for name, _ in node.items)}"


@describe.register
def _(node: ir.Join) -> str:
    pairs = [f"{p.left} {'<=>' if p.null_safe else '='} {p.right}" for p in node.pairs]
    kind = f"{node.kind} null-aware" if node.null_aware else node.kind
    condition = " and ".join([*pairs, *(_text(expr) for expr in node.residual)])
    return f"Join {kind}{' on ' + condition if condition else ''}"


@describe.register
def _(node: ir.Aggregate) -> str:
    group = ", ".join(name for name, _ in node.group)
    calls = ", ".join(_text(call) for _, call in node.aggregates)
    sets = " grouping sets" if node.sets is not None else ""
    return f"Aggregate by ({group}){sets} {calls}".rstrip()


@describe.register
def _(node: ir.Window) -> str:
    partition = ", ".join(_text(expr) for expr in node.partition)
    return f"Window partition by ({partition})"


@describe.register
def _(node: ir.Limit) -> str:
    return f"Limit {node.text}"


@describe.register
def _(node: ir.Generate) -> str:
    return f"Generate {node.text.replace('`', '')}"


@describe.register
def _(node: ir.SetOp) -> str:
    return f"{node.kind.capitalize()}{' all' if node.all and node.kind != 'union all' else ''}"
