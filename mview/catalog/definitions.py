"""The definitions of the views a store keeps, so that a restart needs no files and no flags."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from mview.errors import CorruptionError, UserError, typed
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import plain, record
from mview.plan.definition import ViewDefinition, order_views, same_name
from mview.plan.text.place import did_you_mean
from mview.schema import TableSchema
from mview.store.layout import Store
from mview.store.manifest import NEVER, Manifest, ViewState

#: Where a view's facts have the digest of the definition before the last change.
_FORMER = "former"
#: Where they have that of the definition that was to take its place, and halted.
_TRIED = "tried"

_HINT = (
    "`mview run` with the view's own file writes it again; without one, restore it from a copy of "
    "the store, or `mview drop` the view: its table stays where it has a path of its own"
)
#: The view itself is whole, and nothing writes a former text again.
_FORMER_HINT = (
    "restore it from a copy of the store; or put the text that you want into the view's file, and "
    "`mview apply` it: the view goes on as it is until then"
)

#: The file of a view in light mode.
_LIGHT = "view.json"


def digest_of(definition: ViewDefinition) -> str:
    """What must be equal for a view to go on without a new build: SQL, functions, key and sink."""
    *body, called = _parts(definition).values()
    return hashlib.sha256(orjson.dumps([*body, *called])).hexdigest()[:16]


def _parts(definition: ViewDefinition) -> dict[str, Any]:
    """What a digest is of, by what people call it."""
    return {
        "query": definition.sql,
        "key": definition.key,
        "sink": definition.sink,
        "sink options": sorted(definition.options.items()),
        "functions": definition.called,
    }


def differing(before: ViewDefinition, now: ViewDefinition) -> list[str]:
    """Which parts make a view another one than before."""
    parts = _parts(now)
    return [name for name, part in _parts(before).items() if part != parts[name]]


def taken_up(before: ViewDefinition, now: ViewDefinition) -> list[str]:
    """What else of a view that people see differs, and counts without a build."""
    parts = {
        "freshness": (before.freshness_ms, now.freshness_ms),
        "policy": (before.policy, now.policy),
        "comment": (before.comment, now.comment),
        "sinks": (before.sinks, now.sinks),
    }
    return [name for name, (old, new) in parts.items() if old != new]


def is_another(definition: ViewDefinition, manifest: Manifest) -> bool:
    """Whether a view is new, or another one than the store has under its name."""
    state = manifest.views.get(definition.name)
    return state is None or state.definition != digest_of(definition)


def save_definition(store: Store, definition: ViewDefinition) -> None:
    """Keep a definition beside older ones of that name: the manifest says which one counts.

    Of the declared functions it has those that the view calls.
    """
    file = _file(store, definition.name, digest_of(definition))
    put(file, checked(plain(replace(definition, functions=definition.called))))


def load_definition(store: Store, manifest: Manifest, name: str) -> ViewDefinition:
    """The definition of a view as it was published."""
    return _read(_file(store, name, manifest.views[name].definition))


def with_former(state: ViewState, before: ViewState | None) -> ViewState:
    """A view that was built, with a note of the definition that it had before it was changed.

    Args:
        before: as it was published; None: it was not.
    """
    if before is None:
        return state
    former = before.facts.get(_FORMER)
    if before.definition != state.definition and before.built_epoch != NEVER:
        former = before.definition
    return state if former is None else replace(state, facts={**state.facts, _FORMER: former})


def with_tried(state: ViewState, definition: ViewDefinition) -> ViewState:
    """A view that is not built by this definition: noted, where another one is published of it."""
    if state.built_epoch == NEVER:
        return state
    facts = {name: fact for name, fact in state.facts.items() if name != _TRIED}
    tried = digest_of(definition)
    return replace(state, facts=facts if tried == state.definition else {**facts, _TRIED: tried})


def load_former(
    store: Store, manifest: Manifest, name: str, *, once_built: bool = False
) -> ViewDefinition:
    """The definition that a view had before it was changed last, with the sinks that it has now.

    Of one that has halted by a changed definition, the published one: its rows are shown still.

    Args:
        store: has it.
        manifest: names the view.
        name: of the view.
        once_built: as it will be when the view is built by its published definition.

    Raises:
        UserError: there is no such view, or it was not changed.
        CorruptionError: what was kept of it is damaged.
    """
    if name not in manifest.views:
        hint = did_you_mean(name, [*manifest.views])
        raise UserError(f"the store has no view {name}", safe="nothing was changed", hint=hint)
    state = manifest.views[name]
    is_tried = _TRIED in state.facts and not once_built
    former = state.definition if is_tried else state.facts.get(_FORMER)
    if not isinstance(former, str):
        raise UserError(
            f"view {name} was not changed since it is in the store: there is nothing to go back to",
            safe="nothing was changed",
        )
    now = load_definition(store, manifest, name)
    return replace(_read(_file(store, name, former), _FORMER_HINT), sinks=now.sinks, file=now.file)


class Kept(NamedTuple):
    """Definitions that a store has, and why others cannot be read; by view, or by file."""

    views: dict[str, ViewDefinition]
    damaged: dict[str, CorruptionError]


def load_definitions(store: Store, manifest: Manifest, but: Collection[str] = ()) -> Kept:
    """The definitions of all views as they were published.

    Args:
        manifest: names the views.
        but: views that are left out.
    """
    return _kept(
        {
            name: _file(store, name, state.definition)
            for name, state in manifest.views.items()
            if name not in but
        }
    )


def kept_definitions(folder: Path) -> Kept:
    """All definitions in the folder of a view, also older ones, by file."""
    return _kept({str(file): file for file in sorted(folder.glob("definition-*.json"))})


def _kept(files: dict[str, Path]) -> Kept:
    kept = Kept({}, {})
    for name, file in files.items():
        try:
            kept.views[name] = _read(file)
        except CorruptionError as error:
            kept.damaged[name] = error
    return kept


def mend_definitions(store: Store, manifest: Manifest, given: Sequence[ViewDefinition]) -> None:
    """Write those again that are damaged or say other things now, of views given as published.

    The content goes on with other sinks, another freshness, comment or policy, and another place.
    """
    for view in given:
        state = manifest.views.get(view.name)
        if state is not None and state.definition == digest_of(view):
            try:
                kept = load_definition(store, manifest, view.name)
            except CorruptionError:
                save_definition(store, view)
            else:
                if kept != replace(view, functions=view.called):
                    save_definition(store, view)


def _read(file: Path, hint: str = _HINT) -> ViewDefinition:
    """A definition that was kept; its name in the file is its digest.

    Args:
        file: has it.
        hint: what to do where it is damaged.

    Raises:
        CorruptionError: it is not what was written.
    """

    def parse(data: object) -> ViewDefinition:
        definition = record(ViewDefinition, data)
        if file.name != _name(digest_of(definition)):
            raise ValueError("the digest of its name is not that of its content")
        return definition

    return read_checked(
        file,
        parse,
        "the definition of a view cannot be read",
        hint,
        "nothing was changed, and nothing of it was run",
    )


def _file(store: Store, name: str, digest: str) -> Path:
    return store.view(name) / _name(digest)


def _name(digest: str) -> str:
    return f"definition-{digest}.json"


def published_definitions(store: Store, manifest: Manifest) -> list[ViewDefinition]:
    """The views that have right content, in DAG order."""
    views = [load_definition(store, manifest, n) for n, s in manifest.views.items() if not s.stale]
    return order_views(views)


class Wanted(NamedTuple):
    """The views to keep, in DAG order, and why others of the store cannot be."""

    views: list[ViewDefinition]
    damaged: dict[str, CorruptionError]


def all_definitions(store: Store, manifest: Manifest, given: Sequence[ViewDefinition]) -> Wanted:
    """The views to keep: those of the store, and those given, which come first.

    Raises:
        UserError: two of those given are one to Spark.
    """
    named: dict[str, ViewDefinition] = {}
    for view in given:
        if (other := named.setdefault(view.name.lower(), view)) is not view:
            raise same_name(other, view)
    kept = load_definitions(store, manifest, but={view.name for view in given})
    return Wanted(order_views([*kept.views.values(), *given]), kept.damaged)


# --- views in light mode -------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptLight:
    """A view in light mode as a store has it: no manifest names it.

    Attributes:
        definition: the view.
        source: its table's columns and key, as they were when the view came.
    """

    definition: ViewDefinition
    source: TableSchema


def save_light(store: Store, kept: KeptLight) -> None:
    """Keep a view in light mode."""
    folder = store.light(kept.definition.name)
    folder.mkdir(parents=True, exist_ok=True)
    put(folder / _LIGHT, checked(plain(kept)))


def load_lights(store: Store) -> dict[str, KeptLight]:
    """The views in light mode that a store has, by name.

    Raises:
        CorruptionError: one cannot be read.
    """
    folders = sorted(store.lights.iterdir()) if store.lights.is_dir() else []
    kept = [
        read_checked(
            folder / _LIGHT,
            partial(record, KeptLight),
            "the definition of a light view cannot be read",
            "remove its folder and run the view again: its table in the sink is filled anew",
        )
        for folder in folders
        if (folder / _LIGHT).exists()
    ]
    return {light.definition.name: light for light in kept}


def kept_otherwise(
    store: Store, given: Sequence[ViewDefinition], manifest: Manifest | None
) -> dict[str, UserError]:
    """Given views that a store keeps in the other mode, by name, with the error of each.

    Args:
        store: the store.
        given: views of any mode.
        manifest: the newest one; None: there is none.
    """
    lights, full = load_lights(store), {} if manifest is None else manifest.views
    errors = {}
    for view in given:
        other = "full" if view.mode == "light" else "light"
        if view.name in (full if other == "full" else lights):
            drop = f"`mview drop {typed(view.name)}`"
            errors[view.name] = UserError(
                f"view {view.name} is kept in the {other} mode: only {drop} lets it change that",
                where=view.file,
                safe="nothing was changed",
                hint=f"{drop} while nobody runs the store, and run again: its tables in sinks are "
                "filled anew",
            )
    return errors
