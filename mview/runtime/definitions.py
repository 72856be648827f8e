"""The definitions of the views a store keeps, so that a restart needs no files and no flags."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson

from mview.lake.durable import later
from mview.plan.declared import Function
from mview.plan.definition import TableUse, ViewDefinition, order_views
from mview.store.layout import Store
from mview.store.manifest import Manifest


def digest_of(definition: ViewDefinition) -> str:
    """What must be equal for a view to go on without a new build: SQL, functions, key and sink."""
    body: list[Any] = [
        definition.sql,
        definition.key,
        definition.sink,
        sorted(definition.options.items()),
    ]
    body += definition.called
    return hashlib.sha256(orjson.dumps(body)).hexdigest()[:16]


def save_definition(store: Store, definition: ViewDefinition) -> None:
    """Keep a definition beside older ones of that name: the manifest says which one counts.

    Of the declared functions it has those that the view calls.
    """
    file = _file(store, definition.name, digest_of(definition))
    file.parent.mkdir(parents=True, exist_ok=True)
    staged = file.with_suffix(".tmp")
    staged.write_bytes(orjson.dumps(asdict(replace(definition, functions=definition.called))))
    staged.replace(file)
    later(file)


def load_definition(store: Store, manifest: Manifest, name: str) -> ViewDefinition:
    """The definition of a view as it was published."""
    file = _file(store, name, manifest.views[name].definition)
    data: dict[str, Any] = orjson.loads(file.read_bytes())
    tables = tuple(TableUse(**use) for use in data["tables"])
    functions = tuple(Function(**one) for one in data.get("functions", ()))
    return ViewDefinition(
        **{**data, "key": tuple(data["key"]), "tables": tables, "functions": functions}
    )


def _file(store: Store, name: str, digest: str) -> Path:
    return store.view(name) / f"definition-{digest}.json"


def published_definitions(store: Store, manifest: Manifest) -> list[ViewDefinition]:
    """The views that have right content, in DAG order."""
    views = [load_definition(store, manifest, n) for n, s in manifest.views.items() if not s.stale]
    return order_views(views)


def all_definitions(
    store: Store, manifest: Manifest, given: Sequence[ViewDefinition]
) -> list[ViewDefinition]:
    """The views to keep, in DAG order: those of the store, and those given, which come first."""
    views = {name: load_definition(store, manifest, name) for name in manifest.views}
    views.update({view.name: view for view in given})
    return order_views(list(views.values()))
