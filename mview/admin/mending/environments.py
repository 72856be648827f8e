"""What people ask of environments: what there is, what production would take, and that one goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mview.catalog.definitions import digest_of, load_definition, load_lights
from mview.catalog.environments import given_view, is_as_given
from mview.catalog.functions import declared_functions, with_functions
from mview.clock import SystemClock
from mview.config import Config
from mview.errors import ConfigError, CorruptionError, UserError, typed
from mview.plan.definition import ViewDefinition, order_views
from mview.plan.text.place import did_you_mean
from mview.store.environments import check_there, followed, names_of, remove
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest


@dataclass(frozen=True)
class EnvironmentStatus:
    """An environment, as far as it can be read.

    Attributes:
        name: its name.
        running: who runs it; None: nobody.
        epoch: its newest epoch; 0: nothing was published yet.
        published_ms: when that was published, wall milliseconds; None: nothing was.
        production: the epoch of production up to which its views are; None: it has no table yet.
        behind: production's epochs since then; None: it has no table yet.
        views: rows of its views, by name.
        problem: why it cannot be read; empty: it can.
    """

    name: str
    running: str | None
    epoch: int
    published_ms: int | None
    production: int | None
    behind: int | None
    views: Mapping[str, int]
    problem: str = ""


def environment_status(store: Store, name: str) -> EnvironmentStatus:
    """What an environment of a store is.

    Raises:
        UserError: there is no such environment.
    """
    check_there(store, name)
    try:
        own = Store(store.environment(name))
        owner = Lease(own.lease, SystemClock()).holder()
        manifest = ManifestLog(own.manifests).latest()
    except (ConfigError, CorruptionError) as error:
        return EnvironmentStatus(name, None, 0, None, None, None, {}, error.what)
    running = None if owner is None else f"process {owner.pid} on {owner.host}"
    if manifest is None:
        return EnvironmentStatus(name, running, 0, None, None, None, {})
    at, behind = followed(manifest), None
    if at is not None:
        with suppress(CorruptionError):
            newest = ManifestLog(store.manifests).latest()
            behind = None if newest is None else max(0, newest.epoch - at.epoch)
    return EnvironmentStatus(
        name,
        running,
        manifest.epoch,
        manifest.created_ms,
        None if at is None else at.epoch,
        behind,
        {view: state.rows for view, state in manifest.views.items()},
    )


def environment_statuses(store: Store) -> tuple[EnvironmentStatus, ...]:
    """The environments of a store."""
    told = []
    for name in names_of(store):
        with suppress(UserError):  # it was dropped at this moment
            told.append(environment_status(store, name))
    return tuple(told)


def drop_environment(store: Store, name: str) -> None:
    """Remove an environment entirely; production is not touched.

    Raises:
        UserError: there is no such environment.
        AlreadyRunningError: it runs.
    """
    check_there(store, name)
    remove(store, name, SystemClock())


def promotable(config: Config, name: str, views: Sequence[str] = ()) -> list[ViewDefinition]:
    """The views that production would take of an environment: new ones, and those it has otherwise.

    Args:
        config: production's.
        name: the environment's.
        views: only these of it, by name; none: all.

    Returns:
        As they were given, with their sinks; in DAG order. Those in light mode are left out.

    Raises:
        UserError: there is no such environment or view, one that is named is in light mode, or
            one is not built as it was given.
    """
    store = Store(config.store)
    check_there(store, name)
    own = Store(store.environment(name))
    shown = ManifestLog(own.manifests).latest()
    if shown is None or not shown.views:
        raise UserError(
            f"environment {name} has no view yet",
            where=str(own.root),
            safe="nothing was changed",
            hint=f"mview run --env {typed(name)} FILE…",
        )
    for view in views:
        if view not in shown.views:
            raise UserError(
                f"environment {name} has no view {view}",
                safe="nothing was changed",
                hint=did_you_mean(view, [*shown.views]),
            )
    newest = ManifestLog(store.manifests).latest()
    given = [given_view(own, view) for view in views or shown.views]
    if light := [view.name for view in given if view.mode == "light" and view.name in views]:
        raise UserError(
            f"view {light[0]} is in light mode, which a run takes at its start only",
            where=str(own.root),
            safe="nothing was changed",
            hint="end production's run, and begin it with the view's file",
        )
    given = [view for view in given if view.mode == "full"]
    changed = [
        view
        for view in with_functions(given, declared_functions(config))
        if newest is None or not _is_there(store, newest, view)
    ]
    for definition in changed:
        if not is_as_given(definition, shown):
            raise UserError(
                f"view {definition.name} is not built in environment {name} as it was given",
                got=shown.views[definition.name].halted or None,
                safe="nothing was changed",
                hint=f"mview status --env {typed(name)}",
            )
    return order_views(changed)


def light_views(config: Config, name: str) -> list[str]:
    """The views of an environment in light mode that production has not, or otherwise, by name.

    `promotable` leaves them out.

    Args:
        config: production's.
        name: the environment's.
    """
    store = Store(config.store)
    own = Store(store.environment(name))
    shown = ManifestLog(own.manifests).latest()
    there = {
        light: (digest_of(kept.definition), kept.definition.sinks)
        for light, kept in load_lights(store).items()
    }
    given = [given_view(own, view) for view in (() if shown is None else shown.views)]
    return [
        view.name
        for view in with_functions(given, declared_functions(config))
        if view.mode == "light" and there.get(view.name) != (digest_of(view), view.sinks)
    ]


def check_named(name: str, views: Sequence[str], given: Sequence[ViewDefinition]) -> None:
    """Raise UserError unless the views are named that production is to take.

    One that production has otherwise may have been changed there since the environment took it up.

    Args:
        name: the environment's.
        views: the names that were given.
        given: what production would take of it.
    """
    if not views:
        names = [view.name for view in given]
        raise UserError(
            "name the views that production is to take",
            allowed=f"those that it does not have, or has otherwise: {', '.join(names)}",
            safe="nothing was changed",
            hint=f"mview promote --env {typed(name, *names)}; a view may be newer in "
            "production: --plan shows what would change",
        )


def _is_there(store: Store, newest: Manifest, view: ViewDefinition) -> bool:
    """Whether production has a view by this text, with these sinks."""
    state = newest.views.get(view.name)
    if state is None or state.definition != digest_of(view):
        return False
    return load_definition(store, newest, view.name).sinks == view.sinks
