"""An operator that some walk does not know raises there: it must never lose rows in silence."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import singledispatchmethod
from importlib import import_module
from inspect import getsource, signature
from types import ModuleType
from typing import Any

import pytest

import mview.ivm
import mview.plan
from mview.plan.operators import ir, rules
from mview.plan.operators.ir import Ref
from tests.relations import rel

SCAN = ir.Scan(rel("t"), "t", ("id",), ("id",))
MODULES = [
    import_module(info.name)
    for package in (mview.plan, mview.ivm)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]
#: The operators; the base classes are none.
OPERATORS = {
    kind
    for kind in vars(ir).values()
    if isinstance(kind, type) and issubclass(kind, ir.Node) and kind not in (ir.Node, ir.Unary)
}


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


def dispatches() -> Iterator[tuple[str, Callable[..., Any], int]]:
    """Every dispatch by type there is: its name, what it dispatches with, arguments before that."""
    for module in MODULES:
        for name, made in vars(module).items():
            if hasattr(made, "registry") and made.__module__ == module.__name__:
                yield f"{module.__name__}.{name}", made, 0
            for attribute, method in vars(made).items() if isinstance(made, type) else ():
                if isinstance(method, singledispatchmethod) and made.__module__ == module.__name__:
                    yield f"{made.__name__}.{attribute}", method.dispatcher, 1


DISPATCHES = {name: (dispatch, before) for name, dispatch, before in dispatches()}


def test_dispatches_are_found() -> None:
    assert len(DISPATCHES) >= 15
    assert "Tracer.climb" in DISPATCHES
    assert "mview.plan.operators.ir.computed" in DISPATCHES
    assert len(OPERATORS) == 11


@pytest.mark.parametrize("name", DISPATCHES)
@pytest.mark.parametrize("node", [Unknown(SCAN), UnknownPair(SCAN, SCAN)])
def test_a_walk_raises_at_an_operator_that_it_does_not_know(name: str, node: ir.Node) -> None:
    dispatch, before = DISPATCHES[name]
    rule: Callable[..., Any] = dispatch.dispatch(type(node))  # type: ignore[attr-defined]
    others = len(signature(rule).parameters) - before - 1
    with pytest.raises(TypeError, match=type(node).__name__):
        rule(*[None] * before, node, *[None] * others)


@pytest.mark.parametrize("name", DISPATCHES)
def test_a_walk_knows_every_operator_or_none(name: str) -> None:
    """What a walk leaves out it must never meet, and the reason stands here."""
    registry = DISPATCHES[name][0].registry  # type: ignore[attr-defined]
    missing = {kind.__name__ for kind in OPERATORS - registry.keys()}
    assert missing == NEVER_MET.get(name.rpartition(".")[2], set())


#: Operators that a walk does not know as it never meets them: it raises if it does.
NEVER_MET = {
    "climb": {"Values"},  # it begins at a table
    # Only operators that compare rows by keys fail for want of a plain column.
    "with_plain_keys": {"Scan", "Values", "Filter", "Projection", "Limit", "Generate"},
}


def test_inputs_are_not_left_out() -> None:
    other = ir.Scan(rel("u"), "u", ("id",), ("id",))
    with pytest.raises(TypeError, match="UnknownPair"):
        rules.with_children(UnknownPair(SCAN, SCAN), (other, other))


#: Functions that ask for operators by isinstance, and why an operator that they do not know does no
#: harm: they look for one shape, and whatever is none goes the general way.
SHAPES = {
    "build._build": "a projection is put on top of whatever is none",
    "compile._strategies": "an inner join says its strategy by itself",
    "compile.visit": "as above",
    "explain._mark": "what reads no other rows has no strategy to show",
    "indexes._over_left": "two joins to one index become one",
    "keys._first_of_partition": "no key is known of another shape",
    "maintained.top_aggregate": "no state is kept for another shape",
    "not_in._meets_null": "all inputs are walked through",
    "orderings._names": "an aggregate has names of its own; `_passed_on` raises",
    "parts._hidden_key": "the keys of another shape are asked for, which raises",
    "result_types._makers": "branches of a set operation; `computed` raises",
    "rules._apply": "a rewrite leaves another shape as it is",
    "rules._is_inner": "a rewrite leaves another shape as it is",
    "rules._region": "a rewrite leaves another shape as it is",
    "rules.drop_idle_limit": "a rewrite leaves another shape as it is",
    "rules.join_by_equalities": "a rewrite leaves another shape as it is",
    "rules.lift_values": "a rewrite leaves another shape as it is",
    "rules.pass_through_project": "a rewrite leaves another shape as it is",
    "rules.with_children": "it raises, see above",
    "select._values_of_rows": "all inputs are walked through",
    "total_order._below": "the keys of another shape are asked for, which raises",
    "total_order._input": "the keys of another shape are asked for, which raises",
    "total_order._is_total": "the keys of another shape are asked for, which raises",
    "trace.is_genuine": "rows of another shape may not be there: an extreme is in doubt",
    "trace._one_row_of": "another shape is read like any join",
    "trace.value_part": "another shape is read like any join",
}


def test_other_questions_by_type_are_about_one_shape() -> None:
    """A function that asks `isinstance(node, ir.X)` must say here why `no` is right for others."""
    asking = {f"{m.__name__.rpartition('.')[2]}.{name}" for m in MODULES for name in asks(m)}
    assert asking == SHAPES.keys()


def asks(module: ModuleType) -> Iterator[str]:
    """The functions of a module that compare the type of a node."""
    for function in ast.walk(ast.parse(getsource(module))):
        if isinstance(function, ast.FunctionDef):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "isinstance":
                    if "ir." in ast.unparse(call.args[1]):
                        yield function.name
                elif isinstance(call, ast.MatchClass) and "ir." in ast.unparse(call.cls):
                    yield function.name
