"""Which folders may be the store and the views' tables: none that anybody else has a use for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mview.catalog.definitions import digest_of
from mview.catalog.sinks import open_sink, sink_options
from mview.config import Config
from mview.errors import ConfigError, UserError
from mview.plan.definition import ViewDefinition, same_name
from mview.schema import TableSchema
from mview.store.environments import production_of
from mview.store.identity import STORE_MARK, refusal
from mview.store.layout import Store
from mview.store.manifest import Manifest

#: `s3://…` and `file:/…` are no folders; as such they would lie beside the configuration.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

_SAFE = "nothing was written there, and nothing deleted"


def check_store(config: Config) -> None:
    """Refuse a store where it could harm what is there; writes nothing.

    Raises:
        ConfigError: what is wrong with the folder.
    """
    # An environment is inside of production's on purpose.
    outer = production_of(Store(config.store)) if config.environment else config.store
    if why := _taken(config, outer) or _inside(outer):
        raise ConfigError(
            f"the store would be {why}",
            where=str(config.path),
            got=str(config.store),
            safe=_SAFE,
            hint="give `store:` a folder of its own, e.g. ../mview-data",
        )
    if error := refusal(config.store):
        raise error


def check_targets(
    config: Config, definitions: Iterable[ViewDefinition], manifest: Manifest | None
) -> dict[str, UserError]:
    """What is wrong with the folders of views, or with two of one name, by view; writes nothing.

    Args:
        definitions: all views that are kept.
        manifest: the newest one: what a published view has is looked at where it is written.
    """
    store, wrong = Store(config.store), {}
    places: dict[str, Path] = {}
    named: dict[str, ViewDefinition] = {}
    for definition in definitions:
        if (other := named.setdefault(definition.name.lower(), definition)) is not definition:
            wrong[definition.name] = same_name(other, definition)
            continue
        given = {**config.table_options(definition.sink), **definition.options}
        text, own = str(given.get("path")), "path" in given
        path = Path(sink_options(config, store, definition)["path"]).resolve()
        why = (_shorthand(text) or _misplaced(config, path, places)) if own else None
        if why:
            wrong[definition.name] = UserError(
                f"view {definition.name}: the folder of its table would be {why}",
                where=definition.file,
                got=text,
                safe=_SAFE,
                hint="give the view a folder of its own: WITH (path='…'), or no path",
            )
        # Nothing else can be wrong with a folder in the store, and a sink takes time to import.
        elif (own or "%" in str(path)) and not _is_published(manifest, definition):
            try:
                open_sink(config, store, definition, TableSchema((), ()), "check").check()
            except UserError as error:
                wrong[definition.name] = error
        places[definition.name] = path
    return wrong


def _is_published(manifest: Manifest | None, definition: ViewDefinition) -> bool:
    state = manifest.views.get(definition.name) if manifest else None
    return state is not None and state.definition == digest_of(definition)


def _shorthand(text: str) -> str | None:
    return "one of '~', which is not expanded here" if text.startswith("~") else None


def _misplaced(config: Config, path: Path, others: Mapping[str, Path]) -> str | None:
    if why := _taken(config, path):
        return why
    store = config.store.resolve()
    if _touch(path, store):
        return "the store, in it or above it"
    for name, other in others.items():
        if _touch(path, other):
            return f"that of view {name}, in it or above it"
    return _inside(path)


def _inside(path: Path) -> str | None:
    """What a folder is inside of, and would be cleaned away with; None: nothing that is known."""
    for above in path.resolve().parents:
        if (above / STORE_MARK).exists():
            return f"in another store, {above}"
        if (above / "_delta_log").exists():
            return f"in another Delta table, {above}"
    return None


def _taken(config: Config, path: Path) -> str | None:
    """Whose a folder is that can never be ours; None: nobody's that is known."""
    path = path.resolve()
    if scheme := next((part for part in path.parts if _SCHEME.fullmatch(part)), None):
        return f"a URL ({scheme}…), and is a folder of a file system"
    if path == Path(path.anchor):
        return "the root of the file system"
    if _holds(path, Path.home().resolve()):
        return "a home folder, or above it"
    if _holds(path, config.path.parent.resolve()):
        return "the folder of the configuration, or above it"
    for name, changes in config.changes.items():
        if changes.path is not None and _touch(path, changes.path.resolve()):
            return f"the folder of changes.{name}, in it or above it"
    return None


def _holds(path: Path, inner: Path) -> bool:
    return path == inner or path in inner.parents


def _touch(path: Path, other: Path) -> bool:
    return _holds(path, other) or _holds(other, path)
