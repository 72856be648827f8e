"""The sink of a view: its options, and how it is opened. No Spark: `mview check` asks, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from mview.catalog.definitions import kept_definitions
from mview.config import Config
from mview.connector import Sink, SinkTarget, load
from mview.errors import MviewError, TargetError, UserError, known_error
from mview.failpoints import failpoint
from mview.files.fence import UNFENCED, Fence
from mview.plan.definition import ViewDefinition
from mview.schema import TableSchema
from mview.store.identity import copied_from
from mview.store.layout import Store
from mview.store.manifest import Manifest


def sink_options(config: Config, store: Store, definition: ViewDefinition) -> dict[str, Any]:
    """The options of a view's sink; its path is the declared one, or lies in the store."""
    options: dict[str, Any] = {**config.table_options(definition.sink), **definition.options}
    base = config.path.parent
    if "path" in definition.options:
        options["path"] = str(base / definition.options["path"])
    elif "path" in options:
        options["path"] = str(base / options["path"] / definition.name)
    else:
        options["path"] = str(store.view_target(definition.name))
    return options


def open_sink(
    config: Config,
    store: Store,
    definition: ViewDefinition,
    schema: TableSchema,
    digest: str,
    fence: Fence = UNFENCED,
) -> Sink:
    """The sink of a view; whoever writes to it gives a fence."""
    options = sink_options(config, store, definition)
    private = Path(options["path"]).is_relative_to(store.root)
    original = None if private else copied_from(store.root)
    target = SinkTarget(
        view=definition.name,
        schema=schema,
        writer=f"mview/{definition.name}/{digest}",
        options=options,
        comment=definition.comment,
        store=store.id,
        history_ms=config.engine.history,
        private=private,
        copied_from="" if original is None else str(original),
        fence=fence,
    )
    sink: Sink = load("sinks", definition.sink)(target)
    return sink


class Left(NamedTuple):
    """What is left of views that were dropped.

    Attributes:
        folders: of views whose table cannot be deleted now: the next run tries again.
        errors: why.
    """

    folders: set[Path]
    errors: list[TargetError]


def forget_views(config: Config, manifest: Manifest, fence: Fence) -> Left:
    """Remove the tables of views that no manifest names: dropped, or built and never published.

    The view's folder in the store stays; see `forget_folders`.

    Raises:
        FencedError: another runner has taken over.
    """
    store, left = Store(config.store), Left(set(), [])
    named = {store.view(name) for name in manifest.views}
    for folder in sorted(store.views.iterdir()) if store.views.is_dir() else ():
        if folder not in named:
            for definition in kept_definitions(folder).views.values():
                if error := _forgotten(config, store, definition, fence):
                    left.folders.add(folder)
                    left.errors.append(error)
                failpoint("drop-sink")
    return left


def _forgotten(
    config: Config, store: Store, definition: ViewDefinition, fence: Fence
) -> TargetError | None:
    """Delete the table of a definition; returns why it is still there."""
    try:
        open_sink(config, store, definition, TableSchema((), ()), "drop", fence).drop()
    except UserError:
        return None  # what is there now is somebody else's
    except (OSError, MviewError) as error:
        fence.check()
        known = known_error(error)
        return TargetError(
            f"the table of view {definition.name}, which was dropped, cannot be deleted",
            where=sink_options(config, store, definition)["path"],
            got=f"{known.what} ({known.where})" if known.where else known.what,
            safe="the view is dropped; what is left of its table is of no use to mview",
            hint="mend that: the next `mview run` or `mview drop` deletes the rest",
        )
    return None
