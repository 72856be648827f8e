"""Removing views and tables with their data."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from mview.admin.content import published
from mview.admin.lights import drop_lights
from mview.catalog.definitions import Kept, load_definitions, load_lights
from mview.catalog.followers import table_in_sink
from mview.catalog.sinks import forget_views
from mview.clock import SystemClock
from mview.config import Config, secret_values
from mview.connector import Offsets
from mview.epoch.recover import forget_folders, recover
from mview.epoch.views.opening import open_sinks
from mview.epoch.without import read_by, without
from mview.errors import AlreadyRunningError, UserError, several
from mview.failpoints import failpoint
from mview.follow.light.readers import end_left_readers
from mview.ingest.log_readers import LeftReader, note_left
from mview.plan.definition import ViewDefinition
from mview.plan.text.place import did_you_mean
from mview.secrets import Mask
from mview.session.disks import disks_told
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease, fenced
from mview.store.manifest import Manifest
from mview.store.requests.asked import asked_files, asked_views, keep_asked


@dataclass(frozen=True)
class Going:
    """What a drop takes and what it leaves.

    Attributes:
        views: rows of the views that go, by name.
        tables: rows of our copies of tables that go, by name.
        unread: rows of those that stay though no view reads them then, by name.
        rebuilt: views that stay, and are built anew, as a table goes that they read.
        in_sinks: `<sink>: <table>` of what the views have elsewhere; it stays as it is.
        quarantined: changes in quarantine that go with our copies of their tables, by table.
    """

    views: dict[str, int]
    tables: dict[str, int]
    unread: dict[str, int]
    rebuilt: list[str]
    in_sinks: list[str]
    quarantined: dict[str, int] = field(default_factory=dict)


def going(config: Config, names: Sequence[str], *, with_tables: bool = False) -> Going:
    """What `drop` would take and leave; nothing is changed.

    Args:
        with_tables: tables that no view reads any more go, too.

    Raises:
        UserError: no such view or table, or another view reads it.
        AlreadyRunningError: a runner holds the store; says how that removes views.
    """
    store = Store(config.store)
    lights = load_lights(store)
    definitions = {name: light.definition for name, light in lights.items()}
    views = {name: 0 for name in names if name in lights}
    if not (named := [name for name in names if name not in lights]):
        _not_run(config, only_views=False)
        return Going(views, {}, {}, [], _in_sinks(config, definitions, names))
    before = published(config)
    kept = _droppable(config, before, named)
    _not_run(config, only_views=before.views.keys() >= set(names))
    after = without(kept, before, named, with_tables)
    read = read_by(kept, after)
    views |= {name: before.views[name].rows for name in named if name in before.views}
    tables = before.source_tables
    return Going(
        views,
        {str(name): state.rows for name, state in tables.items() if name not in after.tables},
        {str(name): state.rows for name, state in after.source_tables.items() if name not in read},
        [n for n, state in after.views.items() if state.stale and not before.views[n].stale],
        _in_sinks(config, kept.views | definitions, names),
        {
            str(name): state.quarantine.changes
            for name, state in tables.items()
            if name not in after.tables and state.quarantine is not None
        },
    )


class Remains(NamedTuple):
    """What a drop could not remove.

    Attributes:
        damaged: views whose definition cannot be read: a table at a path that it named stays.
        at_servers: what databases still keep for who read their logs, for people.
    """

    damaged: Sequence[str] = ()
    at_servers: Sequence[str] = ()


def drop(config: Config, names: Sequence[str], *, with_tables: bool = False) -> Remains:
    """Remove views with their data.

    A table may be named, too: it is loaded again by the next run, and the views that read it are
    built again. Tables that no view reads any more stay loaded and are kept up: a view that reads
    them later needs no load.

    Args:
        with_tables: those go, too.

    Raises:
        UserError: no such view or table, or another view reads it.
        TargetError: a view is dropped, and its table cannot be deleted now.
        AlreadyRunningError: a runner holds the store.
    """
    store, clock = Store(config.store), SystemClock()
    lights = load_lights(store).keys() & set(names)
    names = [name for name in names if name not in lights]
    token = 0
    if names:  # before anything is written, also the lease
        manifest = published(config)
        token = manifest.token
        _droppable(config, manifest, names)
    at_servers = tuple(drop_lights(config, sorted(lights)) if lights else ())
    if not names:
        return Remains((), at_servers)
    with (
        disks_told(lambda: [store.root]),
        Lease(store.lease, clock, above=token) as lease,
        fenced(lease),
    ):
        _droppable(config, published(config), names)
        sinks = partial(open_sinks, config, fence=lease)
        manifest, _ = recover(
            store, lease, clock, sinks, Mask(secret_values(config)), leaving=names
        )
        kept = _droppable(config, manifest, names)
        # Before: a view that is in no manifest and asked for is told as one to come.
        left_asked = [name for name in asked_views(store) if name not in names]
        keep_asked(store, left_asked, asked_files(store))
        after = without(kept, manifest, names, with_tables)
        needed = after.offsets.keys() | {table.connection for table in read_by(kept, after)}
        note_left(store, _left(config, manifest.offsets, needed), lease)
        after = ManifestLog(store.manifests, lease).publish_after(after, clock.now())
        # Only now: what a manifest names must be there, whatever happens in between. What is left
        # by a crash here goes with the next run.
        failpoint("drop-published")
        left = forget_views(config, after, lease)
        forget_folders(store, after, lease, left.folders)
        at_servers += tuple(end_left_readers(config, store, needed))
        if left.errors:
            raise several(left.errors)
        return Remains([name for name in names if name in kept.damaged], at_servers)


def _left(
    config: Config, offsets: Mapping[str, Offsets], needed: Collection[str]
) -> list[LeftReader]:
    """The store's readers of the logs that nothing is read from any more.

    Of a connection that the configuration has no more nobody knows whether its log was its own.
    """
    if config.environment:
        return []  # production reads for it
    return [
        LeftReader(connection, "", known)
        for connection, known in offsets.items()
        if connection not in needed
        and ((changes := config.changes.get(connection)) is None or changes.is_own_log)
    ]


def _not_run(config: Config, *, only_views: bool) -> None:
    """Refuse while a runner holds the store: it removes views itself, but no tables."""
    try:
        Lease(Store(config.store).lease, SystemClock()).check_free()
    except AlreadyRunningError as error:
        if only_views:
            error.hint = (
                "take their files out of its folder, and have the run remove them: "
                f"mview apply{config.option} --prune; or {error.hint}"
            )
        raise


def _in_sinks(
    config: Config, views: Mapping[str, ViewDefinition], names: Sequence[str]
) -> list[str]:
    """The tables that follow views elsewhere: `<sink>: <table>`."""
    return [
        f"{sink}: {table_in_sink(config, views[name], sink)}"
        for name in names
        if name in views
        for sink in views[name].sinks
    ]


def _droppable(config: Config, manifest: Manifest, names: Sequence[str]) -> Kept:
    """The definitions of a manifest's views.

    Raises:
        UserError: a name is that of nothing, or a view that is not named reads a view that is.
    """
    kept = load_definitions(Store(config.store), manifest)
    known = [*manifest.views, *map(str, manifest.source_tables)]
    for name in names:
        if name not in known:
            raise UserError(f"there is no view or table {name!r}", hint=did_you_mean(name, known))
    going = {name for name in names if name in manifest.views}
    for view, definition in kept.views.items():
        if view not in going and (read := going & set(definition.read_views)):
            every = _readers(kept, going)
            raise UserError(
                f"view {view} reads {min(read)}",
                safe="nothing was changed",
                hint="drop what reads it, too: "
                f"mview drop{config.option} {shlex.join([*every, *names])}",
            )
    return kept


def _readers(kept: Kept, names: Collection[str]) -> list[str]:
    """The views that read these views, and those that read them, and so on."""
    going = set(names)
    while more := {n for n, v in kept.views.items() if n not in going and going & {*v.read_views}}:
        going |= more
    return sorted(going - set(names))
