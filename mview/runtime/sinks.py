"""The sink of a view: its options, and how it is opened. No Spark: `mview check` asks, too."""

from __future__ import annotations

from typing import Any

from mview.config import Config
from mview.connector import Sink, SinkTarget, load
from mview.plan.definition import ViewDefinition
from mview.schema import TableSchema
from mview.store.layout import Store


def sink_options(config: Config, store: Store, definition: ViewDefinition) -> dict[str, Any]:
    """The options of a view's sink; its path is the declared one, or lies in the store."""
    options: dict[str, Any] = {**config.sinks.get(definition.sink, {}), **definition.options}
    base = config.path.parent
    if "path" in definition.options:
        options["path"] = str(base / definition.options["path"])
    elif "path" in options:
        options["path"] = str(base / options["path"] / definition.name)
    else:
        options["path"] = str(store.view_target(definition.name))
    return options


def open_sink(
    config: Config, store: Store, definition: ViewDefinition, schema: TableSchema, digest: str
) -> Sink:
    """The sink of a view."""
    target = SinkTarget(
        view=definition.name,
        schema=schema,
        writer=f"mview/{definition.name}/{digest}",
        options=sink_options(config, store, definition),
        comment=definition.comment,
    )
    sink: Sink = load("sinks", definition.sink)(target)
    return sink
