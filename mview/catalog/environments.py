"""Views of an environment: beside production's, over the same tables, published nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from mview.catalog.definitions import digest_of, load_definition
from mview.catalog.tables import lacking, source_tables
from mview.config import Config
from mview.errors import ConfigError, MviewError, RetryableError, UserError, typed
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import plain, record
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.store.environments import check_name, production_of
from mview.store.history import ManifestLog
from mview.store.identity import store_id
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState, schemas_of


def in_environment(config: Config, name: str) -> Config:
    """The configuration of an environment of a store.

    Raises:
        UserError: nothing can have the name.
    """
    check_name(name)
    return config.of_environment(name, Store(config.store, any_format=True).environment(name))


def production(config: Config) -> tuple[Store, Manifest]:
    """The store around that of an environment, and its newest epoch.

    Raises:
        ConfigError: there is no such store, or nothing is in it yet.
    """
    store = Store(production_of(Store(config.store, any_format=True)))
    newest = ManifestLog(store.manifests).latest() if store_id(store.root) else None
    if newest is None:
        raise ConfigError(
            f"environment {config.environment} has nothing to share: production has no epoch yet",
            where=str(store.root),
            safe="nothing was changed",
            hint="begin production first: mview run FILE…",
        )
    return store, newest


def unpublished(view: ViewDefinition) -> ViewDefinition:
    """A view as an environment keeps it: its table is in there, and no sink follows it."""
    kept = {}
    if view.sink == ViewDefinition.sink:
        kept = {name: value for name, value in view.options.items() if name != "path"}
    return replace(view, sink=ViewDefinition.sink, options=kept, sinks={}, mode="full")


def with_those_read(
    config: Config, given: Sequence[ViewDefinition], kept: Mapping[str, object] = {}
) -> list[ViewDefinition]:
    """Views, and those of production that they read and that nobody has given.

    Args:
        config: an environment's.
        given: its views.
        kept: names of other views that it has.
    """
    store, newest = production(config)
    views, waiting = {view.name: view for view in given}, list(given)
    while waiting:
        for name in waiting.pop().read_views:
            if name not in views and name not in kept and name in newest.views:
                views[name] = load_definition(store, newest, name)
                waiting.append(views[name])
    return list(views.values())


def shared_tables(
    config: Config, views: Sequence[ViewDefinition], newest: Manifest
) -> dict[RelationId, TableState]:
    """What production has of the tables that views of an environment read.

    Raises:
        RetryableError: production is loading one.
        UserError: it has not loaded one, or none of the columns that a view uses.
    """
    tables = {}
    for name in source_tables(views):
        state = newest.tables.get(name)
        if (error := missing(config, name, state)) is not None:
            raise error
        assert state is not None
        tables[name] = state
    for name, why in lacking(config, views, schemas_of(tables)).items():
        raise UserError(
            f"production has loaded {name} without a column: {why}",
            safe="nothing was changed",
            hint="have production load it with a view that uses it: `mview run FILE…`, or "
            "`mview apply FILE…` where it runs; then the same command again",
        )
    return tables


#: What brings a table that production does not load by itself.
_LOAD_IT = (
    "have production load it with a view that reads it: `mview run FILE…`, or `mview apply FILE…` "
    "where it runs"
)


def missing(config: Config, table: RelationId, state: TableState | None) -> MviewError | None:
    """Why an environment cannot have a table now; None: it can.

    Args:
        config: the environment's.
        state: what production says of the table.
    """
    name = config.environment
    if state is None or state.halted:
        return UserError(
            f"production has not loaded {table}, which environment {name} reads"
            if state is None
            else f"{table}, which environment {name} reads, has halted in production",
            got=None if state is None else state.halted,
            safe="nothing was changed: an environment shares production's tables and loads none",
            hint=f"{_LOAD_IT}; then the same command again",
        )
    if state.phase == "loading":
        return RetryableError(
            f"production is loading {table}, which environment {name} reads",
            safe="nothing was changed: an environment shares production's tables and loads none",
            hint="run the same command again when it is loaded: mview status",
        )
    return None


def waited_for(error: MviewError) -> str:
    """What a run says that waits for a table which is `missing`: nobody has to begin it again."""
    first = "" if isinstance(error, RetryableError) else f" {_LOAD_IT}."
    return (
        f"waiting: {error.what}; what is shown stays as it is.{first} This run goes on when the "
        "table is loaded"
    )


def as_quarantined(config: Config, manifest: Manifest) -> Manifest:
    """An epoch with what production has in quarantine now; of its own, nothing but that.

    Args:
        manifest: of the store of the configuration, production's or an environment's.
    """
    if not config.environment:
        return manifest
    tables = production(config)[1].source_tables
    aside = {name: state.quarantine for name, state in tables.items()}
    own = {
        name: replace(state, quarantine=aside.get(name))
        for name, state in manifest.source_tables.items()
    }
    return replace(manifest, tables={**manifest.tables, **own})


# --- views as they were given, which is what `promote` gives production --------------------------


def keep_given(store: Store, views: Sequence[ViewDefinition]) -> None:
    """Keep views of an environment as they were given: with their sinks and options."""
    store.given.mkdir(parents=True, exist_ok=True)
    for view in views:
        put(store.given_view(view.name), checked(plain(replace(view, functions=()))))


def given_view(store: Store, name: str) -> ViewDefinition:
    """A view of an environment as it was given.

    Raises:
        CorruptionError: it cannot be read.
    """
    return read_checked(
        store.given_view(name),
        partial(record, ViewDefinition),
        f"view {name} cannot be read as it was given to the environment",
        f"give it to the environment again: mview run --env {typed(store.root.name)} FILE…",
        "nothing was changed",
    )


def is_as_given(given: ViewDefinition, manifest: Manifest) -> bool:
    """Whether an environment shows a view by the text that was given."""
    state = manifest.views.get(given.name)
    shown = digest_of(unpublished(given))
    return state is not None and not state.stale and state.definition == shown
