"""Removing views and tables with their data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from mview.admin.content import published
from mview.admin.lights import drop_lights
from mview.catalog.definitions import load_definitions, load_lights
from mview.catalog.followers import table_in_sink
from mview.catalog.sinks import forget_views
from mview.clock import SystemClock
from mview.config import Config, secret_values
from mview.epoch.recover import forget_folders, recover
from mview.epoch.views.opening import open_sinks
from mview.errors import (
    UserError,
    several,
)
from mview.failpoints import failpoint
from mview.plan.text.place import did_you_mean
from mview.relation import RelationId
from mview.secrets import Mask
from mview.session.disks import disks_told
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease, fenced
from mview.store.manifest import Manifest


def drop(config: Config, names: Sequence[str]) -> list[str]:
    """Remove views with their data, and tables that no view reads any more.

    A table may be named, too: it is loaded again by the next run, and the views that read it are
    built again.

    Returns:
        The views whose definition cannot be read: a table at a path that it named stays.

    Raises:
        UserError: no such view or table, or another view reads it.
        TargetError: a view is dropped, and its table cannot be deleted now.
        AlreadyRunningError: a runner holds the store.
    """
    store, clock = Store(config.store), SystemClock()
    lights = load_lights(store).keys() & set(names)
    names = [name for name in names if name not in lights]
    for name in names:
        _check_droppable(store, published(config), name, names)
    if lights:
        drop_lights(config, sorted(lights))
    if not names:
        return []
    token = published(config).token  # before anything is written, also the lease
    with (
        disks_told(lambda: [store.root]),
        Lease(store.lease, clock, above=token) as lease,
        fenced(lease),
    ):
        manifest = published(config)
        for name in names:
            _check_droppable(store, manifest, name, names)
        sinks = partial(open_sinks, config, fence=lease)
        manifest, _ = recover(
            store, lease, clock, sinks, Mask(secret_values(config)), leaving=names
        )
        for name in names:
            _check_droppable(store, manifest, name, names)
        unread = load_definitions(store, manifest).damaged
        after = ManifestLog(store.manifests, lease).publish_after(
            _without(store, manifest, names), clock.now()
        )
        # Only now: what a manifest names must be there, whatever happens in between. What is left
        # by a crash here goes with the next run.
        failpoint("drop-published")
        left = forget_views(config, after, lease)
        forget_folders(store, after, lease, left.folders)
        if left.errors:
            raise several(left.errors)
        return [name for name in names if name in unread]


def left_in_sinks(config: Config, names: Sequence[str]) -> list[str]:
    """The tables that follow views elsewhere, `<sink>: <table>`: a drop leaves them as they are."""
    store = Store(config.store)
    manifest = ManifestLog(store.manifests).latest()
    views = {} if manifest is None else load_definitions(store, manifest).views
    views = views | {name: kept.definition for name, kept in load_lights(store).items()}
    return [
        f"{sink}: {table_in_sink(config, views[name], sink)}"
        for name in names
        if name in views
        for sink in views[name].sinks
    ]


def _without(store: Store, manifest: Manifest, names: Sequence[str]) -> Manifest:
    """The manifest without these views and tables, and what only they need."""
    views = {n: s for n, s in manifest.views.items() if n not in names}
    definitions = load_definitions(store, manifest, but=names)
    known = definitions.views
    reads = {n: known[n].table_names if n in known else () for n in views}
    # No delta leads to what reads a table that starts over, only a new build.
    stale = set(names)
    while readers := [n for n in views if n not in stale and stale & set(reads[n])]:
        stale.update(readers)
    read = {table for tables in reads.values() for table in tables}
    if definitions.damaged:  # nobody knows what they read
        read |= manifest.source_tables.keys()
    # What was half loaded starts over, too: its merge goes by the old query's checkpoint.
    kept = {
        name: state
        for name, state in manifest.tables.items()
        if (name not in names and name in read) or _view_inside(name) in views
        if state.phase == "loaded"
    }
    connections = {RelationId.of(name).connection for name in kept}
    return replace(
        manifest,
        generation=manifest.generation + 1,
        batch=-1,
        offsets={k: v for k, v in manifest.offsets.items() if k in connections},
        tables=kept,
        views={n: replace(s, stale=s.stale or n in stale) for n, s in views.items()},
        positions={k: v for k, v in manifest.positions.items() if k in kept},
        newest={k: v for k, v in manifest.newest.items() if k in kept},
    )


def _view_inside(name: str) -> str:
    """The view that nobody but it reads a relation of: its state, or of a part; else empty."""
    return "" if (view := RelationId.of(name).view) == name else view


def _check_droppable(store: Store, manifest: Manifest, name: str, names: Sequence[str]) -> None:
    known = [*manifest.views, *manifest.source_tables]
    if name not in known:
        raise UserError(f"there is no view or table {name!r}", hint=did_you_mean(name, known))
    for view, definition in load_definitions(store, manifest, but=names).views.items():
        if name in manifest.views and name in definition.table_names:
            raise UserError(f"view {view} reads {name}", hint=f"mview drop {view} {name}")
