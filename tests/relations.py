"""Relations as tests write them: by what files and SQL call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mview.relation import RelationId

T = TypeVar("T")


def keyed(things: Mapping[str, T] | Mapping[RelationId, T]) -> dict[RelationId, T]:
    """What is kept of relations; those that are named by text are read."""
    return {RelationId.of(str(relation)): thing for relation, thing in things.items()}


def rel(name: str) -> RelationId:
    """The relation of that name: a table, a view, a part of one, its state, a clock."""
    return RelationId.of(name)
