"""Taking back what others have changed in the views' tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from mview.admin.content import check_views, published
from mview.catalog.definitions import load_definition
from mview.clock import SystemClock
from mview.config import Config, secret_values
from mview.epoch.recover import recover
from mview.epoch.views.opening import open_sinks
from mview.errors import (
    CorruptionError,
)
from mview.relation import RelationId
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease, fenced
from mview.store.manifest import Manifest
from mview.store.mirror import Mirror


def repair(config: Config, names: Sequence[str]) -> list[str]:
    """Take back what others have written to the tables of views.

    Returns:
        The views whose table is not whole any more: the next run builds them anew.

    Raises:
        UserError: no such view.
        AlreadyRunningError: a runner holds the store.
    """
    store, clock = Store(config.store), SystemClock()
    token = published(config).token  # before anything is written, also the lease
    with Lease(store.lease, clock, above=token) as lease, fenced(lease):
        manifest = published(config)
        check_views(config, manifest, names)
        for name in names:
            load_definition(store, manifest, name)
        opener = partial(open_sinks, config, fence=lease)
        sinks = opener(manifest)
        given = {name: manifest.views[name].sink for name in names}
        lost = [name for name, facts in given.items() if facts and not sinks[name].repair(facts)]
        # Only then: what others have written would halt the views. And before anything is
        # published: an epoch that was decided, whose sinks may have it, comes first.
        manifest, _ = recover(store, lease, clock, opener, Mask(secret_values(config)))
        damaged = _damaged(store, manifest, names)
        lost += [relation.view for relation in damaged]
        views = {n: replace(s, stale=s.stale or n in lost) for n, s in manifest.views.items()}
        if lost:
            ManifestLog(store.manifests, lease).publish_after(
                manifest,
                clock.now(),
                tables={n: state for n, state in manifest.tables.items() if n not in damaged},
                views=views,
            )
        return [name for name in names if views[name].stale]


def _damaged(store: Store, manifest: Manifest, views: Sequence[str]) -> list[RelationId]:
    """What some views keep beside their sinks and cannot be read."""
    damaged = []
    for name, state in manifest.tables.items():
        if name.view in views:
            try:
                for _ in Mirror(store.mirror(name), state.schema).parts(state):
                    pass
            except CorruptionError:
                damaged.append(name)
    return damaged
