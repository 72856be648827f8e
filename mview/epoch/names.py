"""How relations are called: source tables, views' rows, parts, state tables."""

from __future__ import annotations

from collections.abc import Iterable

from mview.ivm.plan import ViewPlan
from mview.plan.clocks import is_clock

#: Relations of a view beside its sink: its rows where other views read it, and its state table.
#: Those of a part have the part's name, `<view>:<number>`.
VIEW, STATE = "view:", "state:"


def is_source(relation: str) -> bool:
    """Whether a relation is a source table (and not a view's rows or aggregates)."""
    return "." in relation.partition(":")[0]


def view_of(relation: str) -> str:
    """The view that a relation belongs to, which is no source table."""
    return relation.split(":")[1]


def reads_of(names: Iterable[str]) -> dict[str, str]:
    """The relation of each table, view or part that SQL names; clocks have none."""
    mirrored = (name for name in names if not is_clock(name))
    return {name: name if "." in name else VIEW + name for name in mirrored}


def inputs_of(names: Iterable[str]) -> dict[str, str]:
    """What each table, view, part or clock that SQL names is called where changes are collected."""
    listed = tuple(names)
    return reads_of(listed) | {name: name for name in listed if is_clock(name)}


def state_of(plan: ViewPlan) -> str | None:
    """The relation of a plan's state table, if it has one."""
    return STATE + plan.name if plan.state_definition is not None else None
