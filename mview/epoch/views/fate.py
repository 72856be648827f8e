"""What becomes of views when a run begins: which are built, and why. A run does it, `mview plan`
tells it before; neither needs Spark for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from mview.catalog.definitions import differing, digest_of, load_definition
from mview.errors import CorruptionError
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.store.layout import Store
from mview.store.manifest import Manifest
from mview.store.mirror import ROW

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
    store: Store,
    manifest: Manifest | None,
    keys: Mapping[RelationId, Sequence[str]],
) -> dict[str, Fate]:
    """What becomes of views.

    Args:
        views: all that are kept, in DAG order.
        beside: what is kept of each beside its sink, by name.
        store: has the texts that were published.
        manifest: the newest one; None: the store is empty.
        keys: of views, and of what is kept beside them, as far as they are known.
    """
    told: dict[str, Fate] = {}
    for view in views:
        fate = _fate(view, views, beside[view.name], store, manifest, told)
        if manifest is not None and not fate.why and _has_other_key(view, manifest, keys):
            fate = Fate("rebuilt", "other columns tell its rows apart than when it was built")
        told[view.name] = fate
    return told


def _has_other_key(
    view: ViewDefinition, manifest: Manifest, keys: Mapping[RelationId, Sequence[str]]
) -> bool:
    """Whether a view, or what is kept beside it, has another key than this version would give it.

    Keys that no user has declared are worked out of the text, and an earlier version may have
    found others.
    """
    there = {name: state.schema.key for name, state in manifest.tables.items()}
    there[view.relation] = manifest.views[view.name].schema.key
    return any(
        name in there and _shown(there[name]) != tuple(key)
        for name, key in keys.items()
        if name.view == view.name
    )


def _shown(key: Sequence[str]) -> tuple[str, ...]:
    """A key without the numbers that rows without one have in their mirror."""
    return tuple(name for name in key if name != ROW)


def _fate(
    view: ViewDefinition,
    views: Sequence[ViewDefinition],
    beside: Collection[RelationId],
    store: Store,
    manifest: Manifest | None,
    earlier: Mapping[str, Fate],
) -> Fate:
    if manifest is None or (state := manifest.views.get(view.name)) is None:
        return Fate("new", "it is not in the store yet")
    if state.definition != digest_of(view):
        return Fate("changed", _differs(view, store, manifest))
    if state.stale:
        why = "it had halted"
        if not state.halted:
            why = "a table that it reads is loaded anew, or it was repaired"
        return Fate("rebuilt", why)
    if upstream := [n for n in view.read_views if earlier.get(n, Fate()).why]:
        return Fate("rebuilt", f"it reads {', '.join(sorted(upstream))}")
    if lacking := set(beside) - set(manifest.tables):
        return Fate("rebuilt", _lacks(view, views, lacking))
    return Fate()


def _differs(view: ViewDefinition, store: Store, manifest: Manifest) -> str:
    """What of a view is another one, as far as the text that was published can be read."""
    with suppress(CorruptionError):
        parts = differing(load_definition(store, manifest, view.name), view)
        return f"its {' and '.join(parts)} changed"
    return "it changed; the text that it had is damaged in the store"


def _lacks(
    view: ViewDefinition, views: Sequence[ViewDefinition], lacking: Collection[RelationId]
) -> str:
    if view.relation not in lacking:
        return "what is kept beside its table is not in the store"
    readers = sorted(reader.name for reader in views if view.name in reader.read_views)
    who = f"{', '.join(readers)} reads" if readers else f"{', '.join(view.sinks)} follows"
    return f"{who} it now, so its rows are kept in the store, too"
