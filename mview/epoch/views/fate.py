"""What becomes of views when a run begins: which are built, and why. A run does it, `mview plan`
tells it before; neither needs Spark for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from mview.catalog.definitions import digest_of
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.store.manifest import Manifest

#: new: it is built first. changed: its text is another one. rebuilt: it is built anew for another
#: reason. unchanged: it goes on.
Becomes = Literal["new", "changed", "rebuilt", "unchanged"]


class Fate(NamedTuple):
    """What becomes of a view, and why, for people; without a reason it goes on."""

    becomes: Becomes = "unchanged"
    why: str = ""


def fates(
    views: Sequence[ViewDefinition],
    beside: Mapping[str, Collection[RelationId]],
    manifest: Manifest | None,
) -> dict[str, Fate]:
    """What becomes of views.

    Args:
        views: all that are kept, in DAG order.
        beside: what is kept of each beside its sink, by name.
        manifest: the newest one; None: the store is empty.
    """
    told: dict[str, Fate] = {}
    for view in views:
        told[view.name] = _fate(view, views, beside[view.name], manifest, told)
    return told


def _fate(
    view: ViewDefinition,
    views: Sequence[ViewDefinition],
    beside: Collection[RelationId],
    manifest: Manifest | None,
    earlier: Mapping[str, Fate],
) -> Fate:
    if manifest is None or (state := manifest.views.get(view.name)) is None:
        return Fate("new", "it is not in the store yet")
    if state.definition != digest_of(view):
        return Fate("changed", "its query, key or table is another one")
    if state.stale:
        return Fate("rebuilt", "it had halted, or a table that it reads is loaded anew")
    if upstream := [n for n in view.read_views if earlier.get(n, Fate()).why]:
        return Fate("rebuilt", f"it reads {', '.join(sorted(upstream))}")
    if lacking := set(beside) - set(manifest.tables):
        return Fate("rebuilt", _lacks(view, views, lacking))
    return Fate()


def _lacks(
    view: ViewDefinition, views: Sequence[ViewDefinition], lacking: Collection[RelationId]
) -> str:
    if view.relation not in lacking:
        return "what is kept beside its table is not in the store"
    readers = sorted(reader.name for reader in views if view.name in reader.read_views)
    who = f"{', '.join(readers)} reads" if readers else f"{', '.join(view.sinks)} follows"
    return f"{who} it now, so its rows are kept in the store, too"
